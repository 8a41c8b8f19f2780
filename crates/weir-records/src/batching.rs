//! When a batch is sent, and how often.

use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batching {
    /// Records in a batch.
    pub max_records: usize,
    /// Bytes in a batch, as workers copied them. One record is always taken.
    pub max_bytes: usize,
    /// A batch to which nothing is added for so long is sent,
    pub inactive: Duration,
    /// and so is one whose first record is so old.
    pub oldest: Duration,
}

impl Default for Batching {
    fn default() -> Batching {
        Batching {
            max_records: 1000,
            max_bytes: 5 << 20,
            inactive: Duration::from_secs(1),
            oldest: Duration::from_secs(1),
        }
    }
}

/// How often a batch is tried that could not be delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Retries {
    /// Until it is delivered, with growing pauses. What comes meanwhile waits as long as there is room.
    #[default]
    Always,
    /// So many further tries, with a fixed pause before each.
    Some { most: u32, pause: Duration },
}
