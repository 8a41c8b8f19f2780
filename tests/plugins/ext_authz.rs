//! An authorization service with Envoy's protocol decides which requests pass: in Python and in Go, with the libraries of gRPC and the
//! public messages, and over HTTP.

use std::path::Path;

use serde_json::{Value, json};
use weir_testkit::{
    Answer, Authority, Client, DEADLINE, Gateway, Identity, Origin, Reading, Request, Response, TempDir, eventually,
    free_port,
};

use crate::envoy_service::{Service, call, python};
use crate::http2_streams;

/// The same service in Python and in Go, as far as they are there.
fn services() -> impl Iterator<Item = Service> {
    services_with(&[])
}

/// The same with a certificate and a key, for TLS.
fn services_with(files: &[&Path]) -> impl Iterator<Item = Service> {
    [Service::start("authz.py", files), Service::start_go("ext_authorizer", files)].into_iter().flatten()
}

impl Service {
    fn answers(&mut self, answer: Value) {
        self.order(&json!({ "answer": answer }));
    }

    /// The HTTP requests of the checks since the last order.
    fn asked(&mut self) -> Vec<Value> {
        let checks = self.order(&json!({}));
        checks.into_iter().map(|mut one| one["check"]["attributes"]["request"]["http"].take()).collect()
    }
}

/// A gateway whose route `/guarded/*` asks this gRPC service; `/free` asks none.
fn gateway(origin: &Origin, service: &str, more: &str) -> Gateway {
    let plugin = format!("grpc_service: {{ uri: \"http://{service}\", timeout: 60s }}, {more}");
    with_plugins(origin, &format!("ext-authz: {{ {plugin} }}"))
}

fn with_plugins(origin: &Origin, plugins: &str) -> Gateway {
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "enable_access_log: {{ path: access.log, format: \"$uri $status $ext_authz_org_id $ext_authz_roles\" }}
routes:
  - {{ id: guarded, uri: /guarded/*, enable_websocket: true, plugins: {{ {plugins} }}, upstream: {{ nodes: {{ \"{addr}\": 1 }}, type: roundrobin }} }}
  - {{ id: free, uri: /free, upstream: {{ nodes: {{ \"{addr}\": 1 }}, type: roundrobin }} }}
",
        addr = origin.addr()
    ))
}

fn origin() -> Origin {
    Origin::serving(|_| Answer::with(200, "Set-Cookie: own=1\r\nX-Old: 1\r\n", "through"))
}

/// A client by HTTP/1.1, and one by HTTP/2.
fn clients(gateway: &Gateway) -> [Client; 2] {
    [Client::connect(gateway.addr()), Client::connect(gateway.addr()).by_http2()]
}

fn ask(client: &mut Client, request: &str) -> Response {
    client.ask(request).expect("an answer")
}

fn values(request: &Request, name: &str) -> String {
    request.headers.all(name).collect::<Vec<_>>().join("+")
}

fn allowed() -> Value {
    json!({ "status": { "code": 0 } })
}

const GET: &str = "GET /guarded/a HTTP/1.1\r\nHost: t\r\n\r\n";

#[test]
fn ext_authz_tells_a_grpc_service_of_the_request_and_lets_it_pass() {
    services().for_each(tell_of_a_request);
}

fn tell_of_a_request(mut service: Service) {
    let origin = origin();
    let options = "grpc_service: { uri: \"http://SERVICE\", timeout: 60s, authority: authz.example, initial_metadata: { x-node: a$route_id } }, \
         context_extensions: { route: $route_id, fixed: text }, disallowed_headers: [X-Secret]"
        .replace("SERVICE", &service.address);
    let gateway =
        with_plugins(&origin, &format!("proxy-rewrite: {{ uri: /inner, method: PUT }}, ext-authz: {{ {options} }}"));
    service.answers(allowed());
    for (number, mut client) in clients(&gateway).into_iter().enumerate() {
        let request = "REPORT /guarded/%61/../b?c=1 HTTP/1.1\r\nHost: shop.example\r\nX-A: 1\r\nX-A: 2\r\nX-Secret: 1\r\n\
             X-Forwarded-For: 10.0.0.1\r\n\r\n";
        assert_eq!(ask(&mut client, request).text(), "through");
        let checks = service.order(&json!({}));
        let attributes = &checks[0]["check"]["attributes"];
        let http = &attributes["request"]["http"];
        let told = ["method", "path", "host", "scheme", "protocol"].map(|name| http[name].as_str().unwrap_or_default());
        let protocol = ["HTTP/1.1", "HTTP/2"][number];
        assert_eq!(told, ["REPORT", "/guarded/b?c=1", "shop.example", "http", protocol]);
        let headers = &http["headers"];
        assert_eq!((&headers["x-a"], &headers[":method"]), (&json!("1, 2"), &json!("REPORT")));
        assert_eq!((&headers["x-forwarded-for"], &headers["x-secret"]), (&json!("127.0.0.1"), &Value::Null));
        assert!(http["id"].as_str().is_some_and(|id| id.len() == 32), "{http}");
        let peer = &attributes["source"]["address"]["socketAddress"];
        assert_eq!(peer["address"], "127.0.0.1");
        assert!(peer["portValue"].as_u64().is_some_and(|port| port > 0));
        assert_eq!(attributes["destination"]["address"]["socketAddress"]["portValue"], gateway.addr().port());
        assert_eq!(attributes["contextExtensions"], json!({"route": "guarded", "fixed": "text"}));
        assert_eq!(checks[0]["metadata"]["x-node"], "aguarded");
        assert_eq!(origin.requests().last().expect("it was forwarded").target, "/inner?c=1");
    }
    assert_eq!(gateway.get("/free").status, 200);
    assert!(service.asked().is_empty());
}

#[test]
fn ext_authz_sends_the_refusal_of_a_service_to_the_client() {
    services().for_each(send_a_refusal);
}

fn send_a_refusal(mut service: Service) {
    let origin = origin();
    let gateway = gateway(&origin, &service.address, "");
    let header = |name: &str, value: &str| json!({"header": {"key": name, "value": value}});
    service.answers(json!({
        "status": {"code": 16},
        "deniedResponse": {
            "status": {"code": "Unauthorized"}, "body": "{\"who\":\"are you\"}",
            "headers": [
                header("www-authenticate", "Bearer"), header("content-type", "application/json"),
                header("set-cookie", "a=1"), header("set-cookie", "b=2"), header("content-length", "1"),
            ],
        },
        "dynamicMetadata": {"org.id": "seven"},
    }));
    for mut client in clients(&gateway) {
        let answer = ask(&mut client, GET);
        assert_eq!((answer.status, &*answer.text()), (401, "{\"who\":\"are you\"}"));
        assert_eq!(answer.headers.get("www-authenticate"), Some("Bearer"));
        assert_eq!(answer.headers.all("content-type").collect::<Vec<_>>(), ["application/json"]);
        assert_eq!(answer.headers.all("set-cookie").collect::<Vec<_>>(), ["a=1", "b=2"]);
    }
    let log = gateway.directory().join("access.log");
    eventually("it is logged", DEADLINE, || {
        std::fs::read_to_string(&log).is_ok_and(|log| log.contains("/guarded/a 401 seven -"))
    });
    service.answers(json!({"status": {"code": 7}}));
    assert_eq!(gateway.get("/guarded/a").status, 403);
    assert!(origin.requests().is_empty());
}

#[test]
fn ext_authz_changes_requests_responses_and_variables_as_the_service_says() {
    services().for_each(change_all);
}

fn change_all(mut service: Service) {
    let origin = origin();
    let options = format!(
        "grpc_service: {{ uri: \"http://{}\", timeout: 60s }}, remove_client_headers: [X-Only]",
        service.address
    );
    let plugins = format!(
        "ext-authz: {{ {options} }}, response-rewrite: {{ headers: {{ set: {{ X-Org: \"$ext_authz_org_id\" }} }} }}"
    );
    let gateway = with_plugins(&origin, &plugins);
    let header = |name: &str, value: &str, more: Value| {
        let mut option = json!({"header": {"key": name, "value": value}});
        option.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        option
    };
    service.answers(json!({
        "status": {"code": 0},
        "okResponse": {
            "headers": [
                header("x-user", "jack", json!({})),
                header("x-role", "b", json!({"append": true})),
                header("x-new", "1", json!({"appendAction": "ADD_IF_ABSENT"})),
                header("x-there", "2", json!({"appendAction": "ADD_IF_ABSENT"})),
                header("x-none", "2", json!({"appendAction": "OVERWRITE_IF_EXISTS"})),
            ],
            "headersToRemove": ["authorization", "host", ":path"],
            "responseHeadersToAdd": [header("set-cookie", "session=2", json!({})), header("x-old", "2", json!({}))],
            "queryParametersToSet": [{"key": "tenant", "value": "a b&admin=1"}],
            "queryParametersToRemove": ["token"],
        },
        "dynamicMetadata": {"org.id": 7, "roles": ["a", {"b": true}]},
    }));
    for mut client in clients(&gateway) {
        let request = "GET /guarded/a?%74oken=x&b=1&tenant=z HTTP/1.1\r\nHost: t\r\nAuthorization: secret\r\nX-User: root\r\nX-User: admin\r\n\
             X-Role: a\r\nX-There: 1\r\nX-Only: root\r\n\r\n";
        let answer = ask(&mut client, request);
        assert_eq!(
            (answer.status, answer.headers.get("x-org"), answer.headers.get("x-old")),
            (200, Some("7"), Some("2"))
        );
        assert_eq!(answer.headers.all("set-cookie").collect::<Vec<_>>(), ["own=1", "session=2"]);
        let sent = origin.requests().pop().expect("it was forwarded");
        assert_eq!(sent.target, "/guarded/a?b=1&tenant=a%20b%26admin%3D1");
        let told = ["x-user", "x-role", "x-new", "x-there", "x-none", "authorization", "x-only", "host"];
        assert_eq!(told.map(|name| values(&sent, name)), ["jack", "a+b", "1", "1", "", "", "", "t"]);
    }
    let log = gateway.directory().join("access.log");
    eventually("it is logged", DEADLINE, || {
        std::fs::read_to_string(&log).is_ok_and(|log| log.contains("/guarded/a 200 7 [\\x22a\\x22,{\\x22b\\x22:true}]"))
    });
    service.answers(allowed());
    assert_eq!(gateway.get("/guarded/a").headers.get("x-org"), None, "nothing is left for the next exchange");
}

#[test]
fn ext_authz_refuses_while_the_service_fails_unless_failures_are_allowed() {
    services().for_each(fail_in_every_way);
}

fn fail_in_every_way(mut service: Service) {
    let origin = origin();
    let strict = gateway(&origin, &service.address, "status_on_error: 503");
    let lenient = gateway(&origin, &service.address, "failure_mode_allow: true, failure_mode_allow_header_add: true");
    let header = |name: &str| json!({"answer": {"status": {"code": 0}, "okResponse": {"headers": [{"header": {"key": name, "value": "a"}}]}}});
    for (order, named) in [
        (json!({"fail": "UNAVAILABLE"}), "14 (UNAVAILABLE)"),
        (json!({"fail": "PERMISSION_DENIED"}), "7 (PERMISSION_DENIED)"),
        (json!({"raw": "0aff"}), "no valid CheckResponse"),
        (json!({"raw": ""}), "neither `status` nor"),
        (json!({"answer": {"status": {"code": 0}, "deniedResponse": {}}}), "a response for a refusal"),
        (
            json!({"answer": {"status": {"code": 7}, "deniedResponse": {"status": {"code": 100}}}}),
            "the status of the response is 100",
        ),
        (header("x a"), "the field \"x a\" is not allowed"),
        (header(":path"), "the field \":path\""),
        (header("host"), "the field \"host\""),
        (header("content-length"), "the field \"content-length\""),
        (header("x-forwarded-for"), "the field \"x-forwarded-for\""),
    ] {
        service.order(&order);
        origin.forget();
        for mut client in clients(&strict) {
            assert_eq!(ask(&mut client, GET).status, 503, "{named}");
        }
        assert!(origin.requests().is_empty(), "{named}");
        let forged = "GET /guarded/a HTTP/1.1\r\nHost: t\r\nX-Envoy-Auth-Failure-Mode-Allowed: no\r\n\r\n";
        assert_eq!(ask(&mut lenient.client(), forged).status, 200, "{named}");
        assert_eq!(values(&origin.requests()[0], "x-envoy-auth-failure-mode-allowed"), "true", "{named}");
        // Of failures that follow each other, the first is logged.
        let fresh = gateway(&origin, &service.address, "");
        assert_eq!(fresh.get("/guarded/a").status, 403, "{named}");
        fresh.wait_stderr("the failure is logged", |text| text.contains("ext-authz: http://") && text.contains(named));
    }
    service.answers(json!({"status": {"code": 13}, "errorResponse": {"status": {"code": 502}, "body": "later"}}));
    let told = strict.get("/guarded/a");
    assert_eq!((told.status, &*told.text()), (502, "later"));
    assert_eq!(lenient.get("/guarded/a").status, 200);
    service.answers(allowed());
    let forged = "GET /guarded/a HTTP/1.1\r\nHost: t\r\nX-Envoy-Auth-Failure-Mode-Allowed: true\r\n\r\n";
    assert_eq!(ask(&mut lenient.client(), forged).status, 200);
    let sent = origin.requests().pop().expect("it was forwarded");
    assert_eq!(values(&sent, "x-envoy-auth-failure-mode-allowed"), "", "the service has decided");
}

#[test]
fn ext_authz_asks_over_tls_a_service_that_proves_its_name() {
    let place = TempDir::new();
    let authority = Authority::of_tests();
    let Identity { certificate, key } = authority.identity(&["localhost"]);
    let (certificate, key) = (place.write("certificate.pem", certificate), place.write("key.pem", key));
    for service in services_with(&[&certificate, &key]) {
        ask_over_tls(service, &place.write("roots.pem", &authority.certificate));
    }
}

fn ask_over_tls(mut service: Service, roots: &Path) {
    service.answers(allowed());
    let origin = origin();
    let (_, port) = service.address.split_once(':').expect("a port");
    let asking = |host: &str, verify: bool| {
        Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).env("SSL_CERT_FILE", &roots.to_string_lossy()).start(&format!(
            "routes: [{{ uri: /*, plugins: {{ ext-authz: {{ grpc_service: {{ uri: \"https://{host}:{port}\", timeout: 60s, \
             ssl_verify: {verify} }} }} }}, upstream: {{ nodes: {{ \"{}\": 1 }} }} }}]\n",
            origin.addr()
        ))
    };
    assert_eq!(asking("localhost", true).get("/a").status, 200);
    assert_eq!(asking("127.0.0.1", true).get("/a").status, 403, "the certificate is for another name");
    assert_eq!(asking("127.0.0.1", false).get("/a").status, 200);
}

#[test]
fn ext_authz_does_not_wait_for_a_service_that_is_slow_or_gone() {
    services().for_each(be_slow_and_gone);
}

fn be_slow_and_gone(mut service: Service) {
    let origin = origin();
    let slow = |address: &str, more: &str| {
        with_plugins(
            &origin,
            &format!("ext-authz: {{ grpc_service: {{ uri: \"http://{address}\", timeout: 50 }}, {more} }}"),
        )
    };
    service.order(&json!({"hold": true}));
    let (strict, lenient) = (slow(&service.address, ""), slow(&service.address, "failure_mode_allow: true"));
    assert_eq!([strict.get("/guarded/a").status, strict.get("/free").status], [403, 200]);
    assert_eq!(lenient.get("/guarded/a").status, 200);
    strict.wait_stderr("the time-out is logged", |text| text.contains("within 50 ms"));
    service.answers(allowed());
    let gone = format!("127.0.0.1:{}", free_port());
    assert_eq!(slow(&gone, "").get("/guarded/a").status, 403);
    assert_eq!(slow(&gone, "failure_mode_allow: true").get("/guarded/a").status, 200);
}

#[test]
fn ext_authz_sends_content_up_to_a_limit() {
    services().for_each(send_content);
}

fn send_content(mut service: Service) {
    let origin = origin();
    let whole = gateway(&origin, &service.address, "with_request_body: { max_request_bytes: 4 }");
    let partial = gateway(
        &origin,
        &service.address,
        "with_request_body: { max_request_bytes: 4, allow_partial_message: true, max_held_bytes: 8, pack_as_bytes: true }",
    );
    service.answers(allowed());
    let sized = |body: &str| {
        format!(
            "POST /guarded/a HTTP/1.1\r\nHost: t\r\nX-Envoy-Auth-Partial-Body: true\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let chunked = |body: &str| {
        format!(
            "POST /guarded/a HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
            body.len()
        )
    };
    let marked = |http: &Value| http["headers"]["x-envoy-auth-partial-body"].as_str().unwrap_or_default().to_owned();
    for request in [sized("abcd"), chunked("abcd")] {
        origin.forget();
        assert_eq!(ask(&mut whole.client(), &request).status, 200);
        let asked = service.asked();
        assert_eq!((asked.len(), asked[0]["body"].as_str(), &*marked(&asked[0])), (1, Some("abcd"), "false"));
        assert_eq!(origin.requests()[0].body, b"abcd");
    }
    for request in [sized("abcde"), chunked("abcde")] {
        origin.forget();
        assert_eq!(ask(&mut whole.client(), &request).status, 413);
        assert!(service.asked().is_empty() && origin.requests().is_empty());
        assert_eq!(ask(&mut partial.client(), &request).status, 200);
        let asked = service.asked();
        // The bytes of `abcd` in base64.
        assert_eq!((asked[0]["rawBody"].as_str(), &*marked(&asked[0])), (Some("YWJjZA=="), "true"));
        assert_eq!(origin.requests()[0].body, b"abcde");
    }
    assert_eq!(ask(&mut partial.client(), &sized("abcdefghi")).status, 413);
    assert_eq!(ask(&mut whole.client(), GET).status, 200);
    assert_eq!(marked(&service.asked()[0]), "false", "a request without content is judged at once");
    let mut waiting = whole.client();
    waiting.send("POST /guarded/a HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
    assert_eq!(waiting.next_head().expect("an interim response").status, 100);
    waiting.send("ok");
    assert_eq!(waiting.response_to("POST").expect("an answer").status, 200);
    assert_eq!(service.asked()[0]["body"], "ok");
    service.answers(json!({"status": {"code": 7}}));
    origin.forget();
    for mut client in clients(&whole) {
        assert_eq!(ask(&mut client, &sized("no")).status, 403);
    }
    assert!(origin.requests().is_empty());
}

#[test]
fn ext_authz_refuses_content_before_the_client_sends_it() {
    services().for_each(refuse_early);
}

fn refuse_early(mut service: Service) {
    let origin = origin();
    let gateway = gateway(&origin, &service.address, "");
    service.answers(json!({"status": {"code": 7}}));
    let mut client = gateway.client();
    client.send("POST /guarded/a HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
    assert_eq!(client.next_head().expect("a response").status, 403);
}

#[test]
fn ext_authz_guards_websockets_event_streams_and_grpc_calls() {
    services().for_each(guard_streams);
}

fn guard_streams(mut service: Service) {
    let origin = Origin::scripted(Reading::Strict, |connection| {
        let Ok(request) = connection.request() else { return };
        let answer = match request.headers.get("upgrade") {
            Some(_) => {
                "HTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\nhello"
            }
            None => "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\ndata: 1\n\n",
        };
        connection.send(answer).expect("the gateway reads");
        connection.close();
    });
    let gateway = gateway(&origin, &service.address, "with_request_body: { max_request_bytes: 100 }");
    let upgrade = "GET /guarded/socket HTTP/1.1\r\nHost: t\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    service.answers(json!({"status": {"code": 7}}));
    for request in [upgrade, GET] {
        assert_eq!(ask(&mut gateway.client(), request).status, 403);
    }
    assert_eq!(http2_streams::websocket(&gateway, "/free", "/guarded/socket"), 403);
    assert!(origin.targets().iter().all(|target| target == "/free"));
    service.answers(json!({
        "status": {"code": 0}, "okResponse": {"headers": [{"header": {"key": "x-user", "value": "jack"}}]},
    }));
    let mut socket = gateway.client();
    socket.send(upgrade);
    assert_eq!(socket.next_head().expect("a response").status, 101);
    assert_eq!(socket.exact(5).expect("what the origin says"), b"hello");
    assert_eq!(http2_streams::websocket(&gateway, "/free", "/guarded/socket"), 200);
    for asked in service.asked() {
        assert_eq!((&asked["method"], &asked["headers"]["upgrade"]), (&json!("GET"), &json!("websocket")));
    }
    assert_eq!(ask(&mut gateway.client(), GET).text(), "data: 1\n\n");
    let guarded = origin.requests().into_iter().filter(|request| request.target != "/free");
    assert_eq!(guarded.map(|request| values(&request, "x-user")).collect::<Vec<_>>(), ["jack"; 3]);
    assert_eq!(service.asked().len(), 1);
    let Some(_) = python() else { return };
    // The service is the upstream as well, and its client is in Python.
    let calls = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "routes: [{{ uri: /*, plugins: {{ ext-authz: {{ grpc_service: {{ uri: \"http://{0}\", timeout: 60s }} }} }}, \
         upstream: {{ scheme: grpc, nodes: {{ \"{0}\": 1 }} }} }}]\n",
        service.address
    ));
    let call = || call(calls.addr());
    assert_eq!(call(), "OK 0");
    let checks = service.order(&json!({"answer": {"status": {"code": 7}}}));
    let seen: Vec<&Value> =
        checks.iter().map(|check| &check["check"]["attributes"]["request"]["http"]["path"]).collect();
    assert_eq!(seen, [&json!("/envoy.service.auth.v3.Authorization/Check"), &Value::Null]);
    assert_eq!(checks[1]["metadata"]["x-user"], "jack", "and not what the client says");
    assert_eq!(call(), "PERMISSION_DENIED");
}

#[test]
fn ext_authz_decides_once_for_all_attempts() {
    services().for_each(decide_once);
}

fn decide_once(mut service: Service) {
    let broken = Origin::scripted(Reading::Strict, |connection| {
        if connection.request().is_ok() {
            connection.reset();
        }
    });
    let origin = origin();
    service.answers(json!({
        "status": {"code": 0},
        "okResponse": {
            "headers": [{"header": {"key": "x-role", "value": "b"}, "append": true}],
            "queryParametersToSet": [{"key": "a", "value": "1"}],
        },
    }));
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "routes: [{{ uri: /*, plugins: {{ ext-authz: {{ grpc_service: {{ uri: \"http://{}\", timeout: 60s }} }} }}, upstream: {{ \
         type: chash, key: uri, retries: 1, nodes: [{{ host: 127.0.0.1, port: {}, weight: 1, priority: 1 }}, {{ host: 127.0.0.1, port: {}, weight: 1 }}] }} }}]\n",
        service.address,
        broken.addr().port(),
        origin.addr().port()
    ));
    let answer = ask(&mut gateway.client(), "GET /a HTTP/1.1\r\nHost: t\r\nX-Role: a\r\n\r\n");
    assert_eq!(answer.text(), "through");
    assert_eq!(service.asked().len(), 1);
    for attempts in [broken.requests(), origin.requests()] {
        assert_eq!((attempts.len(), &*attempts[0].target, &*values(&attempts[0], "x-role")), (1, "/a?a=1", "a+b"));
    }
}

#[test]
fn ext_authz_keeps_cached_responses_of_clients_apart() {
    services().for_each(keep_caches_apart);
}

fn keep_caches_apart(mut service: Service) {
    let origin = Origin::serving(|request| {
        Answer::with(200, "Cache-Control: max-age=60\r\n", format!("{} {}", request.target, values(request, "x-user")))
    });
    let gateway = with_plugins(
        &origin,
        &format!(
            "proxy-cache: {{}}, ext-authz: {{ grpc_service: {{ uri: \"http://{}\", timeout: 60s }} }}",
            service.address
        ),
    );
    for (user, tenant, want) in
        [("a", "1", "/guarded/a?tenant=1 a"), ("b", "1", "/guarded/a?tenant=1 b"), ("b", "2", "/guarded/a?tenant=2 b")]
    {
        service.answers(json!({
            "status": {"code": 0},
            "okResponse": {
                "headers": [{"header": {"key": "x-user", "value": user}}],
                "queryParametersToSet": [{"key": "tenant", "value": tenant}],
            },
        }));
        for _ in 0..2 {
            assert_eq!(gateway.get("/guarded/a").text(), want);
        }
    }
    assert_eq!(origin.requests().len(), 3, "each was kept");
    // A query of which nothing is left is another one than the query that was not changed, and so is a field that is removed.
    for (removed, want) in [
        (json!({}), "/guarded/b?full=1 own"),
        (json!({"queryParametersToRemove": ["full"]}), "/guarded/b own"),
        (json!({"headersToRemove": ["x-user"]}), "/guarded/b?full=1 "),
    ] {
        service.answers(json!({"status": {"code": 0}, "okResponse": removed}));
        let answer = ask(&mut gateway.client(), "GET /guarded/b?full=1 HTTP/1.1\r\nHost: t\r\nX-User: own\r\n\r\n");
        assert_eq!(answer.text(), want);
    }
}

#[test]
fn ext_authz_asks_an_http_service_with_the_method_and_the_path_of_the_request() {
    let service = Origin::serving(|request| match request.headers.get("authorization") {
        Some("jack") => {
            Answer::with(200, "X-User: jack\r\nX-App-Id: 7\r\nSet-Cookie: s=1\r\nX-Inner: 1\r\nX-Org: blue\r\n", "ok")
        }
        Some("broken") => Answer::status(503, "down"),
        Some("odd") => Answer::status(204, ""),
        _ => Answer::with(302, "Location: https://login.example/\r\nX-Inner: 1\r\nX-Reason: none\r\n", "go there"),
    });
    let origin = origin();
    let options = format!(
        "http_service: {{ server_uri: \"http://{}\", path_prefix: /check, timeout: 60s, allowed_upstream_headers: [X-User, X-App-*], \
         allowed_client_headers: [X-Reason], allowed_client_headers_on_success: [Set-Cookie], \
         dynamic_metadata_from_headers: [X-Org], headers_to_add: {{ X-Addr: $remote_addr }} }}, \
         allowed_headers: [X-Tenant], with_request_body: {{ max_request_bytes: 10 }}",
        service.addr()
    );
    let gateway = with_plugins(
        &origin,
        &format!(
            "ext-authz: {{ {options} }}, response-rewrite: {{ headers: {{ set: {{ X-Seen: $ext_authz_x_org }} }} }}"
        ),
    );
    for mut client in clients(&gateway) {
        let request = |who: &str| {
            format!(
                "POST /guarded/%61/../b?c=1 HTTP/1.1\r\nHost: shop.example\r\nAuthorization: {who}\r\nX-Tenant: t\r\nX-Other: 1\r\n\
                 X-User: root\r\nX-App-Role: root\r\nContent-Type: text/x\r\nContent-Length: 2\r\n\r\nhi"
            )
        };
        service.forget();
        origin.forget();
        let passed = ask(&mut client, &request("jack"));
        assert_eq!((passed.status, passed.headers.get("x-seen")), (200, Some("blue")));
        assert_eq!(passed.headers.all("set-cookie").collect::<Vec<_>>(), ["own=1", "s=1"]);
        assert!(!passed.headers.has("x-inner"));
        let asked = &service.requests()[0];
        assert_eq!((&*asked.method, &*asked.target, &*asked.body), ("POST", "/check/guarded/b?c=1", &b"hi"[..]));
        let told = ["host", "x-tenant", "x-other", "x-addr", "content-type", "x-envoy-auth-partial-body", "x-user"];
        assert_eq!(told.map(|name| values(asked, name)), ["shop.example", "t", "", "127.0.0.1", "text/x", "false", ""]);
        let sent = &origin.requests()[0];
        assert_eq!(["x-user", "x-app-id", "x-app-role"].map(|name| values(sent, name)), ["jack", "7", ""]);
        assert_eq!(sent.body, b"hi");
        let refused = ask(&mut client, &request("nobody"));
        let told = (refused.headers.get("location"), refused.headers.get("x-reason"), refused.headers.get("x-inner"));
        assert_eq!((refused.status, &*refused.text()), (302, "go there"));
        assert_eq!(told, (Some("https://login.example/"), Some("none"), None));
        assert_eq!(ask(&mut client, &request("broken")).status, 403);
        assert_eq!(ask(&mut client, &request("odd")).status, 204, "only 200 allows");
        assert_eq!(origin.requests().len(), 1);
    }
}
