//! Open Policy Agent decides which requests pass. A stand-in answers as OPA does: with the result of one policy.

use std::net::TcpListener;

use serde_json::{Value, json};
use weir_testkit::{Answer, Client, Gateway, Origin};

/// A gateway whose route `/guarded/*` queries this OPA, also for a consumer. A busy machine must not pass for a slow OPA.
fn gateway(origin: &Origin, opa: &str, more: &str) -> Gateway {
    let timeout = if more.contains("timeout:") { "" } else { "timeout: 20000, " };
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "routes:
  - id: guarded
    name: orders
    uri: /guarded/*
    service_id: shop
    plugins:
      opa: {{ host: \"{opa}\", policy: example/orders, {timeout}{more} }}
  - id: known
    uri: /known/*
    service_id: shop
    plugins:
      key-auth: {{}}
      proxy-rewrite: {{ uri: /inner, method: PUT }}
      opa: {{ host: \"{opa}\", policy: example/orders, {timeout}{more} }}
  - {{ id: free, uri: /free, service_id: shop }}
services:
  - {{ id: shop, name: the shop, upstream: {{ nodes: {{ \"{}\": 1 }}, type: roundrobin }} }}
consumers:
  - {{ username: jack, labels: {{ team: blue }}, plugins: {{ key-auth: {{ key: jacks-key }} }} }}
",
        origin.addr()
    ))
}

/// Answers with what it was told of the user.
fn origin() -> Origin {
    Origin::serving(|request| Answer::ok(request.headers.all("x-user").collect::<Vec<_>>().join("+")))
}

fn json(value: &Value) -> Answer {
    Answer::with(200, "Content-Type: application/json\r\n", value.to_string())
}

/// Allows requests with `X-Role: admin`, as jack.
fn policy() -> Origin {
    Origin::serving(|request| {
        let query: Value = serde_json::from_slice(&request.body).expect("JSON");
        let result = match query["input"]["request"]["headers"]["x-role"].as_str() {
            Some("admin") => json!({"allow": true, "headers": {"x-user": "jack", "X-Other": "1"}}),
            Some("guest") => json!({
                "allow": false, "status_code": 302, "headers": {"Location": "https://login.example/"},
            }),
            _ => json!({"allow": false, "reason": {"error": "no role"}, "headers": {"X-Policy": ["a", "b"]}}),
        };
        json(&json!({ "result": result }))
    })
}

fn url(opa: &Origin) -> String {
    format!("http://{}", opa.addr())
}

/// The inputs of all queries.
fn inputs(opa: &Origin) -> Vec<Value> {
    let input = |content: &[u8]| serde_json::from_slice::<Value>(content).expect("JSON")["input"].take();
    opa.requests().iter().map(|request| input(&request.body)).collect()
}

/// A client by HTTP/1.1, and one by HTTP/2.
fn clients(gateway: &Gateway) -> [Client; 2] {
    [Client::connect(gateway.addr()), Client::connect(gateway.addr()).by_http2()]
}

#[test]
fn a_policy_decides_and_says_who_the_client_is() {
    let (origin, opa) = (origin(), policy());
    let gateway = gateway(&origin, &url(&opa), "send_headers_upstream: [X-User, X-Tenant]");
    for mut client in clients(&gateway) {
        let mut ask = |fields: &str| {
            let request = format!("GET /guarded/a?b=1 HTTP/1.1\r\nHost: shop.example\r\nX-User: root\r\n{fields}\r\n");
            client.ask(request).expect("an answer")
        };
        let passed = ask("X-Role: admin\r\nX-Tenant: other\r\n");
        assert_eq!((passed.status, passed.text()), (200, "jack".to_owned()));
        let away = ask("X-Role: guest\r\n");
        assert_eq!((away.status, away.headers.get("location")), (302, Some("https://login.example/")));
        let refused = ask("");
        assert_eq!((refused.status, refused.text()), (403, r#"{"error":"no role"}"#.to_owned()));
        assert_eq!(refused.headers.get("content-type"), Some("application/json"));
        assert_eq!(refused.headers.all("x-policy").collect::<Vec<_>>(), ["a", "b"]);
    }
    let sent = origin.requests();
    assert_eq!(sent.len(), 2);
    assert!(sent.iter().all(|request| !request.headers.has("x-tenant") && !request.headers.has("x-other")));
    let asked = &opa.requests()[0];
    assert_eq!((&*asked.method, &*asked.target), ("POST", "/v1/data/example/orders"));
    assert_eq!(asked.headers.get("content-type"), Some("application/json"));
}

#[test]
fn a_policy_is_told_the_same_over_both_protocols() {
    let (origin, opa) = (origin(), policy());
    let gateway = gateway(&origin, &url(&opa), "");
    for mut client in clients(&gateway) {
        let request = "GET /free/%2e%2e/guarded/a?b=1&b=2&c HTTP/1.1\r\nHost: Shop.example:81\r\nX-Role: admin\r\n\r\n";
        assert_eq!(client.ask(request).expect("an answer").status, 200);
    }
    let inputs = inputs(&opa);
    for input in &inputs {
        let request = &input["request"];
        let told = ["scheme", "method", "host", "path"].map(|name| request[name].as_str().unwrap_or_default());
        assert_eq!(told, ["http", "GET", "shop.example", "/guarded/a"]);
        assert_eq!(request["query"], json!({"b": ["1", "2"], "c": true}));
        assert_eq!(request["port"], json!(gateway.addr().port()));
        let header = |name: &str| request["headers"][name].as_str().unwrap_or_default().to_ascii_lowercase();
        assert_eq!([header("host"), header("x-role")], ["shop.example:81", "admin"]);
        assert_eq!(input["var"]["remote_addr"], "127.0.0.1");
        assert_eq!(input["var"]["server_port"], json!(gateway.addr().port().to_string()));
        assert!(input.get("route").is_none() && input.get("service").is_none() && input.get("consumer").is_none());
    }
    assert_eq!(inputs.len(), 2);
}

#[test]
fn a_policy_is_told_of_the_route_the_service_and_the_consumer_if_asked_for() {
    let (origin, opa) = (origin(), policy());
    let gateway = gateway(&origin, &url(&opa), "with_route: true, with_service: true, with_consumer: true");
    let ask = |path: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nHost: t\r\nX-Role: admin\r\napikey: jacks-key\r\n\r\n");
        assert_eq!(gateway.client().ask(request).expect("an answer").status, 200);
    };
    ask("/guarded/a");
    ask("/known/a?b=1");
    let inputs = inputs(&opa);
    let route = |id: &str, name: &str, uri: &str| json!({"id": id, "name": name, "uris": [uri], "hosts": [], "service_id": "shop"});
    assert_eq!(inputs[0]["route"], route("guarded", "orders", "/guarded/*"));
    assert_eq!(inputs[0]["service"], json!({"id": "shop", "name": "the shop"}));
    assert!(inputs[0].get("consumer").is_none(), "the client is not identified: {}", inputs[0]);
    assert_eq!(inputs[1]["route"]["id"], "known");
    assert_eq!(inputs[1]["request"]["path"], "/known/a", "as it was before `proxy-rewrite`");
    assert_eq!(inputs[1]["request"]["method"], "GET");
    let consumer = json!({"username": "jack", "group_id": "", "labels": {"team": "blue"}, "credential_id": ""});
    assert_eq!(inputs[1]["consumer"], consumer);
    assert!(!inputs[1].to_string().contains("jacks-key"), "{}", inputs[1]);
    assert_eq!(origin.targets(), ["/guarded/a", "/inner?b=1"]);
}

#[test]
fn without_a_decision_requests_are_refused() {
    let origin = origin();
    let gone = format!("http://127.0.0.1:{}", weir_testkit::free_port());
    let gateway_without = gateway(&origin, &gone, "");
    assert_eq!([gateway_without.get("/guarded/a").status, gateway_without.get("/free").status], [403, 200]);
    gateway_without.wait_stderr("it is said", |text| text.contains("opa: http://127.0.0.1"));
    // Accepts connections and does not answer.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let silent = format!("http://{}", silent.local_addr().expect("it is bound"));
    assert_eq!(gateway(&origin, &silent, "timeout: 200").get("/guarded/a").status, 403);
    for (answer, why) in [
        (Answer::with(200, "", "{}"), "no `result`"),
        (Answer::with(200, "", r#"{"result":true}"#), "not an object with `allow`"),
        (Answer::with(500, "", r#"{"code":"internal_error"}"#), "answered 500"),
        (Answer::with(200, "", "<html>"), "not JSON of OPA"),
        (Answer::with(200, "", r#"{"result":{"allow":true,"headers":{"Content-Length":"9"}}}"#), "not allowed"),
    ] {
        let opa = Origin::serving(move |_| answer.clone());
        let gateway = gateway(&origin, &url(&opa), "");
        assert_eq!(gateway.get("/guarded/a").status, 503, "{why}");
        gateway.wait_stderr("it is said", |text| text.contains(why));
    }
    assert_eq!(origin.targets(), ["/free"]);
}

#[test]
fn connections_to_opa_are_used_again() {
    let (origin, opa) = (origin(), policy());
    let kept = gateway(&origin, &url(&opa), "");
    let mut client = kept.client();
    (0..5).for_each(|_| assert_eq!(client.get("/guarded/a").expect("an answer").status, 403));
    assert_eq!(opa.connections(), 1);
    let new = gateway(&origin, &url(&opa), "keepalive: false");
    (0..2).for_each(|_| assert_eq!(new.get("/guarded/a").status, 403));
    assert_eq!(opa.connections(), 3);
}
