//! Conservation: whatever subscribers do, and however often the hub is killed, every event that was acknowledged ends for each
//! subscription of its audience as exactly one of delivered, dead-lettered, cancelled or pending, as the subscribers have counted
//! themselves, and dead letters can still be delivered.
//!
//! `make test` runs it at a small scale: two processors that other tests share do not deliver 100,000 events a second. With
//! `WEIR_TEST_FULL` it is the events of ten minutes at 100 a second for 1,000 subscribers, published as fast as the hub takes them,
//! with 200 kills; what is not delivered by then stays pending, and is in the account as that.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};
use weir_testkit::{Client, eventually, is_full, scaled};

use crate::api::{self, Api, EDITOR, admin_addr};
use crate::peers::{HubNode, TOPIC, encoded};
use crate::receivers::{Receivers, STEADY, content, lock};

/// Longer than any fact takes on a machine that is busy.
const SETTLED: Duration = Duration::from_secs(300);
/// After so many kills steady subscribers leave and come back.
const LEAVE_EVERY: usize = 4;
const FREEZES: u32 = 3;

/// Publishes on one connection, and knows what was acknowledged.
struct Publisher {
    /// Of the hub that lives.
    address: Mutex<SocketAddr>,
    /// So many events may be acknowledged by now.
    credit: AtomicU64,
    /// The number of the next attempt. An event whose answer is lost is published again with another number.
    next: AtomicU64,
    acknowledged: Mutex<Vec<u64>>,
}

impl Publisher {
    fn start(node: &HubNode, events: u64) -> (Arc<Publisher>, JoinHandle<()>) {
        let publisher = Arc::new(Publisher {
            address: Mutex::new(node.gateway.addr()),
            credit: AtomicU64::new(0),
            next: AtomicU64::new(0),
            acknowledged: Mutex::default(),
        });
        let own = Arc::clone(&publisher);
        (publisher, std::thread::spawn(move || own.run(events)))
    }

    fn count(&self) -> u64 {
        lock(&self.acknowledged).len() as u64
    }

    fn run(&self, events: u64) {
        let mut client = None;
        while self.count() < events {
            eventually("more events are wanted", SETTLED, || self.count() < self.credit.load(Relaxed));
            let Some(open) = client.as_mut() else {
                client = Client::try_connect(*lock(&self.address)).ok();
                continue;
            };
            let number = self.next.fetch_add(1, Relaxed);
            match publish(open, number) {
                Some(202) => lock(&self.acknowledged).push(number),
                Some(status) => assert_eq!(status, 503, "the hub may be opening"),
                None => client = None,
            }
        }
    }

    /// Lets so many more be published.
    fn grant(&self, count: u64) -> u64 {
        self.credit.fetch_add(count, Relaxed) + count
    }

    fn wait(&self, count: u64) {
        eventually("events are acknowledged", SETTLED, || self.count() >= count);
    }
}

fn publish(client: &mut Client, number: u64) -> Option<u16> {
    let (target, content) = (format!("/hub?hub.mode=publish&hub.topic={}", encoded(TOPIC)), content(number));
    let length = content.len();
    let head = format!("POST {target} HTTP/1.1\r\nHost: gw.example\r\nContent-Length: {length}\r\n\r\n");
    client.ask([head.as_bytes(), &content].concat()).ok().map(|answer| answer.status)
}

fn callback(hosts: &[SocketAddr], subscriber: usize) -> String {
    format!("http://{}/s/{subscriber}", hosts[Receivers::host_of(subscriber)])
}

/// Subscribes those that are wanted, and waits until all are.
fn subscribe(node: &HubNode, hosts: &[SocketAddr], wanted: impl Iterator<Item = usize>, all: usize) {
    for subscriber in wanted {
        let callback = callback(hosts, subscriber);
        let form = [("hub.mode", "subscribe"), ("hub.topic", TOPIC), ("hub.callback", &*callback)];
        assert_eq!(node.form(&form).status, 202);
    }
    subscribed(node, all);
}

fn subscribed(node: &HubNode, count: usize) {
    eventually("as many subscriptions as wanted", SETTLED, || node.status()["subscriptions"] == count as u64);
}

/// How long an event is tried. Deliveries wait long for an answer, so that one that is late on a busy machine is not taken for none.
fn hub(retry_for: &str) -> String {
    format!(
        "  publish: {{ anonymous: true }}\n  \
         delivery: {{ timeout: 8s, retry_first: 20ms, retry_max: 200ms, retry_for: {retry_for} }}\n  \
         subscribe: {{ callbacks: {{ allow: [127.0.0.0/8] }}, verifications_per_second: 100000, \
         max_unverified_per_client: 100000, standard_webhooks: true }}\n"
    )
}

#[test]
fn every_delivery_is_accounted_for_over_failures_and_kills() {
    let (count, events, kills) = (scaled(200, 1_000), scaled(500, 60_000) as u64, scaled(10, 200));
    let receivers = Receivers::new(count, events / 10);
    let hosts = receivers.serve();
    let mut node = HubNode::administered(&hub(if is_full() { "10s" } else { "500ms" }));
    subscribe(&node, &hosts, 0..count, count);
    let (publisher, publishing) = Publisher::start(&node, events);
    let per_life = events / (kills as u64 + 1);
    let mut cancelled = 0;
    for life in 0..kills {
        let granted = publisher.grant(per_life);
        publisher.wait(granted - per_life / 2);
        node = node.kill();
        receivers.life.fetch_add(1, Relaxed);
        *lock(&publisher.address) = node.gateway.addr();
        // None is lost. One whose record was not written yet is verified again.
        subscribed(&node, count);
        if life % LEAVE_EVERY == 0 {
            publisher.wait(granted);
            cancelled += leave_and_return(&node, &receivers, &hosts, &publisher);
        }
    }
    publisher.grant(events);
    publishing.join().expect("the publisher ends");
    receivers.freezes.store(FREEZES, Relaxed);
    receivers.is_calm.store(true, Relaxed);
    let ended = Ended { node, receivers, publisher, cancelled, kills };
    if is_full() { ended.check_pending() } else { ended.check() }
}

/// Steady subscribers end their subscriptions by 410 to one more event, and subscribe again. Returns how many.
fn leave_and_return(node: &HubNode, receivers: &Receivers, hosts: &[SocketAddr], publisher: &Publisher) -> u64 {
    let count = receivers.received.len();
    receivers.gone_from.store(publisher.next.load(Relaxed), Relaxed);
    publisher.wait(publisher.grant(1));
    subscribed(node, count - STEADY);
    receivers.gone_from.store(u64::MAX, Relaxed);
    subscribe(node, hosts, 0..STEADY, count);
    STEADY as u64
}

/// All events are published.
struct Ended {
    node: HubNode,
    receivers: Arc<Receivers>,
    publisher: Arc<Publisher>,
    cancelled: u64,
    kills: usize,
}

/// The account of a hub.
struct AccountShown(Value);

impl AccountShown {
    fn count(&self, name: &str) -> u64 {
        self.0[name].as_u64().unwrap_or_else(|| panic!("no number {name}: {}", self.0))
    }

    fn assert_even(&self) {
        let outcomes = ["delivered", "dead_lettered", "expired", "cancelled", "pending"];
        let sum: u64 = outcomes.iter().map(|name| self.count(name)).sum();
        assert_eq!(self.count("audience") + self.count("replayed"), sum, "{}", self.0);
    }
}

impl Ended {
    fn account(&self) -> AccountShown {
        let account = AccountShown(self.node.status());
        account.assert_even();
        account
    }

    /// Everything that was given up, by subscriber and event.
    fn dead_letters(&self) -> Vec<(usize, u64)> {
        let mut api = Api::with_key(admin_addr(&self.node.gateway), EDITOR);
        let (mut letters, mut after) = (Vec::new(), String::new());
        loop {
            let page = api.get(&format!("/weir/v1/hubs/h/dead-letters?count=1000{after}"));
            letters.extend(page["list"].as_array().expect("a list").iter().map(|letter| {
                let subscriber =
                    letter["callback"].as_str().and_then(|callback| callback.rsplit('/').next()?.parse().ok());
                (subscriber.expect("it is in the callback"), letter["event"].as_u64().expect("a number"))
            }));
            match page["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => return letters,
            }
        }
    }

    /// All is delivered or given up, as the subscribers have counted; then what was given up is delivered after all.
    fn check(self) {
        eventually("nothing is pending", SETTLED, || self.node.status()["pending"] == 0);
        self.receivers.assert_no_faults();
        let account = self.account();
        let published: HashMap<u64, u64> = lock(&self.receivers.published).clone();
        let numbers: std::collections::HashSet<u64> = published.values().copied().collect();
        let lost = lock(&self.publisher.acknowledged).iter().filter(|number| !numbers.contains(number)).count();
        assert_eq!((lost, numbers.len()), (0, published.len()), "what was acknowledged came, each event once");
        let letters = self.dead_letters();
        let unsure = self.unsure(&letters);
        let count = self.receivers.received.len() as u64;
        assert_eq!(account.count("audience"), published.len() as u64 * count);
        assert_eq!(account.count("delivered"), self.receivers.accepted() - unsure);
        assert_eq!(account.count("dead_lettered"), letters.len() as u64);
        assert_eq!((account.count("cancelled"), account.count("expired")), (self.cancelled, 0));
        assert!(letters.len() as u64 > count / 2 && self.cancelled > 0, "each kind of end is in it: {}", account.0);
        self.check_subscribers(&published, &letters);
        let replayed = self.replay(&letters);
        let account = replayed.account();
        assert_eq!(account.count("replayed"), letters.len() as u64);
        assert_eq!(account.count("dead_lettered"), letters.len() as u64);
        assert_eq!(
            replayed.receivers.accepted() + replayed.cancelled,
            account.count("audience"),
            "everybody has everything"
        );
        assert_eq!(replayed.dead_letters(), []);
        replayed.receivers.assert_no_faults();
    }

    /// Given up, although the subscriber has it: the hub did not get its answer.
    fn unsure(&self, letters: &[(usize, u64)]) -> u64 {
        let has = |(subscriber, event): &&(usize, u64)| lock(&self.receivers.received[*subscriber]).has(*event);
        letters.iter().filter(has).count() as u64
    }

    fn check_subscribers(&self, published: &HashMap<u64, u64>, letters: &[(usize, u64)]) {
        let mut given_up: HashMap<usize, Vec<u64>> = HashMap::new();
        letters.iter().for_each(|(subscriber, event)| given_up.entry(*subscriber).or_default().push(*event));
        for (subscriber, received) in self.receivers.received.iter().enumerate() {
            let received = lock(received);
            let missing: Vec<u64> = published.keys().copied().filter(|event| !received.has(*event)).collect();
            if subscriber >= STEADY {
                let own = given_up.get(&subscriber).map(Vec::as_slice).unwrap_or_default();
                assert!(missing.iter().all(|event| own.contains(event)), "{subscriber} has lost some of {missing:?}");
            }
        }
        self.check_repeats();
    }

    /// Repeated is what was in flight when the hub was killed, and what the subscriber has not answered.
    fn check_repeats(&self) {
        for (subscriber, received) in self.receivers.received.iter().enumerate() {
            let received = lock(received);
            let most = self.kills + received.cut;
            assert!(received.repeated <= most, "{subscriber}: {} repeated, {most} at most", received.repeated);
        }
    }

    /// Every dead letter is delivered once more, although the hub is killed at once.
    fn replay(self, letters: &[(usize, u64)]) -> Ended {
        self.receivers.is_healed.store(true, Relaxed);
        let mut api = Api::with_key(admin_addr(&self.node.gateway), EDITOR);
        let answer = api.ask("POST", "/weir/v1/hubs/h/replay", "", r#"{"all":true}"#);
        assert_eq!(api::json(&answer), json!({ "replayed": letters.len() }));
        let node = self.node.kill();
        eventually("nothing is pending", SETTLED, || node.status()["pending"] == 0);
        Ended { node, ..self }
    }

    /// What is not delivered yet stays pending: subscribers accept nothing any more but what they have accepted before, and
    /// nothing is given up any more.
    fn check_pending(self) {
        self.node.reconfigure(&hub("24h"));
        self.receivers.is_closed.store(true, Relaxed);
        eventually("the hub knows what was accepted", SETTLED, || {
            self.account().count("delivered") == self.receivers.accepted() - self.unsure(&self.dead_letters())
        });
        self.receivers.assert_no_faults();
        let account = self.account();
        let (stored, count) = (account.count("stored_events"), self.receivers.received.len() as u64);
        assert!((self.publisher.count()..=self.publisher.next.load(Relaxed)).contains(&stored));
        assert_eq!(account.count("audience"), stored * count);
        assert_eq!(account.count("dead_lettered"), self.dead_letters().len() as u64);
        assert_eq!((account.count("cancelled"), account.count("expired")), (self.cancelled, 0));
        self.check_repeats();
    }
}
