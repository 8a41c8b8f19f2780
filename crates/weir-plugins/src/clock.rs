//! The clock of limits: monotonic, and the same for all workers.

use std::sync::LazyLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use weir_net::clock::monotonic_ns;

/// The offset from the monotonic clock to Unix time, determined at the first call of `now`. Later changes of the
/// system's time have no effect.
static TO_UNIX_NS: LazyLock<u64> = LazyLock::new(|| {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (unix.as_nanos() as u64).wrapping_sub(monotonic_ns())
});

/// Time since 1970: the system's time at the first call, plus the monotonic time since then.
pub(crate) fn now() -> Duration {
    Duration::from_nanos(monotonic_ns().wrapping_add(*TO_UNIX_NS))
}
