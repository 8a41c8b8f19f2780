//! The memory for records.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The bytes of records that all sinks of a process hold in memory, and the limits, which writers read without a lock.
pub(crate) struct RecordMemory {
    in_use: AtomicU64,
    most: AtomicU64,
    most_of_sink: AtomicU64,
}

impl RecordMemory {
    /// The limits are those of all sinks together, and of each sink.
    pub(crate) fn new(most: u64, most_of_sink: u64) -> RecordMemory {
        RecordMemory { in_use: AtomicU64::new(0), most: most.into(), most_of_sink: most_of_sink.into() }
    }

    pub(crate) fn set_limits(&self, most: u64, most_of_sink: u64) {
        self.most.store(most, Ordering::Relaxed);
        self.most_of_sink.store(most_of_sink, Ordering::Relaxed);
    }

    pub(crate) fn in_use(&self) -> u64 {
        self.in_use.load(Ordering::Relaxed)
    }

    pub(crate) fn most(&self) -> u64 {
        self.most.load(Ordering::Relaxed)
    }

    pub(crate) fn most_of_sink(&self) -> u64 {
        self.most_of_sink.load(Ordering::Relaxed)
    }
}

/// The bytes of records that a sink holds in memory, counted against its own limit and against that of all sinks. Its task and
/// its writers share it.
pub(crate) struct SinkMemory {
    all: Arc<RecordMemory>,
    held: AtomicU64,
}

impl SinkMemory {
    pub(crate) fn new(all: Arc<RecordMemory>) -> SinkMemory {
        SinkMemory { all, held: AtomicU64::new(0) }
    }

    /// Reserves memory for a record; `false` if a limit does not allow it.
    pub(crate) fn take(&self, bytes: u64) -> bool {
        let has_room = add_up_to(&self.held, bytes, self.all.most_of_sink());
        if has_room && !add_up_to(&self.all.in_use, bytes, self.all.most()) {
            self.held.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        has_room
    }

    /// Counts a record beyond the limits.
    pub(crate) fn take_anyway(&self, bytes: u64) {
        self.held.fetch_add(bytes, Ordering::Relaxed);
        self.all.in_use.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn give(&self, bytes: u64) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
        self.all.in_use.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Whether the limits allow so many more bytes.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        let fits = |used: u64, most: u64| used.saturating_add(bytes) <= most;
        fits(self.held.load(Ordering::Relaxed), self.all.most_of_sink()) && fits(self.all.in_use(), self.all.most())
    }

    /// Whether three quarters of a limit are used.
    pub(crate) fn is_nearly_full(&self) -> bool {
        self.held.load(Ordering::Relaxed) > self.all.most_of_sink() / 4 * 3
            || self.all.in_use() > self.all.most() / 4 * 3
    }
}

impl Drop for SinkMemory {
    fn drop(&mut self) {
        // Of records in the rings of a task that has panicked.
        self.all.in_use.fetch_sub(*self.held.get_mut(), Ordering::Relaxed);
    }
}

/// Adds to a counter, unless it would exceed `most`.
fn add_up_to(counter: &AtomicU64, more: u64, most: u64) -> bool {
    let add = |before: u64| before.checked_add(more).filter(|after| *after <= most);
    counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sink_is_nearly_full_beyond_three_quarters_of_either_limit() {
        for (most, most_of_sink) in [(1_000, 400), (400, 1_000)] {
            let memory = SinkMemory::new(Arc::new(RecordMemory::new(most, most_of_sink)));
            assert!(memory.take(300) && !memory.is_nearly_full(), "{most}, {most_of_sink}");
            assert!(memory.take(1) && memory.is_nearly_full(), "{most}, {most_of_sink}");
        }
    }
}
