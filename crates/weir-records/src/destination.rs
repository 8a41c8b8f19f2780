//! Where a sink's records go.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use crate::books::RejectReason;
use crate::queue::Record;

/// What waits for the answer to a batch.
pub type RecordSending<'a> = Pin<Box<dyn Future<Output = SendOutcome> + 'a>>;

/// Makes a destination on the sink's thread.
pub type OpenDestination = Box<dyn FnOnce() -> io::Result<Box<dyn Destination>> + Send>;

/// Sends batches, one at a time. It runs on a thread with other sinks: what blocks belongs into `spawn_blocking`.
pub trait Destination {
    /// Sends a batch, which is never empty, and says what became of it. The same records may be sent again later, in other
    /// batches.
    fn send<'a>(&'a mut self, batch: &'a [Record]) -> RecordSending<'a>;
}

/// What became of a batch.
#[derive(Debug)]
pub enum SendOutcome {
    /// All of it was taken.
    Taken,
    /// Each record fared for itself, in their order; `error` says what went wrong with the first that was not delivered.
    Each { outcomes: Vec<Outcome>, error: Option<String> },
    /// It is too large: smaller ones may be taken.
    TooLarge(String),
    /// It cannot be taken now; smaller ones may be.
    Busy { error: String, after: Option<Duration> },
    /// It could not be sent, or nothing is known of what became of it.
    Failed { error: String, after: Option<Duration> },
    /// It will never be taken.
    Refused { reason: RejectReason, error: String },
}

/// What became of one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Delivered,
    /// It was there already.
    Duplicate,
    Retry,
    Rejected(RejectReason),
}
