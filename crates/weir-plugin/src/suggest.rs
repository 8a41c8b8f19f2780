//! "Did you mean": the known word closest to an unknown one.

use std::borrow::Cow;

use crate::variable::{ExchangePhase, MAX_NAME, Variable, fixed_names};

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
        .filter(|(distance, candidate)| {
            // Of a short word, another one is no typing mistake if all of its letters are different.
            *distance < folded.chars().count() && *distance <= 1 + candidate.chars().count() / 4
        })
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

/// Names of other gateways for what has a variable here.
const NAMES: [(&str, &str); 10] = [
    ("ip", "remote_addr"),
    ("client_ip", "remote_addr"),
    ("remote_ip", "remote_addr"),
    ("source_ip", "remote_addr"),
    ("path", "uri"),
    ("url", "request_uri"),
    ("user_agent", "http_user_agent"),
    ("x_forwarded_for", "http_x_forwarded_for"),
    ("consumer", "consumer_name"),
    ("username", "consumer_name"),
];

/// The known variable that was probably meant.
pub fn meant(variable: &Variable) -> Option<Cow<'static, str>> {
    let Variable::Unknown(name) = variable else { return None };
    if name.len() > MAX_NAME {
        return None;
    }
    // `$http_x` where the name alone is expected.
    let bare = name.trim_start_matches('$');
    if bare.len() < name.len() && Variable::named(bare).is_known() {
        return Some(Cow::Owned(bare.to_owned()));
    }
    let name = bare;
    let plain = name.to_ascii_lowercase().replace(['.', '-'], "_");
    if let Some((_, ours)) = NAMES.iter().find(|(theirs, _)| *theirs == plain) {
        return Some(Cow::Borrowed(ours));
    }
    let fixed = closest(name, fixed_names()).map(Cow::Borrowed);
    fixed.or_else(|| {
        let renamed = |(theirs, ours): &(&str, &str)| Some(format!("{ours}{}", plain.strip_prefix(theirs)?));
        PREFIXES.iter().find_map(renamed).map(Cow::Owned)
    })
}

/// Why a variable has no value at this moment, and which one was probably meant; `None` if it may have one.
pub fn absence(variable: &Variable, at: ExchangePhase) -> Option<String> {
    let problem = variable.absence(at)?;
    Some(match meant(variable) {
        Some(known) => format!("{problem}; did you mean `{known}`?"),
        None => problem,
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
        assert_eq!(closest("2", ["1", "3"]), None);
        assert_eq!(closest(&"u".repeat(1_000), known), None);
    }

    #[test]
    fn names_of_other_gateways_lead_to_variables() {
        let found = |name: &str| meant(&Variable::named(name)).map(Cow::into_owned);
        for (name, expected) in [
            ("header_x_tenant", Some("http_x_tenant")),
            ("query_page", Some("arg_page")),
            ("headers.X-Tenant", Some("http_x_tenant")),
            ("$http_x_tenant", Some("http_x_tenant")),
            ("$statsu", Some("status")),
            ("$$$status", Some("status")),
            ("$", None),
            ("ip", Some("remote_addr")),
            ("statsu", Some("status")),
            ("zebra_stripes", None),
            ("http_x", None),
        ] {
            assert_eq!(found(name).as_deref(), expected, "{name}");
        }
    }

    #[test]
    fn long_names_have_no_suggestion_and_need_no_deep_stack() {
        assert_eq!(meant(&Variable::named(&"$".repeat(1_000_000))), None);
        assert_eq!(meant(&Variable::named(&format!("header_{}", "x".repeat(1_000_000)))), None);
    }
}
