//! Where requests of an Ingress go.

use serde_json::{Map, Value, json};

use super::super::backends::{Backend, NoBackend, PortTransport, ServiceBackends};
use super::claimed::Claimed;
use crate::objects::core::NumberOrName;
use crate::objects::ingress::IngressBackend;
use crate::translation::KubeOptions;
use crate::world::ObjectName;

/// The keys of a route, or of an entry of `traffic-split`, that name an upstream.
pub(super) type BackendTarget = Map<String, Value>;

/// Which requests carry the session cookie of an upstream, as far as annotations do not say it.
#[derive(Clone, Copy, Default)]
pub(super) struct CookieScope<'a> {
    /// Those below this path: with another one of the same name, paths would replace each other's cookies.
    pub path: Option<&'a str>,
    /// Those over TLS.
    pub is_secure: bool,
}

impl CookieScope<'_> {
    /// Completes the settings of an upstream. Returns what tells it from those with another scope.
    fn apply(self, settings: &mut Map<String, Value>) -> String {
        let Some(Value::Object(cookie)) = settings.get_mut("persistence") else { return String::new() };
        let mut variant = String::new();
        if self.is_secure && !cookie.contains_key("secure") {
            cookie.insert("secure".to_owned(), true.into());
            variant.push_str("_secure");
        }
        // Last, since it can end as the other part does.
        if let (Some(path), false) = (self.path.filter(|path| is_cookie_path(path)), cookie.contains_key("path")) {
            cookie.insert("path".to_owned(), path.into());
            variant.push_str(&format!("_{path}"));
        }
        variant
    }
}

/// Whether a cookie can have this path; without one, it is of all paths.
fn is_cookie_path(path: &str) -> bool {
    path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b';')
}

/// The upstream of a backend, with the settings of this Ingress.
///
/// # Errors
/// Why there is none.
pub(super) fn target(
    claimed: &Claimed,
    (backend, scope): (&IngressBackend, CookieScope),
    backends: &mut ServiceBackends,
    options: &KubeOptions,
) -> Result<BackendTarget, String> {
    let service = backend.service.as_ref().ok_or("a backend that is not a Service is not served")?;
    let name = ObjectName::new(&claimed.ingress.metadata.namespace, &service.name);
    let port = match service.port.name.as_str() {
        "" => NumberOrName::Number(service.port.number),
        name => NumberOrName::Name(name.to_owned()),
    };
    let mut settings = claimed.settings.upstream.clone();
    let scope = scope.apply(&mut settings);
    let found = match backends.find(&name, &port, PortTransport::Tcp) {
        Ok(found) => found,
        Err(NoBackend::NoService) if options.offline => return by_name(&name, &service.port.number, settings),
        Err(NoBackend::NoService) => return Err(format!("there is no Service `{name}`")),
        Err(NoBackend::NoPort) => return Err(format!("the Service `{name}` has no such port")),
        Err(NoBackend::ExternalName) => {
            return Err(format!(
                "the Service `{name}` is an ExternalName, which could lead past the borders of namespaces"
            ));
        }
    };
    let has_own = !settings.is_empty() || claimed.settings.to_cluster_ip;
    let node = single_node(claimed, found, &name, backends, options);
    // A route of the Gateway API refers to the endpoints, if there are none as well.
    let by_name = node.is_some().then(|| "by_name".to_owned());
    if let Some(node) = node {
        settings.insert("nodes".to_owned(), json!([node]));
    } else if !backends.has_endpoint(found) {
        return Err(format!("the Service `{name}` has no endpoint"));
    }
    // With a prefix, since variants of the Gateway API have names of their own, such as `grpc`.
    let variant = has_own.then(|| format!("ingress_{}{scope}", claimed.ingress.metadata.name)).or(by_name);
    let id = backends.upstream(found, variant.as_deref(), settings);
    Ok(Map::from_iter([("upstream_id".to_owned(), id.into())]))
}

/// The node in place of the endpoints, if there is to be one.
fn single_node(
    claimed: &Claimed,
    found: Backend,
    name: &ObjectName,
    backends: &ServiceBackends,
    options: &KubeOptions,
) -> Option<Value> {
    let address = &found.service.spec.cluster_ip;
    let has_address = !["", "None"].contains(&address.as_str());
    let host = match (claimed.settings.to_cluster_ip && has_address, options.offline) {
        (true, _) => address.clone(),
        (false, true) if !backends.has_endpoint(found) => dns_name(name),
        _ => return None,
    };
    Some(json!({ "host": host, "port": found.port.port, "weight": 1 }))
}

/// The upstream of a Service that is only known by its name.
fn by_name(name: &ObjectName, port: &u16, settings: Map<String, Value>) -> Result<BackendTarget, String> {
    if *port == 0 {
        return Err(format!("the Service `{name}` is not among the manifests, so the number of its port is not known"));
    }
    let mut upstream = json!({ "nodes": [{ "host": dns_name(name), "port": port, "weight": 1 }] });
    if let Value::Object(members) = &mut upstream {
        members.extend(settings);
    }
    Ok(Map::from_iter([("upstream".to_owned(), upstream)]))
}

fn dns_name(name: &ObjectName) -> String {
    format!("{}.{}.svc.cluster.local", name.name, name.namespace)
}
