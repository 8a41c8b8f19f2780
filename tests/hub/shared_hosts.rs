//! Subscriptions whose callbacks share a host: those that fail do not hold up those that work, nor other clients; and hosts of which
//! one is silent. In the clear and over TLS towards the callbacks, with one worker and with two.
//!
//! `--nocapture` shows the figures; with `WEIR_TEST_FULL` latencies are asserted, too.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use weir_testkit::{Answer, Authority, DEADLINE, Origin, Request, TempDir, eventually, is_full, scaled};

use crate::memory::subscribe_at;
use crate::pacing::answered;
use crate::peers::{HubNode, Subscriber, TOPIC};

/// Callbacks that fail, as many as a host may have deliveries at a time and more.
const FAILING: usize = 40;
const EVENTS: usize = 5;
/// The most memory that failing deliveries may add: their connections, with TLS.
const MOST_BYTES: u64 = 32 << 20;
/// By how much the requests of another client may take longer.
const SLOWER: Duration = Duration::from_millis(5);

/// Runs a test in each form.
fn everywhere(test: impl Fn(&Subscriber, usize)) {
    for start in [Subscriber::start, Subscriber::over_tls] {
        for workers in [1, 2] {
            test(&start(), workers);
        }
    }
}

/// A hub, a route `/plain` beside it, and trust in the authority of the tests.
fn node(hub: &str, plain: &Origin, workers: usize) -> HubNode {
    let data = TempDir::new();
    let trusted = data.write("authority.pem", &Authority::of_tests().certificate);
    let rest = format!(
        "worker_processes: {workers}\nssl_trusted_certificate: {}\nroutes:\n- {{ id: hub, uri: /hub, hub_id: h }}\n- {{ id: topics, uri: /t/*, hub_id: h }}\n\
         - {{ id: plain, uri: /plain, upstream: {{ nodes: {{ \"{}\": 1 }} }} }}\n",
        trusted.display(),
        plain.addr()
    );
    HubNode::of(Arc::new(data), hub, &rest)
}

const HUB: &str = "  publish: { anonymous: true }\n  \
                   subscribe: { callbacks: { allow: [127.0.0.0/8] }, verifications_per_second: 100000 }\n";

/// Publishes events to callbacks of one host that fail like this, and to one that works.
fn works_beside(subscriber: &Subscriber, workers: usize, failure: fn() -> Answer) {
    let plain = Origin::serving(|_| Answer::ok("ok"));
    let node = node(HUB, &plain, workers);
    node.subscribe(subscriber, "/works", &[]);
    node.publish("0");
    let works = || subscriber.deliveries().iter().filter(|delivery| delivery.target == "/works").count();
    eventually("the first event has come", DEADLINE, || works() == 1);
    let (quiet, before) = (answered(&node, |count| count >= scaled(50, 2_000)), node.gateway.rss());

    subscriber.answer(move |request: &Request| {
        (request.method == "POST" && request.target.starts_with("/fails")).then(failure)
    });
    for number in 0..FAILING {
        node.subscribe(subscriber, &format!("/fails/{number}"), &[]);
    }
    let mut slowest = quiet;
    for event in 1..=EVENTS {
        node.publish(event.to_string());
        let during = answered(&node, |count| count >= scaled(50, 2_000) && works() > event);
        slowest = [slowest[0].max(during[0]), slowest[1].max(during[1])];
    }
    let failed = subscriber.deliveries().len() - works();
    assert!(failed >= 4, "the others of the host have been tried: {failed}");
    let more = node.gateway.rss().saturating_sub(before);
    println!(
        "{}, workers: {workers}: another client: p50 and p99 {quiet:?} before, {slowest:?} beside; {failed} failed, {} KiB more",
        subscriber.scheme,
        more >> 10
    );
    assert!(more <= MOST_BYTES, "{more} bytes");
    assert!(!is_full() || slowest[1] <= (quiet[1] * 11 / 10).max(quiet[1] + SLOWER), "{quiet:?} {slowest:?}");
}

#[test]
fn a_callback_that_works_gets_events_beside_40_of_its_host_that_answer_500() {
    everywhere(|subscriber, workers| works_beside(subscriber, workers, || Answer::status(500, "")));
}

#[test]
fn a_callback_that_works_gets_events_beside_40_of_its_host_that_are_busy() {
    let busy = || Answer::with(503, "Retry-After: 60\r\n", "");
    everywhere(|subscriber, workers| works_beside(subscriber, workers, busy));
}

#[test]
fn a_callback_that_works_gets_events_beside_40_of_its_host_that_never_answer() {
    everywhere(|subscriber, workers| works_beside(subscriber, workers, || Answer::raw("")));
}

#[test]
fn callbacks_that_fail_twice_for_each_event_get_all_of_them() {
    everywhere(|subscriber, workers| {
        let count = scaled(100, 2_000);
        let (plain, failures) =
            (Origin::serving(|_| Answer::ok("ok")), Mutex::new(HashMap::<(String, Vec<u8>), u32>::new()));
        subscriber.answer(move |request| {
            let number: usize = request.target.strip_prefix("/s/")?.parse().ok()?;
            let mut failures = failures.lock().unwrap_or_else(PoisonError::into_inner);
            let failed = failures.entry((request.target.clone(), request.body.clone())).or_default();
            *failed += 1;
            (number < FAILING && *failed <= 2).then(|| Answer::status(500, ""))
        });
        let hub = "  publish: { anonymous: true }\n  delivery: { retry_first: 100ms }\n  subscribe: { callbacks: { allow: \
                   [127.0.0.0/8] }, verifications_per_second: 1000000, max_unverified_per_client: 100000 }\n";
        let node = node(hub, &plain, workers);
        subscribe_at(&node, subscriber.scheme, &[subscriber.origin.addr(); 10], count);
        (0..EVENTS).for_each(|event| node.publish(event.to_string()));
        let wanted = count * EVENTS;
        eventually("each has each event", Duration::from_secs(scaled(60, 120) as u64), || {
            node.status()["delivered"] == wanted as u64
        });
        assert_eq!(subscriber.deliveries().len(), wanted + 2 * FAILING * EVENTS);
    });
}

/// A host that passes connections on, until it accepts them and says nothing.
struct SilentHost {
    address: SocketAddr,
    is_silent: Arc<AtomicBool>,
}

impl SilentHost {
    fn before(host: SocketAddr) -> SilentHost {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let silent = SilentHost { address: listener.local_addr().expect("it is bound"), is_silent: Arc::default() };
        let is_silent = Arc::clone(&silent.is_silent);
        thread::spawn(move || {
            let mut held = Vec::new();
            for connection in listener.incoming().flatten() {
                if is_silent.load(Relaxed) {
                    held.push(connection);
                } else if let Ok(onward) = TcpStream::connect(host) {
                    pass_on(&connection, &onward, &is_silent).expect("sockets can be shared");
                }
            }
        });
        silent
    }
}

/// Passes bytes on in both directions, until the host is silent: then the connections close.
fn pass_on(one: &TcpStream, other: &TcpStream, is_silent: &Arc<AtomicBool>) -> io::Result<()> {
    for (mut from, mut to) in [(one.try_clone()?, other.try_clone()?), (other.try_clone()?, one.try_clone()?)] {
        from.set_read_timeout(Some(Duration::from_millis(20)))?;
        let is_silent = Arc::clone(is_silent);
        thread::spawn(move || {
            let mut buffer = [0; 16 << 10];
            while !is_silent.load(Relaxed) {
                match from.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(count) if to.write_all(&buffer[..count]).is_ok() => {}
                    Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
                    _ => break,
                }
            }
            let _ = to.shutdown(std::net::Shutdown::Both);
        });
    }
    Ok(())
}

/// Subscribes callbacks of a host, beside one that is subscribed.
fn subscribe_failing(node: &HubNode, host: SocketAddr) {
    let request = || {
        for number in 0..FAILING {
            let callback = format!("https://{host}/{number}");
            let asked = node.form(&[("hub.mode", "subscribe"), ("hub.topic", TOPIC), ("hub.callback", &callback)]);
            assert_eq!(asked.status, 202);
        }
    };
    request();
    eventually("they are subscribed", 3 * DEADLINE, || {
        let status = node.status();
        let is_complete = status["subscriptions"] == 1 + FAILING as u64;
        if status["unverified"] == 0 && !is_complete {
            // A verification comes to nothing if its TLS handshake takes longer than five seconds, as on a busy machine.
            request();
        }
        is_complete
    });
}

#[test]
fn events_reach_a_host_at_once_beside_one_that_never_answers_tls_handshakes() {
    for start in [Subscriber::start, Subscriber::over_tls] {
        for workers in [1, 2] {
            let (plain, other, behind) = (Origin::serving(|_| Answer::ok("ok")), start(), Subscriber::over_tls());
            let node = node(HUB, &plain, workers);
            let silent = SilentHost::before(behind.origin.addr());
            node.subscribe(&other, "/works", &[]);
            let came = || other.deliveries().len();
            let waits = |events: usize| {
                let before = came();
                let mut took: Vec<Duration> = (1..=events)
                    .map(|event| {
                        let began = Instant::now();
                        node.publish("x");
                        // As soon as it shows.
                        while came() < before + event {
                            assert!(began.elapsed() < DEADLINE, "the event does not come");
                            thread::yield_now();
                        }
                        began.elapsed()
                    })
                    .collect();
                took.sort_unstable();
                [took[took.len() / 2], took[took.len() * 99 / 100]]
            };
            let alone = waits(scaled(20, 300));
            subscribe_failing(&node, silent.address);
            silent.is_silent.store(true, Relaxed);
            waits(1);
            // Those that time out are tried again.
            eventually("it has deliveries that wait for the silent host", DEADLINE, || {
                node.status()["in_flight"].as_u64() > Some(0)
            });
            let beside = waits(scaled(20, 300));
            println!(
                "{}, workers: {workers}: p50 and p99 of an event {alone:?} alone, {beside:?} beside",
                other.scheme
            );
            assert!(!is_full() || beside[1] <= (alone[1] * 11 / 10).max(alone[1] + SLOWER), "{alone:?} {beside:?}");
        }
    }
}
