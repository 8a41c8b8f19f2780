//! The measurements of a run, as plain values, without judgement.

mod flow;

use serde::{Deserialize, Serialize};

use super::histogram::LatencyHistogram;
use super::plan::Statuses;

pub use self::flow::{AnswerCheckTally, FlowTally, PassTally};

/// The member of `weir load --json` that is written beside the fields of a [`LoadResult`]: percentiles in milliseconds,
/// `null` if absent.
pub const PERCENTILES: &str = "percentiles_ms";

/// The measurements of one run.
///
/// An exchange belongs to the measurement when it was *due* after warm-up and before the end; answers to those are
/// waited for after the end, up to the response timeout. So `total.due == total.completed + total.errors.sum() +
/// total.missed`, and a slow answer cannot drop out of the percentiles by coming late.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadResult {
    /// Unix time of the start of the run (warm-up included), ns.
    pub started_unix_ns: u64,
    /// Length of warm-up, ns.
    pub warm_up_ns: u64,
    /// Length of the measurement, ns: the divisor of rates. If a count ended the run, it ends when the last request was
    /// due; without a warm-up, with the last answer.
    pub measured_ns: u64,
    /// From the end of the measurement to the last answer, ns.
    pub drain_ns: u64,
    /// Complete answers that came within the measurement, whenever their requests were due: what rates count. Answers that
    /// come in the drain are in `total` and in its percentiles, but not in a rate: the time they took is not in `measured_ns`.
    /// Absent in results of earlier versions, whose rates count all answers of `total`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_in_time: Option<u64>,
    /// The whole measurement.
    pub total: LoadTally,
    /// Each request of the plan, in its order; absent when there is only one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requests: Vec<RequestTally>,
    /// In order of time, warm-up first.
    pub intervals: Vec<LoadInterval>,
    /// The checks of answers and the passes through the requests, of plans that have them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow: Option<FlowTally>,
    pub connections: Connections,
    pub generator: Generator,
}

/// One interval of the time series.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadInterval {
    pub phase: LoadPhase,
    /// From the start of the run (warm-up included), ns.
    pub start_ns: u64,
    pub length_ns: u64,
    /// What was answered, or failed, in this interval.
    pub tally: LoadTally,
    /// CPU time of the generator in this interval.
    pub cpu: CpuTime,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadPhase {
    #[default]
    WarmUp,
    Measured,
    /// After the end: answers to exchanges that were due before.
    Drain,
}

/// Counts and times of a set of exchanges.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadTally {
    /// Requests that were due (closed loop: started). In an interval: that became due in it.
    pub due: u64,
    /// Complete answers, whatever their status.
    pub completed: u64,
    /// Answers by status; those of gRPC are below 100. Empty for protocols without statuses.
    pub statuses: Statuses,
    /// Answers with an unexpected status; they are part of `completed`.
    pub unexpected: u64,
    /// Answers with an expected status that failed another check; they are part of `completed`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failed_checks: u64,
    pub errors: Errors,
    /// Open loop: requests that were due and never sent, because no connection became free before the end.
    pub missed: u64,
    /// Open loop: requests that had to wait for a free connection.
    pub queued: u64,
    pub bytes_sent: u64,
    /// Heads and bodies, without TLS.
    pub bytes_received: u64,
    /// From when a request was due to its complete answer, ns.
    pub latency: LatencyHistogram,
    /// From when a request was sent to its complete answer, ns.
    pub service_time: LatencyHistogram,
    /// From when a request was sent to the first byte of its answer, ns; absent if that was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_byte: Option<LatencyHistogram>,
    /// The messages of answers to calls of gRPC.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub messages: u64,
    /// From when a call of gRPC was sent to the first message of its answer, ns; absent without calls that are answered with a
    /// stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_message: Option<LatencyHistogram>,
    /// The service time of answers with an unexpected status, ns.
    #[serde(default, skip_serializing_if = "LatencyHistogram::is_empty")]
    pub refused: LatencyHistogram,
    /// The delay that the generator itself caused, ns. Open loop: from the moment a request was due *and* a connection
    /// was free until it was sent. Closed loop: how long an answer was readable before the generator read it.
    pub lag: LatencyHistogram,
}

impl LoadTally {
    pub fn add(&mut self, other: &Self) {
        self.due += other.due;
        self.completed += other.completed;
        for (status, count) in &other.statuses {
            *self.statuses.entry(*status).or_default() += count;
        }
        self.unexpected += other.unexpected;
        self.failed_checks += other.failed_checks;
        self.errors.add(&other.errors);
        self.missed += other.missed;
        self.queued += other.queued;
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
        self.latency.add(&other.latency);
        self.service_time.add(&other.service_time);
        if let Some(theirs) = &other.first_byte {
            self.first_byte.get_or_insert_default().add(theirs);
        }
        self.messages += other.messages;
        if let Some(theirs) = &other.first_message {
            self.first_message.get_or_insert_default().add(theirs);
        }
        self.refused.add(&other.refused);
        self.lag.add(&other.lag);
    }

    /// Open loop: the delay in ns within which this share (0.0 to 1.0) of all due exchanges was sent. Exchanges that
    /// had to wait for a connection, or were never sent, count as late regardless of the cause; `None` if these are
    /// more than the rest of the share, or if nothing was due.
    pub fn sent_within(&self, share: f64) -> Option<u64> {
        let late = self.queued + self.missed;
        let on_time = (self.due as f64 * share).ceil() as u64;
        // Exchanges that had to wait are in `lag` with the engine's own part of the delay, so they are added to the
        // number needed.
        let needed = on_time + self.queued;
        let sent = self.lag.count();
        let possible = self.due > 0 && on_time + late <= self.due && needed <= sent;
        possible.then(|| self.lag.quantile(needed as f64 / sent as f64))
    }

    /// Requests that failed: without a complete answer, never sent, with an unexpected status or a failed check.
    pub fn failed(&self) -> u64 {
        self.errors.sum() + self.missed + self.unexpected + self.failed_checks
    }

    /// Answers with a status below 400, or OK of gRPC.
    pub fn successes(&self) -> u64 {
        self.class(2) + self.class(3) + self.statuses.get(&0).copied().unwrap_or(0)
    }

    /// Answers with a status of this class: 2 for 200 to 299.
    pub fn class(&self, class: u16) -> u64 {
        self.statuses.range(class * 100..(class + 1) * 100).map(|(_, count)| count).sum()
    }
}

/// The tally of one request of the plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestTally {
    pub name: String,
    pub tally: LoadTally,
}

/// Exchanges without a complete answer, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Errors {
    /// No connection: refused, unreachable.
    pub connect: u64,
    /// No connection in time.
    pub connect_timeout: u64,
    /// The TLS handshake failed, or a record was bad.
    pub tls: u64,
    /// No complete answer in time.
    pub timeout: u64,
    /// The peer reset the connection, or writing to it failed.
    pub reset: u64,
    /// The peer closed the connection before the answer was complete.
    pub closed: u64,
    /// The answer violated the protocol.
    pub protocol: u64,
    /// The answer had other content than expected: wrong echo, lost event, wrong signature.
    pub mismatch: u64,
    /// The generator's machine had no free ports or file descriptors.
    pub local: u64,
}

impl Errors {
    pub fn sum(&self) -> u64 {
        self.by_cause().iter().map(|(_, count)| count).sum()
    }

    pub fn add(&mut self, other: &Self) {
        self.connect += other.connect;
        self.connect_timeout += other.connect_timeout;
        self.tls += other.tls;
        self.timeout += other.timeout;
        self.reset += other.reset;
        self.closed += other.closed;
        self.protocol += other.protocol;
        self.mismatch += other.mismatch;
        self.local += other.local;
    }

    /// All causes with their names, including those that did not occur.
    pub fn by_cause(&self) -> [(&'static str, u64); 9] {
        [
            ("connect", self.connect),
            ("connect_timeout", self.connect_timeout),
            ("tls", self.tls),
            ("timeout", self.timeout),
            ("reset", self.reset),
            ("closed", self.closed),
            ("protocol", self.protocol),
            ("mismatch", self.mismatch),
            ("local", self.local),
        ]
    }
}

/// The connections of the whole run, warm-up included.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Connections {
    pub opened: u64,
    /// Attempts that failed, by the causes `connect`, `connect_timeout`, `tls`, `protocol` (a refused upgrade) and
    /// `local`.
    pub failed: Errors,
    /// Closed or reset by the peer while no exchange was in flight on them.
    pub closed_idle: u64,
    /// The most that were open at one time. Over several threads: the sum of each thread's most.
    pub open_max: u64,
    /// Open when the clock started, where the plan opens all of them before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_at_start: Option<u64>,
    /// Open when the run ended.
    pub open_at_end: u64,
    /// TLS handshakes among `opened`, and how many of them resumed a session.
    pub handshakes: u64,
    pub resumed: u64,
    /// From the start of connecting until requests can be sent (TCP, TLS, upgrade), ns.
    pub connect_time: LatencyHistogram,
    /// The part of it that TLS took over TCP, ns; absent without TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_time: Option<LatencyHistogram>,
}

impl Connections {
    pub fn add(&mut self, other: &Self) {
        self.opened += other.opened;
        self.failed.add(&other.failed);
        self.closed_idle += other.closed_idle;
        self.open_max += other.open_max;
        if let Some(open) = other.open_at_start {
            self.open_at_start = Some(self.open_at_start.unwrap_or(0) + open);
        }
        self.open_at_end += other.open_at_end;
        self.handshakes += other.handshakes;
        self.resumed += other.resumed;
        self.connect_time.add(&other.connect_time);
        if let Some(theirs) = &other.tls_time {
            self.tls_time.get_or_insert_default().add(theirs);
        }
    }
}

/// Measurements of the generator itself, over the measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Generator {
    /// CPU time of each thread, in the order of the threads.
    pub threads: Vec<CpuTime>,
    /// Most exchanges in flight at one time. Over several threads: the sum of each thread's most.
    pub in_flight_max: u64,
    /// Exchanges in flight, averaged over time: counted, not computed from latency, so that Little's law can be
    /// checked against it.
    pub in_flight_mean: f64,
}

impl Generator {
    /// CPU time of all threads.
    pub fn cpu(&self) -> CpuTime {
        self.threads.iter().fold(CpuTime::default(), |mut sum, thread| {
            sum.add(thread);
            sum
        })
    }
}

/// CPU time, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuTime {
    pub user_ns: u64,
    pub system_ns: u64,
    /// The part of the above that was spent spinning until a request was due, which is idle time. A thread is saturated
    /// when `user_ns + system_ns - spin_ns` approaches the elapsed time.
    pub spin_ns: u64,
}

impl CpuTime {
    pub fn add(&mut self, other: &Self) {
        self.user_ns += other.user_ns;
        self.system_ns += other.system_ns;
        self.spin_ns += other.spin_ns;
    }

    /// Time spent working, ns.
    pub fn busy_ns(&self) -> u64 {
        (self.user_ns + self.system_ns).saturating_sub(self.spin_ns)
    }
}

impl LoadResult {
    /// Complete answers per second of the measurement, of those that came within it.
    pub fn rate(&self) -> f64 {
        per_second(self.counted_answers(), self.measured_ns)
    }

    /// The number of answers that the rate is computed from.
    pub fn counted_answers(&self) -> u64 {
        self.completed_in_time.unwrap_or(self.total.completed)
    }

    /// Requests due per second of the measurement: the load that an open loop offered.
    pub fn offered_rate(&self) -> f64 {
        per_second(self.total.due, self.measured_ns)
    }

    /// The share (0.0 to 1.0) of time that the busiest generator thread was working.
    pub fn generator_busy(&self) -> f64 {
        let busiest = self.generator.threads.iter().map(CpuTime::busy_ns).max().unwrap_or(0);
        busiest as f64 / (self.measured_ns + self.drain_ns).max(1) as f64
    }

    /// Appends the result of a later run of the same plan. The time between the two is left out.
    pub fn follow(&mut self, later: &Self) {
        let offset_ns = later.started_unix_ns.saturating_sub(self.started_unix_ns);
        let (before, more) = (self.measured_ns as f64, later.measured_ns as f64);
        self.generator.in_flight_mean =
            (self.generator.in_flight_mean * before + later.generator.in_flight_mean * more) / (before + more).max(1.0);
        self.generator.in_flight_max = self.generator.in_flight_max.max(later.generator.in_flight_max);
        for (ours, theirs) in self.generator.threads.iter_mut().zip(&later.generator.threads) {
            ours.add(theirs);
        }
        self.warm_up_ns += later.warm_up_ns;
        self.measured_ns += later.measured_ns;
        self.drain_ns += later.drain_ns;
        self.completed_in_time = self.both_in_time(later);
        self.total.add(&later.total);
        self.add_requests(&later.requests);
        self.add_flow(later);
        let moved =
            |interval: &LoadInterval| LoadInterval { start_ns: interval.start_ns + offset_ns, ..interval.clone() };
        self.intervals.extend(later.intervals.iter().map(moved));
        let open_max = self.connections.open_max.max(later.connections.open_max);
        self.connections.add(&later.connections);
        (self.connections.open_max, self.connections.open_at_end) = (open_max, later.connections.open_at_end);
    }

    fn both_in_time(&self, other: &Self) -> Option<u64> {
        self.completed_in_time.zip(other.completed_in_time).map(|(ours, theirs)| ours + theirs)
    }

    fn add_requests(&mut self, others: &[RequestTally]) {
        for theirs in others {
            match self.requests.iter_mut().find(|ours| ours.name == theirs.name) {
                Some(ours) => ours.tally.add(&theirs.tally),
                None => self.requests.push(theirs.clone()),
            }
        }
    }

    fn add_flow(&mut self, other: &Self) {
        if let Some(theirs) = &other.flow {
            self.flow.get_or_insert_default().add(theirs);
        }
    }

    /// Adds the result of another process that ran the same plan at the same time. Intervals are joined by position.
    pub fn merge(&mut self, other: &Self) {
        self.started_unix_ns = self.started_unix_ns.min(other.started_unix_ns);
        self.measured_ns = self.measured_ns.max(other.measured_ns);
        self.drain_ns = self.drain_ns.max(other.drain_ns);
        self.completed_in_time = self.both_in_time(other);
        self.total.add(&other.total);
        self.add_requests(&other.requests);
        self.add_flow(other);
        let joined = self.intervals.len().min(other.intervals.len());
        for (ours, theirs) in self.intervals.iter_mut().zip(&other.intervals) {
            ours.tally.add(&theirs.tally);
            ours.cpu.add(&theirs.cpu);
        }
        self.intervals.extend(other.intervals[joined..].iter().cloned());
        self.connections.add(&other.connections);
        self.generator.threads.extend(&other.generator.threads);
        self.generator.in_flight_max += other.generator.in_flight_max;
        self.generator.in_flight_mean += other.generator.in_flight_mean;
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

fn per_second(count: u64, ns: u64) -> f64 {
    if ns == 0 { 0.0 } else { count as f64 * 1e9 / ns as f64 }
}

/// The state of a run in progress.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadProgress {
    pub phase: LoadPhase,
    /// Since the start of the run, warm-up included, ns.
    pub elapsed_ns: u64,
    /// Planned length of the run, warm-up included, ns; none when only a count ends it.
    pub planned_ns: Option<u64>,
    /// Answers since the end of warm-up.
    pub completed: u64,
    /// Planned number of requests, when a count ends the run.
    pub planned_count: Option<u64>,
    /// Requests since the end of warm-up that failed: without an answer, with an unexpected status or a failed check.
    pub failed: u64,
    /// Answers per second in the last interval; none until one has ended.
    pub rate: Option<f64>,
    /// Latency from the intended start in the last interval, ns; none if it had no answers.
    pub p50_ns: Option<u64>,
    pub p99_ns: Option<u64>,
    /// The generator's own lag in the last interval, 99.9th percentile, ns; none if nothing was sent in it.
    pub lag_p999_ns: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_that_waited_for_a_connection_was_not_on_time() {
        let mut tally = LoadTally { due: 1_000, ..LoadTally::default() };
        (0..1_000).for_each(|_| tally.lag.record(100));
        assert_eq!(tally.sent_within(0.999), Some(100));
        // A request that waited counts as late, regardless of the engine's own part of the delay.
        tally.queued = 1;
        assert_eq!(tally.sent_within(0.999), Some(100));
        tally.queued = 2;
        assert_eq!(tally.sent_within(0.999), None);
        assert_eq!(tally.sent_within(0.99), Some(100));
        tally.missed = 20;
        assert_eq!(tally.sent_within(0.99), None);
        assert_eq!(LoadTally::default().sent_within(0.5), None);
    }

    #[test]
    fn the_latest_of_a_thousand_does_not_count() {
        let mut tally = LoadTally { due: 2_000, ..LoadTally::default() };
        (0..1_998).for_each(|_| tally.lag.record(100));
        (0..2).for_each(|_| tally.lag.record(900));
        assert_eq!(tally.sent_within(0.999), Some(100));
        tally.lag.record(900);
        tally.due += 1;
        assert_eq!(tally.sent_within(0.999), Some(900));
    }
}
