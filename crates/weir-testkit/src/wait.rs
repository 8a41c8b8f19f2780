//! Waiting for facts instead of waiting for a while.

use std::time::{Duration, Instant};

/// How long a test waits for something that must happen before it calls it broken. Generous, because a shared machine
/// can stand still for seconds; nothing that works ever waits this long.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// How often a fact is looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Waits until `fact` is true, and panics with `what` when it is not within `deadline`.
#[track_caller]
pub fn eventually(what: &str, deadline: Duration, mut fact: impl FnMut() -> bool) {
    eventually_some(what, deadline, || fact().then_some(()));
}

/// Waits until `fact` has a value and returns it, and panics with `what` when there is none within `deadline`.
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
