//! Waiting for conditions instead of for a fixed time.

use std::time::{Duration, Instant};

/// How long a test waits for a condition before it fails. Generous, because a shared machine can stand still for
/// seconds; a passing test never waits this long.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// The interval at which a condition is checked.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Waits until `fact` is true; panics with `what` after `deadline`.
#[track_caller]
pub fn eventually(what: &str, deadline: Duration, mut fact: impl FnMut() -> bool) {
    eventually_some(what, deadline, || fact().then_some(()));
}

/// Waits until `fact` has a value, and returns it; panics with `what` after `deadline`.
#[track_caller]
pub fn eventually_some<T>(what: &str, deadline: Duration, mut fact: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + deadline;
    loop {
        if let Some(value) = fact() {
            return value;
        }
        assert!(Instant::now() < end, "not within {deadline:?}: {what}");
        std::thread::sleep(LOOK_AGAIN);
    }
}
