//! Deliveries: which event a subscription gets next, what its outcome means, and when it is tried again.

use std::cmp::Reverse;

use weir_net::backoff::Backoff;

use super::hosts::{DeliveryEnd, DeliveryTurn};
use super::limits::LimitVerdict;
use super::numbers::Slot;
use super::subscriptions::{DeliveryState, Subscription};
use super::{Due, Engine};
use crate::attempt::{DeliveryAttempt, DeliveryOutcome};
use crate::ends::EndReason;
use crate::record::{AbandonedDelivery, Mark, MarkOutcome, StateRecord};

/// A notification to send now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Delivery {
    pub subscription: u64,
    pub seq: u64,
    pub callback: Box<str>,
    pub secret: Option<Box<[u8]>>,
    /// The event was a dead letter.
    pub is_replay: bool,
}

/// The most queued subscriptions that are looked at for one delivery: those of used-up limits cannot have it.
const LOOKS_PER_DELIVERY: usize = 256;

impl Engine {
    /// Queues a subscription at its host if it has an event to deliver.
    pub(super) fn queue(&mut self, slot: Slot, now_ms: u64) {
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
    pub(super) fn next_event(&self, slot: Slot) -> Option<u64> {
        let subscription = self.subscriptions.get(slot);
        let new = || self.topics.get(subscription.topic).next_after(subscription.done);
        let replay = || self.dead_letters.next_replay(subscription.id);
        match subscription.attempts {
            0 => replay().or_else(new),
            _ => new().or_else(replay),
        }
    }

    /// Whether [`Engine::next_delivery`] may have another delivery now.
    pub(crate) fn may_deliver(&mut self, now_ms: u64) -> bool {
        let delivery = self.settings.delivery;
        self.in_flight < delivery.in_flight
            && self.hosts.has_ready()
            && self.pacing.wait_until(delivery.per_second, now_ms).is_none()
    }

    /// The next delivery to start now. If it is `None` while [`Engine::may_deliver`], many subscriptions had to be left out, and the
    /// caller asks again later.
    pub(crate) fn next_delivery(&mut self, now_ms: u64) -> Option<Delivery> {
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
    pub(super) fn is_within_limits(&mut self, slot: Slot, seq: u64, now_ms: u64) -> bool {
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
    pub(crate) fn delivered(&mut self, subscription: u64, seq: u64, outcome: DeliveryOutcome, now_ms: u64) {
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
        let took_ms = now_ms.saturating_sub(at.sent_ms);
        at.standing = before.after(outcome, took_ms);
        let end = DeliveryEnd { host: at.host, slot, outcome, before, after: at.standing };
        let took_ms = u32::try_from(took_ms).unwrap_or(u32::MAX);
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
    pub(crate) fn put_off(&mut self, subscription: u64, until_ms: u64) {
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
    pub(super) fn retry(&mut self, slot: Slot, wait_ms: u64, now_ms: u64) -> bool {
        let delivery = self.settings.delivery;
        let subscription = self.subscriptions.get_mut(slot);
        let millis = |duration: std::time::Duration| duration.as_millis() as u64;
        let backoff = Backoff::new(delivery.retry_first, delivery.retry_max);
        let longest = millis(backoff.after(subscription.attempts)).max(1);
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

    pub(super) fn mark(&mut self, slot: Slot, mark: Mark) {
        self.apply(slot, mark);
        match self.records.last_mut() {
            Some(StateRecord::Marks(marks)) => marks.push(mark),
            _ => self.records.push(StateRecord::Marks(vec![mark])),
        }
    }

    pub(super) fn apply(&mut self, slot: Slot, mark: Mark) {
        self.subscriptions.get_mut(slot).apply(mark);
        if mark.is_replay {
            self.dead_letters.replayed(mark.subscription, mark.seq);
        }
        if let MarkOutcome::Dead(given_up) = mark.outcome {
            self.dead_letters.add(mark.subscription, mark.seq, given_up);
        }
    }

    /// Called when outcomes are written: their subscriptions go on.
    pub(crate) fn recorded(&mut self, subscriptions: impl IntoIterator<Item = u64>, now_ms: u64) {
        for id in subscriptions {
            let Some(slot) = self.subscriptions.slot_of(id) else { continue };
            if self.subscriptions.get(slot).delivery == DeliveryState::PersistingOutcome {
                self.queue(slot, now_ms);
            }
        }
    }

    /// Called when all outcomes and all requests are written, by a snapshot.
    pub(crate) fn recorded_all(&mut self, now_ms: u64) {
        let is_recording =
            |(_, subscription): &(Slot, &Subscription)| subscription.delivery == DeliveryState::PersistingOutcome;
        let all: Vec<u64> = self.subscriptions.iter().filter(is_recording).map(|(_, one)| one.id).collect();
        self.recorded(all, now_ms);
        let open: Vec<u64> = self.requests.iter().map(|(number, _)| number).collect();
        open.into_iter().for_each(|number| self.verify(number));
    }
}
