//! `opentelemetry`, `zipkin` and `otlp-logger`: the context that upstreams get, and what a collector gets. What decodes it is the official Python
//! package of OpenTelemetry's protocol; `scripts/setup` installs it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use weir_testkit::{Answer, Client, DEADLINE, Gateway, Origin, Reading, Request, eventually};

use crate::otlp::decoded;

const TRACE: &str = "12345678901234567890123456789012";
const SPAN: &str = "1234567890123456";

/// One route with this plugin before these origins; spans go to a collector.
fn gateway(origins: &[&Origin], collector: &str, options: &str) -> Gateway {
    let nodes: Vec<String> = origins.iter().map(|origin| format!("\"{}\": 1", origin.addr())).collect();
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "worker_processes: 1
plugin_metadata:
  - id: opentelemetry
    resource: {{ service.name: front, replicas: 2, is_edge: true }}
    collector: {{ address: \"{collector}\", request_timeout: 60, request_headers: {{ Authorization: t0ken }} }}
    batch_span_processor: {{ batch_timeout: 0.2, inactive_timeout: 0.1, max_export_batch_size: 5 }}
routes:
  - id: traced
    uri: /a/*
    plugins: {{ opentelemetry: {options} }}
    upstream: {{ type: roundrobin, nodes: {{ {} }} }}
",
        nodes.join(", ")
    ))
}

fn collector() -> Origin {
    Origin::serving(|_| Answer::with(200, "Content-Type: application/x-protobuf\r\n", ""))
}

const ALWAYS: &str = "{ sampler: { name: always_on } }";

/// The spans in the requests that a collector has got; `None` without the Python package.
fn spans(requests: &[Request]) -> Option<Vec<Value>> {
    decoded("traces", requests)
}

/// The field of a request, in its parts.
fn traceparent(request: &Request) -> [String; 4] {
    let field = request.headers.get("traceparent").expect("the upstream is told").to_owned();
    let parts: Vec<String> = field.split('-').map(str::to_owned).collect();
    parts.try_into().unwrap_or_else(|_| panic!("`{field}` has four parts"))
}

fn account(gateway: &Gateway) -> Value {
    let report: Value = serde_json::from_slice(&gateway.ask_status("/records").body).expect("JSON");
    report["sinks"][0].clone()
}

#[test]
fn a_retry_is_a_second_client_span() {
    let asked = Arc::new(AtomicUsize::new(0));
    let origins = [(); 2].map(|()| {
        let asked = Arc::clone(&asked);
        Origin::scripted(Reading::Strict, move |connection| {
            while connection.request().is_ok() {
                if asked.fetch_add(1, Ordering::SeqCst) == 0
                    || connection.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").is_err()
                {
                    return;
                }
            }
        })
    });
    let collector = collector();
    let gateway = gateway(&[&origins[0], &origins[1]], &collector.addr().to_string(), ALWAYS);
    let before_ns = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos() as u64;
    let fields = format!("traceparent: 00-{TRACE}-{SPAN}-01\r\ntracestate: a=1\r\ntracestate: b=2\r\nUser-Agent: me");
    let secrets = "Authorization: Bearer s3cret\r\nCookie: a=s3cret";
    let request = format!("GET /a/b?token=s3cret HTTP/1.1\r\nHost: shop.example:8080\r\n{fields}\r\n{secrets}\r\n\r\n");
    assert_eq!(gateway.client().ask(request).expect("an answer").status, 200);
    let sent = &collector.wait_requests(1)[0];
    assert_eq!(
        (&*sent.method, &*sent.target, sent.headers.get("authorization")),
        ("POST", "/v1/traces", Some("t0ken"))
    );
    assert_eq!(sent.headers.get("content-type"), Some("application/x-protobuf"));
    assert!(!String::from_utf8_lossy(&sent.body).contains("s3cret"));
    assert_eq!(asked.load(Ordering::SeqCst), 2, "two attempts");
    let attempts = origins.each_ref().map(|origin| origin.requests().remove(0));
    for attempt in &attempts {
        assert_eq!(attempt.headers.all("tracestate").collect::<Vec<_>>().join(","), "a=1,b=2");
    }
    // Only the first request: a slow answer has spans sent again.
    let Some(spans) = spans(std::slice::from_ref(sent)) else { return };
    let [server, first, second] = &spans[..] else { panic!("three spans: {spans:#?}") };
    for span in &spans {
        assert_eq!(
            (&span["trace"], &span["flags"]),
            (&TRACE.into(), &(if span["kind"] == 2 { 0x301 } else { 0x101 }).into())
        );
        assert!(before_ns <= span["start"].as_u64().expect("a time") && span["start"].as_u64() <= span["end"].as_u64());
        assert!(server["start"].as_u64() <= span["start"].as_u64() && span["end"].as_u64() <= server["end"].as_u64());
        let resource = &span["resource"];
        assert_eq!(
            [&resource["service.name"], &resource["replicas"], &resource["is_edge"]],
            [&json!("front"), &json!(2.0), &json!(true)]
        );
    }
    assert_eq!(
        (&server["kind"], &server["parent"], &server["name"], &server["status"]),
        (&json!(2), &json!(SPAN), &json!("GET /a/*"), &json!(0))
    );
    let said = &server["attributes"];
    for (name, value) in [
        ("http.request.method", json!("GET")),
        ("http.response.status_code", json!(200)),
        ("url.path", json!("/a/b")),
        ("url.scheme", json!("http")),
        ("server.address", json!("shop.example")),
        ("server.port", json!(8080)),
        ("client.address", json!("127.0.0.1")),
        ("user_agent.original", json!("me")),
        ("http.route", json!("/a/*")),
        ("weir.route.id", json!("traced")),
        ("error.type", Value::Null),
    ] {
        assert_eq!(said[name], value, "{name}");
    }
    // All tests of plugins run a second time with clients of HTTP/2.
    assert!(["1.1", "2"].contains(&said["network.protocol.version"].as_str().unwrap_or_default()));
    let contexts = attempts.each_ref().map(|attempt| traceparent(attempt)[2].clone());
    let order = if contexts[0] == *first["span"].as_str().expect("text") { [0, 1] } else { [1, 0] };
    for ((span, origin), (status, code, error, resent)) in [first, second]
        .into_iter()
        .zip(order)
        .zip([(2, Value::Null, json!("upstream_closed"), Value::Null), (0, json!(200), Value::Null, json!(1))])
    {
        assert_eq!((&span["kind"], &span["parent"], &span["name"]), (&json!(3), &server["span"], &json!("GET")));
        assert_eq!((&span["span"], &span["status"]), (&json!(contexts[origin]), &json!(status)));
        let said = &span["attributes"];
        assert_eq!(said["server.port"], origins[origin].addr().port());
        let outcome = [&said["http.response.status_code"], &said["error.type"], &said["http.request.resend_count"]];
        assert_eq!(outcome, [&code, &error, &resent]);
    }
}

/// The cases of the W3C's test suite for Trace Context.
#[test]
fn contexts_go_on_or_begin_anew() {
    let (origin, collector) = (Origin::serving(|_| Answer::ok("")), collector());
    let gateway = gateway(&[&origin], &collector.addr().to_string(), ALWAYS);
    let zeros = "0".repeat(32);
    let valid = format!("traceparent: 00-{TRACE}-{SPAN}-01");
    let long = (0..33).map(|number| format!("k{number}=1")).collect::<Vec<_>>().join(",");
    let parents = [
        (String::new(), false),
        (valid.clone(), true),
        (format!("TraceParent: 00-{TRACE}-{SPAN}-00"), true),
        (format!("{valid}\r\n{valid}"), false),
        (format!("traceparent:  \t00-{TRACE}-{SPAN}-01 \t"), true),
        (format!("trace-parent: 00-{TRACE}-{SPAN}-01"), false),
        (format!("traceparent: cc-{TRACE}-{SPAN}-01"), true),
        (format!("traceparent: cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like"), true),
        (format!("traceparent: cc-{TRACE}-{SPAN}-01.what-the-future-will-not-be-like"), false),
        (format!("traceparent: ff-{TRACE}-{SPAN}-01"), false),
        (format!("traceparent: .0-{TRACE}-{SPAN}-01"), false),
        (format!("traceparent: 0-{TRACE}-{SPAN}-01"), false),
        (format!("traceparent: 000-{TRACE}-{SPAN}-01"), false),
        (format!("traceparent: 00-{TRACE}-{SPAN}-01-what"), false),
        (format!("traceparent: 00-{zeros}-{SPAN}-01"), false),
        (format!("traceparent: 00-.{}-{SPAN}-01", &TRACE[1..]), false),
        (format!("traceparent: 00-{}-{SPAN}-01", &TRACE[1..]), false),
        (format!("traceparent: 00-{TRACE}0-{SPAN}-01"), false),
        (format!("traceparent: 00-{}A-{SPAN}-01", &TRACE[1..]), false),
        (format!("traceparent: 00-{TRACE}-{}-01", &zeros[..16]), false),
        (format!("traceparent: 00-{TRACE}-.{}-01", &SPAN[1..]), false),
        (format!("traceparent: 00-{TRACE}-{}-01", &SPAN[1..]), false),
        (format!("traceparent: 00-{TRACE}-{SPAN}-.0"), false),
        (format!("traceparent: 00-{TRACE}-{SPAN}-001"), false),
        (format!("traceparent: 00-{TRACE}-{SPAN}-1"), false),
    ];
    let parents = parents.map(|(parent, goes_on)| (format!("{parent}\r\ntracestate: foo=1"), goes_on, goes_on));
    let states = [
        ("foo=1,bar=2", true),
        ("foo=1 \t , \tbar=2", true),
        ("foo=1\r\ntracestate: bar=2", true),
        ("foo=1\r\ntracestate:\r\ntracestate: bar=2", true),
        ("tenant@vendor=1,0number=2,a/b*c-d_e=3", true),
        ("foo=1,foo", false),
        ("foo =1", false),
        ("FOO=1", false),
        ("foo.bar=1", false),
        ("foo@=1,bar=2", true),
        ("@foo=1,bar=2", false),
        ("foo@@bar=1", true),
        ("foo=bar=baz", false),
        ("foo=,bar=3", false),
        (&*long, false),
    ]
    .map(|(state, is_kept)| (format!("{valid}\r\ntracestate: {state}"), true, is_kept));
    for (turn, (fields, goes_on, is_kept)) in parents.into_iter().chain(states).enumerate() {
        let fields = fields.trim_start();
        let request = format!("GET /a/{turn} HTTP/1.1\r\nHost: t\r\n{fields}\r\n\r\n");
        assert_eq!(gateway.client().ask(request).expect("an answer").status, 200);
        let sent = origin.requests().pop().expect("it was asked");
        assert_eq!(sent.headers.all("traceparent").count(), 1, "{fields}");
        let [version, trace, span, flags] = traceparent(&sent);
        assert_eq!(
            (&*version, trace == TRACE, &flags[1..] == "1" || &flags[1..] == "3"),
            ("00", goes_on, true),
            "{fields}"
        );
        assert_ne!(span, SPAN, "{fields}");
        assert_eq!(sent.headers.has("tracestate"), is_kept, "{fields}");
    }
}

#[test]
fn unsampled_requests_are_not_recorded_and_say_so() {
    let (origin, collector) = (Origin::serving(|_| Answer::ok("")), collector());
    let flags = |gateway: &Gateway, fields: &str| {
        gateway.client().ask(format!("GET /a/b HTTP/1.1\r\nHost: t\r\n{fields}\r\n")).expect("an answer");
        let [_, trace, span, flags] = traceparent(&origin.requests().pop().expect("it was asked"));
        (trace == TRACE, span == SPAN, flags)
    };
    let (sampled, unsampled) = ["01", "00"].map(|flags| format!("traceparent: 00-{TRACE}-{SPAN}-{flags}\r\n")).into();
    for (options, root) in
        [("{}", "02"), ("{ sampler: { name: parent_base } }", "02"), ("{ sampler: { name: trace_id_ratio } }", "02")]
    {
        let gateway = gateway(&[&origin], &collector.addr().to_string(), options);
        assert_eq!(flags(&gateway, ""), (false, false, root.to_owned()), "{options}");
        assert_eq!(flags(&gateway, &unsampled), (true, true, "00".to_owned()), "{options}");
        if !options.contains("parent_base") {
            assert_eq!(flags(&gateway, &sampled), (true, false, "00".to_owned()), "{options}");
        }
        assert_eq!(account(&gateway)["accepted"]["records"], 0, "{options}");
    }
    let gateway = gateway(&[&origin], &collector.addr().to_string(), "{ sampler: { name: parent_base } }");
    assert_eq!(flags(&gateway, &sampled), (true, false, "01".to_owned()));
    eventually("it is delivered", DEADLINE, || account(&gateway)["delivered"]["records"] == 1);
    assert_eq!(collector.requests().len(), 1);
}

#[test]
fn errors_are_kept_and_name_their_cause() {
    let origin = Origin::serving(|request| Answer::status(if request.target == "/a/bad" { 503 } else { 404 }, ""));
    let collector = collector();
    let options = "{ keep_errors: true, additional_attributes: [route_name, uri], additional_header_prefix_attributes: [X-Shop-*, authorization] }";
    let gateway = gateway(&[&origin], &collector.addr().to_string(), options);
    let fields = "X-Shop-A: 1\r\nx-shop-a: 2\r\nX-Shop-B: 3\r\nAuthorization: s3cret";
    for target in ["/a/good", "/a/bad"] {
        let request = format!("PURGE {target} HTTP/1.1\r\nHost: t\r\n{fields}\r\n\r\n");
        gateway.client().ask(request).expect("an answer");
    }
    assert_eq!(traceparent(&origin.requests()[1])[3], "02", "the upstream was told that it is not sampled");
    let sent = collector.wait_requests(1);
    assert_eq!(account(&gateway)["accepted"]["records"], 1);
    let Some(spans) = spans(&sent) else { return };
    let [server, client] = &spans[..] else { panic!("two spans: {spans:#?}") };
    let said = &server["attributes"];
    for (name, value) in [
        ("http.request.method", json!("_OTHER")),
        ("http.request.method_original", json!("PURGE")),
        ("http.response.status_code", json!(503)),
        ("error.type", json!("503")),
        ("uri", json!("/a/bad")),
        ("http.request.header.x-shop-a", json!(["1", "2"])),
        ("http.request.header.x-shop-b", json!(["3"])),
        ("http.request.header.authorization", Value::Null),
    ] {
        assert_eq!(said[name], value, "{name}");
    }
    assert_eq!((&server["name"], &server["status"], &server["parent"]), (&json!("HTTP /a/*"), &json!(2), &json!("")));
    assert_eq!((&client["status"], &client["attributes"]["error.type"]), (&json!(2), &json!("503")));
}

#[test]
fn a_collector_that_is_down_loses_nothing_uncounted() {
    let origin = Origin::serving(|_| Answer::ok(""));
    let is_down = Arc::new(AtomicUsize::new(1));
    let state = Arc::clone(&is_down);
    let collector = Origin::serving(move |_| match state.load(Ordering::SeqCst) {
        1 => Answer::status(503, ""),
        2 => Answer::status(400, "no"),
        // Two spans are rejected, for a reason of which only `x` is said.
        3 => Answer::with(200, "Content-Type: application/x-protobuf\r\n", b"\x0a\x05\x08\x02\x12\x01x"),
        _ => Answer::ok(""),
    });
    let gateway = gateway(&[&origin], &collector.addr().to_string(), ALWAYS);
    let ask = |count: usize| {
        let mut client = gateway.client();
        (0..count).for_each(|_| assert_eq!(client.get("/a/b").expect("an answer").status, 200));
    };
    let settled = |accepted: u64, delivered: u64, rejected: u64| {
        // Pauses between tries grow while a test stands still.
        eventually("all are settled", 3 * DEADLINE, || {
            let account = account(&gateway);
            let rejected_now: u64 = account["rejected"]
                .as_object()
                .into_iter()
                .flat_map(|reasons| reasons.values())
                .filter_map(|tally| tally["records"].as_u64())
                .sum();
            account["accepted"]["records"] == accepted
                && account["delivered"]["records"] == delivered
                && rejected_now == rejected
        });
    };
    ask(20);
    collector.wait_requests(2);
    assert_eq!(account(&gateway)["delivered"]["records"], 0);
    is_down.store(0, Ordering::SeqCst);
    settled(20, 20, 0);
    is_down.store(2, Ordering::SeqCst);
    ask(3);
    settled(23, 20, 3);
    is_down.store(3, Ordering::SeqCst);
    ask(1);
    settled(24, 20, 4);
}

/// One route with `zipkin` before an origin.
fn zipkin_gateway(origin: &Origin, server: &Origin, ratio: &str) -> Gateway {
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "worker_processes: 1
routes:
  - id: traced
    uri: /a/*
    plugins: {{ zipkin: {{ endpoint: \"http://{}/api/v2/spans\", sample_ratio: {ratio}, service_name: front, server_addr: 192.0.2.1 }} }}
    upstream: {{ type: roundrobin, nodes: {{ \"{}\": 1 }} }}
",
        server.addr(),
        origin.addr()
    ))
}

#[test]
fn zipkin_gets_spans_and_the_upstream_a_b3_context() {
    let (origin, server) = (Origin::serving(|_| Answer::ok("")), Origin::serving(|_| Answer::status(202, "")));
    let gateway = zipkin_gateway(&origin, &server, "1");
    let ask = |fields: &str| {
        let request = format!("GET /a/b HTTP/1.1\r\nHost: t\r\n{fields}\r\n");
        assert_eq!(gateway.client().ask(request).expect("an answer").status, 200);
        origin.requests().pop().expect("it was asked").headers
    };
    let field = |sent: &weir_testkit::Fields, name: &str| sent.get(name).unwrap_or_default().to_owned();
    let short = &TRACE[..16];
    // One field stays one, with the caller's trace, and our client span.
    let single = field(&ask(&format!("b3: {short}-{SPAN}-d\r\n")), "b3");
    let [trace, client, state, parent] = single.split('-').collect::<Vec<_>>()[..] else { panic!("{single}") };
    assert_eq!((trace, state), (short, "d"));
    // Several stay several.
    let several = ask(&format!("X-B3-TraceId: {TRACE}\r\nX-B3-SpanId: {SPAN}\r\nX-B3-Sampled: 1\r\n"));
    assert_eq!((&*field(&several, "x-b3-traceid"), &*field(&several, "x-b3-sampled")), (TRACE, "1"));
    assert_ne!(field(&several, "x-b3-spanid"), SPAN);
    // What the caller has decided holds, and its context passes as it is.
    let denied = ask(&format!("X-B3-TraceId: {TRACE}\r\nX-B3-SpanId: {SPAN}\r\nX-B3-Sampled: 0\r\n"));
    assert_eq!((field(&denied, "x-b3-spanid"), field(&denied, "x-b3-sampled")), (SPAN.to_owned(), "0".to_owned()));
    assert_eq!(field(&ask("b3: 0\r\n"), "b3"), "0");
    // What is no context begins a new trace.
    let new = ask(&format!("b3: {TRACE}\r\n"));
    assert_eq!((new.has("b3"), field(&new, "x-b3-traceid").len(), &*field(&new, "x-b3-sampled")), (false, 32, "1"));
    eventually("three exchanges are delivered", DEADLINE, || account(&gateway)["delivered"]["records"] == 3);
    let requests = server.requests();
    assert_eq!((&*requests[0].method, &*requests[0].target), ("POST", "/api/v2/spans"));
    let spans: Vec<Value> = requests
        .iter()
        .flat_map(|request| serde_json::from_slice::<Vec<Value>>(&request.body).expect("a list"))
        .collect();
    assert_eq!(spans.len(), 6);
    let (caller, attempt) = (&spans[0], &spans[1]);
    assert_eq!((&caller["traceId"], &caller["id"], &caller["parentId"]), (&json!(short), &json!(parent), &json!(SPAN)));
    assert_eq!(
        (&attempt["traceId"], &attempt["id"], &attempt["parentId"]),
        (&json!(short), &json!(client), &json!(parent))
    );
    assert_eq!(
        (&caller["kind"], &attempt["kind"], &caller["debug"]),
        (&json!("SERVER"), &json!("CLIENT"), &json!(true))
    );
    assert_eq!(
        (&caller["localEndpoint"]["serviceName"], &caller["localEndpoint"]["ipv4"]),
        (&json!("front"), &json!("192.0.2.1"))
    );
    assert_eq!(attempt["remoteEndpoint"]["port"], origin.addr().port());
    assert_eq!(
        (&caller["tags"]["http.response.status_code"], &caller["tags"]["http.route"]),
        (&json!("200"), &json!("/a/*"))
    );
    assert!(caller["duration"].as_u64() >= attempt["duration"].as_u64() && caller["timestamp"].is_u64());
    assert!(spans[5]["debug"].is_null());
}

#[test]
fn zipkin_samples_a_share_where_the_caller_has_not_decided() {
    let (origin, server) = (Origin::serving(|_| Answer::ok("")), Origin::serving(|_| Answer::status(202, "")));
    let gateway = zipkin_gateway(&origin, &server, "0.5");
    let ask = |trace: &str| {
        let request = format!("GET /a/b HTTP/1.1\r\nHost: t\r\nb3: {trace}-{SPAN}\r\n\r\n");
        gateway.client().ask(request).expect("an answer");
        origin.requests().pop().expect("it was asked").headers.get("b3").expect("it is told").to_owned()
    };
    let (low, high) = ("00000000000000010000000000000001", "000000000000000100ffffffffffffff");
    assert_eq!(ask(low), format!("{low}-{SPAN}-0"), "the ids pass as they are");
    assert!(ask(high).starts_with(&format!("{high}-")) && !ask(high).contains(SPAN));
    eventually("two exchanges are delivered", DEADLINE, || account(&gateway)["accepted"]["records"] == 2);
}

#[test]
fn a_websocket_is_a_span_and_a_mirrored_request_is_in_the_trace() {
    let (mirror, server) = (Origin::serving(|_| Answer::ok("")), Origin::serving(|_| Answer::status(202, "")));
    let origin = Origin::scripted(Reading::Strict, |connection| {
        let Ok(request) = connection.request() else { return };
        if !request.headers.has("upgrade") {
            let _ = connection.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            return;
        }
        let agreed = "HTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\n";
        let _ = connection.send(agreed);
        while connection.some().is_ok_and(|part| !part.is_empty() && connection.send(part).is_ok()) {}
    });
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "worker_processes: 1
routes:
  - uri: /*
    plugins:
      zipkin: {{ endpoint: \"http://{}/\", sample_ratio: 1 }}
      proxy-mirror: {{ host: \"http://{}\" }}
    upstream: {{ type: roundrobin, nodes: {{ \"{}\": 1 }} }}
",
        server.addr(),
        mirror.addr(),
        origin.addr()
    ));
    let mut client = Client::connect(gateway.addr());
    client.send(format!(
        "GET /socket HTTP/1.1\r\nHost: t\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nb3: {TRACE}-{SPAN}-1\r\n\r\n"
    ));
    assert_eq!(client.response_head("GET").expect("an answer").status, 101);
    client.send("hello");
    assert_eq!(client.exact(5).expect("it comes back"), b"hello");
    assert!(server.requests().is_empty(), "it has not ended");
    client.finish_sending();
    assert_eq!(client.until_closed(), b"");
    let request = format!("GET /mirrored HTTP/1.1\r\nHost: t\r\nb3: {TRACE}-{SPAN}-1\r\n\r\n");
    assert_eq!(gateway.client().ask(request).expect("an answer").status, 200);
    eventually("two exchanges are delivered", DEADLINE, || account(&gateway)["delivered"]["records"] == 2);
    let list = |request: Request| serde_json::from_slice::<Vec<Value>>(&request.body).expect("a list");
    let spans: Vec<Value> = server.requests().into_iter().flat_map(list).collect();
    let said: Vec<[&Value; 4]> = spans
        .iter()
        .map(|span| {
            [&span["traceId"], &span["kind"], &span["tags"]["url.path"], &span["tags"]["http.response.status_code"]]
        })
        .collect();
    let trace = &json!(TRACE);
    let (server_kind, client_kind) = (&json!("SERVER"), &json!("CLIENT"));
    assert_eq!(
        said,
        [
            [trace, server_kind, &json!("/socket"), &json!("101")],
            [trace, client_kind, &Value::Null, &json!("101")],
            [trace, server_kind, &json!("/mirrored"), &json!("200")],
            [trace, client_kind, &Value::Null, &json!("200")],
        ]
    );
    // The copy is part of the trace; nobody waits for its end, so it has no span of the gateway.
    let copy = mirror.wait_requests(1).pop().expect("it was copied");
    assert!(copy.headers.get("b3").is_some_and(|field| field.starts_with(TRACE)), "{:?}", copy.headers);
}

#[test]
fn otlp_logger_sends_records_that_belong_to_their_trace() {
    let origin = Origin::serving(|request| Answer::status(if request.target == "/a/bad" { 503 } else { 200 }, "well"));
    let is_down = Arc::new(AtomicUsize::new(1));
    let state = Arc::clone(&is_down);
    let collector =
        Origin::serving(move |_| Answer::status(if state.load(Ordering::SeqCst) == 1 { 503 } else { 200 }, ""));
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "worker_processes: 1
routes:
  - id: logged
    uri: /a/*
    plugins:
      otlp-logger: {{ endpoint_addrs: [\"http://{}\"], headers: {{ Authorization: t0ken }}, include_resp_body: true, batch_max_size: 2, inactive_timeout: 60,
        resource: {{ service.name: front }}, log_format_extra: {{ fixed: {{ list: [1, -2.5, true, null] }} }} }}
    upstream: {{ type: roundrobin, nodes: {{ \"{}\": 1 }} }}
",
        collector.addr(),
        origin.addr()
    ));
    for (target, fields) in
        [("/a/b", format!("traceparent: 00-{TRACE}-{SPAN}-01\r\nCookie: a=s3cret\r\n")), ("/a/bad", String::new())]
    {
        gateway.client().ask(format!("GET {target} HTTP/1.1\r\nHost: t\r\n{fields}\r\n")).expect("an answer");
    }
    collector.wait_requests(1);
    is_down.store(0, Ordering::SeqCst);
    eventually("they are delivered", DEADLINE, || account(&gateway)["delivered"]["records"] == 2);
    let sent = collector.requests().pop().expect("it was asked");
    assert_eq!((&*sent.target, sent.headers.get("authorization")), ("/v1/logs", Some("t0ken")));
    let Some(records) = decoded("logs", &[sent]) else { return };
    let [good, bad] = &records[..] else { panic!("two records: {records:#?}") };
    assert_eq!((&good["severity"], &bad["severity"]), (&json!([9, "INFO"]), &json!([17, "ERROR"])));
    assert_eq!((&good["trace"], &good["span"], &good["flags"]), (&json!(TRACE), &json!(SPAN), &json!(1)));
    assert_eq!((&bad["trace"], &bad["span"]), (&json!(""), &json!("")));
    assert_eq!((&good["resource"]["service.name"], &good["scope"]), (&json!("front"), &json!("weir")));
    let body = &good["body"];
    assert_eq!((&body["request"]["uri"], &body["response"]["body"]), (&json!("/a/b"), &json!("well")));
    assert_eq!((&body["response"]["status"], &body["request"]["headers"]["cookie"]), (&json!(200), &json!("***")));
    assert_eq!(body["fixed"]["list"], json!([1, -2.5, true, null]));
    assert_eq!(good["attributes"]["log.record.uid"], body["record_id"]);
    assert!(good["time"].as_u64() >= body["start_time"].as_u64().map(|ms| ms * 1_000_000), "{good:#}");
}
