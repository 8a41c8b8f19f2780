//! Judges a single run by itself: whether the generator rather than the target was measured.

use crate::engine::{LoadPlan, LoadResult, Protocol, RequestBody, RequestTemplate};

/// The share of its time above which a thread is too busy to send on time.
const BUSY: f64 = 0.9;
/// The lag that matters: this share of the median latency, but at least [`LAG_FLOOR_NS`].
const LAG_SHARE: f64 = 0.1;
const LAG_FLOOR_NS: f64 = 1e6;
/// With fewer answers, the 99.9th percentile depends on a few values.
const FEW: u64 = 10_000;
/// The share of its rate below which an open loop has missed its schedule.
const KEPT_UP: f64 = 0.98;

/// Sentences about what limits the meaning of the result; empty if nothing does.
pub fn verdict(plan: &LoadPlan, result: &LoadResult) -> Vec<String> {
    let mut sentences = Vec::new();
    let total = &result.total;
    let idle = matches!(plan.protocol, Protocol::Idle { .. });
    if total.completed == 0 && !idle {
        sentences.push(no_answers(result));
    }
    // All answers and not only those within the time, since the last ones may come later at any rate.
    if plan.pacing.is_open() && total.completed > 0 && (total.completed as f64) < total.due as f64 * KEPT_UP {
        sentences.push(format!(
            "The schedule was missed: {} requests were due and {} answered. Latency is measured from the \
             time at which each request was due, so it grows with the length of the run; use a lower rate (-R) to find what \
             the target can carry.",
            total.due, total.completed
        ));
    }
    let busy = result.generator_busy();
    if busy > BUSY {
        let advice = if plan.threads == 1 { "; try more threads (-t)" } else { "" };
        sentences.push(format!(
            "The generator's busiest thread was {:.0} % busy: this is its limit, not the target's{advice}.",
            busy.min(1.0) * 100.0
        ));
    }
    let lag = total.lag.quantile(0.99) as f64;
    if plan.pacing.is_open() && lag > LAG_FLOOR_NS.max(total.latency.quantile(0.5) as f64 * LAG_SHARE) {
        sentences.push(format!(
            "The generator itself was late: 1 % of the requests were sent more than {:.1} ms after they were due.",
            lag / 1e6
        ));
    }
    if total.missed > 0 {
        sentences.push(format!(
            "{} of {} requests were due and never sent, because no connection was free: the target does not keep up \
             with this rate (or needs more connections), and latency grows with the length of the run.",
            total.missed, total.due
        ));
    }
    sentences.extend(failures(plan, result));
    if total.completed > 0 && total.completed < FEW {
        sentences.push(format!(
            "Only {} answers: the 99.9th percentile is based on the slowest {}.",
            total.completed,
            (total.completed / 1_000).max(1)
        ));
    }
    sentences
}

/// What weakens the result because requests failed, or were not those that were meant.
fn failures(plan: &LoadPlan, result: &LoadResult) -> Vec<String> {
    let (mut sentences, total) = (Vec::new(), &result.total);
    if total.errors.sum() > 0 && total.completed > 0 {
        sentences.push(format!(
            "{} requests had no complete answer; they are not included in the latency.",
            total.errors.sum()
        ));
    }
    if total.errors.local + result.connections.failed.local > 0 {
        sentences.push("This machine ran out of ports or file descriptors; try --source or `ulimit -n`.".to_owned());
        if plan.has_values() && plan.protocol.streams().is_some() {
            sentences.push("Or a URL with its values was longer than 65,534 bytes, and was not sent.".to_owned());
        }
        if plan.has_values() && plan.requests.iter().any(|request| request.grpc.is_some()) {
            sentences.push("Or a message with its values did not fit its definition, and was not sent.".to_owned());
        }
    }
    if total.unexpected > 0 {
        sentences.push(format!("{} answers had a status that is not a success.", total.unexpected));
    }
    if total.failed_checks > 0 {
        sentences.push(format!("{} answers failed a check, and are included in the latency.", total.failed_checks));
    }
    if let Some(request) = plan.requests.iter().find(|request| !plan.has_values() && mentions_name(request)) {
        sentences.push(format!(
            "{} was sent as it is, since the plan has no data: `${{NAME}}` needs --csv or --var.",
            request.label()
        ));
    }
    sentences
}

/// Whether a request looks as if values should replace parts of it.
fn mentions_name(request: &RequestTemplate) -> bool {
    let in_body = match &request.body {
        RequestBody::Text(text) => contains_name(text),
        RequestBody::Multipart(parts) => parts.iter().filter_map(|part| part.value.as_deref()).any(contains_name),
        _ => false,
    };
    in_body || contains_name(&request.url) || request.headers.iter().any(|(_, value)| contains_name(value))
}

/// Whether a text looks as if a value should replace a part of it.
fn contains_name(text: &str) -> bool {
    text.split_once("${").is_some_and(|(_, rest)| rest.contains('}'))
}

/// Why nothing was answered.
fn no_answers(result: &LoadResult) -> String {
    let total = &result.total;
    let mut causes = total.errors;
    causes.add(&result.connections.failed);
    let most = causes.by_cause().into_iter().max_by_key(|(_, count)| *count).filter(|(_, count)| *count > 0);
    let why = match most {
        Some(("connect" | "connect_timeout", _)) => ": no connection could be opened (does the target listen there?)",
        Some(("tls", _)) => ": TLS failed (is it HTTPS, and its certificate signed by one of --cacert?)",
        Some(("timeout", _)) => ": every answer took longer than --timeout",
        Some(("closed" | "reset", _)) => ": the target closed its connections before it answered",
        Some(("protocol", _)) => ": the answers are not in the requested protocol (-p)",
        Some(("local", _)) => ": this machine ran out of ports or file descriptors",
        _ => "",
    };
    match total.due - total.missed {
        0 => format!("Nothing was sent in the measured time{why}."),
        sent => format!("No answers: {sent} requests were sent and none was answered{why}."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{CpuTime, Errors, StopCondition};

    fn result() -> LoadResult {
        let mut result: LoadResult = serde_json::from_value(serde_json::json!({
            "started_unix_ns": 0, "warm_up_ns": 0, "measured_ns": 1_000_000_000, "drain_ns": 0,
            "total": crate::engine::LoadTally::default(), "intervals": [],
            "connections": crate::engine::Connections::default(), "generator": crate::engine::Generator::default(),
        }))
        .expect("the fields of a result");
        result.total.completed = FEW;
        result.generator.threads = vec![CpuTime { user_ns: 100_000_000, ..CpuTime::default() }];
        result
    }

    #[test]
    fn a_good_run_draws_no_remark() {
        let plan = LoadPlan::closed("http://a/", 1, StopCondition::after_ms(1_000));
        assert_eq!(verdict(&plan, &result()), Vec::<String>::new());
    }

    #[test]
    fn a_run_without_an_answer_says_why() {
        let plan = LoadPlan::closed("http://a/", 1, StopCondition::after_ms(1_000));
        let mut empty = result();
        empty.total.completed = 0;
        assert_eq!(verdict(&plan, &empty), ["Nothing was sent in the measured time."]);
        empty.total.due = 7;
        empty.total.errors.timeout = 7;
        assert!(verdict(&plan, &empty)[0].contains("7 requests were sent and none was answered: every answer took"));
    }

    #[test]
    fn a_schedule_that_was_missed_is_said_with_both_counts() {
        let plan = LoadPlan::open("http://a/", 20_000.0, 1, StopCondition::after_ms(1_000));
        let mut late = result();
        late.total.due = 20_000;
        let said = verdict(&plan, &late).join(" ");
        assert!(said.contains("20000 requests were due and 10000 answered"), "{said}");
    }

    #[test]
    fn each_weakness_is_said() {
        let plan = LoadPlan::open("http://a/", 1.0, 1, StopCondition::after_ms(1_000));
        let said = |change: fn(&mut LoadResult)| {
            let mut result = result();
            change(&mut result);
            verdict(&plan, &result).join(" ")
        };
        assert!(said(|result| result.generator.threads[0].system_ns = 850_000_000).contains("95 % busy"));
        assert!(said(|result| (0..100).for_each(|_| result.total.lag.record(5_000_000))).contains("itself was late"));
        assert!(said(|result| result.total.missed = 7).contains("7 of"));
        assert!(said(|result| result.total.errors = Errors { local: 2, ..Errors::default() }).contains("ran out"));
        assert!(said(|result| result.total.unexpected = 3).contains("3 answers"));
        assert!(said(|result| result.total.completed = 10).contains("Only 10"));
        assert!(said(|result| result.total.failed_checks = 4).contains("4 answers failed a check"));
    }

    #[test]
    fn name_without_data_is_said() {
        let plan = LoadPlan::closed("http://a/${id}", 1, StopCondition::after_ms(1_000));
        assert!(verdict(&plan, &result())[0].contains("`${NAME}` needs --csv or --var"));
        let mut body = LoadPlan::closed("http://a/", 1, StopCondition::after_ms(1_000));
        body.requests[0].body = RequestBody::Text("{\"id\": ${id}}".to_owned());
        assert!(verdict(&body, &result())[0].contains("`${NAME}` needs --csv or --var"));
        let mut field = LoadPlan::closed("http://a/", 1, StopCondition::after_ms(1_000));
        field.requests[0].headers = vec![("X-Key".to_owned(), "${key}".to_owned())];
        assert!(verdict(&field, &result())[0].contains("`${NAME}` needs --csv or --var"));
    }
}
