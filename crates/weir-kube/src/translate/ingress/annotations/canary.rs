//! An Ingress that takes a part of the requests of another one with the same host and path.

use super::super::settings::Canary;
use super::{Annotation, Given, IngressSettings, NEEDED, Reads, Served, With, annotation};

pub(super) const TABLE: &[Annotation] = &[
    annotation(
        "canary",
        Reads::Flag,
        Served(canary),
        NEEDED,
        "`traffic-split` of the route of the other Ingress: by header, then cookie, then weight. Of the canary's other \
         annotations, those of the upstream count.",
    ),
    annotation("canary-weight", Reads::Number, With("canary"), NEEDED, "The weight of the canary's upstream."),
    annotation(
        "canary-weight-total",
        Reads::Number,
        With("canary"),
        NEEDED,
        "The sum of the weights, 100 without it or if it is less.",
    ),
    annotation(
        "canary-by-header",
        Reads::Text,
        With("canary"),
        NEEDED,
        "A condition on the field: `always` and `never`, unless there is a value or a pattern.",
    ),
    annotation(
        "canary-by-header-value",
        Reads::Text,
        With("canary"),
        NEEDED,
        "The value of the field in place of `always`.",
    ),
    annotation("canary-by-header-pattern", Reads::Text, With("canary"), NEEDED, "A regular expression for the value."),
    annotation(
        "canary-by-cookie",
        Reads::Text,
        With("canary"),
        NEEDED,
        "A condition on the cookie: `always` and `never`.",
    ),
];

/// The most bytes of the compiled expression for the value of a header.
const MOST_OF_PATTERN: usize = 64 << 10;

fn canary(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    if !given.flag("canary", false) {
        return Ok(());
    }
    let text = |name: &str| given.text(name).filter(|text| !text.is_empty()).map(str::to_owned);
    let total = given.number("canary-weight-total").unwrap_or_default().max(100);
    let header_pattern = text("canary-by-header-pattern");
    if let Some(pattern) = &header_pattern
        && regex::RegexBuilder::new(pattern).size_limit(MOST_OF_PATTERN).build().is_err()
    {
        return Err(format!(
            "`{pattern}` is not a regular expression without look-around and back-references, or it takes more than 64 KiB compiled"
        ));
    }
    settings.canary = Some(Canary {
        header: text("canary-by-header"),
        header_value: text("canary-by-header-value"),
        header_pattern,
        cookie: text("canary-by-cookie"),
        weight: given.number("canary-weight").unwrap_or_default().min(total),
        weight_total: total,
    });
    Ok(())
}
