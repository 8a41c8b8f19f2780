//! The state shared by a sink's users and its task.

use std::sync::{Arc, Mutex, OnceLock};

use crate::account::RecordAccount;
use crate::batching::{Batching, Retries};
use crate::books::DropReason;
use crate::lock::locked;
use crate::memory::SinkMemory;
use crate::register::{RunningSink, SinkRegister};
use crate::rejected::RejectedRecords;
use crate::ring::{RingReader, new_ring};
use crate::signals::SinkSignals;
use crate::spool::SpoolFullPolicy;
use crate::spooling::SinkSpool;
use crate::test_record::{SentTest, TestFault, TestOutcome, TestRecords, TestWatches};

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

    pub(crate) fn name(&self) -> &str {
        &self.options.name
    }
}

impl RunningSink for SinkCore {
    fn name(&self) -> &str {
        &self.options.name
    }

    fn is_closed(&self) -> bool {
        self.signals.is_closed()
    }

    fn takes_tests(&self) -> bool {
        self.options.tests.is_some()
    }

    fn give_up(&self) {
        self.signals.give_up();
    }

    fn send_test(&self, id: &str) -> Result<SentTest, TestFault> {
        let payload = self.options.tests.as_ref().ok_or(TestFault::NoTests)?.payload(id);
        let outcome = self.tests.watch(&payload).ok_or(TestFault::TooMany)?;
        let account = self.spooled.get().unwrap_or(&self.account);
        // Locked until the record is in its ring, so that the task either gets it or has ended before.
        let mut rings = locked(&self.new_rings);
        let rings = rings.as_mut().ok_or(TestFault::NoSink)?;
        // The ring of this one record: those of workers have other writers.
        let is_written = new_ring(account, &self.memory).is_some_and(|(writer, reader)| {
            let is_written = writer.offer(Vec::new(), |out| out.extend_from_slice(&payload));
            rings.push(reader);
            is_written
        });
        if !is_written {
            self.tests.tell_payload(&payload, || TestOutcome::Dropped { reason: DropReason::MemoryFull, error: None });
        }
        Ok(SentTest::new(account, outcome))
    }
}
