//! Waiting for conditions instead of for a fixed time.

use std::time::{Duration, Instant};

/// How long a test waits for a condition before it fails. Generous, because a shared machine can stand still for
/// seconds; a passing test never waits this long.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// The pause between two checks of a condition: a part of the time that it has taken already, as a check can cost much more than
/// a look at a variable, such as a scrape of the metrics. Others, such as requests, are what makes it true: these may not become rare.
const SHORTEST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(10);
const PAUSES_IN_A_WAIT: u32 = 32;

/// Waits until `fact` is true; panics with `what` after `deadline`.
#[track_caller]
pub fn eventually(what: &str, deadline: Duration, mut fact: impl FnMut() -> bool) {
    eventually_some(what, deadline, || fact().then_some(()));
}

/// Waits until `fact` has a value, and returns it; panics with `what` after `deadline`.
#[track_caller]
pub fn eventually_some<T>(what: &str, deadline: Duration, mut fact: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(value) = fact() {
            return value;
        }
        let waited = began.elapsed();
        assert!(waited < deadline, "not within {deadline:?}: {what}");
        std::thread::sleep((waited / PAUSES_IN_A_WAIT).clamp(SHORTEST_PAUSE, LONGEST_PAUSE));
    }
}
