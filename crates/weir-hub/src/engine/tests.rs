//! Tests the engine against a model, with virtual time and crashes derived from a seed.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::*;
use crate::attempt::{DeliveryAttempt, DeliveryFailure, DeliveryOutcome, NoAnswerReason};
use crate::form::{SubscriptionMode, SubscriptionRequest};
use crate::limit::{DeliveryLimit, ExcessDelivery, LimitWindow};
use crate::rights::ConsumerGroups;
use crate::settings::{
    DeliverySettings, ListenSettings, LogSettings, PublishSettings, RetentionSettings, SubscribeSettings,
};
use crate::topic::TopicPattern;

pub(crate) fn settings() -> HubSettings {
    HubSettings {
        url: "http://hub.example/hub".into(),
        rights: Vec::new(),
        consumers: ConsumerGroups::default(),
        topics: vec![TopicPattern::parse("http://t.example/*").expect("a pattern")],
        publish: PublishSettings::default(),
        subscribe: SubscribeSettings::default(),
        listen: ListenSettings::default(),
        delivery: DeliverySettings::default(),
        retention: RetentionSettings::default(),
        log: LogSettings::Local,
    }
}

pub(crate) const TOPIC: &str = "http://t.example/1";

pub(crate) fn request(callback: &str) -> SubscriptionRequest {
    SubscriptionRequest {
        mode: SubscriptionMode::Subscribe,
        topic: TOPIC.into(),
        callback: callback.into(),
        lease_s: 1_000,
        secret: None,
        owner: Box::default(),
        client: Box::default(),
        limits: Box::default(),
    }
}

/// Of events of 100 bytes of [`TOPIC`], five are kept, and four once the limit is exceeded.
const RETAINED_BYTES: u64 = 5 * (100 + TOPIC.len() as u64 + 256);

fn engine() -> Engine {
    Engine::new(Arc::new(settings()), 7)
}

fn verify_all(engine: &mut Engine, is_verified: bool, now_ms: u64) -> Vec<Verification> {
    let mut all = Vec::new();
    while let Some(request) = engine.next_callback_request(now_ms) {
        let CallbackRequest::Verify(verification) = request else { panic!("{request:?}") };
        engine.verified(verification.number, is_verified, now_ms, now_ms);
        all.push(verification);
    }
    all
}

fn subscribe(engine: &mut Engine, callback: &str, now_ms: u64) {
    let number = engine.request(request(callback)).expect("taken");
    engine.verify(number);
    assert_eq!(verify_all(engine, true, now_ms).len(), 1);
}

/// Takes in an event, and queues all subscriptions of its topic.
fn publish(engine: &mut Engine, seq: u64, topic: &str, bytes: u32, now_ms: u64) {
    engine.committed(seq, topic, bytes, now_ms);
    while engine.fan_out(100, now_ms) {}
}

fn deliver(engine: &mut Engine, outcome: DeliveryOutcome, now_ms: u64) -> Vec<Delivery> {
    let mut all = Vec::new();
    while let Some(delivery) = engine.next_delivery(now_ms) {
        engine.delivered(delivery.subscription, delivery.seq, outcome, now_ms);
        engine.recorded([delivery.subscription], now_ms);
        all.push(delivery);
    }
    all
}

#[test]
fn events_after_one_are_those_of_the_topic_in_order() {
    let mut engine = engine();
    for (seq, topic) in [(3, TOPIC), (4, "http://t.example/2"), (5, TOPIC), (9, TOPIC)] {
        publish(&mut engine, seq, topic, 10, 1_000);
    }
    assert_eq!(engine.events_after(TOPIC, 0, 10), [3, 5, 9]);
    assert_eq!(engine.events_after(TOPIC, 3, 1), [5]);
    assert!(engine.events_after(TOPIC, 9, 10).is_empty());
    assert!(engine.events_after("http://t.example/3", 0, 10).is_empty());
}

#[test]
fn a_subscription_fails_from_a_failed_attempt_until_one_succeeds_or_nothing_is_left_to_deliver() {
    let mut engine = engine();
    for callback in ["http://c.example/1", "http://c.example/2"] {
        subscribe(&mut engine, callback, 1_000);
    }
    publish(&mut engine, 1, TOPIC, 10, 2_000);
    publish(&mut engine, 2, TOPIC, 10, 2_000);
    assert_eq!(engine.failing_count(), 0, "nothing was tried");
    let down = DeliveryOutcome::NoAnswer(NoAnswerReason::Connect);
    let mut now_ms = 2_000;
    let mut states = HashSet::new();
    while engine.account().pending > 0 {
        engine.look(now_ms);
        // During an attempt, too.
        while let Some(delivery) = engine.next_delivery(now_ms) {
            let failing = engine.failing_count();
            assert!(now_ms == 2_000 || failing == 2, "{failing} at {now_ms}");
            engine.delivered(delivery.subscription, delivery.seq, down, now_ms);
            engine.recorded([delivery.subscription], now_ms);
        }
        states.extend(engine.subscriptions(None, 0, 9).into_iter().map(|entry| entry.state.name()));
        assert!(engine.account().pending == 0 || engine.failing_count() > 0, "at {now_ms}");
        now_ms = engine.next_due_ms(now_ms).map_or(now_ms, |at_ms| at_ms.max(now_ms + 1));
        if now_ms > 200_000 {
            break;
        }
    }
    assert!(states.contains("waiting") && states.contains("queued"), "behind the host's pause, too: {states:?}");
    assert_eq!(engine.failing_count(), 2);
    while engine.account().pending > 0 {
        engine.look(now_ms);
        deliver(&mut engine, DeliveryOutcome::Delivered, now_ms);
        now_ms += 60_000;
    }
    assert_eq!(engine.failing_count(), 0);
    publish(&mut engine, 3, TOPIC, 10, now_ms);
    deliver(&mut engine, DeliveryOutcome::ContentGone, now_ms);
    assert_eq!(
        (engine.account().pending, engine.failing_count()),
        (0, 0),
        "a lack of content is no failure of a subscriber"
    );
}

#[test]
fn websub_5_1_a_renewal_that_is_not_verified_changes_nothing() {
    let mut engine = engine();
    subscribe(&mut engine, "http://c.example/1", 1_000_000);
    let mut renewal = request("http://c.example/1");
    renewal.secret = Some(Box::from(*b"new"));
    renewal.lease_s = 100_000;
    let number = engine.request(renewal.clone()).expect("taken");
    engine.verify(number);
    verify_all(&mut engine, false, 1_001_000);
    publish(&mut engine, 1, TOPIC, 10, 1_001_000);
    assert_eq!(deliver(&mut engine, DeliveryOutcome::Delivered, 1_001_000)[0].secret, None);
    engine.look(1_000_000 + 1_000_000);
    assert_eq!(engine.subscription_count(), 0, "the first lease holds");

    subscribe(&mut engine, "http://c.example/1", 3_000_000);
    let number = engine.request(renewal).expect("taken");
    engine.verify(number);
    verify_all(&mut engine, true, 3_001_000);
    publish(&mut engine, 2, TOPIC, 10, 3_001_000);
    let delivered = deliver(&mut engine, DeliveryOutcome::Delivered, 3_001_000);
    assert_eq!((delivered.len(), delivered[0].secret.as_deref()), (1, Some(&b"new"[..])));
    engine.look(4_000_000);
    assert_eq!(engine.subscription_count(), 1, "the second lease holds");
}

#[test]
fn websub_7_a_notification_is_given_up_and_the_subscription_kept() {
    let mut engine = engine();
    subscribe(&mut engine, "http://c.example/1", 0);
    publish(&mut engine, 1, TOPIC, 10, 0);
    publish(&mut engine, 2, TOPIC, 10, 0);
    let refused = DeliveryOutcome::Refused { status: 500, wait_ms: None };
    let mut now_ms = 0;
    let mut tried = Vec::new();
    engine.settings = Arc::new(HubSettings {
        delivery: DeliverySettings { retry_for: Duration::from_secs(60), ..DeliverySettings::default() },
        ..settings()
    });
    while engine.account().tally.dead_lettered == 0 {
        tried.extend(deliver(&mut engine, refused, now_ms).iter().map(|delivery| delivery.seq));
        now_ms = engine.next_due_ms(now_ms).unwrap_or(now_ms + 1);
        engine.look(now_ms);
    }
    assert!(tried.len() >= 5 && tried.iter().take(5).all(|seq| *seq == 1), "{tried:?}");
    now_ms += LATER_MS;
    engine.look(now_ms);
    assert_eq!(deliver(&mut engine, DeliveryOutcome::Delivered, now_ms)[0].seq, 2, "the next update is tried again");
    assert_eq!(engine.subscription_count(), 1);
    assert!(engine.account().is_even());
}

const LATER_MS: u64 = 120_000;

#[test]
fn a_host_that_fails_gets_one_delivery_at_a_time_and_others_are_not_held_up() {
    let mut engine = engine();
    for number in 0..50 {
        subscribe(&mut engine, &format!("http://bad.example/{number}"), 0);
    }
    subscribe(&mut engine, "http://good.example/", 0);
    publish(&mut engine, 1, TOPIC, 10, 0);
    let mut good = 0;
    let mut bad = 0;
    while let Some(delivery) = engine.next_delivery(0) {
        let is_bad = delivery.callback.contains("bad");
        let outcome =
            if is_bad { DeliveryOutcome::NoAnswer(NoAnswerReason::Connect) } else { DeliveryOutcome::Delivered };
        (bad, good) = (bad + usize::from(is_bad), good + usize::from(!is_bad));
        engine.delivered(delivery.subscription, delivery.seq, outcome, 0);
    }
    assert_eq!(good, 1);
    assert!(bad < 10, "{bad} deliveries to a host that does not answer");
    let probe_ms = engine.next_due_ms(0).expect("it is tried again");
    engine.look(probe_ms.max(1_000));
    assert!(engine.next_delivery(1_000).is_some());
    assert!(engine.next_delivery(1_000).is_none(), "one at a time");
}

#[test]
fn pacing_spreads_deliveries_over_time() {
    let delivery = DeliverySettings { per_second: 100, ..DeliverySettings::default() };
    let mut engine = Engine::new(Arc::new(HubSettings { delivery, ..settings() }), 7);
    for number in 0..250 {
        subscribe(&mut engine, &format!("http://c{number}.example/"), 1_000);
    }
    publish(&mut engine, 1, TOPIC, 10, 1_000);
    let (mut now_ms, mut sent) = (1_000, 0);
    loop {
        sent += deliver(&mut engine, DeliveryOutcome::Delivered, now_ms).len();
        if sent == 250 {
            break;
        }
        now_ms = engine.next_due_ms(now_ms).expect("the next one has its time");
    }
    assert!((3_300..=3_600).contains(&now_ms), "250 at 100 a second took until {now_ms} ms");
}

#[test]
fn paced_deliveries_are_spread_evenly() {
    let delivery = DeliverySettings { per_second: 2_000, ..DeliverySettings::default() };
    let mut engine = Engine::new(Arc::new(HubSettings { delivery, ..settings() }), 7);
    for number in 0..2_000 {
        subscribe(&mut engine, &format!("http://c{number}.example/"), 1_000);
    }
    publish(&mut engine, 1, TOPIC, 10, 1_000);
    let begun: Vec<usize> =
        (1_000..2_000).map(|now_ms| deliver(&mut engine, DeliveryOutcome::Delivered, now_ms).len()).collect();
    assert_eq!(begun[0], 20, "what ten milliseconds may have");
    assert!(begun[1..990].iter().all(|count| *count == 2), "{begun:?}");
    assert_eq!(begun.iter().sum::<usize>(), 2_000);
}

#[test]
fn verifications_of_one_host_are_limited() {
    let mut settings = settings();
    settings.subscribe.verifications_per_second = 10;
    let mut engine = Engine::new(Arc::new(settings), 7);
    for number in 0..1_000 {
        let number = engine.request(request(&format!("http://victim.example/{number}"))).expect("taken");
        engine.verify(number);
    }
    let at_once = verify_all(&mut engine, true, 100_000).len();
    assert_eq!(at_once, 100, "ten seconds' worth");
    engine.look(101_000);
    assert_eq!(verify_all(&mut engine, true, 101_000).len(), 10);
}

#[test]
fn events_that_retention_takes_are_accounted_for() {
    let mut engine = engine();
    subscribe(&mut engine, "http://c.example/", 0);
    for seq in 1..=10 {
        publish(&mut engine, seq, TOPIC, 100, 0);
    }
    let sending = engine.next_delivery(0).expect("the first is sent");
    assert_eq!(engine.retain(RETAINED_BYTES, 0), Some(6), "an eighth less than allowed is kept");
    assert!(!engine.account().is_even(), "one is neither kept nor accounted for: it is under way");
    engine.delivered(sending.subscription, sending.seq, DeliveryOutcome::Delivered, 0);
    engine.recorded([sending.subscription], 0);
    assert_eq!(deliver(&mut engine, DeliveryOutcome::Delivered, 0)[0].seq, 7);
    let account = engine.account();
    assert!(account.is_even(), "{account:?}");
    assert_eq!((account.tally.delivered, account.tally.expired, account.pending), (5, 5, 0));
}

#[test]
fn events_that_are_damaged_are_accounted_for() {
    let mut engine = engine();
    subscribe(&mut engine, "http://a.example/", 0);
    subscribe(&mut engine, "http://b.example/", 0);
    for seq in 1..=4 {
        publish(&mut engine, seq, TOPIC, 100, 0);
    }
    // The first subscription gets all events, the second one none yet.
    for _ in 0..4 {
        let sent: Vec<Delivery> = std::iter::from_fn(|| engine.next_delivery(0)).collect();
        let delivery = sent.iter().find(|delivery| delivery.callback.contains("//a.")).expect("it has its turn");
        engine.delivered(delivery.subscription, delivery.seq, DeliveryOutcome::Delivered, 0);
        engine.recorded([delivery.subscription], 0);
    }
    let mut restored = Engine::new(Arc::new(settings()), 7);
    for record in engine.take_records() {
        restored.restore(record).expect("it makes sense");
    }
    for seq in [1, 2, 4] {
        restored.restore_event(seq, TOPIC, 100, 0);
    }
    restored.restored(0);
    let account = restored.account();
    assert!(account.is_even(), "{account:?}");
    assert_eq!((account.audience, account.tally.delivered), (8, 4));
    assert_eq!((account.tally.expired, account.pending), (1, 3));
}

#[test]
fn damage_beside_a_delivery_that_was_not_written_down_is_accounted_for() {
    let mut engine = engine();
    subscribe(&mut engine, "http://a.example/", 0);
    for seq in 1..=4 {
        publish(&mut engine, seq, TOPIC, 100, 0);
    }
    let mut records = Vec::new();
    for _ in 0..4 {
        records.extend(engine.take_records());
        let delivery = engine.next_delivery(0).expect("it has its turn");
        engine.delivered(delivery.subscription, delivery.seq, DeliveryOutcome::Delivered, 0);
        engine.recorded([delivery.subscription], 0);
    }
    // The outcome of the last delivery is lost, and so is one event before it.
    let mut restored = Engine::new(Arc::new(settings()), 7);
    for record in records {
        restored.restore(record).expect("it makes sense");
    }
    for seq in [1, 3, 4] {
        restored.restore_event(seq, TOPIC, 100, 0);
    }
    restored.restored(0);
    let account = restored.account();
    assert!(account.is_even(), "{account:?}");
    assert_eq!((account.audience, account.tally.delivered, account.pending), (4, 3, 1));
}

/// An answer that is not a failure of the host.
const REFUSED: DeliveryOutcome = DeliveryOutcome::Refused { status: 400, wait_ms: None };

/// Settings under which the first failure is final.
fn one_attempt() -> Arc<HubSettings> {
    let delivery = DeliverySettings { retry_for: Duration::ZERO, ..DeliverySettings::default() };
    Arc::new(HubSettings { delivery, ..settings() })
}

/// A subscription with these events as dead letters.
fn with_dead_letters(callback: &str, events: std::ops::RangeInclusive<u64>) -> Engine {
    let mut engine = Engine::new(one_attempt(), 7);
    subscribe(&mut engine, callback, 0);
    for seq in events {
        publish(&mut engine, seq, TOPIC, 100, 0);
        deliver(&mut engine, REFUSED, 0);
    }
    engine
}

fn letters(engine: &Engine) -> Vec<u64> {
    engine.dead_letters(&DeadLetterFilter::default(), (0, 0), 100).iter().map(|letter| letter.event).collect()
}

#[test]
fn dead_letters_are_listed_and_delivered_once_more_before_newer_events() {
    let mut engine = with_dead_letters("http://c.example/1", 1..=3);
    let all = engine.dead_letters(&DeadLetterFilter::default(), (0, 0), 100);
    let letter = all.first().expect("there are three");
    assert_eq!((letter.event, letter.attempts, letter.at_ms), (1, 1, 0));
    assert_eq!((&*letter.topic, letter.failure), (TOPIC, DeliveryFailure::Status(400)));
    assert_eq!(engine.dead_letters(&DeadLetterFilter::default(), (1, letter.subscription), 1)[0].event, 2);
    let one = DeadLetterFilter { event: Some(2), ..DeadLetterFilter::default() };
    assert_eq!(engine.replay(&one, 0).map(|(_, count)| count), Some(1));
    assert_eq!((letters(&engine), engine.account().pending), (vec![1, 3], 1));
    publish(&mut engine, 4, TOPIC, 100, 0);
    let sent = deliver(&mut engine, DeliveryOutcome::Delivered, 0);
    assert_eq!(sent.iter().map(|one| (one.seq, one.is_replay)).collect::<Vec<_>>(), [(2, true), (4, false)]);
    let account = engine.account();
    assert!(account.is_even(), "{account:?}");
    let Tally { delivered, dead_lettered, replayed, .. } = account.tally;
    assert_eq!((account.audience, delivered, dead_lettered, replayed), (4, 2, 3, 1));
    let elsewhere = DeadLetterFilter { topic: Some("http://t.example/2".into()), ..DeadLetterFilter::default() };
    assert_eq!(engine.replay(&elsewhere, 0), None);
}

#[test]
fn a_dead_letter_that_fails_again_is_one_again_after_one_attempt() {
    let mut engine = with_dead_letters("http://c.example/1", 1..=2);
    engine.settings = Arc::new(settings());
    engine.replay(&DeadLetterFilter::default(), 0);
    let sent = deliver(&mut engine, REFUSED, 5);
    assert_eq!(sent.iter().map(|one| one.seq).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(letters(&engine), [1, 2]);
    assert!(engine.account().is_even() && engine.account().tally.dead_lettered == 4);
}

#[test]
fn dead_letters_go_with_their_events_and_with_their_subscription() {
    let mut engine = with_dead_letters("http://c.example/1", 1..=10);
    let some = DeadLetterFilter { event: Some(2), ..DeadLetterFilter::default() };
    engine.replay(&some, 0);
    engine.retain(RETAINED_BYTES, 0);
    assert_eq!(letters(&engine), [7, 8, 9, 10]);
    let account = engine.account();
    assert!(account.is_even(), "{account:?}");
    assert_eq!((account.tally.expired, account.pending), (1, 0), "what was to be delivered once more is gone");
    engine.replay(&DeadLetterFilter { event: Some(7), ..DeadLetterFilter::default() }, 0);
    deliver(&mut engine, DeliveryOutcome::Gone, 0);
    assert_eq!((letters(&engine), engine.subscription_count()), (vec![], 0));
    let account = engine.account();
    assert!(account.is_even(), "{account:?}");
    assert_eq!((account.audience, account.tally.cancelled, account.tally.replayed), (10, 1, 2));
}

#[test]
fn dead_letters_and_their_replays_survive_a_restart() {
    let mut engine = with_dead_letters("http://c.example/1", 1..=4);
    let mut journal = engine.take_records();
    engine.replay(&DeadLetterFilter { event: Some(2), ..DeadLetterFilter::default() }, 0);
    engine.replay(&DeadLetterFilter { event: Some(3), ..DeadLetterFilter::default() }, 0);
    deliver_one(&mut engine);
    journal.extend(engine.take_records());
    for records in [journal, engine.snapshot().collect()] {
        let mut restored = Engine::new(one_attempt(), 7);
        for record in crate::record::decode(&crate::record::whole(&records)).expect("records are read again") {
            restored.restore(record).expect("it makes sense");
        }
        (1..=4).for_each(|seq| restored.restore_event(seq, TOPIC, 100, 0));
        restored.restored(0);
        assert_eq!((letters(&restored), restored.account()), (letters(&engine), engine.account()));
        assert_eq!(restored.next_delivery(0).map(|delivery| (delivery.seq, delivery.is_replay)), Some((3, true)));
    }
}

fn deliver_one(engine: &mut Engine) {
    let delivery = engine.next_delivery(0).expect("one has its turn");
    engine.delivered(delivery.subscription, delivery.seq, DeliveryOutcome::Delivered, 0);
    engine.recorded([delivery.subscription], 0);
}

/// An engine with a subscription whose limit of two events in ten seconds has this consequence, and with three events.
fn limited(excess: ExcessDelivery) -> Engine {
    let mut engine = engine();
    let mut request = request("http://c.example/");
    let window = LimitWindow::Fixed;
    request.limits =
        [DeliveryLimit { key: "k".into(), count: Some(2), bytes: None, window_s: 10, window, excess }].into();
    let number = engine.request(request).expect("taken");
    engine.verify(number);
    verify_all(&mut engine, true, 0);
    (1..=3).for_each(|seq| publish(&mut engine, seq, TOPIC, 100, 0));
    engine
}

#[test]
fn a_delivery_beyond_a_limit_waits_and_a_retry_counts_once() {
    let mut engine = limited(ExcessDelivery::Wait);
    let failed = deliver(&mut engine, DeliveryOutcome::NoAnswer(NoAnswerReason::Unknown), 0);
    assert_eq!(failed.iter().map(|one| one.seq).collect::<Vec<_>>(), [1]);
    let retry_ms = engine.next_due_ms(0).expect("it is tried again");
    engine.look(retry_ms);
    let sent = deliver(&mut engine, DeliveryOutcome::Delivered, retry_ms);
    assert_eq!(sent.iter().map(|one| one.seq).collect::<Vec<_>>(), [1, 2]);
    assert_eq!((engine.account().pending, engine.next_due_ms(retry_ms)), (1, Some(10_000)));
    engine.look(10_000);
    assert_eq!(deliver(&mut engine, DeliveryOutcome::Delivered, 10_000)[0].seq, 3);
    assert!(engine.account().is_even() && engine.account().tally.delivered == 3);
}

#[test]
fn subscriptions_that_share_a_limit_take_turns() {
    let mut engine = engine();
    let window = LimitWindow::Fixed;
    let limit = DeliveryLimit {
        key: "k".into(),
        count: Some(2),
        bytes: None,
        window_s: 10,
        window,
        excess: ExcessDelivery::Wait,
    };
    for number in 0..6 {
        let mut request = request(&format!("http://c.example/{number}"));
        request.limits = [limit.clone()].into();
        let number = engine.request(request).expect("taken");
        engine.verify(number);
    }
    verify_all(&mut engine, true, 0);
    (1..=3).for_each(|seq| publish(&mut engine, seq, TOPIC, 100, 0));
    for round in 0..9 {
        let now_ms = round * 10_000;
        engine.look(now_ms);
        deliver(&mut engine, DeliveryOutcome::Delivered, now_ms);
        let counts: Vec<u64> = engine.subscriptions(None, 0, 10).iter().map(|one| one.tally.delivered).collect();
        let (least, most) = (counts.iter().min(), counts.iter().max());
        assert!(most <= least.map(|least| least + 2).as_ref(), "{counts:?} in round {round}");
    }
    assert_eq!(engine.account().pending, 0);
}

#[test]
fn a_delivery_beyond_a_limit_may_be_left_out() {
    let mut engine = limited(ExcessDelivery::Drop);
    let sent = deliver(&mut engine, DeliveryOutcome::Delivered, 0);
    assert_eq!(sent.iter().map(|one| one.seq).collect::<Vec<_>>(), [1, 2]);
    let Account { audience, tally, pending } = engine.account();
    assert_eq!((audience, tally.delivered, tally.throttled, pending), (3, 2, 1, 0));
    let (entry, _) = engine.subscription(sent[0].subscription).expect("it is there");
    assert_eq!((entry.pending, entry.tally.throttled), (0, 1));
}

#[test]
fn the_latest_attempts_of_a_subscription_are_kept() {
    let mut engine = with_dead_letters("http://c.example/1", 1..=20);
    publish(&mut engine, 21, TOPIC, 100, 3_000);
    let delivery = engine.next_delivery(3_000).expect("it has its turn");
    engine.delivered(delivery.subscription, 21, DeliveryOutcome::Delivered, 3_040);
    let (entry, attempts) = engine.subscription(delivery.subscription).expect("it is there");
    assert_eq!((entry.dead_letters, entry.tally.delivered, entry.pending), (20, 1, 0));
    let latest = DeliveryAttempt { at_ms: 3_000, event: 21, took_ms: 40, is_replay: false, failure: None };
    assert_eq!((attempts.len(), attempts[0], attempts[7].event), (8, latest, 14));
    assert_eq!(attempts[1].failure, Some(DeliveryFailure::Status(400)));
    assert!(engine.subscription(delivery.subscription + 1).is_none());
}

/// The engine's environment: the written records, the subscribers, and a clock.
struct World {
    engine: Engine,
    random: fastrand::Rng,
    now_ms: u64,
    /// Committed events: number and bytes.
    events: Vec<u64>,
    /// Events whose content the journal has removed.
    removed: u64,
    disk: Vec<StateRecord>,
    under_way: Vec<Delivery>,
    /// What each subscription has acknowledged, in order.
    acknowledged: HashMap<u64, Vec<u64>>,
    crashes: u64,
    settings: Arc<HubSettings>,
}

impl World {
    fn new(seed: u64) -> World {
        // Some seeds produce dead letters, and replays of them.
        let settings = if seed.is_multiple_of(2) { Arc::new(settings()) } else { one_attempt() };
        World {
            engine: Engine::new(Arc::clone(&settings), seed),
            random: fastrand::Rng::with_seed(seed),
            now_ms: 1_000_000,
            events: Vec::new(),
            removed: 0,
            disk: Vec::new(),
            under_way: Vec::new(),
            acknowledged: HashMap::new(),
            crashes: 0,
            settings,
        }
    }

    /// Writes the new records, and reports them as written to the engine.
    fn write(&mut self) {
        let records = self.engine.take_records();
        for record in &records {
            match record {
                StateRecord::Marks(marks) => {
                    self.engine.recorded(marks.iter().map(|mark| mark.subscription).collect::<Vec<_>>(), self.now_ms)
                }
                StateRecord::Requested { number, .. } => self.engine.verify(*number),
                _ => {}
            }
        }
        self.disk.extend(records);
    }

    /// Simulates the death of the process: a new engine starts from the written records.
    fn crash(&mut self) {
        self.crashes += 1;
        self.under_way.clear();
        self.engine = Engine::new(Arc::clone(&self.settings), self.random.u64(..));
        for record in crate::record::decode(&crate::record::whole(&self.disk)).expect("records are read again") {
            self.engine.restore(record).expect("records make sense");
        }
        for seq in self.events.clone() {
            if seq > self.removed {
                self.engine.restore_event(seq, TOPIC, 100, 0);
            }
        }
        self.engine.restored(self.now_ms);
        if self.random.bool() {
            self.write();
            self.disk = self.engine.snapshot().collect();
        }
    }

    fn step(&mut self) {
        let now_ms = self.now_ms;
        match self.random.u32(0..100) {
            0..8 => {
                let callback = format!("http://c{}.example/{}", self.random.u32(0..3), self.random.u32(0..4));
                let mut request = request(&callback);
                if self.random.bool() {
                    request.limits = [self.limit()].into();
                }
                if self.random.u32(0..4) == 0 {
                    request.mode = SubscriptionMode::Unsubscribe;
                }
                let _ = self.engine.request(request);
            }
            8..20 => match self.engine.next_callback_request(now_ms) {
                Some(CallbackRequest::Verify(verification)) => {
                    let is_verified = self.random.u32(0..5) > 0;
                    self.engine.verified(verification.number, is_verified, now_ms, now_ms);
                }
                Some(CallbackRequest::Deny(denial)) => self.engine.denied(denial.number),
                None => {}
            },
            20..40 => {
                let seq = self.events.last().map_or(1, |last| last + self.random.u64(1..3));
                self.events.push(seq);
                self.engine.committed(seq, TOPIC, 100, now_ms);
            }
            40..60 => {
                let most = self.random.usize(1..4);
                self.engine.fan_out(most, now_ms);
                self.under_way.extend(self.engine.next_delivery(now_ms));
            }
            60..80 if !self.under_way.is_empty() => self.outcome(),
            80..90 => self.write(),
            90..96 => {
                self.now_ms += self.random.u64(1..5_000);
                self.engine.look(self.now_ms);
            }
            96 => {
                let dropped = self.engine.retain(6 * RETAINED_BYTES, 0);
                self.write();
                self.removed = dropped.unwrap_or(self.removed);
            }
            97 => self.crash(),
            98 => {
                let event = self.random.bool().then(|| self.random.u64(1..=self.events.len() as u64 + 1));
                self.engine.replay(&DeadLetterFilter { event, ..DeadLetterFilter::default() }, now_ms);
            }
            _ => {}
        }
    }

    fn limit(&mut self) -> DeliveryLimit {
        let excess = if self.random.bool() { ExcessDelivery::Wait } else { ExcessDelivery::Drop };
        let window = if self.random.bool() { LimitWindow::Fixed } else { LimitWindow::Sliding };
        let key = self.random.u32(0..3).to_string().into();
        DeliveryLimit { key, count: Some(2), bytes: Some(250), window_s: 5, window, excess }
    }

    fn outcome(&mut self) {
        let index = self.random.usize(..self.under_way.len());
        let Delivery { subscription, seq, is_replay, .. } = self.under_way.swap_remove(index);
        let outcome = match self.random.u32(0..20) {
            0 => DeliveryOutcome::Gone,
            1..4 => DeliveryOutcome::Refused { status: 503, wait_ms: Some(self.random.u64(0..9_000)) },
            4 => DeliveryOutcome::NoAnswer(NoAnswerReason::Unknown),
            _ => {
                if !is_replay {
                    self.acknowledged.entry(subscription).or_default().push(seq);
                }
                DeliveryOutcome::Delivered
            }
        };
        self.engine.delivered(subscription, seq, outcome, self.now_ms);
    }

    fn check(&self) {
        let account = self.engine.account();
        // An event in flight that retention removed is accounted for when its delivery ends.
        let dropped = self.removed.max(self.engine.dropped);
        let is_unsure = |delivery: &&Delivery| delivery.seq <= dropped && !delivery.is_replay;
        let unsure = self.under_way.iter().filter(is_unsure).count();
        let counted = account.tally.total() + account.pending - account.tally.replayed;
        assert!(account.audience >= counted && account.audience <= counted + unsure as u64, "{account:?}");
        let mut repeated = 0;
        for (subscription, seqs) in &self.acknowledged {
            let known: HashSet<u64> = seqs.iter().copied().collect();
            repeated += seqs.len() - known.len();
            assert!(seqs.is_sorted(), "subscription {subscription} got {seqs:?}");
        }
        let subscriptions = self.acknowledged.len() as u64;
        assert!(repeated as u64 <= self.crashes * subscriptions, "{repeated} repeated in {} crashes", self.crashes);
    }

    /// Lets all pending deliveries succeed.
    fn settle(&mut self) {
        for _ in 0..100_000 {
            self.write();
            let now_ms = self.now_ms;
            self.engine.fan_out(1, now_ms);
            self.under_way.extend(self.engine.next_delivery(now_ms));
            while let Some(Delivery { subscription, seq, is_replay, .. }) = self.under_way.pop() {
                if !is_replay {
                    self.acknowledged.entry(subscription).or_default().push(seq);
                }
                self.engine.delivered(subscription, seq, DeliveryOutcome::Delivered, now_ms);
            }
            if self.engine.account().pending == 0 {
                return;
            }
            self.now_ms += 100;
            self.engine.look(self.now_ms);
        }
        panic!("deliveries never end: {:?}", self.engine.account());
    }
}

#[test]
fn engine_loses_nothing_and_keeps_its_account_even_over_random_steps() {
    for seed in 0..200 {
        let mut world = World::new(seed);
        for _ in 0..1_500 {
            world.step();
            world.check();
        }
        world.settle();
        world.check();
        assert!(world.engine.account().is_even(), "seed {seed}");
        assert_eq!(world.engine.in_flight(), 0, "seed {seed}");
    }
}

#[test]
fn topics_without_events_and_subscriptions_are_forgotten() {
    let mut engine = engine();
    for seq in 1..=100 {
        engine.committed(seq, &format!("http://t.example/{seq}"), 10, 0);
    }
    assert_eq!(engine.topics.len(), 100);
    engine.retain(0, 0).expect("all are removed");
    assert_eq!(engine.topics.len(), 0);
    // Nor are they in the records: a subscription after the first event has the account that it had.
    subscribe(&mut engine, "http://c.example/", 0);
    publish(&mut engine, 101, TOPIC, 10, 0);
    let records: Vec<_> = engine.snapshot().collect();
    assert!(records.iter().all(|record| !matches!(record, StateRecord::Position { topics, .. } if topics.len() > 1)));
    let mut restored = Engine::new(Arc::new(settings()), 7);
    records.into_iter().for_each(|record| restored.restore(record).expect("in order"));
    restored.restore_event(101, TOPIC, 10, 0);
    restored.restored(0);
    assert_eq!(restored.account(), engine.account());
    assert_eq!((restored.account().pending, restored.topics.len()), (1, 1));
}
