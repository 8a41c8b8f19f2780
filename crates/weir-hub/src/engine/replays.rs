//! Further deliveries of dead letters.

use super::numbers::Slot;
use super::subscriptions::DeliveryState;
use super::{DeadLetterFilter, Engine};
use crate::record::StateRecord;

impl Engine {
    /// Queues dead letters for one more delivery, with one attempt each. Returns the number of the replay's record and the number
    /// of dead letters; `None` if there are none.
    pub(crate) fn replay(&mut self, filter: &DeadLetterFilter, now_ms: u64) -> Option<(u64, usize)> {
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

    pub(super) fn begin_replay(&mut self, subscription: u64, seq: u64) -> Option<Slot> {
        let slot = self.subscriptions.slot_of(subscription)?;
        self.dead_letters.replay(subscription, seq);
        self.subscriptions.get_mut(slot).count_replay();
        Some(slot)
    }
}
