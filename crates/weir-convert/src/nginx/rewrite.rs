//! `return`, `rewrite` and `if`: responses of the gateway itself, and changes of the path for upstreams.

use super::Conversion;
use super::location::Matching;
use super::scope::BlockScope;
use super::syntax::Directive;
use crate::answer::answer;
use crate::pattern::whole;
use crate::yaml::{Yaml, YamlMembers};

/// The plugin with the response of a `return`.
pub fn returned(
    conversion: &mut Conversion,
    scope: &BlockScope,
    directive: &Directive,
    matching: Option<&Matching>,
) -> YamlMembers {
    let (code, text) = match (directive.argument(0), directive.arguments.get(1)) {
        (url, None) if url.parse::<i64>().is_err() => (302, url),
        (code, text) => (code.parse().unwrap_or(500), text.map_or("", String::as_str)),
    };
    if let Some(unknown) = super::proxy::unknown_variable(conversion, text) {
        conversion.lost(&directive.place, format!("`{}`: Weir has no variable `${unknown}`", directive.head()));
    }
    match code {
        301 | 302 | 303 | 307 | 308 if !text.is_empty() => vec![redirect(code, text, matching)],
        444 => {
            let text = "`return 444`: connections cannot be closed without a response; the response is 403";
            conversion.differs(&directive.place, text);
            vec![answer(403, "", None)]
        }
        code => {
            let kind = (!text.is_empty()).then(|| scope.value("default_type").unwrap_or("text/plain"));
            vec![answer(code, text, kind)]
        }
    }
}

fn redirect(code: i64, url: &str, matching: Option<&Matching>) -> (String, Yaml) {
    let has_groups = (1..=9).any(|group| url.contains(&format!("${group}")));
    let place = match matching {
        // The groups are those of the location's expression.
        Some(Matching::Regex { pattern, ignores_case }) if has_groups => {
            ("regex_uri", Yaml::texts([whole(pattern, *ignores_case), url.to_owned()]))
        }
        _ => ("uri", Yaml::text(url)),
    };
    ("redirect".to_owned(), Yaml::map([place, ("ret_code", Yaml::Integer(code))]))
}

/// The pattern and the plugin of a `rewrite` that redirects.
pub fn redirecting(directive: &Directive) -> Option<(String, (String, Yaml))> {
    let [pattern, replacement, flag @ ..] = directive.arguments.as_slice() else { return None };
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
        ("regex_uri".to_owned(), Yaml::texts([whole(pattern, false), replacement.to_owned()])),
        ("ret_code".to_owned(), Yaml::Integer(code)),
    ];
    if keeps_query {
        members.push(("append_query_string".to_owned(), Yaml::Boolean(true)));
    }
    Some((pattern.clone(), ("redirect".to_owned(), Yaml::Map(members))))
}

/// The `regex_uri` of `proxy-rewrite` for the `rewrite`s of a location that change the path for its upstream.
pub fn paths(conversion: &mut Conversion, location: &[Directive]) -> Option<(String, Yaml)> {
    let mut pairs = Vec::new();
    for directive in location.iter().filter(|directive| directive.name == "rewrite") {
        let [pattern, replacement, flag @ ..] = directive.arguments.as_slice() else { continue };
        if redirecting(directive).is_some() {
            continue;
        }
        if replacement.contains('$') && super::proxy::unknown_variable(conversion, replacement).is_some() {
            conversion.lost(&directive.place, format!("`{}`", directive.head()));
            continue;
        }
        if flag.first().is_none_or(|flag| flag == "last") {
            let text = format!("`{}`: the new path is not matched against the locations again", directive.head());
            conversion.differs(&directive.place, text);
        }
        pairs.extend([whole(pattern, false), replacement.trim_end_matches('?').to_owned()]);
    }
    (!pairs.is_empty()).then(|| ("regex_uri".to_owned(), Yaml::texts(pairs)))
}

/// The rules equivalent to the condition of an `if`.
pub fn condition(directive: &Directive) -> Option<Vec<Yaml>> {
    let text = directive.arguments.join(" ");
    let text = text.strip_prefix('(')?.strip_suffix(')')?.trim();
    let name = |variable: &str| variable.strip_prefix('$').map(Yaml::text);
    let rule = |rule: &[Yaml]| vec![Yaml::List(rule.to_vec())];
    let Some((variable, rest)) = text.split_once(' ') else {
        // In nginx true, unless the variable is absent, empty or 0.
        let differs = |from: &str| Some(Yaml::List(vec![name(text)?, Yaml::text("~="), Yaml::text(from)]));
        let is_there = Yaml::List(vec![name(text)?, Yaml::text("~~"), Yaml::text(".")]);
        return Some(vec![is_there, differs("0")?]);
    };
    let (operator, value) = rest.trim().split_once(' ').unwrap_or((rest.trim(), ""));
    let (name, value) = (name(variable)?, Yaml::text(value.trim()));
    Some(match operator {
        // In nginx, an absent variable is empty.
        "=" if value == Yaml::text("") => rule(&[name, Yaml::text("!"), Yaml::text("~~"), Yaml::text(".")]),
        "!=" if value == Yaml::text("") => rule(&[name, Yaml::text("~~"), Yaml::text(".")]),
        "=" => rule(&[name, Yaml::text("=="), value]),
        "!=" => rule(&[name, Yaml::text("~="), value]),
        "~" => rule(&[name, Yaml::text("~~"), value]),
        "~*" => rule(&[name, Yaml::text("~*"), value]),
        "!~" => rule(&[name, Yaml::text("!"), Yaml::text("~~"), value]),
        "!~*" => rule(&[name, Yaml::text("!"), Yaml::text("~*"), value]),
        _ => return None,
    })
}
