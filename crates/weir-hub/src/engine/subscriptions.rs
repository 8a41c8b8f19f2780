//! The table of subscriptions, found by topic and callback, by id, and by slot.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::ops::Bound::{Excluded, Unbounded};

use hashbrown::HashTable;
use slab::Slab;

use crate::account::Tally;
use crate::attempt::DeliveryAttempt;
use crate::record::{Mark, MarkOutcome, SavedSubscription};

/// An active subscription. One event at a time is on its way to it.
pub(super) struct Subscription {
    pub(super) id: u64,
    pub(super) callback: Box<str>,
    pub(super) secret: Option<Box<[u8]>>,
    pub(super) owner: Box<str>,
    pub(super) expires_ms: u64,
    /// How many events the topic had when it began.
    pub(super) base: u64,
    /// The last event that is done with.
    pub(super) done: u64,
    pub(super) tally: Tally,
    /// Since when its next event waits to be delivered.
    pub(super) since_ms: u64,
    pub(super) topic: u32,
    pub(super) host: u32,
    /// Its index among the topic's subscribers.
    pub(super) place: u32,
    /// To deliver its next event.
    pub(super) attempts: u32,
    pub(super) delivery: DeliveryState,
    /// The event that was sent last, and when.
    pub(super) sent: u64,
    pub(super) sent_ms: u64,
    /// The latest attempts, the latest last. They are not written down.
    pub(super) history: VecDeque<DeliveryAttempt>,
}

/// Attempts that are kept of each subscription: some 400 bytes.
const ATTEMPTS_KEPT: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeliveryState {
    /// It has all events.
    Idle,
    /// Its turn at its host has not come.
    Queued,
    Sending,
    /// The outcome is being written down. Until then nothing else is sent, so that a crash repeats one delivery at most.
    Recording,
    /// The last attempt failed.
    Waiting,
}

impl Subscription {
    pub(super) fn new(saved: SavedSubscription, topic: u32, host: u32) -> Subscription {
        let SavedSubscription { id, callback, secret, owner, expires_ms, base, done, tally, .. } = saved;
        Subscription {
            id,
            callback,
            secret,
            owner,
            expires_ms,
            base,
            done,
            tally,
            since_ms: 0,
            topic,
            host,
            place: 0,
            attempts: 0,
            delivery: DeliveryState::Idle,
            sent: 0,
            sent_ms: 0,
            history: VecDeque::new(),
        }
    }

    pub(super) fn saved(&self, topic: &str) -> SavedSubscription {
        SavedSubscription {
            id: self.id,
            topic: topic.into(),
            callback: self.callback.clone(),
            secret: self.secret.clone(),
            owner: self.owner.clone(),
            expires_ms: self.expires_ms,
            base: self.base,
            done: self.done,
            tally: self.tally,
        }
    }

    pub(super) fn is_sending(&self) -> bool {
        self.delivery == DeliveryState::Sending
    }

    /// Whether an event is one that it was done with before.
    pub(super) fn is_replay(&self, seq: u64) -> bool {
        seq <= self.done
    }

    pub(super) fn keep_attempt(&mut self, attempt: DeliveryAttempt) {
        if self.history.len() == ATTEMPTS_KEPT {
            self.history.pop_front();
        }
        self.history.push_back(attempt);
    }

    pub(super) fn apply(&mut self, mark: Mark) {
        if !mark.is_replay {
            self.done = self.done.max(mark.seq);
        }
        match mark.outcome {
            MarkOutcome::Delivered => self.tally.delivered += 1,
            MarkOutcome::Dead(_) => self.tally.dead_lettered += 1,
            MarkOutcome::Expired(count) => self.tally.expired += count,
        }
    }
}

#[derive(Default)]
pub(super) struct Subscriptions {
    slots: Slab<Subscription>,
    /// Slots by topic and callback.
    by_key: HashTable<u32>,
    hasher: RandomState,
    by_id: BTreeMap<u64, u32>,
    /// How many each consumer has.
    owners: HashMap<Box<str>, usize>,
}

impl Subscriptions {
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn get(&self, slot: u32) -> &Subscription {
        &self.slots[slot as usize]
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> &mut Subscription {
        &mut self.slots[slot as usize]
    }

    pub(super) fn id_of(&self, slot: u32) -> Option<u64> {
        self.slots.get(slot as usize).map(|subscription| subscription.id)
    }

    pub(super) fn slot_of(&self, id: u64) -> Option<u32> {
        self.by_id.get(&id).copied()
    }

    pub(super) fn find(&self, topic: u32, callback: &str) -> Option<u32> {
        let is_it = |slot: &u32| {
            let subscription = self.get(*slot);
            subscription.topic == topic && *subscription.callback == *callback
        };
        self.by_key.find(self.hasher.hash_one((topic, callback)), is_it).copied()
    }

    pub(super) fn count_of(&self, owner: &str) -> usize {
        self.owners.get(owner).copied().unwrap_or(0)
    }

    /// Those after this one by their ids.
    pub(super) fn after(&self, id: u64) -> impl Iterator<Item = &Subscription> {
        self.by_id.range((Excluded(id), Unbounded)).map(|(_, slot)| self.get(*slot))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Subscription)> {
        self.slots.iter().map(|(slot, subscription)| (slot as u32, subscription))
    }

    pub(super) fn insert(&mut self, subscription: Subscription) -> u32 {
        *self.owners.entry(subscription.owner.clone()).or_default() += 1;
        let (id, key) = (subscription.id, self.hasher.hash_one((subscription.topic, &*subscription.callback)));
        let slot = self.slots.insert(subscription) as u32;
        self.by_id.insert(id, slot);
        let (slots, hasher) = (&self.slots, &self.hasher);
        self.by_key.insert_unique(key, slot, |slot| {
            let subscription = &slots[*slot as usize];
            hasher.hash_one((subscription.topic, &*subscription.callback))
        });
        slot
    }

    pub(super) fn remove(&mut self, slot: u32) -> Subscription {
        let subscription = self.slots.remove(slot as usize);
        self.by_id.remove(&subscription.id);
        let key = self.hasher.hash_one((subscription.topic, &*subscription.callback));
        if let Ok(entry) = self.by_key.find_entry(key, |other| *other == slot) {
            entry.remove();
        }
        if let Some(count) = self.owners.get_mut(&subscription.owner) {
            *count -= 1;
            if *count == 0 {
                self.owners.remove(&subscription.owner);
            }
        }
        subscription
    }
}
