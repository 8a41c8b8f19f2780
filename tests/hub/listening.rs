//! One topic, several ways to listen: callbacks, server-sent events, and long polling.

use weir_testkit::{Client, DEADLINE, eventually, scaled};

use crate::peers::{HubNode, Subscriber};

/// Reads the next events of a stream, so many; each with its id and its data.
fn events(client: &mut Client, count: usize) -> Vec<(u64, String)> {
    let mut next = || client.text_to("\n\n").expect("the stream goes on");
    std::iter::from_fn(|| Some(next()))
        .take_while(|block| !block.is_empty())
        .filter_map(|block| event(&block))
        .take(count)
        .collect()
}

/// The id and the data of an event; none of a comment.
fn event(block: &str) -> Option<(u64, String)> {
    let id = block.lines().find_map(|line| line.strip_prefix("id: "))?;
    let data: Vec<&str> = block.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    Some((id.parse().ok()?, data.join("\n")))
}

fn stream(node: &HubNode, lines: &str) -> Client {
    let mut client = node.gateway.client();
    client.send(format!("GET /t/orders HTTP/1.1\r\nHost: gw.example\r\nAccept: text/event-stream\r\n{lines}\r\n"));
    let head = client.response_head("GET").expect("an answer");
    assert_eq!((head.status, head.headers.get("Content-Type")), (200, Some("text/event-stream")));
    assert!(head.headers.get("Link").is_some_and(|links| links.contains("rel=\"hub\"")));
    client
}

#[test]
fn a_stream_has_events_as_they_come_beside_callbacks() {
    let (node, subscriber) = (HubNode::start(), Subscriber::start());
    node.subscribe(&subscriber, "/", &[]);
    node.publish("before");
    subscriber.wait_deliveries(1);
    let mut client = stream(&node, "");
    node.publish("one");
    node.publish("two\nlines");
    let got = events(&mut client, 2);
    assert_eq!([&*got[0].1, &*got[1].1], ["one", "two\nlines"]);
    assert!(got[0].0 < got[1].0);
    subscriber.wait_deliveries(3);
}

#[test]
fn a_stream_goes_on_after_the_last_event_that_was_seen() {
    let node = HubNode::start();
    for number in 0..200 {
        node.publish(format!("event {number}"));
    }
    let all = events(&mut stream(&node, "Last-Event-ID: earliest\r\n"), 200);
    let texts: Vec<String> = (0..200).map(|number| format!("event {number}")).collect();
    assert_eq!(all.iter().map(|(_, text)| text.clone()).collect::<Vec<_>>(), texts);
    let seen = all[149].0;
    let rest = events(&mut stream(&node, &format!("Last-Event-ID: {seen}\r\n")), 50);
    assert_eq!(rest, all[150..]);
    // The process dies, and the client comes again.
    let node = node.kill();
    let rest = events(&mut stream(&node, &format!("Last-Event-ID: {seen}\r\n")), 50);
    assert_eq!(rest, all[150..]);
    node.publish("after");
    let newest = events(&mut stream(&node, &format!("Last-Event-ID: {}\r\n", all[199].0)), 1);
    assert_eq!(newest[0].1, "after");
}

#[test]
fn a_client_that_does_not_read_holds_nothing_up() {
    let node = HubNode::start();
    let slow = stream(&node, "Last-Event-ID: earliest\r\n");
    let content = "x".repeat(100_000);
    for _ in 0..100 {
        node.publish(&content);
    }
    let mut quick = stream(&node, "Last-Event-ID: earliest\r\n");
    assert_eq!(events(&mut quick, 100).len(), 100);
    drop(slow);
}

/// A listener that does not read is ended, by default after 30 seconds. On a slow disk, events take longer to be published.
pub(crate) const PATIENT: &str = "  listen: { unread_timeout: 1h }\n";

/// The most memory that a stream may cost whose client does not read. Measured: 26 KiB, a part of which is the hub's memory of the
/// events; with a buffer of 64 KiB for each response, 86 KiB.
pub(crate) const MOST_PER_STREAM: u64 = 56 << 10;

#[test]
fn many_clients_that_do_not_read_hold_little_memory() {
    let node = HubNode::with(PATIENT);
    let count = scaled(200, 1_000);
    let mut stalled: Vec<Client> = (0..count).map(|_| stream(&node, "")).collect();
    let before = node.gateway.rss();
    let content = "x".repeat(4_000);
    let mut quick = stream(&node, "");
    // More than the sockets of a client and the gateway take, so that every stream's buffer is full.
    for _ in 0..6 {
        // Together, since each waits for the disk.
        std::thread::scope(|scope| {
            for _ in 0..10 {
                scope.spawn(|| (0..10).for_each(|_| node.publish(&content)));
            }
        });
        assert_eq!(events(&mut quick, 100).len(), 100);
    }
    let grown = node.gateway.rss().saturating_sub(before);
    println!("{count} clients that do not read: {} bytes each", grown / count as u64);
    assert!(grown / count as u64 <= MOST_PER_STREAM, "{} bytes for each of {count} clients", grown / count as u64);
    // They have lost nothing.
    let ids: Vec<u64> = events(&mut stalled[0], 600).iter().map(|(id, _)| *id).collect();
    assert_eq!(ids.len(), 600);
    assert!(ids.windows(2).all(|two| two[0] < two[1]), "each event once and in order: {ids:?}");
}

#[test]
fn a_poll_waits_for_the_next_event() {
    let node = HubNode::start();
    let none = node.send("GET", "/t/orders?after=earliest&wait=0", "", b"");
    assert_eq!(none.status, 204);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| node.send("GET", "/t/orders?after=earliest&wait=50", "", b""));
        node.publish_as("application/json", "1");
        let answer = waiting.join().expect("it is answered");
        assert_eq!((answer.status, &*answer.text()), (200, "1"));
        assert_eq!(answer.headers.get("Content-Type"), Some("application/json"));
        let seen = answer.headers.get("Event-Id").expect("its id").to_owned();
        node.publish("2");
        let next = node.send("GET", &format!("/t/orders?after={seen}&wait=50"), "", b"");
        assert_eq!(next.text(), "2");
    });
    let none = node.send("GET", "/hub", "", b"");
    assert_eq!(none.status, 404);
    let topics = "no topic of this hub has the path of the request, `/hub` (host `gw.example`); its option `topics`";
    assert!(none.text().contains(topics), "{}", none.text());
    assert!(!none.text().contains("http://gw.example/t/"), "topics of others are not told: {}", none.text());
}

#[test]
fn invalid_listening_request_is_refused_with_its_place() {
    let node = HubNode::start();
    node.publish("1");
    let seen = node.send("GET", "/t/orders", "", b"").headers.get("Event-Id").expect("its id").to_owned();
    let beyond = format!("after={}", seen.parse::<u64>().expect("a number") + 1);
    let told = format!("`{beyond}` is beyond the newest event of this hub, {seen}");
    let stream = "Accept: text/event-stream\r\n";
    for (query, lines, problem) in [
        ("after=soon", "", "the query argument `after` is neither an event id (a number) nor `earliest`"),
        (&*format!("{beyond}&wait=20"), "", &*told),
        ("after=earliest&wait=abc", "", "the query argument `wait` is not a number of seconds, 0 to 50"),
        ("after=earliest&wait=-1", "", "the query argument `wait` is not a number of seconds, 0 to 50"),
        ("after=earliest&wait=", "", "the query argument `wait` is not a number of seconds, 0 to 50"),
        ("after=earliest&after=1", "", "the query argument `after` is given twice"),
        ("after=%ff", "", "the query argument `after` is not UTF-8"),
        ("", &*format!("{stream}Last-Event-ID: abc\r\n"), "`Last-Event-ID` is neither an event id"),
        ("last_event_id=abc", stream, "the query argument `last_event_id` is neither an event id"),
    ] {
        let answer = node.send("GET", &format!("/t/orders?{query}"), lines, b"");
        assert_eq!(answer.status, 400, "{query} {lines}: {}", answer.text());
        assert!(answer.text().contains(problem), "{query} {lines}: {}", answer.text());
    }
    // As a client does that has seen nothing yet.
    drop(self::stream(&node, "Last-Event-ID: \r\n"));
}

#[test]
fn a_stream_ends_when_the_hub_does() {
    let node = HubNode::start();
    let mut client = stream(&node, "");
    node.gateway.signal(weir_testkit::Signal::TERM);
    eventually("the stream has ended", DEADLINE, || match client.chunk() {
        Ok(piece) => piece.is_empty(),
        Err(_) => true,
    });
}
