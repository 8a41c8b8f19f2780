//! The life of a subscription: a request, its verification, the subscription, and its end.

use super::numbers::Slot;
use super::requests::RequestStep;
use super::subscriptions::{DeliveryState, Subscription};
use super::{Engine, permissions};
use crate::account::{RequestRefusal, Tally};
use crate::ends::EndReason;
use crate::form::{Refusal, SubscriptionMode, SubscriptionRequest};
use crate::record::{SavedSubscription, StateRecord};
use crate::topic::origin_of;

/// The most requests that may wait for verification.
const MAX_OPEN_REQUESTS: usize = 100_000;

/// What `Retry-After` says to a client with too many requests that wait for verification, in seconds: a third of the longest time that
/// one verification takes.
const RETRY_AFTER_S: u64 = 10;

impl Engine {
    /// Accepts a request; returns its number. Its verification begins with [`Engine::verify`], once it is on disk.
    ///
    /// # Errors
    /// Too many requests are open, in total or of the client, the consumer has too many subscriptions, or the subscription belongs to
    /// another consumer.
    pub(crate) fn request(&mut self, request: SubscriptionRequest) -> Result<u64, Refusal> {
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
    pub(super) fn check_owner(&mut self, request: &SubscriptionRequest) -> Result<(), Refusal> {
        let (refusal, reason) = match self.find(request) {
            Some(slot) if *self.subscriptions.owner_of(self.subscriptions.get(slot)) != *request.owner => {
                let reason = "the subscription belongs to another consumer".to_owned();
                (RequestRefusal::NotOwner, Refusal::new(403, reason))
            }
            None if request.mode == SubscriptionMode::Subscribe => match self.too_many_subscriptions(request) {
                Some((refusal, reason)) => (refusal, Refusal::new(429, reason)),
                None => return Ok(()),
            },
            _ => return Ok(()),
        };
        self.refused.count(refusal);
        Err(reason)
    }

    /// The limit that another subscription of the caller would exceed.
    fn too_many_subscriptions(&self, request: &SubscriptionRequest) -> Option<(RequestRefusal, String)> {
        let limits = &self.settings.subscribe;
        let own = self.subscriptions.count_of(&request.owner, &request.client);
        if !request.owner.is_empty() {
            let most = limits.max_per_consumer;
            let reason = || format!("a consumer has at most {most} subscriptions here");
            return (own >= most).then(|| (RequestRefusal::Subscriptions, reason()));
        }
        let (most, all) = (limits.max_per_address, limits.max_anonymous);
        if own >= most {
            let reason = format!("an address has at most {most} subscriptions here without a consumer");
            return Some((RequestRefusal::SubscriptionsOfAddress, reason));
        }
        let reason = || format!("all callers without a consumer have at most {all} subscriptions here");
        (self.subscriptions.anonymous() >= all).then(|| (RequestRefusal::AnonymousSubscriptions, reason()))
    }

    /// Takes in a request from a shared log of events; a request that is read again is ignored. Its caller has been answered
    /// already, so a refusal is sent as a denial (§5.2).
    pub(crate) fn take_request(&mut self, seq: u64, request: SubscriptionRequest) {
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

    pub(super) fn open(&mut self, number: u64, request: SubscriptionRequest) {
        let host = self.hosts.add(&origin_of(&request.callback).unwrap_or_default());
        self.requests.insert(number, request, host);
    }

    /// Removes an open request.
    pub(super) fn close_request(&mut self, number: u64) -> Option<SubscriptionRequest> {
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
    pub(crate) fn verified(&mut self, number: u64, is_verified: bool, asked_ms: u64, now_ms: u64) {
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
    pub(super) fn permit(&mut self, request: &SubscriptionRequest) -> Result<(), Option<String>> {
        if request.mode == SubscriptionMode::Subscribe && !self.is_permitted(request) {
            return Err(Some(permissions::reason_of(EndReason::NotPermitted).to_owned()));
        }
        self.check_owner(request).map_err(|refusal| (refusal.status != 403).then_some(refusal.reason))
    }

    pub(super) fn is_permitted(&self, request: &SubscriptionRequest) -> bool {
        self.settings.has_topic(&request.topic) && self.settings.permits_receiving(&request.owner, &request.topic)
    }

    pub(super) fn subscribe(&mut self, number: u64, request: SubscriptionRequest, asked_ms: u64) {
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
                address: if request.owner.is_empty() { request.client } else { Box::default() },
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
    pub(super) fn put(&mut self, saved: SavedSubscription) {
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

    pub(super) fn saved(&self, subscription: &Subscription, topic: &str) -> SavedSubscription {
        self.subscriptions.saved(subscription, topic, &self.limits)
    }

    pub(super) fn find(&self, request: &SubscriptionRequest) -> Option<Slot> {
        self.subscriptions.find(self.topics.find(&request.topic)?, &request.callback)
    }

    /// Ends a subscription. Its pending events are cancelled.
    pub(super) fn end(&mut self, slot: Slot, reason: EndReason) {
        let subscription = self.subscriptions.get(slot);
        let topic = self.topics.get(subscription.topic);
        let tally = subscription.tally();
        let cancelled = topic.count + tally.replayed - subscription.base - tally.total();
        self.records.push(StateRecord::Ended { subscription: subscription.id, reason, cancelled });
        self.ends.count(reason);
        self.remove(slot, cancelled);
    }

    pub(super) fn remove(&mut self, slot: Slot, cancelled: u64) {
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
}
