//! Loads beside that of a row: what a hub of the target delivers, and clients that connect all at once.

use std::{
    sync::{Arc, atomic::AtomicBool},
    thread::{self, JoinHandle},
};

use rustix::process::setpriority_process;

use super::{LoadError, RunError};
use crate::{
    engine::{self, LoadPlan, LoadResult, LoadStart, PlanError},
    result::{FanOutDeliveries, NewClientsServed},
};

/// A load on threads of its own.
pub(super) struct LoadBeside(JoinHandle<Result<LoadResult, PlanError>>);

/// How much the threads of a load beside a row give way to those of the row: the row's clients are measured, on the same processors.
const NICENESS: i32 = 10;

impl LoadBeside {
    /// Starts a load. Returns when it has begun: the subscriptions of a hub have been verified. `gives_way`: its threads have the
    /// processor only when those of the row leave it.
    pub(super) fn start(plan: LoadPlan, gives_way: bool, stop: &Arc<AtomicBool>) -> Result<LoadBeside, RunError> {
        let start = LoadStart::default();
        let running = LoadBeside(thread::spawn({
            let (start, stop) = (start.clone(), stop.clone());
            move || {
                if gives_way {
                    // Of this thread, and of those that it starts. Each may lower its own priority.
                    let _ = setpriority_process(None, NICENESS);
                }
                let load = engine::run_signalled(&plan, &stop, &start, &mut |_| {});
                start.load_ended();
                load
            }
        }));
        match start.wait() {
            Some(_) => Ok(running),
            None => running.finish().and_then(|_| Err(RunError::Beside(LoadError::EndedEarly))),
        }
    }

    fn finish(self) -> Result<LoadResult, RunError> {
        let load = self.0.join().expect("the load engine reports every problem");
        load.map_err(|error| RunError::Beside(error.into()))
    }

    /// Waits for the last delivery of a hub.
    pub(super) fn deliveries(self) -> Result<FanOutDeliveries, RunError> {
        let (delivered, failed, longest_ms) = answered(&self.finish()?);
        Ok(FanOutDeliveries { delivered, failed, longest_ms })
    }

    /// Waits for the last answer to new clients.
    pub(super) fn new_clients(self) -> Result<NewClientsServed, RunError> {
        let (answered, failed, longest_ms) = answered(&self.finish()?);
        Ok(NewClientsServed { answered, failed, longest_ms })
    }
}

/// What was answered, what was not, and the longest time.
fn answered(LoadResult { total, .. }: &LoadResult) -> (u64, u64, f64) {
    let failed = total.errors.sum() + total.missed + total.unexpected;
    (total.completed, failed, if total.latency.is_empty() { 0.0 } else { total.latency.max() as f64 / 1e6 })
}
