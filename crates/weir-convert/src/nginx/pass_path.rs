//! The path of a `proxy_pass` with variables, which nginx sends in place of the whole path of the request.

use super::Conversion;
use super::location::Matching;
use super::syntax::Directive;
use super::variables::{has_groups, names, numbered, unknown_in_request};
use crate::pattern::whole;
use crate::yaml::Yaml;

/// How a target ends that passes the query of the request on.
const WITH_QUERY: [&str; 6] =
    ["$is_args$args", "$is_args$query_string", "?$args", "?$query_string", "&$args", "&$query_string"];

/// The member of `proxy-rewrite` for such a path. `is_rewritten`: a `rewrite` of the location changes the path before.
pub(super) fn changed(
    conversion: &mut Conversion,
    pass: &Directive,
    path: &str,
    matching: &Matching,
    is_rewritten: bool,
) -> Option<(String, Yaml)> {
    let mut lost = |why: String| {
        tell_lost(conversion, pass, &why);
        None
    };
    let (path, passes_query) = without_query(path);
    let path = match matching {
        Matching::Regex { pattern, .. } => numbered(path, Some(pattern)),
        Matching::Exact(_) | Matching::Prefix { .. } => numbered(path, None),
    };
    if let Some(why) = refused(&path) {
        return lost(why.to_owned());
    }
    if is_rewritten {
        return lost("its path contains variables, after a `rewrite`".to_owned());
    }
    if let Some(unknown) = unknown_in_request(&path) {
        return lost(format!("Weir has no variable `${unknown}`"));
    }
    let change = match matching {
        _ if !has_groups(&path) => ("uri".to_owned(), Yaml::text(path)),
        Matching::Regex { pattern, ignores_case } => {
            ("regex_uri".to_owned(), Yaml::texts([whole(pattern, *ignores_case), path]))
        }
        Matching::Exact(_) | Matching::Prefix { .. } => {
            return lost("its path contains groups of an expression that the location does not have".to_owned());
        }
    };
    if !passes_query {
        let text = format!(
            "`{}`: the query of the request is passed on; nginx leaves it out, since the path contains variables",
            pass.head()
        );
        conversion.differs(&pass.place, text);
    }
    Some(change)
}

/// Reports a path for the upstream that cannot be converted.
pub(super) fn tell_lost(conversion: &mut Conversion, pass: &Directive, why: &str) {
    let text = format!("`{}`: {why}; the path is passed on unchanged until you write `proxy-rewrite`", pass.head());
    conversion.lost(&pass.place, text);
}

/// Why `proxy-rewrite` refuses a target, if it does.
pub(super) fn refused(target: &str) -> Option<&'static str> {
    let path = target.split('?').next().unwrap_or_default();
    if names(target).any(|name| ["is_args", "args", "query_string"].contains(&name)) {
        return Some("the query of the request is always passed on, and cannot stand elsewhere");
    }
    if target.bytes().any(|byte| byte <= b' ' || byte == b'#' || byte >= 0x7f) {
        return Some("its path has a character that must be percent-encoded");
    }
    path.split('/').any(|segment| [".", ".."].contains(&segment)).then_some("its path has a segment `.` or `..`")
}

/// The path without what stands for the query of the request, which is always passed on, and whether nginx does so, too.
pub(super) fn without_query(path: &str) -> (&str, bool) {
    match WITH_QUERY.iter().find_map(|query| path.strip_suffix(query)) {
        Some(path) => (path, true),
        None => (path, path.ends_with("$request_uri")),
    }
}
