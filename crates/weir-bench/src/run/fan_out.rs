//! What a hub of the target delivers beside the load of a row.

use std::{
    sync::{Arc, atomic::AtomicBool},
    thread::{self, JoinHandle},
};

use super::{LoadError, RunError};
use crate::{
    engine::{self, LoadPlan, LoadResult, LoadStart, PlanError},
    result::FanOutDeliveries,
};

/// A publisher and its subscribers, on threads of their own.
pub(super) struct RunningFanOut(JoinHandle<Result<LoadResult, PlanError>>);

/// Starts a fan-out. Returns when its subscriptions have been verified.
pub(super) fn start(plan: LoadPlan, stop: &Arc<AtomicBool>) -> Result<RunningFanOut, RunError> {
    let start = LoadStart::default();
    let running = RunningFanOut(thread::spawn({
        let (start, stop) = (start.clone(), stop.clone());
        move || {
            let load = engine::run_signalled(&plan, &stop, &start, &mut |_| {});
            start.load_ended();
            load
        }
    }));
    match start.wait() {
        Some(_) => Ok(running),
        None => running.finish().and_then(|_| Err(RunError::FanOut(LoadError::EndedEarly))),
    }
}

impl RunningFanOut {
    /// Waits for the last delivery.
    pub(super) fn finish(self) -> Result<FanOutDeliveries, RunError> {
        let load = self.0.join().expect("the load engine reports every problem");
        let LoadResult { total, .. } = load.map_err(|error| RunError::FanOut(error.into()))?;
        Ok(FanOutDeliveries {
            delivered: total.completed,
            failed: total.errors.sum() + total.missed + total.unexpected,
            longest_ms: if total.latency.is_empty() { 0.0 } else { total.latency.max() as f64 / 1e6 },
        })
    }
}
