//! What a sink's users and its task share.

use std::sync::{Arc, Mutex, OnceLock};

use crate::account::RecordAccount;
use crate::batching::{Batching, Retries};
use crate::register::SinkRegister;
use crate::rejected::RejectedRecords;
use crate::ring::RingReader;
use crate::signals::SinkSignals;
use crate::spool::SpoolFullPolicy;
use crate::spooling::SinkSpool;

/// How a sink works.
#[derive(Clone, Debug)]
pub struct SinkOptions {
    /// What it is called in metrics and logs: the plugin, a blank, and where records go.
    pub name: String,
    pub batching: Batching,
    pub retries: Retries,
    /// Records that may wait in memory, if that is bounded; bytes always are.
    pub max_pending: Option<usize>,
    /// Where records wait that memory is not for.
    pub spool: Option<SinkSpool>,
    /// Where records are kept that the destination refuses.
    pub rejected: Option<RejectedRecords>,
}

/// What a sink's users and its task share.
pub struct SinkCore {
    pub options: SinkOptions,
    pub account: Arc<RecordAccount>,
    /// The account on disk, once it is open.
    pub spooled: OnceLock<Arc<RecordAccount>>,
    pub register: Arc<SinkRegister>,
    /// Rings that the task has not taken over yet.
    pub new_rings: Mutex<Vec<RingReader>>,
    pub signals: Arc<SinkSignals>,
}

impl SinkCore {
    /// Where records are not to be lost: no more should come when there is nearly no room.
    pub fn blocks(&self) -> bool {
        let spool = self.options.spool.as_ref();
        spool.is_some_and(|spool| spool.options.when_full == SpoolFullPolicy::Block)
    }

    pub fn name(&self) -> &str {
        &self.options.name
    }
}
