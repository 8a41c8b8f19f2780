//! Listeners that do not read, while their topic has 10 MB of events a second: what they cost is bounded, and others are served.
//!
//! With `WEIR_TEST_FULL` there are 1,000 of them, for 30 seconds; `--nocapture` shows the figures:
//! `WEIR_TEST_FULL=1 cargo test --release --workspace --test hub stalled -- --nocapture`

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use weir_testkit::{Client, is_full, scaled};

use crate::listening::MOST_PER_STREAM;
use crate::peers::{HubNode, Subscriber};

const EVENT_BYTES: usize = 100_000;
/// With events of this size, 10 MB a second.
const PAUSE: Duration = Duration::from_millis(10);
/// Each waits for the disk.
const PUBLISHERS: usize = 8;
/// The hub's cache of events, and what a journal, listeners that read, and the allocator need.
const MOST_SHARED: u64 = (64 + 64) << 20;

/// A listener that sends its request and never reads. Every fourth one has a WebSocket; every other one wants all that is stored,
/// so that they stand at different events.
fn stalled(node: &HubNode, number: usize) -> Client {
    let mut client = Client::connect_narrow(node.gateway.addr()).expect("a connection");
    let position = if number.is_multiple_of(2) { "?last_event_id=earliest" } else { "" };
    let kind = match number % 4 {
        0 => {
            "Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        }
        _ => "Accept: text/event-stream\r\n",
    };
    client.send(format!("GET /t/orders{position} HTTP/1.1\r\nHost: gw.example\r\n{kind}\r\n"));
    client
}

/// Reads a stream until it has had so many events; returns what it has read.
fn read(mut client: Client, events: usize) -> u64 {
    let (mut ends, mut bytes, mut last) = (0, 0, 0);
    while ends < events {
        let piece = client.chunk().expect("the stream goes on");
        bytes += piece.len() as u64;
        // An event ends with an empty line, and contains none.
        for byte in piece {
            ends += usize::from(byte == b'\n' && last == b'\n');
            last = byte;
        }
    }
    bytes
}

#[test]
fn listeners_that_do_not_read_cost_little_on_a_busy_topic() {
    let (count, events) = (scaled(100, 1_000), scaled(60, 3_000));
    let (node, subscriber) = (HubNode::start(), Subscriber::start());
    node.subscribe(&subscriber, "/", &[]);
    let mut quick = node.gateway.client();
    quick.send("GET /t/orders HTTP/1.1\r\nHost: gw.example\r\nAccept: text/event-stream\r\n\r\n");
    assert_eq!(quick.response_head("GET").expect("an answer").status, 200);
    let mut clients: Vec<Client> = (0..count / 2).map(|number| stalled(&node, number)).collect();
    let (before, content) = (node.gateway.rss(), "x".repeat(EVENT_BYTES));
    let (next, most, began) = (AtomicUsize::new(0), AtomicU64::new(0), Instant::now());
    let took = std::thread::scope(|scope| {
        // Two line ends are those of `retry`.
        let reading = scope.spawn(|| read(quick, events + 1));
        for _ in 0..PUBLISHERS {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Relaxed);
                    if number >= events {
                        return;
                    }
                    // The rate of the publishers, not a wait for an event.
                    let due = PAUSE * number as u32;
                    std::thread::park_timeout(due.saturating_sub(began.elapsed()));
                    node.publish(&content);
                    if number.is_multiple_of(16) {
                        most.fetch_max(node.gateway.rss(), Relaxed);
                    }
                }
            });
        }
        // The others come while events do.
        for number in count / 2..count {
            while next.load(Relaxed) < events && next.load(Relaxed) < (number - count / 2) * events / count {
                std::thread::park_timeout(PAUSE);
            }
            clients.push(stalled(&node, number));
        }
        assert!(reading.join().expect("the stream goes on") > (events * EVENT_BYTES) as u64);
        began.elapsed()
    });
    // Those who read have had everything, and requests are answered.
    assert_eq!(node.settled()["delivered"], events as u64);
    assert_eq!(node.send("GET", "/t/orders", "", b"").body.len(), EVENT_BYTES);
    let (most, volume) = (most.load(Relaxed).max(node.gateway.rss()), (events * EVENT_BYTES) as f64 / 1e6);
    let grown = most.saturating_sub(before);
    println!("{count} stalled listeners, {volume:.0} MB in {took:?}: {} KiB grown", grown >> 10);
    let allowed = MOST_SHARED + count as u64 * MOST_PER_STREAM;
    assert!(grown <= allowed, "grown by {grown} bytes, and {allowed} are allowed");
    assert!(!is_full() || clients.len() == 1_000);
}
