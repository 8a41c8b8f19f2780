//! `location` blocks: the paths that each one handles, if the most specific path wins.

use super::error_pages::ERROR_TEXT;
use super::scope::BlockScope;
use super::syntax::Directive;
use crate::pattern::supported;

/// The condition of a location on the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Matching {
    Exact(String),
    Prefix { path: String, stops: bool },
    Regex { pattern: String, ignores_case: bool },
}

/// A location with the blocks around it.
#[derive(Clone)]
pub(super) struct Location<'a> {
    pub directive: &'a Directive,
    pub matching: Matching,
    pub scope: BlockScope<'a>,
    /// `internal`: only for internal redirects of nginx.
    pub is_internal: bool,
}

/// A location, and the paths it handles.
pub(super) struct Region<'a> {
    pub location: Location<'a>,
    /// In the syntax of a route's `uri`.
    pub uris: Vec<String>,
    /// Regular expressions have a priority in nginx's order, and prefixes have 0; the higher is tried first.
    pub priority: i64,
}

impl Matching {
    /// The path, as far as it has one for all of its requests.
    pub(super) fn path(&self) -> Option<&str> {
        match self {
            Matching::Exact(path) | Matching::Prefix { path, .. } => Some(path),
            Matching::Regex { .. } => None,
        }
    }

    /// `None` for a named location.
    pub(super) fn of(directive: &Directive) -> Option<Matching> {
        let (modifier, path) = match directive.arguments.as_slice() {
            [path] => ("", path.clone()),
            [modifier, path] => (modifier.as_str(), path.clone()),
            _ => return None,
        };
        let expression = |ignores_case| {
            let pattern = supported(&path).unwrap_or_else(|| path.clone());
            Matching::Regex { pattern, ignores_case }
        };
        match modifier {
            "" if path.starts_with('@') => None,
            "" => Some(Matching::Prefix { path: path.clone(), stops: false }),
            "=" => Some(Matching::Exact(path.clone())),
            "^~" => Some(Matching::Prefix { path: path.clone(), stops: true }),
            "~" => Some(expression(false)),
            "~*" => Some(expression(true)),
            _ => None,
        }
    }

    /// In the syntax of a route's `uri`; `None` for a regular expression.
    fn uri(&self) -> Option<String> {
        match self {
            Matching::Exact(path) => Some(path.clone()),
            Matching::Prefix { path, .. } => Some(format!("{path}*")),
            Matching::Regex { .. } => None,
        }
    }
}

/// What a location may have beside a `try_files` whose last place is a named location: it does not refuse requests, and the response
/// of the named location does not have it.
const BESIDE_FILES: [&str; 24] = [
    "try_files",
    "root",
    "alias",
    "index",
    "autoindex",
    "expires",
    "add_header",
    "types",
    "default_type",
    "gzip",
    "gzip_static",
    "access_log",
    "log_not_found",
    "error_page",
    ERROR_TEXT,
    "sendfile",
    "sendfile_max_chunk",
    "aio",
    "limit_rate",
    "limit_rate_after",
    "set",
    "etag",
    "rewrite",
    "location",
];

/// The named location that answers if there is no file, where that can be told from the block of a location.
pub(super) fn fallback<'a>(server: &'a [Directive], location: &Directive) -> Option<&'a Directive> {
    let has_conditions = |name: &str| ["if", "return", "rewrite"].contains(&name);
    let last = location.children().iter().find(|child| child.name == "try_files")?.arguments.last()?;
    let is_plain =
        location.children().iter().all(|child| BESIDE_FILES.contains(&child.name.as_str()) || child.name == "if");
    let named =
        server.iter().find(|other| other.name == "location" && other.arguments.as_slice() == [last.as_str()])?;
    let passes = named.children().iter().any(|child| child.name == "proxy_pass");
    let is_fixed = named.children().iter().all(|child| !has_conditions(&child.name));
    (last.starts_with('@') && is_plain && passes && is_fixed).then_some(named)
}

/// The named locations that are the [`fallback`] of a location in a block, at any depth.
pub(super) fn fallbacks<'a>(server: &'a [Directive], block: &'a [Directive]) -> Vec<&'a Directive> {
    let locations = block.iter().filter(|child| child.name == "location");
    let of =
        |location: &'a Directive| fallback(server, location).into_iter().chain(fallbacks(server, location.children()));
    locations.flat_map(of).collect()
}

/// The locations that are directly in a block.
fn within<'a>(scope: &BlockScope<'a>) -> Vec<Location<'a>> {
    let locations = scope.own().iter().filter(|directive| directive.name == "location");
    let location = |directive: &'a Directive| {
        let is_internal = directive.children().iter().any(|child| child.name == "internal");
        let matching = Matching::of(directive)?;
        Some(Location { directive, matching, scope: scope.inside(directive.children()), is_internal })
    };
    locations.filter_map(location).collect()
}

/// Every location of a server, with the paths it handles.
pub(super) fn regions<'a>(server: &BlockScope<'a>) -> Vec<Region<'a>> {
    let mut tried = TriedLocations::default();
    tried.collect(server, "/", &[], 0);
    let TriedLocations { prefixes, exact, mut expressions } = tried;
    // Expressions of inner blocks are tried before those of outer ones; within a block they keep their order.
    expressions.sort_by_key(|expression| std::cmp::Reverse(expression.depth));
    let count = expressions.len();
    let mut regions = Vec::new();
    for (position, LocationExpression { location, uris, .. }) in expressions.into_iter().enumerate() {
        if !uris.is_empty() {
            regions.push(Region { location, uris, priority: (count - position) as i64 });
        }
    }
    for location in exact.into_iter().chain(prefixes) {
        let uris = location.matching.uri().into_iter().collect();
        regions.push(Region { location, uris, priority: 0 });
    }
    regions
}

/// The location with the longest prefix of a path.
fn owner<'r>(regions: &'r [Region], path: &str) -> Option<&'r str> {
    let prefixes = regions.iter().filter_map(|region| match &region.location.matching {
        Matching::Prefix { path: prefix, .. } if path.starts_with(prefix.as_str()) => Some(prefix.as_str()),
        _ => None,
    });
    prefixes.max_by_key(|prefix| prefix.len())
}

/// Adds more paths, in the syntax of a route's `uri`, to the locations that handle them. Returns those that no prefix handles.
pub(super) fn cover(regions: &mut [Region], paths: &[String]) -> Vec<String> {
    let mut rest = Vec::new();
    for path in paths {
        let is_own = |region: &Region| region.location.matching.uri().as_ref() == Some(path);
        if regions.iter().any(is_own) {
            continue;
        }
        let owner = owner(regions, path.strip_suffix('*').unwrap_or(path)).map(str::to_owned);
        if owner.is_none() {
            rest.push(path.clone());
        }
        let under = format!("{}*", owner.as_deref().unwrap_or("/"));
        for region in regions.iter_mut().filter(|region| region.uris.contains(&under) && !region.uris.contains(path)) {
            region.uris.push(path.clone());
        }
    }
    rest
}

#[derive(Default)]
struct TriedLocations<'a> {
    prefixes: Vec<Location<'a>>,
    exact: Vec<Location<'a>>,
    expressions: Vec<LocationExpression<'a>>,
}

/// A location with a regular expression, and the prefixes under which nginx tries it.
struct LocationExpression<'a> {
    location: Location<'a>,
    uris: Vec<String>,
    /// The number of blocks around its own.
    depth: usize,
}

impl<'a> TriedLocations<'a> {
    /// Collects the locations of the block that handles a prefix. The expressions in `outer` are tried after its own.
    fn collect(&mut self, block: &BlockScope<'a>, prefix: &str, outer: &[usize], depth: usize) {
        let locations = within(block);
        let mut tried = Vec::new();
        for location in &locations {
            if matches!(location.matching, Matching::Regex { .. }) {
                tried.push(self.expressions.len());
                self.expressions.push(LocationExpression { location: location.clone(), uris: Vec::new(), depth });
            }
        }
        tried.extend(outer);
        let is_own =
            |location: &Location| matches!(&location.matching, Matching::Prefix { path, .. } if path == prefix);
        if !locations.iter().any(is_own) {
            for &number in &tried {
                self.expressions[number].uris.push(format!("{prefix}*"));
            }
        }
        for location in locations {
            match &location.matching {
                Matching::Exact(_) => self.exact.push(location),
                Matching::Regex { .. } => {}
                Matching::Prefix { path, stops } => {
                    let (path, stops, scope) = (path.clone(), *stops, location.scope.clone());
                    self.prefixes.push(location);
                    self.collect(&scope, &path, if stops { &[] } else { &tried }, depth + 1);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::syntax::parse;
    use super::*;

    /// Every location with its paths and its priority.
    fn told(text: &str) -> Vec<String> {
        let directives = parse("t", text).expect("correct");
        let told = |region: Region| {
            let Region { location, uris, priority } = region;
            format!("{} -> {} {priority}", location.directive.arguments.join(" "), uris.join(" "))
        };
        regions(&BlockScope::new(&directives)).into_iter().map(told).collect()
    }

    #[test]
    fn expressions_are_tried_under_every_prefix_that_does_not_stop_them() {
        let text =
            "location / {} location /a/ {} location ^~ /s/ {} location = /x {} location ~ one {} location ~* two {}";
        assert_eq!(
            told(text),
            [
                "~ one -> /* /a/* 2",
                "~* two -> /* /a/* 1",
                "= /x -> /x 0",
                "/ -> /* 0",
                "/a/ -> /a/* 0",
                "^~ /s/ -> /s/* 0",
            ]
        );
    }

    #[test]
    fn paths_of_others_belong_to_the_longest_prefix_and_its_expressions() {
        let directives =
            parse("t", "location /a/ {} location ^~ /a/s/ {} location = /x {} location ~ one {}").expect("correct");
        let mut regions = regions(&BlockScope::new(&directives));
        let paths = ["/*", "/a/b/*", "/a/s/x", "/x", "/y"].map(str::to_owned);
        assert_eq!(cover(&mut regions, &paths), ["/*", "/y"]);
        let uris: Vec<String> = regions.iter().map(|region| region.uris.join(" ")).collect();
        assert_eq!(uris, ["/* /a/* /a/b/* /y", "/x", "/a/* /a/b/*", "/a/s/* /a/s/x"]);
    }

    #[test]
    fn without_a_prefix_for_everything_expressions_are_tried_all_the_same() {
        assert_eq!(told("location ^~ /s/ {} location ~ one {}"), ["~ one -> /* 1", "^~ /s/ -> /s/* 0"]);
    }

    #[test]
    fn expressions_within_a_prefix_are_tried_first_and_there_only() {
        let text = "location /a/ { location ~ in {} location /a/b/ {} } location ~ out {}";
        assert_eq!(
            told(text),
            ["~ in -> /a/* /a/b/* 2", "~ out -> /* /a/* /a/b/* 1", "/a/ -> /a/* 0", "/a/b/ -> /a/b/* 0"]
        );
    }
}
