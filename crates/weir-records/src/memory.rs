//! The memory for the records of a sink.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::register::SinkRegister;

/// The bytes of records that a sink holds in memory, counted against its own limit and against that of all sinks. Its task and
/// its writers share it.
pub struct SinkMemory {
    register: Arc<SinkRegister>,
    held: AtomicU64,
}

impl SinkMemory {
    pub fn new(register: Arc<SinkRegister>) -> SinkMemory {
        SinkMemory { register, held: AtomicU64::new(0) }
    }

    /// Reserves memory for a record; `false` if a limit does not allow it.
    pub fn take(&self, bytes: u64) -> bool {
        let most = self.register.limits().sink_memory;
        let has_room = add_up_to(&self.held, bytes, most);
        if has_room && !self.register.take_memory(bytes) {
            self.held.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        has_room
    }

    /// Counts a record beyond the limits.
    pub fn take_anyway(&self, bytes: u64) {
        self.held.fetch_add(bytes, Ordering::Relaxed);
        self.register.take_memory_anyway(bytes);
    }

    pub fn give(&self, bytes: u64) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
        self.register.give_memory(bytes);
    }

    /// Whether three quarters of a limit are used.
    pub fn is_nearly_full(&self) -> bool {
        let limits = self.register.limits();
        self.held.load(Ordering::Relaxed) > limits.sink_memory / 4 * 3
            || self.register.memory_in_use() > limits.memory / 4 * 3
    }
}

impl Drop for SinkMemory {
    fn drop(&mut self) {
        // Of records in the rings of a task that has panicked.
        self.register.give_memory(*self.held.get_mut());
    }
}

/// Adds to a counter, unless it would exceed `most`.
pub fn add_up_to(counter: &AtomicU64, more: u64, most: u64) -> bool {
    let add = |before: u64| before.checked_add(more).filter(|after| *after <= most);
    counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
}
