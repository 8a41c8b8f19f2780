//! The rules of the W3C Recommendation of 2018-01-23 for hubs, each test named by the section that has it.

use weir_testkit::{Answer, DEADLINE, eventually};

use crate::peers::{HUB, HubNode, Subscriber, TOPIC, is_signed, query, value};

fn request<'a>(mode: &'a str, callback: &'a str) -> [(&'a str, &'a str); 3] {
    [("hub.mode", mode), ("hub.topic", TOPIC), ("hub.callback", callback)]
}

#[test]
fn s4_a_topic_is_advertised_with_its_hub_and_itself() {
    let node = HubNode::start();
    let links = format!("<{HUB}>; rel=\"hub\", <{TOPIC}>; rel=\"self\"");
    let empty = node.send("GET", "/t/orders", "", b"");
    assert_eq!((empty.status, empty.headers.get("Link")), (204, Some(&*links)));
    node.publish_as("application/json", r#"{"order":1}"#);
    for method in ["GET", "HEAD"] {
        let answer = eventually_content(&node, method);
        assert_eq!(answer.headers.get("Link"), Some(&*links), "{method}");
        assert_eq!(answer.headers.get("Content-Type"), Some("application/json"));
        assert_eq!(answer.headers.get("Content-Length"), Some("11"));
    }
    assert_eq!(eventually_content(&node, "GET").text(), r#"{"order":1}"#);
}

fn eventually_content(node: &HubNode, method: &str) -> weir_testkit::Response {
    weir_testkit::eventually_some("the topic has content", DEADLINE, || {
        let head = format!("{method} /t/orders HTTP/1.1\r\nHost: gw.example\r\n\r\n");
        let mut client = node.gateway.client();
        client.send(head);
        let answer = client.response_to(method).expect("an answer");
        (answer.status == 200).then_some(answer)
    })
}

#[test]
fn s5_1_the_three_required_fields_are_enough_and_others_are_ignored() {
    let (node, subscriber) = (HubNode::start(), Subscriber::start());
    node.subscribe(&subscriber, "/a", &[]);
    node.subscribe(&subscriber, "/b", &[("foo", "bar"), ("hub.foo", "hub.bar")]);
    assert_eq!(node.status()["subscriptions"], 2);
}

#[test]
fn s5_1_2_a_request_is_accepted_before_it_is_verified() {
    let (node, subscriber) = (HubNode::start(), Subscriber::start());
    let gate = std::sync::Arc::new(weir_testkit::Gate::new());
    let held = std::sync::Arc::clone(&gate);
    subscriber.answer(move |_| {
        held.wait();
        None
    });
    let answer = node.form(&request("subscribe", &subscriber.url("/")));
    assert_eq!(answer.status, 202, "verification has not ended");
    gate.open();
    eventually("it is verified", DEADLINE, || node.status()["subscriptions"] == 1);
    // Nor does the answer depend on what comes of the verification.
    subscriber.answer(|_| Some(Answer::status(404, "")));
    assert_eq!(node.form(&request("subscribe", &subscriber.url("/refuses"))).status, 202);
    eventually("it is refused", DEADLINE, || node.status()["unverified"] == 0);
    assert_eq!(node.status()["subscriptions"], 1);
}

#[test]
fn s5_1_2_errors_have_a_status_and_a_reason_in_plain_text() {
    let node = HubNode::start();
    let ok = "http://127.0.0.1:9/";
    for (fields, status, reason) in [
        (vec![("hub.topic", TOPIC), ("hub.callback", ok)], 400, "hub.mode"),
        (vec![("hub.mode", "subscribe"), ("hub.callback", ok)], 400, "hub.topic"),
        (vec![("hub.mode", "subscribe"), ("hub.topic", TOPIC)], 400, "hub.callback"),
        (request("list", ok).to_vec(), 400, "hub.mode"),
        ([&request("subscribe", ok)[..], &[("hub.mode", "subscribe")]].concat(), 400, "twice"),
        ([&request("subscribe", ok)[..], &[("hub.topic", TOPIC)]].concat(), 400, "twice"),
        (request("subscribe", "ftp://127.0.0.1/").to_vec(), 400, "hub.callback"),
        (request("subscribe", "not a url").to_vec(), 400, "hub.callback"),
        ([&request("subscribe", ok)[..], &[("hub.lease_seconds", "0")]].concat(), 400, "lease"),
        ([&request("subscribe", ok)[..], &[("hub.lease_seconds", "-1")]].concat(), 400, "lease"),
        ([&request("subscribe", ok)[..], &[("hub.lease_seconds", "long")]].concat(), 400, "lease"),
        (
            vec![("hub.mode", "subscribe"), ("hub.topic", "http://elsewhere.example/"), ("hub.callback", ok)],
            404,
            "topic",
        ),
    ] {
        let answer = node.form(&fields);
        assert_eq!(answer.status, status, "{fields:?}");
        assert_eq!(answer.headers.get("Content-Type"), Some("text/plain; charset=utf-8"));
        assert!(answer.text().contains(reason), "{fields:?}: {}", answer.text());
    }
    let not_utf8 = b"hub.mode=subscribe&hub.topic=%ff&hub.callback=http://127.0.0.1/";
    assert_eq!(node.post("/hub", "application/x-www-form-urlencoded", not_utf8).status, 400);
    assert_eq!(node.post("/hub", "application/json", b"{}").status, 415);
    assert_eq!(node.send("PUT", "/hub", "", b"").status, 405);
}

#[test]
fn s5_1_a_secret_is_less_than_200_bytes() {
    let (node, subscriber) = (HubNode::start(), Subscriber::start());
    let (longest, too_long) = ("s".repeat(199), "s".repeat(200));
    let callback = subscriber.url("/");
    let refused = node.form(&[&request("subscribe", &callback)[..], &[("hub.secret", &too_long)]].concat());
    assert_eq!(refused.status, 400);
    node.subscribe(&subscriber, "/", &[("hub.secret", &longest)]);
    node.publish("signed");
    assert!(is_signed(&subscriber.wait_deliveries(1)[0], "sha256", &longest));
}

#[test]
fn s5_1_urls_that_differ_only_in_encoding_are_the_same_topic() {
    let (node, subscriber) = (HubNode::start(), Subscriber::start());
    let callback = subscriber.url("/");
    let form = [("hub.mode", "subscribe"), ("hub.topic", "http://gw.example/t/%6Frders"), ("hub.callback", &callback)];
    assert_eq!(node.form(&form).status, 202);
    eventually("it is verified", DEADLINE, || node.status()["subscriptions"] == 1);
    node.publish("one");
    subscriber.wait_deliveries(1);
}

#[test]
fn s5_1_leases_are_granted_within_bounds_and_10_days_without_a_wish() {
    let (node, subscriber) = (HubNode::start(), Subscriber::start());
    let lease = |path: &str, wish: &[(&str, &str)]| {
        node.subscribe(&subscriber, path, wish);
        let verification = subscriber.verifications().last().expect("it was asked").clone();
        value(&verification.target, "hub.lease_seconds")
    };
    assert_eq!(lease("/1", &[]).as_deref(), Some("864000"));
    assert_eq!(lease("/2", &[("hub.lease_seconds", "600")]).as_deref(), Some("600"));
    assert_eq!(lease("/3", &[("hub.lease_seconds", "1")]).as_deref(), Some("300"));
    assert_eq!(lease("/4", &[("hub.lease_seconds", "1000000000000")]).as_deref(), Some("2592000"));
}

#[test]
fn s5_1_leases_end() {
    let subscribe = "  subscribe: { callbacks: { allow: [127.0.0.0/8] }, lease: { min: 1s, default: 1s, max: 2s } }\n";
    let (node, subscriber) = (HubNode::with(subscribe), Subscriber::start());
    node.subscribe(&subscriber, "/", &[]);
    eventually("the lease has ended", DEADLINE, || node.status()["subscriptions"] == 0);
    node.publish("late");
    assert_eq!(node.settled()["audience"], 0);
    assert_eq!(subscriber.deliveries(), []);
}

#[test]
fn s5_1_a_subscription_is_renewed_only_once_that_is_verified() {
    let (node, subscriber) = (HubNode::start(), Subscriber::start());
    node.subscribe(&subscriber, "/", &[("hub.secret", "old")]);
    subscriber.answer(|request| (request.method == "GET").then(|| Answer::ok("no challenge")));
    let callback = subscriber.url("/");
    let renewal = [&request("subscribe", &callback)[..], &[("hub.secret", "new")]].concat();
    assert_eq!(node.form(&renewal).status, 202);
    subscriber.wait_verification(2);
    eventually("it came to nothing", DEADLINE, || node.status()["unverified"] == 0);
    node.publish("one");
    assert!(is_signed(&subscriber.wait_deliveries(1)[0], "sha256", "old"));
    subscriber.answer(|_| None);
    node.subscribe(&subscriber, "/", &[("hub.secret", "new")]);
    node.publish("two");
    assert!(is_signed(&subscriber.wait_deliveries(2)[1], "sha256", "new"));
    node.subscribe(&subscriber, "/", &[]);
    node.publish("three");
    assert!(!subscriber.wait_deliveries(3)[2].headers.has("X-Hub-Signature"));
    assert_eq!(node.settled()["subscriptions"], 1);
}

#[test]
fn s5_2_a_subscriber_is_told_when_its_subscription_is_denied() {
    let (node, subscriber) = (HubNode::start(), Subscriber::start());
    node.subscribe(&subscriber, "/?own=1", &[]);
    node.reconfigure(
        "  topics: [\"http://gw.example/t/invoices\"]\n  publish: { anonymous: true }\n  \
         subscribe: { callbacks: { allow: [127.0.0.0/8] } }\n",
    );
    let denial = subscriber.wait_verification(2);
    let pairs = query(&denial.target);
    assert_eq!(pairs[0], ("own".to_owned(), "1".to_owned()));
    assert_eq!(value(&denial.target, "hub.mode").as_deref(), Some("denied"));
    assert_eq!(value(&denial.target, "hub.topic").as_deref(), Some(TOPIC));
    assert!(value(&denial.target, "hub.reason").is_some_and(|reason| !reason.is_empty()));
    assert_eq!(node.status()["subscriptions"], 0);
}

#[test]
fn s5_3_verification_appends_its_parameters_to_the_callback() {
    let (node, subscriber) = (HubNode::start(), Subscriber::start());
    node.subscribe(&subscriber, "/c?hub.mode=mine&x=%20y", &[]);
    let verification = &subscriber.verifications()[0];
    assert!(verification.target.starts_with("/c?hub.mode=mine&x=%20y&hub.mode=subscribe&"), "{}", verification.target);
    assert_eq!(value(&verification.target, "hub.topic").as_deref(), Some(TOPIC));
    assert!(value(&verification.target, "hub.challenge").is_some_and(|challenge| challenge.len() >= 22));
    assert!(value(&verification.target, "hub.lease_seconds").is_some());
    node.subscribe(&subscriber, "/d", &[]);
    let second = &subscriber.verifications()[1];
    assert!(second.target.starts_with("/d?hub.mode=subscribe&"), "{}", second.target);
    let challenge = |target| value(target, "hub.challenge");
    assert_ne!(challenge(&verification.target), challenge(&second.target));
}

#[test]
fn s5_3_1_only_2xx_with_the_challenge_and_nothing_else_is_yes() {
    let (node, subscriber) = (HubNode::start(), Subscriber::start());
    subscriber.answer(|request| {
        let challenge = value(&request.target, "hub.challenge")?;
        Some(match request.target.split('?').next()? {
            "/201" => Answer::status(201, challenge),
            "/newline" => Answer::ok(format!("{challenge}\n")),
            "/prefix" => Answer::ok(&challenge[..challenge.len() - 1]),
            "/empty" => Answer::ok(""),
            "/redirect" => Answer::with(302, "Location: /201\r\n", challenge),
            "/404" => Answer::status(404, challenge),
            _ => Answer::status(500, challenge),
        })
    });
    for path in ["/newline", "/prefix", "/empty", "/redirect", "/404", "/500", "/201"] {
        assert_eq!(node.form(&request("subscribe", &subscriber.url(path))).status, 202);
    }
    eventually("all were asked", DEADLINE, || node.status()["unverified"] == 0);
    assert_eq!(node.status()["subscriptions"], 1);
    assert_eq!(subscriber.verifications().len(), 7, "redirects are not followed");
    node.publish("one");
    assert_eq!(subscriber.wait_deliveries(1)[0].target, "/201");
}

#[test]
fn s5_3_unsubscribing_is_verified_with_the_subscriber() {
    let (node, subscriber) = (HubNode::start(), Subscriber::start());
    node.subscribe(&subscriber, "/", &[]);
    subscriber.answer(|request| (request.method == "GET").then(|| Answer::status(404, "")));
    // The lease is ignored, whatever it says.
    let callback = subscriber.url("/");
    let form = [&request("unsubscribe", &callback)[..], &[("hub.lease_seconds", "never")]].concat();
    assert_eq!(node.form(&form).status, 202);
    let verification = subscriber.wait_verification(2);
    assert_eq!(value(&verification.target, "hub.mode").as_deref(), Some("unsubscribe"));
    eventually("it came to nothing", DEADLINE, || node.status()["unverified"] == 0);
    node.publish("still wanted");
    subscriber.wait_deliveries(1);
    subscriber.answer(|_| None);
    assert_eq!(node.form(&form).status, 202);
    eventually("it has ended", DEADLINE, || node.status()["subscriptions"] == 0);
    node.publish("not wanted");
    assert_eq!(node.settled()["delivered"], 1);
    assert_eq!(subscriber.deliveries().len(), 1);
}

#[test]
fn s7_content_is_posted_to_the_callback_with_its_type_and_links() {
    let (node, subscriber) = (HubNode::start(), Subscriber::start());
    node.subscribe(&subscriber, "/c?id=7", &[]);
    let content: Vec<u8> = (0..=255).collect();
    node.publish_as("application/octet-stream; v=\"1\"", &content);
    let delivery = &subscriber.wait_deliveries(1)[0];
    assert_eq!((&*delivery.method, &*delivery.target), ("POST", "/c?id=7"));
    assert_eq!(delivery.body, content);
    assert_eq!(delivery.headers.get("Content-Type"), Some("application/octet-stream; v=\"1\""));
    let links: Vec<&str> = delivery.headers.all("Link").collect();
    assert_eq!(links, [format!("<{HUB}>; rel=\"hub\", <{TOPIC}>; rel=\"self\"")]);
    assert!(!delivery.headers.has("X-Hub-Signature"), "there is no secret");
}

#[test]
fn s7_every_2xx_is_success_whatever_its_content() {
    let (node, subscriber) = (HubNode::start(), Subscriber::start());
    subscriber.answer(|request| {
        (request.method == "POST").then(|| match request.target.as_str() {
            "/200" => Answer::ok("x".repeat(200_000)),
            "/202" => Answer::status(202, "later"),
            _ => Answer::status(204, ""),
        })
    });
    for path in ["/200", "/202", "/204"] {
        node.subscribe(&subscriber, path, &[]);
    }
    node.publish("one");
    let status = node.settled();
    assert_eq!((&status["delivered"], &status["attempts"]), (&3.into(), &3.into()));
}

/// All the settings of a hub that tries again soon, for as long as this.
fn impatient(retry_for: &str) -> String {
    format!(
        "  publish: {{ anonymous: true }}\n  subscribe: {{ callbacks: {{ allow: [127.0.0.0/8] }} }}\n  \
         delivery: {{ retry_first: 10ms, retry_max: 20ms, retry_for: {retry_for} }}\n"
    )
}

#[test]
fn s7_what_is_not_2xx_is_tried_again_then_given_up_and_the_next_update_tried() {
    for status in [302, 404, 429, 500, 503] {
        let (node, subscriber) = (HubNode::with(&impatient("1h")), Subscriber::start());
        node.subscribe(&subscriber, "/", &[]);
        subscriber.answer(move |request| {
            (request.method == "POST").then(|| Answer::with(status, "Location: /elsewhere\r\n", ""))
        });
        node.publish("one");
        subscriber.wait_deliveries(2);
        node.reconfigure(&impatient("1ms"));
        eventually("it is given up", DEADLINE, || node.status()["dead_lettered"] == 1);
        let tried = subscriber.deliveries();
        assert!(tried.iter().all(|request| request.target == "/"), "{status}: {tried:?}");
        subscriber.answer(|_| None);
        node.publish("two");
        eventually("the next update is delivered", DEADLINE, || {
            subscriber.deliveries().last().is_some_and(|delivery| delivery.body == b"two")
        });
        assert_eq!(node.settled()["subscriptions"], 1);
    }
}

#[test]
fn s7_410_ends_a_subscription() {
    let (node, subscriber) = (HubNode::start(), Subscriber::start());
    node.subscribe(&subscriber, "/", &[]);
    subscriber.refuse(410);
    node.publish("one");
    eventually("it has ended", DEADLINE, || node.status()["subscriptions"] == 0);
    node.publish("two");
    let status = node.settled();
    assert_eq!((&status["cancelled"], &status["audience"]), (&1.into(), &1.into()));
    assert_eq!(subscriber.deliveries().len(), 1);
}

#[test]
fn s7_a_subscriber_that_asks_to_wait_is_waited_for() {
    let (node, subscriber) = (HubNode::with("  delivery: { retry_first: 1ms }\n"), Subscriber::start());
    node.subscribe(&subscriber, "/", &[]);
    let refused = std::sync::atomic::AtomicBool::new(false);
    subscriber.answer(move |request| {
        let is_first = request.method == "POST" && !refused.swap(true, std::sync::atomic::Ordering::Relaxed);
        is_first.then(|| Answer::with(503, "Retry-After: 2\r\n", ""))
    });
    let begin = std::time::Instant::now();
    node.publish("one");
    subscriber.wait_deliveries(2);
    assert!(begin.elapsed() >= std::time::Duration::from_millis(1_900), "{:?}", begin.elapsed());
}

#[test]
fn s7_1_deliveries_are_signed_by_each_method() {
    for method in ["sha1", "sha256", "sha384", "sha512"] {
        let subscribe = format!("  subscribe: {{ callbacks: {{ allow: [127.0.0.0/8] }}, signature: {method} }}\n");
        let (node, subscriber) = (HubNode::with(&subscribe), Subscriber::start());
        node.subscribe(&subscriber, "/", &[("hub.secret", "a secret & more")]);
        node.publish("content");
        let delivery = &subscriber.wait_deliveries(1)[0];
        assert!(is_signed(delivery, method, "a secret & more"), "{method}: {:?}", delivery.headers);
    }
}
