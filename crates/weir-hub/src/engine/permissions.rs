//! Ends subscriptions that the settings do not permit.

use std::collections::HashMap;
use std::sync::Arc;

use super::Engine;
use super::numbers::Slot;
use crate::ends::EndReason;
use crate::settings::HubSettings;

impl Engine {
    /// Applies new settings. Subscriptions to topics that no longer exist, and those whose owners may no longer receive their topic,
    /// are ended with a denial (W3C WebSub §5.2).
    pub(crate) fn reconfigure(&mut self, settings: Arc<HubSettings>, now_ms: u64) {
        self.settings = settings;
        self.end_unpermitted();
        self.hosts.wake_all();
        self.look(now_ms);
    }

    fn end_unpermitted(&mut self) {
        let mut unpermitted = Vec::new();
        for (_, topic) in self.topics.iter() {
            if !self.settings.has_topic(&topic.name) {
                unpermitted.extend(topic.subscribers.iter().map(|slot| (*slot, EndReason::TopicRemoved)));
                continue;
            }
            // Most subscriptions of a topic have few owners.
            let mut decided = HashMap::new();
            for slot in &topic.subscribers {
                let owner = self.subscriptions.owner_of(self.subscriptions.get(*slot));
                if !*decided.entry(owner).or_insert_with(|| self.settings.permits_receiving(owner, &topic.name)) {
                    unpermitted.push((*slot, EndReason::NotPermitted));
                }
            }
        }
        for (slot, reason) in unpermitted {
            self.deny_and_end(slot, reason);
        }
    }

    fn deny_and_end(&mut self, slot: Slot, reason: EndReason) {
        let subscription = self.subscriptions.get(slot);
        let (topic, callback) = (Arc::clone(&self.topics.get(subscription.topic).name), subscription.callback.clone());
        self.deny(None, &topic, &callback, reason_of(reason));
        self.end(slot, reason);
    }
}

/// The reason that a denial states for the end of a subscription, or of a request for one.
pub(super) fn reason_of(reason: EndReason) -> &'static str {
    match reason {
        EndReason::TopicRemoved => "the hub no longer has this topic",
        _ => "the subscriber may not receive this topic",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::CallbackRequest;
    use crate::engine::tests::{TOPIC, request, settings};
    use crate::form::{Refusal, SubscriptionRequest};
    use crate::rights::{ConsumerGroups, PermittedCallers};

    /// The settings of a configuration with these consumers, of whom only some may subscribe.
    fn permitting(known: &[&str], permitted: &[&str]) -> Arc<HubSettings> {
        let mut settings = settings();
        settings.consumers = known.iter().map(|name| ((*name).into(), "".into())).collect::<ConsumerGroups>();
        let consumers = permitted.iter().map(|name| (*name).into()).collect();
        settings.subscribe.permitted = PermittedCallers { consumers, ..PermittedCallers::default() };
        Arc::new(settings)
    }

    fn ask(engine: &mut Engine, owner: &str) -> u64 {
        let mut request = request(&format!("http://c.example/{owner}"));
        request.owner = owner.into();
        let number = engine.request(request).expect("taken");
        engine.verify(number);
        number
    }

    /// The callbacks that are sent a denial.
    fn denied(engine: &mut Engine) -> Vec<Box<str>> {
        let next = || match engine.next_callback_request(0)? {
            CallbackRequest::Deny(denial) => Some(denial.callback),
            CallbackRequest::Verify(_) => panic!("no verification is open"),
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn one_address_does_not_take_the_subscriptions_of_others() {
        let mut settings = settings();
        (settings.subscribe.max_per_address, settings.subscribe.max_anonymous) = (3, 5);
        let mut engine = Engine::new(Arc::new(settings), 7);
        let mut number = 0;
        let mut ask = |engine: &mut Engine, owner: &str, client: &str| {
            number += 1;
            let callback = format!("http://c.example/{number}");
            let request = SubscriptionRequest { owner: owner.into(), client: client.into(), ..request(&callback) };
            let asked = engine.request(request)?;
            engine.verify(asked);
            assert!(engine.next_callback_request(0).is_some());
            engine.verified(asked, true, 0, 0);
            Ok::<u64, Refusal>(asked)
        };
        let results =
            ["a", "a", "a", "a", "b", "b", "b"].map(|client| ask(&mut engine, "", client).map_err(|it| it.status));
        assert_eq!(results.map(|result| result.err()), [None, None, None, Some(429), None, None, Some(429)]);
        assert!(ask(&mut engine, "jack", "jack").is_ok(), "a consumer is no address");
        let refused: Vec<_> = engine.refused.by_reason().filter(|(_, count)| *count > 0).collect();
        assert_eq!(refused, [("subscriptions_of_address", 1), ("anonymous_subscriptions", 1)]);
        // The addresses are part of the state.
        let records: Vec<_> = engine.snapshot().collect();
        let mut restored = Engine::new(Arc::clone(&engine.settings), 7);
        records.into_iter().for_each(|record| restored.restore(record).expect("a record of this version"));
        assert_eq!(ask(&mut restored, "", "a").expect_err("it has 3").status, 429);
        assert_eq!(restored.subscriptions(None, 0, 10).iter().filter(|one| one.owner.is_empty()).count(), 5);
        // A place is left when a subscription ends, and an address without any is forgotten.
        for id in restored.subscriptions(None, 0, 10).iter().map(|one| one.id).collect::<Vec<_>>() {
            let slot = restored.subscriptions.slot_of(id).expect("it is there");
            restored.end(slot, EndReason::Unsubscribed);
        }
        assert_eq!((restored.subscriptions.anonymous(), restored.subscriptions.count_of("", "a")), (0, 0));
        assert!(ask(&mut restored, "", "a").is_ok());
    }

    #[test]
    fn subscriptions_end_with_the_right_of_their_owner() {
        let mut engine = Engine::new(permitting(&["jack", "jill", "joe"], &[]), 7);
        for owner in ["jack", "jill", "joe", ""] {
            let number = ask(&mut engine, owner);
            engine.verified(number, true, 0, 0);
        }
        // Their verifications, which were sent before.
        while engine.next_callback_request(0).is_some() {}
        engine.committed(1, TOPIC, 10, 0);
        engine.reconfigure(permitting(&["jack", "joe"], &["jack", "jill"]), 1);
        assert_eq!(engine.subscriptions(None, 0, 10).iter().map(|one| &*one.owner).collect::<Vec<_>>(), ["jack"]);
        let mut all = denied(&mut engine);
        all.sort();
        assert_eq!(all, ["http://c.example/", "http://c.example/jill", "http://c.example/joe"].map(Box::from));
        assert_eq!((engine.ends.of(EndReason::NotPermitted), engine.account().tally.cancelled), (3, 3));
        assert!(engine.account().is_even());
    }

    #[test]
    fn a_right_that_is_lost_before_the_verification_leaves_no_subscription() {
        let mut engine = Engine::new(permitting(&["jack"], &[]), 7);
        let number = ask(&mut engine, "jack");
        engine.reconfigure(permitting(&[], &[]), 1);
        engine.verified(number, true, 1, 1);
        assert_eq!((engine.subscription_count(), engine.open_requests()), (0, 0));
        assert_eq!(denied(&mut engine), [Box::from("http://c.example/jack")]);
    }
}
