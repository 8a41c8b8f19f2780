//! The latest figures of the node, once a second, for the console: an hour of them, and a stream.
//!
//! A thread reads the counters that `/metrics` reads as well. Memory is bounded: [`SECONDS`] and [`SLOTS`] samples of all series of
//! the node (70 kB), and [`SLOTS`] of four series of each of [`routes::MOST_ROUTES`] routes (580 kB), after an hour of traffic.

mod routes;
mod sample;

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use super::state::NodeState;
use routes::BusiestRoutes;
use sample::{CounterReading, NAMES, Sample, number};

const STEP: Duration = Duration::from_secs(1);
/// The steps of a slot of the longer history.
const SLOT_STEPS: usize = 10;
/// The samples kept with one per second: ten minutes.
const SECONDS: usize = 600;
/// The samples kept with one per slot: an hour.
const SLOTS: usize = 360;

/// The history of figures. Dropping the [`FigureThread`] ends it.
pub(super) struct Figures {
    state: Arc<NodeState>,
    history: Mutex<FigureHistory>,
}

#[derive(Default)]
struct FigureHistory {
    seconds: VecDeque<Sample>,
    slots: VecDeque<Sample>,
    routes: BusiestRoutes,
    /// Counts the samples.
    taken: u64,
}

/// The thread that takes samples.
pub(super) struct FigureThread {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The range of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FigureRange {
    TenMinutes,
    Hour,
}

impl Figures {
    /// Starts the thread.
    ///
    /// # Errors
    /// If there is no thread to be had.
    pub(super) fn start(state: Arc<NodeState>) -> io::Result<(Arc<Figures>, FigureThread)> {
        let figures = Arc::new(Figures { state, history: Mutex::default() });
        let (stop, stopped) = channel();
        let taking = Arc::clone(&figures);
        let thread = std::thread::Builder::new().name("figures".into()).spawn(move || taking.take_all(&stopped))?;
        Ok((figures, FigureThread { stop: Some(stop), thread: Some(thread) }))
    }

    fn take_all(&self, stopped: &Receiver<()>) {
        let mut last = CounterReading::now(&self.state);
        let mut slot = last.clone();
        let mut due = Instant::now() + STEP;
        let mut steps = 0;
        while stopped.recv_timeout(due.saturating_duration_since(Instant::now())) == Err(RecvTimeoutError::Timeout) {
            let now = CounterReading::now(&self.state);
            let second = now.since(&last);
            last = now;
            steps += 1;
            let longer = (steps % SLOT_STEPS == 0).then(|| last.since(&slot));
            let routes = longer.is_some().then(|| self.state.metrics.routes.totals(self.state.metrics.workers()));
            let mut history = self.history();
            history.taken += 1;
            push(&mut history.seconds, second, SECONDS);
            if let Some((longer, routes)) = longer.zip(routes) {
                history.routes.take(&routes, last.at.saturating_duration_since(slot.at), SLOTS);
                push(&mut history.slots, longer, SLOTS);
                slot.clone_from(&last);
            }
            drop(history);
            due += STEP;
            if due < Instant::now() {
                // The machine slept, or was busy for a while: missed steps are left out.
                due = Instant::now() + STEP;
            }
        }
    }

    /// The history of all series of the node.
    pub(super) fn history_of(&self, range: FigureRange) -> Value {
        let history = self.history();
        let (samples, step) = match range {
            FigureRange::TenMinutes => (&history.seconds, STEP),
            FigureRange::Hour => (&history.slots, STEP * SLOT_STEPS as u32),
        };
        let series: Map<String, Value> = NAMES
            .iter()
            .enumerate()
            .map(|(index, name)| {
                let values = samples.iter().map(|sample| number(sample.values[index])).collect();
                ((*name).to_owned(), values)
            })
            .collect();
        json!({
            "step_ms": step.as_millis() as u64,
            "end_ms": samples.back().map_or_else(now_ms, |sample| sample.at_ms),
            "series": series,
        })
    }

    /// The history of a route, or the latest values of the busiest ones.
    pub(super) fn history_of_routes(&self, route: Option<&str>) -> Value {
        let history = self.history();
        json!({
            "step_ms": (STEP * SLOT_STEPS as u32).as_millis() as u64,
            "end_ms": history.slots.back().map_or_else(now_ms, |sample| sample.at_ms),
            "routes": history.routes.told(route),
        })
    }

    /// The number of the latest sample, and its frame for a stream; `None` before the first, and if the number is that of `last`.
    pub(super) fn frame_after(&self, last: u64) -> Option<(u64, Value)> {
        let (taken, sample) = {
            let history = self.history();
            (history.taken, history.seconds.back().cloned().filter(|_| history.taken != last)?)
        };
        let values: Map<String, Value> =
            NAMES.iter().zip(sample.values).map(|(name, value)| ((*name).to_owned(), number(value))).collect();
        Some((
            taken,
            json!({
                "type": "frame",
                "at_ms": sample.at_ms,
                "step_ms": STEP.as_millis() as u64,
                "revision": self.state.revision(),
                "store_revision": self.state.publisher.status().store_revision,
                "values": values,
            }),
        ))
    }

    fn history(&self) -> MutexGuard<'_, FigureHistory> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for FigureThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been logged already.
            let _ = thread.join();
        }
    }
}

fn push(samples: &mut VecDeque<Sample>, sample: Sample, most: usize) {
    if samples.len() == most {
        samples.pop_front();
    }
    samples.push_back(sample);
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}
