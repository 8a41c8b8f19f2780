//! The account of a hub: for every event, the outcomes of its deliveries add up to its subscriptions.

use std::ops::{Add, AddAssign};
use std::time::Duration;

use crate::ends::SubscriptionEnds;
use crate::verification::FailedVerifications;

/// Outcomes of events for one subscription or for several. Pending events are not included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub delivered: u64,
    /// Given up after the last attempt.
    pub dead_lettered: u64,
    /// Removed by retention, or damaged, before they could be delivered.
    pub expired: u64,
    /// Cancelled, since the subscription ended before they could be delivered.
    pub cancelled: u64,
    /// Not delivered, since a limit of the subscription was used up.
    pub throttled: u64,
    /// Dead letters queued for one more delivery: each adds one outcome, and is not an outcome itself.
    pub replayed: u64,
}

impl Tally {
    pub fn total(&self) -> u64 {
        self.delivered + self.dead_lettered + self.expired + self.cancelled + self.throttled
    }
}

impl Add for Tally {
    type Output = Tally;

    fn add(self, other: Tally) -> Tally {
        Tally {
            delivered: self.delivered + other.delivered,
            dead_lettered: self.dead_lettered + other.dead_lettered,
            expired: self.expired + other.expired,
            cancelled: self.cancelled + other.cancelled,
            throttled: self.throttled + other.throttled,
            replayed: self.replayed + other.replayed,
        }
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        *self = *self + other;
    }
}

/// The account of a hub since its first event: `audience + tally.replayed = tally.total() + pending`.
///
/// The two sides are computed independently: the audience from the topics' event counts at the beginning of each subscription and
/// now, the tally from outcomes, and the pending number from cursors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Events times the subscriptions that existed when they were committed.
    pub audience: u64,
    pub tally: Tally,
    pub pending: u64,
}

impl Account {
    pub fn is_even(&self) -> bool {
        self.audience + self.tally.replayed == self.tally.total() + self.pending
    }
}

/// Why a request to subscribe or unsubscribe is refused, besides what the request itself shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestRefusal {
    /// Too many requests wait for verification.
    Unverified,
    /// Too many requests of its client wait for verification.
    UnverifiedOfClient,
    /// The consumer has too many subscriptions.
    Subscriptions,
    /// The address of a caller that is no consumer has too many subscriptions.
    SubscriptionsOfAddress,
    /// All callers that are no consumers have too many subscriptions.
    AnonymousSubscriptions,
    /// The subscription belongs to another consumer.
    NotOwner,
}

impl RequestRefusal {
    const ALL: [RequestRefusal; 6] = [
        RequestRefusal::Unverified,
        RequestRefusal::UnverifiedOfClient,
        RequestRefusal::Subscriptions,
        RequestRefusal::SubscriptionsOfAddress,
        RequestRefusal::AnonymousSubscriptions,
        RequestRefusal::NotOwner,
    ];

    /// Its name in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            RequestRefusal::Unverified => "unverified",
            RequestRefusal::UnverifiedOfClient => "unverified_of_client",
            RequestRefusal::Subscriptions => "subscriptions_of_consumer",
            RequestRefusal::SubscriptionsOfAddress => "subscriptions_of_address",
            RequestRefusal::AnonymousSubscriptions => "anonymous_subscriptions",
            RequestRefusal::NotOwner => "not_owner",
        }
    }
}

/// How many requests were refused, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefusedRequests([u64; RequestRefusal::ALL.len()]);

impl RefusedRequests {
    pub(crate) fn count(&mut self, reason: RequestRefusal) {
        self.0[reason as usize] += 1;
    }

    /// Each reason's name, and the number of requests that were refused for it.
    pub fn by_reason(&self) -> impl Iterator<Item = (&'static str, u64)> {
        RequestRefusal::ALL.into_iter().map(|reason| (reason.name(), self.0[reason as usize]))
    }
}

impl AddAssign for RefusedRequests {
    fn add_assign(&mut self, other: RefusedRequests) {
        self.0.iter_mut().zip(other.0).for_each(|(own, more)| *own += more);
    }
}

/// The turns of a hub's thread since the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoopTurns {
    /// The longest turn: as long, publishers and listeners waited for the thread.
    pub longest: Duration,
    /// The most deliveries started in one turn.
    pub most_started: usize,
}

impl LoopTurns {
    pub(crate) fn add(&mut self, took: Duration, started: usize) {
        self.longest = self.longest.max(took);
        self.most_started = self.most_started.max(started);
    }
}

/// How many shares of the subscriptions a node has, where several nodes share a hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HubShares {
    pub own: usize,
    /// The number of shares of all nodes together.
    pub all: usize,
}

/// Those who listen to a hub on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListenerCounts {
    pub open: usize,
    /// Refused by this process, since the hub had as many as it may.
    pub refused: u64,
    /// Refused by this process, since the client had as many as it may.
    pub refused_of_client: u64,
    /// Ended by this process, since they did not take what was sent to them.
    pub unread: u64,
}

/// The state and the totals of a hub.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HubStatus {
    pub account: Account,
    pub subscriptions: usize,
    /// Subscriptions that have an event to deliver, and whose last attempt has failed.
    pub failing: usize,
    /// Requests that wait for verification.
    pub unverified: usize,
    /// Deliveries in flight.
    pub in_flight: usize,
    /// Deliveries started by this process, retries included.
    pub attempts: u64,
    /// Subscriptions that have ended in this process.
    pub ends: SubscriptionEnds,
    /// Requests that were refused by this process.
    pub refused: RefusedRequests,
    /// Verifications of intent that failed in this process.
    pub failed_verifications: FailedVerifications,
    pub turns: LoopTurns,
    /// Filled in by those who serve listeners.
    pub listeners: ListenerCounts,
    /// The number of the newest event.
    pub events: u64,
    pub stored_events: u64,
    pub stored_bytes: u64,
    /// Set if several nodes share the hub: the numbers then cover only this node's shares, except those about events.
    pub shares: Option<HubShares>,
    /// The current error of the disk or of Kafka, if there is one.
    pub error: Option<String>,
}

impl HubStatus {
    /// Adds the numbers of another share of the same hub; those about events are common to both.
    pub(crate) fn add(&mut self, other: &HubStatus) {
        self.account.audience += other.account.audience;
        self.account.tally += other.account.tally;
        self.account.pending += other.account.pending;
        self.subscriptions += other.subscriptions;
        self.failing += other.failing;
        self.unverified += other.unverified;
        self.in_flight += other.in_flight;
        self.attempts += other.attempts;
        self.ends += other.ends;
        self.refused += other.refused;
        self.failed_verifications += other.failed_verifications;
        self.turns.add(other.turns.longest, other.turns.most_started);
        self.error = self.error.take().or_else(|| other.error.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_a_hub_add_up() {
        let share = |number: u64| HubStatus {
            account: Account {
                audience: number,
                tally: Tally { delivered: number, ..Tally::default() },
                pending: number,
            },
            subscriptions: number as usize,
            failing: number as usize,
            unverified: number as usize,
            in_flight: number as usize,
            attempts: number,
            turns: LoopTurns { longest: Duration::from_secs(number), most_started: number as usize },
            error: (number == 3).then(|| "the disk".to_owned()),
            ..HubStatus::default()
        };
        let mut sum = share(2);
        sum.add(&share(3));
        let turns = LoopTurns { longest: Duration::from_secs(3), most_started: 3 };
        assert_eq!(sum, HubStatus { turns, error: Some("the disk".to_owned()), ..share(5) });
    }
}
