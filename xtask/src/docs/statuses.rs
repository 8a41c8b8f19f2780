//! docs/guide/statuses.md is written by hand, since what to do about a cause stands nowhere in the code. Here it is held
//! against the code: each cause has a row under its status.

use std::collections::BTreeMap;
use std::fs;

use crate::Problems;

const PAGE: &str = "docs/guide/statuses.md";

/// Says which cause the page lacks.
pub(super) fn compare() -> Result<(), Problems> {
    let read = |path: &str| fs::read_to_string(path).map_err(|error| vec![format!("{path}: {error}")]);
    let mut causes: BTreeMap<String, Option<String>> = stops(&read("crates/weir-plugin/src/stop.rs")?);
    causes.extend(refusals(&read("crates/weir-proto/src/request.rs")?, "Reject::"));
    let responses = refusals(&read("crates/weir-proto/src/h1/response.rs")?, "BadResponse::");
    causes.extend(responses.into_keys().map(|cause| (cause, Some("502".to_owned()))));
    let openings = refusals(&read("crates/weir-proto/src/mqtt.rs")?, "BadConnect::");
    causes.extend(openings.into_keys().map(|cause| (cause, Some("400".to_owned()))));
    causes.extend(counted(&read("crates/weir-gateway/src/connection/h2.rs")?));
    if causes.len() < 40 {
        return Err(vec![format!("{PAGE}: only {} causes were found in the code; were they moved?", causes.len())]);
    }
    let page = read(PAGE)?;
    let lacks = |(cause, status): &(String, Option<String>)| {
        let status = status.as_deref().unwrap_or("none");
        let has = |row: &str| row.starts_with(&format!("| {status} ")) && row.contains(&format!("`{cause}`"));
        !page.lines().any(has)
    };
    let missing = causes.into_iter().filter(lacks).map(|(cause, status)| {
        format!("{PAGE} has no row `| {} |` with the cause `{cause}`", status.as_deref().unwrap_or("none"))
    });
    let problems: Problems = missing.collect();
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// `=> (404, "no_route", ...`: what ends exchanges, with its status.
fn stops(source: &str) -> BTreeMap<String, Option<String>> {
    let rows = source.lines().filter_map(|line| line.split_once("=> (")?.1.split_once(", \""));
    let rows = rows.filter_map(|(status, rest)| Some((status, rest.split_once('"')?.0)));
    rows.filter(|(status, cause)| status.len() == 3 && !cause.is_empty())
        .map(|(status, cause)| (cause.to_owned(), Some(status.to_owned())))
        .collect()
}

/// `Kind::A | Kind::B => 400` and `Kind::A => "bad_a"`: one gives the status, the other the cause.
fn refusals(source: &str, kind: &str) -> BTreeMap<String, Option<String>> {
    let (mut causes, mut statuses) = (Vec::new(), BTreeMap::new());
    for line in source.lines().map(str::trim).filter(|line| line.starts_with(kind)) {
        let Some((variants, value)) = line.trim_end_matches(',').split_once(" => ") else { continue };
        match value.strip_prefix('"') {
            Some(cause) => causes.push((variants.to_owned(), cause.trim_end_matches('"').to_owned())),
            None => statuses.extend(variants.split(" | ").map(|variant| (variant.to_owned(), value.to_owned()))),
        }
    }
    causes.into_iter().map(|(variant, cause)| (cause, statuses.get(&variant).cloned())).collect()
}

/// `errors.increment("flood")`: what is counted where there is no exchange that could be answered.
fn counted(source: &str) -> BTreeMap<String, Option<String>> {
    let found = source.match_indices("errors.increment(\"").map(|(at, found)| &source[at + found.len()..]);
    found.filter_map(|rest| Some((rest.split_once('"')?.0.to_owned(), None))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_found_with_their_statuses() {
        let stops = stops("Stop::A => (404, \"no_route\", Client),\nStop::B | Stop::C => (0, \"\", Policy),");
        assert_eq!(stops.into_iter().collect::<Vec<_>>(), [("no_route".to_owned(), Some("404".to_owned()))]);
        let refusals = refusals("R::A | R::B => 400,\nR::C => 431,\nR::A => \"bad_a\",\nR::C => \"c\",", "R::");
        let found: Vec<_> = refusals.iter().map(|(cause, status)| (&**cause, status.as_deref())).collect();
        assert_eq!(found, [("bad_a", Some("400")), ("c", Some("431"))]);
        assert_eq!(counted("x.errors.increment(\"flood\");").len(), 1);
    }
}
