//! What the process and its metrics show of durable counters.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use weir_plugin::state;

#[derive(Default)]
struct DurableTotals {
    failed_writes: AtomicU64,
    refusal: Mutex<Option<String>>,
    /// The node has asked for the refusal, and logs later ones.
    has_begun: AtomicBool,
}

fn totals() -> Arc<DurableTotals> {
    state::permanent("durable-counters")
}

/// How often counters could not be written.
pub fn failed_writes() -> u64 {
    totals().failed_writes.load(Ordering::Relaxed)
}

pub(super) fn count_failure() {
    totals().failed_writes.fetch_add(1, Ordering::Relaxed);
}

/// Why this process must not begin to serve: another one keeps the counters of its folder. To be called before it serves.
pub fn refusal() -> Option<String> {
    totals().has_begun.store(true, Ordering::Relaxed);
    totals().refusal.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Returns whether the caller of [`refusal`] will say it: the process has not begun to serve.
pub(super) fn refuse(why: &str) -> bool {
    *totals().refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.to_owned());
    !totals().has_begun.load(Ordering::Relaxed)
}
