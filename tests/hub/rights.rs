//! Who may publish under a topic and receive its events: by consumers, and by the claims of tokens.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use weir_testkit::{Client, DEADLINE, Response, TempDir, eventually};

use crate::peers::{HubNode, Subscriber, TOPIC, encoded, value};

const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// A token of the consumer `jack` with these claims.
fn token(claims: &Value) -> String {
    let mut claims = claims.clone();
    claims["key"] = "jack".into();
    let [head, claims] =
        [json!({"alg": "HS256"}), claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string().as_bytes()));
    let signed = format!("{head}.{claims}");
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes()), signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(tag))
}

#[test]
fn rights_may_depend_on_claims_of_the_token() {
    let hub = "  topics: [\"http://gw.example/t/*\"]\n  publish: {}\n  subscribe: { callbacks: { allow: [127.0.0.0/8] } }\n  rights:\n  \
               - { topics: [\"http://gw.example/t/orders\"], publish: { scopes: [orders:write, admin] }, \
               subscribe: { topic_claim: /mercure/subscribe } }\n";
    let rest = with_tokens();
    let (node, subscriber) = (HubNode::of(Arc::new(TempDir::new()), hub, &rest), Subscriber::start());
    let ask = |method: &str, path: &str, claims: &Value, lines: &str, content: &str| -> Response {
        let lines = format!("Authorization: Bearer {}\r\n{lines}", token(claims));
        node.send(method, path, &lines, content.as_bytes())
    };
    let publish = |path: &str, claims: Value| ask("POST", path, &claims, "", "x");
    assert_eq!(publish("/t/orders", json!({"scope": "openid orders:write"})).status, 202);
    assert_eq!(publish("/t/orders", json!({"scp": ["admin"]})).status, 202);
    assert_eq!(publish("/t/prices", json!({})).status, 202, "another topic");
    let refused = publish("/t/orders", json!({"scope": "orders:read"}));
    let challenge = "Bearer error=\"insufficient_scope\", scope=\"orders:write admin\"";
    assert_eq!((refused.status, refused.headers.get("WWW-Authenticate")), (403, Some(challenge)));
    assert_eq!(node.status()["events"], 3);

    let covering = json!({"mercure": {"subscribe": ["http://gw.example/t/*"]}});
    let others = json!({"mercure": {"subscribe": ["http://gw.example/t/prices"]}, "scope": "orders:write"});
    assert_eq!([&covering, &others].map(|claims| ask("GET", "/t/orders", claims, "", "").status), [200, 403]);
    let callback = encoded(&subscriber.url("/"));
    let form = format!("hub.mode=subscribe&hub.topic={}&hub.callback={callback}", encoded(TOPIC));
    let is_form = "Content-Type: application/x-www-form-urlencoded\r\n";
    assert_eq!([&others, &covering].map(|claims| ask("POST", "/hub", claims, is_form, &form).status), [403, 202]);
    eventually("it is verified", DEADLINE, || node.status()["subscriptions"] == 1);
    // A change that does not concern the rights leaves it alone: there is no token to look at any more.
    node.rewrite(&format!("{hub}  retention: {{ age: 1d }}\n"), &rest);
    assert_eq!(publish("/t/orders", json!({"scope": "admin"})).status, 202);
    assert_eq!(subscriber.wait_deliveries(1)[0].body, b"x");
}

#[test]
fn a_right_that_a_token_gives_ends_with_the_token() {
    let node = HubNode::of(Arc::new(TempDir::new()), &hub("scopes: [orders:read]"), &with_tokens());
    let subscriber = Subscriber::start();
    // The shortest lease that can be asked for is 300 seconds.
    let subscribe = |left_s: u64| {
        let token = token(&json!({"scope": "orders:read", "exp": now_s() + left_s}));
        let callback = encoded(&subscriber.url("/"));
        let form = format!("hub.mode=subscribe&hub.topic={}&hub.callback={callback}", encoded(TOPIC));
        let lines = format!("Authorization: Bearer {token}\r\nContent-Type: application/x-www-form-urlencoded\r\n");
        assert_eq!(node.send("POST", "/hub", &lines, form.as_bytes()).status, 202);
    };
    let leases = || -> Vec<u64> {
        let lease = |target: &str| value(target, "hub.lease_seconds")?.parse().ok();
        subscriber.verifications().iter().filter_map(|request| lease(&request.target)).collect()
    };
    subscribe(3_600);
    eventually("it is verified", DEADLINE, || node.status()["subscriptions"] == 1);
    assert!((1..=3_600).contains(&leases()[0]), "{:?}", leases());
    // A renewal with a token that ends soon.
    subscribe(8);
    eventually("the lease ends with the token", DEADLINE, || node.status()["subscriptions"] == 0);
    assert!((1..=8).contains(&leases()[1]), "{:?}", leases());
}

#[test]
fn listeners_are_told_when_their_token_ends() {
    let node = HubNode::of(Arc::new(TempDir::new()), &hub("scopes: [orders:read]"), &with_tokens());
    let token = token(&json!({"scope": "orders:read", "exp": now_s() + 8}));
    let open = |path: &str, lines: &str| {
        let mut client = node.gateway.client();
        let lines = format!("Authorization: Bearer {token}\r\n{lines}");
        client.send(format!("GET {path} HTTP/1.1\r\nHost: gw.example\r\n{lines}\r\n"));
        client
    };
    let mut stream = open("/t/orders", "Accept: text/event-stream\r\n");
    let mut socket = open(
        "/t/orders",
        "Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
    );
    let mut poll = open("/t/orders?after=earliest", "");
    assert_eq!(stream.response_head("GET").expect("an answer").status, 200);
    assert_eq!(socket.response_head("GET").expect("an answer").status, 101);
    let mut told = String::new();
    while let Ok(piece) = stream.chunk()
        && !piece.is_empty()
    {
        told += &String::from_utf8_lossy(&piece);
    }
    assert!(told.ends_with(": the token has expired\n\n"), "{told}");
    let reason = b"the token has expired";
    let close = [&[0x88, reason.len() as u8 + 2, 0x03, 0xf0], &reason[..]].concat();
    assert_eq!(socket.exact(close.len() as u64).expect("a close frame"), close);
    let refused = poll.response_head("GET").expect("an answer");
    assert_eq!(
        (refused.status, refused.headers.get("WWW-Authenticate")),
        (401, Some("Bearer error=\"invalid_token\""))
    );
}

/// Seconds since 1970.
fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}

/// A route for tokens of the consumer `jack`.
fn with_tokens() -> String {
    format!(
        "routes: [{{ id: hub, uri: /*, hub_id: h, plugins: {{ jwt-auth: {{}} }} }}]\n\
         consumers: [{{ username: jack, plugins: {{ jwt-auth: {{ key: jack, secret: {SECRET} }} }} }}]\n"
    )
}

/// The settings of a hub to whose topic these callers may subscribe.
fn hub(permitted: &str) -> String {
    format!(
        "  topics: [\"http://gw.example/t/*\"]\n  publish: {{ anonymous: true }}\n  \
         subscribe: {{ callbacks: {{ allow: [127.0.0.0/8] }} }}\n  rights:\n  \
         - {{ topics: [\"{TOPIC}\"], subscribe: {{ {permitted} }} }}\n"
    )
}

/// `jack`, and `jill` of the group `staff`.
fn consumers(with_jill: bool) -> String {
    let jill = match with_jill {
        true => "- { username: jill, group_id: staff, plugins: { key-auth: { key: k2 } } }\n",
        false => "",
    };
    format!(
        "routes: [{{ id: hub, uri: /*, hub_id: h, plugins: {{ key-auth: {{}} }} }}]\n\
         consumer_groups: [{{ id: staff, plugins: {{}} }}]\nconsumers:\n\
         - {{ username: jack, plugins: {{ key-auth: {{ key: k1 }} }} }}\n{jill}"
    )
}

const BOTH: &str = "consumers: [jack], groups: [staff]";

/// Subscriptions and streams of two consumers.
struct TwoListeners {
    node: HubNode,
    data: Arc<TempDir>,
    subscriber: Subscriber,
    streams: [Client; 2],
    sockets: [Client; 2],
}

impl TwoListeners {
    fn start() -> TwoListeners {
        let data = Arc::new(TempDir::new());
        let (node, subscriber) = (HubNode::of(Arc::clone(&data), &hub(BOTH), &consumers(true)), Subscriber::start());
        for (key, path) in [("k1", "/jack"), ("k2", "/jill")] {
            let callback = encoded(&subscriber.url(path));
            let form = format!("hub.mode=subscribe&hub.topic={}&hub.callback={callback}", encoded(TOPIC));
            let lines = format!("apikey: {key}\r\nContent-Type: application/x-www-form-urlencoded\r\n");
            assert_eq!(node.send("POST", "/hub", &lines, form.as_bytes()).status, 202);
        }
        eventually("both are verified", DEADLINE, || node.status()["subscriptions"] == 2);
        let open = |key: &str, lines: &str, status: u16| {
            let mut client = node.gateway.client();
            client.send(format!("GET /t/orders HTTP/1.1\r\nHost: gw.example\r\napikey: {key}\r\n{lines}\r\n"));
            assert_eq!(client.response_head("GET").expect("an answer").status, status);
            client
        };
        let upgrade = "Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                       Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
        let streams = ["k1", "k2"].map(|key| open(key, "Accept: text/event-stream\r\n", 200));
        let sockets = ["k1", "k2"].map(|key| open(key, upgrade, 101));
        TwoListeners { node, data, subscriber, streams, sockets }
    }

    /// Jill's subscription and streams have ended, and Jack's go on.
    fn check(mut self) {
        eventually("the subscription has ended", DEADLINE, || self.node.status()["subscriptions"] == 1);
        let is_denied = |path: &str| {
            let verifications = self.subscriber.verifications();
            let mut own = verifications.iter().filter(|request| request.target.starts_with(path));
            own.any(|request| value(&request.target, "hub.mode").as_deref() == Some("denied"))
        };
        eventually("the callback is told", DEADLINE, || is_denied("/jill"));
        assert!(!is_denied("/jack"));
        let metrics = self.node.metrics();
        let ended = "weir_hub_subscriptions_ended_total{hub=\"h\",reason=\"not_permitted\"}";
        assert_eq!(metrics.get(ended), Some(1.0));
        let mut told = String::new();
        loop {
            match self.streams[1].chunk() {
                Ok(piece) if !piece.is_empty() => told += &String::from_utf8_lossy(&piece),
                _ => break,
            }
        }
        assert!(told.ends_with(": this consumer may not subscribe here\n\n"), "{told}");
        // 1008, with the reason.
        let reason = b"this consumer may not subscribe here";
        let close = [&[0x88, reason.len() as u8 + 2, 0x03, 0xf0], &reason[..]].concat();
        assert_eq!(self.sockets[1].exact(close.len() as u64).expect("a close frame"), close);
        let publish = format!("/hub?hub.mode=publish&hub.topic={}", encoded(TOPIC));
        assert_eq!(self.node.send("POST", &publish, "apikey: k1\r\n", b"later").status, 202);
        assert_eq!(self.subscriber.wait_deliveries(1)[0].target, "/jack");
        assert_eq!(self.sockets[0].exact(7).expect("a message"), b"\x81\x05later");
        let mut events = String::new();
        while !events.ends_with("data: later\n\n") {
            events += &String::from_utf8_lossy(&self.streams[0].chunk().expect("the stream goes on"));
        }
        assert_eq!(self.node.settled()["audience"], 1);
        assert_eq!(self.subscriber.deliveries().len(), 1);
    }
}

#[test]
fn a_consumer_that_loses_its_right_receives_nothing_more() {
    let listeners = TwoListeners::start();
    listeners.node.rewrite(&hub("consumers: [jack]"), &consumers(true));
    listeners.check();
}

#[test]
fn a_consumer_that_is_removed_receives_nothing_more() {
    let listeners = TwoListeners::start();
    listeners.node.rewrite(&hub(BOTH), &consumers(false));
    listeners.check();
}

#[test]
fn a_right_that_is_lost_while_the_hub_does_not_run_is_noticed_when_it_starts() {
    let TwoListeners { node, data, subscriber, .. } = TwoListeners::start();
    drop(node);
    let node = HubNode::of(data, &hub("groups: [staff]"), &consumers(true));
    eventually("the subscription has ended", DEADLINE, || node.status()["subscriptions"] == 1);
    let publish = format!("/hub?hub.mode=publish&hub.topic={}", encoded(TOPIC));
    assert_eq!(node.send("POST", &publish, "apikey: k2\r\n", b"later").status, 202);
    assert_eq!(subscriber.wait_deliveries(1)[0].target, "/jill");
}
