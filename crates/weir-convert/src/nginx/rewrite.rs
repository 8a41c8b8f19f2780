//! `return`, `rewrite` and `if`: responses of the gateway itself, and changes of the path for upstreams.

use regex::RegexBuilder;

use super::Conversion;
use super::client_address;
use super::location::Matching;
use super::pass_path::{refused, without_query};
use super::policies::added_fields;
use super::scope::BlockScope;
use super::syntax::Directive;
use super::variables::{has_groups, is_known_for_routes, names, numbered, unknown_in_request};
use crate::answer::answer;
use crate::login::refusal;
use crate::pattern::{supported, whole};
use crate::yaml::{Yaml, YamlMembers};

/// The plugins with the response of a `return`, and the fields that nginx adds to it.
pub(super) fn returned(
    conversion: &mut Conversion,
    scope: &BlockScope,
    directive: &Directive,
    matching: Option<&Matching>,
) -> YamlMembers {
    let mut plugins = added_fields(conversion, scope);
    plugins.push(response(conversion, scope, directive, matching));
    plugins
}

fn response(
    conversion: &mut Conversion,
    scope: &BlockScope,
    directive: &Directive,
    matching: Option<&Matching>,
) -> (String, Yaml) {
    let (code, text) = match (directive.argument(0), directive.arguments.get(1)) {
        (url, None) if url.parse::<i64>().is_err() => (302, url),
        (code, text) => (code.parse().unwrap_or(500), text.map_or("", String::as_str)),
    };
    let pattern = match matching {
        Some(Matching::Regex { pattern, .. }) => Some(pattern.as_str()),
        _ => None,
    };
    let text = &numbered(text, pattern);
    if let Some(unknown) = unknown_in_request(text) {
        conversion.lost(&directive.place, format!("`{}`: Weir has no variable `${unknown}`", directive.head()));
    }
    let is_redirect = [301, 302, 303, 307, 308].contains(&code) && !text.is_empty();
    if has_groups(text) && !(is_redirect && matches!(matching, Some(Matching::Regex { .. }))) {
        let text = format!("`{}`: the groups of regular expressions are not available here", directive.head());
        conversion.lost(&directive.place, text);
    }
    match code {
        _ if is_redirect => redirect(code, text, matching),
        444 => {
            let text = "`return 444`: connections cannot be closed without a response; the response is 403";
            conversion.differs(&directive.place, text);
            answer(403, "", None)
        }
        code => {
            let kind = (!text.is_empty()).then(|| scope.value("default_type").unwrap_or("text/plain"));
            answer(code, text, kind)
        }
    }
}

fn redirect(code: i64, url: &str, matching: Option<&Matching>) -> (String, Yaml) {
    let place = match matching {
        // The groups are those of the location's expression.
        Some(Matching::Regex { pattern, ignores_case }) if has_groups(url) => {
            ("regex_uri", Yaml::texts([whole(pattern, *ignores_case), url.to_owned()]))
        }
        _ => ("uri", Yaml::text(url)),
    };
    ("redirect".to_owned(), Yaml::map([place, ("ret_code", Yaml::Integer(code))]))
}

/// The pattern and the plugin of a `rewrite` that redirects.
pub(super) fn redirecting(directive: &Directive) -> Option<(String, (String, Yaml))> {
    let [pattern, replacement, flag @ ..] = directive.arguments.as_slice() else { return None };
    let pattern = supported(pattern)?;
    let is_elsewhere = replacement.starts_with("http://") || replacement.starts_with("https://");
    let code = match flag.first().map(String::as_str) {
        Some("permanent") => 301,
        Some("redirect") => 302,
        _ if is_elsewhere => 302,
        _ => return None,
    };
    let (replacement, keeps_query) = match replacement.strip_suffix('?') {
        Some(replacement) => (replacement, false),
        None => (replacement.as_str(), true),
    };
    let mut members = vec![
        ("regex_uri".to_owned(), Yaml::texts([whole(&pattern, false), numbered(replacement, Some(&pattern))])),
        ("ret_code".to_owned(), Yaml::Integer(code)),
    ];
    if keeps_query {
        members.push(("append_query_string".to_owned(), Yaml::Boolean(true)));
    }
    Some((pattern, ("redirect".to_owned(), Yaml::Map(members))))
}

/// Whether a directive is a `rewrite` that changes the path for the upstream.
pub(super) fn changes_path(directive: &Directive) -> bool {
    directive.name == "rewrite" && redirecting(directive).is_none()
}

/// The `regex_uri` of `proxy-rewrite` for the `rewrite`s of a location that change the path for its upstream.
pub(super) fn paths<'a>(
    conversion: &mut Conversion,
    location: impl Iterator<Item = &'a Directive>,
) -> Option<(String, Yaml)> {
    let mut pairs = Vec::new();
    for directive in location.filter(|directive| directive.name == "rewrite") {
        let [pattern, replacement, flag @ ..] = directive.arguments.as_slice() else { continue };
        // One that cannot be read is reported with those that redirect.
        let Some(pattern) = supported(pattern) else { continue };
        if redirecting(directive).is_some() {
            continue;
        }
        let replacement = numbered(without_query(replacement).0.trim_end_matches('?'), Some(&pattern));
        if unknown_in_request(&replacement).is_some() {
            conversion.lost(&directive.place, format!("`{}`", directive.head()));
            continue;
        }
        if let Some(why) = refused(&replacement) {
            conversion.lost(&directive.place, format!("`{}`: {why}", directive.head()));
            continue;
        }
        if flag.first().is_none_or(|flag| flag == "last") {
            let text = format!("`{}`: the new path is not matched against the locations again", directive.head());
            conversion.differs(&directive.place, text);
        }
        pairs.extend([whole(&pattern, false), replacement]);
    }
    (!pairs.is_empty()).then(|| ("regex_uri".to_owned(), Yaml::texts(pairs)))
}

/// The requests that an `if` answers, and the plugins for them. One that refuses requests under a condition that cannot be converted
/// answers all of them with 503.
pub(super) fn conditional(
    conversion: &mut Conversion,
    scope: &BlockScope,
    directive: &Directive,
) -> Option<(Vec<Yaml>, YamlMembers)> {
    let block = directive.children();
    let returns = block.iter().find(|child| child.name == "return");
    let redirects = block.iter().filter(|child| child.name == "rewrite").find_map(redirecting);
    let head = directive.head();
    // A route is chosen before the client's address is found.
    let is_too_early = client_address::is_found(scope) && names(&directive.arguments.join(" ")).any(is_of_client);
    let Some(mut vars) = condition(directive).filter(|_| !is_too_early) else {
        // A switch for maintenance closes what is open otherwise.
        let is_switch = returns.is_some_and(|returns| returns.argument(0) == "503");
        if is_switch || returns.is_none() && redirects.is_none() {
            conversion.lost(&directive.place, format!("`{head}`"));
            return None;
        }
        let why = match is_too_early {
            true => "routes are chosen by the address of the connection, before `real-ip` finds the client's",
            false => "the condition cannot be converted",
        };
        let text = format!("`{head}`: {why}; all requests that reach it are answered with 503");
        conversion.lost(&directive.place, text);
        return Some((Vec::new(), vec![refusal()]));
    };
    let inside = scope.inside(block);
    let plugins = match (returns, redirects) {
        (Some(returns), _) => returned(conversion, &inside, returns, None),
        (None, Some((pattern, plugin))) => {
            vars.push(Yaml::List(vec![Yaml::text("uri"), Yaml::text("~~"), Yaml::text(pattern)]));
            let mut plugins = added_fields(conversion, &inside);
            plugins.push(plugin);
            plugins
        }
        (None, None) => {
            let text = format!(
                "`{head}`: only `return` and redirects inside `if` are converted; write a route with these `vars`"
            );
            conversion.lost(&directive.place, text);
            return None;
        }
    };
    Some((vars, plugins))
}

/// Whether a variable has the address or the port of the client.
fn is_of_client(name: &str) -> bool {
    ["remote_addr", "binary_remote_addr", "remote_port"].contains(&name)
}

/// The rule for methods that a `limit_except` does not name. GET includes HEAD.
pub(super) fn other_methods(except: &Directive) -> Yaml {
    let mut methods: Vec<String> = except.arguments.iter().map(|method| method.to_ascii_uppercase()).collect();
    if methods.iter().any(|method| method == "GET") && !methods.iter().any(|method| method == "HEAD") {
        methods.push("HEAD".to_owned());
    }
    Yaml::List(vec![Yaml::text("request_method"), Yaml::text("!"), Yaml::text("in"), Yaml::texts(methods)])
}

/// The rules equivalent to the condition of an `if`; `None` if there are none.
fn condition(directive: &Directive) -> Option<Vec<Yaml>> {
    let text = directive.arguments.join(" ");
    let text = text.strip_prefix('(')?.strip_suffix(')')?.trim();
    let (variable, rest) = text.split_once(' ').unwrap_or((text, ""));
    let name = variable.strip_prefix('$').filter(|name| is_known_for_routes(name))?;
    if rest.is_empty() {
        // In nginx true, unless the variable is empty or 0.
        return Some([test(name, "!=", "")?, test(name, "!=", "0")?].concat());
    }
    let (operator, value) = rest.trim().split_once(' ').unwrap_or((rest.trim(), ""));
    test(name, operator, value.trim())
}

/// The rules equivalent to a comparison of nginx; `None` if there are none.
pub(super) fn test(name: &str, operator: &str, value: &str) -> Option<Vec<Yaml>> {
    let name = Yaml::text(name);
    let rule = |rest: &[Yaml]| Yaml::List([std::slice::from_ref(&name), rest].concat());
    let (matches, not) = (Yaml::text("~~"), Yaml::text("!"));
    // In nginx, an absent variable is empty.
    let is_there = || rule(&[matches.clone(), Yaml::text(".")]);
    let is_empty = || rule(&[not.clone(), matches.clone(), Yaml::text(".")]);
    let is_equality = ["=", "!="].contains(&operator);
    if is_equality && value.contains('$') {
        return None;
    }
    let pattern = if is_equality { Some(value.to_owned()) } else { supported(value) };
    let value = pattern.as_deref()?;
    let matches_nothing = || is_match(value, operator, "");
    let text = Yaml::text(value);
    Some(match operator {
        "=" if value.is_empty() => vec![is_empty()],
        "!=" if value.is_empty() => vec![is_there()],
        "=" => vec![rule(&[Yaml::text("=="), text])],
        "!=" => vec![rule(&[Yaml::text("~="), text])],
        "~" | "~*" => {
            let found = rule(&[Yaml::text(if operator == "~" { "~~" } else { "~*" }), text]);
            match matches_nothing()? {
                true => vec![Yaml::List(vec![Yaml::text("OR"), found, is_empty()])],
                false => vec![found],
            }
        }
        "!~" | "!~*" => {
            let operator = Yaml::text(if operator == "!~" { "~~" } else { "~*" });
            let missing = rule(&[not.clone(), operator, text]);
            match matches_nothing()? {
                true => vec![missing, is_there()],
                false => vec![missing],
            }
        }
        _ => return None,
    })
}

/// Whether an expression matches a text; `None` if Weir does not support it.
fn is_match(pattern: &str, operator: &str, text: &str) -> Option<bool> {
    let expression = RegexBuilder::new(pattern).case_insensitive(operator.ends_with('*')).build();
    expression.ok().map(|expression| expression.is_match(text))
}
