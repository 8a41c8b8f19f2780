//! Tokens in place of keys, and callers who are good for some resources only.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::hmac;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use weir_testkit::{Answer, Authority, Client, DEADLINE, Gateway, Origin, Response, TlsServer, eventually};

use crate::api::{ADMIN, Api, EDITOR, VIEWER, admin_addr, file};
use crate::security::{METHODS, PATHS};
use crate::weir;

const AUDIENCE: &str = "weir-admin";

/// A key that tokens are signed with.
pub(crate) struct Signer {
    id: &'static str,
    pub pair: Ed25519KeyPair,
}

impl Signer {
    pub(crate) fn new(id: &'static str) -> Signer {
        Signer { id, pair: Ed25519KeyPair::generate().expect("the system has random numbers") }
    }

    pub(crate) fn public(&self) -> Value {
        let x = URL_SAFE_NO_PAD.encode(self.pair.public_key().as_ref());
        json!({"kty": "OKP", "crv": "Ed25519", "kid": self.id, "use": "sig", "x": x})
    }

    pub(crate) fn token(&self, claims: &Value) -> String {
        let signed = signed_part(&json!({"alg": "EdDSA", "kid": self.id}), claims);
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(self.pair.sign(signed.as_bytes())))
    }
}

pub(crate) fn signed_part(head: &Value, claims: &Value) -> String {
    let encoded = |part: &Value| URL_SAFE_NO_PAD.encode(part.to_string());
    format!("{}.{}", encoded(head), encoded(claims))
}

/// Who signs: a server that says with which keys. Its keys can be exchanged.
struct Issuer {
    origin: Origin,
    keys: Arc<Mutex<Vec<Value>>>,
    url: String,
}

impl Issuer {
    fn answer(keys: &Mutex<Vec<Value>>, url: &str, target: &str) -> Answer {
        match target {
            "/keys" => Answer::ok(json!({ "keys": *keys.lock().expect("no test panics here") }).to_string()),
            "/.well-known/openid-configuration" => {
                Answer::ok(json!({ "issuer": url, "jwks_uri": format!("{url}/keys") }).to_string())
            }
            _ => Answer::status(404, ""),
        }
    }

    fn start(keys: &[&Signer], over_tls: bool) -> Issuer {
        let keys = Arc::new(Mutex::new(keys.iter().map(|key| key.public()).collect::<Vec<Value>>()));
        let url = Arc::new(Mutex::new(String::new()));
        let answering = {
            let (keys, url) = (Arc::clone(&keys), Arc::clone(&url));
            move |request: &weir_testkit::Request| {
                Issuer::answer(&keys, &url.lock().expect("no test panics here"), &request.target)
            }
        };
        let origin = match over_tls {
            true => Origin::serving_tls(&TlsServer::new(&Authority::of_tests().identity(&["localhost"])), answering),
            false => Origin::serving(answering),
        };
        let scheme = if over_tls { "https" } else { "http" };
        let own = format!("{scheme}://localhost:{}", origin.addr().port());
        url.lock().expect("no test panics here").clone_from(&own);
        Issuer { origin, keys, url: own }
    }

    /// The settings of a node that accepts its tokens.
    fn settings(&self) -> String {
        tokens(&self.url, "")
    }

    fn claims(&self, groups: &[&str]) -> Value {
        json!({"iss": self.url, "aud": AUDIENCE, "sub": "alice", "exp": now_s() + 600, "groups": groups})
    }
}

fn tokens(issuer: &str, more: &str) -> String {
    format!(
        "  tokens:\n    issuer: \"{issuer}\"\n    audience: {AUDIENCE}\n{more}    roles:\n      claim: groups\n      map:\n        \
         ops: admin\n        dev: editor\n        all: viewer\n        \
         team-a: {{ role: editor, scopes: [{{ kinds: [routes, consumers], labels: {{ team: a }} }}, {{ id_prefix: a- }}] }}\n"
    )
}

pub(crate) fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later than 1970").as_secs()
}

/// Asks with whatever says who asks.
#[track_caller]
fn ask(address: SocketAddr, who: &str, method: &str, path: &str, body: &str) -> Response {
    let length = body.len();
    let request = format!(
        "{method} /apisix/admin/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{who}\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    Client::connect(address).ask(request).unwrap_or_else(|error| panic!("{method} {path}: {error}"))
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}")
}

fn with_key(key: &str) -> String {
    format!("X-API-KEY: {key}")
}

fn with(claims: &Value, name: &str, value: Value) -> Value {
    let mut claims = claims.clone();
    claims[name] = value;
    claims
}

#[test]
fn a_token_must_be_good_and_for_this_api() {
    let (signer, other) = (Signer::new("one"), Signer::new("one"));
    let issuer = Issuer::start(&[&signer], false);
    let gateway = weir().start(&format!("{}{}", file(), issuer.settings()));
    let address = admin_addr(&gateway);
    let good = issuer.claims(&["ops"]);
    let ends_with = |part: &str| format!("{}.{part}", signed_part(&json!({"alg": "none"}), &good));
    let by_secret = {
        // The public key is no secret, so it must not count as one.
        let signed = signed_part(&json!({"alg": "HS256", "kid": "one"}), &good);
        let key = hmac::Key::new(hmac::HMAC_SHA256, signer.pair.public_key().as_ref());
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(hmac::sign(&key, signed.as_bytes())))
    };
    let changed = {
        let token = signer.token(&issuer.claims(&["all"]));
        let signature = token.rsplit('.').next().expect("a signature");
        format!("{}.{signature}", signed_part(&json!({"alg": "EdDSA", "kid": "one"}), &good))
    };
    let mut without_expiry = good.clone();
    without_expiry.as_object_mut().expect("a map").remove("exp");
    let now = now_s();
    let table = [
        (signer.token(&good), 200, ""),
        (signer.token(&with(&good, "aud", json!(["other", AUDIENCE]))), 200, ""),
        (signer.token(&with(&good, "aud", json!("other"))), 401, "for another audience"),
        (signer.token(&with(&good, "iss", json!("https://other.example"))), 401, "issuer is not accepted"),
        (signer.token(&with(&good, "exp", json!(now - 60))), 401, "has expired"),
        (signer.token(&with(&good, "nbf", json!(now + 60))), 401, "not valid yet"),
        (signer.token(&without_expiry), 401, "no expiry"),
        (signer.token(&with(&good, "sub", json!(""))), 401, "whose it is"),
        (signer.token(&with(&good, "groups", json!(["other"]))), 403, "no value of the token"),
        (other.token(&good), 401, "signature of the token is not valid"),
        (changed, 401, "signature of the token is not valid"),
        (by_secret, 401, "signature of the token is not valid"),
        (ends_with("x"), 401, "algorithm of the token is not accepted"),
        ("nonsense".to_owned(), 401, "is not a signed JWT"),
    ];
    for (token, status, told) in &table {
        let answer = ask(address, &bearer(token), "GET", "routes", "");
        assert_eq!(answer.status, *status, "{told}: {}", answer.text());
        assert!(answer.text().contains(told), "{told}: {}", answer.text());
        assert_eq!(answer.headers.get("www-authenticate").is_some(), *status == 401, "{told}");
    }
    assert_eq!(issuer.origin.targets().iter().filter(|target| *target == "/keys").count(), 1, "keys are read once");
    // Who has done it stands in the history.
    let token = bearer(&signer.token(&good));
    assert_eq!(ask(address, &token, "PUT", "routes/r", r#"{"uri": "/r", "plugins": {}}"#).status, 201);
    let history = ask(address, &with_key(ADMIN), "GET", "history", "").text();
    assert!(history.contains("\"name\":\"token:alice\""), "{history}");
    assert!(!gateway.stderr().contains(&token), "{}", gateway.stderr());
}

/// The answer to a log-in with a token, and a stream that was begun with it; `None` if the token has ended meanwhile.
fn begun_with(address: SocketAddr, token: &str) -> Option<(Response, Client)> {
    let body = json!({ "bearer": token }).to_string();
    let head = format!("POST /weir/v1/session HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {}\r\n\r\n", body.len());
    let answer = Client::connect(address).ask(head + &body).expect("a response");
    let mut stream = Client::connect(address);
    stream.send(format!("GET /weir/v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n{}\r\n\r\n", bearer(token)));
    let status = stream.response_head("GET").expect("a head").status;
    (answer.status == 200 && status == 200).then_some((answer, stream))
}

#[test]
fn sessions_and_streams_end_with_the_token_that_they_were_begun_with() {
    let signer = Signer::new("one");
    let issuer = Issuer::start(&[&signer], false);
    let gateway = weir().start(&format!("{}{}", file(), issuer.settings()));
    let address = admin_addr(&gateway);
    // Clocks may differ by 10 s, so it is accepted for 3 s more: on a busy machine for longer, until both can be begun with it.
    let (exp, answer, mut stream) = [7, 0, -10, -50]
        .into_iter()
        .find_map(|ago_s| {
            let exp = now_s().saturating_add_signed(-ago_s);
            let token = signer.token(&with(&issuer.claims(&["all"]), "exp", json!(exp)));
            let (answer, stream) = begun_with(address, &token)?;
            Some((exp, answer, stream))
        })
        .expect("a minute is enough");
    let told: Value = serde_json::from_str(&answer.text()).expect("JSON");
    let expires_s = told["expires_ms"].as_u64().map(|ms| ms / 1_000);
    assert!(expires_s.is_some_and(|at| at <= exp + 10 && at > exp), "{told}");
    let last = loop {
        let line: Value = serde_json::from_str(&stream.text_to("\n").expect("a line")).expect("JSON");
        if line["type"] != "frame" {
            break line;
        }
    };
    assert_eq!(last["type"], "ended", "{last}");
    assert!(now_s() >= exp + 10);
    let cookie = answer.headers.get("set-cookie").and_then(|set| set.split(';').next()).expect("a cookie");
    let session = format!("X-Weir-Session: {}\r\nCookie: {cookie}", told["token"].as_str().expect("a text"));
    let ended = || ask(address, &session, "GET", "routes", "").status == 401;
    eventually("the session ends", DEADLINE, ended);
}

#[test]
fn tokens_are_good_for_what_keys_of_their_role_are() {
    let signer = Signer::new("one");
    let issuer = Issuer::start(&[&signer], false);
    let gateway = weir().start(&format!("{}{}", file(), issuer.settings()));
    let address = admin_addr(&gateway);
    let token = |groups: &[&str]| bearer(&signer.token(&issuer.claims(groups)));
    let roles = [(ADMIN, token(&["ops"])), (EDITOR, token(&["dev"])), (VIEWER, token(&["all"]))];
    let nobody = token(&["other"]);
    for path in PATHS {
        for method in METHODS {
            let is_refused = |who: &str| matches!(ask(address, who, method, path, "{}").status, 401 | 403);
            for (key, token) in &roles {
                assert_eq!(is_refused(token), is_refused(&with_key(key)), "{method} {path} with {key}");
            }
            let status = ask(address, &nobody, method, path, "{}").status;
            let is_refused = matches!((method, status), (_, 403) | ("HEAD", 404) | ("TRACE", 405));
            assert!(is_refused, "{method} {path}: {status}");
        }
    }
}

#[test]
fn keys_of_an_issuer_are_found_over_https_and_may_change() {
    let (old, new) = (Signer::new("old"), Signer::new("new"));
    let issuer = Issuer::start(&[&old], true);
    let roots = Authority::of_tests().certificate.replace('\n', "\n  ");
    let settings = format!("{}{}ssl_trusted_certificate: |\n  {roots}\n", file(), issuer.settings());
    let gateway = weir().start(&settings);
    let address = admin_addr(&gateway);
    let status = |signer: &Signer| {
        let token = bearer(&signer.token(&issuer.claims(&["ops"])));
        ask(address, &token, "GET", "routes", "").status
    };
    assert_eq!((status(&old), status(&new)), (200, 401));
    *issuer.keys.lock().expect("no test panics here") = vec![new.public()];
    eventually("the new keys are read", DEADLINE, || status(&new) == 200);
    assert_eq!(status(&old), 401, "a key that is gone counts for nothing");
}

#[test]
fn an_issuer_that_cannot_be_asked_lets_nobody_in() {
    let signer = Signer::new("one");
    let issuer = Issuer::start(&[&signer], false);
    let other = Issuer::start(&[&signer], false);
    let claims = |url: &str| with(&issuer.claims(&["ops"]), "iss", json!(url));
    let told = |settings: &str, url: &str| {
        let gateway: Gateway = weir().start(&format!("{}{settings}", file()));
        let answer = ask(admin_addr(&gateway), &bearer(&signer.token(&claims(url))), "GET", "routes", "");
        assert_eq!(answer.status, 503, "{}", answer.text());
        Api::of(&gateway).get("routes");
        answer.text()
    };
    let gone = format!("http://127.0.0.1:{}", weir_testkit::free_port());
    assert!(told(&tokens(&gone, ""), &gone).contains("cannot be verified: http://127.0.0.1"));
    let borrowed = format!("    discovery: \"{}/.well-known/openid-configuration\"\n", other.url);
    assert!(told(&tokens(&issuer.url, &borrowed), &issuer.url).contains("is the document of another issuer"));
    let missing = format!("    jwks_uri: \"{}/none\"\n", issuer.url);
    assert!(told(&tokens(&issuer.url, &missing), &issuer.url).contains("answers with 404"));
}

#[test]
fn a_scope_is_all_there_is_for_who_has_one() {
    let signer = Signer::new("one");
    let issuer = Issuer::start(&[&signer], false);
    let scoped = "  - { name: team, key: the-key-of-a-team, role: editor, scopes: \
                  [{ kinds: [routes, consumers], labels: { team: a } }, { id_prefix: a- }] }\n";
    let route = |team: &str| json!({"uri": format!("/{team}"), "labels": {"team": team}, "plugins": {}}).to_string();
    let jack = |team: &str| json!({"username": "jack", "labels": {"team": team}}).to_string();
    let plain = r#"{"nodes": {"127.0.0.1:1": 1}}"#;
    let credential = r#"{"plugins": {"key-auth": {"key": "k-of-jack"}}, "labels": {"team": "a"}}"#;
    let both = |of: &str| {
        json!({"operations": [{"put": "routes/a-2", "value": {"uri": "/2", "plugins": {}}}, {"put": of, "value": {"uri": "/3", "plugins": {}}}]}).to_string()
    };
    // (method, path, body, status)
    let table = [
        ("PUT", "routes/own", route("a"), 201),
        ("PUT", "routes/own", route("b"), 403),
        ("PATCH", "routes/own", r#"{"labels": {"team": "b"}}"#.to_owned(), 403),
        ("GET", "routes/own", String::new(), 200),
        ("GET", "routes/other", String::new(), 404),
        ("PUT", "routes/other", route("a"), 403),
        ("PATCH", "routes/other", r#"{"name": "n"}"#.to_owned(), 403),
        ("DELETE", "routes/other", String::new(), 403),
        ("POST", "routes", route("a"), 201),
        ("POST", "routes", route("b"), 403),
        ("PUT", "upstreams/a-1", plain.to_owned(), 201),
        ("PUT", "upstreams/b-1", plain.to_owned(), 403),
        ("GET", "upstreams/b-0", String::new(), 404),
        ("PUT", "consumers/jack/credentials/c", credential.to_owned(), 403),
        ("GET", "consumers/jack/credentials", String::new(), 404),
        ("PUT", "consumers", jack("a"), 403),
        ("PATCH", "configs", both("routes/b-2"), 403),
        ("PATCH", "configs", both("routes/a-3"), 200),
        ("DELETE", "upstreams/a-1?force=true", String::new(), 403),
        ("DELETE", "upstreams/a-1", String::new(), 200),
        ("GET", "history/1", String::new(), 404),
        ("POST", "history/1/rollback", String::new(), 403),
        ("DELETE", "routes/own", String::new(), 200),
    ];
    let token = bearer(&signer.token(&issuer.claims(&["team-a"])));
    for who in [with_key("the-key-of-a-team"), token] {
        let gateway = weir().start(&format!("{}{scoped}{}", file(), issuer.settings()));
        let mut api = Api::of(&gateway);
        api.put("routes/other", &route("b"));
        api.put("upstreams/b-0", plain);
        api.put("consumers", &jack("b"));
        api.put("consumers/jack/credentials/b", &credential.replace("k-of", "b-of"));
        let address = admin_addr(&gateway);
        for (method, path, body, status) in &table {
            let answer = ask(address, &who, method, path, body);
            assert_eq!(answer.status, *status, "{method} {path} {body}: {}", answer.text());
        }
        let seen = ["routes", "upstreams", "consumers", "history"];
        let seen: String = seen.iter().map(|path| ask(address, &who, "GET", path, "").text()).collect();
        assert!(!seen.contains("\"b\"") && !seen.contains("b-0") && !seen.contains("jack"), "{seen}");
        assert!(seen.contains("routes/own") && seen.contains("routes/a-2"), "{seen}");
        assert_eq!(api.get("routes/other")["value"]["labels"]["team"], "b");
    }
}
