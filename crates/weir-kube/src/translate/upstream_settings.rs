//! Settings of upstreams, as an ApisixUpstream and a BackendTrafficPolicy have them.

mod checks;
mod durations;

use serde_json::{Map, Value, json};

use self::checks::checks;
use self::durations::seconds;
use crate::objects::apisix::{ApisixTimeout, ApisixUpstreamSettings};

/// A part of a time-out of which nothing is said, in seconds.
const DEFAULT_TIMEOUT: f64 = 60.0;

/// A number of a field.
///
/// # Errors
/// If it is out of the range.
pub(super) fn within(field: &str, number: i64, (least, most): (i64, i64)) -> Result<i64, String> {
    match (least..=most).contains(&number) {
        true => Ok(number),
        false => Err(format!("{field}: {number} is not from {least} to {most}")),
    }
}

/// The number of a port.
///
/// # Errors
/// If no port can have it.
pub(super) fn port_number(field: &str, number: i64) -> Result<u16, String> {
    within(field, number, (1, 65_535)).map(|number| number as u16)
}

/// Those that read nothing else than the object.
///
/// # Errors
/// Which field cannot be served.
pub(super) fn plain_settings(wanted: &ApisixUpstreamSettings) -> Result<Map<String, Value>, String> {
    let mut keys = Map::new();
    if wanted.discovery.is_some() {
        return Err("discovery: registries are those of the operator of the nodes; use `backends`, or `externalNodes`"
            .to_owned());
    }
    match &*wanted.scheme {
        "" => {}
        scheme @ ("http" | "https" | "grpc" | "grpcs") => _ = keys.insert("scheme".to_owned(), scheme.into()),
        other => return Err(format!("scheme: `{other}` is none of http, https, grpc and grpcs")),
    }
    if matches!(&*wanted.scheme, "https" | "grpcs") {
        // As with APISIX, certificates of endpoints are not verified.
        keys.insert("tls".to_owned(), json!({ "verify": false }));
    }
    balancing(wanted, &mut keys)?;
    if let Some(retries) = wanted.retries {
        keys.insert("retries".to_owned(), within("retries", retries, (0, 65_535))?.into());
    }
    if let Some(timeout) = &wanted.timeout {
        keys.insert("timeout".to_owned(), times(timeout)?);
    }
    match &*wanted.pass_host {
        "" => {}
        "rewrite" if wanted.upstream_host.is_empty() => {
            return Err("passHost: `rewrite` needs `upstreamHost`".to_owned());
        }
        choice @ ("pass" | "node" | "rewrite") => _ = keys.insert("pass_host".to_owned(), choice.into()),
        other => return Err(format!("passHost: `{other}` is none of pass, node and rewrite")),
    }
    // APISIX ignores it otherwise.
    if wanted.pass_host == "rewrite" {
        keys.insert("upstream_host".to_owned(), wanted.upstream_host.clone().into());
    }
    if let Some(health) = &wanted.health_check {
        keys.insert("checks".to_owned(), checks(health)?);
    }
    Ok(keys)
}

fn balancing(wanted: &ApisixUpstreamSettings, keys: &mut Map<String, Value>) -> Result<(), String> {
    let Some(balancer) = wanted.load_balancer.as_ref().filter(|balancer| !balancer.kind.is_empty()) else {
        return Ok(());
    };
    match &*balancer.kind {
        kind @ ("roundrobin" | "least_conn" | "ewma") => _ = keys.insert("type".to_owned(), kind.into()),
        "chash" => {
            let scopes = ["vars", "header", "cookie", "consumer", "vars_combinations"];
            if !scopes.contains(&&*balancer.hash_on) {
                return Err(format!("loadbalancer.hashOn: `{}` is none of {}", balancer.hash_on, scopes.join(", ")));
            }
            keys.insert("type".to_owned(), "chash".into());
            keys.insert("hash_on".to_owned(), balancer.hash_on.clone().into());
            if !balancer.key.is_empty() {
                keys.insert("key".to_owned(), balancer.key.clone().into());
            }
        }
        other => {
            return Err(format!("loadbalancer.type: `{other}` is none of roundrobin, chash, ewma and least_conn"));
        }
    }
    Ok(())
}

/// `timeout` of a route or an upstream, in seconds.
///
/// # Errors
/// Which part is no duration.
pub(super) fn times(wanted: &ApisixTimeout) -> Result<Value, String> {
    let part = |name: &str, text: &str| {
        let read = if text.is_empty() { Ok(0.0) } else { seconds(text) };
        let seconds = read.map_err(|problem| format!("timeout.{name}: {problem}"))?;
        Ok::<f64, String>(if seconds > 0.0 { seconds } else { DEFAULT_TIMEOUT })
    };
    Ok(json!({
        "connect": part("connect", &wanted.connect)?,
        "send": part("send", &wanted.send)?,
        "read": part("read", &wanted.read)?,
    }))
}
