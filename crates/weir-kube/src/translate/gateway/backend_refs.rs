//! The backends of a rule.

use serde_json::{Map, Value, json};

use super::super::backends::{NoBackend, ServiceBackends};
use super::conditions::Problem;
use super::context::Context;
use super::grants::{GROUP, GrantReferent, GrantReferrer};
use crate::objects::core::NumberOrName;
use crate::objects::meta::ObjectReference;
use crate::objects::routes::BackendRef;
use crate::world::ObjectName;

/// Where the requests of a rule go.
#[derive(Debug, PartialEq)]
pub(super) enum RuleDestination {
    /// An upstream with each weight; `None` is a backend that does not exist, whose share of requests gets 503.
    Upstreams(Vec<(Option<String>, u32)>),
    /// Nothing has a weight above 0, or nothing exists.
    Nowhere,
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
        let id = match upstream(context, from, backend, backends) {
            Ok(id) => Some(id),
            Err(problem) => {
                first = first.or(Some(problem));
                None
            }
        };
        let weight = backend.weight.unwrap_or(1);
        if weight > 0 {
            shares.push((id, weight));
        }
    }
    let exists = shares.iter().any(|(id, _)| id.is_some());
    (if exists { RuleDestination::Upstreams(shares) } else { RuleDestination::Nowhere }, first)
}

impl RuleDestination {
    /// Adds the keys to a route, and the plugins.
    pub(super) fn write(&self, route: &mut Map<String, Value>, plugins: &mut Map<String, Value>) {
        match self {
            RuleDestination::Nowhere => answer_500(plugins),
            RuleDestination::Upstreams(shares) => {
                if let [(Some(id), _)] = &**shares {
                    route.insert("upstream_id".to_owned(), id.clone().into());
                    return;
                }
                let entry = |(id, weight): &(Option<String>, u32)| match id {
                    Some(id) => json!({ "upstream_id": id, "weight": weight }),
                    // An upstream without endpoints answers with 503.
                    None => json!({ "upstream": { "nodes": [] }, "weight": weight }),
                };
                let entries: Vec<Value> = shares.iter().map(entry).collect();
                plugins.insert("traffic-split".to_owned(), json!({ "rules": [{ "weighted_upstreams": entries }] }));
            }
        }
    }
}

/// Makes a route answer with 500.
pub(super) fn answer_500(plugins: &mut Map<String, Value>) {
    plugins.insert("fault-injection".to_owned(), json!({ "abort": { "http_status": 500 } }));
}

fn upstream(
    context: &Context,
    from: GrantReferrer,
    backend: &BackendRef,
    backends: &mut ServiceBackends,
) -> Result<String, Problem> {
    let ObjectReference { group, kind, namespace, name, port, .. } = &backend.reference;
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
    if !backend.filters.is_empty() {
        let message = format!("filters of the backend {service} are not supported; its requests get 500");
        return Err(Problem::new("UnsupportedValue", message));
    }
    // To send in plain text what must be encrypted is worse than not to send it.
    if has_tls_policy(context, &service) {
        let message = format!("BackendTLSPolicy of Service {service} is not supported; its requests get 500");
        return Err(Problem::new("UnsupportedProtocol", message));
    }
    let is_grpc = from.kind == "GRPCRoute";
    let settings = is_grpc.then(|| ("scheme".to_owned(), Value::from("grpc")));
    Ok(backends.upstream(found, is_grpc.then_some("grpc"), settings.into_iter().collect()))
}

fn has_tls_policy(context: &Context, service: &ObjectName) -> bool {
    let policies = context.world.backend_tls_policies.range(ObjectName::new(&service.namespace, "")..);
    let mut policies = policies.take_while(|(name, _)| name.namespace == service.namespace);
    policies.any(|(_, policy)| {
        let mut targets = policy.spec.target_refs.iter();
        targets.any(|target| target.group != GROUP && target.kind == "Service" && target.name == service.name)
    })
}
