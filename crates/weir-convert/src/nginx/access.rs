//! What controls access: lists of addresses as `ip-restriction`. A route with a control that cannot be converted is closed.

use std::collections::BTreeSet;

use super::auth_request::{self, AUTH_REQUEST, NotAsked};
use super::directives::{CLOSED, DirectiveFate, fate, is_off};
use super::lua::LUA_ANSWER;
use super::scope::BlockScope;
use super::subrequest;
use super::syntax::Directive;
use super::{Conversion, addresses, basic_auth, headers_more, lua};
use crate::login::refusal;
use crate::yaml::{Yaml, YamlMembers};

/// The plugins that control access at this place. One of them refuses all requests if a control could not be converted.
pub(super) fn plugins(conversion: &mut Conversion, scope: &BlockScope) -> YamlMembers {
    let mut plugins = YamlMembers::new();
    let mut is_closed = is_closed(scope);
    match addresses::options(&scope.all_of(&["allow", "deny"])) {
        Ok(options) => plugins.extend(options.map(|options| ("ip-restriction".to_owned(), options))),
        Err(addresses::WrongRule(rule, why)) => {
            conversion.lost(&rule.place, format!("`{}`: {why}; {}", rule.head(), CLOSED));
            is_closed = true;
        }
    }
    let login = basic_auth::plugin(scope);
    match scope.last("satisfy").filter(|satisfy| satisfy.argument(0) == "any" && login.is_some()) {
        Some(satisfy) => {
            let text = format!(
                "`{}`: that an address or a log-in is enough cannot be said of a route; where there is `auth_basic`, {CLOSED}",
                satisfy.head()
            );
            conversion.lost(&satisfy.place, text);
            is_closed = true;
        }
        None => plugins.extend(login),
    }
    match auth_request::plugin(conversion, scope) {
        Ok(plugin) => plugins.extend(plugin),
        Err(NotAsked(directive)) => {
            let why = subrequest::obstacle(conversion, scope.server(), directive.argument(0));
            let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
            let text =
                format!("`{}`: write `forward-auth` with the URL of the auth service{why}; {CLOSED}", directive.head());
            conversion.lost(&directive.place, text);
            is_closed = true;
        }
    }
    match is_closed {
        true => plugins.push(refusal()),
        false => plugins.extend(lua::plugin(scope)),
    }
    plugins
}

/// The same for a location whose `try_files` leaves all requests to a named location. nginx controls access in both. Where both have a
/// plugin of the same name with other options, the route is closed.
pub(super) fn of_both(
    conversion: &mut Conversion,
    location: &BlockScope,
    named: &BlockScope,
    files: &Directive,
) -> YamlMembers {
    let mut plugins = plugins(conversion, location);
    for plugin in self::plugins(conversion, named) {
        if plugins.contains(&plugin) {
            continue;
        }
        if !plugins.iter().any(|(name, _)| *name == plugin.0) {
            plugins.push(plugin);
            continue;
        }
        let text = format!(
            "`{}`: the named location controls access differently, by `{}`, too; {CLOSED}",
            files.head(),
            plugin.0
        );
        conversion.lost(&files.place, text);
        close(&mut plugins);
    }
    plugins
}

/// Adds the refusal of all requests, in place of the one of some that the same plugin may give.
fn close(plugins: &mut YamlMembers) {
    plugins.retain(|(name, _)| *name != refusal().0);
    plugins.push(refusal());
}

/// Adds a refusal where a control would see the request as the upstream is to get it: nginx controls access before it changes the request.
/// `changes`: the options of `proxy-rewrite`.
pub(super) fn close_if_changed(
    conversion: &mut Conversion,
    scope: &BlockScope,
    pass: &Directive,
    plugins: &mut YamlMembers,
    changes: &YamlMembers,
) {
    if plugins.contains(&refusal()) {
        return;
    }
    let is_seen = |(name, options): &(String, Yaml)| name == "forward-auth" && auth_request::sees(options, changes);
    let seeing = match () {
        () if plugins.iter().any(is_seen) => "the service of `auth_request`",
        () if scope.last(LUA_ANSWER).is_some_and(|answer| lua::sees(answer, changes)) => "the condition in Lua",
        () => return,
    };
    let text = format!(
        "`{}`: {seeing} would see the changes of fields, the method or the path that are for the upstream; {CLOSED}",
        pass.head()
    );
    conversion.lost(&pass.place, text);
    close(plugins);
}

/// Whether the plugins let no client in, and would do so by `ip-restriction`.
pub(super) fn refuses_all(plugins: &YamlMembers) -> bool {
    let no_client = Yaml::map([("whitelist", Yaml::texts([addresses::NO_CLIENT]))]);
    plugins.contains(&("ip-restriction".to_owned(), no_client)) && !plugins.contains(&refusal())
}

/// Whether a directive in effect controls access, or may do so, and is not converted. The survey reports it.
fn is_closed(scope: &BlockScope) -> bool {
    let names: BTreeSet<&str> = scope
        .every()
        .filter(|directive| may_restrict(directive) && directive.name != AUTH_REQUEST)
        .map(|directive| directive.name.as_str())
        .collect();
    let is_in_effect = |name: &str| {
        scope.last(name).is_some_and(|directive| !is_off(directive) && !basic_auth::is_converted(directive))
    };
    names.into_iter().any(is_in_effect) || scope.every().any(has_if_that_restricts) || headers_more::is_open(scope)
}

/// Whether a directive is an `if` with a control for some requests, of which none is converted.
fn has_if_that_restricts(directive: &Directive) -> bool {
    directive.name == "if" && directive.children().iter().any(|inner| may_restrict(inner) && !is_off(inner))
}

fn may_restrict(directive: &Directive) -> bool {
    matches!(fate(&directive.name), DirectiveFate::Closes(_))
}

/// Whether one of the locations in a block, at any depth, refuses requests that other locations may let through.
pub(super) fn has_restricted_locations(block: &[Directive]) -> bool {
    block
        .iter()
        .filter(|child| child.name == "location")
        .any(|location| is_restricted(location) || has_restricted_locations(location.children()))
}

/// Whether the block of a location has what may refuse requests.
pub(super) fn is_restricted(location: &Directive) -> bool {
    location.children().iter().any(|child| match child.name.as_str() {
        "allow" | "deny" | "limit_except" | "internal" | LUA_ANSWER => true,
        "return" => returns_at_least(child, 400),
        "if" if has_if_that_restricts(child) => true,
        "if" => child.children().iter().any(|inner| inner.name == "return" && returns_at_least(inner, 300)),
        _ => may_restrict(child) && !is_off(child),
    })
}

fn returns_at_least(directive: &Directive, least: u16) -> bool {
    directive.argument(0).parse().is_ok_and(|code: u16| code >= least)
}

#[cfg(test)]
mod tests {
    use super::super::convert;

    /// Whether the route is closed, and that is told.
    fn is_closed(location: &str, asked: &str) -> bool {
        let text = format!(
            "server {{ proxy_redirect off; location / {{ {location} proxy_pass http://a; }}
             location = /auth {{ internal; proxy_pass http://10.0.0.2:1; {asked} }} }}"
        );
        let converted = convert("t", &text, &|_| Ok(Vec::new())).expect("correct");
        let is_told = converted.findings.iter().any(|found| found.to_string().contains("would see the changes"));
        let is_closed = converted.yaml().contains("http_status: 503");
        assert_eq!(is_told, is_closed, "{}", converted.yaml());
        is_closed
    }

    #[test]
    fn the_service_that_is_asked_does_not_see_what_the_upstream_gets() {
        let token = "proxy_set_header Authorization 'Bearer of-the-gateway';";
        for (location, asked, expected) in [
            (token, "", true),
            ("proxy_set_header X-Role '';", "", true),
            ("more_clear_input_headers X-Role;", "", true),
            ("rewrite_by_lua_block { ngx.req.set_header(\"X-Role\", \"admin\") }", "", true),
            ("proxy_method POST;", "proxy_set_header X-Original-Method $request_method;", true),
            ("rewrite ^/a$ /b break;", "proxy_set_header X-Path $uri;", true),
            (token, "proxy_set_header X-Token $http_authorization;", true),
            (token, "proxy_set_header Authorization $http_authorization;", true),
            (token, "proxy_set_header Authorization 'Bearer other';", false),
            ("proxy_set_header X-Real-IP $remote_addr;", "", false),
            ("rewrite ^/a$ /b break;", "proxy_set_header X-Path $request_uri;", false),
        ] {
            assert_eq!(is_closed(&format!("auth_request /auth; {location}"), asked), expected, "{location} {asked}");
            assert!(!is_closed(location, asked), "{location}");
        }
    }

    #[test]
    fn conditions_in_lua_do_not_see_what_the_upstream_gets() {
        let refuses = |test: &str| format!("access_by_lua_block {{ if ngx.var.{test} then ngx.exit(403) end }}");
        for (test, change, expected) in [
            ("http_x_role == \"guest\"", "proxy_set_header X-Role user;", true),
            ("request_method == \"POST\"", "proxy_method GET;", true),
            ("host == \"b.example\"", "proxy_set_header X-Role user;", false),
            ("http_x_role == \"guest\"", "proxy_set_header X-Real-IP $remote_addr;", false),
        ] {
            assert_eq!(is_closed(&format!("{} {change}", refuses(test)), ""), expected, "{test} {change}");
        }
    }
}
