//! The counters of one generator thread, divided into intervals that are passed on while the run continues.

use std::sync::mpsc::{Receiver, Sender};

use super::clock::thread_cpu;
use super::result::{Connections, CpuTime, Errors, FlowTally, LoadPhase, LoadTally};

/// The times of a run, in ns of the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct MeasuredWindow {
    /// The start of the run, including warm-up.
    pub start: u64,
    /// The end of warm-up.
    pub measure: u64,
    /// No request is due after this; `u64::MAX` if a count ends the run.
    pub end: u64,
    pub interval: u64,
}

/// Why an exchange got no complete response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Connect,
    ConnectTimeout,
    Tls,
    Timeout,
    Reset,
    Closed,
    Protocol,
    Mismatch,
    Local,
}

impl Errors {
    pub(crate) fn count(&mut self, cause: Cause) {
        *match cause {
            Cause::Connect => &mut self.connect,
            Cause::ConnectTimeout => &mut self.connect_timeout,
            Cause::Tls => &mut self.tls,
            Cause::Timeout => &mut self.timeout,
            Cause::Reset => &mut self.reset,
            Cause::Closed => &mut self.closed,
            Cause::Protocol => &mut self.protocol,
            Cause::Mismatch => &mut self.mismatch,
            Cause::Local => &mut self.local,
        } += 1;
    }
}

/// The counts of one thread in one interval.
pub(super) struct RecordedInterval {
    /// The position in the time series, the same in all threads.
    pub index: usize,
    pub phase: LoadPhase,
    /// Start and end on the monotonic clock, ns.
    pub start: u64,
    pub end: u64,
    /// One tally for each request of the plan.
    pub tallies: Vec<TallyCounter>,
    pub cpu: CpuTime,
}

/// A tally that is being counted: statuses are counted in an array instead of a map.
pub(super) struct TallyCounter {
    pub tally: LoadTally,
    pub statuses: Vec<u64>,
}

/// The number of cells for statuses, which have three digits; larger ones are counted in the last cell.
const STATUSES: usize = 1_000;

impl TallyCounter {
    fn new() -> Self {
        Self { tally: LoadTally::default(), statuses: vec![0; STATUSES] }
    }

    fn clear(&mut self) {
        let LoadTally { latency, service_time, first_byte, first_message, refused, lag, .. } = &mut self.tally;
        for histogram in [latency, service_time, refused, lag].into_iter().chain(first_byte).chain(first_message) {
            histogram.clear();
        }
        let kept = std::mem::take(&mut self.tally);
        let LoadTally { latency, service_time, first_byte, first_message, refused, lag, .. } = kept;
        self.tally =
            LoadTally { latency, service_time, first_byte, first_message, refused, lag, ..LoadTally::default() };
        self.statuses.fill(0);
    }

    /// Moves the counts of statuses into the tally.
    pub(super) fn settle(&mut self) {
        for (status, count) in self.statuses.iter_mut().enumerate().filter(|(_, count)| **count > 0) {
            *self.tally.statuses.entry(status as u16).or_default() += std::mem::take(count);
        }
    }
}

impl RecordedInterval {
    pub(super) fn new(requests: usize) -> Box<Self> {
        Box::new(Self {
            index: 0,
            phase: LoadPhase::WarmUp,
            start: 0,
            end: 0,
            tallies: (0..requests).map(|_| TallyCounter::new()).collect(),
            cpu: CpuTime::default(),
        })
    }
}

/// A message from a generator thread to the collecting thread.
pub(super) enum RecorderMessage {
    Slice { thread: usize, slice: Box<RecordedInterval> },
    Done { thread: usize, summary: Box<RecorderSummary> },
}

/// The totals of a thread, sent once at its end.
#[derive(Default)]
pub(super) struct RecorderSummary {
    /// When requests stopped being due, on the monotonic clock: needed if a count or a stop ended the run. 0 if not set.
    pub ended: u64,
    /// When the last response to a measured exchange was complete, ns; 0 if there was none.
    pub last_answer: u64,
    /// Responses that were complete within the measurement, including those to exchanges that were due in warm-up.
    pub completed_in_time: u64,
    /// CPU time during measurement and drain.
    pub cpu: CpuTime,
    pub connections: Connections,
    pub flow: Option<FlowTally>,
    pub in_flight_max: u64,
    /// The integral of the number of exchanges in flight over the measurement, in exchanges × ns.
    pub in_flight_area: f64,
}

/// Counts the exchanges of one thread.
pub(super) struct Recorder {
    thread: usize,
    window: MeasuredWindow,
    slice: Box<RecordedInterval>,
    next_roll: u64,
    cpu_mark: CpuTime,
    measured_from: Option<CpuTime>,
    spin_ns: u64,
    in_flight: u64,
    in_flight_since: u64,
    /// The end of the measurement, once it is known.
    in_flight_until: u64,
    summary: Box<RecorderSummary>,
    out: Sender<RecorderMessage>,
    /// Returns cleared intervals for reuse.
    spare: Receiver<Box<RecordedInterval>>,
}

impl Recorder {
    pub(super) fn new(
        thread: usize,
        window: MeasuredWindow,
        requests: usize,
        out: Sender<RecorderMessage>,
        spare: Receiver<Box<RecordedInterval>>,
    ) -> Self {
        let cpu = thread_cpu();
        let mut recorder = Self {
            thread,
            window,
            slice: RecordedInterval::new(requests),
            next_roll: 0,
            cpu_mark: cpu,
            measured_from: None,
            spin_ns: 0,
            in_flight: 0,
            in_flight_since: window.measure,
            in_flight_until: window.end,
            summary: Box::default(),
            out,
            spare,
        };
        recorder.open_slice(0, window.start);
        recorder
    }

    /// When [`Recorder::roll`] has to be called next, on the monotonic clock.
    #[inline]
    pub(super) fn next_roll(&self) -> u64 {
        self.next_roll
    }

    /// Passes on the intervals that have ended.
    pub(super) fn roll(&mut self, now: u64) {
        while now >= self.next_roll {
            let (end, index) = (self.next_roll, self.slice.index);
            self.hand_over(end);
            self.open_slice(index + 1, end);
        }
    }

    /// Whether an exchange due at `due` is part of the measurement.
    #[inline]
    pub(super) fn measures(&self, due: u64) -> bool {
        due >= self.window.measure
    }

    /// Counts an exchange that is due.
    #[inline]
    pub(super) fn due(&mut self, request: usize, due: u64) {
        // An exchange of the measurement must not be counted in the last interval of warm-up.
        if due >= self.next_roll {
            self.roll(due);
        }
        if self.belongs(due) {
            self.slice.tallies[request].tally.due += 1;
        }
    }

    /// Counts an exchange that had to wait for a connection.
    pub(super) fn queued(&mut self, request: usize, due: u64) {
        if self.belongs(due) {
            self.slice.tallies[request].tally.queued += 1;
        }
    }

    /// Counts an exchange as sent, with a `lag` in ns that the generator itself caused.
    #[inline]
    pub(super) fn sent(&mut self, request: usize, due: u64, lag: u64) {
        if self.belongs(due) {
            self.slice.tallies[request].tally.lag.record(lag);
        }
    }

    /// Counts an exchange as answered at `now`; it was sent at `sent`.
    #[inline]
    pub(super) fn completed(&mut self, request: usize, due: u64, sent: u64, now: u64) {
        if now >= self.window.measure && now < self.window.end && self.summary.ended == 0 {
            self.summary.completed_in_time += 1;
        }
        if self.belongs(due) {
            let tally = &mut self.slice.tallies[request].tally;
            tally.completed += 1;
            tally.latency.record(now.saturating_sub(due));
            tally.service_time.record(now.saturating_sub(sent));
            if now > self.summary.last_answer && due >= self.window.measure {
                self.summary.last_answer = now;
            }
        }
    }

    /// Counts the status of a response. `refused_after`: the service time, if the status is unexpected.
    #[inline]
    pub(super) fn status(&mut self, request: usize, due: u64, status: u16, refused_after: Option<u64>) {
        if self.belongs(due) {
            let counts = &mut self.slice.tallies[request];
            counts.statuses[usize::from(status).min(STATUSES - 1)] += 1;
            if let Some(took) = refused_after {
                counts.tally.unexpected += 1;
                counts.tally.refused.record(took);
            }
        }
    }

    /// Counts the time in ns to the first byte of an answer.
    pub(super) fn first_byte(&mut self, request: usize, due: u64, ns: u64) {
        if self.belongs(due) {
            self.slice.tallies[request].tally.first_byte.get_or_insert_default().record(ns);
        }
    }

    /// Counts the messages of a call, and the time in ns to the first one of a stream.
    pub(super) fn messages(&mut self, request: usize, due: u64, count: u64, first_after: Option<u64>) {
        if self.belongs(due) {
            let tally = &mut self.slice.tallies[request].tally;
            tally.messages += count;
            if let Some(ns) = first_after {
                tally.first_message.get_or_insert_default().record(ns);
            }
        }
    }

    /// Counts an answer with an expected status that failed another check.
    pub(super) fn failed_check(&mut self, request: usize, due: u64) {
        if self.belongs(due) {
            self.slice.tallies[request].tally.failed_checks += 1;
        }
    }

    /// Keeps the counts of checks and passes for the summary.
    pub(super) fn flow(&mut self, tally: FlowTally) {
        self.summary.flow = Some(tally);
    }

    /// Counts an exchange that will not be answered.
    pub(super) fn failed(&mut self, request: usize, due: u64, cause: Cause) {
        if self.belongs(due) {
            self.slice.tallies[request].tally.errors.count(cause);
        }
    }

    /// Counts an exchange that was never sent.
    pub(super) fn missed(&mut self, request: usize, due: u64) {
        if self.belongs(due) {
            self.slice.tallies[request].tally.missed += 1;
        }
    }

    /// Counts the bytes of an exchange.
    #[inline]
    pub(super) fn bytes(&mut self, request: usize, due: u64, sent: u64, received: u64) {
        if self.belongs(due) {
            let tally = &mut self.slice.tallies[request].tally;
            tally.bytes_sent += sent;
            tally.bytes_received += received;
        }
    }

    /// Sets the number of exchanges in flight. One call per wake-up is precise enough.
    #[inline]
    pub(super) fn in_flight(&mut self, count: u64, now: u64) {
        let until = now.min(self.in_flight_until);
        if until > self.in_flight_since {
            self.summary.in_flight_area += self.in_flight as f64 * (until - self.in_flight_since) as f64;
            self.in_flight_since = until;
        }
        self.in_flight = count;
        if count > self.summary.in_flight_max && now >= self.window.measure {
            self.summary.in_flight_max = count;
        }
    }

    /// Counts time spent waiting without sleeping.
    #[inline]
    pub(super) fn spun(&mut self, ns: u64) {
        self.spin_ns += ns;
    }

    /// No request is due from now on: the count is reached, or the run was stopped.
    pub(super) fn end(&mut self, now: u64) {
        if self.summary.ended == 0 {
            self.summary.ended = now;
            if self.window.measure > self.window.start {
                self.in_flight_until = self.in_flight_until.min(now);
            }
        }
    }

    /// Passes on the last interval and the summary.
    pub(super) fn finish(&mut self, now: u64, connections: Connections) {
        self.roll(now);
        let last = now.max(self.slice.start);
        self.hand_over(last);
        self.in_flight(0, last);
        if let Some(from) = self.measured_from {
            self.summary.cpu = since(self.cpu_with_spin(), from);
        }
        self.summary.connections = connections;
        // Sending fails only if the collector has failed itself.
        let _ =
            self.out.send(RecorderMessage::Done { thread: self.thread, summary: std::mem::take(&mut self.summary) });
    }

    /// During warm-up everything is counted, for the time series; afterwards exchanges that were due in warm-up are not.
    #[inline]
    fn belongs(&self, due: u64) -> bool {
        due >= self.window.measure || self.slice.phase == LoadPhase::WarmUp
    }

    fn cpu_with_spin(&self) -> CpuTime {
        CpuTime { spin_ns: self.spin_ns, ..thread_cpu() }
    }

    fn open_slice(&mut self, index: usize, start: u64) {
        let MeasuredWindow { measure, end, interval, .. } = self.window;
        let (phase, limit) = match start {
            start if start < measure => (LoadPhase::WarmUp, measure),
            start if start < end => (LoadPhase::Measured, end),
            _ => (LoadPhase::Drain, u64::MAX),
        };
        if phase == LoadPhase::Measured && self.measured_from.is_none() {
            self.measured_from = Some(self.cpu_mark);
        }
        self.slice.index = index;
        self.slice.phase = phase;
        self.slice.start = start;
        self.next_roll = match phase {
            // Warm-up may end within an interval; the measurement begins with a new one.
            LoadPhase::WarmUp | LoadPhase::Measured => (start + interval).min(limit),
            LoadPhase::Drain => u64::MAX,
        };
    }

    fn hand_over(&mut self, end: u64) {
        let cpu = self.cpu_with_spin();
        self.slice.end = end;
        self.slice.cpu = since(cpu, self.cpu_mark);
        self.cpu_mark = cpu;
        let requests = self.slice.tallies.len();
        let fresh = self.spare.try_recv().unwrap_or_else(|_| RecordedInterval::new(requests));
        let slice = std::mem::replace(&mut self.slice, fresh);
        self.slice.index = slice.index;
        let _ = self.out.send(RecorderMessage::Slice { thread: self.thread, slice });
    }
}

impl RecordedInterval {
    /// Clears the interval for reuse.
    pub(super) fn clear(&mut self) {
        self.tallies.iter_mut().for_each(TallyCounter::clear);
    }
}

fn since(now: CpuTime, then: CpuTime) -> CpuTime {
    CpuTime {
        user_ns: now.user_ns.saturating_sub(then.user_ns),
        system_ns: now.system_ns.saturating_sub(then.system_ns),
        spin_ns: now.spin_ns.saturating_sub(then.spin_ns),
    }
}
