//! The interface of the destinations of a sink's records.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use crate::books::RejectReason;
use crate::queue::Record;

/// The future of the outcome of a batch.
pub type RecordSending<'a> = Pin<Box<dyn Future<Output = SendOutcome> + 'a>>;

/// Creates a destination on the sink's thread.
pub type OpenDestination = Box<dyn FnOnce() -> io::Result<Box<dyn Destination>> + Send>;

/// Sends batches, one at a time. It shares a thread with other sinks, so blocking calls belong in `spawn_blocking`.
pub trait Destination {
    /// Sends a batch, which is never empty, and returns its outcome. The same records may be sent again later, in other batches.
    fn send<'a>(&'a mut self, batch: &'a [Record]) -> RecordSending<'a>;
}

/// The outcome of a batch.
#[derive(Debug)]
pub enum SendOutcome {
    /// All records were accepted.
    Taken,
    /// One outcome per record, in their order; `error` describes the first record that was not delivered.
    Each { outcomes: Vec<Outcome>, error: Option<String> },
    /// The batch is too large; smaller ones may be accepted.
    TooLarge(String),
    /// The destination cannot accept the batch now; it may accept smaller ones.
    Busy { error: String, after: Option<Duration> },
    /// The batch could not be sent, or its outcome is unknown.
    Failed { error: String, after: Option<Duration> },
    /// The destination does not accept a record of the batch, and stores none or repeats without harm: the others may be
    /// accepted without it.
    Invalid { reason: RejectReason, error: String },
    /// The destination will accept no batch like this, whatever its records are.
    Refused { reason: RejectReason, error: String },
}

/// The outcome of one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Delivered,
    /// The destination had the record already.
    Duplicate,
    Retry,
    Rejected(RejectReason),
}
