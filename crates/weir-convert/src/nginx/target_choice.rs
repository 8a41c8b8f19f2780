//! The advice for a `proxy_pass` whose upstream a variable selects.

use super::Conversion;
use super::syntax::Directive;
use super::target::PassTarget;
use super::variables::{is_known_for_routes, names};

/// Reports that requests of this location have no upstream, with what to write instead.
pub(super) fn tell(conversion: &mut Conversion, target: &PassTarget, pass: &Directive) {
    let name = names(target.authority).next().unwrap_or_default();
    if let Some((host, is_path)) = fixed(target.authority, name) {
        let condition = if is_path { String::new() } else { format!(" if `${name}` begins with a slash") };
        let text = format!(
            "`{}`: the upstream is `{host}`{condition}; write it in the route, and the path in `regex_uri` of `proxy-rewrite`",
            pass.head()
        );
        return conversion.lost(&pass.place, text);
    }
    let advice = advice(conversion.http, name);
    let text = format!("`{}`: a variable cannot select the upstream; {advice}", pass.head());
    conversion.lost(&pass.place, text);
}

/// The upstream before a variable that stands for the path, and whether it surely does so: a group may be a part of the host, too.
fn fixed<'a>(authority: &'a str, name: &str) -> Option<(&'a str, bool)> {
    let (host, rest) = authority.split_once('$')?;
    let is_path = ["uri", "request_uri", "document_uri"].contains(&name);
    let is_group = name.starts_with(|first: char| first.is_ascii_digit());
    let after = rest.trim_start_matches('{').strip_prefix(name)?.trim_start_matches('}');
    let is_whole = after.is_empty() || after.starts_with(['$', '?']);
    let is_host = host.ends_with(|last: char| last.is_ascii_alphanumeric() || last == ']');
    (is_host && is_whole && (is_path || is_group)).then_some((host, is_path))
}

/// What to write in the place of a target with this variable.
pub(super) fn advice(http: &[Directive], name: &str) -> String {
    let variable = format!("${name}");
    let defines = |directive: &&Directive| {
        ["map", "split_clients", "geo"].contains(&directive.name.as_str())
            && directive.arguments.last().is_some_and(|last| *last == variable)
    };
    match http.iter().find(defines) {
        Some(block) if block.name == "split_clients" => {
            format!("write an upstream for each share of `{}`, and `traffic-split` with their weights", block.head())
        }
        Some(block) if block.name == "geo" => {
            format!("write a route with `remote_addrs` and an upstream for each case of `{}`", block.head())
        }
        Some(block) => format!("write a route and an upstream for each case of `{}`{}", block.head(), example(block)),
        None if ["host", "http_host"].contains(&name) => {
            "write a route with `hosts` and an upstream for each host that is meant: clients could name any other"
                .to_owned()
        }
        None if is_known_for_routes(name) => format!(
            "write a route with `vars: [[{name}, \"==\", VALUE]]` and an upstream for each value that is meant: clients \
             could name any host"
        ),
        None => format!("write a route with `vars` and an upstream for each value of `{variable}`"),
    }
}

/// The conditions of the first case of a `map`, if routes can have them.
fn example(map: &Directive) -> String {
    let source = map.argument(0).strip_prefix('$').filter(|name| is_known_for_routes(name));
    let is_case = |case: &&Directive| !["default", "hostnames", "volatile", "include"].contains(&case.name.as_str());
    let Some((source, case)) = source.zip(map.children().iter().find(is_case)) else { return String::new() };
    let (operator, value) = match (case.name.strip_prefix("~*"), case.name.strip_prefix('~')) {
        (Some(pattern), _) => ("~*", pattern),
        (None, Some(pattern)) => ("~~", pattern),
        (None, None) => ("==", case.name.as_str()),
    };
    format!(", as `vars: [[{source}, \"{operator}\", {value:?}]]`")
}

#[cfg(test)]
mod tests {
    use super::super::syntax::parse;
    use super::*;

    #[test]
    fn a_variable_that_is_the_path_selects_no_upstream() {
        for (authority, expected) in [
            ("backend$1$is_args$args", Some(("backend", false))),
            ("10.0.0.1:80${uri}", Some(("10.0.0.1:80", true))),
            ("backend$request_uri?x=1", Some(("backend", true))),
            ("app-$1", None),
            ("app$1.internal", None),
            ("$1", None),
            ("app$tenant", None),
        ] {
            let name = names(authority).next().expect("a variable");
            assert_eq!(fixed(authority, name), expected, "{authority}");
        }
    }

    #[test]
    fn the_advice_fits_what_defines_the_variable() {
        let text = "\
map $http_x_tenant $tenant { default a; acme b; }
map $http_x $bent { ~*^b b; }
map $ssl_client_s_dn_legacy $odd { x y; }
split_clients $remote_addr $variant { 10% canary; * stable; }
geo $area { default a; 10.0.0.0/8 b; }
";
        let http = parse("t", text).expect("correct");
        for (name, expected) in [
            (
                "tenant",
                "write a route and an upstream for each case of `map $http_x_tenant $tenant`, as \
                 `vars: [[http_x_tenant, \"==\", \"acme\"]]`",
            ),
            (
                "bent",
                "write a route and an upstream for each case of `map $http_x $bent`, as `vars: [[http_x, \"~*\", \"^b\"]]`",
            ),
            ("odd", "write a route and an upstream for each case of `map $ssl_client_s_dn_legacy $odd`"),
            (
                "variant",
                "write an upstream for each share of `split_clients $remote_addr $variant`, and `traffic-split` with their \
                 weights",
            ),
            ("area", "write a route with `remote_addrs` and an upstream for each case of `geo $area`"),
            (
                "host",
                "write a route with `hosts` and an upstream for each host that is meant: clients could name any other",
            ),
            (
                "arg_to",
                "write a route with `vars: [[arg_to, \"==\", VALUE]]` and an upstream for each value that is meant: clients \
                 could name any host",
            ),
            ("backend", "write a route with `vars` and an upstream for each value of `$backend`"),
        ] {
            assert_eq!(advice(&http, name), expected);
        }
    }
}
