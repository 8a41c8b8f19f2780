//! The hub's decisions, without sockets, files or a clock: subscriptions and their verification, which event is delivered to
//! which subscription when, and the account of all deliveries.
//!
//! The caller reports each occurrence with the time (milliseconds since 1970), asks for the next work ([`Engine::next_delivery`],
//! [`Engine::next_callback_request`], [`Engine::next_due_ms`]), and writes the records of [`Engine::take_records`] to the state log.
//! Written records are put back with [`Engine::restore`].

mod attempts;
mod callback_requests;
mod dead_letters;
#[cfg(test)]
mod fairness;
mod fan_out;
mod host_requests;
mod hosts;
mod lanes;
mod limits;
mod listing;
mod names;
mod permissions;
mod recovery;
mod requests;
mod subscriptions;
#[cfg(test)]
pub(crate) mod tests;
mod topics;
mod turns;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use crate::account::{Account, RefusedRequests, RequestRefusal, Tally};
use crate::attempt::{DeliveryAttempt, DeliveryOutcome};
use crate::ends::{EndReason, SubscriptionEnds};
use crate::form::{Refusal, SubscriptionMode, SubscriptionRequest};
use crate::record::{AbandonedDelivery, Mark, MarkOutcome, SavedSubscription, StateRecord};
use crate::settings::HubSettings;
use crate::topic::origin_of;
use callback_requests::OpenDenials;
pub use callback_requests::{CallbackRequest, Denial, Verification};
use dead_letters::DeadLetters;
use fan_out::FanOuts;
use hosts::{CallbackHosts, DeliveryEnd, DeliveryTurn};
use lanes::Standing;
use limits::{DeliveryLimits, LimitVerdict};
pub use listing::{DeadLetter, DeadLetterFilter, SubscriptionEntry, SubscriptionState};
use requests::{OpenRequests, RequestStep};
use subscriptions::{DeliveryState, Subscription, Subscriptions};
use topics::Topics;

/// A notification to send now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    pub subscription: u64,
    pub seq: u64,
    pub callback: Box<str>,
    pub secret: Option<Box<[u8]>>,
    /// The event was a dead letter.
    pub is_replay: bool,
}

/// The most requests that may wait for verification.
const MAX_OPEN_REQUESTS: usize = 100_000;
/// The most timers, and the most ends of leases, that one call handles.
const DUE_AT_ONCE: usize = 1_024;
/// The most queued subscriptions that are looked at for one delivery: those of used-up limits cannot have it.
const LOOKS_PER_DELIVERY: usize = 256;
/// What `Retry-After` says to a client with too many requests that wait for verification, in seconds: a third of the longest time that
/// one verification takes.
const RETRY_AFTER_S: u64 = 10;

/// A timer. Its purpose may be settled by the time it fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// Try a failed delivery again.
    Retry {
        slot: u32,
        id: u64,
    },
    /// A limit of a subscription has something left. Of several that count together, the one that was sent an event the longest time
    /// ago comes first.
    Limit {
        sent_ms: u64,
        slot: u32,
        id: u64,
    },
    /// The pause of a failing host is over; or, below, a host may get another verification or denial.
    Host(u32),
    HostRequest(u32),
}

pub struct Engine {
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
    ended_in_flight: HashMap<u64, (u32, Standing)>,
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

/// How much time a token bucket holds the deliveries of, in milliseconds: deliveries that a late turn of the thread has missed are made
/// up for, and nothing more begins at once. With 100 ms, 200 deliveries began together at 2,000 a second.
const PACING_MS: u64 = 10;

/// A token bucket that paces the start of deliveries.
#[derive(Default)]
struct DeliveryPacing {
    /// In thousandths of a delivery.
    tokens: u64,
    filled_ms: u64,
}

impl DeliveryPacing {
    /// When the next delivery may begin; `None` if now.
    fn wait_until(&mut self, per_second: u32, now_ms: u64) -> Option<u64> {
        if per_second == 0 {
            return None;
        }
        let rate = u64::from(per_second);
        let most = (rate * PACING_MS).max(1_000);
        let elapsed_ms = now_ms.saturating_sub(self.filled_ms);
        self.tokens = self.tokens.saturating_add(elapsed_ms.saturating_mul(rate)).min(most);
        self.filled_ms = now_ms;
        match self.tokens {
            1_000.. => None,
            tokens => Some(now_ms + (1_000 - tokens).div_ceil(rate).max(1)),
        }
    }

    fn take(&mut self, per_second: u32) {
        if per_second > 0 {
            self.tokens -= 1_000;
        }
    }
}

impl Engine {
    pub fn new(settings: Arc<HubSettings>, seed: u64) -> Engine {
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
    pub fn with_ids_from(self, first: u64) -> Engine {
        Engine { next_id: first, ..self }
    }

    /// The number of the last event taken in.
    pub fn processed(&self) -> u64 {
        self.processed
    }

    /// The number of the last request taken in from a shared log of events.
    pub fn requests_taken(&self) -> u64 {
        self.requests_taken
    }

    /// Takes in a committed event, for all subscriptions of its topic at this moment. They are queued by [`Engine::fan_out`].
    pub fn committed(&mut self, seq: u64, topic: &str, bytes: u32, now_ms: u64) {
        let topic = self.topics.take_in(seq, topic, bytes, now_ms);
        self.processed = seq;
        self.begin_fan_out(topic);
    }

    /// Keeps at most `max_bytes` of events, and none from before `not_before_ms`. Returns the last event that may be removed from
    /// the journal, once the records are written.
    pub fn retain(&mut self, max_bytes: u64, not_before_ms: u64) -> Option<u64> {
        let last = self.topics.beyond(max_bytes).max(self.topics.before(not_before_ms));
        self.dropped = self.topics.drop_up_to(last)?;
        let missed =
            |(slot, subscription): (u32, &Subscription)| Some((slot, self.missed(subscription))).filter(|it| it.1 > 0);
        let behind: Vec<(u32, u64)> = self.subscriptions.iter().filter_map(missed).collect();
        for (slot, missed) in behind {
            let subscription = self.subscriptions.get_mut(slot);
            let is_sending = subscription.is_sending();
            if is_sending && !subscription.is_replay(subscription.sent) {
                // An event in flight is counted when its delivery ends.
                let done = subscription.done;
                self.expire(slot, done, missed - 1);
                continue;
            }
            if !is_sending {
                subscription.attempts = 0;
            }
            self.expire(slot, self.dropped, missed);
        }
        self.expire_dropped();
        self.write_position();
        Some(self.dropped)
    }

    /// Removes dead letters whose events retention has removed, those queued for one more delivery included.
    fn expire_dropped(&mut self) {
        for (id, seq) in self.dead_letters.drop_up_to(self.dropped) {
            let slot = self.subscriptions.slot_of(id).expect("dead letters go with their subscription");
            let subscription = self.subscriptions.get(slot);
            if !subscription.is_sending() || subscription.sent != seq {
                self.mark(slot, Mark { subscription: id, seq, is_replay: true, outcome: MarkOutcome::Expired(1) });
            }
        }
    }

    fn expire(&mut self, slot: u32, seq: u64, count: u64) {
        if count > 0 {
            let subscription = self.subscriptions.get(slot).id;
            self.mark(slot, Mark { subscription, seq, is_replay: false, outcome: MarkOutcome::Expired(count) });
        }
    }

    /// The number of events of its audience that are neither kept nor accounted for.
    fn missed(&self, subscription: &Subscription) -> u64 {
        let topic = self.topics.get(subscription.topic);
        let open = topic.count - subscription.base - self.first_outcomes(subscription);
        open.saturating_sub(topic.after(subscription.done) as u64)
    }

    /// The number of events of its audience with an outcome, not counting further deliveries of dead letters.
    fn first_outcomes(&self, subscription: &Subscription) -> u64 {
        let tally = subscription.tally();
        (tally.total() + self.dead_letters.replays_of(subscription.id)).saturating_sub(tally.replayed)
    }

    /// Accepts a request; returns its number. Its verification begins with [`Engine::verify`], once it is on disk.
    ///
    /// # Errors
    /// Too many requests are open, in total or of the client, the consumer has too many subscriptions, or the subscription belongs to
    /// another consumer.
    pub fn request(&mut self, request: SubscriptionRequest) -> Result<u64, Refusal> {
        if self.requests.len() + self.denials.len() >= MAX_OPEN_REQUESTS {
            self.refused.count(RequestRefusal::Unverified);
            return Err(Refusal::new(503, "too many subscription requests wait for their verification"));
        }
        let limit = self.settings.subscribe.max_unverified_per_client;
        if self.requests.count_of(&request.client) + self.denials.count_of(&request.client) >= limit {
            self.refused.count(RequestRefusal::UnverifiedOfClient);
            let reason = format!("{limit} subscription requests of this client wait for their verification");
            return Err(Refusal { retry_after_s: Some(RETRY_AFTER_S), ..Refusal::new(429, reason) });
        }
        self.check_owner(&request)?;
        let number = self.new_id();
        self.records.push(StateRecord::Requested { number, request: request.clone() });
        self.open(number, request);
        Ok(number)
    }

    /// Whether the owner of a request may have the subscription. Decided when the request arrives, and again when it is verified:
    /// other requests may have been verified in between.
    fn check_owner(&mut self, request: &SubscriptionRequest) -> Result<(), Refusal> {
        let (refusal, reason) = match self.find(request) {
            Some(slot) if *self.subscriptions.owner_of(self.subscriptions.get(slot)) != *request.owner => {
                let reason = "the subscription belongs to another consumer".to_owned();
                (RequestRefusal::NotOwner, Refusal::new(403, reason))
            }
            None if request.mode == SubscriptionMode::Subscribe => {
                let limit = self.settings.subscribe.max_per_consumer;
                if self.subscriptions.count_of(&request.owner) < limit {
                    return Ok(());
                }
                let reason = format!("a consumer has at most {limit} subscriptions here");
                (RequestRefusal::Subscriptions, Refusal::new(429, reason))
            }
            _ => return Ok(()),
        };
        self.refused.count(refusal);
        Err(reason)
    }

    /// Takes in a request from a shared log of events; a request that is read again is ignored. Its caller has been answered
    /// already, so a refusal is sent as a denial (§5.2).
    pub fn take_request(&mut self, seq: u64, request: SubscriptionRequest) {
        if seq <= self.requests_taken {
            return;
        }
        self.requests_taken = seq;
        self.records.push(StateRecord::RequestsTaken { seq });
        let (topic, callback, client) = (request.topic.clone(), request.callback.clone(), request.client.clone());
        match self.request(request) {
            // If the subscription belongs to another consumer, it goes on, and no denial is sent to its callback. Nor is one sent if
            // too many requests are open: nothing more may be sent to callbacks then.
            Ok(_) | Err(Refusal { status: 403, .. } | Refusal { retry_after_s: Some(_), .. }) => {}
            Err(refusal) => self.deny(Some(&client), &topic, &callback, &refusal.reason),
        }
    }

    fn open(&mut self, number: u64, request: SubscriptionRequest) {
        let host = self.hosts.add(&origin_of(&request.callback).unwrap_or_default());
        self.requests.insert(number, request, host);
    }

    /// Removes an open request.
    fn close_request(&mut self, number: u64) -> Option<SubscriptionRequest> {
        let open = self.requests.remove(number)?;
        if open.step == RequestStep::Asked {
            self.asking -= 1;
            self.hosts.request_ended(open.host);
        }
        self.hosts.release(open.host);
        Some(open.request)
    }

    /// Reports the result of a verification; the lease counts from `asked_ms`, when it was sent (§5.3). A request that is not
    /// verified has no effect.
    pub fn verified(&mut self, number: u64, is_verified: bool, asked_ms: u64, now_ms: u64) {
        let Some(request) = self.close_request(number) else { return };
        if !is_verified {
            self.records.push(StateRecord::Unverified { number });
            return;
        }
        // An older request for the same subscription that is still open must not undo this one.
        for older in self.requests.older(number, &request) {
            self.close_request(older);
            self.records.push(StateRecord::Unverified { number: older });
        }
        match self.permit(&request) {
            Ok(()) if request.mode == SubscriptionMode::Subscribe => self.subscribe(number, request, asked_ms),
            Ok(()) => {
                if let Some(slot) = self.find(&request) {
                    self.end(slot, EndReason::Unsubscribed);
                }
                self.records.push(StateRecord::Unverified { number });
            }
            Err(reason) => {
                if let Some(reason) = reason {
                    self.deny(None, &request.topic, &request.callback, &reason);
                }
                self.records.push(StateRecord::Unverified { number });
            }
        }
        self.look(now_ms);
    }

    /// Whether a verified request may have its effect: the settings and other subscriptions may have changed since it was accepted.
    /// The error is the reason of a denial; none if there is a subscription that goes on.
    fn permit(&mut self, request: &SubscriptionRequest) -> Result<(), Option<String>> {
        if request.mode == SubscriptionMode::Subscribe && !self.is_permitted(request) {
            return Err(Some(permissions::reason_of(EndReason::NotPermitted).to_owned()));
        }
        self.check_owner(request).map_err(|refusal| (refusal.status != 403).then_some(refusal.reason))
    }

    fn is_permitted(&self, request: &SubscriptionRequest) -> bool {
        self.settings.has_topic(&request.topic) && self.settings.permits_receiving(&request.owner, &request.topic)
    }

    fn subscribe(&mut self, number: u64, request: SubscriptionRequest, asked_ms: u64) {
        let expires_ms = asked_ms.saturating_add(request.lease_s.saturating_mul(1_000));
        let known = self.find(&request);
        let topic = self.topics.add(&request.topic);
        let saved = match known.map(|slot| self.subscriptions.get(slot)) {
            // A renewal: pending events stay, everything else is as in the new request (§5.1).
            Some(known) => SavedSubscription {
                secret: request.secret,
                expires_ms,
                limits: request.limits,
                ..self.saved(known, &self.topics.get(known.topic).name)
            },
            None => SavedSubscription {
                id: self.new_id(),
                topic: request.topic,
                callback: request.callback,
                secret: request.secret,
                owner: request.owner,
                expires_ms,
                limits: request.limits,
                base: self.topics.get(topic).count,
                done: self.processed,
                tally: Tally::default(),
            },
        };
        self.records.push(StateRecord::Subscribed { number, subscription: saved.clone() });
        self.put(saved);
    }

    /// Adds a subscription, or renews the one with its topic and callback.
    fn put(&mut self, saved: SavedSubscription) {
        let topic = self.topics.add(&saved.topic);
        // Added before old ones are released, so that a counter goes on over a renewal.
        let limits: Vec<u32> = saved.limits.iter().map(|limit| self.limits.add(limit)).collect();
        if let Some(slot) = self.subscriptions.find(topic, &saved.callback) {
            self.subscriptions.renew(slot, saved.expires_ms, saved.secret);
            let old = self.subscriptions.get_mut(slot).set_limits(limits);
            return old.into_iter().for_each(|number| self.limits.release(number));
        }
        let host = self.hosts.add(&origin_of(&saved.callback).unwrap_or_default());
        let slot = self.subscriptions.insert(saved, topic, host, limits);
        let place = self.topics.get_mut(topic).join(slot);
        self.subscriptions.get_mut(slot).place = place;
    }

    fn saved(&self, subscription: &Subscription, topic: &str) -> SavedSubscription {
        self.subscriptions.saved(subscription, topic, &self.limits)
    }

    fn find(&self, request: &SubscriptionRequest) -> Option<u32> {
        self.subscriptions.find(self.topics.find(&request.topic)?, &request.callback)
    }

    /// Ends a subscription. Its pending events are cancelled.
    fn end(&mut self, slot: u32, reason: EndReason) {
        let subscription = self.subscriptions.get(slot);
        let topic = self.topics.get(subscription.topic);
        let tally = subscription.tally();
        let cancelled = topic.count + tally.replayed - subscription.base - tally.total();
        self.records.push(StateRecord::Ended { subscription: subscription.id, reason, cancelled });
        self.ends.count(reason);
        self.remove(slot, cancelled);
    }

    fn remove(&mut self, slot: u32, cancelled: u64) {
        let subscription = self.subscriptions.remove(slot);
        if subscription.delivery == DeliveryState::Sending {
            self.ended_in_flight.insert(subscription.id, (subscription.host, subscription.standing));
        }
        self.ended += Tally { cancelled, ..subscription.tally() };
        self.dead_letters.forget(subscription.id);
        subscription.limits().iter().for_each(|number| self.limits.release(*number));
        if let Some(moved) = self.topics.get_mut(subscription.topic).leave(subscription.place) {
            self.subscriptions.get_mut(moved).place = subscription.place;
        }
        self.topics.forget_unused(subscription.topic);
        self.hosts.release(subscription.host);
    }

    /// Queues a subscription at its host if it has an event to deliver.
    fn queue(&mut self, slot: u32, now_ms: u64) {
        let next = self.next_event(slot);
        let subscription = self.subscriptions.get_mut(slot);
        if next.is_none() {
            subscription.delivery = DeliveryState::Idle;
            return;
        }
        subscription.delivery = DeliveryState::Queued;
        subscription.since_ms = now_ms;
        self.hosts.queue(subscription.host, subscription.standing, subscription.owner, slot);
    }

    /// The next event of a subscription. An event that was tried before comes first, then dead letters, then newer events.
    fn next_event(&self, slot: u32) -> Option<u64> {
        let subscription = self.subscriptions.get(slot);
        let new = || self.topics.get(subscription.topic).next_after(subscription.done);
        let replay = || self.dead_letters.next_replay(subscription.id);
        match subscription.attempts {
            0 => replay().or_else(new),
            _ => new().or_else(replay),
        }
    }

    /// Whether [`Engine::next_delivery`] may have another delivery now.
    pub fn may_deliver(&mut self, now_ms: u64) -> bool {
        let delivery = self.settings.delivery;
        self.in_flight < delivery.in_flight
            && self.hosts.has_ready()
            && self.pacing.wait_until(delivery.per_second, now_ms).is_none()
    }

    /// The next delivery to start now. If it is `None` while [`Engine::may_deliver`], many subscriptions had to be left out, and the
    /// caller asks again later.
    pub fn next_delivery(&mut self, now_ms: u64) -> Option<Delivery> {
        let delivery = self.settings.delivery;
        for _ in 0..LOOKS_PER_DELIVERY {
            if !self.may_deliver(now_ms) {
                return None;
            }
            let turn = self.hosts.next(delivery.in_flight_per_host)?;
            let DeliveryTurn { host, slot, standing } = turn;
            // The subscription may have ended meanwhile, and its slot may be used by another one.
            if !self.subscriptions.waits_for(&turn) {
                self.hosts.release_unsent(host, standing);
                continue;
            }
            let next = self.next_event(slot);
            let subscription = self.subscriptions.get_mut(slot);
            let id = subscription.id;
            let Some(seq) = next else {
                subscription.delivery = DeliveryState::Idle;
                self.hosts.release_unsent(host, standing);
                continue;
            };
            if !self.is_within_limits(slot, seq, now_ms) {
                self.hosts.release_unsent(host, standing);
                continue;
            }
            let subscription = self.subscriptions.get_mut(slot);
            subscription.delivery = DeliveryState::Sending;
            (subscription.sent, subscription.sent_ms) = (seq, now_ms);
            subscription.attempts += 1;
            self.attempts += 1;
            self.in_flight += 1;
            self.pacing.take(delivery.per_second);
            let (callback, secret) = (subscription.callback.clone(), subscription.secret.clone());
            let is_replay = subscription.is_replay(seq);
            return Some(Delivery { subscription: id, seq, callback, secret, is_replay });
        }
        None
    }

    /// Counts an event against the limits of its subscription, unless it was tried before. If one is used up, the event waits, or
    /// gets its outcome.
    fn is_within_limits(&mut self, slot: u32, seq: u64, now_ms: u64) -> bool {
        let subscription = self.subscriptions.get(slot);
        if subscription.limits().is_empty() || subscription.attempts > 0 {
            return true;
        }
        let (id, is_replay, sent_ms) = (subscription.id, subscription.is_replay(seq), subscription.sent_ms);
        match self.limits.take(subscription.limits(), self.topics.bytes_of(seq), now_ms) {
            LimitVerdict::Deliver => return true,
            LimitVerdict::WaitUntil(at_ms) => {
                self.subscriptions.get_mut(slot).delivery = DeliveryState::Waiting;
                self.due.push(Reverse((at_ms, Due::Limit { sent_ms, slot, id })));
            }
            LimitVerdict::Drop => {
                self.subscriptions.get_mut(slot).delivery = DeliveryState::PersistingOutcome;
                self.mark(slot, Mark { subscription: id, seq, is_replay, outcome: MarkOutcome::Throttled });
            }
        }
        false
    }

    /// Reports the result of a delivery. The subscription goes on with [`Engine::recorded`], once the outcome is written.
    pub fn delivered(&mut self, subscription: u64, seq: u64, outcome: DeliveryOutcome, now_ms: u64) {
        let Some(slot) = self.subscriptions.slot_of(subscription) else {
            if let Some((host, standing)) = self.ended_in_flight.remove(&subscription) {
                self.in_flight -= 1;
                self.hosts.release_unsent(host, standing);
            }
            return;
        };
        if !self.subscriptions.get(slot).is_sending() {
            return;
        }
        self.in_flight -= 1;
        let at = self.subscriptions.get_mut(slot);
        let (failure, is_replay, before) = (outcome.failure(), at.is_replay(seq), at.standing);
        at.standing = before.after(outcome);
        let end = DeliveryEnd { host: at.host, slot, outcome, before, after: at.standing };
        let took_ms = u32::try_from(now_ms.saturating_sub(at.sent_ms)).unwrap_or(u32::MAX);
        if outcome != DeliveryOutcome::ContentGone {
            at.latest.add(&DeliveryAttempt { at_ms: at.sent_ms, event: seq, took_ms, is_replay, failure });
        }
        if let Some(at_ms) = self.hosts.ended(&end, self.settings.delivery.in_flight_per_host, now_ms) {
            self.due.push(Reverse((at_ms, Due::Host(end.host))));
        }
        if outcome == DeliveryOutcome::Gone {
            self.subscriptions.get_mut(slot).delivery = DeliveryState::Idle;
            return self.end(slot, EndReason::Gone);
        }
        let wait_ms = match outcome {
            DeliveryOutcome::Refused { wait_ms: Some(wait_ms), .. } => wait_ms,
            _ => 0,
        };
        let outcome = match failure {
            None => MarkOutcome::Delivered,
            // The content no longer exists, so there is nothing to try again.
            Some(_) if outcome == DeliveryOutcome::ContentGone || seq <= self.dropped => MarkOutcome::Expired(1),
            // A dead letter has one attempt, so that newer events are not held up again.
            Some(failure) if is_replay || !self.retry(slot, wait_ms, now_ms) => {
                let attempts = self.subscriptions.get(slot).attempts;
                MarkOutcome::Dead(AbandonedDelivery { failure, attempts, at_ms: now_ms })
            }
            Some(_) => return,
        };
        let at = self.subscriptions.get_mut(slot);
        at.delivery = DeliveryState::PersistingOutcome;
        at.attempts = 0;
        self.mark(slot, Mark { subscription, seq, is_replay, outcome });
    }

    /// Puts a delivery off that could not begin, because its event cannot be read from the disk now. As after
    /// an attempt, its limits are not counted again.
    pub fn put_off(&mut self, subscription: u64, until_ms: u64) {
        let Some(slot) = self.subscriptions.slot_of(subscription) else { return };
        let at = self.subscriptions.get_mut(slot);
        if !at.is_sending() {
            return;
        }
        at.delivery = DeliveryState::Waiting;
        let (id, host, standing) = (at.id, at.host, at.standing);
        (self.in_flight, self.attempts) = (self.in_flight - 1, self.attempts - 1);
        self.hosts.release_unsent(host, standing);
        self.due.push(Reverse((until_ms, Due::Retry { slot, id })));
    }

    /// Plans a retry within the limits (§7); `false` if the notification is to be given up, which does not end the subscription.
    fn retry(&mut self, slot: u32, wait_ms: u64, now_ms: u64) -> bool {
        let delivery = self.settings.delivery;
        let subscription = self.subscriptions.get_mut(slot);
        let millis = |duration: std::time::Duration| duration.as_millis() as u64;
        let doublings = (subscription.attempts - 1).min(30);
        let longest =
            millis(delivery.retry_first).saturating_mul(1 << doublings).min(millis(delivery.retry_max)).max(1);
        // Between half and all of it, so that deliveries that failed together are not tried again together.
        let pause = self.random.u64(longest.div_ceil(2)..=longest);
        let at_ms = now_ms + pause.max(wait_ms.min(millis(delivery.retry_max)));
        if at_ms.saturating_sub(subscription.since_ms) > millis(delivery.retry_for) {
            return false;
        }
        subscription.delivery = DeliveryState::Waiting;
        let id = subscription.id;
        self.due.push(Reverse((at_ms, Due::Retry { slot, id })));
        true
    }

    fn mark(&mut self, slot: u32, mark: Mark) {
        self.apply(slot, mark);
        match self.records.last_mut() {
            Some(StateRecord::Marks(marks)) => marks.push(mark),
            _ => self.records.push(StateRecord::Marks(vec![mark])),
        }
    }

    fn apply(&mut self, slot: u32, mark: Mark) {
        self.subscriptions.get_mut(slot).apply(mark);
        if mark.is_replay {
            self.dead_letters.replayed(mark.subscription, mark.seq);
        }
        if let MarkOutcome::Dead(given_up) = mark.outcome {
            self.dead_letters.add(mark.subscription, mark.seq, given_up);
        }
    }

    /// Queues dead letters for one more delivery, with one attempt each. Returns the number of the replay's record and the number
    /// of dead letters; `None` if there are none.
    pub fn replay(&mut self, filter: &DeadLetterFilter, now_ms: u64) -> Option<(u64, usize)> {
        let letters = self.dead_letters(filter, (0, 0), usize::MAX);
        let letters: Vec<(u64, u64)> = letters.iter().map(|letter| (letter.subscription, letter.event)).collect();
        if letters.is_empty() {
            return None;
        }
        let (number, count) = (self.new_id(), letters.len());
        for (subscription, seq) in &letters {
            let slot = self.begin_replay(*subscription, *seq).expect("its dead letters are those of a subscription");
            if self.subscriptions.get(slot).delivery == DeliveryState::Idle {
                self.queue(slot, now_ms);
            }
        }
        self.records.push(StateRecord::Replayed { number, letters });
        Some((number, count))
    }

    fn begin_replay(&mut self, subscription: u64, seq: u64) -> Option<u32> {
        let slot = self.subscriptions.slot_of(subscription)?;
        self.dead_letters.replay(subscription, seq);
        self.subscriptions.get_mut(slot).count_replay();
        Some(slot)
    }

    /// Called when outcomes are written: their subscriptions go on.
    pub fn recorded(&mut self, subscriptions: impl IntoIterator<Item = u64>, now_ms: u64) {
        for id in subscriptions {
            let Some(slot) = self.subscriptions.slot_of(id) else { continue };
            if self.subscriptions.get(slot).delivery == DeliveryState::PersistingOutcome {
                self.queue(slot, now_ms);
            }
        }
    }

    /// Called when all outcomes and all requests are written, by a snapshot.
    pub fn recorded_all(&mut self, now_ms: u64) {
        let is_recording =
            |(_, subscription): &(u32, &Subscription)| subscription.delivery == DeliveryState::PersistingOutcome;
        let all: Vec<u64> = self.subscriptions.iter().filter(is_recording).map(|(_, one)| one.id).collect();
        self.recorded(all, now_ms);
        let open: Vec<u64> = self.requests.iter().map(|(number, _)| number).collect();
        open.into_iter().for_each(|number| self.verify(number));
    }

    /// Fires timers that are due, and ends subscriptions whose leases have ended. If there are many, some are left, and
    /// [`Engine::next_due_ms`] is not later than `now_ms`.
    pub fn look(&mut self, now_ms: u64) {
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
    pub fn next_due_ms(&mut self, now_ms: u64) -> Option<u64> {
        let due = self.due.peek().map(|Reverse((at_ms, _))| *at_ms);
        let may_send = self.hosts.has_ready() && self.in_flight < self.settings.delivery.in_flight;
        let paced = may_send.then(|| self.pacing.wait_until(self.settings.delivery.per_second, now_ms)).flatten();
        due.into_iter().chain(self.subscriptions.next_lease_end()).chain(paced).min()
    }

    /// The records to write to the state log since the last call, in this order.
    pub fn take_records(&mut self) -> Vec<StateRecord> {
        std::mem::take(&mut self.records)
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub fn subscription_count(&self) -> usize {
        self.subscriptions.len()
    }

    /// The number of requests that wait for verification.
    pub fn open_requests(&self) -> usize {
        self.requests.len()
    }

    /// Events of a topic after this one, oldest first.
    pub fn events_after(&self, topic: &str, seq: u64, limit: usize) -> Vec<u64> {
        let Some(topic) = self.topics.find(topic) else { return Vec::new() };
        self.topics.get(topic).list_after(seq, limit)
    }

    pub fn newest_of(&self, topic: &str) -> Option<u64> {
        self.topics.get(self.topics.find(topic)?).newest()
    }

    /// The account since the first event.
    pub fn account(&self) -> Account {
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

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }
}
