//! Explains which route takes a request, and why.

use super::host::Host;
use super::{Lookup, LookupStep, RouteTable, RuleEntry, RuleMismatch};

/// A rule whose path matches a request, and the outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The number of the route.
    pub route: u32,
    /// The `uri` that matches, in canonical form.
    pub uri: String,
    /// The host that matches; `None` for a rule without hosts. With [`CandidateVerdict::Host`], the list of its hosts.
    pub host: Option<String>,
    pub priority: i64,
    pub verdict: CandidateVerdict,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CandidateVerdict {
    /// The request is sent to this route.
    Chosen,
    /// It would take the request, but the chosen one comes first, for this reason.
    Outranked(TieBreak),
    /// None of its hosts is the host of the request.
    Host,
    /// The part of its `uri` after the first `*` does not match.
    Uri,
    /// It does not take the method.
    Method,
    /// It is not a route of the listener that the request belongs to.
    Listener,
    /// The client's address is in none of its `remote_addrs`.
    RemoteAddr,
    /// This condition of its `vars` does not hold.
    Vars(String),
    /// Its set of paths does not contain this one at present.
    Among,
}

/// Why the chosen candidate comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TieBreak {
    /// Its host is more specific.
    Host,
    /// Its path is more specific: exact, or a longer prefix.
    Path,
    Priority,
    /// The same path and priority, but a longer `uri`.
    UriLength,
    /// It comes first in the configuration.
    Order,
}

pub(super) fn explain(table: &RouteTable, lookup: &Lookup<'_>) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    let mut chosen: Option<(LookupStep<'_>, &RuleEntry)> = None;
    table.any_match(lookup, |step| {
        for entry in step.entries {
            let verdict = match (table.refusal(entry, lookup), chosen) {
                (Some(refusal), _) => refused(entry, refusal, lookup),
                // The chosen rule again, under another of its uris.
                (None, Some((_, winner))) if winner.route == entry.route => continue,
                (None, Some(winner)) => CandidateVerdict::Outranked(advantage(winner, (step, entry))),
                (None, None) => {
                    chosen = Some((step, entry));
                    CandidateVerdict::Chosen
                }
            };
            candidates.push(Candidate {
                route: entry.route,
                uri: entry.rule.uris[entry.uri as usize].text().to_owned(),
                host: step.paths.host.as_ref().map(Host::text),
                priority: entry.rule.priority,
                verdict,
            });
        }
        false
    });
    candidates.extend(of_other_hosts(table, lookup));
    candidates
}

fn refused(entry: &RuleEntry, refusal: RuleMismatch, lookup: &Lookup<'_>) -> CandidateVerdict {
    match refusal {
        RuleMismatch::Pattern => CandidateVerdict::Uri,
        RuleMismatch::Method => CandidateVerdict::Method,
        RuleMismatch::Listener => CandidateVerdict::Listener,
        RuleMismatch::RemoteAddr => CandidateVerdict::RemoteAddr,
        RuleMismatch::Among => CandidateVerdict::Among,
        RuleMismatch::Vars => {
            let vars = entry.rule.vars.as_ref();
            CandidateVerdict::Vars(vars.and_then(|vars| vars.unmet(lookup.variables)).unwrap_or_default())
        }
    }
}

fn advantage(winner: (LookupStep<'_>, &RuleEntry), loser: (LookupStep<'_>, &RuleEntry)) -> TieBreak {
    let length = |entry: &RuleEntry| entry.rule.uris[entry.uri as usize].text().len();
    if !std::ptr::eq(winner.0.paths, loser.0.paths) {
        TieBreak::Host
    } else if !std::ptr::eq(winner.0.entries, loser.0.entries) {
        TieBreak::Path
    } else if winner.1.rule.priority != loser.1.rule.priority {
        TieBreak::Priority
    } else if length(winner.1) != length(loser.1) {
        TieBreak::UriLength
    } else {
        TieBreak::Order
    }
}

/// The rules whose path matches, but none of whose hosts does.
fn of_other_hosts(table: &RouteTable, lookup: &Lookup<'_>) -> impl Iterator<Item = Candidate> {
    table.rules.iter().filter_map(|(_, rule)| {
        if rule.hosts.is_empty() || rule.hosts.iter().any(|host| host.matches(lookup.host)) {
            return None;
        }
        let uri = rule.uris.iter().find(|uri| uri.matches(lookup.path))?;
        let hosts: Vec<String> = rule.hosts.iter().map(Host::text).collect();
        Some(Candidate {
            route: rule.route,
            uri: uri.text().to_owned(),
            host: Some(hosts.join(", ")),
            priority: rule.priority,
            verdict: CandidateVerdict::Host,
        })
    })
}
