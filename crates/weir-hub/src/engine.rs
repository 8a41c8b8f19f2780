//! The hub's decisions, without sockets, files or a clock: subscriptions and their verification, which event is delivered to
//! which subscription when, and the account of all deliveries.
//!
//! The caller reports each occurrence with the time (milliseconds since 1970), asks for the next work ([`Engine::next_delivery`],
//! [`Engine::next_callback_request`], [`Engine::next_due_ms`]), and writes the records of [`Engine::take_records`] to the state log.
//! Written records are put back with [`Engine::restore`].

mod attempts;
mod callback_requests;
mod dead_letters;
mod deliveries;
#[cfg(test)]
mod fairness;
mod fan_out;
mod host_requests;
mod hosts;
mod lanes;
mod limits;
mod listing;
mod names;
mod numbers;
mod pacing;
mod permissions;
mod recovery;
mod replays;
mod requests;
mod retention;
mod subscribing;
mod subscriptions;
#[cfg(test)]
pub(crate) mod tests;
mod topics;
mod turns;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use crate::account::{Account, RefusedRequests, Tally};
use crate::ends::{EndReason, SubscriptionEnds};
use crate::record::StateRecord;
use crate::settings::HubSettings;
use callback_requests::OpenDenials;
pub(crate) use callback_requests::{CallbackRequest, Denial, Verification};
use dead_letters::DeadLetters;
pub(crate) use deliveries::Delivery;
use fan_out::FanOuts;
use hosts::CallbackHosts;
use lanes::Standing;
use limits::DeliveryLimits;
pub use listing::{DeadLetter, DeadLetterFilter, SubscriptionEntry, SubscriptionState};
use numbers::{HostNumber, Slot};
use pacing::DeliveryPacing;
use requests::OpenRequests;
use subscriptions::{DeliveryState, Subscription, Subscriptions};
use topics::Topics;

/// The most timers, and the most ends of leases, that one call handles.
const DUE_AT_ONCE: usize = 1_024;

/// A timer. Its purpose may be settled by the time it fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// Try a failed delivery again.
    Retry {
        slot: Slot,
        id: u64,
    },
    /// A limit of a subscription has something left. Of several that count together, the one that was sent an event the longest time
    /// ago comes first.
    Limit {
        sent_ms: u64,
        slot: Slot,
        id: u64,
    },
    /// The pause of a failing host is over; or, below, a host may get another verification or denial.
    Host(HostNumber),
    HostRequest(HostNumber),
}

pub(crate) struct Engine {
    settings: Arc<HubSettings>,
    topics: Topics,
    subscriptions: Subscriptions,
    hosts: CallbackHosts,
    requests: OpenRequests,
    denials: OpenDenials,
    /// Verifications and denials under way.
    asking: usize,
    fan_outs: FanOuts,
    due: BinaryHeap<Reverse<(u64, Due)>>,
    /// The number of the last event taken in.
    processed: u64,
    /// The number of the last event removed by retention.
    dropped: u64,
    /// The number of the last request taken in from a shared log of events.
    requests_taken: u64,
    next_id: u64,
    /// Outcomes of subscriptions that have ended.
    ended: Tally,
    dead_letters: DeadLetters,
    limits: DeliveryLimits,
    in_flight: usize,
    /// Deliveries in flight whose subscriptions have ended meanwhile, with the host and the standing whose permits they hold.
    ended_in_flight: HashMap<u64, (HostNumber, Standing)>,
    /// Deliveries started by this process, retries included.
    pub attempts: u64,
    /// Subscriptions that have ended in this process.
    pub ends: SubscriptionEnds,
    /// Requests that were refused by this process.
    pub refused: RefusedRequests,
    pacing: DeliveryPacing,
    records: Vec<StateRecord>,
    random: fastrand::Rng,
}

impl Engine {
    pub(crate) fn new(settings: Arc<HubSettings>, seed: u64) -> Engine {
        Engine {
            settings,
            topics: Topics::default(),
            subscriptions: Subscriptions::default(),
            hosts: CallbackHosts::default(),
            requests: OpenRequests::default(),
            denials: OpenDenials::default(),
            asking: 0,
            fan_outs: FanOuts::new(),
            due: BinaryHeap::new(),
            processed: 0,
            dropped: 0,
            requests_taken: 0,
            next_id: 1,
            ended: Tally::default(),
            dead_letters: DeadLetters::default(),
            limits: DeliveryLimits::default(),
            in_flight: 0,
            ended_in_flight: HashMap::new(),
            attempts: 0,
            ends: SubscriptionEnds::default(),
            refused: RefusedRequests::default(),
            pacing: DeliveryPacing::default(),
            records: Vec::new(),
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// Sets the first id to assign, so that engines that share a hub use different ids.
    pub(crate) fn with_ids_from(self, first: u64) -> Engine {
        Engine { next_id: first, ..self }
    }

    /// The number of the last event taken in.
    pub(crate) fn processed(&self) -> u64 {
        self.processed
    }

    /// The number of the last request taken in from a shared log of events.
    pub(crate) fn requests_taken(&self) -> u64 {
        self.requests_taken
    }

    /// Takes in a committed event, for all subscriptions of its topic at this moment. They are queued by [`Engine::fan_out`].
    pub(crate) fn committed(&mut self, seq: u64, topic: &str, bytes: u32, now_ms: u64) {
        let topic = self.topics.take_in(seq, topic, bytes, now_ms);
        self.processed = seq;
        self.begin_fan_out(topic);
    }

    /// Fires timers that are due, and ends subscriptions whose leases have ended. If there are many, some are left, and
    /// [`Engine::next_due_ms`] is not later than `now_ms`.
    pub(crate) fn look(&mut self, now_ms: u64) {
        for _ in 0..DUE_AT_ONCE {
            if self.due.peek().is_none_or(|Reverse((at_ms, _))| *at_ms > now_ms) {
                break;
            }
            let Some(Reverse((_, due))) = self.due.pop() else { break };
            match due {
                Due::Retry { slot, id } if self.subscriptions.id_of(slot) == Some(id) => {
                    let subscription = self.subscriptions.get_mut(slot);
                    if subscription.delivery == DeliveryState::Waiting {
                        subscription.delivery = DeliveryState::Queued;
                        self.hosts.queue(subscription.host, subscription.standing, subscription.owner, slot);
                    }
                }
                Due::Limit { slot, id, .. } if self.subscriptions.id_of(slot) == Some(id) => {
                    if self.subscriptions.get(slot).delivery == DeliveryState::Waiting {
                        self.queue(slot, now_ms);
                    }
                }
                Due::Host(host) => self.hosts.probe(host, now_ms),
                Due::HostRequest(host) => self.hosts.wake_request(host),
                Due::Retry { .. } | Due::Limit { .. } => {}
            }
        }
        for _ in 0..DUE_AT_ONCE {
            let Some(slot) = self.subscriptions.lease_ended(now_ms) else { break };
            self.end(slot, EndReason::LeaseEnded);
        }
    }

    /// When [`Engine::look`] has to be called next, or pacing allows the next delivery.
    pub(crate) fn next_due_ms(&mut self, now_ms: u64) -> Option<u64> {
        let due = self.due.peek().map(|Reverse((at_ms, _))| *at_ms);
        let may_send = self.hosts.has_ready() && self.in_flight < self.settings.delivery.in_flight;
        let paced = may_send.then(|| self.pacing.wait_until(self.settings.delivery.per_second, now_ms)).flatten();
        due.into_iter().chain(self.subscriptions.next_lease_end()).chain(paced).min()
    }

    /// The records to write to the state log since the last call, in this order.
    pub(crate) fn take_records(&mut self) -> Vec<StateRecord> {
        std::mem::take(&mut self.records)
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub(crate) fn subscription_count(&self) -> usize {
        self.subscriptions.len()
    }

    /// The number of requests that wait for verification.
    pub(crate) fn open_requests(&self) -> usize {
        self.requests.len()
    }

    /// Events of a topic after this one, oldest first.
    pub(crate) fn events_after(&self, topic: &str, seq: u64, limit: usize) -> Vec<u64> {
        let Some(topic) = self.topics.find(topic) else { return Vec::new() };
        self.topics.get(topic).list_after(seq, limit)
    }

    /// The size of an event's content, in bytes; 0 if the event is not kept.
    pub(crate) fn bytes_of(&self, seq: u64) -> u64 {
        self.topics.bytes_of(seq)
    }

    pub(crate) fn newest_of(&self, topic: &str) -> Option<u64> {
        self.topics.get(self.topics.find(topic)?).newest()
    }

    /// The account since the first event.
    pub(crate) fn account(&self) -> Account {
        let pending = self.dead_letters.replay_count() as u64;
        let mut account = Account { audience: self.ended.total() - self.ended.replayed, tally: self.ended, pending };
        for (_, subscription) in self.subscriptions.iter() {
            let topic = self.topics.get(subscription.topic);
            account.audience += topic.count - subscription.base;
            account.tally += subscription.tally();
            account.pending += topic.after(subscription.done) as u64;
        }
        account
    }

    /// The subscriptions that have an event to deliver, and whose last attempt has failed: also while the next one is under way, or
    /// waits for the end of the host's pause.
    pub(crate) fn failing_count(&self) -> usize {
        let is_failing =
            |(_, one): &(_, &Subscription)| one.delivery != DeliveryState::Idle && one.latest.last_has_failed();
        self.subscriptions.iter().filter(is_failing).count()
    }

    pub(crate) fn callback_of(&self, subscription: u64) -> Option<&str> {
        self.subscriptions.slot_of(subscription).map(|slot| &*self.subscriptions.get(slot).callback)
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }
}
