//! The forms of publishing (W3C WebSub §6 leaves them open), and the answers to them.

use std::fs;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;

use rustix::process::Pid;
use serde_json::Value;
use weir_testkit::{Answer, DEADLINE, Gateway, Origin, Signal, TempDir, eventually, eventually_some, on_small_disk};

use crate::peers::{HubNode, Subscriber, TOPIC, encoded, value};
use crate::redis::Redis;

#[test]
fn content_is_published_by_query_and_at_the_topics_own_url() {
    let (node, subscriber) = (HubNode::start(), Subscriber::start());
    node.subscribe(&subscriber, "/", &[]);
    node.publish("by query");
    assert_eq!(node.post("/t/orders", "text/plain", b"at its URL").status, 202);
    assert_eq!(node.post("/t/orders?hub.mode=publish", "text/plain", b"both").status, 202);
    let contents: Vec<Vec<u8>> = subscriber.wait_deliveries(3).into_iter().map(|delivery| delivery.body).collect();
    assert_eq!(contents, [&b"by query"[..], b"at its URL", b"both"]);
    let unknown = format!("/hub?hub.mode=publish&hub.topic={}", encoded("http://gw.example/other"));
    assert_eq!(node.post(&unknown, "text/plain", b"x").status, 404);
}

#[test]
fn publishing_goes_on_while_the_binary_is_upgraded() {
    let (node, stop) = (HubNode::start(), AtomicBool::new(false));
    let published = AtomicUsize::new(0);
    thread::scope(|scope| {
        let publisher = || {
            while !stop.load(Relaxed) {
                let answer = node.post("/t/orders", "text/plain", b"during an upgrade");
                // The other publishers end, too.
                stop.fetch_or(answer.status != 202, Relaxed);
                assert_eq!(answer.status, 202, "{}", answer.text());
                published.fetch_add(1, Relaxed);
            }
        };
        (0..4).for_each(|_| drop(scope.spawn(publisher)));
        // The publishers end, too, if this fails.
        let _stop = StopAtEnd(&stop);
        for _ in 0..3 {
            let before = eventually_some("a process serves", DEADLINE, || serving(&node.gateway));
            let process = Pid::from_raw(before).expect("not 0");
            rustix::process::kill_process(process, Signal::USR2).expect("it runs");
            node.gateway.wait_stderr("that it ends", |line| line.ends_with(&format!("process {before} is ending")));
            let count = published.load(Relaxed);
            let goes_on = || published.load(Relaxed) > count || stop.load(Relaxed);
            eventually("events are published to the new process", DEADLINE, goes_on);
        }
    });
    println!("{} events", published.load(Relaxed));
}

/// Says so to others when it is dropped.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// The process that answers on the status address.
fn serving(gateway: &Gateway) -> Option<i32> {
    let status: Value = serde_json::from_str(&gateway.try_ask_status("/status").ok()?.text()).ok()?;
    (status["state"] == "serving").then(|| status["pid"].as_i64())?.and_then(|pid| i32::try_from(pid).ok())
}

#[test]
fn a_ping_makes_the_hub_fetch_from_origins_that_are_named() {
    let source = Origin::serving(|request| match &*request.target {
        "/feed" => Answer::with(200, "Content-Type: application/atom+xml\r\n", "<feed/>"),
        "/away" => Answer::with(302, "Location: /feed\r\n", ""),
        _ => Answer::status(404, ""),
    });
    let origin = format!("http://{}", source.addr());
    let hub = |fetch: &str| {
        format!(
            "  topics: [\"{origin}/*\"]\n  publish: {{ anonymous: true{fetch} }}\n  \
             subscribe: {{ callbacks: {{ allow: [127.0.0.0/8] }} }}\n"
        )
    };
    let (node, subscriber) = (HubNode::with(&hub(&format!(", fetch: [\"{origin}\"]"))), Subscriber::start());
    let topic = format!("{origin}/feed");
    let callback = subscriber.url("/");
    let form = [("hub.mode", "subscribe"), ("hub.topic", &*topic), ("hub.callback", &*callback)];
    assert_eq!(node.form(&form).status, 202);
    eventually("it is verified", DEADLINE, || node.status()["subscriptions"] == 1);
    for name in ["hub.topic", "hub.url"] {
        assert_eq!(node.form(&[("hub.mode", "publish"), (name, &topic)]).status, 202, "{name}");
    }
    for delivery in subscriber.wait_deliveries(2) {
        assert_eq!(delivery.body, b"<feed/>");
        assert_eq!(delivery.headers.get("Content-Type"), Some("application/atom+xml"));
    }
    for path in ["/missing", "/away"] {
        let form = [("hub.mode", "publish"), ("hub.topic", &*format!("{origin}{path}"))];
        assert_eq!(node.form(&form).status, 502, "{path}");
    }
    assert_eq!(node.form(&[("hub.mode", "publish")]).status, 400);
    let fetched = source.requests().len();
    node.reconfigure(&hub(""));
    assert_eq!(node.form(&[("hub.mode", "publish"), ("hub.topic", &topic)]).status, 403);
    assert_eq!(source.requests().len(), fetched, "nothing is fetched from origins that are not named");
}

#[test]
fn publishers_sign_or_are_consumers() {
    let hub =
        "  publish: { secret: publisher, consumers: [jack] }\n  subscribe: { callbacks: { allow: [127.0.0.0/8] } }\n";
    let rest = "routes:\n- { id: hub, uri: /hub, hub_id: h }\n- { id: own, uri: /t/*, hub_id: h, plugins: { key-auth: {} } }\n\
                consumers:\n- { username: jack, plugins: { key-auth: { key: k1 } } }\n\
                - { username: jill, plugins: { key-auth: { key: k2 } } }\n";
    let node = HubNode::of(Arc::new(TempDir::new()), hub, rest);
    let target = format!("/hub?hub.mode=publish&hub.topic={}", encoded(TOPIC));
    assert_eq!(node.post(&target, "text/plain", b"x").status, 401);
    let signature = |secret: &str| {
        let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, secret.as_bytes());
        let tag = aws_lc_rs::hmac::sign(&key, b"x");
        let digits: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        format!("X-Hub-Signature: sha256={digits}\r\n")
    };
    assert_eq!(node.send("POST", &target, &signature("publisher"), b"x").status, 202);
    assert_eq!(node.send("POST", &target, &signature("other"), b"x").status, 401);
    assert_eq!(node.send("POST", "/t/orders", "apikey: k1\r\n", b"x").status, 202);
    assert_eq!(node.send("POST", "/t/orders", "apikey: k2\r\n", b"x").status, 403);
    assert_eq!(node.send("POST", "/t/orders", "", b"x").status, 401, "the route's plugins come first");
}

#[test]
fn content_larger_than_allowed_is_refused() {
    let node = HubNode::with("  publish: { anonymous: true, max_bytes: 1000 }\n");
    assert_eq!(node.post("/t/orders", "text/plain", &[b'x'; 1_000]).status, 202);
    assert_eq!(node.post("/t/orders", "text/plain", &[b'x'; 1_001]).status, 413);
}

#[test]
fn retention_is_bounded_and_expired_events_are_accounted_for() {
    let (node, subscriber) =
        (HubNode::with("  retention: { bytes: 1MiB }\n  delivery: { retry_first: 1h }\n"), Subscriber::start());
    node.subscribe(&subscriber, "/", &[]);
    subscriber.refuse(500);
    for _ in 0..40 {
        assert_eq!(node.post("/t/orders", "text/plain", &[b'x'; 100_000]).status, 202);
    }
    eventually("the oldest are gone", DEADLINE, || node.status()["expired"].as_u64() >= Some(29));
    let status = node.status();
    let count = |name: &str| status[name].as_u64().expect("a number");
    assert_eq!(count("audience"), 40);
    assert_eq!(count("audience"), count("expired") + count("pending"), "{status}");
}

#[test]
fn subscribers_get_events_of_their_topic_and_no_others() {
    let (node, subscriber) = (HubNode::start(), Subscriber::start());
    node.subscribe(&subscriber, "/orders", &[]);
    let callback = subscriber.url("/invoices");
    let topic = "http://gw.example/t/invoices";
    assert_eq!(node.form(&[("hub.mode", "subscribe"), ("hub.topic", topic), ("hub.callback", &callback)]).status, 202);
    eventually("both are verified", DEADLINE, || node.status()["subscriptions"] == 2);
    assert_eq!(value(&subscriber.verifications()[1].target, "hub.topic").as_deref(), Some(topic));
    node.publish("order");
    assert_eq!(node.post("/t/invoices", "text/plain", b"invoice").status, 202);
    node.settled();
    let mut got: Vec<_> = subscriber
        .deliveries()
        .into_iter()
        .map(|one| (one.target, String::from_utf8_lossy(&one.body).into_owned()))
        .collect();
    got.sort();
    let expected =
        [("/invoices", "invoice"), ("/orders", "order")].map(|(path, text)| (path.to_owned(), text.to_owned()));
    assert_eq!(got, expected);
}

#[test]
fn events_are_limited_for_each_consumer_and_topic() {
    let hub = "  publish: {}\n  subscribe: { callbacks: { allow: [127.0.0.0/8] } }\n";
    let plugins =
        "plugins: { key-auth: {}, limit-events: { count: 2, time_window: 600, key: consumer_name, per_topic: true } }";
    let rest = format!(
        "routes: [{{ id: topics, uri: /t/*, hub_id: h, {plugins} }}, {{ id: hub, uri: /hub, hub_id: h, {plugins} }}]\n\
         consumers:\n- {{ username: jack, plugins: {{ key-auth: {{ key: k1 }} }} }}\n\
         - {{ username: jill, plugins: {{ key-auth: {{ key: k2 }} }} }}\n"
    );
    let node = HubNode::of(Arc::new(TempDir::new()), hub, &rest);
    let publish = |key: &str, target: &str| node.send("POST", target, &format!("apikey: {key}\r\n"), b"content");
    let by_query = format!("/hub?hub.mode=publish&hub.topic={}", encoded(TOPIC));
    for target in ["/t/orders", "/t/orders", "/t/invoices", &by_query] {
        assert_eq!(publish("k1", target).status, 202, "{target}");
    }
    let refused = publish("k1", "/t/orders");
    assert_eq!((refused.status, refused.text().trim()), (429, "the quota of events is used up"));
    let wait: u64 = refused.headers.get("Retry-After").and_then(|wait| wait.parse().ok()).expect("a number");
    assert!((1..=600).contains(&wait), "{wait}");
    assert_eq!(publish("k2", "/t/orders").status, 202, "another consumer has its own");
    let form = format!("hub.mode=publish&hub.topic={}", encoded(TOPIC));
    let lines = "apikey: k2\r\nContent-Type: application/x-www-form-urlencoded\r\n";
    let ping = || node.send("POST", "/hub", lines, form.as_bytes()).status;
    // Fetching is not allowed from any origin; each ping counts against the limit, whatever its result.
    assert_eq!([ping(), ping(), ping()], [403, 403, 429]);
    assert_eq!(node.status()["events"], 5, "what is refused is not stored");
}

#[test]
fn events_that_are_published_count_together_at_gateways_that_share_a_redis() {
    let Some(redis) = Redis::start(&[]) else { return };
    let limit = format!(
        "limit-events: {{ count: 3, time_window: 86400, policy: redis, redis_host: 127.0.0.1, redis_port: {}, sync_interval: 0.1, \
         redis_timeout: 10000 }}",
        redis.port
    );
    let rest = format!("routes: [{{ id: topics, uri: /t/*, hub_id: h, plugins: {{ {limit} }} }}]\n");
    let hub = "  publish: { anonymous: true }\n";
    let nodes = [(); 2].map(|()| HubNode::of(Arc::new(TempDir::new()), hub, &rest));
    let publish = |node: &HubNode| node.send("POST", "/t/orders", "", b"content").status;
    assert_eq!([publish(&nodes[0]), publish(&nodes[0])], [202, 202]);
    eventually("the server knows", DEADLINE, || redis.counted() == "2");
    assert_eq!([publish(&nodes[1]), publish(&nodes[1])], [202, 429]);
}

#[test]
fn a_request_that_is_of_no_topic_or_no_form_is_told_what_there_is() {
    let topics =
        "  topics: [\"https://a.example/t/same\", \"https://b.example/t/same\", \"https://b.example/t/own*\"]\n";
    let node = HubNode::with(topics);
    let form = "application/x-www-form-urlencoded";
    for (target, kind, status, told) in [
        (
            "/t/none",
            "text/plain",
            415,
            "no topic of this hub has the path of the request, `/t/none` (host `gw.example`); its option \
             `topics` lists those that it has",
        ),
        (
            "/t/none",
            form,
            400,
            "`hub.mode` is missing in this form (application/x-www-form-urlencoded), and no topic of",
        ),
        (
            "/t/same",
            form,
            400,
            "to publish its content to https://a.example/t/same, send it with its own `Content-Type`",
        ),
        (
            "/t/none?hub.mode=publish",
            "text/plain",
            400,
            "`hub.topic` is missing in the query, and no topic of this hub",
        ),
    ] {
        let answer = node.post(target, kind, b"x=1");
        assert_eq!(answer.status, status, "{target}: {}", answer.text());
        assert!(answer.text().contains(told), "{target}: {}", answer.text());
    }
    // Neither scheme nor host have to be those of the topic; a host decides between topics with the same path.
    assert_eq!(node.post("/t/own", "text/plain", b"elsewhere").status, 202);
    let of_host = |host: &str, method: &str, content: &str| {
        let length = content.len();
        let head = format!("{method} /t/same HTTP/1.1\r\nHost: {host}\r\nContent-Type: text/plain\r\n");
        node.gateway.client().ask(format!("{head}Content-Length: {length}\r\n\r\n{content}")).expect("an answer")
    };
    assert_eq!(of_host("b.example", "POST", "of b").status, 202);
    assert_eq!(of_host("b.example", "GET", "").text(), "of b");
    assert_eq!(of_host("a.example", "GET", "").status, 204);
    assert_eq!(of_host("gw.example", "GET", "").status, 204, "the first one");
}

#[test]
fn a_full_disk_is_insufficient_storage_and_the_hub_goes_on_once_there_is_room() {
    let data = Arc::new(TempDir::new());
    let Some(place) = on_small_disk(env!("CARGO_BIN_EXE_weir"), 8, data.path()) else { return };
    let hub = "  publish: { anonymous: true }\n  subscribe: { callbacks: { allow: [127.0.0.0/8] } }\n";
    let node = HubNode::run(&place.path().join("weir"), Arc::clone(&data), hub, "");
    // The disk as the process sees it.
    let filler = format!("/proc/{}/root{}/filler", node.gateway.pid(), data.path().display());
    let mut file = fs::File::create(&filler).expect("a file");
    while file.write_all(&[7; 4_096]).is_ok() {}
    let target = format!("/hub?hub.mode=publish&hub.topic={}", encoded(TOPIC));
    let mut refused = 0;
    eventually("events are refused", DEADLINE, || {
        let answer = node.post(&target, "text/plain", &[b'x'; 50_000]);
        assert!(matches!(answer.status, 202 | 507), "{} {}", answer.status, answer.text());
        refused += u64::from(answer.status == 507);
        refused == 3
    });
    let up = || node.metrics().get("weir_hub_up{hub=\"h\"}");
    node.gateway
        .wait_stderr("the failure", |line| line.contains("events of the hub cannot be stored, and are refused: "));
    assert_eq!(up(), Some(0.0));
    fs::remove_file(&filler).expect("the file");
    drop(file);
    eventually("there is room again", DEADLINE, || node.post(&target, "text/plain", b"small").status == 202);
    node.gateway.wait_stderr("its end", |line| line.contains("events of the hub can be stored again"));
    eventually("its state can be stored, too", DEADLINE, || up() == Some(1.0));
    let told = node.gateway.stderr().matches("cannot be stored").count();
    assert_eq!(told, 1, "{}", node.gateway.stderr());
}
