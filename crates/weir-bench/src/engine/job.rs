//! The input of a generator thread, and what all kinds of threads share: the common start, the choice of requests, and
//! the budget of requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};

use super::plan::{LoadPlan, Selection};
use super::prepare::PreparedLoad;
use super::recorder::{MeasuredWindow, RecordedInterval, Recorder, RecorderMessage};
use crate::stats::SeededRandom;

/// One thread's part of a run.
pub(super) struct Job {
    pub thread: usize,
    /// The clients of this thread, by their numbers in the whole run.
    pub clients: std::ops::Range<usize>,
    pub prepared: Arc<PreparedLoad>,
    pub tickets: RequestBudget,
    pub gate: StartBarrier,
}

impl Job {
    pub(super) fn plan(&self) -> &LoadPlan {
        &self.prepared.plan
    }
}

/// Lets threads wait for each other, so that connections are open before the clock starts.
pub(super) struct StartBarrier {
    pub thread: usize,
    pub requests: usize,
    pub ready: Sender<()>,
    pub go: Receiver<MeasuredWindow>,
    pub out: Sender<RecorderMessage>,
    pub spare: Receiver<Box<RecordedInterval>>,
}

impl StartBarrier {
    /// Reports readiness and waits for the others. `None` if the run was cancelled meanwhile.
    pub(super) fn pass(self) -> Option<(Recorder, MeasuredWindow)> {
        self.ready.send(()).ok()?;
        let window = self.go.recv().ok()?;
        Some((Recorder::new(self.thread, window, self.requests, self.out, self.spare), window))
    }
}

/// The number of requests left, if a count ends the run, and the flag that stops it early.
#[derive(Clone)]
pub(super) struct RequestBudget {
    left: Option<Arc<AtomicU64>>,
    stop: Arc<AtomicBool>,
}

impl RequestBudget {
    pub(super) fn new(count: Option<u64>, stop: Arc<AtomicBool>) -> Self {
        Self { left: count.map(|count| Arc::new(AtomicU64::new(count))), stop }
    }

    /// Takes one request; false if none is left.
    #[inline]
    pub(super) fn take(&self) -> bool {
        self.left.as_ref().is_none_or(|left| {
            left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
        })
    }

    /// Whether the run has been stopped early.
    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Chooses the next request of a client.
pub(super) enum Chooser {
    Only,
    Weighted {
        random: SeededRandom,
        /// Running sums of the weights.
        sums: Vec<u64>,
    },
    /// The position of each client in the list of requests.
    Sequence(Vec<u32>),
}

impl Chooser {
    pub(super) fn new(plan: &LoadPlan, thread: usize, clients: usize) -> Self {
        if plan.requests.len() == 1 {
            return Chooser::Only;
        }
        match plan.selection {
            Selection::Sequence => Chooser::Sequence(vec![0; clients]),
            Selection::Weighted => {
                let mut sum = 0;
                let sums = plan.requests.iter().map(|request| {
                    sum += u64::from(request.weight);
                    sum
                });
                let seed = plan.seed ^ (thread as u64 + 1).wrapping_mul(0xD1B5_4A32_D192_ED03);
                Chooser::Weighted { random: SeededRandom::new(seed), sums: sums.collect() }
            }
        }
    }

    /// A client that sends requests in sequence begins with the first one.
    pub(super) fn restart(&mut self, client: usize) {
        if let Chooser::Sequence(positions) = self {
            positions[client] = 0;
        }
    }

    /// The next request. In an open loop, which has no clients of its own, `client` is 0.
    #[inline]
    pub(super) fn next(&mut self, client: usize, requests: usize) -> usize {
        match self {
            Chooser::Only => 0,
            Chooser::Weighted { random, sums } => {
                let total = *sums.last().expect("a plan has at least one request");
                let drawn = random.below(total as usize) as u64;
                sums.partition_point(|sum| *sum <= drawn)
            }
            Chooser::Sequence(positions) => {
                let position = positions[client] as usize;
                positions[client] = ((position + 1) % requests) as u32;
                position
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::plan::{RequestTemplate, StopCondition};

    fn plan(selection: Selection) -> LoadPlan {
        let mut plan = LoadPlan::closed("http://a/", 1, StopCondition::after_count(1));
        plan.requests = [1, 0, 3].map(|weight| RequestTemplate { weight, ..RequestTemplate::get("http://a/") }).into();
        plan.selection = selection;
        plan
    }

    #[test]
    fn weights_are_kept() {
        let mut chooser = Chooser::new(&plan(Selection::Weighted), 0, 1);
        let mut counts = [0; 3];
        for _ in 0..40_000 {
            counts[chooser.next(0, 3)] += 1;
        }
        assert_eq!(counts[1], 0);
        assert!((counts[2] as f64 / counts[0] as f64 - 3.0).abs() < 0.2, "{counts:?}");
    }

    #[test]
    fn a_sequence_is_followed_by_each_client() {
        let mut chooser = Chooser::new(&plan(Selection::Sequence), 0, 2);
        let order: Vec<usize> = [0, 0, 1, 0, 1, 0].map(|client| chooser.next(client, 3)).into();
        assert_eq!(order, [0, 1, 0, 2, 1, 0]);
    }

    #[test]
    fn tickets_run_out() {
        let tickets = RequestBudget::new(Some(2), Arc::default());
        assert_eq!([tickets.take(), tickets.take(), tickets.take()], [true, true, false]);
        assert!(RequestBudget::new(None, Arc::default()).take());
    }
}
