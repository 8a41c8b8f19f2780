//! Callers that wait for events of a topic.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::HubDriver;
use crate::record::Event;

/// The most listeners served in one turn.
const LISTENERS_PER_TURN: usize = 512;

/// The bytes of events after which a listener gets no more at once: a listener that does not read keeps them in memory.
const MOST_LISTED_BYTES: usize = 32 << 10;

/// A caller that waits for events of a topic.
pub(crate) struct EventWaiter {
    pub(crate) topic: Box<str>,
    pub(crate) after: u64,
    pub(crate) limit: usize,
    /// Gets the events; none if the settings have changed.
    pub(crate) reply: oneshot::Sender<Vec<Arc<Event>>>,
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

    pub(super) fn listen(&mut self, listener: EventWaiter) {
        if self.stops_listening {
            return;
        }
        let seqs = self.engine.events_after(&listener.topic, listener.after, listener.limit);
        let (mut events, mut bytes) = (Vec::new(), 0);
        for seq in seqs {
            let event = match self.store.event(seq) {
                Ok(Some(event)) => event,
                Ok(None) => continue,
                Err(error) => {
                    self.unreadable(&error);
                    break;
                }
            };
            bytes += event.content.len();
            events.push(event);
            if bytes >= MOST_LISTED_BYTES {
                break;
            }
        }
        if !events.is_empty() {
            let _ = listener.reply.send(events);
            return;
        }
        let waiting = self.listeners.entry(listener.topic.clone()).or_default();
        // Listeners whose callers have gone are removed before the list has to grow.
        if waiting.len() == waiting.capacity() {
            waiting.retain(|waiting| !waiting.reply.is_closed());
        }
        waiting.push(listener);
    }
}
