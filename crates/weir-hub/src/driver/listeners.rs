//! Callers that wait for events of a topic, or read its newest one.

use std::collections::{HashMap, VecDeque};

use tokio::sync::oneshot;

use super::{HubDriver, cannot_read};
use crate::form::Refusal;
use crate::holding::{EventHolding, HeldEvents, Listened};

/// The most listeners served in one turn.
const LISTENERS_PER_TURN: usize = 512;

/// The bytes of events that a listener gets at once. One that is larger comes alone.
const MOST_LISTED_BYTES: usize = 32 << 10;

/// The fewest waiting listeners among which those whose callers have gone are looked for.
const FEWEST_SWEPT: usize = 256;

/// What an event counts for in memory beside its content and its topic.
const EVENT_OVERHEAD_BYTES: usize = 256;

/// A caller that waits for events of a topic.
pub(crate) struct EventWaiter {
    pub(crate) topic: Box<str>,
    pub(crate) after: u64,
    pub(crate) limit: usize,
    pub(crate) holding: Box<dyn EventHolding>,
    pub(crate) reply: oneshot::Sender<Listened>,
}

/// Callers that wait for the next event, by topic. Callers choose the topics, and leave without notice.
#[derive(Default)]
pub(super) struct WaitingListeners {
    by_topic: HashMap<Box<str>, Vec<EventWaiter>>,
    count: usize,
    /// The count at which those whose callers have gone are removed: twice as many as were left the last time.
    sweep_at: usize,
}

impl WaitingListeners {
    pub(super) fn add(&mut self, listener: EventWaiter) {
        if self.count >= self.sweep_at.max(FEWEST_SWEPT) {
            self.sweep();
        }
        self.by_topic.entry(listener.topic.clone()).or_default().push(listener);
        self.count += 1;
    }

    fn sweep(&mut self) {
        self.by_topic.retain(|_, waiting| {
            waiting.retain(|listener| !listener.reply.is_closed());
            !waiting.is_empty()
        });
        self.by_topic.shrink_to_fit();
        self.count = self.by_topic.values().map(Vec::len).sum();
        self.sweep_at = 2 * self.count;
    }

    /// Removes those of a topic.
    pub(super) fn take(&mut self, topic: &str) -> Vec<EventWaiter> {
        let taken = self.by_topic.remove(topic).unwrap_or_default();
        self.count -= taken.len();
        taken
    }

    pub(super) fn take_all(&mut self) -> impl Iterator<Item = EventWaiter> {
        std::mem::take(self).by_topic.into_values().flatten()
    }
}

impl HubDriver {
    /// Serves listeners that have an event.
    pub(super) fn serve_woken(&mut self) {
        for _ in 0..LISTENERS_PER_TURN {
            let Some(listener) = self.woken.pop_front() else { break };
            self.listen(listener);
        }
        if self.woken.is_empty() {
            self.woken = VecDeque::new();
        }
    }

    pub(super) fn listen(&mut self, mut listener: EventWaiter) {
        // For a caller that has gone, nothing is read and held.
        if self.stops_listening || listener.reply.is_closed() {
            return;
        }
        let seqs = self.engine.events_after(&listener.topic, listener.after, listener.limit);
        let (mut events, mut bytes) = (Vec::new(), 0);
        for seq in seqs {
            let more = self.memory_of(seq, &listener.topic);
            if !events.is_empty() && bytes + more > MOST_LISTED_BYTES {
                break;
            }
            // Before it is read, so that what is not held is nowhere.
            if let Err(refusal) = listener.holding.hold(seq, more) {
                if events.is_empty() {
                    drop(listener.reply.send(Listened::NoRoom(refusal)));
                    return;
                }
                break;
            }
            match self.store.event(seq) {
                Ok(Some(event)) => events.push(event),
                Ok(None) => continue,
                Err(error) => {
                    self.unreadable(&error);
                    break;
                }
            }
            bytes += more;
        }
        if events.is_empty() {
            listener.holding.release();
            return self.listeners.add(listener);
        }
        drop(listener.reply.send(Listened::Events(HeldEvents::new(events, listener.holding))));
    }

    /// The newest event of a topic.
    pub(super) fn latest(
        &mut self,
        topic: &str,
        mut holding: Box<dyn EventHolding>,
    ) -> Result<Option<HeldEvents>, Refusal> {
        let Some(seq) = self.engine.newest_of(topic) else { return Ok(None) };
        holding.hold(seq, self.memory_of(seq, topic))?;
        let event = self.store.event(seq).map_err(|error| {
            self.unreadable(&error);
            cannot_read()
        })?;
        Ok(event.map(|event| HeldEvents::new(vec![event], holding)))
    }

    /// The memory that an event takes.
    fn memory_of(&self, seq: u64, topic: &str) -> usize {
        self.engine.bytes_of(seq) as usize + topic.len() + EVENT_OVERHEAD_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Unlimited;

    impl EventHolding for Unlimited {
        fn hold(&mut self, _: u64, _: usize) -> Result<(), Refusal> {
            Ok(())
        }

        fn release(&mut self) {}
    }

    fn waiter(topic: String) -> (EventWaiter, oneshot::Receiver<Listened>) {
        let (reply, answer) = oneshot::channel();
        (EventWaiter { topic: topic.into(), after: 0, limit: 1, holding: Box::new(Unlimited), reply }, answer)
    }

    #[test]
    fn listeners_that_have_gone_are_forgotten_whatever_topics_they_asked_for() {
        let mut waiting = WaitingListeners::default();
        let mut kept = Vec::new();
        for number in 0..100_000 {
            let (waiter, answer) = waiter(format!("http://t.example/{number}"));
            waiting.add(waiter);
            if number % 1_000 == 0 {
                kept.push((number, answer));
            }
            assert!(waiting.count <= FEWEST_SWEPT.max(2 * kept.len()) + 1);
            assert_eq!(waiting.by_topic.len(), waiting.count);
        }
        assert!(waiting.by_topic.capacity() <= 4 * FEWEST_SWEPT, "{}", waiting.by_topic.capacity());
        assert!(kept.iter().all(|(number, _)| waiting.take(&format!("http://t.example/{number}")).len() == 1));
        assert_eq!(waiting.take("http://t.example/other").len(), 0);
    }
}
