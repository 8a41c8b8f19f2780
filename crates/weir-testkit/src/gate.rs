//! Gates that hold a scripted peer until the test lets it continue.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::wait::DEADLINE;

/// A peer waits at its gate for longer than the test waits for each of the facts on the way to opening it.
const LONGEST_WAIT: Duration = DEADLINE.saturating_mul(5);

/// A turnstile: every [`Gate::open_once`] lets one [`Gate::wait`] through, [`Gate::open`] lets all through from then on.
/// Clones are the same gate.
#[derive(Clone, Debug, Default)]
pub struct Gate {
    inner: Arc<(Mutex<GateState>, Condvar)>,
}

#[derive(Debug, Default)]
struct GateState {
    open: bool,
    permits: usize,
    arrived: usize,
}

impl Gate {
    /// A closed gate.
    pub fn new() -> Gate {
        Gate::default()
    }

    /// Lets all waiting callers through, and all that come later.
    pub fn open(&self) {
        self.state().open = true;
        self.inner.1.notify_all();
    }

    /// Lets one caller through: one that waits, or the next one.
    pub fn open_once(&self) {
        self.state().permits += 1;
        self.inner.1.notify_all();
    }

    /// Waits until the gate lets the caller through. Panics after [`LONGEST_WAIT`], so that a forgotten gate ends its thread.
    #[track_caller]
    pub fn wait(&self) {
        let mut state = self.state();
        state.arrived += 1;
        self.inner.1.notify_all();
        let (mut state, timeout) = self
            .inner
            .1
            .wait_timeout_while(state, LONGEST_WAIT, |state| !state.open && state.permits == 0)
            .unwrap_or_else(PoisonError::into_inner);
        assert!(!timeout.timed_out(), "this gate was not opened within {LONGEST_WAIT:?}");
        if !state.open {
            state.permits -= 1;
        }
    }

    /// Waits until `count` callers in total have reached the gate, whether they have passed it or not.
    #[track_caller]
    pub fn wait_arrived(&self, count: usize) {
        let state = self.state();
        let (state, timeout) = self
            .inner
            .1
            .wait_timeout_while(state, DEADLINE, |state| state.arrived < count)
            .unwrap_or_else(PoisonError::into_inner);
        assert!(!timeout.timed_out(), "{} of {count} came to this gate within {DEADLINE:?}", state.arrived);
    }

    fn state(&self) -> MutexGuard<'_, GateState> {
        self.inner.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lets_through_one_per_permit_and_all_once_open() {
        let gate = Gate::new();
        gate.open_once();
        gate.wait();
        let waiting = std::thread::spawn({
            let gate = gate.clone();
            move || gate.wait()
        });
        gate.wait_arrived(2);
        assert!(!waiting.is_finished());
        gate.open();
        waiting.join().expect("the gate is open");
        gate.wait();
    }
}
