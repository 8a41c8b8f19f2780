//! What a journal may take, and how durable it is.

use std::time::Duration;

use crate::Seq;

#[derive(Clone, Debug)]
pub struct Options {
    /// A segment is closed when it has reached this size, in bytes.
    pub segment_bytes: u64,
    /// All segments together, in bytes; [`WhenFull`] says what happens then. At least two segments.
    pub max_bytes: u64,
    /// Free space of the file system that the journal leaves alone, in bytes.
    pub reserve_free_bytes: u64,
    /// The largest payload of one record, in bytes.
    pub max_record_bytes: u32,
    /// Payloads that may wait for the journal's thread, in bytes. More is refused with [`crate::AppendError::Busy`].
    pub max_pending_bytes: usize,
    pub when_full: WhenFull,
    pub sync: Sync,
    /// The next record gets at least this number. The owner of a cursor passes what the cursor has seen, so that a number
    /// whose record was lost with unsynced writes is not given to another record.
    pub min_next_seq: Seq,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            segment_bytes: 64 << 20,
            max_bytes: 1 << 30,
            reserve_free_bytes: 0,
            max_record_bytes: 16 << 20,
            max_pending_bytes: 64 << 20,
            when_full: WhenFull::Refuse,
            sync: Sync::Always,
            min_next_seq: 1,
        }
    }
}

/// What happens to a record for which there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// The new record is refused with [`crate::AppendError::Full`].
    Refuse,
    /// The oldest segment is removed, and reported as a [`crate::Removal`].
    DropOldest,
}

/// When written records are forced to the disk. A process that dies loses nothing that was written; power loss, or a kernel
/// that crashes, loses what was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// Before a record is reported as committed.
    Always,
    /// At least this often while records come in.
    Every(Duration),
    /// When the kernel sees fit.
    Never,
}
