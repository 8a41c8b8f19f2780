//! The path of a request after some directives: `handle_path`, `uri` and `rewrite` change it, and matchers of later directives
//! match the new path. Routes, however, match the original path.

use super::placeholder::literal;
use crate::pattern::regex_quoted;
use crate::yaml::{Yaml, YamlMembers};

/// How the path has been changed.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum PathState {
    /// Unchanged.
    #[default]
    Same,
    /// This prefix, which the path is known to have, was removed.
    Stripped(String),
    /// Replaced by a fixed path, with a query that is added before the client's.
    Fixed { path: String, query: Option<String> },
    /// Changed by these options of `proxy-rewrite`: only the beginning of the new path is known.
    Changed { options: YamlMembers, begins: String },
}

/// A path matcher, translated to the original path.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LocatedPath {
    /// In the syntax of a route's `uri`.
    Uri(String),
    /// A regular expression for the original path.
    Pattern(String),
    Always,
    Never,
    Unknown,
}

impl PathState {
    /// Translates a pattern of `path`, which is exact, `/prefix*`, or has `*` elsewhere, to the original path.
    pub(super) fn located(&self, pattern: &str) -> LocatedPath {
        if pattern == "*" || pattern == "/*" {
            return LocatedPath::Always;
        }
        let is_plain = !pattern.trim_end_matches('*').contains(['*', '?', '[', '\\'])
            && pattern.starts_with('/')
            && !pattern.contains("/:")
            && !pattern.ends_with("**");
        match self {
            PathState::Same if is_plain => LocatedPath::Uri(pattern.to_owned()),
            PathState::Same => LocatedPath::Pattern(glob(pattern)),
            PathState::Stripped(prefix) if is_plain => LocatedPath::Uri(format!("{prefix}{pattern}")),
            PathState::Stripped(prefix) => match glob(pattern) {
                expression if expression.starts_with('^') => {
                    LocatedPath::Pattern(format!("^{}{}", regex_quoted(prefix), &expression[1..]))
                }
                expression => LocatedPath::Pattern(expression),
            },
            PathState::Fixed { path, .. } if is_plain => {
                let is_met = pattern.strip_suffix('*').map_or(path == pattern, |prefix| path.starts_with(prefix));
                if is_met { LocatedPath::Always } else { LocatedPath::Never }
            }
            PathState::Changed { begins, .. } if is_plain => match pattern.strip_suffix('*') {
                Some(prefix) if begins.starts_with(prefix) => LocatedPath::Always,
                _ if pattern.trim_end_matches('*').starts_with(begins.as_str()) => LocatedPath::Unknown,
                _ => LocatedPath::Never,
            },
            _ => LocatedPath::Unknown,
        }
    }

    /// Translates a regular expression in the same way.
    pub(super) fn located_regex(&self, pattern: &str) -> LocatedPath {
        match (self, pattern.strip_prefix('^')) {
            (PathState::Same, _) => LocatedPath::Pattern(pattern.to_owned()),
            (PathState::Stripped(prefix), Some(rest)) if !pattern.contains('|') => {
                LocatedPath::Pattern(format!("^{}{rest}", regex_quoted(prefix)))
            }
            _ => LocatedPath::Unknown,
        }
    }

    /// Removes a prefix that the path is known to have; `false` if that cannot be expressed.
    pub(super) fn strip(&mut self, prefix: &str) -> bool {
        match self {
            PathState::Same => *self = PathState::Stripped(prefix.to_owned()),
            PathState::Stripped(before) => before.push_str(prefix),
            PathState::Fixed { path, .. } => match path.strip_prefix(prefix) {
                Some(rest) => *path = if rest.starts_with('/') { rest.to_owned() } else { format!("/{rest}") },
                None => return false,
            },
            PathState::Changed { .. } => return false,
        }
        true
    }

    /// The options of `proxy-rewrite`, for a route with these paths.
    pub(super) fn rewritten(&self, uris: &[String]) -> YamlMembers {
        match self {
            PathState::Same => Vec::new(),
            PathState::Stripped(prefix) => {
                let has_slash = !uris.is_empty() && uris.iter().all(|uri| uri.starts_with(&format!("{prefix}/")));
                let slash = if has_slash { "/" } else { "/?" };
                pair(format!("^{}{slash}(.*)", regex_quoted(prefix)), "/$1".to_owned())
            }
            PathState::Fixed { path, query } => {
                let query = query.as_ref().map_or(String::new(), |query| format!("?{query}"));
                vec![("uri".to_owned(), Yaml::Text(literal(path) + &query))]
            }
            PathState::Changed { options, .. } => options.clone(),
        }
    }
}

/// `regex_uri` with one pattern and its replacement.
pub(super) fn pair(pattern: String, replacement: String) -> YamlMembers {
    vec![("regex_uri".to_owned(), Yaml::texts([pattern, replacement]))]
}

/// Translates a glob to a regular expression. At both ends, `*` matches any text; elsewhere, text without a slash.
fn glob(pattern: &str) -> String {
    let inner = pattern.trim_matches('*');
    let is_plain = !inner.contains(['*', '?', '[', '\\']);
    match (pattern.starts_with('*'), pattern.ends_with('*')) {
        (true, true) if is_plain => regex_quoted(inner),
        (true, false) if is_plain => format!("{}$", regex_quoted(inner)),
        (false, true) if is_plain => format!("^{}", regex_quoted(inner)),
        _ => {
            let part = |char: char| match char {
                '*' => "[^/]*".to_owned(),
                '?' => "[^/]".to_owned(),
                char => regex_quoted(&char.to_string()),
            };
            format!("^{}$", pattern.chars().map(part).collect::<String>())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_matched_against_the_path_as_it_was_sent() {
        let uri = |text: &str| LocatedPath::Uri(text.to_owned());
        let pattern = |text: &str| LocatedPath::Pattern(text.to_owned());
        for (written, located) in [
            ("/a", uri("/a")),
            ("/a/*", uri("/a/*")),
            ("/*", LocatedPath::Always),
            ("*.php", pattern("\\.php$")),
            ("/a/*/b", pattern("^/a/[^/]*/b$")),
            ("*x*", pattern("x")),
            ("/a/:id", pattern("^/a/:id$")),
        ] {
            assert_eq!(PathState::Same.located(written), located, "{written}");
        }
        let stripped = PathState::Stripped("/api".to_owned());
        assert_eq!(stripped.located("/v1/*"), uri("/api/v1/*"));
        assert_eq!(stripped.located("/a*b"), pattern("^/api/a[^/]*b$"));
        assert_eq!(stripped.located("*.php"), pattern("\\.php$"));
        let fixed = PathState::Fixed { path: "/new".to_owned(), query: None };
        assert_eq!((fixed.located("/ne*"), fixed.located("/old")), (LocatedPath::Always, LocatedPath::Never));
        let changed = PathState::Changed { options: Vec::new(), begins: "/cart/".to_owned() };
        assert_eq!((changed.located("/ca*"), changed.located("/x/*")), (LocatedPath::Always, LocatedPath::Never));
        assert_eq!(changed.located("/cart/7"), LocatedPath::Unknown);
    }
}
