//! The backends of a rule.

use serde_json::{Map, Value, json};

use super::super::backends::{Backend, NoBackend, PortTransport, ServiceBackends};
use super::super::conditions::Problem;
use super::super::grants::{GrantReferent, GrantReferrer};
use super::certificates::TlsCertificate;
use super::context::Context;
use super::filters;
use crate::objects::Kind;
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

/// How the upstreams of a rule differ from those of other rules with the same Services.
#[derive(Default)]
pub(super) struct UpstreamVariant {
    /// A part of the ids.
    name: Vec<String>,
    settings: Map<String, Value>,
    /// What backends with a BackendTLSPolicy are shown.
    identity: Option<TlsCertificate>,
    /// Connections carry the TLS of clients already.
    passes_tls: bool,
}

impl UpstreamVariant {
    pub(super) fn of(
        kind: Kind,
        retries: Option<&Map<String, Value>>,
        identity: Option<&TlsCertificate>,
    ) -> UpstreamVariant {
        let mut variant = UpstreamVariant { identity: identity.cloned(), ..UpstreamVariant::default() };
        if kind == Kind::GRPCRoute {
            variant.name.push("grpc".to_owned());
            variant.settings.insert("scheme".to_owned(), "grpc".into());
        }
        if let Some(retries) = retries {
            let count = &retries["retries"];
            let statuses = retries.get("retry_on").and_then(Value::as_array).into_iter().flatten();
            let statuses = statuses.filter_map(|status| status.as_str()?.strip_prefix("http_"));
            variant.name.push(format!("retry-{count}"));
            variant.name.extend(statuses.map(str::to_owned));
            variant.settings.extend(retries.clone());
        }
        variant
    }

    /// For streams: `scheme` is `tcp` or `udp`.
    pub(super) fn of_streams(
        scheme: &'static str,
        passes_tls: bool,
        identity: Option<&TlsCertificate>,
    ) -> UpstreamVariant {
        UpstreamVariant {
            name: vec![scheme.to_owned()],
            settings: Map::from_iter([("scheme".to_owned(), scheme.into())]),
            identity: identity.cloned(),
            passes_tls,
        }
    }

    fn scheme(&self) -> Option<&str> {
        self.settings.get("scheme").and_then(Value::as_str)
    }

    fn transport(&self) -> PortTransport {
        if self.scheme() == Some("udp") { PortTransport::Udp } else { PortTransport::Tcp }
    }

    /// The scheme with TLS, as a BackendTLSPolicy wants it; `None`: policies have no meaning.
    fn secured_scheme(&self) -> Option<&'static str> {
        match self.scheme() {
            None => Some("https"),
            Some("grpc") => Some("grpcs"),
            Some("tcp") if !self.passes_tls => Some("tls"),
            Some(_) => None,
        }
    }

    fn with_tls(&self, scheme: &'static str, tls: &Map<String, Value>) -> UpstreamVariant {
        let (mut name, mut settings) = (self.name.clone(), self.settings.clone());
        name.push("tls".to_owned());
        settings.insert("scheme".to_owned(), scheme.into());
        let mut tls = tls.clone();
        if let Some(TlsCertificate { secret, chain, key }) = &self.identity {
            name.push(secret.to_string());
            tls.insert("client_cert".to_owned(), chain.clone().into());
            tls.insert("client_key".to_owned(), key.clone().into());
        }
        settings.insert("tls".to_owned(), tls.into());
        UpstreamVariant { name, settings, ..UpstreamVariant::default() }
    }
}

/// The backends of a rule, and what is wrong with any of them.
pub(super) fn resolve(
    context: &Context,
    from: GrantReferrer,
    references: &[BackendRef],
    variant: &UpstreamVariant,
    backends: &mut ServiceBackends,
) -> (RuleDestination, Option<Problem>) {
    let (mut shares, mut first) = (Vec::new(), None);
    for backend in references {
        let found = upstream(context, from, &backend.reference, variant, backends)
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
                plugins.insert("traffic-split".to_owned(), split(shares));
            }
        }
    }

    /// The same of a stream route, where `scheme` is `tcp` or `udp`. What leads nowhere ends as if no endpoint were there.
    pub(super) fn write_stream(&self, scheme: &str, route: &mut Map<String, Value>) {
        let shares = match self {
            RuleDestination::Nowhere => &[],
            RuleDestination::Shares(shares) => &**shares,
        };
        match shares.iter().find_map(|share| share.backend.as_ref()) {
            Some((id, _)) => route.insert("upstream_id".to_owned(), id.clone().into()),
            None => route.insert("upstream".to_owned(), json!({ "scheme": scheme, "nodes": [] })),
        };
        if shares.len() > 1 {
            route.insert("plugins".to_owned(), json!({ "traffic-split": split(shares) }));
        }
    }
}

/// The options of `traffic-split`.
fn split(shares: &[Share]) -> Value {
    let entries: Vec<Value> = shares.iter().map(Share::entry).collect();
    json!({ "rules": [{ "weighted_upstreams": entries }] })
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
    variant: &UpstreamVariant,
    backends: &mut ServiceBackends,
) -> Result<String, Problem> {
    let found = find(context, from, reference, variant.transport(), backends)?;
    let service = service_name(reference, from.namespace);
    let secured = match variant.secured_scheme() {
        Some(scheme) => {
            let settings = context.tls_policies.settings(&service, &found.port.name)?;
            settings.map(|tls| variant.with_tls(scheme, tls))
        }
        None => None,
    };
    let UpstreamVariant { name, settings, .. } = secured.as_ref().unwrap_or(variant);
    let name = (!name.is_empty()).then(|| name.join("-"));
    Ok(backends.upstream(found, name.as_deref(), settings.clone()))
}

/// The Service that a reference in an object of a namespace names.
pub(super) fn service_name(reference: &ObjectReference, namespace: &str) -> ObjectName {
    ObjectName::new(reference.namespace.as_deref().unwrap_or(namespace), &reference.name)
}

/// The backend that a reference leads to, if it is permitted.
pub(super) fn find<'a>(
    context: &Context,
    from: GrantReferrer,
    reference: &ObjectReference,
    transport: PortTransport,
    backends: &ServiceBackends<'a>,
) -> Result<Backend<'a>, Problem> {
    let ObjectReference { group, kind, namespace, name, port, .. } = reference;
    let (group, kind) = (group.as_deref().unwrap_or(""), kind.as_deref().unwrap_or("Service"));
    let namespace = namespace.as_deref().unwrap_or(from.namespace);
    let service = service_name(reference, from.namespace);
    if (group, kind) != ("", "Service") {
        return Err(Problem::new("InvalidKind", format!("{kind} {service} cannot be a backend: refer to a Service")));
    }
    if !context.grants.permit(from, GrantReferent { group, kind, namespace, name }) {
        let message = format!("no ReferenceGrant in {namespace} permits the reference to Service {service}");
        return Err(Problem::new("RefNotPermitted", message));
    }
    let not_found = |message: String| Problem::new("BackendNotFound", message);
    let Some(port) = port else { return Err(not_found(format!("the reference to Service {service} has no port"))) };
    backends.find(&service, &NumberOrName::Number(*port), transport).map_err(|why| match why {
        NoBackend::NoService => not_found(format!("Service {service} does not exist")),
        NoBackend::NoPort => not_found(format!("Service {service} has no port {port}")),
        NoBackend::ExternalName => {
            let message = format!("Service {service} is of type ExternalName, which could lead to any namespace");
            Problem::new("UnsupportedProtocol", message)
        }
    })
}
