//! When a batch is sent, and how often it is tried.

use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batching {
    /// The most records in a batch.
    pub max_records: usize,
    /// The most bytes in a batch, as copied by workers. A batch has at least one record.
    pub max_bytes: usize,
    /// A batch is sent when no record was added for this time,
    pub inactive: Duration,
    /// and when its first record has waited for this time.
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

/// How often a batch that could not be delivered is tried again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Retries {
    /// Until it is delivered, with growing pauses. Further records wait as long as there is room.
    #[default]
    Always,
    /// At most `most` more tries, with a fixed pause before each.
    Some { most: u32, pause: Duration },
}
