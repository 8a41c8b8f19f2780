//! Comparisons of nginx, as rules of `vars`.

use regex::RegexBuilder;

use crate::pattern::supported;
use crate::yaml::Yaml;

/// The operator for an address in a network, which is a rule as it is.
pub(super) const NETWORK: &str = "ipmatch";

/// The rules equivalent to a comparison of nginx; `None` if there are none.
pub(super) fn test(name: &str, operator: &str, value: &str) -> Option<Vec<Yaml>> {
    let name = Yaml::text(name);
    if operator == NETWORK {
        return Some(vec![Yaml::List(vec![name, Yaml::text(NETWORK), Yaml::texts([value])])]);
    }
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
pub(super) fn is_match(pattern: &str, operator: &str, text: &str) -> Option<bool> {
    let expression = RegexBuilder::new(pattern).case_insensitive(operator.ends_with('*')).build();
    expression.ok().map(|expression| expression.is_match(text))
}
