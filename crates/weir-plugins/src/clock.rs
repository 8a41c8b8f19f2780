//! The clock of limits: it never jumps, and all workers read the same one.

use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// When the process first asked, and what time of day it was then. Later changes of the system's time have no effect.
static START: LazyLock<(Instant, Duration)> = LazyLock::new(|| {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (Instant::now(), unix)
});

/// Time since 1970, as of the start of the process and steady since.
pub fn now() -> Duration {
    let (start, unix) = *START;
    unix + start.elapsed()
}
