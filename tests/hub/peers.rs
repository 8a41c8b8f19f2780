//! A gateway with a hub, and subscribers that share no code with it.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::api::{self, Api};
use aws_lc_rs::hmac;
use weir_testkit::{
    Answer, Authority, DEADLINE, Gateway, Origin, Request, Response, ScrapedMetrics, Signal, TempDir, TlsServer,
    eventually_some,
};

/// The hub's URL, as it stands in its configuration.
pub(crate) const HUB: &str = "http://gw.example/hub";
pub(crate) const TOPIC: &str = "http://gw.example/t/orders";

/// A gateway whose routes `/hub` and `/t/*` lead to a hub.
pub(crate) struct HubNode {
    pub gateway: Gateway,
    data: Arc<TempDir>,
    hub: String,
    rest: String,
}

impl HubNode {
    /// Anyone may publish, and callbacks may be on loopback.
    pub(crate) fn start() -> HubNode {
        HubNode::with("")
    }

    /// The same, with more settings of the hub: lines of YAML, each with two blanks before it.
    pub(crate) fn with(hub: &str) -> HubNode {
        HubNode::beside(hub, "")
    }

    /// The same with an Admin API, by which its routes were made.
    pub(crate) fn administered(hub: &str) -> HubNode {
        let node = HubNode::beside(hub, &api::file());
        let mut api = Api::of(&node.gateway);
        api.put("routes/hub", r#"{"uri": "/hub", "hub_id": "h"}"#);
        api.put("routes/topics", r#"{"uri": "/t/*", "hub_id": "h"}"#);
        node
    }

    /// The same with an Admin API and routes as `rest` says.
    pub(crate) fn beside(hub: &str, rest: &str) -> HubNode {
        let usual = "  publish: { anonymous: true, secret: publisher }\n";
        let subscribe = "  subscribe: { callbacks: { allow: [127.0.0.0/8] }, verifications_per_second: 100000 }\n";
        let mut all = hub.to_owned();
        for (key, line) in [("publish:", usual), ("subscribe:", subscribe)] {
            if !hub.contains(key) {
                all += line;
            }
        }
        HubNode::of(Arc::new(TempDir::new()), &all, rest)
    }

    /// With all the settings of the hub, and more resources.
    pub(crate) fn of(data: Arc<TempDir>, hub: &str, rest: &str) -> HubNode {
        HubNode::run(Path::new(env!("CARGO_BIN_EXE_weir")), data, hub, rest)
    }

    /// The same, with this program.
    pub(crate) fn run(binary: &Path, data: Arc<TempDir>, hub: &str, rest: &str) -> HubNode {
        let yaml = yaml(&data, hub, rest);
        let gateway = Gateway::with_binary(binary).start(&yaml);
        HubNode { gateway, data, hub: hub.to_owned(), rest: rest.to_owned() }
    }

    /// Kills the process, and starts another one with the same files.
    pub(crate) fn kill(self) -> HubNode {
        let HubNode { gateway, data, hub, rest } = self;
        drop(gateway);
        HubNode::of(data, &hub, &rest)
    }

    /// Ends the process in order, and starts another one with the same files. All outcomes of deliveries are written by then; a
    /// process that is killed may have shown some that are not.
    pub(crate) fn restart(self) -> HubNode {
        let HubNode { mut gateway, data, hub, rest } = self;
        gateway.signal(Signal::TERM);
        gateway.wait_exit(DEADLINE);
        HubNode::of(data, &hub, &rest)
    }

    pub(crate) fn data(&self) -> &TempDir {
        &self.data
    }

    /// Changes the hub's settings while it runs.
    pub(crate) fn reconfigure(&self, hub: &str) {
        self.rewrite(hub, &self.rest);
    }

    /// Changes the hub's settings and the other resources while it runs.
    pub(crate) fn rewrite(&self, hub: &str, rest: &str) {
        self.gateway.rewrite(&yaml(&self.data, hub, rest));
    }

    pub(crate) fn form(&self, fields: &[(&str, &str)]) -> Response {
        let pairs: Vec<String> = fields.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
        self.post("/hub", "application/x-www-form-urlencoded", pairs.join("&").as_bytes())
    }

    pub(crate) fn post(&self, target: &str, content_type: &str, content: &[u8]) -> Response {
        self.send("POST", target, &format!("Content-Type: {content_type}\r\n"), content)
    }

    pub(crate) fn send(&self, method: &str, target: &str, lines: &str, content: &[u8]) -> Response {
        let length = content.len();
        let head = format!("{method} {target} HTTP/1.1\r\nHost: gw.example\r\n{lines}Content-Length: {length}\r\n\r\n");
        self.gateway.client().ask([head.as_bytes(), content].concat()).expect("the gateway answers")
    }

    /// Publishes to [`TOPIC`], and expects that it is taken.
    #[track_caller]
    pub(crate) fn publish(&self, content: impl AsRef<[u8]>) {
        self.publish_as("text/plain", content);
    }

    #[track_caller]
    pub(crate) fn publish_as(&self, content_type: &str, content: impl AsRef<[u8]>) {
        let target = format!("/hub?hub.mode=publish&hub.topic={}", encoded(TOPIC));
        let answer = self.post(&target, content_type, content.as_ref());
        assert_eq!(answer.status, 202, "{}", answer.text());
    }

    /// Subscribes a callback to [`TOPIC`], and waits until it is verified.
    #[track_caller]
    pub(crate) fn subscribe(&self, subscriber: &Subscriber, path: &str, more: &[(&str, &str)]) {
        let callback = subscriber.url(path);
        let before = subscriber.verifications().len();
        let required = [("hub.mode", "subscribe"), ("hub.topic", TOPIC), ("hub.callback", &*callback)];
        let answer = self.form(&[&required, more].concat());
        assert_eq!(answer.status, 202, "{}", answer.text());
        eventually_some("the subscription is verified", DEADLINE, || {
            (subscriber.verifications().len() > before && self.status()["unverified"] == 0).then_some(())
        });
    }

    /// What `/status` says of the hub. A hub whose thread does not answer within two seconds is not shown, so it is asked again.
    #[track_caller]
    pub(crate) fn status(&self) -> serde_json::Value {
        eventually_some("the hub is in the status", DEADLINE, || self.shown_status())
    }

    /// What `/status` says of the hub; `None` while it is not open, or does not answer.
    pub(crate) fn shown_status(&self) -> Option<serde_json::Value> {
        Some(self.gateway.status()["hubs"][0].clone()).filter(serde_json::Value::is_object)
    }

    /// The metrics, with those of the hub, which are not shown either while its thread does not answer.
    #[track_caller]
    pub(crate) fn metrics(&self) -> ScrapedMetrics {
        eventually_some("the hub is in the metrics", DEADLINE, || {
            Some(self.gateway.metrics()).filter(|metrics| metrics.get("weir_hub_up{hub=\"h\"}").is_some())
        })
    }

    /// The hub's account, once nothing is pending.
    #[track_caller]
    pub(crate) fn settled(&self) -> serde_json::Value {
        eventually_some("nothing is pending", DEADLINE, || {
            let status = self.status();
            (status["pending"] == 0 && status["in_flight"] == 0).then_some(status)
        })
    }
}

fn yaml(data: &TempDir, hub: &str, rest: &str) -> String {
    let routes = if rest.contains("routes:") || rest.contains("admin:") {
        ""
    } else {
        "routes: [{ id: hub, uri: /hub, hub_id: h }, { id: topics, uri: /t/*, hub_id: h }]\n"
    };
    let topics = if hub.contains("topics:") { "" } else { "  topics: [\"http://gw.example/t/*\"]\n" };
    format!("data_dir: {}\n{routes}hubs:\n- id: h\n  url: {HUB}\n{topics}{hub}{rest}", data.path().display())
}

/// Percent-encoding of everything but unreserved characters.
pub(crate) fn encoded(text: &str) -> String {
    let escape = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => (byte as char).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(escape).collect()
}

/// The pairs of a target's query, decoded.
pub(crate) fn query(target: &str) -> Vec<(String, String)> {
    let (_, query) = target.split_once('?').unwrap_or((target, ""));
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decoded(name), decoded(value))
    };
    query.split('&').filter(|pair| !pair.is_empty()).map(pair).collect()
}

fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut out, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let code = text.get(at + 1..at + 3).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match (bytes[at], code) {
            (b'%', Some(code)) => {
                out.push(code);
                at += 2;
            }
            (byte, _) => out.push(byte),
        }
        at += 1;
    }
    String::from_utf8(out).expect("UTF-8")
}

/// The last value of a name: a callback may have one of the same name before it.
pub(crate) fn value(target: &str, name: &str) -> Option<String> {
    query(target).into_iter().rev().find(|(own, _)| own == name).map(|(_, value)| value)
}

type Behaviour = Box<dyn Fn(&Request) -> Option<Answer> + Send + Sync>;

/// A server of callbacks. It verifies what it is asked and takes what it is sent, unless it is told otherwise.
pub(crate) struct Subscriber {
    pub origin: Origin,
    pub scheme: &'static str,
    behaviour: Arc<Mutex<Behaviour>>,
}

impl Subscriber {
    pub(crate) fn start() -> Subscriber {
        Subscriber::of("http", |answer| Origin::serving(answer))
    }

    /// The same over TLS, with a certificate of the authority of the tests.
    pub(crate) fn over_tls() -> Subscriber {
        let identity = Authority::of_tests().identity(&["127.0.0.1"]);
        Subscriber::of("https", |answer| Origin::serving_tls(&TlsServer::new(&identity), answer))
    }

    fn of(
        scheme: &'static str,
        serve: impl FnOnce(Box<dyn Fn(&Request) -> Answer + Send + Sync>) -> Origin,
    ) -> Subscriber {
        let behaviour: Arc<Mutex<Behaviour>> = Arc::new(Mutex::new(Box::new(|_| None)));
        let own = Arc::clone(&behaviour);
        let origin = serve(Box::new(move |request| {
            let told = own.lock().unwrap_or_else(PoisonError::into_inner)(request);
            told.unwrap_or_else(|| usual(request))
        }));
        Subscriber { origin, scheme, behaviour }
    }

    /// From now on it answers what this has an answer for with that.
    pub(crate) fn answer(&self, behaviour: impl Fn(&Request) -> Option<Answer> + Send + Sync + 'static) {
        *self.behaviour.lock().unwrap_or_else(PoisonError::into_inner) = Box::new(behaviour);
    }

    /// From now on it answers deliveries with this status.
    pub(crate) fn refuse(&self, status: u16) {
        self.answer(move |request| (request.method == "POST").then(|| Answer::status(status, "")));
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}://{}{path}", self.scheme, self.origin.addr())
    }

    pub(crate) fn verifications(&self) -> Vec<Request> {
        self.origin.requests().into_iter().filter(|request| request.method == "GET").collect()
    }

    pub(crate) fn deliveries(&self) -> Vec<Request> {
        self.origin.requests().into_iter().filter(|request| request.method == "POST").collect()
    }

    #[track_caller]
    pub(crate) fn wait_deliveries(&self, count: usize) -> Vec<Request> {
        eventually_some(&format!("{count} deliveries"), DEADLINE, || {
            Some(self.deliveries()).filter(|deliveries| deliveries.len() >= count)
        })
    }

    #[track_caller]
    pub(crate) fn wait_verification(&self, count: usize) -> Request {
        eventually_some(&format!("{count} verifications"), DEADLINE, || self.verifications().get(count - 1).cloned())
    }
}

/// What it answers.
pub(crate) fn usual(request: &Request) -> Answer {
    match value(&request.target, "hub.challenge") {
        Some(challenge) if request.method == "GET" => Answer::ok(challenge),
        _ => Answer::status(204, ""),
    }
}

/// Whether a delivery is signed by this method and secret.
pub(crate) fn is_signed(delivery: &Request, method: &str, secret: &str) -> bool {
    let algorithm = match method {
        "sha1" => hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
        "sha256" => hmac::HMAC_SHA256,
        "sha384" => hmac::HMAC_SHA384,
        "sha512" => hmac::HMAC_SHA512,
        other => panic!("no method {other}"),
    };
    let tag = hmac::sign(&hmac::Key::new(algorithm, secret.as_bytes()), &delivery.body);
    let digits: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    delivery.headers.get("X-Hub-Signature") == Some(&*format!("{method}={digits}"))
}
