//! A sink's task: takes records out of rings, and delivers them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::iter::repeat;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout};

use crate::account::RecordAccount;
use crate::backoff::Backoff;
use crate::batching::Retries;
use crate::books::{Books, DropReason, RecordTally, RejectReason};
use crate::destination::{Destination, OpenDestination, Outcome, SendOutcome};
use crate::lock::locked;
use crate::queue::{Ready, Record, RecordQueue, tally};
use crate::ring::{RingReader, RingTake};
use crate::sink_core::SinkCore;

use crate::spool::{Group, SpoolPlace};
use crate::spooling::Spooling;

/// The interval of draining the rings while records arrive, and the longest one while none do.
const LOOK: Duration = Duration::from_millis(20);
const LOOK_IDLE: Duration = Duration::from_millis(160);
/// How often a waiting sink checks whether it was closed or given up.
const LOOK_UP: Duration = Duration::from_millis(250);
/// How often a sink logs the same failure.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);
/// How long a sink that was removed from the configuration tries to deliver its records.
const DRAIN: Duration = Duration::from_secs(60);
/// A destination lags when this fraction (1/LAG) of the memory is used.
const LAG: u64 = 4;
/// At the end of the process: how often a sink checks, and how long it waits, for its spool to be written.
const LAST_LOOK: Duration = Duration::from_millis(2);
const LAST_WRITES: Duration = Duration::from_millis(800);

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
            boot: fastrand::u64(..),
            account: Arc::clone(account),
            core,
            spooling,
            sequence: Cell::new(0),
            queue: RefCell::default(),
            added: Notify::new(),
            has_all: Cell::new(false),
            is_ending: Cell::new(false),
            complained: RefCell::default(),
        });
        let deliver =
            RecordDelivery { task: Rc::clone(&task), backoff: Backoff::default(), limit: usize::MAX, closed: None };
        tokio::join!(task.collect(), deliver.run(destination));
    });
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
        self.0.register.ended(&self.0.signals);
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
}

impl SinkTask {
    async fn collect(&self) {
        let mut rings: Vec<RingReader> = Vec::new();
        let mut pause = LOOK;
        loop {
            // Read before the rings are drained: after closing, no record is written to a ring.
            let is_closed = self.core.signals.is_closed();
            rings.append(&mut locked(&self.core.new_rings));
            let drained = self.drain(&mut rings);
            let has_spooled = self.spool();
            self.update_full_signal();
            let has_drained_all = rings.iter().all(RingReader::is_empty);
            if drained || has_spooled {
                pause = LOOK;
                self.added.notify_one();
            } else if is_closed && has_drained_all && !self.is_writing() || self.is_ending() {
                break;
            } else {
                pause = (pause * 2).min(if self.is_writing() { LOOK } else { LOOK_IDLE });
            }
            rings.retain_mut(|ring| !ring.has_ended());
            match self.is_ending() {
                true => yield_now().await,
                false => drop(timeout(pause, self.core.signals.changed.notified()).await),
            }
        }
        self.has_all.set(true);
        self.added.notify_one();
    }

    /// Whether records that are still in rings cannot be sent any more.
    fn is_ending(&self) -> bool {
        self.is_ending.get() || self.core.signals.has_given_up()
    }

    /// Sets whether writers should stop, if the sink blocks when it is full.
    fn update_full_signal(&self) {
        if !self.core.blocks() {
            return;
        }
        let is_full = self.core.memory.is_nearly_full()
            || self.core.options.max_pending.is_some_and(|most| self.queue.borrow().len() > most / 4 * 3);
        match (self.core.signals.set_full(is_full), is_full) {
            (true, true) => self.complain("there is nearly no room for records", "requests are answered with 503"),
            (true, false) => tracing::warn!("{}: there is room for records again", self.core.name()),
            _ => {}
        }
    }

    fn is_writing(&self) -> bool {
        self.spooling.as_ref().is_some_and(Spooling::is_writing)
    }

    /// Drains the rings; `false` if they were empty.
    fn drain(&self, rings: &mut [RingReader]) -> bool {
        let now = Instant::now();
        let mut queue = self.queue.borrow_mut();
        let mut sequence = self.sequence.get();
        let (mut queued, mut dropped) = (RecordTally::default(), RecordTally::default());
        for ring in rings {
            let mut moved = RecordTally::default();
            while let Some(taken) = ring.take() {
                let mut has_room = self.has_room(&queue, &taken);
                if !has_room && (self.core.blocks() || self.has_spool()) && !self.is_ending() {
                    if !ring.has_counted() {
                        // There will be room when records have been written to the disk, or delivered.
                        ring.put_back(taken);
                        break;
                    }
                    // The memory may be full with the records behind this one. Those before them are few: a ring's content.
                    has_room = self.take_anyway(&taken);
                }
                let tally = RecordTally::one(taken.bytes());
                sequence += 1 + u64::from(taken.refused);
                moved.add(tally);
                if has_room {
                    let RingTake { payload, attachments, .. } = taken;
                    queue.push(Record { boot: self.boot, sequence, payload, attachments }, now);
                    queued.add(tally);
                } else {
                    if taken.is_counted {
                        self.core.memory.give(tally.bytes);
                    }
                    dropped.add(tally);
                }
            }
            if !moved.is_zero() && !Arc::ptr_eq(ring.account(), &self.account) {
                // The records were counted in memory, before the account on disk was open.
                self.account.take_over(ring.account(), moved);
            }
        }
        self.sequence.set(sequence);
        if queued.is_zero() && dropped.is_zero() {
            return false;
        }
        self.account.book(|books| {
            books.drained.add(queued);
            books.drained.add(dropped);
            books.queued.add(queued);
            books.dropped[DropReason::MemoryFull as usize].add(dropped);
        });
        true
    }

    /// Moves records to the spool, if they go through it; returns whether there is more to send.
    fn spool(&self) -> bool {
        let Some(spooling) = &self.spooling else { return false };
        spooling.tidy();
        let written = spooling.step();
        self.core.memory.give(written.bytes);
        if let Some(error) = &written.error {
            self.complain(error, "records wait in memory");
        }
        let mut queue = self.queue.borrow_mut();
        if !written.failed.is_empty() {
            queue.put_back(written.failed, Instant::now());
        }
        if queue.bytes() > self.core.register.memory.most_of_sink() / LAG
            || self.core.options.max_pending.is_some_and(|most| queue.len() as u64 > most as u64 / LAG)
        {
            spooling.start_spooling();
        }
        if spooling.is_spooling() && !spooling.is_broken() && !queue.is_empty() {
            spooling.write(queue.batch(usize::MAX, usize::MAX, Instant::now()));
        }
        written.committed
    }

    /// Reserves memory for a record; `false` if the limits do not allow it.
    fn has_room(&self, queue: &RecordQueue, taken: &RingTake) -> bool {
        let is_one_too_many = self.core.options.max_pending.is_some_and(|most| queue.len() >= most);
        (!is_one_too_many || self.has_spool()) && (taken.is_counted || self.core.memory.take(taken.bytes()))
    }

    fn take_anyway(&self, taken: &RingTake) -> bool {
        if !taken.is_counted {
            self.core.memory.take_anyway(taken.bytes());
        }
        true
    }

    /// Whether there is a spool that works. It takes all records of the queue as soon as the rings are drained.
    fn has_spool(&self) -> bool {
        self.spooling.as_ref().is_some_and(|spooling| !spooling.is_broken())
    }

    /// Logs a failure, at most once per `COMPLAIN_EVERY` for each consequence.
    fn complain(&self, error: &str, consequence: &'static str) {
        self.account.set_error(Some(error));
        let mut complained = self.complained.borrow_mut();
        if complained.get(consequence).is_none_or(|at| at.elapsed() >= COMPLAIN_EVERY) {
            complained.insert(consequence, Instant::now());
            tracing::error!("{}: {error}; {consequence}", self.core.name());
        }
    }
}

struct RecordDelivery {
    task: Rc<SinkTask>,
    backoff: Backoff,
    /// The most records in a batch, lowered when the destination refuses larger ones.
    limit: usize,
    /// When a failed delivery first found the sink closed.
    closed: Option<Instant>,
}

/// The outcomes of a batch so far.
#[derive(Default)]
struct Settlement {
    delivered: RecordTally,
    duplicates: RecordTally,
    rejected: [RecordTally; RejectReason::ALL.len()],
}

impl Settlement {
    fn sum(&self) -> RecordTally {
        self.rejected.iter().copied().chain([self.delivered]).sum()
    }

    fn add(&mut self, other: &Settlement) {
        self.delivered.add(other.delivered);
        self.duplicates.add(other.duplicates);
        self.rejected.iter_mut().zip(other.rejected).for_each(|(mine, others)| mine.add(others));
    }

    fn book(&self, books: &mut Books) {
        books.delivered.add(self.delivered);
        books.duplicates.add(self.duplicates);
        books.rejected.iter_mut().zip(self.rejected).for_each(|(all, more)| all.add(more));
    }
}

/// The next work of a sink.
enum NextDelivery {
    Batch(Vec<Record>),
    /// Records from the spool.
    Group(Arc<SpoolPlace>, Group),
    /// No more records will come.
    End,
}

/// The evaluation of a destination's answer.
struct DeliveryVerdict {
    /// Records without an outcome yet.
    left: Vec<Record>,
    settlement: Settlement,
    next: NextTry,
}

enum NextTry {
    /// Try again at once, with smaller batches.
    AtOnce,
    Later {
        error: String,
        after: Option<Duration>,
    },
}

impl DeliveryVerdict {
    fn settled(settlement: Settlement) -> DeliveryVerdict {
        DeliveryVerdict { left: Vec::new(), settlement, next: NextTry::AtOnce }
    }

    fn later(left: Vec<Record>, settlement: Settlement, error: String, after: Option<Duration>) -> DeliveryVerdict {
        DeliveryVerdict { left, settlement, next: NextTry::Later { error, after } }
    }
}

impl RecordDelivery {
    async fn run(mut self, destination: Option<Box<dyn Destination>>) {
        let Some(mut destination) = destination else {
            // Without a destination, all records are lost.
            while let NextDelivery::Batch(batch) = self.next().await {
                self.lose(batch, DropReason::Abandoned);
            }
            self.await_last_records().await;
            return self.lose_rest();
        };
        loop {
            match self.next().await {
                NextDelivery::Batch(batch) => {
                    let (left, reason) = self.deliver(&mut *destination, batch).await;
                    if !left.is_empty() {
                        self.lose(left, reason);
                    }
                }
                NextDelivery::Group(place, group) => self.deliver_group(&mut *destination, &place, group).await,
                NextDelivery::End => break,
            }
            if self.has_drained_long_enough() {
                break;
            }
        }
        self.await_last_records().await;
        self.keep_rest().await;
        self.lose_rest();
    }

    /// Waits until all records have been taken out of the rings.
    async fn await_last_records(&self) {
        self.task.is_ending.set(true);
        self.task.core.signals.changed.notify_waiters();
        while !self.task.has_all.get() {
            self.task.added.notified().await;
        }
    }

    /// Waits for the next batch.
    async fn next(&mut self) -> NextDelivery {
        let task = Rc::clone(&self.task);
        let batching = &task.core.options.batching;
        let most = batching.max_records.min(self.limit).max(1);
        loop {
            if task.core.signals.has_given_up() {
                return NextDelivery::End;
            }
            let mut wait = LOOK_UP;
            if let Some(spooling) = task.spooling.as_ref().filter(|spooling| spooling.is_spooling()) {
                match spooling.next(most, batching.max_bytes).await {
                    Ok(Some((place, group))) => return NextDelivery::Group(place, group),
                    Ok(None) => {}
                    Err(error) => task.complain(&error.to_string(), "records on disk cannot be read"),
                }
            }
            let is_spooling =
                task.spooling.as_ref().is_some_and(|spooling| spooling.is_spooling() && !spooling.is_broken());
            let ready = task.queue.borrow().ready(batching, Instant::now());
            match ready {
                // Records in the queue follow those that are being written to the spool, so they are not sent directly.
                _ if is_spooling => {}
                Ready::Now => break,
                // The last records are sent without waiting for more.
                Ready::In(_) if task.core.signals.is_closed() => break,
                Ready::Empty if task.has_all.get() => return NextDelivery::End,
                Ready::In(left) => wait = left.min(LOOK_UP),
                Ready::Empty => {}
            }
            let _ = timeout(wait, task.added.notified()).await;
        }
        let batch = task.queue.borrow_mut().batch(most, batching.max_bytes, Instant::now());
        let moved = tally(&batch);
        task.account.book(|books| {
            books.queued.subtract(moved);
            books.inflight.add(moved);
        });
        NextDelivery::Batch(batch)
    }

    /// Sends a group from the spool until all its records are settled, and books it in one step: after a crash before that, the
    /// group is sent again, but counted once.
    async fn deliver_group(&mut self, destination: &mut dyn Destination, place: &SpoolPlace, group: Group) {
        let core = Arc::clone(&self.task.core);
        let Group { records: mut rest, parcels } = group;
        let (mut settlement, mut lost) = (Settlement::default(), RecordTally::default());
        self.begin_batch();
        while !rest.is_empty() {
            let most = core.options.batching.max_records.min(self.limit).max(1).min(rest.len());
            let after = rest.split_off(most);
            let sent = tokio::select! {
                sent = destination.send(&rest) => sent,
                () = given_up(&core) => return place.put_back(parcels),
            };
            let verdict = self.judge(rest, sent);
            settlement.add(&verdict.settlement);
            let failed = (!verdict.left.is_empty()).then_some(verdict.next);
            rest = verdict.left;
            let (count, unsettled) = (rest.len(), tally(&rest));
            rest.extend(after);
            let Some(NextTry::Later { error, after }) = failed else { continue };
            match self.backoff.next(core.options.retries, after) {
                Some(pause) => {
                    self.task.complain(&error, "records wait on disk, and are tried again");
                    if self.has_drained_long_enough() {
                        return place.put_back(parcels);
                    }
                    let _ = timeout(pause, given_up(&core)).await;
                }
                None => {
                    self.task.complain(&error, "records are lost");
                    lost.add(unsettled);
                    rest.drain(..count);
                    self.begin_batch();
                }
            }
        }
        place.done(&parcels, |books| {
            settlement.book(books);
            books.dropped[DropReason::Retries as usize].add(lost);
        });
    }

    /// With a limited number of tries, each batch has the full number; otherwise pauses keep growing until a batch is delivered.
    fn begin_batch(&mut self) {
        if matches!(self.task.core.options.retries, Retries::Some { .. }) {
            self.backoff.reset();
        }
    }

    /// Moves the rest of a failed batch to the spool, if there is one that works; returns it otherwise. A batch with a limited
    /// number of tries stays, since groups from the spool begin to count anew.
    fn spill(&mut self, batch: Vec<Record>) -> Vec<Record> {
        let task = &self.task;
        let Some(spooling) = &task.spooling else { return batch };
        if spooling.is_broken() || task.core.options.retries != Retries::Always {
            return batch;
        }
        self.put_back(batch);
        spooling.start_spooling();
        Vec::new()
    }

    /// At the end, returns a batch to the queue, whose records go to the spool; without a spool, returns it to the caller.
    fn keep(&self, batch: Vec<Record>) -> Vec<Record> {
        if self.task.spooling.is_none() {
            return batch;
        }
        self.put_back(batch);
        Vec::new()
    }

    fn put_back(&self, records: Vec<Record>) {
        let moved = tally(&records);
        self.task.queue.borrow_mut().put_back(records, Instant::now());
        self.task.account.book(|books| {
            books.inflight.subtract(moved);
            books.queued.add(moved);
        });
    }

    /// At the end, writes records that still wait in memory to the spool.
    async fn keep_rest(&self) {
        let Some(spooling) = &self.task.spooling else { return };
        let deadline = Instant::now() + LAST_WRITES;
        let rest = {
            let mut queue = self.task.queue.borrow_mut();
            queue.batch(usize::MAX, usize::MAX, Instant::now())
        };
        spooling.write(rest);
        while spooling.is_writing() && Instant::now() < deadline {
            let written = spooling.step();
            self.task.core.memory.give(written.bytes);
            if !written.failed.is_empty() {
                self.task.queue.borrow_mut().put_back(written.failed, Instant::now());
            }
            sleep(LAST_LOOK).await;
        }
        let waits = self.task.account.read().pending.spool.records;
        if waits > 0 {
            tracing::warn!("{}: {waits} records stay on disk until the next start", self.task.core.name());
        }
    }

    /// Sends a batch until each of its records is settled; when it gives up, returns the unsettled ones and the reason.
    async fn deliver(
        &mut self,
        destination: &mut dyn Destination,
        mut batch: Vec<Record>,
    ) -> (Vec<Record>, DropReason) {
        self.begin_batch();
        let core = Arc::clone(&self.task.core);
        loop {
            let sent = tokio::select! {
                sent = destination.send(&batch) => sent,
                () = given_up(&core) => return (self.keep(batch), DropReason::Shutdown),
            };
            let DeliveryVerdict { left, settlement, next } = self.judge(batch, sent);
            self.settle(&settlement);
            batch = self.shrunk(left);
            if batch.is_empty() {
                return (batch, DropReason::Retries);
            }
            let NextTry::Later { error, after } = next else { continue };
            let Some(pause) = self.backoff.next(core.options.retries, after) else {
                self.task.complain(&error, "records are lost");
                return (batch, DropReason::Retries);
            };
            self.task.complain(&error, "records wait, and are tried again");
            if self.has_drained_long_enough() {
                return (self.keep(batch), DropReason::Abandoned);
            }
            batch = self.spill(batch);
            let _ = timeout(pause, given_up(&core)).await;
            if batch.is_empty() {
                return (batch, DropReason::Shutdown);
            }
            if core.signals.has_given_up() {
                return (self.keep(batch), DropReason::Shutdown);
            }
        }
    }

    /// Whether the sink was closed some time ago and its destination still refuses records.
    fn has_drained_long_enough(&mut self) -> bool {
        if !self.task.core.signals.is_closed() {
            return false;
        }
        let since = *self.closed.get_or_insert_with(Instant::now);
        self.backoff.has_failed() && since.elapsed() >= DRAIN
    }

    /// Puts the records beyond the batch limit back into the queue.
    fn shrunk(&mut self, mut batch: Vec<Record>) -> Vec<Record> {
        if batch.len() > self.limit {
            self.put_back(batch.split_off(self.limit));
        }
        batch
    }

    fn judge(&mut self, batch: Vec<Record>, sent: SendOutcome) -> DeliveryVerdict {
        let mut settlement = Settlement::default();
        match sent {
            SendOutcome::Taken => {
                settlement.delivered = tally(&batch);
                self.went_well();
                DeliveryVerdict::settled(settlement)
            }
            SendOutcome::Each { outcomes, error } => self.judge_each(batch, outcomes, error),
            SendOutcome::TooLarge(error) if batch.len() == 1 => self.reject(&batch, RejectReason::TooLarge, &error),
            SendOutcome::TooLarge(_) => {
                self.limit = batch.len() / 2;
                DeliveryVerdict { left: batch, settlement, next: NextTry::AtOnce }
            }
            SendOutcome::Busy { error, after } => {
                self.limit = (batch.len() / 2).max(1);
                DeliveryVerdict::later(batch, settlement, error, after)
            }
            SendOutcome::Failed { error, after } => DeliveryVerdict::later(batch, settlement, error, after),
            SendOutcome::Refused { reason, error } => self.reject(&batch, reason, &error),
        }
    }

    fn judge_each(&mut self, batch: Vec<Record>, outcomes: Vec<Outcome>, error: Option<String>) -> DeliveryVerdict {
        let mut settlement = Settlement::default();
        let (mut left, mut rejected) = (Vec::new(), Vec::new());
        // A record without an outcome is tried again.
        let outcomes = outcomes.into_iter().chain(repeat(Outcome::Retry));
        for (record, outcome) in batch.into_iter().zip(outcomes) {
            let one = RecordTally::one(record.bytes());
            match outcome {
                Outcome::Delivered => settlement.delivered.add(one),
                Outcome::Duplicate => {
                    settlement.delivered.add(one);
                    settlement.duplicates.add(one);
                }
                Outcome::Rejected(reason) => {
                    settlement.rejected[reason as usize].add(one);
                    rejected.push((reason, record));
                }
                Outcome::Retry => left.push(record),
            }
        }
        if !rejected.is_empty() {
            let records = rejected.iter().map(|(reason, record)| (*reason, record));
            self.keep_rejected(error.as_deref().unwrap_or_default(), records);
        }
        if !left.is_empty() {
            return DeliveryVerdict::later(left, settlement, error.unwrap_or_default(), None);
        }
        self.went_well();
        if let Some(error) = error {
            self.task.complain(&error, "such records are rejected");
        }
        DeliveryVerdict::settled(settlement)
    }

    fn reject(&self, batch: &[Record], reason: RejectReason, error: &str) -> DeliveryVerdict {
        let mut settlement = Settlement::default();
        settlement.rejected[reason as usize] = tally(batch);
        self.task.complain(error, "records are rejected");
        self.keep_rejected(error, batch.iter().map(|record| (reason, record)));
        DeliveryVerdict::settled(settlement)
    }

    fn keep_rejected<'r>(&self, error: &str, records: impl Iterator<Item = (RejectReason, &'r Record)>) {
        let core = &self.task.core;
        if let Some(rejected) = &core.options.rejected {
            rejected.keep(core.name(), error, records);
        }
    }

    fn went_well(&mut self) {
        self.backoff.reset();
        // The batch limit grows again, step by step.
        self.limit = self.limit.saturating_add(self.limit / 8 + 1);
        self.task.account.set_error(None);
    }

    fn settle(&self, settlement: &Settlement) {
        let settled = settlement.sum();
        self.task.account.book(|books| {
            books.inflight.subtract(settled);
            settlement.book(books);
        });
        self.task.core.memory.give(settled.bytes);
    }

    /// Books records that were being sent as lost.
    fn lose(&self, records: Vec<Record>, reason: DropReason) {
        let core = &self.task.core;
        let lost = tally(&records);
        if reason != DropReason::Retries {
            let name = core.name();
            tracing::error!("{name}: {} records could not be delivered and are lost ({})", lost.records, reason.name());
        }
        self.task.account.book(|books| books.drop_from(inflight, reason, lost));
        self.task.core.memory.give(lost.bytes);
    }

    /// Books all records still in memory as lost, when the process waits no longer.
    fn lose_rest(&self) {
        let mut queue = self.task.queue.borrow_mut();
        let rest = queue.batch(usize::MAX, usize::MAX, Instant::now());
        if rest.is_empty() {
            return;
        }
        let (lost, name) = (tally(&rest), self.task.core.name());
        let reason = match self.task.core.signals.has_given_up() {
            true => DropReason::Shutdown,
            false => DropReason::Abandoned,
        };
        tracing::error!("{name}: {} records could not be delivered and are lost ({})", lost.records, reason.name());
        self.task.account.book(|books| books.drop_from(queued, reason, lost));
        self.task.core.memory.give(lost.bytes);
    }
}

fn inflight(books: &mut Books) -> &mut RecordTally {
    &mut books.inflight
}

fn queued(books: &mut Books) -> &mut RecordTally {
    &mut books.queued
}

async fn given_up(core: &SinkCore) {
    while !core.signals.has_given_up() {
        let _ = timeout(LOOK_UP, core.signals.changed.notified()).await;
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod spool_tests;
