//! Converts path templates to the `uri` of a route.

use crate::pattern::regex_quoted;

/// The conditions of a route on the path.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RouteUri {
    pub uri: String,
    /// A regular expression for the path, if `uri` alone would match too much.
    pub pattern: Option<String>,
}

/// A parameter that is a whole segment becomes `:name`; one that shares its segment with other text needs a regular expression.
pub(crate) fn convert(template: &str) -> RouteUri {
    let segments: Vec<&str> = template.split('/').collect();
    let simple: Option<Vec<String>> = segments.iter().map(|segment| simple(segment)).collect();
    if let Some(simple) = simple {
        return RouteUri { uri: simple.join("/"), pattern: None };
    }
    let fixed = segments.iter().take_while(|segment| simple_text(segment));
    let prefix = fixed.fold(String::new(), |prefix, segment| format!("{prefix}{segment}/"));
    let pattern = segments.iter().map(|segment| expression(segment)).collect::<Vec<_>>().join("/");
    RouteUri { uri: format!("{prefix}*"), pattern: Some(format!("^{pattern}$")) }
}

/// Whether a segment has no parameter, and nothing that is special in a `uri`.
fn simple_text(segment: &str) -> bool {
    !segment.contains(['{', '}', '*']) && !segment.starts_with(':')
}

fn simple(segment: &str) -> Option<String> {
    if simple_text(segment) {
        return Some(segment.to_owned());
    }
    let name = segment.strip_prefix('{')?.strip_suffix('}')?;
    (!name.is_empty() && !name.contains(['{', '}']))
        .then(|| format!(":{}", name.replace(|char: char| !char.is_ascii_alphanumeric(), "_")))
}

/// A regular expression for a segment, in which a parameter matches any text without a slash.
fn expression(segment: &str) -> String {
    let mut pattern = String::new();
    let mut rest = segment;
    while let Some((text, parameter)) = rest.split_once('{') {
        let Some((_, after)) = parameter.split_once('}') else { break };
        pattern.push_str(&regex_quoted(text));
        pattern.push_str("[^/]+");
        rest = after;
    }
    pattern + &regex_quoted(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_segments_or_parts_of_them() {
        for (template, uri, pattern) in [
            ("/", "/", None),
            ("/orders", "/orders", None),
            ("/orders/{order-id}/items/{item}", "/orders/:order_id/items/:item", None),
            ("/v1/files/{name}.json", "/v1/files/*", Some("^/v1/files/[^/]+\\.json$")),
            ("/jobs/{id}:cancel", "/jobs/*", Some("^/jobs/[^/]+:cancel$")),
            ("/a/{b}/{c}-{d}", "/a/*", Some("^/a/[^/]+/[^/]+-[^/]+$")),
            ("/a/*/b", "/a/*", Some("^/a/\\*/b$")),
            ("/a/{b", "/a/*", Some("^/a/\\{b$")),
        ] {
            let want = RouteUri { uri: uri.to_owned(), pattern: pattern.map(str::to_owned) };
            assert_eq!(convert(template), want, "{template}");
        }
    }
}
