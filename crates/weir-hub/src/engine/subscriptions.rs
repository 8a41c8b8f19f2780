//! The table of subscriptions, found by topic and callback, by id, and by slot.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::ops::Bound::{Excluded, Unbounded};

use hashbrown::HashTable;
use slab::Slab;

use super::attempts::LatestAttempts;
use super::hosts::DeliveryTurn;
use super::lanes::Standing;
use super::limits::DeliveryLimits;
use super::names::Names;
use super::numbers::{HostNumber, OwnerNumber, Slot, TopicNumber};
use crate::account::Tally;
use crate::record::{Mark, MarkOutcome, SavedSubscription};

/// An active subscription. At most one event at a time is in flight to it.
///
/// There may be hundreds of thousands, so rare fields are boxed, and common strings are interned as numbers.
pub(super) struct Subscription {
    pub(super) id: u64,
    pub(super) callback: Box<str>,
    pub(super) secret: Option<Box<[u8]>>,
    expires_ms: u64,
    /// The topic's event count when the subscription began.
    pub(super) base: u64,
    /// The last event with an outcome.
    pub(super) done: u64,
    delivered: u64,
    /// What most subscriptions do not have.
    extras: Option<Box<SubscriptionExtras>>,
    /// When its next event began to wait for delivery.
    pub(super) since_ms: u64,
    pub(super) topic: TopicNumber,
    pub(super) host: HostNumber,
    /// The number of the owner's name; of callers that are no consumers, each address is one.
    pub(super) owner: OwnerNumber,
    /// Its index among the topic's subscribers.
    pub(super) place: u32,
    /// Attempts at its next event so far.
    pub(super) attempts: u32,
    pub(super) delivery: DeliveryState,
    pub(super) standing: Standing,
    /// The event sent last, and when.
    pub(super) sent: u64,
    pub(super) sent_ms: u64,
    pub(super) latest: LatestAttempts,
}

/// The parts that few subscriptions have.
#[derive(Default)]
struct SubscriptionExtras {
    /// Outcomes other than deliveries.
    other: Tally,
    /// The numbers of its limits.
    limits: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeliveryState {
    /// All events are delivered or settled.
    Idle,
    /// The next event waits for its turn at the host.
    Queued,
    Sending,
    /// The outcome is being written. Nothing else is sent until then, so that a crash repeats at most one delivery.
    PersistingOutcome,
    /// The last attempt failed, and a retry is planned; or a limit of the subscription is used up.
    Waiting,
}

impl Subscription {
    fn new(
        saved: SavedSubscription,
        topic: TopicNumber,
        host: HostNumber,
        owner: OwnerNumber,
        limits: Vec<u32>,
    ) -> Subscription {
        let SavedSubscription { id, callback, secret, expires_ms, base, done, tally, .. } = saved;
        let other = Tally { delivered: 0, ..tally };
        Subscription {
            id,
            callback,
            secret,
            expires_ms,
            base,
            done,
            delivered: tally.delivered,
            extras: (other != Tally::default() || !limits.is_empty())
                .then(|| Box::new(SubscriptionExtras { other, limits })),
            since_ms: 0,
            topic,
            host,
            owner,
            place: 0,
            attempts: 0,
            delivery: DeliveryState::Idle,
            // One that was read from the state log has worked at some time. Its next delivery tells more.
            standing: if tally.delivered > 0 { Standing::Working } else { Standing::New },
            sent: 0,
            sent_ms: 0,
            latest: LatestAttempts::default(),
        }
    }

    pub(super) fn expires_ms(&self) -> u64 {
        self.expires_ms
    }

    /// Outcomes of its events.
    pub(super) fn tally(&self) -> Tally {
        let other = self.extras.as_ref().map(|extras| extras.other).unwrap_or_default();
        Tally { delivered: self.delivered, ..other }
    }

    /// Counts a dead letter that was queued for one more delivery.
    pub(super) fn count_replay(&mut self) {
        self.other().replayed += 1;
    }

    fn other(&mut self) -> &mut Tally {
        &mut self.extras.get_or_insert_default().other
    }

    /// The numbers of its limits.
    pub(super) fn limits(&self) -> &[u32] {
        self.extras.as_ref().map_or(&[], |extras| &extras.limits)
    }

    /// Replaces the numbers of its limits; returns the old ones.
    pub(super) fn set_limits(&mut self, limits: Vec<u32>) -> Vec<u32> {
        match (&mut self.extras, limits.is_empty()) {
            (None, true) => Vec::new(),
            (extras, _) => std::mem::replace(&mut extras.get_or_insert_default().limits, limits),
        }
    }

    pub(super) fn is_sending(&self) -> bool {
        self.delivery == DeliveryState::Sending
    }

    /// Whether an event already had an outcome before.
    pub(super) fn is_replay(&self, seq: u64) -> bool {
        seq <= self.done
    }

    pub(super) fn apply(&mut self, mark: Mark) {
        if !mark.is_replay {
            self.done = self.done.max(mark.seq);
        }
        match mark.outcome {
            MarkOutcome::Delivered => self.delivered += 1,
            MarkOutcome::Dead(_) => self.other().dead_lettered += 1,
            MarkOutcome::Expired(count) => self.other().expired += count,
            MarkOutcome::Throttled => self.other().throttled += 1,
        }
    }
}

#[derive(Default)]
pub(super) struct Subscriptions {
    slots: Slab<Subscription>,
    /// Slots by topic and callback.
    by_key: HashTable<Slot>,
    hasher: RandomState,
    by_id: BTreeMap<u64, Slot>,
    /// When leases end, and the slots of their subscriptions.
    leases: BTreeSet<(u64, Slot)>,
    /// The consumers and addresses that own subscriptions, each counted once per subscription.
    owners: Names<OwnerNumber>,
    /// Those of callers that are no consumers.
    anonymous: usize,
}

/// The first character of the name of an address among the owners. No consumer's name contains it.
const OF_ADDRESS: char = '\0';

/// The name among the owners of a consumer, or of an address if the consumer is empty.
fn owner_name<'a>(consumer: &'a str, address: &str) -> Cow<'a, str> {
    match consumer {
        "" => format!("{OF_ADDRESS}{address}").into(),
        consumer => consumer.into(),
    }
}

impl Subscriptions {
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn get(&self, slot: Slot) -> &Subscription {
        &self.slots[slot.index()]
    }

    pub(super) fn get_mut(&mut self, slot: Slot) -> &mut Subscription {
        &mut self.slots[slot.index()]
    }

    pub(super) fn id_of(&self, slot: Slot) -> Option<u64> {
        self.slots.get(slot.index()).map(|subscription| subscription.id)
    }

    /// Whether the subscription in this slot, if any, is queued for this turn.
    pub(super) fn waits_for(&self, turn: &DeliveryTurn) -> bool {
        let waits = |it: &Subscription| {
            it.delivery == DeliveryState::Queued && it.host == turn.host && it.standing == turn.standing
        };
        self.slots.get(turn.slot.index()).is_some_and(waits)
    }

    pub(super) fn slot_of(&self, id: u64) -> Option<Slot> {
        self.by_id.get(&id).copied()
    }

    pub(super) fn find(&self, topic: TopicNumber, callback: &str) -> Option<Slot> {
        let is_it = |slot: &Slot| {
            let subscription = self.get(*slot);
            subscription.topic == topic && *subscription.callback == *callback
        };
        self.by_key.find(self.hasher.hash_one((topic, callback)), is_it).copied()
    }

    /// How many a consumer has, or an address if the consumer is empty.
    pub(super) fn count_of(&self, consumer: &str, address: &str) -> usize {
        self.owners.find(&owner_name(consumer, address)).map_or(0, |owner| self.owners.uses(owner) as usize)
    }

    /// How many all callers have that are no consumers.
    pub(super) fn anonymous(&self) -> usize {
        self.anonymous
    }

    /// The consumer that created it; empty if none.
    pub(super) fn owner_of(&self, subscription: &Subscription) -> &str {
        let owner = self.owners.get(subscription.owner);
        if owner.starts_with(OF_ADDRESS) { "" } else { owner }
    }

    /// The address of the caller that created it, if that was no consumer; otherwise empty.
    fn address_of(&self, subscription: &Subscription) -> &str {
        self.owners.get(subscription.owner).strip_prefix(OF_ADDRESS).unwrap_or_default()
    }

    /// Its form in the state log.
    pub(super) fn saved(&self, subscription: &Subscription, topic: &str, limits: &DeliveryLimits) -> SavedSubscription {
        SavedSubscription {
            id: subscription.id,
            topic: topic.into(),
            callback: subscription.callback.clone(),
            secret: subscription.secret.clone(),
            owner: self.owner_of(subscription).into(),
            address: self.address_of(subscription).into(),
            expires_ms: subscription.expires_ms,
            limits: subscription.limits().iter().map(|number| limits.get(*number).clone()).collect(),
            base: subscription.base,
            done: subscription.done,
            tally: subscription.tally(),
        }
    }

    /// When the first lease ends.
    pub(super) fn next_lease_end(&self) -> Option<u64> {
        self.leases.first().map(|(at_ms, _)| *at_ms)
    }

    /// A subscription whose lease has ended by now.
    pub(super) fn lease_ended(&self, now_ms: u64) -> Option<Slot> {
        self.leases.first().filter(|(at_ms, _)| *at_ms <= now_ms).map(|(_, slot)| *slot)
    }

    /// Sets another lease, and another secret or none.
    pub(super) fn renew(&mut self, slot: Slot, expires_ms: u64, secret: Option<Box<[u8]>>) {
        let subscription = &mut self.slots[slot.index()];
        self.leases.remove(&(subscription.expires_ms, slot));
        self.leases.insert((expires_ms, slot));
        (subscription.secret, subscription.expires_ms) = (secret, expires_ms);
    }

    /// Subscriptions with ids above this one, in order.
    pub(super) fn after(&self, id: u64) -> impl Iterator<Item = &Subscription> {
        self.by_id.range((Excluded(id), Unbounded)).map(|(_, slot)| self.get(*slot))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Slot, &Subscription)> {
        self.slots.iter().map(|(slot, subscription)| (Slot::at(slot), subscription))
    }

    pub(super) fn insert(
        &mut self,
        saved: SavedSubscription,
        topic: TopicNumber,
        host: HostNumber,
        limits: Vec<u32>,
    ) -> Slot {
        self.anonymous += usize::from(saved.owner.is_empty());
        let owner = self.owners.add(&owner_name(&saved.owner, &saved.address));
        let subscription = Subscription::new(saved, topic, host, owner, limits);
        let expires_ms = subscription.expires_ms;
        let (id, key) = (subscription.id, self.hasher.hash_one((subscription.topic, &*subscription.callback)));
        let slot = Slot::at(self.slots.insert(subscription));
        self.by_id.insert(id, slot);
        self.leases.insert((expires_ms, slot));
        let (slots, hasher) = (&self.slots, &self.hasher);
        self.by_key.insert_unique(key, slot, |slot| {
            let subscription = &slots[slot.index()];
            hasher.hash_one((subscription.topic, &*subscription.callback))
        });
        slot
    }

    pub(super) fn remove(&mut self, slot: Slot) -> Subscription {
        let subscription = self.slots.remove(slot.index());
        self.by_id.remove(&subscription.id);
        self.leases.remove(&(subscription.expires_ms, slot));
        let key = self.hasher.hash_one((subscription.topic, &*subscription.callback));
        if let Ok(entry) = self.by_key.find_entry(key, |other| *other == slot) {
            entry.remove();
        }
        self.anonymous -= usize::from(self.owner_of(&subscription).is_empty());
        if self.owners.release(subscription.owner) {
            self.owners.forget(subscription.owner);
        }
        subscription
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subscription_is_small() {
        assert!(size_of::<Option<Subscription>>() <= 144, "{} bytes", size_of::<Option<Subscription>>());
    }
}
