//! `return`, `rewrite` and `if`: responses of the gateway itself, and changes of the path for upstreams.

use super::Conversion;
use super::client_address;
use super::conditions::{self, ConvertedCondition};
use super::location::Matching;
use super::media_types;
use super::pass_path::{refused, without_query};
use super::policies::added_fields;
use super::redirects::redirecting;
use super::scope::BlockScope;
use super::syntax::Directive;
use super::variables::{has_groups, names, numbered, unknown_in_request};
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
            if text.is_empty() && (300..600).contains(&code) {
                let text = format!(
                    "`{}`: nginx answers a status without a text with its own HTML page; here the body is empty",
                    directive.head()
                );
                conversion.differs_here_first("pages of statuses", &directive.place, text);
            }
            let kind = (!text.is_empty()).then(|| kind_of_text(conversion, scope, directive, matching));
            answer(code, text, kind)
        }
    }
}

/// The media type of a text. That a location for several extensions has one type for all of them is reported.
fn kind_of_text<'a>(
    conversion: &mut Conversion,
    scope: &BlockScope<'a>,
    directive: &Directive,
    matching: Option<&Matching>,
) -> &'a str {
    let kind = media_types::of_text(scope, matching.and_then(Matching::path));
    if matches!(matching, Some(Matching::Regex { pattern, .. }) if pattern.contains("\\.")) {
        let text =
            format!("`{}`: the media type is {kind}; nginx takes that of the path's extension", directive.head());
        conversion.differs(&directive.place, text);
    }
    kind
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
    let is_too_early = names(&directive.arguments.join(" ")).any(conditions::is_of_client);
    let condition = conditions::of(conversion, scope, directive);
    let is_too_early =
        client_address::is_found(scope) && (is_too_early || condition.iter().any(ConvertedCondition::is_of_client));
    if condition.as_ref().is_some_and(|condition| condition.is_never) {
        return None;
    }
    let Some(mut vars) = condition.filter(|_| !is_too_early).map(|condition| condition.rules) else {
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

/// The rule for methods that a `limit_except` does not name. GET includes HEAD.
pub(super) fn other_methods(except: &Directive) -> Yaml {
    let mut methods: Vec<String> = except.arguments.iter().map(|method| method.to_ascii_uppercase()).collect();
    if methods.iter().any(|method| method == "GET") && !methods.iter().any(|method| method == "HEAD") {
        methods.push("HEAD".to_owned());
    }
    Yaml::List(vec![Yaml::text("request_method"), Yaml::text("!"), Yaml::text("in"), Yaml::texts(methods)])
}
