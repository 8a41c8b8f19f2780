//! Tells other threads when the clock of a load starts: all its threads are ready, and connections that are opened in advance
//! are open.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

/// Shared by the load engine, which sets it once, and all that measures or changes something at times of the load.
#[derive(Clone, Debug, Default)]
pub struct LoadStart(Arc<(Mutex<StartState>, Condvar)>);

#[derive(Clone, Copy, Debug, Default)]
enum StartState {
    #[default]
    Waiting,
    At(Instant),
    Never,
}

impl LoadStart {
    /// The clock starts at this time.
    pub fn set(&self, at: Instant) {
        self.replace(StartState::At(at));
    }

    /// The load has ended: whoever still waits for its start waits in vain.
    pub fn load_ended(&self) {
        self.replace(StartState::Never);
    }

    /// Waits for the time at which the clock starts; it may be a moment ahead. `None` if the load ended before.
    pub fn wait(&self) -> Option<Instant> {
        let (state, changed) = &*self.0;
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match *state {
                StartState::Waiting => state = changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                StartState::At(at) => return Some(at),
                StartState::Never => return None,
            }
        }
    }

    fn replace(&self, next: StartState) {
        let (state, changed) = &*self.0;
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*state, StartState::Waiting) {
            *state = next;
            changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn waiter_gets_the_start_or_the_end() {
        let start = LoadStart::default();
        let waiting = thread::spawn({
            let start = start.clone();
            move || start.wait()
        });
        let at = Instant::now();
        start.set(at);
        start.load_ended();
        assert_eq!(waiting.join().expect("it returns"), Some(at));
        assert_eq!(start.wait(), Some(at), "the first is kept");
        let failed = LoadStart::default();
        failed.load_ended();
        assert_eq!(failed.wait(), None);
    }
}
