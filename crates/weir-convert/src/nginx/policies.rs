//! Directives that limit, refuse, compress or change messages, as plugins.

use super::Conversion;

use super::scope::{BlockScope, bytes};
use super::syntax::Directive;
use crate::yaml::{Yaml, YamlMembers};

/// nginx's default limit of a body.
const BODY_SIZE: &str = "1m";

/// The plugins for the directives in effect at this place.
pub fn plugins(conversion: &mut Conversion, scope: &BlockScope) -> YamlMembers {
    let mut plugins = Vec::new();
    plugins.extend(addresses(conversion, scope));
    plugins.extend(body_size(conversion, scope));
    plugins.extend(rate(conversion, scope));
    plugins.extend(concurrent(conversion, scope));
    plugins.extend(fields(conversion, scope));
    plugins.extend(gzip(conversion, scope));
    plugins.extend(super::caching::plugin(conversion, scope));
    plugins
}

/// `allow` and `deny`, the first of which that matches applies.
fn addresses(conversion: &mut Conversion, scope: &BlockScope) -> Option<(String, Yaml)> {
    let of = scope.own().iter().filter(|directive| ["allow", "deny"].contains(&directive.name.as_str()));
    let mut rules: Vec<&Directive> = of.collect();
    if rules.is_empty() {
        rules = ["allow", "deny"].iter().flat_map(|name| scope.all(name)).collect();
        rules.sort_by_key(|directive| &directive.place);
    }
    let (last, before) = rules.split_last()?;
    let is_all = |rule: &&&Directive| rule.argument(0) == "all";
    let named = |name: &str, rules: &[&Directive]| -> Vec<String> {
        let of = rules.iter().filter(|rule| rule.name == name && !is_all(rule));
        of.map(|rule| rule.argument(0).to_owned()).collect()
    };
    let options = match (last.name.as_str(), last.argument(0)) {
        ("deny", "all") if before.iter().all(|rule| rule.name == "allow") => {
            let addresses = named("allow", before);
            // An address that no client has, so that all clients are refused.
            let addresses = if addresses.is_empty() { vec!["255.255.255.255".to_owned()] } else { addresses };
            ("whitelist", addresses)
        }
        _ if rules.iter().all(|rule| rule.name == "deny" || is_all(&rule)) => ("blacklist", named("deny", &rules)),
        ("allow", "all") => return None,
        _ => {
            let text = "`allow` and `deny` are interleaved, and their order cannot be converted: `ip-restriction` takes \
                        either an allow list or a deny list";
            conversion.lost(&last.place, text);
            return None;
        }
    };
    Some(("ip-restriction".to_owned(), Yaml::map([(options.0, Yaml::texts(options.1))])))
}

/// The limit of the node for bodies: the largest of all servers and locations, since a route can only have a smaller one.
pub fn body_size_of_node<'a>(conversion: &Conversion<'a>) -> &'a str {
    let mut sizes = vec![conversion.scope().value("client_max_body_size").unwrap_or(BODY_SIZE)];
    collect_body_sizes(conversion.http, &mut sizes);
    // 0 is no limit.
    let size = |text: &&str| bytes(text).map_or(0, |size| if size == 0 { i64::MAX } else { size });
    sizes.into_iter().max_by_key(size).unwrap_or(BODY_SIZE)
}

fn collect_body_sizes<'a>(directives: &'a [Directive], sizes: &mut Vec<&'a str>) {
    for directive in directives {
        if directive.name == "client_max_body_size" {
            sizes.push(directive.argument(0));
        }
        collect_body_sizes(directive.children(), sizes);
    }
}

/// The limit of the body, if it differs from the node's.
fn body_size(conversion: &mut Conversion, scope: &BlockScope) -> Option<(String, Yaml)> {
    let of_node = body_size_of_node(conversion);
    let here = scope.value("client_max_body_size").unwrap_or(BODY_SIZE);
    let size = bytes(here).filter(|_| here != of_node)?;
    Some(("client-control".to_owned(), Yaml::map([("max_body_size", Yaml::Integer(size))])))
}

/// The definition of a limit's zone, with its key and parameters.
fn zone<'a>(conversion: &Conversion<'a>, kind: &str, name: &str) -> Option<&'a Directive> {
    let is_it = |directive: &&Directive| {
        let zone = directive.arguments.iter().find_map(|argument| argument.strip_prefix("zone="));
        directive.name == kind && zone.is_some_and(|zone| zone.split(':').next() == Some(name))
    };
    conversion.http.iter().find(is_it)
}

/// The options `key` and `key_type` of a limit.
fn key(text: &str) -> [(&'static str, Yaml); 2] {
    let variable =
        text.strip_prefix('$').filter(|name| name.chars().all(|char| char.is_ascii_alphanumeric() || char == '_'));
    match variable {
        Some("binary_remote_addr") => [("key_type", Yaml::text("var")), ("key", Yaml::text("remote_addr"))],
        Some(name) => [("key_type", Yaml::text("var")), ("key", Yaml::text(name))],
        None => [("key_type", Yaml::text("var_combination")), ("key", Yaml::text(text))],
    }
}

fn rejected(scope: &BlockScope, name: &str) -> Yaml {
    Yaml::Integer(scope.value(name).and_then(|code| code.parse().ok()).unwrap_or(503))
}

fn rate(conversion: &mut Conversion, scope: &BlockScope) -> Option<(String, Yaml)> {
    let limits = scope.all("limit_req");
    let (limit, others) = limits.split_first()?;
    for other in others {
        conversion.lost(&other.place, format!("`{}`: a route can have only one limit of this kind", other.head()));
    }
    let parameter = |name: &str| limit.arguments.iter().find_map(|argument| argument.strip_prefix(name));
    let zone = zone(conversion, "limit_req_zone", parameter("zone=")?);
    let written = zone.and_then(|zone| zone.arguments.iter().find_map(|argument| argument.strip_prefix("rate=")));
    let Some((zone, rate)) = zone.zip(written.and_then(a_second)) else {
        conversion
            .lost(&limit.place, format!("`{}`: there is no `limit_req_zone` of this name with a rate", limit.head()));
        return None;
    };
    let [kind, key] = key(zone.argument(0));
    let burst = parameter("burst=").and_then(|burst| burst.parse().ok()).unwrap_or(0);
    let is_nodelay = limit.arguments.iter().any(|argument| argument == "nodelay" || argument.starts_with("delay="));
    let mut options = vec![("rate", super::proxy::number(rate)), ("burst", Yaml::Integer(burst)), kind, key];
    if is_nodelay {
        options.push(("nodelay", Yaml::Boolean(true)));
    }
    options.push(("rejected_code", rejected(scope, "limit_req_status")));
    let options = options.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    Some(("limit-req".to_owned(), Yaml::Map(options)))
}

/// Requests per second of `10r/s` or `30r/m`.
fn a_second(rate: &str) -> Option<f64> {
    if let Some(rate) = rate.strip_suffix("r/s") {
        rate.parse().ok()
    } else {
        Some(rate.strip_suffix("r/m")?.parse::<f64>().ok()? / 60.0)
    }
}

fn concurrent(conversion: &mut Conversion, scope: &BlockScope) -> Option<(String, Yaml)> {
    let limits = scope.all("limit_conn");
    let (limit, others) = limits.split_first()?;
    for other in others {
        conversion.lost(&other.place, format!("`{}`: a route can have only one limit of this kind", other.head()));
    }
    let zone = zone(conversion, "limit_conn_zone", limit.argument(0));
    let Some((zone, count)) = zone.zip(limit.argument(1).parse().ok()) else {
        conversion.lost(&limit.place, format!("`{}`: there is no `limit_conn_zone` of this name", limit.head()));
        return None;
    };
    let [kind, key] = key(zone.argument(0));
    let options = [
        ("conn", Yaml::Integer(count)),
        ("burst", Yaml::Integer(0)),
        ("default_conn_delay", Yaml::Decimal(0.1)),
        kind,
        key,
        ("rejected_code", rejected(scope, "limit_conn_status")),
    ];
    Some(("limit-conn".to_owned(), Yaml::map(options)))
}

/// `add_header`, `proxy_hide_header`.
fn fields(conversion: &mut Conversion, scope: &BlockScope) -> Option<(String, Yaml)> {
    let mut added = Vec::new();
    for directive in scope.all("add_header") {
        let value = directive.argument(1);
        match super::proxy::unknown_variable(conversion, value) {
            Some(name) => {
                let text = format!("`{}`: Weir has no variable `${name}`", directive.head());
                conversion.lost(&directive.place, text);
            }
            None if value.is_empty() => {}
            None => added.push((directive.argument(0).to_owned(), Yaml::text(value))),
        }
    }
    let hidden: Vec<_> = scope.all("proxy_hide_header").iter().map(|directive| directive.argument(0)).collect();
    let mut headers = Vec::new();
    if !added.is_empty() {
        headers.push(("set".to_owned(), Yaml::Map(added)));
    }
    if !hidden.is_empty() {
        headers.push(("remove".to_owned(), Yaml::texts(hidden)));
    }
    let headers = (!headers.is_empty()).then_some(Yaml::Map(headers))?;
    Some(("response-rewrite".to_owned(), Yaml::map([("headers", headers)])))
}

fn gzip(conversion: &mut Conversion, scope: &BlockScope) -> Option<(String, Yaml)> {
    if !scope.is_on("gzip") {
        return None;
    }
    let mut options = Vec::new();
    if let Some(types) = scope.last("gzip_types") {
        let all = types.arguments.iter().any(|kind| kind == "*");
        let mut kinds = vec!["text/html".to_owned()];
        kinds.extend(types.arguments.iter().filter(|&kind| kind != "text/html").cloned());
        options.push(("types", if all { Yaml::text("*") } else { Yaml::texts(kinds) }));
    }
    for (theirs, ours) in [("gzip_min_length", "min_length"), ("gzip_comp_level", "comp_level")] {
        let number = scope.value(theirs).and_then(bytes).filter(|&number| number > 0);
        options.extend(number.map(|number| (ours, Yaml::Integer(number))));
    }
    if let Some(proxied) = scope.last("gzip_proxied").filter(|proxied| proxied.argument(0) != "any") {
        let text = "`gzip_proxied`: responses to requests with `Via` are also compressed";
        conversion.differs(&proxied.place, text);
    }
    let options = options.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    Some(("gzip".to_owned(), Yaml::Map(options)))
}
