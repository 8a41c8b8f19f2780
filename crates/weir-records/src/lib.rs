//! Delivers records of exchanges to the systems that store logs.
//!
//! ```text
//! worker: copies -> ring ── sink thread: queue -> batch -> destination
//!                                           └──> spool ──┘   while the destination lags
//! ```
//!
//! A worker hands a record over with one copy into its own ring ([`SinkWriter`]): no lock, no waiting, and no allocation unless
//! the ring is full and grows.
//!
//! A sink ([`RecordSink`]) has a task on one of the sink threads: it takes records out of the rings, limits their memory, forms
//! batches, and sends them with its [`Destination`], with retries.
//! Its [`Account`] has the outcome of every record:
//!   `accepted = delivered + rejected + dropped + pending`, at each reading.
//!
//! This crate does not interpret records: they are bytes.

#![forbid(unsafe_code)]

mod account;
mod batching;
mod books;
mod cells;
mod delivery;
mod destination;
mod lock;
mod memory;
mod orphans;
mod parcel;
mod queue;
mod register;
mod rejected;
mod retry_pauses;
mod ring;
mod sealed;
mod signals;
mod sink;
mod sink_core;
mod spool;
mod spooling;
mod test_record;
mod threads;

pub use crate::sink_core::SinkOptions;
pub use account::{AccountReading, Pending, RecordAccount, Settled};
pub use batching::{Batching, Retries};
pub use books::{DropReason, RecordTally, RejectReason};
pub use destination::{Destination, OpenDestination, Outcome, RecordSending, SendOutcome};
pub use orphans::{SpoolTask, drop_spool, move_spool};
pub use queue::Record;
pub use register::{SinkLimits, SinkRegister};
pub use rejected::{RecordView, RejectedRecords, copy_rejected};
pub use retry_pauses::RetryPauses;
pub use ring::Attachment;
pub use sealed::{MAX_SPOOL_KEYS, SPOOL_KEY_BYTES, SpoolKeys};
pub use sink::{RecordSink, SinkWriter};
pub use spool::{SpoolFullPolicy, SpoolOptions, SpoolPlace, SpoolSync, directory_name, read_accounts};
pub use spooling::SinkSpool;
pub use test_record::{SentTest, TestFault, TestOutcome, TestRecords};
