//! Topics, and their events that are kept.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::fan_out::FanOutPass;
use super::numbers::{Slot, TopicNumber};

#[derive(Default)]
pub(super) struct Topics {
    topics: Vec<Topic>,
    by_name: HashMap<Arc<str>, TopicNumber>,
    /// Ids of topics that were forgotten.
    unused: Vec<TopicNumber>,
    /// All events that are kept, oldest first.
    kept: VecDeque<KeptEvent>,
    kept_bytes: u64,
}

#[derive(Clone, Copy)]
struct KeptEvent {
    seq: u64,
    time_ms: u64,
    topic: TopicNumber,
    /// The size of its content.
    bytes: u32,
}

/// What an event counts for beside its content and its topic, in bytes: what it takes on the disk and in memory.
const EVENT_OVERHEAD_BYTES: u64 = 256;

pub(super) struct Topic {
    pub(super) name: Arc<str>,
    /// Events since the beginning, including removed ones.
    pub(super) count: u64,
    /// Numbers of its events that are kept, oldest first.
    events: VecDeque<u64>,
    /// Slots of its active subscriptions.
    pub(super) subscribers: Vec<Slot>,
    /// The pass that queues its subscribers for new events.
    pub(super) pass: FanOutPass,
}

impl Topic {
    fn position_after(&self, seq: u64) -> usize {
        self.events.partition_point(|event| *event <= seq)
    }

    /// The number of kept events after this one.
    pub(super) fn after(&self, seq: u64) -> usize {
        match self.events.back() {
            Some(newest) if *newest > seq => self.events.len() - self.position_after(seq),
            _ => 0,
        }
    }

    pub(super) fn next_after(&self, seq: u64) -> Option<u64> {
        match self.events.back() {
            Some(newest) if *newest > seq => self.events.get(self.position_after(seq)).copied(),
            _ => None,
        }
    }

    pub(super) fn list_after(&self, seq: u64, limit: usize) -> Vec<u64> {
        self.events.iter().skip(self.position_after(seq)).take(limit).copied().collect()
    }

    pub(super) fn newest(&self) -> Option<u64> {
        self.events.back().copied()
    }

    pub(super) fn join(&mut self, slot: Slot) -> u32 {
        self.subscribers.push(slot);
        self.subscribers.len() as u32 - 1
    }

    /// Removes the subscriber at `place`; returns the slot of the subscriber that was moved there, if any.
    pub(super) fn leave(&mut self, place: u32) -> Option<Slot> {
        self.subscribers.swap_remove(place as usize);
        self.subscribers.get(place as usize).copied()
    }
}

impl Topics {
    pub(super) fn find(&self, name: &str) -> Option<TopicNumber> {
        self.by_name.get(name).copied()
    }

    pub(super) fn get(&self, topic: TopicNumber) -> &Topic {
        &self.topics[topic.index()]
    }

    pub(super) fn get_mut(&mut self, topic: TopicNumber) -> &mut Topic {
        &mut self.topics[topic.index()]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (TopicNumber, &Topic)> {
        self.topics.iter().enumerate().map(|(id, topic)| (TopicNumber::at(id), topic))
    }

    pub(super) fn add(&mut self, name: &str) -> TopicNumber {
        if let Some(topic) = self.find(name) {
            return topic;
        }
        let name: Arc<str> = name.into();
        let new = Topic {
            name: Arc::clone(&name),
            count: 0,
            events: VecDeque::new(),
            subscribers: Vec::new(),
            pass: FanOutPass::default(),
        };
        let topic = match self.unused.pop() {
            Some(topic) => {
                self.topics[topic.index()] = new;
                topic
            }
            None => {
                self.topics.push(new);
                TopicNumber::at(self.topics.len() - 1)
            }
        };
        self.by_name.insert(name, topic);
        topic
    }

    /// Forgets a topic if it has neither events nor subscriptions: publishers may choose ever new topics.
    pub(super) fn forget_unused(&mut self, topic: TopicNumber) {
        let at = &mut self.topics[topic.index()];
        if at.events.is_empty() && at.subscribers.is_empty() && !at.pass.is_under_way {
            let name = std::mem::replace(&mut at.name, "".into());
            (at.events, at.subscribers) = (VecDeque::new(), Vec::new());
            // It may have been forgotten before.
            if self.by_name.remove(&name).is_some() {
                self.unused.push(topic);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Adds and counts a new event.
    pub(super) fn take_in(&mut self, seq: u64, name: &str, bytes: u32, time_ms: u64) -> TopicNumber {
        let topic = self.keep(seq, name, bytes, time_ms);
        self.get_mut(topic).count += 1;
        topic
    }

    /// Adds an event that was counted before.
    pub(super) fn keep(&mut self, seq: u64, name: &str, bytes: u32, time_ms: u64) -> TopicNumber {
        let topic = self.add(name);
        self.get_mut(topic).events.push_back(seq);
        let event = KeptEvent { seq, time_ms, topic, bytes };
        self.kept.push_back(event);
        self.kept_bytes += self.counted_bytes(event);
        topic
    }

    /// What an event counts for in `kept_bytes`.
    fn counted_bytes(&self, event: KeptEvent) -> u64 {
        u64::from(event.bytes) + self.get(event.topic).name.len() as u64 + EVENT_OVERHEAD_BYTES
    }

    /// The size of an event's content, in bytes; 0 if the event is not kept.
    pub(super) fn bytes_of(&self, seq: u64) -> u64 {
        let at = self.kept.partition_point(|event| event.seq < seq);
        self.kept.get(at).filter(|event| event.seq == seq).map_or(0, |event| u64::from(event.bytes))
    }

    /// The last event to remove so that the kept ones count for at most `max_bytes`; 0 if none. Removes some more than necessary, so
    /// that not every new event removes one.
    pub(super) fn beyond(&self, max_bytes: u64) -> u64 {
        if self.kept_bytes <= max_bytes {
            return 0;
        }
        let (wanted, mut left) = (max_bytes - max_bytes / 8, self.kept_bytes);
        let over = self.kept.iter().take_while(|event| {
            let is_over = left > wanted;
            left -= self.counted_bytes(**event);
            is_over
        });
        over.last().map_or(0, |event| event.seq)
    }

    /// The last event from before this time; 0 if none.
    pub(super) fn before(&self, time_ms: u64) -> u64 {
        self.kept.iter().take_while(|event| event.time_ms < time_ms).last().map_or(0, |event| event.seq)
    }

    /// Forgets events up to `seq`; returns the last one that was forgotten.
    pub(super) fn drop_up_to(&mut self, seq: u64) -> Option<u64> {
        let mut last = None;
        while let Some(event) = self.kept.front().copied()
            && event.seq <= seq
        {
            self.kept.pop_front();
            self.kept_bytes -= self.counted_bytes(event);
            self.get_mut(event.topic).events.pop_front();
            self.forget_unused(event.topic);
            last = Some(event.seq);
        }
        last
    }
}
