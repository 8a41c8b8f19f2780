//! `sticky` of an upstream, as `persistence`.

use super::Conversion;
use super::scope::seconds;
use super::syntax::Directive;
use crate::yaml::{Yaml, YamlMembers};

/// The longest time that a cookie is kept here, also for `expires=max`. Browsers keep none for much longer.
const MAX_AGE_S: f64 = 31_536_000.0;

/// The name of the cookie, if a `sticky` in the syntax of the module for older versions has none.
const OLD_NAME: &str = "route";

/// The member of an upstream for a `sticky`.
pub(super) fn persistence(conversion: &mut Conversion, directive: &Directive) -> Option<(String, Yaml)> {
    let members = match directive.argument(0) {
        "cookie" => cookie(conversion, directive, directive.argument(1), directive.arguments.get(2..)),
        "learn" => learnt(conversion, directive)?,
        "route" => {
            let text = format!(
                "`{}`: a request cannot name its endpoint; write `persistence: {{ type: cookie }}` in the upstream",
                directive.head()
            );
            conversion.lost(&directive.place, text);
            return None;
        }
        _ => {
            let name = directive.arguments.iter().find_map(|parameter| parameter.strip_prefix("name="));
            cookie(conversion, directive, name.unwrap_or(OLD_NAME), Some(&directive.arguments))
        }
    };
    if members.iter().any(|(name, value)| name == "type" && *value == Yaml::text("cookie")) {
        let text = format!(
            "`{}`: the key of the cookies is random and new at every start; write the same `persistence.secret` in the upstream on \
             all nodes",
            directive.head()
        );
        conversion.differs(&directive.place, text);
    }
    Some(("persistence".to_owned(), Yaml::Map(members)))
}

/// By a cookie of the gateway.
fn cookie(
    conversion: &mut Conversion,
    directive: &Directive,
    name: &str,
    parameters: Option<&[String]>,
) -> YamlMembers {
    let mut members = vec![("type".to_owned(), Yaml::text("cookie")), ("name".to_owned(), Yaml::text(name))];
    let parameters = parameters.unwrap_or_default();
    let (mut hides_from_scripts, is_secure) = (false, parameters.iter().any(|parameter| parameter == "secure"));
    for parameter in parameters {
        let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let member = match key {
            _ if value.contains('$') => None,
            "expires" if value == "max" => Some(("max_age", Yaml::number(MAX_AGE_S))),
            "expires" => seconds(value).map(|seconds| ("max_age", Yaml::number(seconds.min(MAX_AGE_S)))),
            "domain" => Some((key, Yaml::text(value.trim_start_matches('.')))),
            "path" => Some((key, Yaml::text(value))),
            "secure" => Some(("secure", Yaml::Boolean(true))),
            // Browsers accept `None` only with `secure`.
            "samesite" => same_site(value)
                .filter(|value| *value != "None" || is_secure)
                .map(|value| ("same_site", Yaml::text(value))),
            "httponly" => {
                hides_from_scripts = true;
                continue;
            }
            "no_fallback" => Some(("when_gone", Yaml::text("refuse"))),
            "name" | "hash" | "hmac" | "hmac_key" => continue,
            _ => None,
        };
        match member {
            Some((name, value)) => members.push((name.to_owned(), value)),
            None => {
                let text = format!("`{parameter}` in `sticky`: see `persistence` of the upstream");
                conversion.lost(&directive.place, text);
            }
        }
    }
    if !hides_from_scripts {
        members.push(("http_only".to_owned(), Yaml::Boolean(false)));
    }
    members
}

fn same_site(value: &str) -> Option<&'static str> {
    ["Lax", "Strict", "None"].into_iter().find(|known| known.eq_ignore_ascii_case(value))
}

/// By a cookie of the application: its name has to be the same where it is set and where it is looked up.
fn learnt(conversion: &mut Conversion, directive: &Directive) -> Option<YamlMembers> {
    let value = |key: &str| directive.arguments.iter().find_map(|parameter| parameter.strip_prefix(key));
    let set = value("create=$upstream_cookie_");
    let count = |key: &str| directive.arguments.iter().filter(|parameter| parameter.starts_with(key)).count();
    let is_one = count("create=") == 1 && count("lookup=") == 1;
    let Some(name) = set.filter(|set| is_one && value("lookup=$cookie_") == Some(set)) else {
        let text = format!(
            "`{}`: write `persistence: {{ type: app_cookie, name: … }}` in the upstream, with one cookie of the application",
            directive.head()
        );
        conversion.lost(&directive.place, text);
        return None;
    };
    let mut members = vec![("type".to_owned(), Yaml::text("app_cookie")), ("name".to_owned(), Yaml::text(name))];
    let idle = value("timeout=").map_or(Some(600.0), seconds);
    members.extend(idle.map(|idle| ("idle".to_owned(), Yaml::number(idle))));
    Some(members)
}
