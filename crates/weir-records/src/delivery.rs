//! A sink's task: takes records out of rings, and delivers them.

mod collecting;
mod sending;
mod verdict;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::account::RecordAccount;
use crate::destination::OpenDestination;
use crate::queue::RecordQueue;
use crate::retry_pauses::RetryPauses;
use crate::sink_core::SinkCore;
use crate::spooling::Spooling;

/// How often a sink logs the same failure.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);

/// Starts the task on the current thread.
pub(crate) fn start(core: Arc<SinkCore>, open: OpenDestination) {
    tokio::task::spawn_local(async move {
        let _ended = DeliveryEnded(Arc::clone(&core));
        let destination = match open() {
            Ok(destination) => Some(destination),
            Err(error) => {
                tracing::error!("{}: {error}; its records are lost", core.name());
                core.account.set_error(Some(&error.to_string()));
                None
            }
        };
        // Without a destination, records on disk are left to a process that has one.
        let spooling = if destination.is_some() { open_spool(&core).await } else { None };
        let account = spooling.as_ref().map_or(&core.account, Spooling::account);
        let task = Rc::new(SinkTask {
            // Random in each process, also in copies of one virtual machine: the id of a record must be unique.
            boot: RandomState::new().hash_one(std::process::id()),
            account: Arc::clone(account),
            core,
            spooling,
            sequence: Cell::new(0),
            queue: RefCell::default(),
            added: Notify::new(),
            has_all: Cell::new(false),
            is_ending: Cell::new(false),
            complained: RefCell::default(),
            is_told_away: Cell::new(false),
        });
        tokio::join!(task.collect(), RecordDelivery::new(Rc::clone(&task)).run(destination));
    });
}

/// The half of a task that sends: what it has learned about the destination.
struct RecordDelivery {
    task: Rc<SinkTask>,
    pauses: RetryPauses,
    /// The most records in a batch, lowered when the destination refuses larger ones.
    limit: usize,
    /// The limit before it was lowered to find an invalid record.
    whole_limit: Option<usize>,
    /// When a failed delivery first found the sink closed.
    closed: Option<Instant>,
}

impl RecordDelivery {
    fn new(task: Rc<SinkTask>) -> RecordDelivery {
        RecordDelivery { task, pauses: RetryPauses::default(), limit: usize::MAX, whole_limit: None, closed: None }
    }
}

/// Opens the spool. Without one, and if its directory cannot be used, records wait only in memory.
async fn open_spool(core: &Arc<SinkCore>) -> Option<Spooling> {
    let spool = core.options.spool.clone()?;
    let (name, register) = (core.name().to_owned(), Arc::clone(&core.register));
    let directory = spool.directory.display().to_string();
    let opened = tokio::task::spawn_blocking(move || Spooling::open(spool, &name, &register)).await;
    let opened = opened.map_err(io::Error::other).and_then(|opened| opened);
    match opened {
        Ok(opened) => {
            let spooling = Spooling::new(opened, core.name(), &core.register);
            // Cannot fail: a sink is started only once.
            let _ = core.spooled.set(Arc::clone(spooling.account()));
            Some(spooling)
        }
        Err(error) => {
            tracing::error!(
                "{}: the spool in {directory} cannot be used: {error}; records wait in memory",
                core.name()
            );
            core.account.set_error(Some(&error.to_string()));
            None
        }
    }
}

/// Tells the register that the task has ended, also after a panic.
struct DeliveryEnded(Arc<SinkCore>);

impl Drop for DeliveryEnded {
    fn drop(&mut self) {
        self.0.register.ended(&self.0);
    }
}

struct SinkTask {
    core: Arc<SinkCore>,
    account: Arc<RecordAccount>,
    spooling: Option<Spooling>,
    boot: u64,
    /// The number of the last record.
    sequence: Cell<u64>,
    queue: RefCell<RecordQueue>,
    /// Notified when there is more to send, or no more records will come.
    added: Notify,
    /// No more records will come.
    has_all: Cell<bool>,
    /// No more records will be sent.
    is_ending: Cell<bool>,
    /// When each kind of failure was last logged.
    complained: RefCell<BTreeMap<&'static str, Instant>>,
    /// The log says that the destination takes no records, and not yet that it takes them again.
    is_told_away: Cell<bool>,
}

impl SinkTask {
    /// Logs that the destination takes no records, like [`SinkTask::complain`].
    fn complain_of_destination(&self, error: &str, consequence: &'static str) {
        if self.complain(error, consequence) {
            self.is_told_away.set(true);
        }
    }

    /// The destination has taken records. This is logged if the log says that it does not.
    fn has_delivered(&self) {
        self.account.set_error(None);
        if self.is_told_away.replace(false) {
            tracing::warn!("{}: the destination takes records again", self.core.name());
        }
    }

    /// Logs a failure, at most once per `COMPLAIN_EVERY` for each consequence; returns whether it did.
    fn complain(&self, error: &str, consequence: &'static str) -> bool {
        self.account.set_error(Some(error));
        let mut complained = self.complained.borrow_mut();
        let is_due = complained.get(consequence).is_none_or(|at| at.elapsed() >= COMPLAIN_EVERY);
        if is_due {
            complained.insert(consequence, Instant::now());
            tracing::error!("{}: {error}; {consequence}", self.core.name());
        }
        is_due
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod spool_tests;
