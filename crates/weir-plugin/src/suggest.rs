//! "Did you mean": the known word closest to an unknown one.

use std::borrow::Cow;

use crate::variable::{Variable, fixed_names};

/// The most words that are compared, to limit the cost.
const MOST: usize = 1_000;

/// The word of `known` that is closest to `word`, if it is close enough to be a typing mistake.
pub fn closest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // A typing mistake is not that much longer than a known word, and the distance takes quadratic time.
    if word.len() > 64 {
        return None;
    }
    let folded = fold(word);
    known
        .into_iter()
        .take(MOST)
        .map(|candidate| (strsim::osa_distance(&folded, &fold(candidate)), candidate))
        // Of equally close ones that which is only not typed to its end; then by the word, so that the result does not depend on
        // the order of `known`.
        .min_by_key(|(distance, candidate)| (*distance, !fold(candidate).starts_with(&folded), *candidate))
        .filter(|(distance, candidate)| *distance <= 1 + candidate.chars().count() / 4)
        .map(|(_, candidate)| candidate)
}

/// How variables for a part of the request begin in other gateways, and here.
const PREFIXES: [(&str, &str); 7] = [
    ("header_", "http_"),
    ("headers_", "http_"),
    ("req_header_", "http_"),
    ("request_header_", "http_"),
    ("query_", "arg_"),
    ("param_", "arg_"),
    ("args_", "arg_"),
];

/// The known variable that was probably meant.
pub fn meant(variable: &Variable) -> Option<Cow<'static, str>> {
    let Variable::Unknown(name) = variable else { return None };
    let fixed = closest(name, fixed_names()).map(Cow::Borrowed);
    fixed.or_else(|| {
        let renamed = |(theirs, ours): &(&str, &str)| Some(format!("{ours}{}", name.strip_prefix(theirs)?));
        PREFIXES.iter().find_map(renamed).map(Cow::Owned)
    })
}

/// Ignores case and the kind of dash, the most frequent mistakes.
fn fold(word: &str) -> String {
    word.chars().map(|c| if c == '-' { '_' } else { c.to_ascii_lowercase() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_meant_and_nothing_far_off() {
        let known = ["uri", "uris", "host", "upstream", "upstream_id", "plugins", "limit-count"];
        assert_eq!(closest("upstraem", known), Some("upstream"));
        assert_eq!(closest("URI", known), Some("uri"));
        assert_eq!(closest("limit_cuont", known), Some("limit-count"));
        assert_eq!(closest("hsot", known), Some("host"));
        assert_eq!(closest("limit-coun", ["limit-conn", "limit-count"]), Some("limit-count"));
        assert_eq!(closest("zebra", known), None);
        assert_eq!(closest("", known), None);
        assert_eq!(closest(&"u".repeat(1_000), known), None);
    }

    #[test]
    fn names_of_other_gateways_lead_to_variables() {
        let found = |name: &str| meant(&Variable::named(name)).map(Cow::into_owned);
        for (name, expected) in [
            ("header_x_tenant", Some("http_x_tenant")),
            ("query_page", Some("arg_page")),
            ("statsu", Some("status")),
            ("zebra_stripes", None),
            ("http_x", None),
        ] {
            assert_eq!(found(name).as_deref(), expected, "{name}");
        }
    }
}
