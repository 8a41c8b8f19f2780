//! `upstream` blocks and the targets of `proxy_pass`, as upstreams.

use super::Conversion;
use super::health_checks;
use super::scope::seconds;
use super::sticky;
use super::syntax::Directive;
use crate::hashing::{hashed, hashed_text};
use crate::output::{ConvertedResource, weighted_nodes};
use crate::yaml::Yaml;

/// The nodes and the balancing of an `upstream` block, as members of an upstream.
pub(super) fn members(conversion: &mut Conversion, block: &Directive) -> Vec<(String, Yaml)> {
    let mut servers = Vec::new();
    let (mut members, mut idle) = (Vec::new(), Vec::new());
    for directive in block.children() {
        match directive.name.as_str() {
            "server" => servers.extend(server(conversion, directive)),
            "least_conn" => members.push(("type".to_owned(), Yaml::text("least_conn"))),
            "ip_hash" => members.push(("type".to_owned(), Yaml::text("ip_hash"))),
            "least_time" => members.push(("type".to_owned(), Yaml::text("least_time"))),
            "sticky" => members.extend(sticky::persistence(conversion, directive)),
            "hash" => members.extend(hash(conversion, directive)),
            "random" if directive.argument(0) == "two" => {
                members.push(("type".to_owned(), Yaml::text("least_conn")));
            }
            "random" => conversion.differs(&directive.place, "`random`: round robin is used instead"),
            "keepalive" | "keepalive_timeout" | "keepalive_requests" => idle.extend(idle_member(directive)),
            // Read with the health checks.
            "check" | "check_http_send" | "check_http_expect_alive" | "check_shm_size" => {}
            "keepalive_time" | "zone" | "resolver" | "resolver_timeout" => {}
            "fair" => members.push(("type".to_owned(), Yaml::text("least_conn"))),
            "ntlm" => {
                let text = "connections of NTLM are not kept for one client; write `persistence`, or another log-in";
                conversion.lost(&directive.place, format!("`ntlm`: {text}"));
            }
            _ => conversion.lost(&directive.place, format!("`{}` in an upstream", directive.head())),
        }
    }
    members.push(("nodes".to_owned(), nodes(&servers)));
    let active = health_checks::of_module(conversion, block);
    let checks: Vec<_> = active.into_iter().chain(health_checks::passive(conversion, block)).collect();
    if !checks.is_empty() {
        members.push(("checks".to_owned(), Yaml::Map(checks)));
    }
    if !idle.is_empty() {
        members.push(("keepalive_pool".to_owned(), Yaml::Map(idle)));
    }
    members
}

/// A member of `keepalive_pool` for a directive about idle connections.
fn idle_member(directive: &Directive) -> Option<(String, Yaml)> {
    let value = directive.argument(0);
    let (name, value) = match directive.name.as_str() {
        "keepalive" => ("size", Yaml::Integer(value.parse().ok()?)),
        "keepalive_timeout" => ("idle_timeout", Yaml::number(seconds(value)?)),
        _ => ("requests", Yaml::Integer(value.parse().ok()?)),
    };
    Some((name.to_owned(), value))
}

/// The id of the upstream with these members, which is added if it does not exist. An `upstream` block that is used with
/// different settings, such as the `Host`, becomes several upstreams.
pub(super) fn registered(
    conversion: &mut Conversion,
    name: &str,
    block: &Directive,
    rest: Vec<(String, Yaml)>,
) -> String {
    let mut wanted = members(conversion, block);
    for (name, value) in rest {
        match (wanted.iter_mut().find(|(known, _)| *known == name), value) {
            // The checks of a location stand beside those of the block.
            (Some((_, Yaml::Map(checks))), Yaml::Map(more)) => {
                checks.retain(|(known, _)| more.iter().all(|(name, _)| name != known));
                checks.extend(more);
            }
            (_, value) => wanted.push((name, value)),
        }
    }
    let mut number = 1;
    loop {
        let id = if number == 1 { name.to_owned() } else { format!("{name}-{number}") };
        let known = conversion.converted.upstreams.iter().find(|item| item.members[0].1 == Yaml::text(&id));
        match known {
            Some(item) if item.members[1..] == wanted[..] => return id,
            Some(_) => number += 1,
            None => {
                let mut members = vec![("id".to_owned(), Yaml::text(&id))];
                members.append(&mut wanted);
                conversion.converted.upstreams.push(ConvertedResource::new(&block.place, block.head(), members));
                return id;
            }
        }
    }
}

struct UpstreamServer {
    host: String,
    port: Option<i64>,
    weight: i64,
    is_backup: bool,
}

fn server(conversion: &mut Conversion, directive: &Directive) -> Option<UpstreamServer> {
    let address = directive.argument(0);
    if address.starts_with("unix:") {
        conversion.lost(
            &directive.place,
            format!("`{address}`: Unix sockets are not supported; an endpoint needs an address and a port"),
        );
        return None;
    }
    let (host, port) = host_and_port(address);
    let mut server = UpstreamServer { host: host.to_owned(), port, weight: 1, is_backup: false };
    for parameter in directive.after_first() {
        match parameter.split_once('=').unwrap_or((parameter, "")) {
            ("weight", weight) => server.weight = weight.parse().unwrap_or(1),
            ("backup", _) => server.is_backup = true,
            ("down", _) => server.weight = 0,
            // The name of an endpoint for `sticky`; and what the health checks read.
            ("route", _) | ("resolve", _) | ("max_fails" | "fail_timeout", _) => {}
            ("max_conns", _) => {
                let text =
                    format!("`{parameter}`: `concurrency: auto` of the upstream limits each endpoint automatically");
                conversion.differs(&directive.place, text);
            }
            _ => conversion.lost(&directive.place, format!("`{parameter}` in a `server` line")),
        }
    }
    Some(server)
}

/// Splits `host:port`.
pub(super) fn host_and_port(address: &str) -> (&str, Option<i64>) {
    match address.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && !port.ends_with(']') => match port.parse() {
            Ok(port) => (host, Some(port)),
            Err(_) => (address, None),
        },
        _ => (address, None),
    }
}

fn nodes(servers: &[UpstreamServer]) -> Yaml {
    let full = |server: &UpstreamServer| match server.port {
        Some(port) => format!("{}:{port}", server.host),
        None => server.host.clone(),
    };
    if servers.iter().all(|server| !server.is_backup) {
        return weighted_nodes(servers.iter().map(|server| (full(server), server.weight)));
    }
    let node = |server: &UpstreamServer| {
        let mut members = vec![("host".to_owned(), Yaml::text(&server.host))];
        members.push(("port".to_owned(), Yaml::Integer(server.port.unwrap_or(80))));
        members.push(("weight".to_owned(), Yaml::Integer(server.weight)));
        if server.is_backup {
            members.push(("priority".to_owned(), Yaml::Integer(-1)));
        }
        Yaml::Map(members)
    };
    Yaml::List(servers.iter().map(node).collect())
}

fn hash(conversion: &mut Conversion, directive: &Directive) -> Vec<(String, Yaml)> {
    let key = directive.argument(0);
    if let Some(unknown) = super::variables::unknown_in_request(key) {
        let text = format!("`{}`: Weir has no variable `${unknown}`; round robin is used instead", directive.head());
        conversion.lost(&directive.place, text);
        return Vec::new();
    }
    let is_one_variable =
        key.starts_with('$') && key[1..].chars().all(|char| char.is_ascii_alphanumeric() || char == '_');
    if directive.argument(1) != "consistent" {
        let text = "`hash` without `consistent`: consistent hashing is used, so few keys move when endpoints change";
        conversion.differs(&directive.place, text);
    }
    if is_one_variable { hashed(&key[1..]) } else { hashed_text(key) }
}
