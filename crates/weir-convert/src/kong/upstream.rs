//! Services, upstreams and targets, as upstreams.

use super::health_checks;
use crate::conversion::DocumentConversion;
use crate::document::DocumentValue;
use crate::hashing::hashed;
use crate::output::ConvertedResource;
use crate::yaml::{Yaml, YamlMembers};

/// The parts of a service's address, which may also be given as one `url`.
pub(super) struct ServiceAddress {
    pub protocol: String,
    pub host: String,
    pub port: i64,
    pub path: String,
}

pub(super) fn address(service: &DocumentValue) -> Option<ServiceAddress> {
    let (mut protocol, mut host, mut port, mut path) = (
        service.text("protocol").unwrap_or("http").to_owned(),
        service.text("host").unwrap_or("").to_owned(),
        service.number("port"),
        service.text("path").unwrap_or("").to_owned(),
    );
    if let Some((scheme, rest)) = service
        .text("url")
        .or(service.text("host").filter(|host| host.contains("://")))
        .and_then(|url| url.split_once("://"))
    {
        let (authority, rest) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (name, number) = match authority.rsplit_once(':') {
            Some((name, number)) if !number.ends_with(']') => (name, Some(number.parse().ok()?)),
            _ => (authority, None),
        };
        let default = if scheme.ends_with('s') { 443 } else { 80 };
        (protocol, host, port, path) = (scheme.to_owned(), name.to_owned(), number.or(Some(default)), rest.to_owned());
    }
    let is_known = ["http", "https", "grpc", "grpcs"].contains(&protocol.as_str()) && !host.is_empty();
    is_known.then(|| ServiceAddress {
        protocol,
        host,
        port: port.unwrap_or(80),
        path: path.trim_end_matches('/').to_owned(),
    })
}

/// The members of a service that are converted, or reported where they would be.
const SERVICE: [&str; 17] = [
    "name",
    "url",
    "protocol",
    "host",
    "port",
    "path",
    "retries",
    "connect_timeout",
    "write_timeout",
    "read_timeout",
    "enabled",
    "routes",
    "plugins",
    "tls_verify",
    "ca_certificates",
    "client_certificate",
    "tls_verify_depth",
];

/// The same of an upstream. `slots` has no meaning here, and of hashing it is told that the fallback is not used.
const UPSTREAM: [&str; 15] = [
    "name",
    "algorithm",
    "hash_on",
    "hash_on_header",
    "hash_on_cookie",
    "hash_on_cookie_path",
    "hash_on_query_arg",
    "hash_fallback",
    "hash_fallback_header",
    "hash_fallback_query_arg",
    "hash_fallback_uri_capture",
    "slots",
    "healthchecks",
    "host_header",
    "targets",
];

/// Adds the upstream of a service, if it does not exist, and returns its id. Routes that keep the client's `Host` need a separate
/// one.
pub(super) fn registered(
    conversion: &mut DocumentConversion,
    service: &DocumentValue,
    address: &ServiceAddress,
    keeps_host: bool,
) -> String {
    let name = service.text("name").unwrap_or(&address.host);
    let name: String = name
        .chars()
        .map(|char| if char.is_ascii_alphanumeric() || "-_.".contains(char) { char } else { '-' })
        .collect();
    let name = if keeps_host { format!("{name}-preserve-host") } else { name };
    let mut members = YamlMembers::new();
    let root = conversion.root;
    let named = root.list("upstreams").iter().find(|upstream| upstream.text("name") == Some(&address.host));
    match named {
        Some(upstream) => members.extend(balanced(conversion, upstream)),
        None => {
            let node = format!("{}:{}", address.host, address.port);
            members.push(("nodes".to_owned(), Yaml::Map(vec![(node, Yaml::Integer(1))])));
        }
    }
    if address.protocol != "http" {
        members.push(("scheme".to_owned(), Yaml::text(&address.protocol)));
    }
    if !keeps_host {
        match named.and_then(|upstream| upstream.text("host_header")) {
            Some(host) => members.extend([
                ("pass_host".to_owned(), Yaml::text("rewrite")),
                ("upstream_host".to_owned(), Yaml::text(host)),
            ]),
            None => members.push(("pass_host".to_owned(), Yaml::text("node"))),
        }
    }
    members.push(("retries".to_owned(), Yaml::Integer(service.number("retries").unwrap_or(5))));
    members.extend(timeout(service));
    if address.protocol.ends_with('s') {
        let verifies = service.is_true("tls_verify", false);
        members.push(("tls".to_owned(), Yaml::map([("verify", Yaml::Boolean(verifies))])));
        if !verifies {
            conversion.differs(service, "the certificate of this upstream is not verified, as in Kong by default; remove `tls.verify: false` to verify it");
        }
    }
    super::report_others(conversion, service, "a service", &SERVICE);
    if service.get("url").is_some() {
        for name in ["protocol", "host", "port", "path"] {
            if let Some(value) = service.get(name) {
                conversion.lost(value, format!("`{name}` of a service beside its `url`"));
            }
        }
    }
    for name in ["ca_certificates", "client_certificate", "tls_verify_depth"] {
        if let Some(value) = service.get(name) {
            conversion.lost(value, format!("`{name}` of a service: write `tls` of the upstream"));
        }
    }
    added(conversion, service, &name, members)
}

/// The id of the upstream with these members, which is added if it does not exist.
fn added(conversion: &mut DocumentConversion, service: &DocumentValue, name: &str, members: YamlMembers) -> String {
    let mut number = 1;
    let id = loop {
        let id = if number == 1 { name.to_owned() } else { format!("{name}-{number}") };
        let known = conversion.converted.upstreams.iter().find(|item| item.members[0].1 == Yaml::text(&id));
        match known {
            Some(item) if item.members[1..] == members[..] => return id,
            Some(_) => number += 1,
            None => break id,
        }
    };
    let members = [vec![("id".to_owned(), Yaml::text(&id))], members].concat();
    let item = ConvertedResource::new(&conversion.place(service), "service", members);
    conversion.converted.upstreams.push(item);
    id
}

/// The time-outs in seconds; Kong's are in milliseconds.
fn timeout(service: &DocumentValue) -> Option<(String, Yaml)> {
    let times =
        [("connect", "connect_timeout"), ("send", "write_timeout"), ("read", "read_timeout")].map(|(ours, theirs)| {
            let ms = service.number(theirs).unwrap_or(60_000);
            let value = if ms % 1000 == 0 { Yaml::Integer(ms / 1000) } else { Yaml::Decimal(ms as f64 / 1000.0) };
            (ours.to_owned(), value)
        });
    let is_default = times.iter().all(|(_, time)| *time == Yaml::Integer(60));
    (!is_default).then(|| ("timeout".to_owned(), Yaml::Map(times.to_vec())))
}

fn balanced(conversion: &mut DocumentConversion, upstream: &DocumentValue) -> YamlMembers {
    let mut members = YamlMembers::new();
    let mut set = |name: &str, value: &str| members.push((name.to_owned(), Yaml::text(value)));
    match upstream.text("algorithm").unwrap_or("round-robin") {
        "round-robin" => {}
        "least-connections" => set("type", "least_conn"),
        "latency" => set("type", "ewma"),
        "consistent-hashing" => {
            let key = match upstream.text("hash_on").unwrap_or("none") {
                "ip" => Some("remote_addr".to_owned()),
                "consumer" => Some("consumer_name".to_owned()),
                "path" => Some("uri".to_owned()),
                "header" => upstream.text("hash_on_header").map(|name| format!("http_{}", variable(name))),
                "cookie" => upstream.text("hash_on_cookie").map(|name| format!("cookie_{name}")),
                "query_arg" => upstream.text("hash_on_query_arg").map(|name| format!("arg_{name}")),
                _ => None,
            };
            match key {
                Some(key) => {
                    members.extend(hashed(&key));
                    conversion.differs(
                        upstream,
                        "consistent hashing: clients move to other endpoints once, and `hash_fallback` is not used",
                    );
                }
                None => {
                    conversion.lost(upstream, "consistent hashing without a key that Weir has: round robin is used")
                }
            }
        }
        other => conversion.lost(upstream, format!("`algorithm: {other}`: round robin is used")),
    }
    super::report_others(conversion, upstream, "an upstream", &UPSTREAM);
    let mut nodes = YamlMembers::new();
    for target in upstream.list("targets") {
        super::report_others(conversion, target, "a target", &["target", "weight", "upstream"]);
        let Some(name) = target.text("target") else { continue };
        let has_port = name.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let name = if has_port { name.to_owned() } else { format!("{name}:8000") };
        nodes.push((name, Yaml::Integer(target.number("weight").unwrap_or(100))));
    }
    members.push(("nodes".to_owned(), Yaml::Map(nodes)));
    if let Some(checks) = upstream.get("healthchecks") {
        members.extend(health_checks::checks(conversion, checks));
    }
    members
}

/// A header name as part of a variable's name.
pub(super) fn variable(name: &str) -> String {
    name.to_ascii_lowercase().replace('-', "_")
}
