//! Finds paths in the syntax of another router: regular expressions, and parameters in braces.

use super::Doubts;
use crate::text::foreign::{shell_variable, variable_advice};
use crate::text::read::shortened;

pub(super) fn taken_literally(doubts: &Doubts) {
    for route in doubts.enabled_routes() {
        for (index, uri) in route.uris.iter().enumerate() {
            let Some(Misread { part, advice }) = misread(uri) else { continue };
            let problem = format!("`{part}` in `{}` is matched as plain text", shortened(uri));
            doubts.report_uri(route, index, problem, advice);
        }
    }
}

/// A part of a `uri` that has a meaning in other routers, and what to write instead.
struct Misread<'u> {
    part: &'u str,
    advice: String,
}

fn misread(uri: &str) -> Option<Misread<'_>> {
    if let Some(name) = shell_variable(uri) {
        return Some(Misread { part: name, advice: variable_advice(name) });
    }
    if let Some(part) = between(uri, '{', '}').or_else(|| between(uri, '<', '>')) {
        let name = part[1..part.len() - 1].rsplit(':').next().unwrap_or_default();
        let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        let name = if is_name { name } else { "id" };
        let advice = format!("write `:{name}` as a whole segment, which matches one segment of any text");
        return Some(Misread { part, advice });
    }
    if let Some(part) = regular_expression(uri) {
        let fixed = uri.split(['(', '[', '\\', '|', '$', '.', '*', '+']).next().unwrap_or("/");
        let advice = format!("write `{fixed}*`, and `vars: [[uri, \"~~\", \"^{uri}\"]]` if a prefix is not enough");
        return Some(Misread { part, advice });
    }
    let is_stray = |(start, _): &(usize, &str)| *start + 1 < uri.len() && !uri[..*start].ends_with('/');
    let (_, part) = uri.match_indices('*').find(is_stray)?;
    Some(Misread { part, advice: "write `*` at the end of the `uri`, or in place of a whole segment".to_owned() })
}

/// A text in brackets, including the brackets.
fn between(uri: &str, open: char, close: char) -> Option<&str> {
    let start = uri.find(open)?;
    let length = uri[start..].find(close)?;
    Some(&uri[start..=start + length])
}

/// A part that is typical of regular expressions and not of paths. `/image.*` is a plausible prefix, and `/Items(1)` a plausible
/// path.
fn regular_expression(uri: &str) -> Option<&'static str> {
    const PARTS: [&str; 8] = ["(.*", ".*)", "(?", "/.*", ".+", "[", "\\", "|"];
    let part = PARTS.into_iter().find(|part| uri.contains(part));
    part.or_else(|| uri.ends_with('$').then_some("$"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_written_for_another_router_is_doubted() {
        let cases = [
            ("/a(.*)", "(.*", "write `/a*`, and `vars: [[uri, \"~~\", \"^/a(.*)\"]]` if"),
            ("/users/{id}", "{id}", "write `:id` as a whole segment"),
            ("/users/<int:user>/x", "<int:user>", "write `:user` as"),
            ("/users/[0-9]+", "[", "write `/users/*`"),
            ("/a/.*", "/.*", "write `/a/*`"),
            ("/exact$", "$", "write `/exact*`"),
            ("/${PREFIX}", "PREFIX", "write `${{PREFIX}}`"),
            ("/a*b", "*", "write `*` at the end"),
        ];
        for (uri, part, advice) in cases {
            let found = misread(uri).unwrap_or_else(|| panic!("{uri} is doubted"));
            assert_eq!(found.part, part, "{uri}");
            assert!(found.advice.starts_with(advice), "{uri}: {}", found.advice);
        }
        for uri in
            ["/", "/*", "/a*", "/a/*", "/a/*/b", "/a/*rest/b", "/image.*", "/Items(1)", "/users/:id", "/a.b", "/a+b"]
        {
            assert!(misread(uri).is_none(), "{uri}");
        }
    }
}
