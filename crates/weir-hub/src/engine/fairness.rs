//! Tests that subscriptions whose callbacks fail or are slow do not hold up those of the same host whose callbacks work.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use super::lanes::{SLOW_AFTER_MS, Standing};
use super::tests::{TOPIC, request, settings};
use super::{CallbackRequest, Delivery, Engine};
use crate::attempt::{DeliveryOutcome, NoAnswerReason};
use crate::form::{SubscriptionMode, SubscriptionRequest};
use crate::settings::HubSettings;

const NOT_CONNECTED: DeliveryOutcome = DeliveryOutcome::NoAnswer(NoAnswerReason::Connect);
const SILENT: DeliveryOutcome = DeliveryOutcome::NoAnswer(NoAnswerReason::TimedOut);
const FAILED: DeliveryOutcome = DeliveryOutcome::Refused { status: 500, wait_ms: None };
/// The time-out of a delivery.
const TIMEOUT_MS: u64 = 30_000;

fn subscribe(engine: &mut Engine, callback: &str, owner: &str) -> u64 {
    let request = SubscriptionRequest { lease_s: 1 << 30, owner: owner.into(), ..request(callback) };
    let number = engine.request(request).expect("taken");
    engine.verify(number);
    let Some(CallbackRequest::Verify(asked)) = engine.next_callback_request(0) else { panic!("it is verified") };
    engine.verified(asked.number, true, 0, 0);
    engine.subscriptions(None, 0, usize::MAX).last().expect("there is one").id
}

fn publish(engine: &mut Engine, seq: u64, now_ms: u64) {
    engine.committed(seq, TOPIC, 100, now_ms);
    while engine.fan_out(1_000, now_ms) {}
}

fn end(engine: &mut Engine, delivery: &Delivery, outcome: DeliveryOutcome, now_ms: u64) {
    engine.delivered(delivery.subscription, delivery.seq, outcome, now_ms);
    engine.recorded([delivery.subscription], now_ms);
}

fn engine() -> Engine {
    let mut settings = settings();
    settings.subscribe.verifications_per_second = 1_000_000;
    settings.consumers = ["jack", "jill", "joe", "ann"].map(|name| (name.into(), "".into())).into_iter().collect();
    Engine::new(Arc::new(settings), 7)
}

/// An engine with at most four deliveries, and four verifications, at a time.
fn narrow() -> Engine {
    let mut settings = engine().settings.as_ref().clone();
    settings.delivery.in_flight = 4;
    Engine::new(Arc::new(settings), 7)
}

#[test]
fn an_owner_of_many_silent_hosts_does_not_hold_up_deliveries_of_another() {
    let mut engine = narrow();
    for number in 0..100 {
        subscribe(&mut engine, &format!("http://silent{number}.example/"), "jack");
    }
    let good = subscribe(&mut engine, "http://c.example/", "jill");
    for seq in 1..=20 {
        let now_ms = seq * 1_000_000;
        engine.look(now_ms);
        publish(&mut engine, seq, now_ms);
        let mut silent = 0;
        let mut under_way: Vec<Delivery> = Vec::new();
        loop {
            under_way.extend(std::iter::from_fn(|| engine.next_delivery(now_ms)));
            match under_way.iter().position(|delivery| delivery.subscription == good) {
                Some(place) => break end(&mut engine, &under_way.remove(place), DeliveryOutcome::Delivered, now_ms),
                // One of the silent ones after the other is given up.
                None => end(&mut engine, &under_way.remove(0), SILENT, now_ms),
            }
            silent += 1;
        }
        assert!(silent <= 2, "event {seq}: {silent} of another owner had to end first");
        under_way.iter().for_each(|delivery| end(&mut engine, delivery, SILENT, now_ms));
    }
}

#[test]
fn a_client_that_names_many_silent_hosts_does_not_hold_up_verifications_of_another() {
    let mut engine = narrow();
    let ask = |engine: &mut Engine, callback: &str, client: &str| {
        let number = engine.request(SubscriptionRequest { client: client.into(), ..request(callback) }).expect("taken");
        engine.verify(number);
        number
    };
    for number in 0..100 {
        ask(&mut engine, &format!("http://silent{number}.example/"), "192.0.2.1");
    }
    let next = |engine: &mut Engine| match engine.next_callback_request(0) {
        Some(CallbackRequest::Verify(asked)) => Some(asked.number),
        _ => None,
    };
    let mut under_way: Vec<u64> = std::iter::from_fn(|| next(&mut engine)).collect();
    assert_eq!(under_way.len(), 4);
    let own = ask(&mut engine, "http://c.example/", "192.0.2.2");
    let mut ended = 0;
    while !under_way.contains(&own) {
        engine.verified(under_way.remove(0), false, 0, 0);
        under_way.extend(next(&mut engine));
        ended += 1;
    }
    assert!(ended <= 2, "{ended} of another client had to end first");
}

/// Publishes events every two minutes to 40 callbacks that fail like this after `took_ms`, and to one of the same host that works.
/// Returns how long each event took to begin to be delivered to it.
fn waits_beside(outcome: DeliveryOutcome, took_ms: u64) -> Vec<u64> {
    let mut engine = engine();
    for number in 0..40 {
        subscribe(&mut engine, &format!("http://c.example/fails/{number}"), "");
    }
    let good = subscribe(&mut engine, "http://c.example/works", "");
    waits_of(&mut engine, good, 1, |_| (outcome, took_ms))
}

/// Publishes 20 events, one every two minutes, beginning with this one. All callbacks but the good one take that long for that outcome.
/// Returns how long each event took to begin to be delivered to the good one.
fn waits_of(
    engine: &mut Engine,
    good: u64,
    first: u64,
    mut others: impl FnMut(&Delivery) -> (DeliveryOutcome, u64),
) -> Vec<u64> {
    let (mut now_ms, mut ends, mut waits) = ((first - 1) * 120_000, BinaryHeap::new(), Vec::new());
    let mut outcomes = HashMap::new();
    for seq in first..first + 20 {
        let published_ms = seq * 120_000;
        while now_ms < published_ms {
            now_ms = (now_ms + 500).min(published_ms);
            engine.look(now_ms);
            if now_ms == published_ms {
                publish(engine, seq, now_ms);
            }
            while let Some(Reverse((at_ms, subscription, seq))) = ends.peek().copied()
                && at_ms <= now_ms
            {
                ends.pop();
                engine.delivered(subscription, seq, outcomes[&subscription], now_ms);
                engine.recorded([subscription], now_ms);
            }
            while let Some(delivery) = engine.next_delivery(now_ms) {
                if delivery.subscription == good {
                    waits.push(now_ms - delivery.seq * 120_000);
                    end(engine, &delivery, DeliveryOutcome::Delivered, now_ms);
                    continue;
                }
                let (outcome, took_ms) = others(&delivery);
                if took_ms == 0 {
                    end(engine, &delivery, outcome, now_ms);
                } else {
                    outcomes.insert(delivery.subscription, outcome);
                    ends.push(Reverse((now_ms + took_ms, delivery.subscription, delivery.seq)));
                }
            }
        }
    }
    assert!(engine.account().tally.delivered >= 19);
    waits
}

#[test]
fn a_subscription_that_works_gets_each_event_at_once_beside_40_that_refuse() {
    assert_eq!(waits_beside(FAILED, 0), [0; 20]);
    assert_eq!(waits_beside(DeliveryOutcome::Refused { status: 429, wait_ms: Some(60_000) }, 0), [0; 20]);
    // Before its first delivery it is as new as the others.
    assert_eq!(waits_beside(DeliveryOutcome::Refused { status: 503, wait_ms: None }, 10)[1..], [0; 19]);
}

#[test]
fn a_subscription_that_works_gets_each_event_at_once_beside_40_that_are_silent() {
    let waits = waits_beside(SILENT, TIMEOUT_MS);
    // Before its first delivery it is as new as the others, of which four have their turn at a time.
    let first = waits.iter().take_while(|wait| **wait > 0).count();
    assert!(waits[0] <= 40 / 4 * TIMEOUT_MS && first <= 3, "{waits:?}");
    assert_eq!(waits[first..], [0; 20][first..], "{waits:?}");
}

/// A host with this number of slow subscriptions, and one that works, which is returned. Events 1 and 2 are delivered.
fn beside_slow_ones(slow: usize) -> (Engine, u64) {
    let mut engine = engine();
    let good = subscribe(&mut engine, "http://c.example/works", "");
    for number in 0..slow {
        subscribe(&mut engine, &format!("http://c.example/slow/{number}"), "");
    }
    let mut now_ms = 0;
    for seq in 1..=2 {
        publish(&mut engine, seq, now_ms);
        while engine.account().pending > 0 {
            let begun: Vec<Delivery> = std::iter::from_fn(|| engine.next_delivery(now_ms)).collect();
            let (to_good, others): (Vec<_>, Vec<_>) = begun.iter().partition(|delivery| delivery.subscription == good);
            to_good.into_iter().for_each(|delivery| end(&mut engine, delivery, DeliveryOutcome::Delivered, now_ms));
            now_ms += SLOW_AFTER_MS + 1;
            others.into_iter().for_each(|delivery| end(&mut engine, delivery, DeliveryOutcome::Delivered, now_ms));
        }
    }
    assert!(now_ms < 2 * 120_000, "{now_ms} ms");
    (engine, good)
}

#[test]
fn a_subscription_that_works_gets_each_event_at_once_beside_any_number_of_slow_ones() {
    for slow in [1, 40, 200] {
        for permits in [1, 2, 8, 32] {
            let (mut engine, good) = beside_slow_ones(slow);
            let mut of_engine: HubSettings = (*engine.settings).clone();
            of_engine.delivery.in_flight_per_host = permits;
            engine.settings = Arc::new(of_engine);
            let mut random = fastrand::Rng::with_seed(slow as u64);
            let waits = waits_of(&mut engine, good, 3, |_| match random.u32(..10) {
                // A millisecond later than most.
                0 => (SILENT, TIMEOUT_MS),
                1 => (DeliveryOutcome::Delivered, SLOW_AFTER_MS + 1),
                _ => (DeliveryOutcome::Delivered, TIMEOUT_MS - 1),
            });
            // A single permit is free after the next answer.
            let bound_ms = if permits == 1 { TIMEOUT_MS } else { 0 };
            assert!(waits.len() >= 19 && waits.iter().all(|wait| *wait <= bound_ms), "{slow}, {permits}: {waits:?}");
        }
    }
}

#[test]
fn a_slow_subscription_works_again_after_an_answer_in_time() {
    let working = Standing::New.after(DeliveryOutcome::Delivered, SLOW_AFTER_MS);
    let slow = working.after(DeliveryOutcome::Delivered, SLOW_AFTER_MS + 1);
    assert_eq!((working, slow), (Standing::Working, Standing::Slow));
    assert_eq!(slow.after(NOT_CONNECTED, TIMEOUT_MS), Standing::Slow);
    assert_eq!(slow.after(SILENT, TIMEOUT_MS), Standing::Failing);
    assert_eq!(slow.after(DeliveryOutcome::Delivered, 1), Standing::Working);
}

#[test]
fn deliveries_that_fail_twice_each_are_not_slowed_by_each_other() {
    let mut engine = engine();
    for number in 0..2_000 {
        subscribe(&mut engine, &format!("http://c.example/{number}"), "");
    }
    let (mut now_ms, mut failures) = (0, HashMap::new());
    for seq in 1..=5 {
        publish(&mut engine, seq, now_ms);
    }
    while engine.account().pending > 0 {
        while let Some(delivery) = engine.next_delivery(now_ms) {
            let failed: &mut u32 = failures.entry((delivery.subscription, delivery.seq)).or_default();
            *failed += 1;
            let fails = delivery.callback.len() == "http://c.example/00".len() && *failed <= 2;
            end(&mut engine, &delivery, if fails { FAILED } else { DeliveryOutcome::Delivered }, now_ms);
        }
        let due_ms = engine.next_due_ms(now_ms).unwrap_or(now_ms + 1);
        now_ms = due_ms.clamp(now_ms + 1, now_ms + 1_000);
        engine.look(now_ms);
        assert!(now_ms < 20_000, "{:?}", engine.account());
    }
    // Each event waits for at most a second and two.
    assert!(now_ms <= 15_000, "{now_ms} ms");
}

#[test]
fn a_host_is_probed_with_the_subscription_that_worked_last() {
    let mut engine = engine();
    let all: Vec<u64> =
        (0..8).map(|number| subscribe(&mut engine, &format!("http://c.example/{number}"), "")).collect();
    let fails = subscribe(&mut engine, "http://c.example/fails", "");
    publish(&mut engine, 1, 0);
    let mut begun: Vec<Delivery> = Vec::new();
    while let Some(delivery) = engine.next_delivery(0) {
        match delivery.subscription == fails {
            true => end(&mut engine, &delivery, FAILED, 0),
            false => end(&mut engine, &delivery, DeliveryOutcome::Delivered, 0),
        }
        begun.push(delivery);
    }
    assert_eq!(begun.len(), 9);
    publish(&mut engine, 2, 10_000);
    engine.look(10_000);
    let mut tried = Vec::new();
    while let Some(delivery) = engine.next_delivery(10_000) {
        tried.push(delivery.subscription);
        end(&mut engine, &delivery, NOT_CONNECTED, 10_000);
    }
    assert_eq!(tried.len(), 5, "then the host is known to be down");
    let worked_last = begun.iter().rev().map(|delivery| delivery.subscription).find(|one| *one != fails);
    assert!(!tried.contains(&worked_last.expect("eight have worked")), "it is still to come");
    engine.look(11_000);
    let probe = engine.next_delivery(11_000).expect("the pause is over");
    assert_eq!((Some(probe.subscription), engine.next_delivery(11_000)), (worked_last, None));
    end(&mut engine, &probe, DeliveryOutcome::Delivered, 11_000);
    engine.look(20_000);
    let mut rest = Vec::new();
    while let Some(delivery) = engine.next_delivery(20_000) {
        end(&mut engine, &delivery, DeliveryOutcome::Delivered, 20_000);
        rest.push(delivery.subscription);
    }
    rest.retain(|one| *one != fails);
    assert_eq!(rest.len(), all.len() - 1, "the host is up, and none waits for another probe");
}

#[test]
fn failures_of_deliveries_from_before_a_pause_do_not_lengthen_it() {
    let mut engine = engine();
    for number in 0..64 {
        subscribe(&mut engine, &format!("http://c.example/{number}"), "");
    }
    for seq in 1..=3 {
        publish(&mut engine, seq, 0);
        while let Some(delivery) = engine.next_delivery(0) {
            end(&mut engine, &delivery, DeliveryOutcome::Delivered, 0);
        }
    }
    publish(&mut engine, 4, 0);
    let under_way: Vec<Delivery> = std::iter::from_fn(|| engine.next_delivery(0)).collect();
    assert!(under_way.len() >= 20, "{}", under_way.len());
    under_way.iter().for_each(|delivery| end(&mut engine, delivery, NOT_CONNECTED, 0));
    for (at_ms, until_ms) in [(1_000, 3_000), (3_000, 7_000)] {
        engine.look(at_ms);
        let probe = engine.next_delivery(at_ms).expect("the pause is over");
        end(&mut engine, &probe, NOT_CONNECTED, at_ms);
        engine.look(until_ms - 1);
        assert_eq!(engine.next_delivery(until_ms - 1), None, "the next pause is twice as long");
    }
}

#[test]
fn deliveries_under_way_keep_their_permits_when_their_subscriptions_end() {
    let mut engine = engine();
    let take_all = |engine: &mut Engine| std::iter::from_fn(|| engine.next_delivery(0)).collect::<Vec<Delivery>>();
    let mut under_way = Vec::new();
    for round in 1..=10 {
        for number in 0..10 {
            subscribe(&mut engine, &format!("http://c.example/{round}/{number}"), "");
        }
        publish(&mut engine, round, 0);
        under_way.extend(take_all(&mut engine));
        for number in 0..10 {
            let callback = format!("http://c.example/{round}/{number}");
            let number = engine
                .request(SubscriptionRequest { mode: SubscriptionMode::Unsubscribe, ..request(&callback) })
                .expect("taken");
            engine.verified(number, true, 0, 0);
        }
    }
    assert_eq!((engine.subscription_count(), under_way.len(), engine.in_flight()), (0, 4, 4));
    under_way.iter().for_each(|delivery| end(&mut engine, delivery, SILENT, 0));
    assert_eq!((engine.in_flight(), engine.account().is_even()), (0, true));
}

#[test]
fn verifications_of_one_host_go_round_the_clients() {
    let mut settings = settings();
    settings.delivery.in_flight_per_host = 4;
    let mut engine = Engine::new(Arc::new(settings), 7);
    let mut ask = |client: &str, number: u32| {
        let request =
            SubscriptionRequest { client: client.into(), ..request(&format!("http://c.example/{client}/{number}")) };
        let number = engine.request(request).expect("taken");
        engine.verify(number);
    };
    (0..500).for_each(|number| ask("greedy", number));
    (0..3).for_each(|number| ask("modest", number));
    let mut asked = Vec::new();
    while let Some(CallbackRequest::Verify(verification)) = engine.next_callback_request(0) {
        asked.push(verification);
    }
    assert_eq!(asked.len(), 4, "no more are under way at one host");
    for _ in 0..4 {
        engine.verified(asked.pop().expect("one is under way").number, true, 0, 0);
        let Some(CallbackRequest::Verify(next)) = engine.next_callback_request(0) else { panic!("another may begin") };
        asked.insert(0, next);
    }
    let modest = engine.subscriptions(None, 0, 10).iter().filter(|one| one.callback.contains("modest")).count()
        + asked.iter().filter(|one| one.callback.contains("modest")).count();
    assert_eq!(modest, 3, "it does not wait for the 500 of the other");
}

/// How a callback takes deliveries.
#[derive(Clone, Copy, Debug)]
enum Manner {
    Works {
        took_ms: u64,
    },
    Refuses {
        wait_ms: Option<u64>,
    },
    Silent,
    /// Each delivery of so many is not answered, or refused.
    Wavers {
        every: u64,
        outcome: DeliveryOutcome,
    },
}

struct Callback {
    host: usize,
    owner: usize,
    manner: Manner,
    standing: Standing,
    delivered: u64,
    attempts: u64,
    /// The deliveries of its host and standing that had begun when its event was due; `None` if none is, or it waits for a retry.
    due_after: Option<u64>,
    is_busy: bool,
}

const HOSTS: usize = 2;
const OWNERS: [&str; 4] = ["jack", "jill", "joe", "ann"];

/// Random callbacks of a few hosts, which fail in every way, and a clock.
struct SharedHostsWorld {
    engine: Engine,
    random: fastrand::Rng,
    now_ms: u64,
    published: u64,
    callbacks: HashMap<u64, Callback>,
    /// When, and which delivery, ends how.
    ends: BinaryHeap<Reverse<(u64, u64, u64)>>,
    /// The outcome of the delivery that is under way to each, and when it began.
    outcomes: HashMap<u64, (DeliveryOutcome, u64)>,
    begun: [[u64; 4]; HOSTS],
    /// When each host is down.
    outages: [(u64, u64); HOSTS],
}

impl SharedHostsWorld {
    fn new(seed: u64) -> SharedHostsWorld {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut engine = engine();
        let mut of_engine: HubSettings = (*engine.settings).clone();
        of_engine.delivery.in_flight_per_host = [1, 2, 3, 8, 32][random.usize(..5)];
        engine.settings = Arc::new(of_engine);
        let mut callbacks = HashMap::new();
        for number in 0..random.usize(5..60) {
            let (host, owner) = (random.usize(..HOSTS), random.usize(..OWNERS.len()));
            let id = subscribe(&mut engine, &format!("http://c{host}.example/{number}"), OWNERS[owner]);
            let manner = match random.u32(..9) {
                0..3 => Manner::Works { took_ms: random.u64(..5_000) * random.u64(..2) },
                3 => Manner::Refuses { wait_ms: None },
                4 => Manner::Refuses { wait_ms: Some(random.u64(..100_000)) },
                5 => Manner::Silent,
                6 => Manner::Works { took_ms: TIMEOUT_MS - 1 },
                _ => Manner::Wavers {
                    every: random.u64(2..5),
                    outcome: *random.choice([&SILENT, &FAILED]).unwrap_or(&SILENT),
                },
            };
            let (standing, due_after) = (Standing::New, None);
            callbacks.insert(
                id,
                Callback { host, owner, manner, standing, delivered: 0, attempts: 0, due_after, is_busy: false },
            );
        }
        let mut outage = || {
            let from_ms = random.u64(..400_000);
            (from_ms, from_ms + random.u64(..100_000) * random.u64(..2))
        };
        let outages = [outage(), outage()];
        let (ends, outcomes) = (BinaryHeap::new(), HashMap::new());
        SharedHostsWorld {
            engine,
            random,
            now_ms: 0,
            published: 0,
            callbacks,
            ends,
            outcomes,
            begun: Default::default(),
            outages,
        }
    }

    fn publish(&mut self) {
        self.published += 1;
        publish(&mut self.engine, self.published, self.now_ms);
        for callback in self.callbacks.values_mut().filter(|one| !one.is_busy) {
            callback.is_busy = true;
            callback.due_after = Some(self.begun[callback.host][callback.standing as usize]);
        }
    }

    /// The most deliveries to others of its host and standing that begin before one that is due.
    fn bound(&self, callback: &Callback) -> u64 {
        let here = || self.callbacks.values().filter(|one| one.host == callback.host);
        let own = here().filter(|one| one.owner == callback.owner).count();
        let owners = (0..OWNERS.len()).filter(|owner| here().any(|one| one.owner == *owner)).count();
        // For each earlier one of its owner, and itself, a round of all owners. After an outage, a probe goes first.
        ((own + 1) * owners + 2) as u64
    }

    fn begin(&mut self, delivery: Delivery) {
        let id = delivery.subscription;
        let callback = &self.callbacks[&id];
        let (host, standing) = (callback.host, callback.standing as usize);
        if let (Some(due_after), Manner::Works { .. }) = (callback.due_after, callback.manner) {
            let (ahead, bound) = (self.begun[host][standing] - due_after, self.bound(callback));
            assert!(ahead <= bound, "{ahead} deliveries before {id}, which may wait for {bound}");
        }
        self.begun[host][standing] += 1;
        let callback = self.callbacks.get_mut(&id).expect("it is one of these");
        callback.due_after = None;
        callback.attempts += 1;
        let (down_from, down_until) = self.outages[host];
        let (took_ms, outcome) = match callback.manner {
            _ if (down_from..down_until).contains(&self.now_ms) => (1, NOT_CONNECTED),
            Manner::Works { took_ms } => (took_ms, DeliveryOutcome::Delivered),
            Manner::Refuses { wait_ms } => (3, DeliveryOutcome::Refused { status: 503, wait_ms }),
            Manner::Silent => (TIMEOUT_MS, SILENT),
            Manner::Wavers { every, outcome } if callback.attempts.is_multiple_of(every) => {
                (if outcome == SILENT { TIMEOUT_MS } else { 2 }, outcome)
            }
            Manner::Wavers { .. } => (2, DeliveryOutcome::Delivered),
        };
        self.outcomes.insert(id, (outcome, self.now_ms));
        self.ends.push(Reverse((self.now_ms + took_ms, id, delivery.seq)));
    }

    fn end(&mut self, id: u64, seq: u64) {
        let (outcome, began_ms) = self.outcomes.remove(&id).expect("it was begun");
        self.engine.delivered(id, seq, outcome, self.now_ms);
        self.engine.recorded([id], self.now_ms);
        let callback = self.callbacks.get_mut(&id).expect("it is one of these");
        callback.standing = callback.standing.after(outcome, self.now_ms - began_ms);
        if outcome == DeliveryOutcome::Delivered {
            callback.delivered += 1;
            callback.is_busy = callback.delivered < self.published;
            callback.due_after = callback.is_busy.then(|| self.begun[callback.host][callback.standing as usize]);
        }
    }

    /// Runs until this time, or until all callbacks that work have all events.
    fn run(&mut self, until_ms: u64) {
        loop {
            self.engine.look(self.now_ms);
            while let Some(Reverse((at_ms, id, seq))) = self.ends.peek().copied()
                && at_ms <= self.now_ms
            {
                self.ends.pop();
                self.end(id, seq);
            }
            while let Some(delivery) = self.engine.next_delivery(self.now_ms) {
                self.begin(delivery);
            }
            let due = self.engine.next_due_ms(self.now_ms).into_iter();
            let next = due.chain(self.ends.peek().map(|Reverse((at_ms, ..))| *at_ms)).min().unwrap_or(until_ms);
            if next >= until_ms {
                self.now_ms = until_ms;
                return;
            }
            self.now_ms = next.max(self.now_ms + 1);
        }
    }

    /// How many events the callbacks that work do not have.
    fn missing(&self) -> u64 {
        let working = self.callbacks.values().filter(|one| matches!(one.manner, Manner::Works { .. }));
        working.map(|one| self.published - one.delivered).sum()
    }
}

/// In the time that is left after an outage, retries come to their turn: a wait doubles up to twice the length of the outage.
/// 15 events for 60 slow callbacks, one at a time, take 8 hours.
const SETTLED_MS: u64 = 36_000_000;

#[test]
fn a_subscription_that_works_waits_for_few_others_of_its_host_in_any_world() {
    for seed in 0..150 {
        let mut world = SharedHostsWorld::new(seed);
        for _ in 0..15 {
            world.publish();
            let pause_ms = world.random.u64(..60_000);
            world.run(world.now_ms + pause_ms);
        }
        world.run(world.now_ms + SETTLED_MS);
        assert_eq!(world.missing(), 0, "seed {seed}: all events came to all callbacks that work");
    }
}
