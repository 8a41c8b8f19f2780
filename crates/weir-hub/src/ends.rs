//! Why subscriptions end.

use std::ops::AddAssign;

/// Why a subscription ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndReason {
    Unsubscribed,
    LeaseEnded,
    /// Its callback answered 410.
    Gone,
    /// The hub no longer has the topic.
    TopicRemoved,
    /// The configuration no longer permits its owner to receive the topic.
    NotPermitted,
}

impl EndReason {
    pub(crate) const ALL: [EndReason; 5] = [
        EndReason::Unsubscribed,
        EndReason::LeaseEnded,
        EndReason::Gone,
        EndReason::TopicRemoved,
        EndReason::NotPermitted,
    ];

    /// Its name in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            EndReason::Unsubscribed => "unsubscribed",
            EndReason::LeaseEnded => "lease_ended",
            EndReason::Gone => "gone",
            EndReason::TopicRemoved => "topic_removed",
            EndReason::NotPermitted => "not_permitted",
        }
    }
}

/// How many subscriptions have ended, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubscriptionEnds([u64; EndReason::ALL.len()]);

impl SubscriptionEnds {
    pub(crate) fn count(&mut self, reason: EndReason) {
        self.0[reason as usize] += 1;
    }

    pub(crate) fn of(&self, reason: EndReason) -> u64 {
        self.0[reason as usize]
    }

    /// Each reason's name, and the number of subscriptions that it ended.
    pub fn by_reason(&self) -> impl Iterator<Item = (&'static str, u64)> {
        EndReason::ALL.into_iter().map(|reason| (reason.name(), self.of(reason)))
    }
}

impl AddAssign for SubscriptionEnds {
    fn add_assign(&mut self, other: SubscriptionEnds) {
        self.0.iter_mut().zip(other.0).for_each(|(own, more)| *own += more);
    }
}
