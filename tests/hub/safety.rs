//! What callers may not do with a hub: reach into the node's own network, flood others, or take over what is not theirs.

use std::net::Ipv4Addr;

use std::sync::Arc;

use weir_testkit::{Answer, Client, DEADLINE, Dns, TempDir, eventually, eventually_some, free_port};

use crate::peers::{HubNode, Subscriber, TOPIC};

fn subscribe(node: &HubNode, callback: &str) -> u16 {
    node.form(&[("hub.mode", "subscribe"), ("hub.topic", TOPIC), ("hub.callback", callback)]).status
}

/// Nothing outside loopback is allowed here.
const NOTHING_ALLOWED: &str = "  publish: { anonymous: true }\n  subscribe: { verifications_per_second: 1000 }\n";

#[test]
fn callbacks_into_private_networks_are_never_connected_to() {
    let (node, subscriber) = (HubNode::with(NOTHING_ALLOWED), Subscriber::start());
    let port = subscriber.origin.addr().port();
    for host in [
        "127.0.0.1",
        "localhost",
        "localhost.",
        "127.1",
        "0x7f.1",
        "2130706433",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "0.0.0.0",
        "[::]",
    ] {
        // It may be accepted: the answer must not depend on what comes of it.
        subscribe(&node, &format!("http://{host}:{port}/"));
    }
    // Nor metadata services and private networks, to which no connection may even be tried.
    for host in ["169.254.169.254", "10.0.0.1", "192.168.1.1", "172.16.0.1", "100.64.0.1"] {
        subscribe(&node, &format!("http://{host}/"));
    }
    eventually("all have come to nothing", DEADLINE, || node.status()["unverified"] == 0);
    assert_eq!(node.status()["subscriptions"], 0);
    assert_eq!(subscriber.origin.connections(), 0);
    node.gateway.wait_stderr("why", |line| {
        line.contains("was not verified, callback at http://") && line.contains("address of the host are not allowed")
    });
    assert!(failed_verifications(&node, "address_denied") >= 10.0, "{:?}", node.metrics());
}

fn failed_verifications(node: &HubNode, reason: &str) -> f64 {
    node.metrics().sum("weir_hub_failed_verifications_total", &[&format!("reason=\"{reason}\"")])
}

#[test]
fn a_callback_that_sends_interim_responses_for_ever_is_given_up() {
    let (node, endless, other) = (HubNode::start(), Subscriber::start(), Subscriber::start());
    endless.answer(|_| Some(Answer::raw("HTTP/1.1 102 Processing\r\n\r\n".repeat(100_000))));
    subscribe(&node, &endless.url("/"));
    node.subscribe(&other, "/", &[]);
    node.publish("one");
    other.wait_deliveries(1);
    // As an answer that breaks the protocol, not as one that takes too long.
    eventually("it is counted", DEADLINE, || failed_verifications(&node, "broken") == 1.0);
}

#[test]
fn a_callback_that_does_not_confirm_is_logged_and_counted() {
    let (node, subscriber) = (HubNode::start(), Subscriber::start());
    subscriber.answer(|request| (request.method == "GET").then(|| Answer::status(404, "")));
    subscribe(&node, &subscriber.url("/hidden"));
    eventually("the status is counted", DEADLINE, || failed_verifications(&node, "status") == 1.0);
    let line = node.gateway.wait_stderr("why", |line| line.contains("was not verified"));
    assert!(line.contains(TOPIC) && line.ends_with(": status 404") && !line.contains("hidden"), "{line}");
    subscriber.answer(|request| (request.method == "GET").then(|| Answer::ok("something else")));
    subscribe(&node, &subscriber.url("/"));
    eventually("the challenge is counted", DEADLINE, || failed_verifications(&node, "wrong_challenge") == 1.0);
    subscribe(&node, &format!("http://127.0.0.1:{}/", free_port()));
    eventually("no connection is counted", DEADLINE, || failed_verifications(&node, "connect") == 1.0);
}

#[test]
fn a_name_that_begins_to_mean_loopback_is_not_delivered_to() {
    let (dns, subscriber) = (Dns::start(), Subscriber::start());
    // Allowed is one address, and the name has another one later.
    dns.addresses("callback.test", 0, [Ipv4Addr::new(127, 0, 0, 1)]);
    let hub = "  publish: { anonymous: true }\n  subscribe: { callbacks: { allow: [127.0.0.1/32] } }\n  \
               delivery: { retry_first: 10ms, retry_max: 10ms, retry_for: 200ms }\n";
    let rest = format!("dns_resolver: [\"{}\"]\ndns_resolver_valid: 50ms\n", dns.addr());
    let node = HubNode::of(Arc::new(TempDir::new()), hub, &rest);
    let port = subscriber.origin.addr().port();
    assert_eq!(subscribe(&node, &format!("http://callback.test:{port}/")), 202);
    eventually("it is verified", DEADLINE, || node.status()["subscriptions"] == 1);
    node.publish("one");
    subscriber.wait_deliveries(1);
    node.settled();
    // Another address of this machine, which is not allowed. Connections that stand were checked when they were made.
    let elsewhere = std::net::TcpListener::bind((Ipv4Addr::new(127, 0, 0, 2), port)).expect("the port is free there");
    elsewhere.set_nonblocking(true).expect("it can");
    dns.addresses("callback.test", 0, [Ipv4Addr::new(127, 0, 0, 2)]);
    subscriber.answer(|_| Some(weir_testkit::Answer::status(500, "").then_close()));
    node.publish("two");
    eventually("it is given up", DEADLINE, || node.status()["dead_lettered"] == 1);
    assert!(elsewhere.accept().is_err(), "no connection was made");
}

#[test]
fn redirects_lead_nowhere() {
    let (node, subscriber, inside) = (HubNode::start(), Subscriber::start(), Subscriber::start());
    let away = inside.url("/");
    node.subscribe(&subscriber, "/delivery", &[]);
    subscriber.answer(move |_| Some(weir_testkit::Answer::with(307, &format!("Location: {away}\r\n"), "")));
    subscribe(&node, &subscriber.url("/verification"));
    eventually("it came to nothing", DEADLINE, || node.status()["unverified"] == 0);
    node.publish("one");
    subscriber.wait_deliveries(1);
    assert_eq!(inside.origin.connections(), 0);
}

#[test]
fn a_host_is_not_flooded_with_verifications() {
    let subscribe_settings = "  subscribe: { callbacks: { allow: [127.0.0.0/8] }, verifications_per_second: 1 }\n";
    let (node, subscriber) = (HubNode::with(subscribe_settings), Subscriber::start());
    let begin = std::time::Instant::now();
    for number in 0..200 {
        assert_eq!(subscribe(&node, &subscriber.url(&format!("/{number}"))), 202);
    }
    eventually("the first were asked", DEADLINE, || subscriber.verifications().len() >= 10);
    let asked = subscriber.verifications().len() as u64;
    assert!(asked <= 11 + begin.elapsed().as_secs(), "{asked} within {:?}", begin.elapsed());
}

/// The verifications of ten seconds, which a host gets at once.
const BURST: usize = 10;

#[test]
fn a_subscriber_whose_verification_waits_for_the_rate_of_its_host_is_told_how_long() {
    let subscribe_settings = "  subscribe: { callbacks: { allow: [127.0.0.0/8] }, verifications_per_second: 1 }\n";
    let (node, subscriber) = (HubNode::with(subscribe_settings), Subscriber::start());
    let ask = &|number: usize| {
        let callback = subscriber.url(&format!("/{number}"));
        node.form(&[("hub.mode", "subscribe"), ("hub.topic", TOPIC), ("hub.callback", &callback)])
    };
    let wait_s =
        |answer: &weir_testkit::Response| answer.headers.get("Retry-After").and_then(|field| field.parse().ok());
    let first = ask(0);
    assert_eq!((first.status, wait_s(&first), &*first.text()), (202, Some(1), ""), "it is verified at once");
    // Several at once: each waits for the disk, which may be slower than the rate.
    let told = eventually_some("the burst is used up", DEADLINE, || {
        let answers = std::thread::scope(|scope| {
            let asking: Vec<_> = (1..=BURST).map(|number| scope.spawn(move || ask(number))).collect();
            asking.into_iter().map(|one| one.join().expect("an answer")).collect::<Vec<_>>()
        });
        answers.into_iter().find(|answer| !answer.text().is_empty())
    });
    assert_eq!(told.status, 202);
    let seconds = wait_s(&told).expect("a number of seconds");
    assert!(told.text().contains(&format!("within about {seconds} s")), "{seconds}: {}", told.text());
    let rate = "s: its host gets verifications at a rate of at most 1 per second.\n";
    assert!(told.text().starts_with("The callback will be verified within about ") && told.text().ends_with(rate));
}

#[test]
fn one_client_cannot_keep_the_hub_busy_with_verifications() {
    let hub = "  publish: { anonymous: true }\n  \
               subscribe: { callbacks: { allow: [127.0.0.0/8] }, max_unverified_per_client: 3 }\n";
    let rest = "routes: [{ id: hub, uri: /hub, hub_id: h, plugins: { key-auth: {} } }, { id: open, uri: /open, hub_id: h }]\n\
                consumers:\n- { username: jack, plugins: { key-auth: { key: k1 } } }\n\
                - { username: jill, plugins: { key-auth: { key: k2 } } }\n";
    let node = HubNode::of(Arc::new(TempDir::new()), hub, rest);
    // Its connections are opened by the system, and nothing is read from them.
    let silent = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let port = silent.local_addr().expect("it is bound").port();
    let mut next = 0;
    let mut ask = |source: Ipv4Addr, target: &str, key: &str| {
        next += 1;
        let callback = crate::peers::encoded(&format!("http://127.0.0.1:{port}/{next}"));
        let form = format!("hub.mode=subscribe&hub.topic={}&hub.callback={callback}", crate::peers::encoded(TOPIC));
        let mut client = Client::connect_from(source, node.gateway.addr()).expect("a connection");
        let head = format!(
            "POST {target} HTTP/1.1\r\nHost: gw.example\r\napikey: {key}\r\n\
             Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n",
            form.len()
        );
        let answer = client.ask(head + &form).expect("an answer");
        (answer.status, answer.headers.get("Retry-After").map(str::to_owned))
    };
    let (here, there) = (Ipv4Addr::new(127, 0, 0, 1), Ipv4Addr::new(127, 0, 0, 2));
    let refused = (429, Some("10".to_owned()));
    for (source, target, key) in [(here, "/hub", "k1"), (here, "/hub", "k2"), (here, "/open", ""), (there, "/open", "")]
    {
        for _ in 0..3 {
            assert_eq!(ask(source, target, key).0, 202, "{source} {target} {key}");
        }
        assert_eq!(ask(source, target, key), refused, "{source} {target} {key}");
    }
    assert_eq!(ask(there, "/hub", "k1"), refused, "a consumer is the same client at every address");
    let metrics = node.metrics();
    let count = metrics.get("weir_hub_refused_requests_total{hub=\"h\",reason=\"unverified_of_client\"}");
    assert_eq!((count, node.status()["unverified"].as_u64()), (Some(5.0), Some(12)));
    // The verifications fail, and their client may ask for others.
    drop(silent);
    eventually("none waits any more", DEADLINE, || node.status()["unverified"] == 0);
    assert_eq!(ask(here, "/hub", "k1").0, 202);
}

#[test]
fn a_subscription_belongs_to_the_consumer_that_made_it() {
    let hub = "  publish: { anonymous: true }\n  \
               subscribe: { callbacks: { allow: [127.0.0.0/8] }, consumers: [jack, jill], max_per_consumer: 2 }\n";
    let rest = "routes: [{ id: hub, uri: /hub, hub_id: h, plugins: { key-auth: {} } }]\n\
                consumers:\n- { username: jack, plugins: { key-auth: { key: k1 } } }\n\
                - { username: jill, plugins: { key-auth: { key: k2 } } }\n- { username: joe, plugins: { key-auth: { key: k3 } } }\n";
    let (node, subscriber) = (HubNode::of(Arc::new(TempDir::new()), hub, rest), Subscriber::start());
    let ask = |key: &str, mode: &str, path: &str| {
        let callback = crate::peers::encoded(&subscriber.url(path));
        let form = format!("hub.mode={mode}&hub.topic={}&hub.callback={callback}", crate::peers::encoded(TOPIC));
        let lines = format!("apikey: {key}\r\nContent-Type: application/x-www-form-urlencoded\r\n");
        node.send("POST", "/hub", &lines, form.as_bytes()).status
    };
    let verified = |count: u64| eventually("it is verified", DEADLINE, || node.status()["subscriptions"] == count);
    assert_eq!(ask("k3", "subscribe", "/joe"), 403, "not a consumer that may");
    assert_eq!(ask("k1", "subscribe", "/1"), 202);
    verified(1);
    assert_eq!(ask("k2", "subscribe", "/1"), 403, "another's subscription is not replaced");
    assert_eq!(ask("k2", "unsubscribe", "/1"), 403, "nor ended");
    assert_eq!(ask("k1", "subscribe", "/2"), 202);
    verified(2);
    assert_eq!(ask("k1", "subscribe", "/3"), 429, "a consumer's subscriptions are limited");
    assert_eq!(ask("k1", "subscribe", "/2"), 202, "renewing is always possible");
    assert_eq!(ask("k1", "unsubscribe", "/1"), 202);
    verified(1);
}

#[test]
fn a_topic_may_have_rights_of_its_own() {
    const OTHER: &str = "http://gw.example/t/prices";
    let hub = format!(
        "  topics: [\"http://gw.example/t/*\"]\n  publish: {{ consumers: [jack, jill] }}\n  \
         subscribe: {{ callbacks: {{ allow: [127.0.0.0/8] }} }}\n  rights:\n  \
         - {{ topics: [\"{OTHER}\"], publish: {{ groups: [staff] }}, subscribe: {{ consumers: [joe], groups: [staff] }} }}\n"
    );
    let rest = "routes: [{ id: hub, uri: /*, hub_id: h, plugins: { key-auth: {} } }]\n\
                consumer_groups: [{ id: staff, plugins: {} }]\nconsumers:\n\
                - { username: jack, group_id: staff, plugins: { key-auth: { key: k1 } } }\n\
                - { username: jill, plugins: { key-auth: { key: k2 } } }\n- { username: joe, plugins: { key-auth: { key: k3 } } }\n";
    let node = HubNode::of(Arc::new(TempDir::new()), &hub, rest);
    let publish = |key: &str, path: &str| node.send("POST", path, &format!("apikey: {key}\r\n"), b"x").status;
    let read = |key: &str, path: &str| node.send("GET", path, &format!("apikey: {key}\r\n"), b"").status;
    let subscribe = |key: &str, topic: &str| {
        let callback = crate::peers::encoded("http://127.0.0.1:9/");
        let form = format!("hub.mode=subscribe&hub.topic={}&hub.callback={callback}", crate::peers::encoded(topic));
        let lines = format!("apikey: {key}\r\nContent-Type: application/x-www-form-urlencoded\r\n");
        node.send("POST", "/hub", &lines, form.as_bytes()).status
    };
    assert_eq!(["k1", "k2", "k3"].map(|key| publish(key, "/t/orders")), [202, 202, 403]);
    assert_eq!(["k1", "k2", "k3"].map(|key| publish(key, "/t/prices")), [202, 403, 403]);
    assert_eq!(["k1", "k2", "k3"].map(|key| read(key, "/t/orders")), [200, 200, 200]);
    assert_eq!(["k1", "k2", "k3"].map(|key| read(key, "/t/prices")), [200, 403, 200]);
    assert_eq!(["k1", "k2", "k3"].map(|key| subscribe(key, TOPIC)), [202, 202, 202]);
    assert_eq!(["k1", "k2", "k3"].map(|key| subscribe(key, OTHER)), [202, 403, 202]);
}

#[test]
fn secrets_are_shown_nowhere() {
    let (node, subscriber) = (HubNode::start(), Subscriber::start());
    node.subscribe(&subscriber, "/?token=private", &[("hub.secret", "hidden")]);
    subscriber.refuse(500);
    node.publish("one");
    subscriber.wait_deliveries(1);
    let shown = node.gateway.stderr() + &node.gateway.status().to_string();
    assert!(!shown.contains("hidden") && !shown.contains("private"), "{shown}");
}

#[test]
fn failing_delivery_is_logged_without_its_path_and_counted() {
    let (node, subscriber) = (HubNode::with("  delivery: { retry_first: 1h }\n"), Subscriber::start());
    node.subscribe(&subscriber, "/private?token=private", &[]);
    subscriber.refuse(500);
    node.publish("one");
    let line = node.gateway.wait_stderr("the failure", |line| line.contains("a delivery to subscription "));
    assert!(line.contains("has failed: status 500") && !line.contains("private"), "{line}");
    let failing = || node.metrics().get("weir_hub_failing_subscriptions{hub=\"h\"}");
    eventually("it is counted", DEADLINE, || failing() == Some(1.0));
    assert_eq!(node.status()["failing"], 1);
}
