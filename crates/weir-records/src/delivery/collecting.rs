//! Takes records out of rings, and puts them into the queue or onto the disk.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::{Instant, timeout};

use super::SinkTask;
use crate::books::{DropReason, RecordTally};
use crate::lock::locked;
use crate::queue::{Record, RecordQueue};
use crate::ring::{RingReader, RingTake};
use crate::spooling::Spooling;
use crate::test_record::TestOutcome;

/// The interval of draining the rings while records arrive, and the longest one while none do.
const LOOK: Duration = Duration::from_millis(20);
const LOOK_IDLE: Duration = Duration::from_millis(160);
/// A destination lags when this fraction (1/LAG) of the memory is used.
const LAG: u64 = 4;

impl SinkTask {
    pub(super) async fn collect(&self) {
        let mut rings: Vec<RingReader> = Vec::new();
        let mut pause = LOOK;
        loop {
            // Read before the rings are drained: after closing, no record is written to a ring.
            let is_closed = self.core.signals.is_closed();
            locked(&self.core.new_rings).iter_mut().for_each(|new| rings.append(new));
            let drained = self.drain(&mut rings);
            let has_spooled = self.spool();
            self.update_full_signal();
            let has_drained_all = rings.iter().all(RingReader::is_empty);
            if drained || has_spooled {
                pause = LOOK;
                self.added.notify_one();
            } else if (is_closed && has_drained_all && !self.is_writing() || self.is_ending()) && self.adopts_no_more()
            {
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

    /// Adopts no more rings from now on; `false` if there is one that was not adopted yet.
    fn adopts_no_more(&self) -> bool {
        let mut new = locked(&self.core.new_rings);
        let has_all = new.as_ref().is_none_or(Vec::is_empty);
        if has_all {
            *new = None;
        }
        has_all
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
            (true, true) => {
                self.complain("there is nearly no room for records", "requests are answered with 503");
            }
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
        let (mut queued, mut dropped, mut has_test) = (RecordTally::default(), RecordTally::default(), false);
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
                    has_test |= self.core.tests.has(&payload);
                    queue.push(Record { boot: self.boot, sequence, payload, attachments }, now);
                    queued.add(tally);
                } else {
                    if taken.is_counted {
                        self.core.memory.give(tally.bytes);
                    }
                    dropped.add(tally);
                    self.tell_dropped_test(&taken.payload);
                }
            }
            if !moved.is_zero() && !Arc::ptr_eq(ring.account(), &self.account) {
                // The records were counted in memory, before the account on disk was open.
                self.account.take_over(ring.account(), moved);
            }
        }
        self.sequence.set(sequence);
        if has_test {
            queue.hurry();
        }
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

    fn tell_dropped_test(&self, payload: &[u8]) {
        if !self.core.tests.is_empty() {
            let error = || self.account.last_error();
            self.core
                .tests
                .tell_payload(payload, || TestOutcome::Dropped { reason: DropReason::MemoryFull, error: error() });
        }
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
}
