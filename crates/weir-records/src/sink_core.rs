//! The state shared by a sink's users and its task.

use std::sync::{Arc, Mutex, OnceLock};

use crate::account::RecordAccount;
use crate::batching::{Batching, Retries};
use crate::memory::SinkMemory;
use crate::register::SinkRegister;
use crate::rejected::RejectedRecords;
use crate::ring::RingReader;
use crate::signals::SinkSignals;
use crate::spool::SpoolFullPolicy;
use crate::spooling::SinkSpool;
use crate::test_record::{TestRecords, TestWatches};

/// The options of a sink.
#[derive(Clone, Debug)]
pub struct SinkOptions {
    /// The name in metrics and logs: the plugin, a space, and the destination.
    pub name: String,
    pub batching: Batching,
    pub retries: Retries,
    /// The most records that wait in memory, if their number is limited; their bytes always are. With a spool, further records
    /// go to the disk.
    pub max_pending: Option<usize>,
    /// The spool for records that memory has no room for.
    pub spool: Option<SinkSpool>,
    /// Where rejected records are kept.
    pub rejected: Option<RejectedRecords>,
    /// Writes test records, if a record of this sink can say that it is one.
    pub tests: Option<TestRecords>,
}

/// The state shared by a sink's users and its task.
pub(crate) struct SinkCore {
    pub options: SinkOptions,
    pub account: Arc<RecordAccount>,
    /// The account on disk, once it is open.
    pub spooled: OnceLock<Arc<RecordAccount>>,
    pub register: Arc<SinkRegister>,
    pub memory: Arc<SinkMemory>,
    /// Rings that the task has not adopted yet; `None` when it adopts no more.
    pub new_rings: Mutex<Option<Vec<RingReader>>>,
    pub signals: Arc<SinkSignals>,
    /// Test records without an outcome yet.
    pub tests: TestWatches,
}

impl SinkCore {
    /// Whether writers should stop when there is almost no room, so that no record is lost.
    pub(crate) fn blocks(&self) -> bool {
        let spool = self.options.spool.as_ref();
        spool.is_some_and(|spool| spool.options.when_full == SpoolFullPolicy::Block)
    }

    /// Why the destination did not take the last batch.
    pub(crate) fn last_error(&self) -> Option<String> {
        self.spooled.get().unwrap_or(&self.account).last_error()
    }

    pub(crate) fn name(&self) -> &str {
        &self.options.name
    }
}
