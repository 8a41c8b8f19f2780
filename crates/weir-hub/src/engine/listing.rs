//! Lists for operators: subscriptions, their latest attempts, and dead letters, page by page.

use super::Engine;
use super::subscriptions::{DeliveryState, Subscription};
use crate::account::Tally;
use crate::attempt::{DeliveryAttempt, DeliveryFailure};
use crate::record::AbandonedDelivery;

/// An active subscription, without its secret. The callback may contain secrets of its own.
#[derive(Clone, PartialEq, Eq)]
pub struct SubscriptionEntry {
    pub id: u64,
    pub topic: Box<str>,
    pub callback: Box<str>,
    /// The consumer that created it; empty if none.
    pub owner: Box<str>,
    pub has_secret: bool,
    pub expires_ms: u64,
    pub state: SubscriptionState,
    /// Attempts at its next event so far.
    pub attempts: u32,
    pub pending: u64,
    pub tally: Tally,
    /// The number of its dead letters that are kept.
    pub dead_letters: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubscriptionState {
    /// All events are delivered or settled.
    Idle,
    /// The next event waits for its turn at the host.
    Queued,
    Sending,
    /// The last attempt failed, and a retry is planned.
    Waiting,
}

/// An event that was given up for a subscription.
#[derive(Clone, PartialEq, Eq)]
pub struct DeadLetter {
    pub event: u64,
    pub subscription: u64,
    pub topic: Box<str>,
    /// It may contain a secret.
    pub callback: Box<str>,
    pub failure: DeliveryFailure,
    pub attempts: u32,
    pub at_ms: u64,
}

/// Selects dead letters; without conditions, all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadLetterFilter {
    pub topic: Option<Box<str>>,
    pub subscription: Option<u64>,
    pub event: Option<u64>,
}

impl SubscriptionState {
    pub fn name(self) -> &'static str {
        match self {
            SubscriptionState::Idle => "idle",
            SubscriptionState::Queued => "queued",
            SubscriptionState::Sending => "sending",
            SubscriptionState::Waiting => "waiting",
        }
    }
}

impl Engine {
    /// Subscriptions with ids above `after`, at most `limit`, of one topic or of all.
    pub(crate) fn subscriptions(&self, topic: Option<&str>, after: u64, limit: usize) -> Vec<SubscriptionEntry> {
        let wanted = topic.map(|topic| self.topics.find(topic));
        let after = self.subscriptions.after(after);
        let of_topic = after.filter(|one| wanted.is_none_or(|topic| topic == Some(one.topic)));
        of_topic.take(limit).map(|one| self.entry(one)).collect()
    }

    /// One subscription, with its latest attempts, newest first.
    pub(crate) fn subscription(&self, id: u64) -> Option<(SubscriptionEntry, Vec<DeliveryAttempt>)> {
        let subscription = self.subscriptions.get(self.subscriptions.slot_of(id)?);
        Some((self.entry(subscription), subscription.latest.list()))
    }

    fn entry(&self, subscription: &Subscription) -> SubscriptionEntry {
        let topic = self.topics.get(subscription.topic);
        let id = subscription.id;
        SubscriptionEntry {
            id,
            topic: (*topic.name).into(),
            callback: subscription.callback.clone(),
            owner: self.subscriptions.owner_of(subscription).into(),
            has_secret: subscription.secret.is_some(),
            expires_ms: subscription.expires_ms(),
            state: match subscription.delivery {
                DeliveryState::Idle => SubscriptionState::Idle,
                DeliveryState::Queued => SubscriptionState::Queued,
                DeliveryState::Sending | DeliveryState::PersistingOutcome => SubscriptionState::Sending,
                DeliveryState::Waiting => SubscriptionState::Waiting,
            },
            attempts: subscription.attempts,
            pending: topic.after(subscription.done) as u64 + self.dead_letters.replays_of(id),
            tally: subscription.tally(),
            dead_letters: self.dead_letters.count_of(id),
        }
    }

    /// Dead letters after this pair of event and subscription, at most `limit`, oldest events first.
    pub(crate) fn dead_letters(&self, filter: &DeadLetterFilter, after: (u64, u64), limit: usize) -> Vec<DeadLetter> {
        let letter = |(event, subscription, given_up): (u64, u64, AbandonedDelivery)| {
            let subscription = self.subscriptions.get(self.subscriptions.slot_of(subscription)?);
            let topic = &self.topics.get(subscription.topic).name;
            let is_wanted = filter.topic.as_ref().is_none_or(|wanted| **wanted == **topic)
                && filter.event.is_none_or(|wanted| wanted == event);
            let AbandonedDelivery { failure, attempts, at_ms } = given_up;
            is_wanted.then(|| DeadLetter {
                event,
                subscription: subscription.id,
                topic: (**topic).into(),
                callback: subscription.callback.clone(),
                failure,
                attempts,
                at_ms,
            })
        };
        match filter.subscription {
            Some(subscription) => self.dead_letters.of(subscription, after.0).filter_map(letter).take(limit).collect(),
            None => self.dead_letters.after(after.0, after.1).filter_map(letter).take(limit).collect(),
        }
    }
}
