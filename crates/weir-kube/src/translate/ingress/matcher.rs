//! Which requests a path of an Ingress takes.

use serde_json::{Value, json};

use super::class::IngressDialect;
use super::settings::PathStyle;
use crate::objects::ingress::IngressPath;

/// A path, and how it is compared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum IngressPathMatch {
    Exact(String),
    /// By elements; without a slash at the end.
    Prefix(String),
    /// By text.
    Text(String),
    /// At the beginning of the path, without regard to case.
    Expression(String),
}

/// The keys of a route that say which requests it takes.
pub(super) struct PathConditions {
    pub uris: Vec<String>,
    pub vars: Vec<Value>,
    pub priority: i64,
}

/// Before a prefix of the same path.
const EXACT: i64 = 10;

impl IngressPathMatch {
    pub(super) fn new(
        path: &IngressPath,
        dialect: IngressDialect,
        style: PathStyle,
        is_regex: bool,
    ) -> IngressPathMatch {
        let text = if path.path.is_empty() { "/" } else { &path.path };
        let prefix = || IngressPathMatch::Prefix(text.trim_end_matches('/').to_owned());
        match path.path_type.as_str() {
            _ if is_regex && dialect == IngressDialect::IngressNginx => IngressPathMatch::Expression(text.to_owned()),
            "Exact" => IngressPathMatch::Exact(text.to_owned()),
            "Prefix" => prefix(),
            _ if style == PathStyle::Text => IngressPathMatch::Text(text.to_owned()),
            _ => prefix(),
        }
    }

    /// Whether it takes every path.
    pub(super) fn takes_all(&self) -> bool {
        match self {
            IngressPathMatch::Prefix(path) => path.is_empty(),
            IngressPathMatch::Text(path) | IngressPathMatch::Expression(path) => path == "/",
            IngressPathMatch::Exact(_) => false,
        }
    }

    /// `rank`: the place of an expression among those of its host; higher ones are tried first. `is_served`: an expression can be
    /// compiled.
    pub(super) fn conditions(&self, rank: i64, is_served: bool) -> PathConditions {
        let on_path = |uri: &str, operator: &str, pattern: String, priority| PathConditions {
            uris: vec![uri.to_owned()],
            vars: vec![json!(["uri", operator, pattern])],
            priority,
        };
        match self {
            // What it would take is not known: it takes all that begin as it does.
            IngressPathMatch::Expression(path) if !is_served => {
                on_path("/*", "~*", format!("^{}", regex::escape(literal(path))), rank)
            }
            IngressPathMatch::Expression(path) => on_path("/*", "~*", format!("^{path}"), rank),
            _ if !self.is_plain() => {
                let quoted = regex::escape(self.text());
                match self {
                    IngressPathMatch::Exact(_) => on_path(&self.fixed(), "~~", format!("^{quoted}$"), EXACT),
                    IngressPathMatch::Prefix(_) => on_path(&self.fixed(), "~~", format!("^{quoted}(/|$)"), 1),
                    _ => on_path(&self.fixed(), "~~", format!("^{quoted}"), 1),
                }
            }
            IngressPathMatch::Exact(path) => {
                PathConditions { uris: vec![path.clone()], vars: Vec::new(), priority: EXACT }
            }
            IngressPathMatch::Prefix(path) => {
                let below = format!("{path}/*");
                let uris = if path.is_empty() { vec![below] } else { vec![path.clone(), below] };
                PathConditions { uris, vars: Vec::new(), priority: 0 }
            }
            IngressPathMatch::Text(path) => {
                PathConditions { uris: vec![format!("{path}*")], vars: Vec::new(), priority: 0 }
            }
        }
    }

    pub(super) fn text(&self) -> &str {
        match self {
            IngressPathMatch::Exact(path)
            | IngressPathMatch::Prefix(path)
            | IngressPathMatch::Text(path)
            | IngressPathMatch::Expression(path) => path,
        }
    }

    /// Whether a `uri` of a route means the same: `:name` and `*` as a segment, and `*` at the end, mean something else there.
    fn is_plain(&self) -> bool {
        !self.text().split('/').any(is_pattern) && !self.text().ends_with('*')
    }

    /// A `uri` for all paths with the same beginning.
    fn fixed(&self) -> String {
        let plain = self.text().split('/').take_while(|segment| !is_pattern(segment) && !segment.ends_with('*'));
        format!("{}/*", plain.collect::<Vec<_>>().join("/"))
    }
}

/// The text that all paths begin with that an expression matches.
fn literal(expression: &str) -> &str {
    let special = |c: char| !c.is_alphanumeric() && !"/-_~%".contains(c);
    match expression.find(special) {
        None => expression,
        // A quantifier may make the character before it optional, and another branch begins differently.
        Some(_) if expression.contains('|') => "/",
        Some(end) => {
            let before = &expression[..end];
            &before[..before.char_indices().last().map_or(0, |(at, _)| at).max(1).min(end)]
        }
    }
}

fn is_pattern(segment: &str) -> bool {
    segment.starts_with([':', '*'])
}

/// The condition by which a wildcard covers one label only; that of a route covers several.
pub(super) fn one_label(host: &str) -> Option<Value> {
    let rest = host.strip_prefix("*.")?;
    Some(json!(["host", "~~", format!("^[^.]+\\.{}$", regex::escape(rest))]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prefix_of_an_expression_is_never_too_long() {
        for (expression, begins) in [
            ("/shop", "/shop"),
            ("/shop/(?!x)", "/shop"),
            ("/a?b", "/"),
            ("/(?!x)y", "/"),
            ("/a|/b", "/"),
            ("(?<!a)/b", ""),
        ] {
            assert!(begins.starts_with(literal(expression)), "{expression}: {}", literal(expression));
        }
        assert_eq!(literal("/shop/(?!x)"), "/shop");
    }

    #[test]
    fn a_wildcard_becomes_a_condition_for_one_label() {
        assert_eq!(one_label("*.a.example"), Some(json!(["host", "~~", "^[^.]+\\.a\\.example$"])));
        assert_eq!(one_label("a.example"), None);
    }

    #[test]
    fn segments_that_mean_more_in_a_route_are_compared_as_text() {
        let conditions = |path: IngressPathMatch| path.conditions(0, true);
        let found = conditions(IngressPathMatch::Prefix("/a/:id".to_owned()));
        assert_eq!((found.uris, found.vars), (vec!["/a/*".to_owned()], vec![json!(["uri", "~~", "^/a/:id(/|$)"])]));
        let found = conditions(IngressPathMatch::Exact("/a/b*".to_owned()));
        assert_eq!((found.uris, found.vars), (vec!["/a/*".to_owned()], vec![json!(["uri", "~~", "^/a/b\\*$"])]));
        assert!(conditions(IngressPathMatch::Exact("/a".to_owned())).vars.is_empty());
    }
}
