//! A sample of the node's figures: the difference of two readings of its counters.

use std::time::{Duration, Instant};

use serde_json::Value;
use weir_plugin::HeldBudget;
use weir_records::SinkRegister;
use weir_telemetry::cell::HistogramTotals;
use weir_telemetry::process::{self, ProcessUse};

use super::now_ms;
use crate::node::state::NodeState;

/// The series of the node, in the order of the values of a sample.
pub(super) const NAMES: [&str; 17] = [
    "requests_per_second",
    "errors_per_second",
    "client_errors_per_second",
    "p50_ms",
    "p90_ms",
    "p99_ms",
    "cpu_cores",
    "memory_bytes",
    "connections",
    "upstream_connections",
    "upstream_queued",
    "received_bytes_per_second",
    "sent_bytes_per_second",
    "retries_per_second",
    "log_records_per_second",
    "log_dropped_per_second",
    "held_bytes",
];

/// The values of an interval.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    /// Its end, in milliseconds since 1970.
    pub at_ms: u64,
    /// In the order of [`NAMES`]; not a number if there is no value.
    pub values: [f32; NAMES.len()],
}

/// Counters at a time.
#[derive(Clone, Debug)]
pub(super) struct CounterReading {
    pub at: Instant,
    counters: Counters,
    gauges: Gauges,
    duration: HistogramTotals,
    process: Option<ProcessUse>,
}

#[derive(Clone, Debug, Default)]
struct Counters {
    requests: u64,
    client_errors: u64,
    errors: u64,
    received: u64,
    sent: u64,
    retries: u64,
    records: u64,
    records_dropped: u64,
}

#[derive(Clone, Debug, Default)]
struct Gauges {
    connections: u64,
    upstream_connections: u64,
    upstream_queued: u64,
    held: u64,
}

impl CounterReading {
    pub(super) fn now(state: &NodeState) -> CounterReading {
        let (mut counters, mut gauges, mut duration) =
            (Counters::default(), Gauges::default(), HistogramTotals::default());
        for worker in state.metrics.workers() {
            let [_, _, _, client_errors, errors, _] = worker.statuses.by_class();
            counters.requests += worker.requests.value();
            counters.client_errors += client_errors;
            counters.errors += errors;
            counters.received += worker.client_bytes_received.value();
            counters.sent += worker.client_bytes_sent.value();
            counters.retries += worker.upstream_retries.value();
            gauges.connections += worker.connections();
            // In this order, a connection closed in between cannot make the difference negative.
            let closed = worker.upstream_connections_closed.value();
            gauges.upstream_connections += worker.upstream_connects.value().saturating_sub(closed);
            gauges.upstream_queued += worker.upstream_queued.value();
            worker.request_duration.add_to(&mut duration);
        }
        for account in SinkRegister::of_process().read() {
            counters.records += account.accepted.records;
            counters.records_dropped += account.dropped.values().map(|tally| tally.records).sum::<u64>();
        }
        gauges.held = HeldBudget::of_process().in_use().bytes;
        CounterReading { at: Instant::now(), counters, gauges, duration, process: process::in_use() }
    }

    /// The sample of the interval since an earlier reading.
    pub(super) fn since(&self, before: &CounterReading) -> Sample {
        let seconds = self.at.saturating_duration_since(before.at).max(Duration::from_millis(1)).as_secs_f32();
        let rate = |of: fn(&Counters) -> u64| of(&self.counters).saturating_sub(of(&before.counters)) as f32 / seconds;
        let duration = self.duration.since(&before.duration);
        let ms = |part: f64| duration.quantile_ns(part).map_or(f32::NAN, |ns| (ns / 1e6) as f32);
        let both = self.process.zip(before.process);
        let cores = both.map_or(f32::NAN, |(now, then)| (now.cpu_seconds - then.cpu_seconds) as f32 / seconds);
        let values = [
            rate(|counters| counters.requests),
            rate(|counters| counters.errors),
            rate(|counters| counters.client_errors),
            ms(0.5),
            ms(0.9),
            ms(0.99),
            cores,
            self.process.map_or(f32::NAN, |process| process.resident_bytes as f32),
            self.gauges.connections as f32,
            self.gauges.upstream_connections as f32,
            self.gauges.upstream_queued as f32,
            rate(|counters| counters.received),
            rate(|counters| counters.sent),
            rate(|counters| counters.retries),
            rate(|counters| counters.records),
            rate(|counters| counters.records_dropped),
            self.gauges.held as f32,
        ];
        Sample { at_ms: now_ms(), values }
    }
}

/// A value in JSON, with three digits after the point; `null` if there is none.
pub(super) fn number(value: f32) -> Value {
    let value = (f64::from(value) * 1_000.0).round() / 1_000.0;
    // Whole numbers are written without a point, which saves a third of a history.
    match value.fract() == 0.0 && value.abs() < 9e15 {
        true => (value as i64).into(),
        false => serde_json::Number::from_f64(value).map_or(Value::Null, Value::Number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_what_is_none_is_null() {
        let texts = [0.0, 2.0, 1.23456, f32::NAN, 268_435_456.0].map(|value| number(value).to_string());
        assert_eq!(texts, ["0", "2", "1.235", "null", "268435456"]);
    }

    #[test]
    fn a_sample_has_rates_of_its_interval_and_quantiles_of_its_requests() {
        let at = Instant::now();
        let before = CounterReading {
            at,
            counters: Counters { requests: 100, errors: 7, ..Counters::default() },
            gauges: Gauges::default(),
            duration: HistogramTotals::default(),
            process: None,
        };
        let mut after = before.clone();
        after.at = at + Duration::from_secs(2);
        after.counters.requests = 300;
        after.gauges.connections = 5;
        let of = |sample: &Sample, name: &str| sample.values[NAMES.iter().position(|own| *own == name).expect("known")];
        let sample = after.since(&before);
        assert_eq!([of(&sample, "requests_per_second"), of(&sample, "errors_per_second")], [100.0, 0.0]);
        assert_eq!(of(&sample, "connections"), 5.0);
        assert!(of(&sample, "p99_ms").is_nan() && of(&sample, "cpu_cores").is_nan());
        // 2^20 ns is the bound of a bucket.
        let bucket = (0..).find(|bucket| weir_telemetry::cell::bucket_bound_ns(*bucket) == Some(1 << 20));
        after.duration.buckets[bucket.expect("there is one")] = 10;
        let p99 = of(&after.since(&before), "p99_ms");
        assert!((0.7..=1.05).contains(&p99), "{p99}");
    }
}
