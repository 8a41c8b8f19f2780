//! Dead letters: events that were given up for a subscription, kept until retention removes the event; and those queued for one
//! more delivery.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};

use crate::record::{AbandonedDelivery, SavedDeadLetter};

/// The most dead letters of a hub. Beyond that, those of the oldest events are forgotten.
const MAX_DEAD_LETTERS: usize = 100_000;

#[derive(Default)]
pub(super) struct DeadLetters {
    /// Keyed by event and subscription.
    letters: BTreeMap<(u64, u64), AbandonedDelivery>,
    /// The same, keyed by subscription and event.
    of_subscriptions: BTreeSet<(u64, u64)>,
    /// Dead letters queued for one more delivery, by subscription and event.
    replays: BTreeSet<(u64, u64)>,
}

fn all_of(subscription: u64) -> std::ops::RangeInclusive<(u64, u64)> {
    (subscription, 0)..=(subscription, u64::MAX)
}

impl DeadLetters {
    pub(super) fn add(&mut self, subscription: u64, seq: u64, given_up: AbandonedDelivery) {
        self.letters.insert((seq, subscription), given_up);
        self.of_subscriptions.insert((subscription, seq));
        if self.letters.len() > MAX_DEAD_LETTERS
            && let Some(((seq, subscription), _)) = self.letters.pop_first()
        {
            self.of_subscriptions.remove(&(subscription, seq));
        }
    }

    /// In the order of event and subscription, those after this pair.
    pub(super) fn after(&self, event: u64, subscription: u64) -> impl Iterator<Item = (u64, u64, AbandonedDelivery)> {
        let letters = self.letters.range((Excluded((event, subscription)), Unbounded));
        letters.map(|((seq, subscription), given_up)| (*seq, *subscription, *given_up))
    }

    /// Dead letters of one subscription, after this event.
    pub(super) fn of(&self, subscription: u64, after: u64) -> impl Iterator<Item = (u64, u64, AbandonedDelivery)> {
        let own = self.of_subscriptions.range((Excluded((subscription, after)), Unbounded));
        let own = own.take_while(move |(owner, _)| *owner == subscription);
        own.filter_map(|(subscription, seq)| Some((*seq, *subscription, *self.letters.get(&(*seq, *subscription))?)))
    }

    pub(super) fn count_of(&self, subscription: u64) -> usize {
        self.of_subscriptions.range(all_of(subscription)).count()
    }

    /// Queues a dead letter for one more delivery.
    pub(super) fn replay(&mut self, subscription: u64, seq: u64) {
        self.letters.remove(&(seq, subscription));
        self.of_subscriptions.remove(&(subscription, seq));
        self.replays.insert((subscription, seq));
    }

    pub(super) fn replayed(&mut self, subscription: u64, seq: u64) {
        self.replays.remove(&(subscription, seq));
    }

    pub(super) fn next_replay(&self, subscription: u64) -> Option<u64> {
        self.replays.range(all_of(subscription)).next().map(|(_, seq)| *seq)
    }

    pub(super) fn replays_of(&self, subscription: u64) -> u64 {
        if self.replays.is_empty() { 0 } else { self.replays.range(all_of(subscription)).count() as u64 }
    }

    pub(super) fn replay_count(&self) -> usize {
        self.replays.len()
    }

    /// Removes the dead letters of a subscription that has ended.
    pub(super) fn forget(&mut self, subscription: u64) {
        let own: Vec<(u64, u64)> = self.of_subscriptions.range(all_of(subscription)).copied().collect();
        for (subscription, seq) in own {
            self.of_subscriptions.remove(&(subscription, seq));
            self.letters.remove(&(seq, subscription));
        }
        let replays: Vec<(u64, u64)> = self.replays.range(all_of(subscription)).copied().collect();
        for replay in replays {
            self.replays.remove(&replay);
        }
    }

    /// Called when events up to this one were removed. Returns those of them that were queued for one more delivery, by
    /// subscription and event.
    pub(super) fn drop_up_to(&mut self, seq: u64) -> Vec<(u64, u64)> {
        while let Some(entry) = self.letters.first_entry()
            && entry.key().0 <= seq
        {
            let (seq, subscription) = *entry.key();
            entry.remove();
            self.of_subscriptions.remove(&(subscription, seq));
        }
        self.replays.iter().filter(|(_, event)| *event <= seq).copied().collect()
    }

    /// The contents for a snapshot: dead letters, and those queued for one more delivery.
    pub(super) fn saved(&self) -> (Vec<SavedDeadLetter>, Vec<(u64, u64)>) {
        let letter = |(seq, subscription, given_up)| SavedDeadLetter { subscription, seq, given_up };
        (self.after(0, 0).map(letter).collect(), self.replays.iter().copied().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attempt::DeliveryFailure;

    #[test]
    fn there_are_no_more_than_allowed_and_the_oldest_go() {
        let mut letters = DeadLetters::default();
        let given_up = AbandonedDelivery { failure: DeliveryFailure::Status(500), attempts: 3, at_ms: 9 };
        for seq in 1..=MAX_DEAD_LETTERS as u64 + 10 {
            letters.add(7, seq, given_up);
        }
        assert_eq!(letters.count_of(7), MAX_DEAD_LETTERS);
        assert_eq!(letters.after(0, 0).next(), Some((11, 7, given_up)));
        assert_eq!(letters.of(7, 11).next(), Some((12, 7, given_up)));
        assert_eq!(letters.of(6, 0).next(), None);
        letters.drop_up_to(20);
        assert_eq!(letters.after(0, 0).next(), Some((21, 7, given_up)));
    }
}
