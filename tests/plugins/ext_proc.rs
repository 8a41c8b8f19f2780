//! An external processor with Envoy's protocol changes requests and responses: services in Python and in Go, with the libraries of gRPC
//! and the public messages.

use std::sync::Arc;

use serde_json::{Value, json};
use weir_testkit::{Answer, Client, DEADLINE, Gate, Gateway, Origin, Reading, Response, eventually, free_port};

use crate::envoy_service::{Service, call};
use crate::http2_streams;

fn start() -> Option<Service> {
    Service::start("processor.py", &[])
}

/// The same service in Python and in Go, as far as they are there.
fn services() -> impl Iterator<Item = Service> {
    [start(), Service::start_go("ext_processor", &[])].into_iter().flatten()
}

/// A gateway whose route sends requests to the processor.
fn gateway(origin: &Origin, service: &Service, more: &str) -> Gateway {
    with_nodes(&format!("\"{}\": 1", origin.addr()), service, more)
}

fn with_nodes(nodes: &str, service: &Service, more: &str) -> Gateway {
    let timeout = if more.contains("message_timeout") { "" } else { ", message_timeout: 20000" };
    let options = format!("grpc_service: {{ uri: \"http://{}\", timeout: 60s }}{timeout}, {more}", service.address);
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "routes:
  - {{ id: processed, uri: /*, enable_websocket: true, plugins: {{ ext-proc: {{ {options} }} }}, upstream: {{ nodes: {{ {nodes} }} }} }}
"
    ))
}

/// A client by HTTP/1.1, and one by HTTP/2.
fn clients(gateway: &Gateway) -> [Client; 2] {
    [Client::connect(gateway.addr()), Client::connect(gateway.addr()).by_http2()]
}

#[track_caller]
fn ask(client: &mut Client, request: &str) -> Response {
    client.ask(request).expect("an answer")
}

fn kinds(messages: &[Value]) -> Vec<&str> {
    messages.iter().map(|one| one["kind"].as_str().expect("a kind")).collect()
}

/// The value of a field in a message.
fn told(message: &Value, part: &str, name: &str) -> Option<String> {
    let fields = message["message"][part][if part.ends_with("Trailers") { "trailers" } else { "headers" }]["headers"]
        .as_array()?;
    let value = fields.iter().find(|field| field["key"] == name)?["rawValue"].as_str()?;
    Some(String::from_utf8(base64(value)).expect("text"))
}

fn base64(text: &str) -> Vec<u8> {
    let value = |byte: u8| {
        b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/".iter().position(|one| *one == byte)
    };
    let bits: Vec<usize> = text.bytes().filter_map(value).collect();
    let groups = bits.chunks(4).flat_map(|group| {
        let whole = group.iter().fold(0, |sum, six| sum << 6 | six) << (6 * (4 - group.len()));
        let bytes = [(whole >> 16) as u8, (whole >> 8) as u8, whole as u8];
        bytes.into_iter().take(group.len() * 6 / 8).collect::<Vec<_>>()
    });
    groups.collect()
}

fn set(name: &str, value: &str) -> Value {
    json!({"header": {"key": name, "rawValue": to_base64(value)}})
}

fn to_base64(text: &str) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for group in text.as_bytes().chunks(3) {
        let whole = group.iter().fold(0_usize, |sum, byte| sum << 8 | usize::from(*byte)) << (8 * (3 - group.len()));
        for index in 0..4 {
            out.push(if index <= group.len() { DIGITS[whole >> (18 - 6 * index) & 63] as char } else { '=' });
        }
    }
    out
}

#[test]
fn ext_proc_changes_the_heads_of_requests_and_responses() {
    services().for_each(change_heads);
}

fn change_heads(mut service: Service) {
    let origin = Origin::serving(|_| Answer::with(200, "X-Own: 1\r\nSet-Cookie: a=1\r\n", "through"));
    let gateway = gateway(
        &origin,
        &service,
        "request_attributes: { route: $route_id }, forward_rules: { disallowed_headers: [X-Secret] }",
    );
    let request = json!({"headerMutation": {
        "setHeaders": [set("x-user", "jack"), set(":path", "/inner?b=2"), set("host", "other"), set("x-real-ip", "10.0.0.1")],
        "removeHeaders": ["authorization"],
    }});
    let response = json!({"headerMutation": {
        "setHeaders": [set("x-own", "2"), set("set-cookie", "b=2"), set(":status", "202"), set("content-length", "1")],
    }});
    service.order(&json!({"answers": {
        "request_headers": {"requestHeaders": {"response": request}},
        "response_headers": {"responseHeaders": {"response": response}},
    }}));
    for mut client in clients(&gateway) {
        let head = "GET /a?b=1 HTTP/1.1\r\nHost: shop\r\nAuthorization: t\r\nX-User: root\r\nX-Secret: 1\r\nX-Forwarded-For: 10.0.0.9\r\n\r\n";
        let answer = ask(&mut client, head);
        assert_eq!((answer.status, &*answer.text()), (202, "through"));
        assert_eq!(answer.headers.all("x-own").collect::<Vec<_>>(), ["2"]);
        assert_eq!(answer.headers.all("set-cookie").collect::<Vec<_>>(), ["a=1", "b=2"]);
        let sent = origin.requests().pop().expect("it was forwarded");
        assert_eq!(sent.target, "/inner?b=2");
        let got = ["x-user", "authorization", "host", "x-real-ip"].map(|name| sent.headers.get(name));
        assert_eq!(
            got,
            [Some("jack"), None, Some("shop"), Some("127.0.0.1")],
            "routing and forwarding are not the service's"
        );
        let messages = service.order(&json!({}));
        assert_eq!(kinds(&messages), ["request_headers", "response_headers"]);
        let of_request = |name| told(&messages[0], "requestHeaders", name);
        assert_eq!(
            [":method", ":path", ":authority", "x-forwarded-for"].map(of_request).map(Option::unwrap_or_default),
            ["GET", "/a?b=1", "shop", "127.0.0.1"]
        );
        assert_eq!(
            (of_request("x-secret"), &messages[0]["message"]["requestHeaders"]["endOfStream"]),
            (None, &json!(true))
        );
        assert_eq!(messages[0]["message"]["attributes"]["envoy.filters.http.ext_proc"]["route"], "processed");
        assert_eq!(told(&messages[1], "responseHeaders", ":status").as_deref(), Some("200"));
    }
}

#[test]
fn ext_proc_answers_clients_by_itself() {
    services().for_each(answer_by_itself);
}

fn answer_by_itself(mut service: Service) {
    let origin = Origin::serving(|_| Answer::ok("through"));
    let gateway =
        gateway(&origin, &service, "processing_mode: { request_body_mode: BUFFERED, response_body_mode: BUFFERED }");
    for (kind, is_forwarded) in
        [("request_headers", false), ("request_body", false), ("response_headers", true), ("response_body", true)]
    {
        service.order(&json!({"answers": {kind: {"immediateResponse": {
            "status": {"code": "Unauthorized"}, "body": to_base64("who are you"),
            "headers": {"setHeaders": [set("www-authenticate", "Bearer"), set("content-type", "text/html")]},
        }}}}));
        for mut client in clients(&gateway) {
            origin.forget();
            let answer = ask(&mut client, "POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\n\r\nabc");
            assert_eq!((answer.status, &*answer.text()), (401, "who are you"), "{kind}");
            let fields = ["www-authenticate", "content-type"].map(|name| answer.headers.all(name).collect::<Vec<_>>());
            assert_eq!(fields, [["Bearer"], ["text/html"]], "{kind}");
            assert_eq!(origin.requests().len(), usize::from(is_forwarded), "{kind}");
            assert_eq!(kinds(&service.order(&json!({}))).last(), Some(&kind));
        }
    }
}

#[test]
fn ext_proc_changes_content_in_every_mode() {
    services().for_each(change_content);
}

fn change_content(mut service: Service) {
    let origin = Origin::serving(|request| Answer::ok(&request.body));
    for mode in ["BUFFERED", "BUFFERED_PARTIAL", "STREAMED", "FULL_DUPLEX_STREAMED"] {
        let is_duplex = mode == "FULL_DUPLEX_STREAMED";
        for (own, other) in [("request", "response"), ("response", "request")] {
            let modes = format!("processing_mode: {{ {own}_body_mode: {mode}, {other}_body_mode: NONE }}");
            let gateway = gateway(&origin, &service, &modes);
            service.order(&json!({"upper": true, "duplex": is_duplex}));
            for (number, mut client) in clients(&gateway).into_iter().enumerate() {
                for (size, framing) in [(3, "Content-Length"), (3, "chunked"), (300_000, "Content-Length")] {
                    let body = "abc".repeat(size / 3);
                    let request = match framing {
                        "chunked" => format!(
                            "POST /a HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n{size:x}\r\n{body}\r\n0\r\n\r\n"
                        ),
                        _ => format!("POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: {size}\r\n\r\n{body}"),
                    };
                    let answer = ask(&mut client, &request);
                    let case = format!("{mode} of the {own}, {size} bytes, {framing}, client {number}");
                    assert_eq!(answer.status, 200, "{case}");
                    assert!(*answer.text() == body.to_uppercase(), "{case}: {} bytes", answer.body.len());
                    let messages = service.order(&json!({}));
                    let kind = format!("{own}_body");
                    assert!(kinds(&messages).contains(&&*kind), "{case}");
                }
                let empty = ask(&mut client, "GET /a HTTP/1.1\r\nHost: t\r\n\r\n");
                assert_eq!((empty.status, empty.body.len()), (200, 0), "{mode} of the {own}, client {number}");
            }
        }
    }
}

#[test]
fn ext_proc_sends_the_beginning_of_content_that_is_too_long() {
    services().for_each(send_long_content);
}

fn send_long_content(mut service: Service) {
    let origin = Origin::serving(|request| Answer::ok(&request.body));
    let long = "a".repeat(100_000);
    let request = format!("POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: 100000\r\n\r\n{long}");
    let with = |service: &Service, modes: &str| {
        gateway(&origin, service, &format!("max_buffered_bytes: 1000, processing_mode: {{ {modes} }}"))
    };
    service.order(&json!({"upper": true}));
    let partial = with(&service, "request_body_mode: BUFFERED_PARTIAL");
    let whole = with(&service, "request_body_mode: BUFFERED");
    let response = with(&service, "response_body_mode: BUFFERED");
    for mut client in clients(&partial) {
        let answer = ask(&mut client, &request);
        let text = answer.text();
        let changed = text.bytes().take_while(|byte| *byte == b'A').count();
        assert!(
            changed > 1000 && text.len() == 100_000 && text[changed..].bytes().all(|byte| byte == b'a'),
            "{changed}"
        );
    }
    origin.forget();
    for mut client in clients(&whole) {
        assert_eq!(ask(&mut client, &request).status, 413);
    }
    assert!(origin.requests().is_empty());
    for mut client in clients(&response) {
        assert_eq!(ask(&mut client, &request).status, 500);
    }
    response
        .wait_stderr("the failure is logged", |text| text.contains("larger than 1000 bytes (`max_buffered_bytes`)"));
}

#[test]
fn ext_proc_refuses_while_the_service_fails_unless_failures_are_allowed() {
    services().for_each(fail_in_every_way);
}

fn fail_in_every_way(mut service: Service) {
    let origin = Origin::serving(|request| Answer::ok(&request.body));
    let modes = "processing_mode: { request_body_mode: BUFFERED, response_body_mode: BUFFERED }";
    let strict = gateway(&origin, &service, &format!("status_on_error: 503, {modes}"));
    let lenient = gateway(&origin, &service, &format!("failure_mode_allow: true, {modes}"));
    let hasty = gateway(&origin, &service, &format!("message_timeout: 50, {modes}"));
    let post = "POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\n\r\nabc";
    for kind in ["request_headers", "request_body", "response_headers", "response_body"] {
        let other = if kind == "request_body" { "requestHeaders" } else { "requestBody" };
        for (order, named) in [
            (json!({"fail": kind}), "14 (UNAVAILABLE)"),
            (json!({"answers": {kind: {other: {}}}}), "where"),
            (
                json!({"answers": {kind: {camel(kind): {"response": {"headerMutation": {"setHeaders": [set("x a", "1")]}}}}}}),
                "\"x a\"",
            ),
            (json!({"answers": {kind: {}}}), "not a valid ProcessingResponse"),
        ] {
            service.order(&order);
            for mut client in clients(&strict) {
                assert_eq!(ask(&mut client, post).status, 503, "{kind}: {named}");
            }
            for mut client in clients(&lenient) {
                let answer = ask(&mut client, post);
                assert_eq!((answer.status, &*answer.text()), (200, "abc"), "{kind}: {named}");
            }
            let fresh = gateway(&origin, &service, modes);
            assert_eq!(ask(&mut fresh.client(), post).status, 500, "{kind}: {named}");
            let errors = || fresh.metrics().sum("weir_policy_errors_total", &["policy=\"ext-proc\""]);
            eventually("the failure is counted once", DEADLINE, || errors() == 1.0);
            fresh.wait_stderr("the failure is logged", |text| {
                text.contains("ext-proc: http://") && text.contains(named)
            });
        }
        service.order(&json!({"silent": kind}));
        assert_eq!(ask(&mut hasty.client(), post).status, 500, "{kind}");
        service.order(&json!({"end": kind}));
        for gateway in [&strict, &lenient] {
            let answer = ask(&mut gateway.client(), post);
            assert_eq!((answer.status, &*answer.text()), (200, "abc"), "{kind}: the service wants no more");
        }
    }
    service.kill();
    assert_eq!((ask(&mut strict.client(), post).status, ask(&mut lenient.client(), post).status), (503, 200));
}

#[test]
fn ext_proc_makes_variables_of_metadata() {
    services().for_each(send_metadata);
}

fn send_metadata(mut service: Service) {
    let origin = Origin::serving(|request| Answer::ok(&request.body));
    let log = "enable_access_log: { path: access.log, format: \"$status $ext_proc_org_id $ext_proc_n $ext_proc_late $ext_proc_k_1 ${ext_proc_no ?? none}\" }\n";
    let namespaces = "metadata_options: { receiving_namespaces: { untyped: [shop] } }";
    let options = format!(
        "grpc_service: {{ uri: \"http://{}\", timeout: 60s }}, message_timeout: 20000, {namespaces}",
        service.address
    );
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "{log}routes:\n  - {{ uri: /*, plugins: {{ ext-proc: {{ {options} }} }}, upstream: {{ nodes: {{ \"{}\": 1 }} }} }}\n",
        origin.addr()
    ));
    let head = json!({"requestHeaders": {}, "dynamicMetadata": {"shop": {"org-id": "7", "n": 5, "k_1": 1}, "other": {"no": "x"}}});
    // A later member whose name is only like that of an earlier one does not replace it.
    let response = json!({"responseHeaders": {}, "dynamicMetadata": {"shop": {"late": [true], "k-1": 2}, "no": "x"}});
    service.order(&json!({"answers": {"request_headers": head, "response_headers": response}}));
    for mut client in clients(&gateway) {
        assert_eq!(ask(&mut client, "GET / HTTP/1.1\r\nHost: t\r\n\r\n").status, 200);
    }
    let early = json!({"immediateResponse": {"status": {"code": 403}}, "dynamicMetadata": {"shop": {"org-id": "8"}}});
    service.order(&json!({"answers": {"request_headers": early}}));
    assert_eq!(ask(&mut gateway.client(), "GET / HTTP/1.1\r\nHost: t\r\n\r\n").status, 403);
    let written = || std::fs::read_to_string(gateway.directory().path().join("access.log")).unwrap_or_default();
    eventually("three lines are written", DEADLINE, || written().lines().count() == 3);
    let lines: Vec<String> = written().lines().map(str::to_owned).collect();
    assert_eq!(lines, ["200 7 5 [true] 1 none", "200 7 5 [true] 1 none", "403 8 - - - none"]);
}

#[test]
fn ext_proc_has_told_its_metadata_when_plugins_see_the_response() {
    services().for_each(show_metadata);
}

fn show_metadata(mut service: Service) {
    let origin = Origin::serving(|request| Answer::ok(&request.body));
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "routes:
  - uri: /*
    plugins:
      ext-proc:
        grpc_service: {{ uri: \"http://{}\", timeout: 60s }}
        message_timeout: 20000
        processing_mode: {{ request_body_mode: BUFFERED }}
        metadata_options: {{ receiving_namespaces: {{ untyped: [shop] }} }}
      response-rewrite: {{ headers: {{ set: {{ X-Told: \"$ext_proc_head,$ext_proc_body,$ext_proc_back\" }} }} }}
    upstream: {{ nodes: {{ \"{}\": 1 }} }}
",
        service.address,
        origin.addr()
    ));
    let telling = |kind: &str, name: &str| json!({kind: {}, "dynamicMetadata": {"shop": {name: name}}});
    let (head, body) = (telling("requestHeaders", "head"), telling("requestBody", "body"));
    let back = telling("responseHeaders", "back");
    let refusal = json!({"immediateResponse": {"status": {"code": 403}}, "dynamicMetadata": {"shop": {"body": "no"}}});
    for (of_body, status, told) in [(body, 200, "head,body,back"), (refusal, 403, "head,no,")] {
        service
            .order(&json!({"answers": {"request_headers": head, "request_body": of_body, "response_headers": back}}));
        for mut client in clients(&gateway) {
            let answer = ask(&mut client, "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\n\r\nabc");
            assert_eq!((answer.status, answer.headers.get("x-told")), (status, Some(told)));
        }
    }
}

#[test]
fn ext_proc_that_refuses_content_is_named_and_the_upstream_is_not() {
    services().for_each(refuse_content);
}

fn refuse_content(mut service: Service) {
    let origin = Origin::serving(|request| Answer::ok(&request.body));
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "enable_access_log: {{ path: access.log, format: \"$status by ${{refused_by ?? none}} at ${{upstream_status ?? none}}\" }}
routes:
  - uri: /*
    id: r
    plugins:
      ext-proc:
        grpc_service: {{ uri: \"http://{}\", timeout: 60s }}
        message_timeout: 20000
        processing_mode: {{ request_body_mode: BUFFERED }}
    upstream: {{ nodes: {{ \"{}\": 1 }} }}
",
        service.address,
        origin.addr()
    ));
    let (head, back) = (json!({"requestHeaders": {}}), json!({"responseHeaders": {}}));
    for code in [403, 503] {
        let refusal = json!({"immediateResponse": {"status": {"code": code}}});
        service
            .order(&json!({"answers": {"request_headers": head, "request_body": refusal, "response_headers": back}}));
        for mut client in clients(&gateway) {
            let answer = ask(&mut client, "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\n\r\nabc");
            assert_eq!((answer.status, answer.headers.get("x-apisix-upstream-status")), (code, None));
        }
    }
    assert!(origin.requests().is_empty());
    let written = || std::fs::read_to_string(gateway.directory().path().join("access.log")).unwrap_or_default();
    eventually("four lines are written", DEADLINE, || written().lines().count() == 4);
    let line = |code: u16| format!("{code} by ext-proc at none\n");
    assert_eq!(written(), format!("{0}{0}{1}{1}", line(403), line(503)));
    let series = "weir_policy_refusals_total";
    eventually("they are counted", DEADLINE, || gateway.metrics().sum(series, &["policy=\"ext-proc\""]) == 4.0);
}

#[test]
fn ext_proc_tells_of_an_exchange_that_the_client_cuts() {
    services().for_each(cut_an_exchange);
}

fn cut_an_exchange(mut service: Service) {
    let origin = Origin::serving(|_| Answer::raw("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"));
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "enable_access_log: {{ path: access.log, format: \"$ext_proc_late\" }}
routes:
  - uri: /*
    plugins:
      ext-proc:
        grpc_service: {{ uri: \"http://{}\", timeout: 60s }}
        message_timeout: 20000
        metadata_options: {{ receiving_namespaces: {{ untyped: [shop] }} }}
    upstream: {{ nodes: {{ \"{}\": 1 }} }}
",
        service.address,
        origin.addr()
    ));
    let response = json!({"responseHeaders": {}, "dynamicMetadata": {"shop": {"late": 5}}});
    service.order(&json!({"answers": {"response_headers": response}}));
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
    assert_eq!(client.response_head("GET").expect("a head").status, 200);
    client.reset();
    let written = || std::fs::read_to_string(gateway.directory().path().join("access.log")).unwrap_or_default();
    eventually("it is written", DEADLINE, || written() == "5\n");
}

fn camel(kind: &str) -> String {
    let (first, second) = kind.split_once('_').expect("two words");
    format!("{first}{}{}", second[..1].to_uppercase(), &second[1..])
}

#[test]
fn ext_proc_changes_its_modes_as_the_service_says() {
    services().for_each(change_modes);
}

fn change_modes(mut service: Service) {
    let origin = Origin::serving(|request| Answer::ok(&request.body));
    let with = |service: &Service, allow: bool| gateway(&origin, service, &format!("allow_mode_override: {allow}"));
    let (open, closed) = (with(&service, true), with(&service, false));
    let mode = json!({"requestBodyMode": "BUFFERED", "responseHeaderMode": "SKIP", "responseBodyMode": "STREAMED"});
    service
        .order(&json!({"upper": true, "answers": {"request_headers": {"requestHeaders": {}, "modeOverride": mode}}}));
    let post = "POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\n\r\nabc";
    for mut client in clients(&open) {
        assert_eq!(ask(&mut client, post).text(), "ABC");
        assert_eq!(
            kinds(&service.order(&json!({}))),
            ["request_headers", "request_body", "response_body", "response_body"]
        );
    }
    for mut client in clients(&closed) {
        assert_eq!(ask(&mut client, post).text(), "abc");
        assert_eq!(kinds(&service.order(&json!({}))), ["request_headers", "response_headers"]);
    }
    service.order(&json!({"answers": {"request_headers": {"requestHeaders": {"response": {
        "status": "CONTINUE_AND_REPLACE", "bodyMutation": {"body": to_base64("other")},
    }}}}}));
    for mut client in clients(&open) {
        assert_eq!(ask(&mut client, post).text(), "other");
        assert_eq!(ask(&mut client, "GET /a HTTP/1.1\r\nHost: t\r\n\r\n").text(), "other");
    }
}

#[test]
fn ext_proc_sees_a_request_once_however_often_it_is_sent() {
    services().for_each(see_a_request_once);
}

fn see_a_request_once(mut service: Service) {
    let origin = Origin::serving(|request| Answer::ok(&request.body));
    let dead = free_port();
    let nodes = format!("\"127.0.0.1:{dead}\": 1, \"{}\": 1", origin.addr());
    let gateway = with_nodes(&nodes, &service, "processing_mode: { request_body_mode: BUFFERED }");
    service.order(&json!({"upper": true}));
    for _ in 0..4 {
        let answer = ask(&mut gateway.client(), "POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\n\r\nabc");
        assert_eq!((answer.status, &*answer.text()), (200, "ABC"));
        assert_eq!(kinds(&service.order(&json!({}))), ["request_headers", "request_body", "response_headers"]);
    }
}

/// Sends one event, and another one when the gate is opened.
fn two_events(gate: &Arc<Gate>) -> Origin {
    let opened = Arc::clone(gate);
    Origin::scripted(Reading::Strict, move |connection| {
        if connection.request().is_ok() {
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
            let _ = connection.send(format!("{head}9\r\ndata: a\n\n\r\n"));
            opened.wait();
            let _ = connection.send("9\r\ndata: b\n\n\r\n0\r\n\r\n");
        }
    })
}

#[test]
fn ext_proc_leaves_streams_streams() {
    services().for_each(keep_streams);
}

fn keep_streams(mut service: Service) {
    for mode in ["NONE", "STREAMED", "FULL_DUPLEX_STREAMED"] {
        let gate = Arc::new(Gate::new());
        let origin = two_events(&gate);
        let gateway = gateway(&origin, &service, &format!("processing_mode: {{ response_body_mode: {mode} }}"));
        service.order(&json!({"duplex": mode == "FULL_DUPLEX_STREAMED"}));
        let mut client = gateway.client();
        client.send("GET /events HTTP/1.1\r\nHost: t\r\n\r\n");
        assert_eq!(client.response_head("GET").expect("a head").status, 200, "{mode}");
        assert_eq!(client.chunk().expect("an event"), b"data: a\n\n", "{mode}: it comes before the next one is sent");
        gate.open();
        assert_eq!(client.chunk().expect("an event"), b"data: b\n\n", "{mode}");
        assert_eq!(client.chunk().expect("the end"), b"", "{mode}");
    }
}

#[test]
fn ext_proc_leaves_streams_streams_over_http2() {
    services().for_each(keep_streams_over_http2);
}

fn keep_streams_over_http2(mut service: Service) {
    for mode in ["NONE", "STREAMED", "FULL_DUPLEX_STREAMED"] {
        let gate = Arc::new(Gate::new());
        let origin = two_events(&gate);
        let gateway = gateway(&origin, &service, &format!("processing_mode: {{ response_body_mode: {mode} }}"));
        service.order(&json!({"duplex": mode == "FULL_DUPLEX_STREAMED"}));
        let mut events = Vec::new();
        http2_streams::pieces(&gateway, "/events", |event| {
            events.push(String::from_utf8_lossy(event).into_owned());
            gate.open();
        });
        assert_eq!(events, ["data: a\n\n", "data: b\n\n"], "{mode}");
    }
}

#[test]
fn ext_proc_processes_grpc_calls_in_every_mode() {
    services().for_each(process_calls);
}

fn process_calls(mut service: Service) {
    let Some(mut upstream) = Service::start("authz.py", &[]) else { return };
    for mode in ["NONE", "BUFFERED", "STREAMED", "FULL_DUPLEX_STREAMED"] {
        let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
            "routes:
  - uri: /*
    plugins:
      ext-proc:
        grpc_service: {{ uri: \"http://{}\", timeout: 60s }}
        message_timeout: 20000
        processing_mode: {{ request_body_mode: {mode}, response_body_mode: {mode}, response_trailer_mode: SEND }}
    upstream: {{ scheme: grpc, nodes: {{ \"{}\": 1 }} }}
",
            service.address, upstream.address
        ));
        service.order(&json!({"duplex": mode == "FULL_DUPLEX_STREAMED"}));
        upstream.order(&json!({"answer": {"status": {"code": 7}}}));
        assert_eq!(call(gateway.addr()), "OK 7", "{mode}");
        let messages = service.order(&json!({}));
        let seen = kinds(&messages);
        let has = |kind: &str| seen.contains(&kind);
        assert!(has("request_headers") && has("response_headers") && has("response_trailers"), "{mode}: {seen:?}");
        assert_eq!((has("request_body"), has("response_body")), (mode != "NONE", mode != "NONE"), "{mode}: {seen:?}");
        upstream.order(&json!({"fail": "PERMISSION_DENIED"}));
        assert_eq!(call(gateway.addr()), "PERMISSION_DENIED", "{mode}");
    }
}

#[test]
fn ext_proc_waits_longer_if_the_service_asks_for_it() {
    services().for_each(ask_for_time);
}

fn ask_for_time(mut service: Service) {
    let origin = Origin::serving(|_| Answer::ok("through"));
    service.order(&json!({"silent": "request_headers"}));
    let gateway = gateway(&origin, &service, "message_timeout: 1000, max_message_timeout: 60000");
    assert_eq!(gateway.get("/a").status, 500);
    service.order(&json!({"first": {"overrideMessageTimeout": "30s"}}));
    // The service has to ask in time, which a busy one may not.
    eventually("it waits", DEADLINE, || gateway.get("/a").status == 200);
}

#[test]
fn ext_proc_is_asked_about_the_handshake_of_a_websocket_alone() {
    services().for_each(see_a_handshake);
}

fn see_a_handshake(mut service: Service) {
    let origin = Origin::scripted(Reading::Strict, |connection| {
        while connection.request().is_ok() {
            let head = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\nhi";
            let _ = connection.send(head);
        }
    });
    let gateway = gateway(&origin, &service, "processing_mode: { response_body_mode: STREAMED }");
    service.order(&json!({}));
    let mut client = gateway.client();
    client.send("GET /a HTTP/1.1\r\nHost: t\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n");
    assert_eq!(client.response_head("GET").expect("a head").status, 101);
    assert_eq!(client.exact(2).expect("content"), b"hi");
    assert_eq!(kinds(&service.order(&json!({}))), ["request_headers"]);
    // Over HTTP/2 after a GET, of which the connection says that it is not the end.
    assert_eq!(http2_streams::websocket(&gateway, "/a", "/a"), 200);
}

#[test]
fn ext_proc_changes_trailers_in_both_directions() {
    services().for_each(change_trailers);
}

fn change_trailers(mut service: Service) {
    let origin = Origin::scripted(Reading::Strict, |connection| {
        while let Ok(request) = connection.request() {
            connection.record(&request);
            let told = request.trailers.get("x-sum").unwrap_or("none").to_owned();
            let answer = format!(
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n{:x}\r\n{told}\r\n0\r\nX-Sum: 7\r\nX-Old: 1\r\n\r\n",
                told.len()
            );
            let _ = connection.send(answer);
        }
    });
    let change = |name: &str, value: &str| json!({"headerMutation": {"setHeaders": [set(name, value)], "removeHeaders": ["x-old"]}});
    for mode in ["NONE", "BUFFERED", "STREAMED", "FULL_DUPLEX_STREAMED"] {
        let modes = format!(
            "processing_mode: {{ request_body_mode: {mode}, response_body_mode: {mode}, request_trailer_mode: SEND, response_trailer_mode: SEND }}"
        );
        let gateway = gateway(&origin, &service, &modes);
        service.order(&json!({"duplex": mode == "FULL_DUPLEX_STREAMED", "answers": {
            "request_trailers": {"requestTrailers": change("x-sum", "5")},
            "response_trailers": {"responseTrailers": change("x-sum", "6")},
        }}));
        for mut client in clients(&gateway) {
            let request = "POST /a HTTP/1.1\r\nHost: t\r\nTE: trailers\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n";
            let answer = ask(&mut client, request);
            assert_eq!((answer.status, &*answer.text()), (200, "5"), "{mode}");
            let trailers = ["x-sum", "x-old"].map(|name| answer.trailers.get(name));
            assert_eq!(trailers, [Some("6"), None], "{mode}");
        }
    }
}

#[test]
fn ext_proc_lets_messages_without_content_keep_their_length() {
    services().for_each(keep_lengths);
}

fn keep_lengths(mut service: Service) {
    let origin = Origin::serving(|request| match &*request.target {
        "/204" => Answer::with(204, "", ""),
        "/304" => Answer::with(304, "ETag: \"a\"\r\n", ""),
        _ if request.method == "HEAD" => Answer::raw("HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n"),
        _ => Answer::ok("content"),
    });
    for mode in ["BUFFERED", "STREAMED", "FULL_DUPLEX_STREAMED"] {
        let modes = format!("processing_mode: {{ request_body_mode: {mode}, response_body_mode: {mode} }}");
        let gateway = gateway(&origin, &service, &modes);
        service.order(&json!({"upper": true, "duplex": mode == "FULL_DUPLEX_STREAMED"}));
        for mut client in clients(&gateway) {
            for (method, target, status) in [("GET", "/204", 204), ("GET", "/304", 304), ("HEAD", "/a", 200)] {
                let answer = ask(&mut client, &format!("{method} {target} HTTP/1.1\r\nHost: t\r\n\r\n"));
                assert_eq!((answer.status, answer.body.len()), (status, 0), "{mode} {target}");
                if method == "HEAD" {
                    assert_eq!(answer.headers.get("content-length"), Some("7"), "{mode}");
                }
            }
            assert_eq!(ask(&mut client, "GET /a HTTP/1.1\r\nHost: t\r\n\r\n").text(), "CONTENT", "{mode}");
            let messages = service.order(&json!({}));
            let told = messages.iter().filter(|one| one["kind"] == "response_headers");
            let ends: Vec<bool> =
                told.map(|one| one["message"]["responseHeaders"]["endOfStream"] == json!(true)).collect();
            assert_eq!(ends, [true, true, true, false], "{mode}");
        }
    }
}

#[test]
fn ext_proc_does_not_hold_up_an_early_answer_or_a_client_that_leaves() {
    services().for_each(hold_nothing_up);
}

fn hold_nothing_up(mut service: Service) {
    let origin = Origin::scripted(Reading::Strict, |connection| {
        if connection.head().is_ok() {
            let _ = connection.send("HTTP/1.1 413 Too Large\r\nContent-Length: 5\r\nConnection: close\r\n\r\nlarge");
            connection.finish_sending();
            connection.wait_gone();
        }
    });
    for mode in ["NONE", "STREAMED"] {
        let gateway = gateway(&origin, &service, &format!("processing_mode: {{ request_body_mode: {mode} }}"));
        service.order(&json!({"upper": true}));
        let mut client = gateway.client();
        client.send("POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: 1000000\r\n\r\nabc");
        let answer = client.response().expect("it comes before the request is complete");
        assert_eq!((answer.status, &*answer.text()), (413, "large"), "{mode}");
    }
    // The service does not answer, and the client goes: so does the call to the service.
    let waiting = gateway(&origin, &service, "processing_mode: { request_body_mode: BUFFERED }");
    service.order(&json!({"silent": "request_headers"}));
    let mut client = waiting.client();
    client.send("GET /a HTTP/1.1\r\nHost: t\r\n\r\n");
    eventually("the service is asked", DEADLINE, || !service.order(&json!({})).is_empty());
    drop(client);
    eventually("the call has ended", DEADLINE, || service.order(&json!({})).iter().any(|one| one["kind"] == "end"));
}

#[test]
fn ext_proc_refuses_a_route_whose_responses_it_cannot_process() {
    let Some(mut service) = start() else { return };
    let origin = Origin::serving(|_| Answer::ok("through"));
    let with = |more: &str| {
        Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
            "plugin_configs: [{{ id: processed, plugins: {{ ext-proc: {{ grpc_service: {{ uri: \"http://{}\" }}, message_timeout: 20000, {more} }} }} }}]
routes: [{{ uri: /*, plugin_config_id: processed, plugins: {{ proxy-cache: {{}} }}, upstream: {{ nodes: {{ \"{}\": 1 }} }} }}]
",
            service.address,
            origin.addr()
        ))
    };
    let both = with("");
    assert_eq!(both.get("/a").status, 500);
    both.wait_stderr("a start warns", |text| {
        text.contains("`ext-proc` of its plugin_config and `proxy-cache` of the route")
    });
    both.wait_stderr("the reason is logged", |text| text.contains("two plugins answer in place of the upstream"));
    let heads = with("processing_mode: { response_header_mode: SKIP }");
    assert_eq!(heads.get("/a").status, 200);
    let messages = service.order(&json!({}));
    assert!(kinds(&messages).iter().all(|kind| *kind == "request_headers"), "{messages:?}");
    // In a global rule it runs before the plugins of routes.
    let global = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "global_rules: [{{ id: all, plugins: {{ ext-proc: {{ grpc_service: {{ uri: \"http://{}\" }}, message_timeout: 20000 }} }} }}]
routes: [{{ uri: /*, plugins: {{ proxy-cache: {{}} }}, upstream: {{ nodes: {{ \"{}\": 1 }} }} }}]
",
        service.address,
        origin.addr()
    ));
    assert_eq!(global.get("/a").status, 500);
}

#[test]
fn ext_proc_beside_a_plugin_that_answers_is_a_fault_with_both_places() {
    let refused = |plugins: &str, more: &str| {
        let file = format!(
            "data_dir: d\nhubs: [{{ id: h, url: \"http://a/hub\", topics: [\"http://a/*\"] }}]\nroutes:\n- id: r\n  uri: /*\n  plugins: {{ ext-proc: {{ grpc_service: {{ \
             uri: \"http://127.0.0.1:9\" }} }}{plugins} }}\n  {more}\n"
        );
        let mut gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).spawn(&file);
        assert_eq!(gateway.wait_exit(DEADLINE).code(), Some(1), "{plugins} {more}");
        gateway.stderr()
    };
    let upstream = "upstream: { nodes: { \"127.0.0.1:9\": 1 } }";
    for other in ["proxy-cache", "sse-fanout", "batch-requests", "public-api"] {
        let told = refused(&format!(", {other}: {{}}"), upstream);
        let place = format!("routes[0].plugins.ext-proc: answers in place of the upstream, and so does `{other}`");
        assert!(told.contains(&place) && told.contains(&format!("(routes[0].plugins.{other})")), "{told}");
    }
    let told = refused("", "hub_id: h");
    assert!(
        told.contains(
            "routes[0].hub_id: the plugin `ext-proc` answers in place of an upstream, or processes its responses"
        ),
        "{told}"
    );
}

#[test]
fn ext_proc_is_not_passed_by_with_an_upgrade_that_the_upstream_ignores() {
    services().for_each(see_ignored_upgrades);
}

fn see_ignored_upgrades(mut service: Service) {
    let origin =
        Origin::serving(|request| Answer::ok(if request.body.is_empty() { b"content" } else { &request.body[..] }));
    let gateway =
        gateway(&origin, &service, "processing_mode: { request_body_mode: BUFFERED, response_body_mode: BUFFERED }");
    service.order(&json!({"upper": true}));
    let mut client = gateway.client();
    let other = "GET /a HTTP/1.1\r\nHost: t\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";
    assert_eq!(ask(&mut client, other).text(), "CONTENT");
    let socket = "Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==";
    let post = format!("POST /a HTTP/1.1\r\nHost: t\r\n{socket}\r\nContent-Length: 3\r\n\r\nabc");
    assert_eq!(ask(&mut gateway.client(), &post).text(), "ABC");
    assert!(origin.requests().last().is_some_and(|request| request.body == b"ABC"));
    let get = format!("GET /a HTTP/1.1\r\nHost: t\r\n{socket}\r\n\r\n");
    let answer = ask(&mut gateway.client(), &get);
    assert_eq!(answer.status, 500, "{}", answer.text());
}

#[test]
fn ext_proc_invites_content_that_waits_to_be_invited() {
    services().for_each(invite_content);
}

fn invite_content(mut service: Service) {
    let origin = Origin::serving(|request| Answer::ok(&request.body));
    for mode in ["NONE", "BUFFERED", "STREAMED"] {
        let gateway = gateway(&origin, &service, &format!("processing_mode: {{ request_body_mode: {mode} }}"));
        service.order(&json!({}));
        let mut client = gateway.client();
        client.send("POST /a HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
        assert_eq!(client.next_head().expect("an invitation").status, 100, "{mode}");
        client.send("abc");
        let answer = client.response().expect("an answer");
        assert_eq!((answer.status, &*answer.text()), (200, "abc"), "{mode}");
    }
}

#[test]
fn ext_proc_serves_others_while_clients_do_not_read() {
    services().for_each(serve_others);
}

fn serve_others(mut service: Service) {
    let long = "a".repeat(4_000_000);
    let origin = Origin::serving(move |request| Answer::ok(if request.target == "/long" { &*long } else { "short" }));
    let gateway = gateway(&origin, &service, "processing_mode: { response_body_mode: FULL_DUPLEX_STREAMED }");
    service.order(&json!({"duplex": true}));
    let stalled: Vec<Client> = (0..8)
        .map(|_| {
            let mut client = gateway.client();
            client.send("GET /long HTTP/1.1\r\nHost: t\r\n\r\n");
            assert_eq!(client.response_head("GET").expect("a head").status, 200);
            client
        })
        .collect();
    for mut client in clients(&gateway) {
        assert_eq!(ask(&mut client, "GET /short HTTP/1.1\r\nHost: t\r\n\r\n").text(), "short");
    }
    drop(stalled);
}

#[test]
fn ext_proc_gives_a_response_without_content_the_length_zero_and_no_chunks() {
    services().for_each(end_with_heads);
}

fn end_with_heads(mut service: Service) {
    let chunked = "Transfer-Encoding: chunked\r\n";
    let origin = Origin::serving(move |request| match &*request.target {
        "/204" => Answer::with(204, "", ""),
        _ if request.method == "HEAD" => Answer::raw(format!("HTTP/1.1 200 OK\r\n{chunked}\r\n")),
        "/trailers" => {
            Answer::raw(format!("HTTP/1.1 404 Not Found\r\n{chunked}Trailer: X-Sum\r\n\r\n0\r\nX-Sum: 7\r\n\r\n"))
        }
        _ => Answer::raw(format!("HTTP/1.1 404 Not Found\r\n{chunked}\r\n0\r\n\r\n")),
    });
    for mode in ["NONE", "BUFFERED", "STREAMED"] {
        let gateway = gateway(&origin, &service, &format!("processing_mode: {{ response_body_mode: {mode} }}"));
        service.order(&json!({}));
        // What is compared is the framing of HTTP/1.1.
        let mut client = Client::connect(gateway.addr());
        for (line, status, length, coding) in [
            ("GET /a", 404, Some("0"), None),
            ("HEAD /a", 200, None, None),
            ("GET /204", 204, None, None),
            ("GET /trailers", 404, None, Some("chunked")),
        ] {
            let answer = ask(&mut client, &format!("{line} HTTP/1.1\r\nHost: t\r\nTE: trailers\r\n\r\n"));
            assert_eq!((answer.status, answer.body.len()), (status, 0), "{mode} {line}");
            let framing = ["content-length", "transfer-encoding"].map(|name| answer.headers.get(name));
            assert_eq!(framing, [length, coding], "{mode} {line}");
            let sum = (line == "GET /trailers").then_some("7");
            assert_eq!(answer.trailers.get("x-sum"), sum, "{mode} {line}");
        }
    }
}

#[test]
fn ext_proc_changes_the_status_of_a_message_without_content() {
    services().for_each(change_a_status);
}

fn change_a_status(mut service: Service) {
    let origin = Origin::serving(|_| Answer::raw("HTTP/1.1 304 Not Modified\r\nContent-Length: 1234\r\n\r\n"));
    let gateway = gateway(&origin, &service, "");
    service.order(&json!({"answers": {"response_headers": {"responseHeaders": {"response": {
        "headerMutation": {"setHeaders": [set(":status", "200")]},
    }}}}}));
    for mut client in clients(&gateway) {
        let answer = ask(&mut client, "GET /a HTTP/1.1\r\nHost: t\r\n\r\n");
        assert_eq!((answer.status, answer.body.len()), (200, 0));
    }
}
