//! Events that retention removes, and their account.

use super::Engine;
use super::numbers::Slot;
use super::subscriptions::Subscription;
use crate::record::{Mark, MarkOutcome};

impl Engine {
    /// Keeps at most `max_bytes` of events, and none from before `not_before_ms`. Returns the last event that may be removed from
    /// the journal, once the records are written.
    pub(crate) fn retain(&mut self, max_bytes: u64, not_before_ms: u64) -> Option<u64> {
        let last = self.topics.beyond(max_bytes).max(self.topics.before(not_before_ms));
        self.dropped = self.topics.drop_up_to(last)?;
        let missed =
            |(slot, subscription): (Slot, &Subscription)| Some((slot, self.missed(subscription))).filter(|it| it.1 > 0);
        let behind: Vec<(Slot, u64)> = self.subscriptions.iter().filter_map(missed).collect();
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
    pub(super) fn expire_dropped(&mut self) {
        for (id, seq) in self.dead_letters.drop_up_to(self.dropped) {
            let slot = self.subscriptions.slot_of(id).expect("dead letters go with their subscription");
            let subscription = self.subscriptions.get(slot);
            if !subscription.is_sending() || subscription.sent != seq {
                self.mark(slot, Mark { subscription: id, seq, is_replay: true, outcome: MarkOutcome::Expired(1) });
            }
        }
    }

    pub(super) fn expire(&mut self, slot: Slot, seq: u64, count: u64) {
        if count > 0 {
            let subscription = self.subscriptions.get(slot).id;
            self.mark(slot, Mark { subscription, seq, is_replay: false, outcome: MarkOutcome::Expired(count) });
        }
    }

    /// The number of events of its audience that are neither kept nor accounted for.
    pub(super) fn missed(&self, subscription: &Subscription) -> u64 {
        let topic = self.topics.get(subscription.topic);
        let open = topic.count - subscription.base - self.first_outcomes(subscription);
        open.saturating_sub(topic.after(subscription.done) as u64)
    }

    /// The number of events of its audience with an outcome, not counting further deliveries of dead letters.
    pub(super) fn first_outcomes(&self, subscription: &Subscription) -> u64 {
        let tally = subscription.tally();
        (tally.total() + self.dead_letters.replays_of(subscription.id)).saturating_sub(tally.replayed)
    }
}
