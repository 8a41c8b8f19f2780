//! Runs a plan: starts the threads together, collects their counts, and assembles the result.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity, set_current_timer_slack};

use super::clock::{now_ns, unix_ns};
use super::http1;
use super::job::{Job, RequestBudget, StartBarrier};
use super::plan::{LoadPlan, PlanError, Protocol};
use super::prepare::PreparedLoad;
use super::recorder::{MeasuredWindow, RecordedInterval, RecorderMessage, RecorderSummary};
use super::result::{
    CpuTime, FlowTally, Generator, LoadInterval, LoadPhase, LoadProgress, LoadResult, LoadTally, RequestTally,
};
use super::start::LoadStart;
use super::streams;

/// How often progress is reported.
const REPORT: Duration = Duration::from_millis(200);
/// The time from the readiness of all threads to the start of the run.
const HEAD_START_NS: u64 = 1_000_000;

/// Runs a plan to its end; `progress` is called several times a second from the calling thread.
///
/// Errors of the network are counted in the result. An `Err` means that the plan cannot be run at all.
pub fn run(plan: &LoadPlan, progress: &mut dyn FnMut(&LoadProgress)) -> Result<LoadResult, PlanError> {
    run_until(plan, &Arc::default(), progress)
}

/// Like [`run`]; ends early, with what has been measured so far, once `stop` is true.
pub fn run_until(
    plan: &LoadPlan,
    stop: &Arc<AtomicBool>,
    progress: &mut dyn FnMut(&LoadProgress),
) -> Result<LoadResult, PlanError> {
    run_signalled(plan, stop, &LoadStart::default(), progress)
}

/// Checks whether a plan can be run; the address is that of its first request.
pub(crate) fn checked_address(plan: &LoadPlan) -> Result<SocketAddr, PlanError> {
    let prepared = PreparedLoad::new(plan)?;
    Ok(prepared.origins[prepared.requests[0].origin].address)
}

/// Like [`run_until`]; `start` is set when the clock starts, before which connections may have been opened.
pub fn run_signalled(
    plan: &LoadPlan,
    stop: &Arc<AtomicBool>,
    start: &LoadStart,
    progress: &mut dyn FnMut(&LoadProgress),
) -> Result<LoadResult, PlanError> {
    run_when(plan, stop, start, &mut || now_ns() + HEAD_START_NS, progress)
}

/// Like [`run_signalled`]; `begin` is called when all threads are ready. It returns shortly before the clock is to start, with
/// the monotonic time of that start in ns. A time that has passed means as soon as possible.
pub fn run_when(
    plan: &LoadPlan,
    stop: &Arc<AtomicBool>,
    start: &LoadStart,
    begin: &mut dyn FnMut() -> u64,
    progress: &mut dyn FnMut(&LoadProgress),
) -> Result<LoadResult, PlanError> {
    let prepared = Arc::new(PreparedLoad::new(plan)?);
    let count = threads(plan);
    let tickets = RequestBudget::new(plan.stop.count, stop.clone());
    let (ready, is_ready) = channel();
    let (out, messages) = channel();
    let mut threads = Vec::new();
    for thread in 0..count {
        let (go, gone) = channel();
        let (give_back, spare) = channel();
        let share = |thread: usize| plan.connections * thread / count;
        let gate = StartBarrier {
            thread,
            requests: plan.requests.len(),
            ready: ready.clone(),
            go: gone,
            out: out.clone(),
            spare,
        };
        let job = Job {
            thread,
            clients: share(thread)..share(thread + 1),
            prepared: prepared.clone(),
            tickets: tickets.clone(),
            gate,
        };
        let handle = thread::Builder::new()
            .name(format!("load-{thread}"))
            .spawn(move || work(job))
            .map_err(|error| PlanError::new("threads", format!("cannot start thread {thread}: {error}")))?;
        threads.push(Thread { handle, go, give_back });
    }
    drop((ready, out));
    let ready = threads.iter().filter(|_| is_ready.recv().is_ok()).count();
    let (window, started_unix_ns) = start_threads(plan, &threads, ready == count, start, begin());
    let mut collector = Collector::new(plan, window, started_unix_ns);
    let aside = OtherProcessors::from(plan);
    collector.collect(&messages, &threads, progress);
    drop(aside);
    for thread in threads {
        drop(thread.go);
        // A panic is a bug of the engine, and its message must not be lost.
        thread.handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    }
    Ok(collector.result())
}

/// Lets the threads start at this monotonic time, or as soon as possible; none if one of them is not there. The times of the run,
/// and its start as Unix time.
fn start_threads(
    plan: &LoadPlan,
    threads: &[Thread],
    all_ready: bool,
    start: &LoadStart,
    asked_ns: u64,
) -> (MeasuredWindow, u64) {
    let now = now_ns();
    let ahead = asked_ns.max(now + HEAD_START_NS) - now;
    let window = window(plan, now + ahead);
    let started_unix_ns = unix_ns() + ahead;
    if all_ready {
        start.set(Instant::now() + Duration::from_nanos(ahead));
    }
    for thread in threads.iter().filter(|_| all_ready) {
        let _ = thread.go.send(window);
    }
    (window, started_unix_ns)
}

/// While it exists, keeps the calling thread off the processors of spinning generator threads, if there are others:
/// merging an interval takes a millisecond, by which due requests would be delayed.
struct OtherProcessors {
    before: Option<CpuSet>,
}

impl OtherProcessors {
    fn from(plan: &LoadPlan) -> Self {
        let Some(before) = sched_getaffinity(None).ok().filter(|_| plan.spins()) else { return Self { before: None } };
        let mut others = before;
        plan.cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU).for_each(|cpu| others.unset(*cpu));
        let moved = others != before && others.count() > 0 && sched_setaffinity(None, &others).is_ok();
        Self { before: moved.then_some(before) }
    }
}

impl Drop for OtherProcessors {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = sched_setaffinity(None, before);
        }
    }
}

struct Thread {
    handle: thread::JoinHandle<()>,
    go: Sender<MeasuredWindow>,
    give_back: Sender<Box<RecordedInterval>>,
}

/// WebSub uses one thread, because the publisher and the subscribers share the expected deliveries.
fn threads(plan: &LoadPlan) -> usize {
    if matches!(plan.protocol, Protocol::WebSub { .. }) { 1 } else { plan.threads }
}

fn window(plan: &LoadPlan, start: u64) -> MeasuredWindow {
    let measure = start + plan.warm_up_ms * 1_000_000;
    MeasuredWindow {
        start,
        measure,
        end: plan.stop.duration_ms.map_or(u64::MAX, |ms| measure + ms * 1_000_000),
        interval: plan.interval_ms * 1_000_000,
    }
}

/// The body of a generator thread.
fn work(job: Job) {
    let cpus = &job.plan().cpus;
    if !cpus.is_empty() {
        let mut set = CpuSet::new();
        set.set(cpus[job.thread % cpus.len()]);
        // If the process may not use the processor, the thread is not pinned; the lag in the result shows the effect.
        let _ = sched_setaffinity(None, &set);
    }
    // The kernel's default lets timers expire up to 50 µs late, to save wake-ups.
    let _ = set_current_timer_slack(NonZeroU64::new(1));
    match job.plan().protocol {
        Protocol::Http1 => http1::run(job),
        _ => streams::run(job),
    }
}

/// Merges what the threads send.
struct Collector<'a> {
    plan: &'a LoadPlan,
    window: MeasuredWindow,
    started_unix_ns: u64,
    /// Intervals that only some threads have sent so far, with the number of these threads.
    open: BTreeMap<usize, (usize, LoadInterval)>,
    intervals: Vec<LoadInterval>,
    requests: Vec<LoadTally>,
    summaries: BTreeMap<usize, Box<RecorderSummary>>,
    progress: LoadProgress,
}

impl<'a> Collector<'a> {
    fn new(plan: &'a LoadPlan, window: MeasuredWindow, started_unix_ns: u64) -> Self {
        Self {
            plan,
            window,
            started_unix_ns,
            open: BTreeMap::new(),
            intervals: Vec::new(),
            requests: plan.requests.iter().map(|_| LoadTally::default()).collect(),
            summaries: BTreeMap::new(),
            progress: LoadProgress {
                planned_ns: plan.stop.duration_ms.map(|ms| (plan.warm_up_ms + ms) * 1_000_000),
                planned_count: plan.stop.count,
                ..LoadProgress::default()
            },
        }
    }

    fn collect(
        &mut self,
        messages: &Receiver<RecorderMessage>,
        threads: &[Thread],
        progress: &mut dyn FnMut(&LoadProgress),
    ) {
        let mut last_report = now_ns();
        while self.summaries.len() < threads.len() {
            match messages.recv_timeout(REPORT) {
                Ok(RecorderMessage::Slice { thread, mut slice }) => {
                    self.take(&mut slice, threads.len());
                    slice.clear();
                    let _ = threads[thread].give_back.send(slice);
                }
                Ok(RecorderMessage::Done { thread, summary }) => {
                    self.summaries.insert(thread, summary);
                }
                Err(RecvTimeoutError::Timeout) => {}
                // A thread has panicked; joining it reports the panic.
                Err(RecvTimeoutError::Disconnected) => break,
            }
            let now = now_ns();
            if now - last_report >= REPORT.as_nanos() as u64 {
                last_report = now;
                self.progress.elapsed_ns = now.saturating_sub(self.window.start);
                self.progress.phase = match now {
                    now if now < self.window.measure => LoadPhase::WarmUp,
                    now if now < self.window.end => LoadPhase::Measured,
                    _ => LoadPhase::Drain,
                };
                progress(&self.progress);
            }
        }
        while let Some((_, (_, interval))) = self.open.pop_first() {
            self.close(interval);
        }
    }

    /// Adds the interval of one thread.
    fn take(&mut self, slice: &mut RecordedInterval, threads: usize) {
        let (taken, interval) = self.open.entry(slice.index).or_insert_with(|| {
            let empty = LoadInterval {
                phase: slice.phase,
                start_ns: slice.start - self.window.start,
                length_ns: 0,
                tally: LoadTally::default(),
                cpu: CpuTime::default(),
            };
            (0, empty)
        });
        interval.length_ns = interval.length_ns.max(slice.end - slice.start);
        interval.cpu.add(&slice.cpu);
        for (counts, request) in slice.tallies.iter_mut().zip(&mut self.requests) {
            counts.settle();
            interval.tally.add(&counts.tally);
            if slice.phase != LoadPhase::WarmUp {
                request.add(&counts.tally);
            }
        }
        *taken += 1;
        if *taken == threads
            && let Some((_, interval)) = self.open.remove(&slice.index)
        {
            self.close(interval);
        }
    }

    /// Appends an interval that all threads have sent.
    fn close(&mut self, mut interval: LoadInterval) {
        let tally = &interval.tally;
        let seconds = interval.length_ns.max(1) as f64 / 1e9;
        if interval.phase != LoadPhase::WarmUp {
            self.progress.completed += tally.completed;
            self.progress.failed += tally.failed();
        } else if tally.due + tally.completed + tally.errors.sum() + tally.missed == 0 && interval.length_ns == 0 {
            return;
        }
        self.progress.rate = Some(tally.completed as f64 / seconds);
        self.progress.p50_ns = tally.latency.quantile_if_any(0.5);
        self.progress.p99_ns = tally.latency.quantile_if_any(0.99);
        self.progress.lag_p999_ns = tally.lag.quantile_if_any(0.999);
        let LoadTally { latency, service_time, first_byte, first_message, lag, .. } = &mut interval.tally;
        for histogram in [latency, service_time, lag].into_iter().chain(first_byte).chain(first_message) {
            *histogram = histogram.packed();
        }
        self.intervals.push(interval);
    }

    fn result(mut self) -> LoadResult {
        let summaries = &self.summaries;
        let ended = summaries.values().map(|summary| summary.ended).max().unwrap_or(0);
        let last_answer = summaries.values().map(|summary| summary.last_answer).max().unwrap_or(0);
        // If the duration ends a run, the measurement ends as planned. If a count does, it ends when the last request
        // was due, provided there was a warm-up, whose last answers came within the measurement; otherwise with the last answer.
        let warmed_up = self.window.measure > self.window.start;
        let end = match ended {
            ended if ended >= self.window.end => self.window.end,
            ended if warmed_up => ended,
            ended => ended.max(last_answer),
        };
        let measured_ns = end.saturating_sub(self.window.measure);
        let in_time = summaries.values().map(|summary| summary.completed_in_time).sum();
        let mut total = LoadTally::default();
        for tally in &self.requests {
            total.add(tally);
        }
        let requests = match self.plan.requests.as_slice() {
            [_] => Vec::new(),
            several => several
                .iter()
                .zip(std::mem::take(&mut self.requests))
                .map(|(request, tally)| RequestTally { name: request.label().to_owned(), tally })
                .collect(),
        };
        let mut connections = super::Connections::default();
        let mut generator = Generator::default();
        for summary in summaries.values() {
            connections.add(&summary.connections);
            generator.threads.push(summary.cpu);
            generator.in_flight_max += summary.in_flight_max;
            generator.in_flight_mean += summary.in_flight_area / measured_ns.max(1) as f64;
        }
        for interval in &mut self.intervals {
            if interval.phase == LoadPhase::Measured && self.window.start + interval.start_ns >= end {
                interval.phase = LoadPhase::Drain;
            }
        }
        self.intervals.sort_by_key(|interval| (interval.start_ns, interval.phase));
        self.intervals.retain(|interval| {
            let tally = &interval.tally;
            interval.length_ns > 0 || tally.due + tally.completed + tally.missed + tally.errors.sum() > 0
        });
        LoadResult {
            started_unix_ns: self.started_unix_ns,
            warm_up_ns: self.window.measure - self.window.start,
            measured_ns,
            drain_ns: last_answer.saturating_sub(end),
            // Without a warm-up, a count or a stop ends the measurement with the last answer, so all are within.
            completed_in_time: Some(if end < self.window.end && !warmed_up { total.completed } else { in_time }),
            total,
            requests,
            intervals: self.intervals,
            flow: flow_of_all(&self.summaries),
            connections,
            generator,
        }
    }
}

/// The checks and passes of all threads.
fn flow_of_all(summaries: &BTreeMap<usize, Box<RecorderSummary>>) -> Option<FlowTally> {
    let mut tallies = summaries.values().filter_map(|summary| summary.flow.as_ref());
    let mut all = tallies.next()?.clone();
    tallies.for_each(|tally| all.add(tally));
    Some(all)
}
