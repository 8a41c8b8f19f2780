//! What controls access: lists of addresses as `ip-restriction`. A route with a control that cannot be converted is closed.

use std::collections::BTreeSet;

use super::auth_request::{self, AUTH_REQUEST, NotAsked};
use super::directives::{CLOSED, DirectiveFate, fate, is_off};
use super::lua::LUA_ANSWER;
use super::scope::BlockScope;
use super::syntax::Directive;
use super::{Conversion, addresses, basic_auth, lua};
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
            let text =
                format!("`{}`: write `forward-auth` with the URL of the auth service; {CLOSED}", directive.head());
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
        if !plugins.contains(&refusal()) {
            plugins.push(refusal());
        }
    }
    plugins
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
    names.into_iter().any(is_in_effect)
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
        "if" => child.children().iter().any(|inner| inner.name == "return" && returns_at_least(inner, 300)),
        _ => may_restrict(child) && !is_off(child),
    })
}

fn returns_at_least(directive: &Directive, least: u16) -> bool {
    directive.argument(0).parse().is_ok_and(|code: u16| code >= least)
}
