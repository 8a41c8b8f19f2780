//! What became of events: sums that must come out even.

use std::ops::{Add, AddAssign};

/// What became of events for a subscription, or for several. Pending ones are those that are not in here yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub delivered: u64,
    /// Given up after too many failures.
    pub dead_lettered: u64,
    /// Removed by the bounds of retention, or damaged, before they could be delivered.
    pub expired: u64,
    /// The subscription ended before they could be delivered.
    pub cancelled: u64,
    /// Dead letters that were to be delivered once more: each makes one more delivery, and is no outcome itself.
    pub replayed: u64,
}

impl Tally {
    pub fn total(&self) -> u64 {
        self.delivered + self.dead_lettered + self.expired + self.cancelled
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
/// Each side is counted on its own: the audience from how many events topics had when subscriptions began and have now, the
/// tally by outcomes, and what is pending from cursors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Events times the subscriptions they were for.
    pub audience: u64,
    pub tally: Tally,
    pub pending: u64,
}

impl Account {
    pub fn is_even(&self) -> bool {
        self.audience + self.tally.replayed == self.tally.total() + self.pending
    }
}

/// Which part of the subscriptions a node has, where several nodes share a hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HubShares {
    pub own: usize,
    /// Of all nodes together.
    pub all: usize,
}

/// What a hub has done and has still to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HubStatus {
    pub account: Account,
    pub subscriptions: usize,
    /// Requests that wait for their verification.
    pub unverified: usize,
    /// Deliveries under way.
    pub in_flight: usize,
    /// Deliveries begun by this process, repeated ones included.
    pub attempts: u64,
    /// The number of the newest event.
    pub events: u64,
    pub stored_events: u64,
    pub stored_bytes: u64,
    /// Where several nodes share the hub: whose numbers these are, but those of the events.
    pub shares: Option<HubShares>,
    /// What is wrong with the disk, while something is.
    pub error: Option<String>,
}

impl HubStatus {
    /// Adds what another part of the hub has done, which keeps the same events.
    pub(crate) fn add(&mut self, other: &HubStatus) {
        self.account.audience += other.account.audience;
        self.account.tally += other.account.tally;
        self.account.pending += other.account.pending;
        self.subscriptions += other.subscriptions;
        self.unverified += other.unverified;
        self.in_flight += other.in_flight;
        self.attempts += other.attempts;
        self.error = self.error.take().or_else(|| other.error.clone());
    }
}
