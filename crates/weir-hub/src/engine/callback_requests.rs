//! Requests to callbacks beside deliveries: verifications of intent (W3C WebSub §5.3) and denials (§5.2).
//!
//! Both may go to a URL that no subscriber has confirmed, so the same limits hold for both: the number that is open per client and in
//! total, the rate per host, and how many are under way.

use std::cmp::Reverse;

use slab::Slab;

use super::host_requests::{HostRequest, RequestLimits, Requester};
use super::hosts::NextRequest;
use super::names::Names;
use super::numbers::{ClientNumber, HostNumber};
use super::{Due, Engine};
use crate::form::{SubscriptionMode, SubscriptionRequest};
use crate::topic::origin_of;

/// A request to send now. Its end is reported with [`Engine::verified`] or [`Engine::denied`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CallbackRequest {
    Verify(Verification),
    Deny(Denial),
}

/// A verification of intent (§5.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verification {
    pub number: u64,
    pub mode: SubscriptionMode,
    pub topic: Box<str>,
    pub callback: Box<str>,
    pub lease_s: u64,
}

/// A denial, which tells a subscriber that its subscription was ended, or its request refused (§5.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Denial {
    pub number: u32,
    pub topic: Box<str>,
    pub callback: Box<str>,
    pub reason: Box<str>,
}

/// The most denials that wait or are under way. Those beyond are not sent.
const MAX_OPEN_DENIALS: usize = 100_000;

/// Denials that wait or are under way.
#[derive(Default)]
pub(super) struct OpenDenials {
    denials: Slab<OpenDenial>,
    /// The clients whose requests are denied before they are verified, each counted once per denial.
    clients: Names<ClientNumber>,
}

struct OpenDenial {
    topic: Box<str>,
    callback: Box<str>,
    reason: Box<str>,
    host: HostNumber,
    /// The number of its client's name; `None` if the callback has been verified.
    client: Option<ClientNumber>,
}

impl OpenDenials {
    pub(super) fn len(&self) -> usize {
        self.denials.len()
    }

    /// The number of denials that a client has caused without a verified callback.
    pub(super) fn count_of(&self, client: &str) -> usize {
        self.clients.find(client).map_or(0, |client| self.clients.uses(client) as usize)
    }

    fn get(&self, number: u32) -> Denial {
        let OpenDenial { topic, callback, reason, .. } = &self.denials[number as usize];
        Denial { number, topic: topic.clone(), callback: callback.clone(), reason: reason.clone() }
    }

    /// Removes a denial; returns its host. The memory is released when none is left.
    fn remove(&mut self, number: u32) -> HostNumber {
        let OpenDenial { host, client, .. } = self.denials.remove(number as usize);
        if let Some(client) = client
            && self.clients.release(client)
        {
            self.clients.forget(client);
        }
        if self.denials.is_empty() {
            *self = OpenDenials::default();
        }
        host
    }
}

impl Engine {
    /// Called when the request is on disk: queues its verification.
    pub(crate) fn verify(&mut self, number: u64) {
        if let Some((host, client)) = self.requests.host_to_ask(number) {
            self.hosts.queue_request(host, Requester::Client(client), HostRequest::Verification(number));
        }
    }

    /// The milliseconds until a request that was just queued is sent to its callback, at most, if its host answers and no other client
    /// has requests queued there meanwhile.
    pub(crate) fn verification_wait_ms(&self, number: u64, now_ms: u64) -> u64 {
        let per_second = self.settings.subscribe.verifications_per_second;
        self.requests.host_of(number).map_or(0, |host| self.hosts.request_wait_ms(host, per_second, now_ms))
    }

    /// Queues a denial. `client` is the sender of a request whose callback is not verified.
    pub(super) fn deny(&mut self, client: Option<&str>, topic: &str, callback: &str, reason: &str) {
        if self.denials.len() >= MAX_OPEN_DENIALS {
            return;
        }
        let host = self.hosts.add(&origin_of(callback).unwrap_or_default());
        let denials = &mut self.denials;
        let client = client.map(|client| denials.clients.add(client));
        let (topic, callback, reason) = (topic.into(), callback.into(), reason.into());
        let number = denials.denials.insert(OpenDenial { topic, callback, reason, host, client }) as u32;
        let requester = client.map_or(Requester::Hub, Requester::DeniedClient);
        self.hosts.queue_request(host, requester, HostRequest::Denial(number));
    }

    /// The next verification or denial to send now. As many may be under way as deliveries, in total and at one host.
    pub(crate) fn next_callback_request(&mut self, now_ms: u64) -> Option<CallbackRequest> {
        let per_second = self.settings.subscribe.verifications_per_second;
        let limits = RequestLimits { per_second, most: self.settings.delivery.in_flight_per_host };
        while self.asking < self.settings.delivery.in_flight {
            let (host, next) = match self.hosts.next_request(limits, now_ms) {
                NextRequest::Now { host, request } => (host, request),
                NextRequest::Later { host, at_ms } => {
                    self.due.push(Reverse((at_ms, Due::HostRequest(host))));
                    continue;
                }
                NextRequest::None => return None,
            };
            let request = match next {
                HostRequest::Denial(number) => CallbackRequest::Deny(self.denials.get(number)),
                HostRequest::Verification(number) => {
                    // It may have been replaced by a newer request meanwhile.
                    let Some(request) = self.requests.ask(number) else {
                        self.hosts.request_ended(host);
                        continue;
                    };
                    let SubscriptionRequest { mode, topic, callback, lease_s, .. } = request.clone();
                    CallbackRequest::Verify(Verification { number, mode, topic, callback, lease_s })
                }
            };
            self.asking += 1;
            return Some(request);
        }
        None
    }

    /// Reports that a denial was sent, or could not be sent.
    pub(crate) fn denied(&mut self, number: u32) {
        let host = self.denials.remove(number);
        self.hosts.request_ended(host);
        self.hosts.release(host);
        self.asking -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::engine::tests::{request, settings};

    fn of_client(client: &str, number: u64) -> SubscriptionRequest {
        let callback = format!("http://victim{}.example/{number}", number % 50);
        SubscriptionRequest { client: client.into(), ..request(&callback) }
    }

    /// An engine that has all the subscriptions it may have, and whose clients may have ten open requests.
    fn full() -> Engine {
        let mut settings = settings();
        settings.subscribe.max_anonymous = 1;
        settings.subscribe.max_unverified_per_client = 10;
        settings.subscribe.verifications_per_second = 10;
        let mut engine = Engine::new(Arc::new(settings), 7);
        engine.take_request(1, of_client("friend", 0));
        engine.verify(1);
        let Some(CallbackRequest::Verify(first)) = engine.next_callback_request(0) else { panic!("it is verified") };
        engine.verified(first.number, true, 0, 0);
        engine
    }

    #[test]
    fn denials_to_unverified_callbacks_are_limited_as_verifications_are() {
        let mut engine = full();
        for seq in 2..=1_000 {
            engine.take_request(seq, of_client("192.0.2.1", seq));
        }
        engine.take_request(1_001, of_client("192.0.2.2", 1_001));
        let sent: Vec<_> = std::iter::from_fn(|| engine.next_callback_request(0)).collect();
        assert_eq!(sent.len(), 11, "ten of the one client, and one of the other");
        let denials = sent.into_iter().map(|request| match request {
            CallbackRequest::Deny(denial) => denial,
            CallbackRequest::Verify(_) => panic!("all are denied"),
        });
        denials.for_each(|denial| engine.denied(denial.number));
        engine.take_request(1_002, of_client("192.0.2.1", 1_002));
        assert!(engine.next_callback_request(0).is_some(), "the client has none open any more");
        assert_eq!(
            engine.refused.by_reason().find(|(name, _)| *name == "unverified_of_client"),
            Some(("unverified_of_client", 989))
        );
    }

    #[test]
    fn denials_to_one_host_have_its_rate() {
        let mut engine = full();
        let send = |engine: &mut Engine, now_ms: u64| {
            let mut sent = 0;
            while let Some(CallbackRequest::Deny(denial)) = engine.next_callback_request(now_ms) {
                engine.denied(denial.number);
                sent += 1;
            }
            sent
        };
        for number in 0..1_000 {
            engine.deny(None, "http://t.example/1", &format!("http://c.example/{number}"), "no");
        }
        assert_eq!(send(&mut engine, 100_000), 100, "ten seconds' worth, as of verifications");
        engine.look(101_000);
        assert_eq!(send(&mut engine, 101_000), 10);
    }

    #[test]
    fn two_thousand_callbacks_of_one_client_at_one_host_are_asked_within_ten_seconds() {
        let mut engine = Engine::new(Arc::new(settings()), 7);
        let (mut sent, mut asked, mut now_ms, mut longest_wait_ms) = (0, 0, 0, 0);
        while asked < 2_000 {
            // A client that was refused sends the request again later.
            while sent < 2_000
                && let Ok(number) = engine.request(request(&format!("http://c.example/{sent}")))
            {
                engine.verify(number);
                longest_wait_ms = longest_wait_ms.max(now_ms + engine.verification_wait_ms(number, now_ms));
                sent += 1;
            }
            engine.look(now_ms);
            while let Some(CallbackRequest::Verify(verification)) = engine.next_callback_request(now_ms) {
                engine.verified(verification.number, true, now_ms, now_ms);
                asked += 1;
            }
            now_ms += 10;
        }
        assert!((9_900..=10_010).contains(&now_ms), "a burst of 1,000, and 100 a second: {now_ms}");
        assert!((now_ms - 20..=now_ms + 20).contains(&longest_wait_ms), "as announced: {longest_wait_ms}");
    }

    #[test]
    fn only_so_many_requests_to_callbacks_are_under_way() {
        let mut settings = settings();
        settings.delivery.in_flight = 3;
        let mut engine = Engine::new(Arc::new(settings), 7);
        for number in 0..5 {
            let number = engine.request(of_client("friend", number)).expect("taken");
            engine.verify(number);
            engine.verify(number);
        }
        let sent: Vec<_> = std::iter::from_fn(|| engine.next_callback_request(0)).collect();
        assert_eq!(sent.len(), 3);
        let CallbackRequest::Verify(first) = &sent[0] else { panic!("they are verifications") };
        engine.verified(first.number, false, 0, 0);
        assert_eq!(std::iter::from_fn(|| engine.next_callback_request(0)).count(), 1);
    }

    #[test]
    fn request_is_checked_again_when_it_is_verified() {
        let mut settings = settings();
        settings.consumers = ["jack", "jill"].map(|name| (name.into(), "".into())).into_iter().collect();
        settings.subscribe.max_per_consumer = 1;
        let mut engine = Engine::new(Arc::new(settings), 7);
        let of = |owner: &str, number: u64| {
            let secret = Some(owner.as_bytes().into());
            SubscriptionRequest { owner: owner.into(), secret, ..of_client(owner, number) }
        };
        let unsubscribe = SubscriptionRequest { mode: SubscriptionMode::Unsubscribe, ..of("jill", 1) };
        let requests = [of("jack", 1), of("jill", 1), unsubscribe, of("jack", 2)];
        // None of them is refused: there is no subscription yet.
        let numbers = requests.map(|request| engine.request(request).expect("taken"));
        numbers.into_iter().for_each(|number| engine.verified(number, true, 0, 0));
        let left = engine.subscriptions(None, 0, 10);
        assert_eq!(left.iter().map(|one| &*one.owner).collect::<Vec<_>>(), ["jack"]);
        engine.committed(1, crate::engine::tests::TOPIC, 10, 0);
        engine.fan_out(10, 0);
        let delivery = engine.next_delivery(0).expect("there is a subscription");
        assert_eq!(delivery.secret.as_deref(), Some(&b"jack"[..]), "not the secret of another consumer");
        let Some(CallbackRequest::Deny(denial)) = engine.next_callback_request(0) else { panic!("one has too many") };
        assert_eq!(&*denial.callback, "http://victim2.example/2");
        assert_eq!((engine.next_callback_request(0), engine.open_requests()), (None, 0));
    }

    #[test]
    fn a_request_whose_record_failed_is_verified_after_the_snapshot_that_has_it() {
        let mut engine = Engine::new(Arc::new(settings()), 7);
        engine.take_request(1, of_client("friend", 1));
        drop(engine.take_records());
        assert_eq!(engine.next_callback_request(0), None, "it is not on disk");
        engine.recorded_all(0);
        assert!(matches!(engine.next_callback_request(0), Some(CallbackRequest::Verify(_))));
    }
}
