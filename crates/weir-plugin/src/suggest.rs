//! "Did you mean": the known word closest to an unknown one.

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

/// The known variable that was probably meant.
pub fn meant(variable: &Variable) -> Option<&'static str> {
    match variable {
        Variable::Unknown(name) => closest(name, fixed_names()),
        _ => None,
    }
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
}
