//! Which requests a rule takes.

use std::net::IpAddr;

use serde_json::{Map, Value, json};

use super::super::expressions::Expressions;
use super::expressions::condition;
use crate::objects::apisix::ApisixHttpRule;

/// The methods that a route can have.
const METHODS: [&str; 10] = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "CONNECT", "TRACE", "PURGE"];

/// The keys of a route that say which requests it takes.
///
/// # Errors
/// Which field says something that no route can have: the requests that are meant are not known.
pub(super) fn conditions(
    rule: &ApisixHttpRule,
    namespace: &str,
    expressions: &mut Expressions,
) -> Result<Map<String, Value>, String> {
    let wanted = &rule.matches;
    if !wanted.filter_func.is_empty() {
        return Err("match.filter_func: is Lua code, which Weir does not run; use `exprs`".to_owned());
    }
    if wanted.paths.is_empty() {
        return Err("match.paths: is empty; `/*` stands for every path".to_owned());
    }
    let mut keys = Map::new();
    keys.insert("uris".to_owned(), list("paths", &wanted.paths, is_path, "begins with `/`, and may end in `*`")?);
    if !wanted.hosts.is_empty() {
        let hosts = list("hosts", &wanted.hosts, is_host, "is a name such as `a.example` or `*.a.example`")?;
        keys.insert("hosts".to_owned(), hosts);
    }
    if !wanted.methods.is_empty() {
        let is_method = |text: &str| METHODS.contains(&text);
        keys.insert("methods".to_owned(), list("methods", &wanted.methods, is_method, "is one in capital letters")?);
    }
    if !wanted.remote_addrs.is_empty() {
        let networks = list("remoteAddrs", &wanted.remote_addrs, is_network, "is an address such as `10.0.0.0/8`")?;
        keys.insert("remote_addrs".to_owned(), networks);
    }
    let mut vars = Vec::new();
    for (index, expression) in wanted.exprs.iter().enumerate() {
        let found = condition(expression, namespace, expressions);
        vars.push(found.map_err(|problem| format!("match.exprs[{index}].{problem}"))?);
    }
    if !vars.is_empty() {
        keys.insert("vars".to_owned(), Value::Array(vars));
    }
    if rule.priority != 0 {
        keys.insert("priority".to_owned(), rule.priority.into());
    }
    Ok(keys)
}

/// The values, each once: a route has no value twice.
fn list(field: &str, values: &[String], is_right: impl Fn(&str) -> bool, right: &str) -> Result<Value, String> {
    let mut kept: Vec<&str> = Vec::new();
    for (index, value) in values.iter().enumerate() {
        if !is_right(value) {
            return Err(format!("match.{field}[{index}]: `{value}` cannot be served; what can be {right}"));
        }
        if !kept.contains(&&**value) {
            kept.push(value);
        }
    }
    Ok(json!(kept))
}

fn is_path(text: &str) -> bool {
    text == "*" || text.starts_with('/') && !text.contains(['?', '#'])
}

/// Whether a text is a host name, of which the first label may be `*`.
pub(super) fn is_host(text: &str) -> bool {
    let name = text.strip_prefix("*.").unwrap_or(text);
    let is_label = |label: &str| {
        !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    text.len() <= 253 && name.split('.').all(is_label)
}

fn is_network(text: &str) -> bool {
    let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
    let Ok(address) = address.parse::<IpAddr>() else { return false };
    let most = if address.is_ipv4() { 32 } else { 128 };
    bits.is_none_or(|bits| bits.parse::<u8>().is_ok_and(|bits| bits <= most))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(matches: Value) -> Result<Map<String, Value>, String> {
        let rule = serde_json::from_value(json!({ "name": "r", "match": matches })).expect("it has the form");
        conditions(&rule, "shop", &mut Expressions::default())
    }

    #[test]
    fn matches_become_keys_of_routes_without_duplicates() {
        let keys = of(json!({
            "paths": ["/a/*", "/b", "/a/*"], "hosts": ["a.example", "*.b.example"], "methods": ["GET", "GET"],
            "remoteAddrs": ["10.0.0.0/8", "::1"],
            "exprs": [{ "subject": { "scope": "Query", "name": "v" }, "op": "Equal", "value": "2" }],
        }));
        let expected = json!({
            "uris": ["/a/*", "/b"], "hosts": ["a.example", "*.b.example"], "methods": ["GET"],
            "remote_addrs": ["10.0.0.0/8", "::1"], "vars": [["arg_v", "==", "2"]],
        });
        assert_eq!(keys.map(Value::Object), Ok(expected));
    }

    #[test]
    fn faults_of_matches_name_the_field() {
        for (field, value, told) in [
            ("filter_func", json!("function() end"), "match.filter_func"),
            ("paths", json!([]), "match.paths"),
            ("paths", json!(["a"]), "match.paths[0]"),
            ("hosts", json!(["a.example", "*"]), "match.hosts[1]"),
            ("hosts", json!(["a b"]), "match.hosts[0]"),
            ("methods", json!(["get"]), "match.methods[0]"),
            ("remoteAddrs", json!(["10.0.0.0/33"]), "match.remoteAddrs[0]"),
            ("exprs", json!([{ "subject": { "scope": "Path" }, "op": "?" }]), "match.exprs[0].op"),
        ] {
            let mut matches = json!({ "paths": ["/*"] });
            matches[field] = value;
            let problem = of(matches).expect_err("it has a fault");
            assert!(problem.starts_with(told), "{problem}");
        }
    }
}
