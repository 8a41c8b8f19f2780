//! Plans that mean the same on every machine.

use std::time::Duration;

use crate::engine::{LoadPlan, Pacing, PlanVariable, Protocol, RequestBody};

/// The most connections and threads of a plan.
const MOST_CONNECTIONS: usize = 1 << 20;
const MOST_THREADS: usize = 1 << 10;
/// The most exchanges in flight, of all clients.
const MOST_STREAMS: usize = 1 << 20;
/// The most bytes of the bodies that a plan gives by their lengths, all together, and of an answer.
pub(super) const MOST_BODY_BYTES: u64 = 64 << 20;
/// The longest warm-up and the longest measured part.
pub(super) const LONGEST_PART: Duration = Duration::from_secs(2 * 86_400);
/// The shortest interval of the time series, and the most intervals: each has histograms.
const SHORTEST_INTERVAL_MS: u64 = 100;
const MOST_INTERVALS: u64 = 200_000;
/// Processors are numbered below this, as in the kernel's sets.
const MOST_CPUS: usize = 1 << 10;

/// Checks that a plan reads nothing of the machine that it runs on, and asks for no more than a bound; the error says what does.
///
/// Otherwise the program that commands an agent could have its files and variables sent anywhere.
pub(in crate::run) fn portable(plan: &LoadPlan) -> Result<(), String> {
    let is_file = |body: &RequestBody| match body {
        RequestBody::File(_) => true,
        RequestBody::Multipart(parts) => parts.iter().any(|part| part.file.is_some()),
        RequestBody::Empty | RequestBody::Text(_) | RequestBody::Base64(_) | RequestBody::Sized(_) => false,
    };
    let is_environment = |variable: &PlanVariable| matches!(variable, PlanVariable::Environment(_));
    let problem = match plan {
        _ if plan.requests.iter().any(|request| is_file(&request.body)) => "a body from a file",
        _ if !plan.data.csv.is_empty() => "values from a file (`data.csv`)",
        _ if plan.data.variables.values().any(is_environment) => "an environment variable",
        _ if plan.tls.ca_file.is_some() => "a file of certificates",
        _ if plan.connections > MOST_CONNECTIONS => "more than 1,048,576 clients",
        _ if plan.connections.saturating_mul(plan.protocol.streams().unwrap_or(1)) > MOST_STREAMS => {
            "more than 1,048,576 exchanges in flight"
        }
        _ if sized_bytes(plan) > MOST_BODY_BYTES => "bodies or messages of more than 64 MiB together",
        _ if longest_ms(plan) > LONGEST_PART.as_millis() as u64 => "a part of more than two days",
        _ if plan.interval_ms < SHORTEST_INTERVAL_MS => "intervals below 100 ms",
        _ if longest_ms(plan) / plan.interval_ms > MOST_INTERVALS => "more than 200,000 intervals",
        _ if plan.threads > MOST_THREADS => "more than 1,024 threads",
        _ if plan.cpus.iter().any(|cpu| *cpu >= MOST_CPUS) => "a processor with a number above 1,023",
        _ => return Ok(()),
    };
    Err(format!("a load on another machine cannot have {problem}"))
}

/// The bytes of a message and of all bodies that are given by their lengths.
fn sized_bytes(plan: &LoadPlan) -> u64 {
    let message = match &plan.protocol {
        Protocol::WebSocket { message_bytes, .. }
        | Protocol::Tcp { message_bytes }
        | Protocol::Udp { message_bytes }
        | Protocol::WebSub { payload_bytes: message_bytes, .. } => *message_bytes as u64,
        _ => 0,
    };
    let body = |body: &RequestBody| if let RequestBody::Sized(bytes) = body { *bytes } else { 0 };
    plan.requests.iter().map(|request| body(&request.body)).fold(message, u64::saturating_add)
}

/// The longest time of a plan.
fn longest_ms(plan: &LoadPlan) -> u64 {
    let ramp_up_ms = if let Pacing::Closed { ramp_up_ms, .. } = plan.pacing { ramp_up_ms } else { 0 };
    plan.warm_up_ms.max(plan.stop.duration_ms.unwrap_or(0)).max(ramp_up_ms)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::engine::{CsvData, FormPart, StopCondition};

    fn refused(change: impl FnOnce(&mut LoadPlan)) -> String {
        let mut plan = LoadPlan::closed("http://localhost:1/", 1, StopCondition::after_count(1));
        assert_eq!(portable(&plan), Ok(()));
        change(&mut plan);
        portable(&plan).unwrap_err()
    }

    #[test]
    fn a_plan_that_reads_files_or_variables_of_its_machine_is_refused() {
        let secret = || PathBuf::from("/etc/shadow");
        let error = refused(|plan| plan.requests[0].body = RequestBody::File(secret()));
        assert!(error.contains("a body from a file"), "{error}");
        let part = FormPart { file: Some(secret()), ..FormPart::default() };
        let error = refused(|plan| plan.requests[0].body = RequestBody::Multipart(vec![part]));
        assert!(error.contains("a body from a file"), "{error}");
        let error = refused(|plan| plan.data.csv.push(CsvData::of(secret())));
        assert!(error.contains("data.csv"), "{error}");
        let variable = PlanVariable::Environment("TOKEN".to_owned());
        let error = refused(|plan| drop(plan.data.variables.insert("a".to_owned(), variable)));
        assert!(error.contains("environment"), "{error}");
        let error = refused(|plan| plan.tls.ca_file = Some(secret()));
        assert!(error.contains("certificates"), "{error}");
        let error = refused(|plan| plan.connections = 2_000_000);
        assert!(error.contains("clients"), "{error}");
        let error = refused(|plan| plan.cpus.push(2_000));
        assert!(error.contains("1,023"), "{error}");
        let error = refused(|plan| plan.threads = 2_000);
        assert!(error.contains("threads"), "{error}");
    }

    #[test]
    fn a_plan_that_needs_memory_without_bound_is_refused() {
        let error = refused(|plan| plan.requests[0].body = RequestBody::Sized(1 << 40));
        assert!(error.contains("64 MiB"), "{error}");
        let error = refused(|plan| plan.protocol = Protocol::Tcp { message_bytes: 1 << 40 });
        assert!(error.contains("64 MiB"), "{error}");
        let error = refused(|plan| plan.protocol = Protocol::Http2 { streams: usize::MAX });
        assert!(error.contains("in flight"), "{error}");
        let error = refused(|plan| plan.warm_up_ms = u64::MAX);
        assert!(error.contains("two days"), "{error}");
        let error = refused(|plan| plan.stop.duration_ms = Some(u64::MAX));
        assert!(error.contains("two days"), "{error}");
        for interval_ms in [0, 1] {
            let error = refused(|plan| plan.interval_ms = interval_ms);
            assert!(error.contains("100 ms"), "{error}");
        }
    }
}
