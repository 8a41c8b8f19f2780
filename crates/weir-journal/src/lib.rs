//! A durable log of records in segment files: the base of the log spool, of the hub's event store and of durable counters.
//!
//! - [`Journal::append`] queues a record for the journal's own thread, which writes all records queued in the meantime with one
//!   `write` and one `fdatasync` (group commit) and then reports each record as durable.
//! - A [`Reader`] sees committed records in order of their sequence numbers. A gap is an item of its own, never silent.
//! - Opening a journal recovers it: a torn tail is cut off, damage is skipped and counted. It fails only if the directory itself
//!   cannot be used. [`Recovery`] reports what was found.
//! - [`Journal::release`] and the bounds of [`Options`] remove whole segments, oldest first.
//! - All file operations go through [`Storage`], so that tests can inject failures and lost writes.
//!
//! # On disk
//!
//! One directory, one file per segment, named by the sequence number of its first record: `00000000000000000001.segment`.
//! Numbers are little-endian.
//!
//! ```text
//! segment = header frame*
//! header  = "WEIRJRNL" | version u32 | crc u32 of the rest | journal id u64 | first seq u64 | follows u64
//! frame   = payload length u32 | crc u32 of the rest | seq u64 | unix time in ms u64 | payload
//! ```

#![forbid(unsafe_code)]

mod cursor;
mod frame;
mod journal;
mod log;
mod options;
mod reader;
mod recovery;
mod segment;
#[cfg(feature = "simulation")]
pub mod simulation;
mod storage;

pub use cursor::Cursor;
pub use journal::{Journal, OnCommit};
pub use log::{AppendError, Removal, RemovalReason, Status};
pub use options::{Options, Sync, WhenFull};
pub use reader::{Item, Reader};
pub use recovery::{Damage, Recovery};
pub use storage::{Disk, File, Storage, create_private_directory};

/// The sequence number of a record. The first one is 1; numbers are never reused, and may have gaps.
pub type Seq = u64;
