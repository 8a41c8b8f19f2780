//! Queues the subscriptions of topics with new events, in bounded steps: a topic with many subscriptions holds up neither other topics
//! nor publishers.
//!
//! A pass goes over the subscribers from the last to the first. A subscriber that leaves meanwhile is replaced by the last one, which
//! is then visited twice, or has been visited already; none is left out. Those who join during a pass get no event from before.

use std::collections::VecDeque;

use super::Engine;
use super::numbers::TopicNumber;
use super::subscriptions::DeliveryState;

/// The subscriptions of one topic that are visited before other topics have their turn.
const STEP: usize = 256;

/// The topics whose subscriptions are being queued, in turn.
pub(super) type FanOuts = VecDeque<TopicNumber>;

/// A pass over the subscribers of a topic.
#[derive(Clone, Copy, Default)]
pub(super) struct FanOutPass {
    pub(super) is_under_way: bool,
    /// Subscribers before this place are still to be visited.
    left: usize,
    /// There was another event meanwhile, which those already visited have to be queued for.
    again: bool,
}

impl Engine {
    /// Begins a pass over the subscribers of a topic.
    pub(super) fn begin_fan_out(&mut self, topic: TopicNumber) {
        let at = self.topics.get_mut(topic);
        if at.pass.is_under_way {
            at.pass.again = true;
            return;
        }
        if !at.subscribers.is_empty() {
            at.pass = FanOutPass { is_under_way: true, left: at.subscribers.len(), again: false };
            self.fan_outs.push_back(topic);
        }
    }

    /// Visits at most `most` subscriptions of topics with new events, and queues those that have nothing else to do. Returns whether
    /// more are left.
    pub(crate) fn fan_out(&mut self, most: usize, now_ms: u64) -> bool {
        let mut left = most;
        while left > 0
            && let Some(topic) = self.fan_outs.pop_front()
        {
            left -= self.fan_out_step(topic, left.min(STEP), now_ms);
            match self.topics.get(topic).pass.is_under_way {
                true => self.fan_outs.push_back(topic),
                false => self.topics.forget_unused(topic),
            }
        }
        !self.fan_outs.is_empty()
    }

    /// One step of a pass. Returns the number of visits, at least 1.
    fn fan_out_step(&mut self, topic: TopicNumber, most: usize, now_ms: u64) -> usize {
        let at = self.topics.get_mut(topic);
        let subscribers = std::mem::take(&mut at.subscribers);
        let left = at.pass.left.min(subscribers.len());
        let from = left.saturating_sub(most);
        for &slot in &subscribers[from..left] {
            if self.subscriptions.get(slot).delivery == DeliveryState::Idle {
                self.queue(slot, now_ms);
            }
        }
        let at = self.topics.get_mut(topic);
        at.pass.left = from;
        if from == 0 {
            let again = at.pass.again;
            at.pass = FanOutPass { is_under_way: again, left: if again { subscribers.len() } else { 0 }, again: false };
        }
        at.subscribers = subscribers;
        (left - from).max(1)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::attempt::DeliveryOutcome;
    use crate::engine::tests::{TOPIC, request, settings};
    use crate::engine::{CallbackRequest, Delivery};
    use crate::form::SubscriptionRequest;

    const OTHER: &str = "http://t.example/other";

    fn subscribe(engine: &mut Engine, request: SubscriptionRequest) {
        let number = engine.request(request).expect("taken");
        engine.verify(number);
        let Some(CallbackRequest::Verify(asked)) = engine.next_callback_request(0) else { panic!("it is verified") };
        engine.verified(asked.number, true, 0, 0);
    }

    fn with_subscribers(count: usize) -> Engine {
        let mut settings = settings();
        settings.delivery.in_flight = 100_000;
        settings.subscribe.max_per_address = usize::MAX;
        let mut engine = Engine::new(Arc::new(settings), 7);
        for number in 0..count {
            subscribe(&mut engine, request(&format!("http://c{number}.example/")));
        }
        engine
    }

    fn sent(engine: &mut Engine) -> Vec<Delivery> {
        std::iter::from_fn(|| engine.next_delivery(0)).collect()
    }

    #[test]
    fn an_event_of_another_topic_does_not_wait_for_all_subscribers_of_a_large_one() {
        let mut engine = with_subscribers(10_000);
        subscribe(&mut engine, SubscriptionRequest { topic: OTHER.into(), ..request("http://other.example/") });
        engine.committed(1, TOPIC, 10, 0);
        engine.committed(2, OTHER, 10, 0);
        assert!(engine.fan_out(1_000, 0), "the large topic is not done");
        let first = sent(&mut engine);
        assert_eq!(first.iter().filter(|delivery| delivery.seq == 2).count(), 1);
        assert!(first.len() <= 1_000, "{} in one step", first.len());
        let account = engine.account();
        assert!(account.is_even() && account.audience == 10_001, "{account:?}");
        let mut steps = 1;
        while engine.fan_out(1_000, 0) {
            steps += 1;
        }
        assert!(steps >= 9, "{steps} steps");
        assert_eq!(first.len() + sent(&mut engine).len(), 10_001);
    }

    #[test]
    fn subscribers_that_come_and_go_during_a_pass_leave_none_out() {
        let mut engine = with_subscribers(1_000);
        engine.committed(1, TOPIC, 10, 0);
        assert!(engine.fan_out(300, 0));
        let mut all = sent(&mut engine);
        // From the part that was visited, from the part that was not, and a new one.
        for gone in [999, 3, 500] {
            let callback = format!("http://c{gone}.example/");
            let mode = crate::form::SubscriptionMode::Unsubscribe;
            subscribe(&mut engine, SubscriptionRequest { mode, ..request(&callback) });
        }
        subscribe(&mut engine, request("http://new.example/"));
        while engine.fan_out(100, 0) {}
        all.extend(sent(&mut engine));
        let mut callbacks: Vec<_> = all.iter().map(|delivery| delivery.callback.clone()).collect();
        callbacks.sort();
        callbacks.dedup();
        assert_eq!((callbacks.len(), all.len()), (998, 998), "all but two that were gone before their turn");
        assert!(engine.account().is_even());
    }

    #[test]
    fn an_event_during_a_pass_reaches_those_that_were_visited() {
        let mut engine = with_subscribers(600);
        engine.committed(1, TOPIC, 10, 0);
        assert!(engine.fan_out(300, 0));
        for delivery in sent(&mut engine) {
            engine.delivered(delivery.subscription, 1, DeliveryOutcome::Delivered, 0);
            engine.recorded([delivery.subscription], 0);
        }
        engine.committed(2, TOPIC, 10, 0);
        while engine.fan_out(100, 0) {}
        let second = sent(&mut engine);
        let of = |seq| second.iter().filter(|delivery| delivery.seq == seq).count();
        assert_eq!((of(1), of(2)), (300, 300), "each gets its next event");
    }
}
