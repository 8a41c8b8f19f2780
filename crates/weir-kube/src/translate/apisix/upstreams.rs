//! ApisixUpstreams: settings for the Service of their name, and upstreams of external nodes.

use serde_json::{Map, Value, json};

use super::super::backends::ServiceBackends;
use super::super::reach;
use super::super::upstream_settings::{plain_settings, port_number, within};
use super::class::is_usable;
use super::outcomes::ApisixProblem;
use super::secrets::{check_texts, key_pair};
use super::{ApisixContext, ApisixOutcome, own};
use crate::objects::Kind;
use crate::objects::apisix::{ApisixExternalNode, ApisixUpstream, ApisixUpstreamSettings};
use crate::translation::Translation;
use crate::world::ObjectName;

/// The weight of what says none.
pub(super) const WEIGHT: i64 = 100;
/// The most that a node of an upstream, or a share of requests, can weigh.
pub(super) const MOST_WEIGHT: i64 = 100_000;

/// The ApisixUpstream with this name, if it can be used.
pub(super) fn find<'a>(context: &ApisixContext<'a>, name: &ObjectName) -> Option<&'a ApisixUpstream> {
    let found = context.world.apisix_upstreams.get(name)?;
    let is_usable = is_usable(&found.spec.ingress_class_name, context.world, context.options);
    Some(&**found).filter(|_| is_usable)
}

/// The keys of the upstream of a port of a Service that follow from its ApisixUpstream; those of the port win.
///
/// # Errors
/// Which field cannot be served.
pub(super) fn settings(
    context: &ApisixContext,
    upstream: &ApisixUpstream,
    port: u16,
) -> Result<Map<String, Value>, ApisixProblem> {
    let of_port = upstream.spec.port_level_settings.iter().find(|of_port| of_port.port == i64::from(port));
    // Those for all ports must be right without the others, too.
    let keys = of_settings(context, upstream, &upstream.spec.settings)?;
    let keys = match of_port {
        None => keys,
        Some(of_port) => of_settings(context, upstream, &upstream.spec.settings.with(&of_port.settings))
            .map_err(|problem| problem.at(&format!("portLevelSettings of {port}")))?,
    };
    Ok(without_tls_in_vain(keys))
}

/// As with APISIX, certificates are of no use with a scheme that is without TLS.
fn without_tls_in_vain(mut keys: Map<String, Value>) -> Map<String, Value> {
    let scheme = keys.get("scheme").and_then(Value::as_str);
    if !scheme.is_some_and(|scheme| ["https", "grpcs"].contains(&scheme)) {
        keys.remove("tls");
    }
    keys
}

/// The upstream of the external nodes of an ApisixUpstream.
///
/// # Errors
/// Which field cannot be served.
pub(super) fn external(
    context: &ApisixContext,
    upstream: &ApisixUpstream,
    backends: &ServiceBackends,
) -> Result<Map<String, Value>, ApisixProblem> {
    let spec = &upstream.spec;
    if spec.external_nodes.is_empty() {
        return Err(ApisixProblem::Reference("has no `externalNodes`; use `backends` for a Service".to_owned()));
    }
    let mut keys = without_tls_in_vain(of_settings(context, upstream, &spec.settings)?);
    let mut nodes = Vec::new();
    for (index, node) in spec.external_nodes.iter().enumerate() {
        let place = format!("externalNodes[{index}]");
        let host = host(upstream, node, backends).map_err(|problem| problem.at(&place))?;
        let wrong = |problem| ApisixProblem::Spec(problem).at(&place);
        let port = node.port.unwrap_or(if spec.settings.scheme.ends_with('s') { 443 } else { 80 });
        let port = port_number("port", port).map_err(wrong)?;
        let weight = within("weight", node.weight.unwrap_or(WEIGHT), (0, MOST_WEIGHT)).map_err(wrong)?;
        nodes.push(json!({ "host": host, "port": port, "weight": weight }));
    }
    keys.insert("nodes".to_owned(), Value::Array(nodes));
    Ok(keys)
}

/// Adds the statuses of all of them.
pub(super) fn tell(context: &ApisixContext, backends: &ServiceBackends, translation: &mut Translation) {
    for upstream in own(context, &context.world.apisix_upstreams, |upstream| &upstream.spec.ingress_class_name) {
        let mut outcome = ApisixOutcome::default();
        let ports = upstream.spec.port_level_settings.iter().map(|of_port| of_port.port);
        let faulty = ports.map(Some).chain([None]).find_map(|port| {
            match port.map(|port| port_number("portLevelSettings.port", port)) {
                Some(Err(problem)) => Some(ApisixProblem::Spec(problem)),
                // No Service has the port 0.
                checked => settings(context, upstream, checked.and_then(Result::ok).unwrap_or_default()).err(),
            }
        });
        let external =
            || external(context, upstream, backends).err().filter(|_| !upstream.spec.external_nodes.is_empty());
        if let Some(problem) = faulty.or_else(external) {
            outcome.add(problem);
        }
        translation.statuses.push(outcome.status(upstream, &upstream.status.conditions));
    }
}

/// The host of an external node. Users of a namespace write it, and the node connects to it.
fn host(
    upstream: &ApisixUpstream,
    node: &ApisixExternalNode,
    backends: &ServiceBackends,
) -> Result<String, ApisixProblem> {
    let host = match &*node.kind {
        "Domain" => node.name.clone(),
        "" | "Service" => {
            let service = ObjectName::new(&upstream.metadata.namespace, &node.name);
            let missing = || ApisixProblem::Reference(format!("there is no Service `{service}` of type ExternalName"));
            backends.external_name(&service).ok_or_else(missing)?
        }
        other => {
            return Err(ApisixProblem::Spec(format!("type: `{other}` is neither Domain nor Service")));
        }
    };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    let is_address = host.parse::<std::net::IpAddr>().is_ok();
    if host.is_empty() || !(is_address || host.chars().all(is_plain)) {
        return Err(ApisixProblem::Spec(format!("name: `{host}` is neither a host name nor an address")));
    }
    reach::check(&host).map_err(|problem| ApisixProblem::Spec(format!("name: {problem}")))?;
    Ok(host)
}

fn of_settings(
    context: &ApisixContext,
    upstream: &ApisixUpstream,
    wanted: &ApisixUpstreamSettings,
) -> Result<Map<String, Value>, ApisixProblem> {
    let mut keys = plain_settings(wanted).map_err(ApisixProblem::Spec)?;
    if let Some(secret) = &wanted.tls_secret {
        let from = (Kind::ApisixUpstream, &*upstream.metadata.namespace);
        let (cert, key) = key_pair(context, from, secret).map_err(|problem| problem.at("tlsSecret"))?;
        let tls = keys.entry("tls").or_insert_with(|| json!({}));
        tls["client_cert"] = cert.into();
        tls["client_key"] = key.into();
    }
    let keys = Value::Object(keys);
    check_texts(&keys)?;
    Ok(keys.as_object().cloned().unwrap_or_default())
}
