//! Which requests of a log are sent.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::findings::{RehearsalFindings, RehearsalTotals};
use crate::log::{LogLine, RecordedRequest};
use crate::replay::replayed::ReplayedRequest;
use crate::replay::{Distinct, RehearsalPlan};
use crate::secrets;

/// The most requests that are remembered to send each once. Repeats of later ones are sent.
const MAX_REMEMBERED: usize = 1_000_000;
/// The statuses with which a gateway refuses a request, with those of nginx for its own reasons. Such a request may be an attack,
/// and be let through from the place of the rehearsal.
const REFUSALS: [u16; 11] = [400, 401, 403, 405, 407, 421, 429, 444, 495, 496, 497];
/// A part of the content.
const PARTIAL: u16 = 206;

/// A request with its status and time in the log.
pub(super) type ChosenRequest = (ReplayedRequest, Option<u16>, Option<i64>);

pub(super) struct RequestChoice<'a> {
    plan: &'a RehearsalPlan,
    /// Where the log has no host.
    usual_host: &'a str,
    /// Hashes of what was chosen.
    seen: HashSet<u64>,
}

impl<'a> RequestChoice<'a> {
    pub(super) fn new(plan: &'a RehearsalPlan, usual_host: &'a str) -> RequestChoice<'a> {
        RequestChoice { plan, usual_host, seen: HashSet::new() }
    }

    /// The request of a line, if it is to be sent.
    pub(super) fn chosen(
        &mut self,
        (number, line): (u64, LogLine),
        findings: &mut RehearsalFindings,
    ) -> Option<ChosenRequest> {
        let totals = &mut findings.totals;
        totals.lines += 1;
        let recorded = match line {
            Err(problem) => {
                findings.add_problem(number, &problem);
                return None;
            }
            Ok(None) => {
                totals.without_request += 1;
                return None;
            }
            Ok(Some(recorded)) => recorded,
        };
        if let Some(count) = self.left_out(&recorded, totals) {
            *count += 1;
            return None;
        }
        let RecordedRequest { status, at_ms, .. } = recorded;
        let Some(request) = ReplayedRequest::of(recorded, self.plan, self.usual_host) else {
            totals.without_request += 1;
            return None;
        };
        let mut hasher = DefaultHasher::new();
        request.identity().hash(&mut hasher);
        let hash = hasher.finish();
        if self.plan.distinct == Distinct::Once && self.seen.contains(&hash) {
            totals.repeated += 1;
            return None;
        }
        if self.seen.len() < MAX_REMEMBERED {
            self.seen.insert(hash);
        }
        if !(totals.sent + totals.not_sampled).is_multiple_of(self.plan.sample) {
            totals.not_sampled += 1;
            return None;
        }
        Some((request, status, at_ms))
    }

    /// What counts the requests that are left out like this one.
    fn left_out<'t>(&self, recorded: &RecordedRequest, totals: &'t mut RehearsalTotals) -> Option<&'t mut u64> {
        let RehearsalPlan { methods, excluded, with_refused, with_credentials, .. } = self.plan;
        let path = recorded.target.split('?').next().unwrap_or_default();
        let has_range = || recorded.fields.iter().any(|(name, _)| name == "range");
        if !methods.is_empty() && !methods.contains(&recorded.method) {
            return Some(&mut totals.other_methods);
        }
        if excluded.iter().any(|pattern| matches(pattern, path)) {
            return Some(&mut totals.excluded);
        }
        if !with_refused && recorded.status.is_some_and(|status| REFUSALS.contains(&status)) {
            return Some(&mut totals.refused);
        }
        if !with_credentials && secrets::has_secret(&recorded.target) {
            return Some(&mut totals.with_secrets);
        }
        (recorded.status == Some(PARTIAL) && !has_range()).then_some(&mut totals.partial)
    }
}

/// Whether a text is of a pattern in which `*` stands for any text.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((begin, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(begin) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let end = parts.pop().unwrap_or_default();
    for part in parts {
        match text.find(part) {
            Some(at) => text = &text[at + part.len()..],
            None => return false,
        }
    }
    text.ends_with(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> RehearsalPlan {
        RehearsalPlan { excluded: vec!["/logout*".to_owned()], ..RehearsalPlan::of_tests() }
    }

    fn is_chosen(plan: &RehearsalPlan, target: &str, status: u16, field: &str) -> bool {
        let recorded = RecordedRequest {
            method: "GET".to_owned(),
            target: target.to_owned(),
            status: Some(status),
            fields: vec![(field.to_owned(), "bytes=0-1".to_owned())],
            ..RecordedRequest::default()
        };
        RequestChoice::new(plan, "a").chosen((1, Ok(Some(recorded))), &mut RehearsalFindings::default()).is_some()
    }

    #[test]
    fn requests_that_were_refused_or_have_secrets_are_left_out() {
        let usual = plan();
        assert!(is_chosen(&usual, "/a?b=c", 200, "x") && is_chosen(&usual, "/a", 404, "x"));
        for status in [400, 401, 403, 429] {
            assert!(!is_chosen(&usual, "/a", status, "x"), "{status}");
        }
        assert!(!is_chosen(&usual, "/a?token=c", 200, "x") && !is_chosen(&usual, "/logout/all?b", 200, "x"));
        assert!(!is_chosen(&usual, "/a", 206, "x") && is_chosen(&usual, "/a", 206, "range"));
        let told = RehearsalPlan { with_refused: true, with_credentials: true, ..plan() };
        assert!(is_chosen(&told, "/a?token=c", 403, "x"));
    }

    #[test]
    fn patterns_of_paths_have_stars() {
        for (pattern, text, expected) in [
            ("/a", "/a", true),
            ("/a", "/a/b", false),
            ("/a*", "/a/b", true),
            ("*/delete", "/x/delete", true),
            ("*/delete*", "/x/delete/1", true),
            ("/a*b*c", "/a1b2c", true),
            ("/a*b*c", "/a1c", false),
            ("/ab*b", "/ab", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }
}
