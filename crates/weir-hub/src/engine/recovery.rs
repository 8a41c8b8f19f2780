//! Restores an engine from its records.

use super::Engine;
use crate::record::{StateRecord, UnknownRecord};

/// The most topics in one record: a topic may have several kilobytes.
const TOPICS_PER_RECORD: usize = 64;

impl Engine {
    /// The whole state as records that replace all before them. They are made one by one: together they would need several times
    /// the memory of the state.
    pub(crate) fn snapshot(&self) -> impl Iterator<Item = StateRecord> {
        let begin = [StateRecord::SnapshotBegin].into_iter().chain(self.position());
        let begin = begin.chain([StateRecord::EndedTally(self.ended)]);
        let subscriptions = self.subscriptions.iter().map(|(_, subscription)| {
            let topic = &self.topics.get(subscription.topic).name;
            StateRecord::Subscribed { number: 0, subscription: self.saved(subscription, topic) }
        });
        let requests = self.requests.iter().map(|(number, it)| StateRecord::Requested { number, request: it.clone() });
        let (dead_letters, replays) = self.dead_letters.saved();
        let taken = self.requests_taken;
        let end = [StateRecord::DeadLetters(dead_letters), StateRecord::Replays(replays)]
            .into_iter()
            .chain((taken > 0).then_some(StateRecord::RequestsTaken { seq: taken }))
            .chain([StateRecord::SnapshotEnd]);
        begin.chain(subscriptions).chain(requests).chain(end)
    }

    /// The position, in records that have a part of the topics each. The count of a topic without subscriptions is of no use.
    fn position(&self) -> Vec<StateRecord> {
        let of_topics = self.topics.iter().filter(|(_, topic)| !topic.subscribers.is_empty());
        let topics: Vec<(Box<str>, u64)> = of_topics.map(|(_, topic)| ((*topic.name).into(), topic.count)).collect();
        let (processed, dropped, next_id) = (self.processed, self.dropped, self.next_id);
        let record = |topics: &[_]| StateRecord::Position { processed, dropped, next_id, topics: topics.to_vec() };
        match topics.is_empty() {
            true => vec![record(&[])],
            false => topics.chunks(TOPICS_PER_RECORD).map(record).collect(),
        }
    }

    pub(super) fn write_position(&mut self) {
        let position = self.position();
        self.records.extend(position);
    }

    /// Applies a record; records must come in the order in which they were written.
    ///
    /// # Errors
    /// The record contradicts those before it.
    pub(crate) fn restore(&mut self, record: StateRecord) -> Result<(), UnknownRecord> {
        match record {
            StateRecord::SnapshotBegin | StateRecord::SnapshotEnd => {}
            StateRecord::Position { processed, dropped, next_id, topics } => {
                (self.processed, self.dropped) = (processed, dropped);
                self.next_id = self.next_id.max(next_id);
                for (topic, count) in topics {
                    let topic = self.topics.add(&topic);
                    self.topics.get_mut(topic).count = count;
                }
            }
            StateRecord::EndedTally(tally) => self.ended = tally,
            StateRecord::Requested { number, request } => {
                self.next_id = self.next_id.max(number + 1);
                self.open(number, request);
            }
            StateRecord::Unverified { number } => drop(self.close_request(number)),
            StateRecord::Subscribed { number, subscription } => {
                self.close_request(number);
                self.next_id = self.next_id.max(subscription.id + 1);
                self.put(subscription);
            }
            StateRecord::Ended { subscription, cancelled, .. } => {
                let slot = self.subscriptions.slot_of(subscription).ok_or(UnknownRecord)?;
                self.remove(slot, cancelled);
            }
            StateRecord::DeadLetters(letters) => {
                for letter in letters {
                    if self.subscriptions.slot_of(letter.subscription).is_some() {
                        self.dead_letters.add(letter.subscription, letter.seq, letter.given_up);
                    }
                }
            }
            StateRecord::Replays(replays) => {
                for (subscription, seq) in replays {
                    if self.subscriptions.slot_of(subscription).is_some() {
                        self.dead_letters.replay(subscription, seq);
                    }
                }
            }
            StateRecord::Replayed { number, letters } => {
                self.next_id = self.next_id.max(number + 1);
                for (subscription, seq) in letters {
                    self.begin_replay(subscription, seq);
                }
            }
            StateRecord::RequestsTaken { seq } => self.requests_taken = seq,
            StateRecord::Marks(marks) => {
                for mark in marks {
                    // Its subscription may have ended while the delivery was in flight.
                    if let Some(slot) = self.subscriptions.slot_of(mark.subscription) {
                        let at = self.subscriptions.get_mut(slot);
                        at.standing = at.standing.after_mark(mark.outcome);
                        self.apply(slot, mark);
                    }
                }
            }
        }
        Ok(())
    }

    /// Restores an event that the journal still has. Those after the written position are counted now.
    pub(crate) fn restore_event(&mut self, seq: u64, topic: &str, bytes: u32, time_ms: u64) {
        if seq <= self.dropped {
            // The event was dropped; it is still there because its segment also has later events.
        } else if seq > self.processed {
            self.topics.take_in(seq, topic, bytes, time_ms);
            self.processed = seq;
        } else {
            self.topics.keep(seq, topic, bytes, time_ms);
        }
    }

    /// Called after the last record: books what is missing as expired, and queues all pending work.
    pub(crate) fn restored(&mut self, now_ms: u64) {
        self.expire_dropped();
        let slots: Vec<_> = self.subscriptions.iter().map(|(slot, _)| slot).collect();
        // Damaged events were committed too: the topic must have had at least the events that the subscription has outcomes for,
        // and those still pending.
        for slot in &slots {
            let subscription = self.subscriptions.get(*slot);
            let topic = self.topics.get(subscription.topic);
            let had = subscription.base + self.first_outcomes(subscription);
            let count = topic.count.max(had + topic.after(subscription.done) as u64);
            let topic = subscription.topic;
            self.topics.get_mut(topic).count = count;
        }
        for slot in slots {
            let subscription = self.subscriptions.get(slot);
            let missed = self.missed(subscription);
            let done = subscription.done;
            self.expire(slot, done, missed);
            self.queue(slot, now_ms);
        }
        let mut open: Vec<u64> = self.requests.iter().map(|(number, _)| number).collect();
        open.sort_unstable();
        for number in open {
            self.verify(number);
        }
        self.look(now_ms);
    }
}
