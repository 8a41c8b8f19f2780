//! Rules about one figure, or one run behind it.

use super::{LatencyFrom, LintVerdict, RowEvidence, Severity};
use crate::{result::PacingKind, stats::littles_law};

/// Above this share of its processors, a role is saturated: sampling and scheduling take the rest.
const SATURATED: f64 = 0.95;
/// Above this share the target itself is the limit, which is what a throughput figure should show.
const TARGET_IS_LIMIT: f64 = 0.90;
/// Tolerance of laws that hold exactly for exact figures.
const ROUNDING: f64 = 1.05;
/// Sequential answers per second on one connection: a round trip takes several microseconds even within a machine.
const MOST_PER_CONNECTION: f64 = 1e6;
/// Answers per second from one load tool, over any number of connections: their heads alone would be 15 Gbit/s.
const MOST_PER_TOOL: f64 = 1e8;

pub(super) fn judge(row: &RowEvidence) -> Vec<LintVerdict> {
    // Without a single answer, the findings of all other rules would be consequences.
    if let Some((severity, words)) = nothing_measured(row) {
        let rule = "nothing-measured".to_owned();
        return vec![LintVerdict { rule, severity, subject: Some(row.name.clone()), words, runs: 1 }];
    }
    let rules: [(&str, Rule); 32] = [
        ("littles-law", little),
        ("in-flight-count", in_flight),
        ("impossible-count", impossible_count),
        ("run-too-short", run_too_short),
        ("edges-count", edges_count),
        ("unreachable-rate", unreachable_rate),
        ("workers-share", workers_share),
        ("generator-late", generator_late),
        ("generator-saturated", generator_saturated),
        ("backend-saturated", backend_saturated),
        ("upstream-not-reused", upstream_not_reused),
        ("configuration-not-loaded", configuration_not_loaded),
        ("count-not-reached", count_not_reached),
        ("stolen-cpu", stolen_cpu),
        ("busy-machine", busy_machine),
        ("ports-exhausted", ports_exhausted),
        ("backlog-overflow", backlog_overflow),
        ("not-2xx", not_2xx),
        ("checks-failed", checks_failed),
        ("not-all-held", not_all_held),
        ("not-all-open", not_all_open),
        ("errors", errors),
        ("errors-without-failed-connections", errors_without_failed_connections),
        ("target-errors", target_errors),
        ("processes-ended", processes_ended),
        ("oom-kills", oom_kills),
        ("records-lost", records_lost),
        ("records-pending", records_pending),
        ("account-disagrees", account_disagrees),
        ("stand-in", stand_in),
        ("coordinated-omission", coordinated_omission),
        ("averages-only", averages_only),
    ];
    rules
        .iter()
        .filter_map(|(rule, check)| {
            let (severity, words) = check(row)?;
            Some(LintVerdict { rule: (*rule).to_owned(), severity, subject: Some(row.name.clone()), words, runs: 1 })
        })
        .collect()
}

type RuleOutcome = Option<(Severity, String)>;
type Rule = fn(&RowEvidence) -> RuleOutcome;

fn nothing_measured(row: &RowEvidence) -> RuleOutcome {
    // Idle connections carry no requests.
    if row.held.is_some() || row.completed? > 0 {
        return None;
    }
    let failed = row.failed_connections.filter(|failed| *failed > 0);
    let connections = failed.map_or(String::new(), |failed| format!("; {failed} connections could not be opened"));
    let words = match row.sent? {
        0 => format!("nothing was sent in the measured part{connections}: there is no figure to show"),
        sent => format!("{sent} requests were sent and none was answered{connections}: there is no figure to show"),
    };
    Some((Severity::Invalid, words))
}

fn little(row: &RowEvidence) -> RuleOutcome {
    let (rps, mean_ms) = (row.rps?, row.mean_ms?);
    // Latency from when a request was due includes waiting for a connection, which is not in flight.
    if row.latency_from == Some(LatencyFrom::Due) && row.pacing == Some(PacingKind::Open) {
        return None;
    }
    let slots = f64::from(row.connections?) * f64::from(row.streams.unwrap_or(1));
    let law = littles_law(rps, mean_ms, slots);
    // Requests of the measured part may be answered until the drain ends, so the connections were in use for that long.
    let drained = 1.0 + row.drain_s.zip(row.duration_s).map_or(0.0, |(drain_s, duration_s)| drain_s / duration_s);
    (law.in_flight > slots * ROUNDING * drained).then(|| {
        let words = format!(
            "{rps:.0} requests/s x {mean_ms} ms are {:.1} requests in flight, on {slots:.0} connections; by Little's \
             law, {slots:.0} connections carry at most {:.0} requests/s at that latency",
            law.in_flight, law.highest_rps
        );
        (Severity::Invalid, words)
    })
}

fn in_flight(row: &RowEvidence) -> RuleOutcome {
    let (rps, mean_ms, counted) = (row.rps?, row.mean_ms?, row.in_flight?);
    let implied = rps * mean_ms / 1e3;
    if row.drain_s.unwrap_or(0.0) > row.duration_s.unwrap_or(f64::INFINITY) * 0.05 {
        return None;
    }
    // Below one request in flight, the count is too coarse to compare.
    let apart = (implied / counted).max(counted / implied);
    (row.latency_from == Some(LatencyFrom::Sent) && counted > 1.0 && apart > 1.2).then(|| {
        let words = format!(
            "{counted:.1} requests were in flight on average, but throughput and latency imply {implied:.1}: some began \
             before the measured part or ended after it, so the latencies leave out the longest waits; measure for longer"
        );
        (Severity::Invalid, words)
    })
}

fn impossible_count(row: &RowEvidence) -> RuleOutcome {
    let rps = row.rps?;
    let slots = row.connections.map(|connections| f64::from(connections) * f64::from(row.streams.unwrap_or(1)));
    let most = slots.map_or(MOST_PER_TOOL, |slots| (slots * MOST_PER_CONNECTION).min(MOST_PER_TOOL));
    (rps > most).then(|| {
        let words = format!(
            "{rps:.0} requests/s were counted, and at most {most:.0} are possible: the tool's counts are wrong, and so is \
             everything computed from them"
        );
        (Severity::Invalid, words)
    })
}

/// Above this share of the measured part, the mean latency makes its beginning and end count.
const LONGEST_WAIT: f64 = 0.1;
/// The most by which the first and the last interval may move a figure.
const EDGES_MATTER: f64 = 0.03;

fn run_too_short(row: &RowEvidence) -> RuleOutcome {
    let (mean_ms, duration_s) = (row.mean_ms?, row.duration_s?);
    let part_s = duration_s / f64::from(row.turns.unwrap_or(1).max(1));
    let share = mean_ms / 1e3 / part_s;
    (share > LONGEST_WAIT && !row.backend_limits && !row.events).then(|| {
        let words = format!(
            "a request takes {:.0} % of a measurement of {part_s:.1} s on average, so its beginning and end, when fewer requests \
             are answered, are a part of the figure; measure for {:.0} s or longer",
            share * 100.0,
            (mean_ms / 1e3 / LONGEST_WAIT).ceil()
        );
        (Severity::Warning, words)
    })
}

fn edges_count(row: &RowEvidence) -> RuleOutcome {
    let moved = row.edges_move.filter(|moved| moved.abs() > EDGES_MATTER && !row.backend_limits && !row.events)?;
    let words = format!(
        "the first and the last interval {} the throughput by {:.1} %: measure for longer, or with a longer warm-up",
        if moved > 0.0 { "raise" } else { "lower" },
        moved.abs() * 100.0
    );
    Some((Severity::Warning, words))
}

fn unreachable_rate(row: &RowEvidence) -> RuleOutcome {
    let (asked, got) = (row.target_rps?, row.rps?);
    (got < asked * 0.95 && !row.backend_limits).then(|| {
        let latency = match row.latency_from {
            Some(LatencyFrom::Sent) => "",
            _ => {
                "; the backlog grows during the whole run, so the latency from the scheduled time depends on the requested \
                  rate and the length of the run, not on the target"
            }
        };
        (Severity::Invalid, format!("{asked:.0} requests/s were requested and {got:.0} were carried{latency}"))
    })
}

fn workers_share(row: &RowEvidence) -> RuleOutcome {
    let (workers, cpus) = (row.workers?, row.target_cpus?);
    (workers > cpus).then(|| {
        let words = format!(
            "{workers} workers share {cpus} of the processors, as the load needs the rest: the figure is not the throughput \
             of {workers} processors"
        );
        (Severity::Warning, words)
    })
}

fn generator_late(row: &RowEvidence) -> RuleOutcome {
    if row.pacing != Some(PacingKind::Open) {
        return None;
    }
    let share = row.on_time_share?;
    let missed = row.missed.unwrap_or(0);
    if share >= 0.999 {
        return None;
    }
    let severity = if share < 0.99 { Severity::Invalid } else { Severity::Warning };
    let words = format!(
        "the generator fell behind its schedule: {:.2} % of requests were sent more than 1 ms late although a connection \
         was free, {missed} were never sent",
        (1.0 - share) * 100.0
    );
    Some((severity, words))
}

/// The shares of generator and backend, and the decisive one: the sum if they share processors, otherwise the higher one.
fn driving_cpu(row: &RowEvidence) -> (f64, f64, f64) {
    let (generator, backend) = (row.generator_cpu.unwrap_or(0.0), row.backend_cpu.unwrap_or(0.0));
    let busiest = if row.generator_with_backend { generator + backend } else { generator.max(backend) };
    (generator, backend, busiest)
}

fn target_is_limit(row: &RowEvidence) -> bool {
    row.target_cpu.is_some_and(|share| share >= TARGET_IS_LIMIT)
}

fn generator_saturated(row: &RowEvidence) -> RuleOutcome {
    let (generator, backend, busiest) = driving_cpu(row);
    let limit = !row.direct && busiest >= SATURATED && generator >= backend && !target_is_limit(row);
    limit.then(|| {
        let target = row.target_cpu.map_or("unknown".to_owned(), |share| format!("{:.0} %", share * 100.0));
        let words = format!(
            "the generator had no processor time left (it used {:.0} %, the backend {:.0} %) while the target used {target} \
             of its own: the throughput is a lower bound for the target; its CPU time per request is valid",
            generator * 100.0,
            backend * 100.0
        );
        (Severity::Invalid, words)
    })
}

fn backend_saturated(row: &RowEvidence) -> RuleOutcome {
    if row.backend_was_limit == Some(true) {
        let words = "the backend was the bottleneck, as the publication says itself: the figure is that of the backend"
            .to_owned();
        return Some((Severity::Invalid, words));
    }
    let (generator, backend, busiest) = driving_cpu(row);
    let limit =
        !row.direct && busiest >= SATURATED && backend > generator && !target_is_limit(row) && !row.backend_limits;
    limit.then(|| {
        let words = format!(
            "the backend had no processor time left (it used {:.0} %, the generator {:.0} %): the throughput is that of the \
             backend, a lower bound for the target",
            backend * 100.0,
            generator * 100.0
        );
        (Severity::Invalid, words)
    })
}

fn upstream_not_reused(row: &RowEvidence) -> RuleOutcome {
    if row.upstream_keepalive == Some(false) {
        let words = "the target is configured without upstream keep-alive: every request opens a connection to the \
                     backend, so the figure shows this handicap, not the target"
            .to_owned();
        return Some((Severity::Invalid, words));
    }
    let (connects, completed) = (row.upstream_connects?, row.completed?);
    if row.direct || completed < 100 {
        return None;
    }
    // A target may open one connection per client; further ones replace connections that it closed.
    let opened_again = connects.saturating_sub(u64::from(row.connections.unwrap_or(0)));
    let share = opened_again as f64 / completed as f64;
    (share > 0.05).then(|| {
        let words = format!(
            "the target opened {connects} connections to its upstreams for {completed} requests: connections are not \
             reused, so the figure is mainly the cost of connecting"
        );
        (if share > 0.5 { Severity::Invalid } else { Severity::Warning }, words)
    })
}

fn configuration_not_loaded(row: &RowEvidence) -> RuleOutcome {
    if let Some(error) = &row.configuration_error {
        return Some((Severity::Invalid, format!("the target refuses its configuration: {error}")));
    }
    (row.configuration_loaded == Some(false))
        .then(|| (Severity::Invalid, "the target did not load the configuration that was shown".to_owned()))
}

fn count_not_reached(row: &RowEvidence) -> RuleOutcome {
    let asked = row.asked_count?;
    let completed = match (row.completed, row.rps, row.duration_s) {
        (Some(completed), _, _) => completed,
        (None, Some(rps), Some(duration_s)) => (rps * duration_s) as u64,
        _ => return None,
    };
    ((completed as f64) < asked as f64 * 0.99).then(|| {
        let when = row
            .duration_s
            .map_or(String::new(), |s| format!("; in {s:.0} s that count needs {:.0} requests/s", asked as f64 / s));
        (
            Severity::Warning,
            format!("{asked} requests were planned and {completed} sent: the time limit came first{when}"),
        )
    })
}

fn stolen_cpu(row: &RowEvidence) -> RuleOutcome {
    let share = row.steal_share?;
    let severity = match share {
        share if share > 0.05 => Severity::Invalid,
        share if share > 0.01 => Severity::Warning,
        _ => return None,
    };
    let words = format!(
        "the hypervisor gave {:.1} % of the processor time to others: a burstable or overbooked machine",
        share * 100.0
    );
    Some((severity, words))
}

fn busy_machine(row: &RowEvidence) -> RuleOutcome {
    let share = row.others_cpu?;
    let severity = match share {
        share if share > 0.10 => Severity::Invalid,
        share if share > 0.03 => Severity::Warning,
        _ => return None,
    };
    let words = format!(
        "processes outside the measurement used {:.0} % of the machine's processor time: stop them and run it again",
        share * 100.0
    );
    Some((severity, words))
}

fn ports_exhausted(row: &RowEvidence) -> RuleOutcome {
    let count = row.out_of_ports.filter(|count| *count > 0)?;
    let words = format!(
        "the generator could not open {count} connections for lack of ports or file descriptors: see `weir bench doctor`"
    );
    Some((Severity::Invalid, words))
}

fn backlog_overflow(row: &RowEvidence) -> RuleOutcome {
    let count = row.listen_overflows.filter(|count| *count > 0)?;
    let words = format!(
        "{count} connections were dropped because a listen queue was full: raise net.core.somaxconn and the backlog; \
         their clients waited a second or more before they repeated the SYN"
    );
    Some((Severity::Warning, words))
}

fn not_2xx(row: &RowEvidence) -> RuleOutcome {
    let (count, completed) = (row.not_2xx.filter(|count| *count > 0 && !row.backend_limits)?, row.completed?);
    let share = count as f64 / completed.max(1) as f64;
    let words = format!(
        "{count} of {completed} responses had another status than 2xx, or than those that the scenario expects: an error response \
         costs less than a normal response"
    );
    Some((if share > 0.001 { Severity::Invalid } else { Severity::Warning }, words))
}

/// Responses with other content than expected may cost less, and what was measured is not what was meant.
fn checks_failed(row: &RowEvidence) -> RuleOutcome {
    let (count, completed) = (row.failed_checks.filter(|count| *count > 0)?, row.completed?);
    let share = count as f64 / completed.max(1) as f64;
    let words = format!("{count} of {completed} responses failed a check of their content");
    Some((if share > 0.001 { Severity::Invalid } else { Severity::Warning }, words))
}

/// Above this share of its limit of open files, a process has reached it: the rest is reserved for other purposes.
const FILES_ARE_LIMIT: f64 = 0.9;

/// Reports which side's limit prevented idle connections. If it was the target's, the held connections and their memory are valid
/// figures.
fn not_all_held(row: &RowEvidence) -> RuleOutcome {
    let (held, asked) = (row.held?, u64::from(row.connections?));
    if held >= asked {
        return None;
    }
    let who = if row.direct { "backend" } else { "target" };
    let (severity, why) = match (row.out_of_ports.unwrap_or(0), row.target_files.zip(row.target_files_limit)) {
        (local, _) if local > 0 => (
            Severity::Invalid,
            format!("the generator had no port or no open file for {local} connections: increase load.processes"),
        ),
        (_, Some((most, limit))) if most as f64 >= limit as f64 * FILES_ARE_LIMIT => {
            let why = format!("the {who} had {most} open files, and the limit for one of its processes is {limit}");
            (Severity::Warning, why)
        }
        (_, Some((most, limit))) if !row.target_files_grew => {
            let why = format!(
                "the {who} stopped at an internal limit, with {most} open files and a limit of {limit} for one process"
            );
            (Severity::Warning, why)
        }
        _ => (Severity::Invalid, "the run ended before all connections were opened; measure for longer".to_owned()),
    };
    let closed = row.closed_idle.filter(|closed| *closed > 0);
    let closed =
        closed.map_or(String::new(), |closed| format!("; it closed {closed} idle connections to accept others"));
    Some((severity, format!("{held} of {asked} connections were held: {why}{closed}")))
}

/// Streams that were not open at the start: fewer events were delivered than the row says, and opening the rest was measured.
fn not_all_open(row: &RowEvidence) -> RuleOutcome {
    let (open, asked) = (row.open_at_start?, u64::from(row.connections?));
    (open < asked).then(|| {
        let words = format!(
            "{open} of {asked} streams were open when the clock started: the others were opened while the row was measured, and \
             events that were due meanwhile count as lost"
        );
        (if open * 100 < asked * 99 { Severity::Invalid } else { Severity::Warning }, words)
    })
}

fn errors(row: &RowEvidence) -> RuleOutcome {
    // Refused idle connections are reported by another rule.
    if row.held.zip(row.connections).is_some_and(|(held, asked)| held < u64::from(asked)) {
        return None;
    }
    let share = row.error_share.filter(|share| *share > 0.0)?;
    if row.events {
        return Some((
            Severity::Note,
            format!("{} while the row's events or changes happened", failed_words(row, share)),
        ));
    }
    if only_unanswered(row) {
        let words = "of the requests were not answered in time: the row asks for more than its backend can do";
        return Some((Severity::Note, format!("{:.3} % {words}", share * 100.0)));
    }
    let severity = if share > 0.01 { Severity::Invalid } else { Severity::Warning };
    Some((severity, failed_words(row, share)))
}

/// The share of the requests that failed, or were never sent because no connection became free.
fn failed_words(row: &RowEvidence, share: f64) -> String {
    let due = row.sent.unwrap_or(0) + row.missed.unwrap_or(0);
    let never_sent = row.missed.filter(|_| due > 0).map_or(0.0, |missed| missed as f64 / due as f64);
    let failed = (share - never_sent).max(0.0);
    let words = |share: f64, what: &str| format!("{:.3} % of the requests {what}", share * 100.0);
    let waited = "were never sent, because no connection became free in time";
    match (failed * due.max(1) as f64 >= 0.5, never_sent > 0.0) {
        (true, true) => format!("{}, and {:.3} % {waited}", words(failed, "failed"), never_sent * 100.0),
        (false, true) => words(never_sent, waited),
        _ => words(share, "failed"),
    }
}

/// All that failed are requests that waited too long, or that no connection was free for, in a row that overloads its backend.
fn only_unanswered(row: &RowEvidence) -> bool {
    row.backend_limits
        && row.error_share.zip(row.unanswered_share).is_some_and(|(failed, unanswered)| failed <= unanswered)
}

fn errors_without_failed_connections(row: &RowEvidence) -> RuleOutcome {
    let (share, failed) = (row.error_share?, row.failed_connections?);
    (share > 0.01 && failed == 0 && !row.events && !only_unanswered(row)).then(|| {
        let words = format!(
            "no connection failed and {:.2} % of the messages did: a table that shows only failed connections hides them",
            share * 100.0
        );
        (Severity::Warning, words)
    })
}

fn target_errors(row: &RowEvidence) -> RuleOutcome {
    let first = row.target_errors.first()?;
    let words = format!("the target logged {} errors, the first: {first}", row.target_errors.len());
    Some((Severity::Warning, words))
}

fn processes_ended(row: &RowEvidence) -> RuleOutcome {
    // A reload replaces processes.
    let count = Some(row.processes_ended).filter(|count| *count > 0 && !row.events)?;
    let words = format!(
        "{count} processes of the target ended during the measurement, by a crash or because others replaced them: their \
         connections were closed, and new processes begin with empty caches"
    );
    Some((Severity::Warning, words))
}

fn oom_kills(row: &RowEvidence) -> RuleOutcome {
    let words = format!(
        "the kernel killed {} processes of this machine during the measurement, because it or a group of processes had no memory left",
        row.oom_kills
    );
    // Others' groups may be at their limits, which says nothing of the target.
    let severity = if row.processes_ended > 0 { Severity::Invalid } else { Severity::Warning };
    (row.oom_kills > 0).then_some((severity, words))
}

fn records_lost(row: &RowEvidence) -> RuleOutcome {
    let share = row.records_lost.filter(|share| *share > 0.0)?;
    let words = format!(
        "{:.2} % of the requests are not in the target's log: records that are not written cost nothing, so the row does not \
         show the cost of logging",
        share * 100.0
    );
    Some((if share > 0.01 { Severity::Invalid } else { Severity::Warning }, words))
}

fn records_pending(row: &RowEvidence) -> RuleOutcome {
    let words = format!(
        "{} records were still in the target when the lab stopped waiting: the destination takes fewer records than the target \
         sends, so the row does not show the whole cost of delivering them",
        row.records_pending
    );
    (row.records_pending > 0).then_some((Severity::Warning, words))
}

fn account_disagrees(row: &RowEvidence) -> RuleOutcome {
    let words = row.account_disagrees.as_ref()?;
    Some((Severity::Warning, format!("the target's account of its records does not agree with the run: {words}")))
}

fn stand_in(row: &RowEvidence) -> RuleOutcome {
    let words = format!("{}: the cost is shown, but the behaviour is not the same", row.stand_ins.join("; "));
    (!row.stand_ins.is_empty()).then_some((Severity::Note, words))
}

fn coordinated_omission(row: &RowEvidence) -> RuleOutcome {
    if row.pacing != Some(PacingKind::Closed) || (row.mean_ms.is_none() && row.p99_ms.is_none()) {
        return None;
    }
    let Some(corrected) = row.corrected_p99_ms else {
        let words =
            "a closed loop sends nothing while it waits, so its latencies leave out the effect of a stall on requests \
                     that were not sent (coordinated omission); the size of this effect cannot be determined here"
                .to_owned();
        return Some((Severity::Warning, words));
    };
    let p99 = row.p99_ms?;
    (corrected > p99 * 3.0).then(|| {
        let words = format!(
            "the closed loop hid stalls: the 99th percentile is {p99:.3} ms, and would be {corrected:.3} ms with the requests \
             that were not sent during the stalls (coordinated omission); measure latency in an open loop: a row with a rate, or `weir load -R`"
        );
        (Severity::Note, words)
    })
}

fn averages_only(row: &RowEvidence) -> RuleOutcome {
    (row.mean_ms.is_some() && row.p50_ms.is_none() && row.p95_ms.is_none() && row.p99_ms.is_none()).then(|| {
        let words = "latency is an average only: it does not show the slow requests, which users notice".to_owned();
        (Severity::Warning, words)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_were_never_sent_are_not_called_failed() {
        let words = |share: f64, missed: u64, events: bool| {
            let row = RowEvidence {
                error_share: Some(share),
                sent: Some(1_000 - missed),
                missed: Some(missed),
                events,
                ..RowEvidence::default()
            };
            errors(&row).map(|(_, words)| words).unwrap_or_default()
        };
        let never_sent = "were never sent, because no connection became free in time";
        assert_eq!(words(0.101, 101, false), format!("10.100 % of the requests {never_sent}"));
        assert_eq!(words(0.005, 0, false), "0.500 % of the requests failed");
        let both = format!("0.500 % of the requests failed, and 10.100 % {never_sent}");
        assert_eq!(words(0.106, 101, true), format!("{both} while the row's events or changes happened"));
        assert_eq!(words(0.0, 0, false), "");
    }
}
