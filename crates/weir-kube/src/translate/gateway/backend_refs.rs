//! The backends of a rule.

use serde_json::{Map, Value, json};

use super::super::backends::{Backend, NoBackend, ServiceBackends};
use super::conditions::Problem;
use super::context::Context;
use super::filters;
use super::grants::{GROUP, GrantReferent, GrantReferrer};
use crate::objects::core::NumberOrName;
use crate::objects::meta::ObjectReference;
use crate::objects::routes::BackendRef;
use crate::world::ObjectName;

/// Where the requests of a rule go.
#[derive(Debug, PartialEq)]
pub(super) enum RuleDestination {
    Shares(Vec<Share>),
    /// Nothing has a weight above 0, or nothing exists.
    Nowhere,
}

/// The requests for one backend.
#[derive(Debug, PartialEq)]
pub(super) struct Share {
    weight: u32,
    /// The upstream and how header fields are changed, as keys of an entry of `traffic-split`. `None`: the backend does not exist,
    /// and the answer is 500.
    backend: Option<(String, Map<String, Value>)>,
}

/// The backends of a rule, and what is wrong with any of them.
pub(super) fn resolve(
    context: &Context,
    from: GrantReferrer,
    references: &[BackendRef],
    backends: &mut ServiceBackends,
) -> (RuleDestination, Option<Problem>) {
    let (mut shares, mut first) = (Vec::new(), None);
    for backend in references {
        let found = upstream(context, from, &backend.reference, backends)
            .and_then(|id| Ok((id, filters::of_backend(&backend.filters)?)));
        let weight = backend.weight.unwrap_or(1);
        if weight > 0 {
            shares.push(Share { weight, backend: found.as_ref().ok().cloned() });
        }
        first = first.or(found.err());
    }
    let exists = shares.iter().any(|share| share.backend.is_some());
    (if exists { RuleDestination::Shares(shares) } else { RuleDestination::Nowhere }, first)
}

impl RuleDestination {
    /// Adds the keys to a route, and the plugins.
    pub(super) fn write(&self, route: &mut Map<String, Value>, plugins: &mut Map<String, Value>) {
        match self {
            RuleDestination::Nowhere => answer_500(plugins),
            RuleDestination::Shares(shares) => {
                if let [Share { backend: Some((id, edits)), .. }] = &**shares
                    && edits.is_empty()
                {
                    route.insert("upstream_id".to_owned(), id.clone().into());
                    return;
                }
                let entries: Vec<Value> = shares.iter().map(Share::entry).collect();
                plugins.insert("traffic-split".to_owned(), json!({ "rules": [{ "weighted_upstreams": entries }] }));
            }
        }
    }
}

impl Share {
    fn entry(&self) -> Value {
        let mut entry = Map::new();
        match &self.backend {
            Some((id, edits)) => {
                entry.insert("upstream_id".to_owned(), id.clone().into());
                entry.extend(edits.clone());
            }
            None => {
                entry.insert("status".to_owned(), 500.into());
            }
        }
        entry.insert("weight".to_owned(), self.weight.into());
        Value::Object(entry)
    }
}

/// Makes a route answer with 500.
pub(super) fn answer_500(plugins: &mut Map<String, Value>) {
    plugins.insert("fault-injection".to_owned(), json!({ "abort": { "http_status": 500 } }));
}

fn upstream(
    context: &Context,
    from: GrantReferrer,
    reference: &ObjectReference,
    backends: &mut ServiceBackends,
) -> Result<String, Problem> {
    let found = find(context, from, reference, backends)?;
    let is_grpc = from.kind == "GRPCRoute";
    let settings = is_grpc.then(|| ("scheme".to_owned(), Value::from("grpc")));
    Ok(backends.upstream(found, is_grpc.then_some("grpc"), settings.into_iter().collect()))
}

/// The backend that a reference leads to, if it is permitted.
pub(super) fn find<'a>(
    context: &Context,
    from: GrantReferrer,
    reference: &ObjectReference,
    backends: &ServiceBackends<'a>,
) -> Result<Backend<'a>, Problem> {
    let ObjectReference { group, kind, namespace, name, port, .. } = reference;
    let (group, kind) = (group.as_deref().unwrap_or(""), kind.as_deref().unwrap_or("Service"));
    let namespace = namespace.as_deref().unwrap_or(from.namespace);
    let service = ObjectName::new(namespace, name);
    if (group, kind) != ("", "Service") {
        return Err(Problem::new("InvalidKind", format!("{kind} {service} cannot be a backend: refer to a Service")));
    }
    if !context.grants.permit(from, GrantReferent { group, kind, namespace, name }) {
        let message = format!("no ReferenceGrant in {namespace} permits the reference to Service {service}");
        return Err(Problem::new("RefNotPermitted", message));
    }
    let not_found = |message: String| Problem::new("BackendNotFound", message);
    let Some(port) = port else { return Err(not_found(format!("the reference to Service {service} has no port"))) };
    let found = backends.find(&service, &NumberOrName::Number(*port)).map_err(|why| match why {
        NoBackend::NoService => not_found(format!("Service {service} does not exist")),
        NoBackend::NoPort => not_found(format!("Service {service} has no port {port}")),
        NoBackend::ExternalName => {
            let message = format!("Service {service} is of type ExternalName, which could lead to any namespace");
            Problem::new("UnsupportedProtocol", message)
        }
    })?;
    // To send in plain text what must be encrypted is worse than not to send it.
    if has_tls_policy(context, &service) {
        let message = format!("BackendTLSPolicy of Service {service} is not supported; its requests get 500");
        return Err(Problem::new("UnsupportedProtocol", message));
    }
    Ok(found)
}

fn has_tls_policy(context: &Context, service: &ObjectName) -> bool {
    let policies = context.world.backend_tls_policies.range(ObjectName::new(&service.namespace, "")..);
    let mut policies = policies.take_while(|(name, _)| name.namespace == service.namespace);
    policies.any(|(_, policy)| {
        let mut targets = policy.spec.target_refs.iter();
        targets.any(|target| target.group != GROUP && target.kind == "Service" && target.name == service.name)
    })
}
