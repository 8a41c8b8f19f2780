//! Test records. A logger writes one when a user asks for it, without a request of a client. It goes through the same queues as all other
//! records, but is sent alone and only once. The user is told the outcome.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::account::RecordAccount;
use crate::books::{DropReason, RejectReason};
use crate::lock::locked;
use crate::queue::Record;

/// The most test records of a sink without an outcome: more would only wait behind them.
const MOST_WATCHED: usize = 16;
/// After this time, one whose outcome is not waited for any more makes room for another. Without it, those that were lost on the disk
/// would keep their place.
const KEPT: Duration = Duration::from_secs(3600);

/// Makes the payload of a test record with an id.
type TestWriter = dyn Fn(&str) -> Vec<u8> + Send + Sync;

/// Writes test records of a logger.
#[derive(Clone)]
pub struct TestRecords(Arc<TestWriter>);

impl TestRecords {
    /// `write` makes the payload of a record that says that it is a test, with the given id, which is in the payload.
    pub fn new(write: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static) -> TestRecords {
        TestRecords(Arc::new(write))
    }

    pub(crate) fn payload(&self, id: &str) -> Arc<[u8]> {
        (self.0)(id).into()
    }
}

impl fmt::Debug for TestRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestRecords").finish_non_exhaustive()
    }
}

/// What became of a test record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TestOutcome {
    Delivered,
    /// The destination will never take it. The text is the destination's.
    Rejected {
        reason: RejectReason,
        error: String,
    },
    /// It is lost.
    Dropped {
        reason: DropReason,
        error: Option<String>,
    },
    /// It was not sent yet, or is on its way. The error is that of the last attempt with the records before it.
    Pending {
        error: Option<String>,
    },
}

/// Why no test record was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestFault {
    /// No sink of this name runs.
    NoSink,
    /// A record of this sink cannot say that it is a test.
    NoTests,
    /// The sink has many of them already.
    TooMany,
}

/// A test record on its way.
pub struct SentTest {
    account: Arc<RecordAccount>,
    outcome: oneshot::Receiver<TestOutcome>,
}

impl SentTest {
    pub(crate) fn new(account: &Arc<RecordAccount>, outcome: oneshot::Receiver<TestOutcome>) -> SentTest {
        SentTest { account: Arc::clone(account), outcome }
    }

    /// Waits for the outcome, for at most `patience`. The record then stays on its way.
    pub async fn outcome(mut self, patience: Duration) -> TestOutcome {
        match timeout(patience, &mut self.outcome).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) | Err(_) => TestOutcome::Pending { error: self.account.last_error() },
        }
    }
}

/// The test records of a sink that have no outcome yet, also those whose outcome is not waited for any more: the sink has to know them
/// to send them apart from others.
#[derive(Default)]
pub(crate) struct TestWatches {
    list: Mutex<Vec<Watched>>,
    /// Their number, which is read for every batch.
    count: AtomicUsize,
}

struct Watched {
    /// Has a unique id, so that no other record is the same.
    payload: Arc<[u8]>,
    teller: oneshot::Sender<TestOutcome>,
    since: Instant,
}

impl TestWatches {
    /// `None` if there are too many.
    pub(crate) fn watch(&self, payload: &Arc<[u8]>) -> Option<oneshot::Receiver<TestOutcome>> {
        let mut list = locked(&self.list);
        if list.len() >= MOST_WATCHED {
            let forgotten =
                list.iter().position(|watched| watched.teller.is_closed() && watched.since.elapsed() >= KEPT)?;
            list.remove(forgotten);
        }
        let (teller, outcome) = oneshot::channel();
        list.push(Watched { payload: Arc::clone(payload), teller, since: Instant::now() });
        self.count.store(list.len(), Ordering::Release);
        Some(outcome)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    pub(crate) fn has(&self, payload: &[u8]) -> bool {
        !self.is_empty() && locked(&self.list).iter().any(|watched| *watched.payload == *payload)
    }

    /// How many of these records are sent together: a test record is alone, so that others share neither its fate nor its wait.
    pub(crate) fn together(&self, records: &[Record]) -> usize {
        if self.is_empty() {
            return records.len();
        }
        records.iter().position(|record| self.has(&record.payload)).map_or(records.len(), |place| place.max(1))
    }

    /// Tells the outcome of the test records among these.
    pub(crate) fn tell<'r>(&self, records: impl IntoIterator<Item = &'r Record>, outcome: impl Fn() -> TestOutcome) {
        if !self.is_empty() {
            records.into_iter().for_each(|record| self.tell_payload(&record.payload, &outcome));
        }
    }

    pub(crate) fn tell_payload(&self, payload: &[u8], outcome: impl Fn() -> TestOutcome) {
        let mut list = locked(&self.list);
        if let Some(place) = list.iter().position(|watched| *watched.payload == *payload) {
            // Fails if nothing waits for the outcome any more.
            let _ = list.swap_remove(place).teller.send(outcome());
            self.count.store(list.len(), Ordering::Release);
        }
    }
}
