//! Limits and durability of a journal.

use std::time::Duration;

use crate::Seq;

#[derive(Clone, Debug)]
pub struct Options {
    /// A segment is closed when it has reached this size, in bytes.
    pub segment_bytes: u64,
    /// Limit of all segments together, in bytes; see [`WhenFull`]. At least two segments.
    pub max_bytes: u64,
    /// Free space of the file system that the journal must not use, in bytes.
    pub reserve_free_bytes: u64,
    /// The largest payload of one record, in bytes.
    pub max_record_bytes: u32,
    /// Limit of queued payload bytes. Further records are refused with [`crate::AppendError::Busy`].
    pub max_pending_bytes: usize,
    pub when_full: WhenFull,
    pub sync: Sync,
    /// The next record gets at least this number. The owner of a cursor passes the cursor's position, so that the number of a
    /// record that was lost unsynced is not given to another record.
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

/// What happens to a record if there is no room for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// The new record is refused with [`crate::AppendError::Full`].
    Refuse,
    /// The oldest segment is removed, and reported as a [`crate::Removal`].
    DropOldest,
}

/// When written records are synced to the disk. A crash of the process loses nothing that was written; a power loss or a kernel
/// crash loses what was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// Before a record is reported as committed.
    Always,
    /// At least this often while records are written.
    Every(Duration),
    /// Whenever the kernel writes them back.
    Never,
}
