//! The clock of limits: it never jumps, and all workers read the same one.

use std::sync::LazyLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use weir_net::clock::monotonic_ns;

/// What has to be added to the steady clock for the time of day, as it was when the process first asked. Later changes
/// of the system's time have no effect.
static TO_UNIX_NS: LazyLock<u64> = LazyLock::new(|| {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (unix.as_nanos() as u64).wrapping_sub(monotonic_ns())
});

/// Time since 1970, as of the start of the process and steady since.
pub fn now() -> Duration {
    Duration::from_nanos(monotonic_ns().wrapping_add(*TO_UNIX_NS))
}
