//! What the process and its metrics show of durable counters.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use weir_plugin::state;

#[derive(Default)]
struct DurableTotals {
    failed_writes: AtomicU64,
    refusal: Mutex<Option<String>>,
}

fn totals() -> Arc<DurableTotals> {
    state::permanent("durable-counters")
}

/// How often counters could not be written.
pub fn failed_writes() -> u64 {
    totals().failed_writes.load(Ordering::Relaxed)
}

pub fn count_failure() {
    totals().failed_writes.fetch_add(1, Ordering::Relaxed);
}

/// Why this process must not begin to serve: another one keeps the counters of its folder.
pub fn refusal() -> Option<String> {
    totals().refusal.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

pub fn refuse(why: &str) {
    *totals().refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.to_owned());
}
