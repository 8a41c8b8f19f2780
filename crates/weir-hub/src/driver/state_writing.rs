//! The state log: records are written, and what waits for them goes on; after a failure, a snapshot replaces them.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use weir_journal::AppendError;

use super::{AFTER_FAILURE, HubDriver, Message};
use crate::engine::DeadLetterFilter;
use crate::form::Refusal;
use crate::record::{self, StateRecord};

/// Changes of state that are on disk now.
#[derive(Default)]
pub(crate) struct PersistedChanges {
    /// Subscriptions whose outcomes are written.
    subscriptions: Vec<u64>,
    /// Requests that are written.
    requests: Vec<u64>,
    /// Replays that are written.
    replays: Vec<u64>,
    /// Events up to this one may be removed from the journal.
    release: Option<u64>,
}

impl PersistedChanges {
    /// What is on disk once these records are, and whether they have to survive a loss of power.
    pub(super) fn of(records: &[StateRecord]) -> (PersistedChanges, bool) {
        let (mut written, mut survives_power_loss) = (PersistedChanges::default(), false);
        for record in records {
            match record {
                StateRecord::Marks(marks) => written.subscriptions.extend(marks.iter().map(|mark| mark.subscription)),
                StateRecord::Requested { number, .. } => {
                    survives_power_loss = true;
                    written.requests.push(*number);
                }
                StateRecord::Replayed { number, .. } => {
                    survives_power_loss = true;
                    written.replays.push(*number);
                }
                StateRecord::Unverified { .. } => {}
                _ => survives_power_loss = true,
            }
        }
        (written, survives_power_loss)
    }
}

fn cannot_write(is_full: bool) -> Refusal {
    match is_full {
        true => Refusal::new(507, "the disk of the hub is full"),
        false => Refusal::new(503, "the hub cannot write to its disk"),
    }
}

impl HubDriver {
    /// Writes the engine's new records to the state log.
    pub(super) fn write(&mut self) {
        let records = self.engine.take_records();
        if records.is_empty() || self.failed_at.is_some() {
            // After a failure, the next snapshot contains these records.
            return;
        }
        let mut release = self.release.take();
        let mut payloads = record::encode(&records).peekable();
        while let Some((payload, records)) = payloads.next() {
            let (mut written, survives_power_loss) = PersistedChanges::of(records);
            // Events are removed once all of the records are written.
            if payloads.peek().is_none() {
                written.release = release.take();
            }
            let inbox = self.inbox.clone();
            let tell = Box::new(move |result: Result<u64, AppendError>| {
                let _ = inbox.send(match result {
                    Ok(_) => Message::Recorded(written),
                    Err(error) => Message::Unrecorded(error),
                });
            });
            if let Err(error) = self.store.state.append(payload, survives_power_loss, tell) {
                return self.take(Message::Unrecorded(error));
            }
        }
    }

    pub(super) fn recorded(&mut self, written: PersistedChanges) {
        self.engine.recorded(written.subscriptions, self.clock.now_ms());
        for number in written.requests {
            self.engine.verify(number);
            if let Some(reply) = self.replies.remove(&number) {
                // Once it is queued: behind all those that were written with it.
                let wait_ms = self.engine.verification_wait_ms(number, self.clock.now_ms());
                let _ = reply.send(Ok(Duration::from_millis(wait_ms)));
            }
        }
        for number in written.replays {
            self.begun(number);
        }
        if let Some(seq) = written.release {
            self.store.state.release_events(seq);
        }
        if self.store.wants_snapshot() {
            self.write_snapshot();
        }
    }

    /// Writes a snapshot. It contains the effects of all the engine's records, so none of them may follow it.
    pub(super) fn write_snapshot(&mut self) {
        self.write();
        if self.failed_at.is_none()
            && let Err(error) = self.store.write_snapshot(&self.engine)
        {
            (self.tell)(&format!("the state of the hub could not be written: {error}"));
            self.failed_at = Some(Instant::now());
        }
    }

    /// After a failed write, writes a snapshot of the whole state. Requests since the failure are refused; deliveries go on.
    pub(super) fn recover_from_failure(&mut self) {
        if self.failed_at.is_none_or(|at| at + AFTER_FAILURE > Instant::now()) {
            return;
        }
        for (number, reply) in self.replies.drain() {
            let _ = reply.send(Err(cannot_write(self.is_disk_full)));
            self.engine.verified(number, false, self.clock.now_ms(), self.clock.now_ms());
        }
        drop(self.engine.take_records());
        match self.store.write_snapshot(&self.engine) {
            Ok(()) => {
                self.failed_at = None;
                // Their replays are part of the snapshot.
                self.replays.drain().for_each(|(_, (count, reply))| drop(reply.send(Ok(count))));
                self.engine.recorded_all(self.clock.now_ms());
                (self.tell)("the state of the hub can be written again");
            }
            Err(_) => self.failed_at = Some(Instant::now()),
        }
    }

    pub(super) fn replay(&mut self, filter: &DeadLetterFilter, reply: oneshot::Sender<Result<usize, Refusal>>) {
        if self.failed_at.is_some() {
            let _ = reply.send(Err(cannot_write(self.is_disk_full)));
            return;
        }
        match self.engine.replay(filter, self.clock.now_ms()) {
            Some((number, count)) => drop(self.replays.insert(number, (count, reply))),
            None => drop(reply.send(Ok(0))),
        }
    }

    /// Called when a replay is on disk: answers its caller.
    pub(super) fn begun(&mut self, number: u64) {
        if let Some((count, reply)) = self.replays.remove(&number) {
            (self.tell)(&format!("{count} dead letters are delivered once more"));
            let _ = reply.send(Ok(count));
        }
    }
}
