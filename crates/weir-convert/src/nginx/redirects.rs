//! A `rewrite` that redirects clients, and one that changes the path for the upstream.

use super::syntax::Directive;
use super::variables::numbered;
use crate::pattern::{supported, whole};
use crate::yaml::Yaml;

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
