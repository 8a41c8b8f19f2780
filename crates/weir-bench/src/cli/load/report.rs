//! The result of one run as readable text.

use std::fmt::Write as _;

use super::verdict::verdict;
use crate::engine::{
    AnswerCheckTally, LatencyHistogram, LoadPlan, LoadResult, LoadTally, Pacing, Rate, RequestTemplate, Spacing, Think,
    status_words,
};

/// The percentiles of the table.
const SHARES: [(&str, f64); 7] = [
    ("50 %", 0.5),
    ("75 %", 0.75),
    ("90 %", 0.9),
    ("99 %", 0.99),
    ("99.9 %", 0.999),
    ("99.99 %", 0.9999),
    ("max", 1.0),
];

/// The measurements of a run as text.
pub fn report(plan: &LoadPlan, result: &LoadResult) -> String {
    let mut text = String::new();
    let total = &result.total;
    let urls: Vec<String> = plan.requests.iter().map(asked).collect();
    let _ = writeln!(
        text,
        "{} for {}: {}, {} on {}, {}\n",
        urls.join(" "),
        time(result.measured_ns as f64),
        plan.protocol.name(),
        counted(plan.connections as u64, "connection"),
        counted(plan.threads as u64, "thread"),
        pacing(&plan.pacing)
    );
    let lines = answers(plan, result)
        .into_iter()
        .chain(steps(plan, result))
        .chain(transport(plan, result))
        .chain([generator(result)]);
    for (name, value) in lines {
        let _ = writeln!(text, "{name:<14}{value}");
    }
    if total.completed > 0 {
        let _ = writeln!(text, "\n{}", percentiles(&total.latency, &total.service_time));
    } else {
        let _ = writeln!(text, "\nNo latency: nothing was answered.\n");
    }
    for request in &result.requests {
        let tally = &request.tally;
        let _ = writeln!(
            text,
            "{}: {} answered, {} without answer, latency 50 % {}, 99 % {}",
            request.name,
            thousands(tally.completed),
            thousands(tally.errors.sum() + tally.missed),
            time(tally.latency.quantile(0.5) as f64),
            time(tally.latency.quantile(0.99) as f64)
        );
    }
    for check in result.flow.iter().flat_map(|flow| &flow.checks) {
        let _ = writeln!(text, "{}", check_line(check));
    }
    let sentences = verdict(plan, result);
    if sentences.is_empty() {
        let _ = writeln!(text, "Verdict: nothing was found in this run that weakens its figures.");
    }
    for sentence in sentences {
        let _ = writeln!(text, "Verdict: {sentence}");
    }
    text
}

/// The URL of a request, with the method of a call of gRPC.
fn asked(request: &RequestTemplate) -> String {
    match &request.grpc {
        Some(grpc) => format!("{}/{}", request.url.trim_end_matches('/'), grpc.call),
        None => request.url.clone(),
    }
}

/// A label and its text.
type ReportLine = (&'static str, String);

fn answers(plan: &LoadPlan, result: &LoadResult) -> Vec<ReportLine> {
    let total = &result.total;
    let (all, in_time) = (total.completed, result.counted_answers());
    let outside = if in_time < all { format!(" ({} came within the time)", thousands(in_time)) } else { String::new() };
    let mut lines = vec![("answered", format!("{}, {} per second{outside}", thousands(all), rate(result.rate())))];
    if plan.pacing.is_open() {
        let due = format!(
            "{}, {} per second; {} were sent late because no connection was free, {} were never sent",
            thousands(total.due),
            rate(result.offered_rate()),
            thousands(total.queued),
            thousands(total.missed)
        );
        lines.extend([("due", due), ("on schedule", on_schedule(total))]);
    }
    if !total.statuses.is_empty() {
        let statuses =
            total.statuses.iter().map(|(status, count)| format!("{}: {}", status_words(*status), thousands(*count)));
        lines.push(("statuses", statuses.collect::<Vec<_>>().join(", ")));
    }
    lines.push(("errors", causes(&total.errors.by_cause())));
    lines
}

/// The times of parts of requests, and of several together.
fn steps(plan: &LoadPlan, result: &LoadResult) -> Vec<ReportLine> {
    let middle_and_99 = |times: &LatencyHistogram| {
        format!("50 % {}, 99 % {}", time(times.quantile(0.5) as f64), time(times.quantile(0.99) as f64))
    };
    let mut lines = Vec::new();
    if let Some(times) = &result.total.first_byte {
        lines.push(("first byte", format!("{} after a request was sent", middle_and_99(times))));
    }
    if let Some(times) = &result.total.first_message {
        lines.push(("first message", format!("{} after a call was sent", middle_and_99(times))));
    }
    if result.total.messages > 0 {
        let messages = result.total.messages;
        let per_call = rate(messages as f64 / answered_calls(plan, result).max(1) as f64);
        lines.push(("messages", format!("{} received, {per_call} for each call", thousands(messages))));
    }
    if let Some(passes) = result.flow.as_ref().and_then(|flow| flow.passes.as_ref()) {
        let times = match passes.completed {
            0 => String::new(),
            _ => format!("; time of one {}", middle_and_99(&passes.time)),
        };
        let (completed, abandoned) = (thousands(passes.completed), thousands(passes.abandoned));
        lines.push(("passes", format!("{completed} through all requests, {abandoned} incomplete{times}")));
    }
    lines
}

/// How many calls of gRPC have ended with a status; a plan may have requests of HTTP beside them.
fn answered_calls(plan: &LoadPlan, result: &LoadResult) -> u64 {
    let named = plan.requests.iter().zip(&result.requests);
    match result.requests.as_slice() {
        [] => result.total.completed,
        _ => named.filter(|(request, _)| request.grpc.is_some()).map(|(_, named)| named.tally.completed).sum(),
    }
}

/// What came of a check.
fn check_line(check: &AnswerCheckTally) -> String {
    let AnswerCheckTally { request, check, passed, failed, example } = check;
    let (all, failed_count) = (thousands(passed + failed), thousands(*failed));
    match example {
        None => format!("Check: {request}: {check}: passed by {all}"),
        Some(example) => {
            format!("Check: {request}: {check}: failed by {failed_count} of {all}; for one of them {example}")
        }
    }
}

/// How punctually the requests of an open loop were sent.
fn on_schedule(total: &LoadTally) -> String {
    let share = |share: f64, percent: &str| match total.sent_within(share) {
        Some(ns) => format!("{percent} of requests were sent within {} of their scheduled time", time(ns as f64)),
        None => format!("less than {percent} of requests were sent without waiting for a connection"),
    };
    format!("{}; {}", share(0.99, "99 %"), share(0.999, "99.9 %"))
}

fn transport(plan: &LoadPlan, result: &LoadResult) -> [ReportLine; 3] {
    let (total, connections) = (&result.total, &result.connections);
    let received = format!(
        "{}, {} per second; sent {}{}",
        size(total.bytes_received as f64),
        size(total.bytes_received as f64 / total.completed.max(1) as f64 * result.rate()),
        size(total.bytes_sent as f64),
        // Of HTTP/2 and HTTP/3, heads are compressed with what came before, and have no size of their own.
        if plan.protocol.streams().is_some() { " (contents without heads)" } else { "" }
    );
    let tls = match &connections.tls_time {
        Some(times) => {
            format!(", of which TLS {} (99 %: {})", time(times.quantile(0.5) as f64), time(times.quantile(0.99) as f64))
        }
        None => String::new(),
    };
    let opened = format!(
        "{} opened in {} (99 %: {}){tls}, {} closed by the peer while idle; failed: {}",
        thousands(connections.opened),
        time(connections.connect_time.quantile(0.5) as f64),
        time(connections.connect_time.quantile(0.99) as f64),
        thousands(connections.closed_idle),
        causes(&connections.failed.by_cause())
    );
    let in_flight =
        format!("{:.2} on average, {} at most", result.generator.in_flight_mean, result.generator.in_flight_max);
    [("received", received), ("connections", opened), ("in flight", in_flight)]
}

fn generator(result: &LoadResult) -> ReportLine {
    let total = &result.total;
    let cpu = result.generator.cpu();
    let busy_ns = cpu.busy_ns() as f64 / total.completed.max(1) as f64;
    // The time in which it polls for work, which does not count, is of both kinds.
    let user = cpu.user_ns as f64 / (cpu.user_ns + cpu.system_ns).max(1) as f64;
    let line = format!(
        "{:.0} % busy, {} of processor time per answer ({} user, {} system); late by {} (99.9 %: {})",
        (result.generator_busy() * 100.0).min(100.0),
        time(busy_ns),
        time(busy_ns * user),
        time(busy_ns * (1.0 - user)),
        time(total.lag.quantile(0.5) as f64),
        time(total.lag.quantile(0.999) as f64)
    );
    ("generator", line)
}

fn percentiles(latency: &LatencyHistogram, service_time: &LatencyHistogram) -> String {
    let (latency, service_time) = (latency.as_hdr(), service_time.as_hdr());
    let mut table = String::new();
    let mut row = |name: &str, latency: &str, service_time: &str| {
        let _ = writeln!(table, "{name:>8}  {latency:>20}  {service_time:>24}");
    };
    row("", "latency (from due)", "service time (from sent)");
    let mean =
        |histogram: &hdrhistogram::Histogram<u64>| time(if histogram.is_empty() { 0.0 } else { histogram.mean() });
    row("mean", &mean(&latency), &mean(&service_time));
    for (name, share) in SHARES {
        let at = |histogram: &hdrhistogram::Histogram<u64>| time(histogram.value_at_quantile(share) as f64);
        row(name, &at(&latency), &at(&service_time));
    }
    table
}

fn pacing(pacing: &Pacing) -> String {
    match pacing {
        Pacing::Closed { think: Think::None, .. } => "closed loop".to_owned(),
        Pacing::Closed { .. } => "closed loop with think time".to_owned(),
        Pacing::Open { rate: wanted, spacing } => {
            let arrivals = if *spacing == Spacing::Poisson { ", Poisson arrivals" } else { "" };
            match wanted {
                Rate::Constant(wanted) => format!("open loop at {} per second{arrivals}", rate(*wanted)),
                Rate::Steps(_) => format!("open loop in steps{arrivals}"),
                Rate::Ramp { from, to, .. } => {
                    format!("open loop from {} to {} per second{arrivals}", rate(*from), rate(*to))
                }
            }
        }
        Pacing::Replay { .. } => "replayed arrivals".to_owned(),
    }
}

fn causes(causes: &[(&str, u64)]) -> String {
    let occurred: Vec<String> = causes
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|(cause, count)| format!("{} {}", thousands(*count), cause.replace('_', " ")))
        .collect();
    if occurred.is_empty() { "none".to_owned() } else { occurred.join(", ") }
}

/// A duration in a suitable unit.
pub(super) fn time(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.2} µs", ns / 1e3),
        ns if ns < 1e9 => format!("{:.2} ms", ns / 1e6),
        ns => format!("{:.2} s", ns / 1e9),
    }
}

fn size(bytes: f64) -> String {
    match bytes {
        bytes if bytes < 1e3 => format!("{bytes:.0} B"),
        bytes if bytes < 1e6 => format!("{:.1} kB", bytes / 1e3),
        bytes if bytes < 1e9 => format!("{:.1} MB", bytes / 1e6),
        bytes => format!("{:.2} GB", bytes / 1e9),
    }
}

fn rate(per_second: f64) -> String {
    if per_second < 100.0 { format!("{per_second:.1}") } else { thousands(per_second.round() as u64) }
}

fn counted(count: u64, thing: &str) -> String {
    format!("{} {thing}{}", thousands(count), if count == 1 { "" } else { "s" })
}

pub(super) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_is_given_as_times_or_as_what_had_to_wait() {
        let mut total = LoadTally { due: 1_000, ..LoadTally::default() };
        (0..1_000).for_each(|_| total.lag.record(100));
        assert!(on_schedule(&total).starts_with("99 % of requests were sent within 100 ns"), "{}", on_schedule(&total));
        total.queued = 2;
        assert!(
            on_schedule(&total).ends_with("less than 99.9 % of requests were sent without waiting for a connection")
        );
    }

    #[test]
    fn numbers_are_readable() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(999), "999");
        assert_eq!(thousands(1_234_567), "1,234,567");
        assert_eq!(time(1_500.0), "1.50 µs");
        assert_eq!(time(2e9), "2.00 s");
        assert_eq!(size(2_048.0), "2.0 kB");
        assert_eq!(counted(1, "thread"), "1 thread");
    }
}
