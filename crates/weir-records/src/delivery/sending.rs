//! Forms batches, sends them until each of their records is settled, and books the outcome.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, sleep, timeout};

use super::RecordDelivery;
use super::verdict::{DeliveryVerdict, NextTry, Settlement};
use crate::batching::Retries;
use crate::books::{Books, DropReason, RecordTally};
use crate::destination::Destination;
use crate::queue::{Ready, Record, tally};
use crate::sink_core::SinkCore;
use crate::spool::{Group, SpoolPlace};
use crate::spooling::Spooling;
use crate::test_record::TestOutcome;

/// How often a waiting sink checks whether it was closed or given up.
const LOOK_UP: Duration = Duration::from_millis(250);
/// How long a sink that was removed from the configuration tries to deliver its records.
const DRAIN: Duration = Duration::from_secs(60);
/// At the end of the process: how often a sink checks, and how long it waits, for its spool to be written. In tests it waits for as
/// long as a busy disk takes.
const LAST_LOOK: Duration = Duration::from_millis(2);
const LAST_WRITES: Duration = Duration::from_millis(if cfg!(test) { 60_000 } else { 800 });

/// The next work of a sink.
enum NextDelivery {
    Batch(Vec<Record>),
    /// Records from the spool.
    Group(Arc<SpoolPlace>, Group),
    /// No more records will come.
    End,
}

impl RecordDelivery {
    pub(super) async fn run(mut self, destination: Option<Box<dyn Destination>>) {
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
                    Err(error) => {
                        task.complain(&error.to_string(), "records on disk cannot be read");
                    }
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
        let mut queue = task.queue.borrow_mut();
        let mut batch = queue.batch(most, batching.max_bytes, Instant::now());
        let others = batch.split_off(task.core.tests.together(&batch));
        queue.put_back(others, Instant::now());
        drop(queue);
        let moved = tally(&batch);
        task.account.book(|books| {
            books.queued.subtract(moved);
            books.inflight.add(moved);
        });
        NextDelivery::Batch(batch)
    }

    /// Sends a group from the spool until all its records are settled, and books it in one step: after a crash before that, the
    /// group is sent again, but counted once. Records that the destination does not take within `max_age` are given up, as they
    /// would be on the disk: otherwise one that it never takes would stop all behind it.
    async fn deliver_group(&mut self, destination: &mut dyn Destination, place: &SpoolPlace, group: Group) {
        let core = Arc::clone(&self.task.core);
        let Group { records: mut rest, parcels } = group;
        let max_age = self.task.spooling.as_ref().map_or(Duration::MAX, Spooling::max_age);
        let (mut settlement, mut lost) = (Settlement::default(), [RecordTally::default(); DropReason::ALL.len()]);
        let since = Instant::now();
        self.begin_batch();
        while !rest.is_empty() {
            let most = core.options.batching.max_records.min(self.limit).max(1).min(rest.len());
            let most = core.tests.together(&rest[..most]);
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
            if self.gives_up_test(&rest[..count], &error) {
                lost[DropReason::Retries as usize].add(unsettled);
                rest.drain(..count);
                continue;
            }
            match self.pauses.next(core.options.retries, after) {
                Some(_) if since.elapsed() >= max_age => {
                    self.task.complain(&error, "records are lost, since they are too old");
                    lost[DropReason::Expired as usize].add(unsettled);
                    self.tell_lost(&rest[..count], DropReason::Expired);
                    rest.drain(..count);
                }
                Some(pause) => {
                    self.task.complain_of_destination(&error, "records wait on disk, and are tried again");
                    if self.has_drained_long_enough() {
                        return place.put_back(parcels);
                    }
                    self.pause(pause).await;
                }
                None => {
                    self.task.complain_of_destination(&error, "records are lost");
                    lost[DropReason::Retries as usize].add(unsettled);
                    self.tell_lost(&rest[..count], DropReason::Retries);
                    rest.drain(..count);
                    self.begin_batch();
                }
            }
        }
        place.done(&parcels, |books| {
            settlement.book(books);
            books.dropped.iter_mut().zip(lost).for_each(|(all, more)| all.add(more));
        });
    }

    /// With a limited number of tries, each batch has the full number; otherwise pauses keep growing until a batch is delivered.
    fn begin_batch(&mut self) {
        if matches!(self.task.core.options.retries, Retries::Some { .. }) {
            self.pauses.reset();
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
        if spooling.is_writing() {
            let waits = self.task.account.read().pending.memory.records;
            tracing::error!(
                "{}: {waits} records are still being written to disk, and may be lost",
                self.task.core.name()
            );
        }
        let waits = self.task.account.read().pending.spool.records;
        if waits > 0 {
            tracing::warn!(
                "{}: {waits} records stay on disk, for the next logger with this destination",
                self.task.core.name()
            );
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
            if self.gives_up_test(&batch, &error) {
                return (batch, DropReason::Retries);
            }
            let Some(pause) = self.pauses.next(core.options.retries, after) else {
                self.task.complain_of_destination(&error, "records are lost");
                return (batch, DropReason::Retries);
            };
            self.task.complain_of_destination(&error, "records wait, and are tried again");
            if self.has_drained_long_enough() {
                return (self.keep(batch), DropReason::Abandoned);
            }
            batch = self.spill(batch);
            self.pause(pause).await;
            if batch.is_empty() {
                return (batch, DropReason::Shutdown);
            }
            if core.signals.has_given_up() {
                return (self.keep(batch), DropReason::Shutdown);
            }
        }
    }

    /// Waits before the next attempt, which the account shows meanwhile.
    async fn pause(&self, pause: Duration) {
        let account = &self.task.account;
        account.set_next_attempt(SystemTime::now().checked_add(pause));
        let _ = timeout(pause, given_up(&self.task.core)).await;
        account.set_next_attempt(None);
    }

    /// Whether the sink was closed some time ago and its destination still refuses records.
    fn has_drained_long_enough(&mut self) -> bool {
        if !self.task.core.signals.is_closed() {
            return false;
        }
        let since = *self.closed.get_or_insert_with(Instant::now);
        self.pauses.has_failed() && since.elapsed() >= DRAIN
    }

    /// Puts the records beyond the batch limit back into the queue.
    fn shrunk(&mut self, mut batch: Vec<Record>) -> Vec<Record> {
        if batch.len() > self.limit {
            self.put_back(batch.split_off(self.limit));
        }
        batch
    }

    fn settle(&self, settlement: &Settlement) {
        let settled = settlement.sum();
        self.task.account.book(|books| {
            books.inflight.subtract(settled);
            settlement.book(books);
        });
        self.task.core.memory.give(settled.bytes);
    }

    pub(super) fn is_test(&self, records: &[Record]) -> bool {
        records.len() == 1 && self.task.core.tests.has(&records[0].payload)
    }

    /// Whether this is a test record, which is tried once: a destination that never takes it would stop all records behind it.
    fn gives_up_test(&self, records: &[Record], error: &str) -> bool {
        let is_test = self.is_test(records);
        if is_test {
            self.task.complain_of_destination(error, "a test record is lost");
            let reason = DropReason::Retries;
            self.task.core.tests.tell(records, || TestOutcome::Dropped { reason, error: Some(error.to_owned()) });
        }
        is_test
    }

    fn tell_lost(&self, records: &[Record], reason: DropReason) {
        let told = || TestOutcome::Dropped { reason, error: self.task.account.last_error() };
        self.task.core.tests.tell(records, told);
    }

    /// Books records that were being sent as lost.
    fn lose(&self, records: Vec<Record>, reason: DropReason) {
        let core = &self.task.core;
        self.tell_lost(&records, reason);
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
