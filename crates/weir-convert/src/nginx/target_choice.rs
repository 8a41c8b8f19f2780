//! The advice for a `proxy_pass` whose upstream a variable selects.

use super::Conversion;
use super::syntax::Directive;
use super::target::PassTarget;
use super::variables::{is_known_for_routes, names};

/// Reports that requests of this location have no upstream, with what to write instead.
pub(super) fn tell(conversion: &mut Conversion, target: &PassTarget, pass: &Directive) {
    let name = names(target.authority).next().unwrap_or_default();
    let advice = advice(conversion.http, name);
    let text = format!("`{}`: a variable cannot select the upstream; {advice}", pass.head());
    conversion.lost(&pass.place, text);
}

fn advice(http: &[Directive], name: &str) -> String {
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
