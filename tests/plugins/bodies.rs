//! Plugins that look into content or change it, on its way both ways.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::SystemTime;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use weir_testkit::{Answer, DEADLINE, Gate, Gateway, Origin, Reading, eventually_some, free_port};

use crate::{Rig, refused};

/// A gateway with these plugins before an origin.
fn before(origin: &Origin, plugins: &str) -> Gateway {
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "routes: [{{ uri: /*, upstream: {{ type: roundrobin, nodes: {{ \"{}\": 1 }} }}, plugins: {plugins} }}]",
        origin.addr()
    ))
}

fn post(fields: &str, body: &str) -> String {
    format!("POST /a HTTP/1.1\r\nHost: t\r\n{fields}Content-Length: {}\r\n\r\n{body}", body.len())
}

fn chunked(fields: &str, pieces: &[&str]) -> String {
    let pieces: String = pieces.iter().map(|piece| format!("{:x}\r\n{piece}\r\n", piece.len())).collect();
    format!(
        "POST /a HTTP/1.1\r\nHost: t\r\n{fields}Transfer-Encoding: chunked\r\n\r\n{pieces}0\r\nA-Trailer: t\r\n\r\n"
    )
}

fn gunzipped(bytes: &[u8]) -> String {
    let mut text = String::new();
    GzDecoder::new(bytes).read_to_string(&mut text).expect("complete gzip");
    text
}

const JSON: &str = "{ json-threat-protection: { max_depth: 2, max_body_size: 1000 } }";

#[test]
fn a_request_is_looked_at_before_anything_is_forwarded() {
    let rig = Rig::with(JSON);
    let mut client = rig.gateway.client();
    assert_eq!(client.ask(post("", "{\"a\": 1}")).expect("an answer").status, 200);
    let refused = client.ask(post("", "[[[1]]]")).expect("on the same connection");
    assert_eq!((refused.status, refused.text()), (400, "{\"message\":\"The body is nested too deep\"}\n".to_owned()));
    assert_eq!(client.ask(chunked("", &["{\"a\"", ": [1]}"])).expect("on the same connection").status, 200);
    assert_eq!(client.get("/").expect("without a body").status, 200);
    let requests = rig.origin.requests();
    assert_eq!(requests.len(), 3);
    assert_eq!(
        (requests[0].body.as_slice(), requests[0].headers.get("content-length")),
        (&b"{\"a\": 1}"[..], Some("8"))
    );
    // What was read whole leaves with its length.
    assert_eq!(
        (requests[1].body.as_slice(), requests[1].headers.get("content-length")),
        (&b"{\"a\": [1]}"[..], Some("10"))
    );
    assert!(!requests[1].headers.has("transfer-encoding"));
}

#[test]
fn a_body_that_is_wanted_whole_has_a_limit() {
    let rig = Rig::with(JSON);
    let long = format!("\"{}\"", "x".repeat(1000));
    for request in [post("", &long), chunked("", &[&long[..600], &long[600..]])] {
        let answer = rig.gateway.client().ask(request).expect("an answer");
        assert_eq!((answer.status, answer.closes()), (413, answer.is_http1()));
    }
    // It is refused by what it declares, before it is sent.
    let mut client = rig.gateway.client();
    client.send("POST /a HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 1001\r\n\r\n");
    assert_eq!(client.response().expect("at once").status, 413);
    assert_eq!(rig.origin.requests().len(), 0);
}

#[test]
fn client_that_expects_100_continue_gets_it() {
    let rig = Rig::with(JSON);
    let mut client = rig.gateway.client();
    client.send("POST /a HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
    assert_eq!(client.next_head().expect("an invitation").status, 100);
    client.send("{}");
    assert_eq!(client.response().expect("an answer").status, 200);
    assert!(!rig.origin.requests()[0].headers.has("expect"));
}

#[test]
fn content_read_whole_can_be_sent_to_another_endpoint() {
    let flaky = Origin::scripted(Reading::Strict, |connection| {
        let _ = connection.request();
        connection.close();
    });
    let good = Origin::echo(Reading::Strict);
    let closed = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let nodes = format!("{{ '{}': 1, '{closed}': 1, '{}': 1 }}", flaky.addr(), good.addr());
    let file = |plugins: &str| {
        format!(
            "routes: [{{ uri: /*, upstream: {{ type: roundrobin, retry_budget: 1000, nodes: {nodes} }}, plugins: {plugins} }}]"
        )
    };
    for plugins in [JSON, "{ proxy-control: {} }"] {
        let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&file(plugins));
        for _ in 0..6 {
            let request = post("", "{\"a\": 1}").replacen("POST", "PUT", 1);
            let answer = gateway.client().ask(request).expect("an answer");
            assert_eq!(answer.status, 200, "{plugins}: {}", answer.text());
            assert_eq!(answer.text(), "PUT /a 8");
        }
    }
}

#[test]
fn buffering_of_requests_asks_the_upstream_once_the_body_is_complete() {
    let rig = Rig::with("{ proxy-control: {}, client-control: { max_body_size: 8 } }");
    let mut client = rig.gateway.client();
    client.send("POST /a HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 8\r\n\r\n");
    assert_eq!(client.next_head().expect("an invitation").status, 100);
    assert_eq!(rig.origin.connections(), 0, "the invitation is the gateway's own");
    client.send("12345678");
    assert_eq!(client.response().expect("an answer").text(), "POST /a");
    assert_eq!(client.ask(chunked("", &["1234", "5678"])).expect("an answer").status, 200);
    for request in rig.origin.requests() {
        assert_eq!((request.body.as_slice(), request.headers.get("content-length")), (&b"12345678"[..], Some("8")));
    }
    assert_eq!(client.ask(post("", "123456789")).expect("an answer").status, 413);
    assert_eq!(rig.origin.requests().len(), 2);
}

#[test]
fn buffering_of_requests_that_is_off_passes_a_body_on_as_it_arrives() {
    let origin = Origin::scripted(Reading::Strict, |connection| {
        if connection.head().is_ok() && connection.exact(4).is_ok() {
            let _ = connection.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nearly");
        }
    });
    let gateway = before(&origin, "{ proxy-control: { request_buffering: false } }");
    let mut client = gateway.client();
    client.send("POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: 8\r\n\r\n1234");
    assert_eq!(client.response().expect("before the rest is sent").text(), "early");
}

#[test]
fn buffering_of_requests_is_bound_by_the_content_held_for_a_client() {
    let origin = Origin::echo(Reading::Strict);
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "held_content_max_per_client: 64KiB
routes: [{{ uri: /*, upstream: {{ type: roundrobin, nodes: {{ \"{}\": 1 }} }}, plugins: {{ proxy-control: {{}} }} }}]",
        origin.addr()
    ));
    assert_eq!(gateway.client().ask(post("", &"x".repeat(10_000))).expect("an answer").status, 200);
    assert_eq!(gateway.client().ask(post("", &"x".repeat(200_000))).expect("an answer").status, 413);
    assert_eq!(origin.requests().len(), 1);
}

#[test]
fn r04_a_small_body_that_becomes_large_is_refused() {
    let rig = Rig::with("{ json-threat-protection: { max_string_length: 10000000, max_body_size: 2000000 } }");
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(format!("\"{}\"", "x".repeat(1_000_000)).as_bytes()).expect("memory takes everything");
    let bomb = encoder.finish().expect("memory takes everything");
    let mut request =
        format!("POST /a HTTP/1.1\r\nHost: t\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n", bomb.len());
    let mut client = rig.gateway.client();
    client.send(&request);
    client.send(&bomb);
    assert_eq!(client.response().expect("an answer").status, 413);
    request = post("Content-Encoding: zstd\r\n", "{}");
    assert_eq!(rig.gateway.client().ask(request).expect("an answer").status, 415);
    assert_eq!(rig.origin.requests().len(), 0);
}

#[test]
fn responses_are_compressed_for_those_who_take_it() {
    let origin = Origin::serving(|request| {
        let text = "hello ".repeat(100);
        match request.target.as_str() {
            "/chunked" => Answer::raw(format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\n\r\n258\r\n{text}\r\n0\r\nA-Trailer: t\r\n\r\n"
            )),
            "/none" => Answer::raw("HTTP/1.1 204 No Content\r\n\r\n"),
            "/same" => Answer::raw("HTTP/1.1 304 Not Modified\r\nETag: \"1\"\r\n\r\n"),
            "/png" => Answer::with(200, "Content-Type: image/png\r\n", text),
            _ => Answer::with(200, "Content-Type: text/html\r\nETag: \"1\"\r\nAccept-Ranges: bytes\r\n", text),
        }
    });
    let gateway = before(&origin, "{ gzip: {}, brotli: { types: [text/plain] } }");
    let ask = |target: &str, fields: &str| {
        let request = format!("GET {target} HTTP/1.1\r\nHost: t\r\n{fields}\r\n");
        gateway.client().ask(request).expect("an answer")
    };
    let takes = "Accept-Encoding: br, gzip;q=0.5\r\nTE: trailers\r\n";
    for target in ["/", "/chunked"] {
        let plain = ask(target, "");
        assert_eq!((plain.text(), plain.headers.get("vary")), ("hello ".repeat(100), Some("Accept-Encoding")));
        assert!(!plain.headers.has("content-encoding"));
        let coded = ask(target, takes);
        assert_eq!(gunzipped(&coded.body), "hello ".repeat(100));
        let headers = &coded.headers;
        assert_eq!(
            (headers.get("content-encoding"), headers.get("transfer-encoding")),
            (Some("gzip"), coded.is_http1().then_some("chunked"))
        );
        assert!(!headers.has("content-length") && !headers.has("accept-ranges"));
        assert_eq!(coded.trailers.get("a-trailer"), (target == "/chunked").then_some("t"));
    }
    assert_eq!(ask("/", takes).headers.get("etag"), Some("W/\"1\""));
    let png = ask("/png", takes);
    assert_eq!(
        (png.text().len(), png.headers.get("content-length"), png.headers.has("vary")),
        (600, Some("600"), false)
    );
    assert_eq!(ask("/none", takes).status, 204);
    let same = ask("/same", takes);
    assert_eq!((same.status, same.headers.get("etag")), (304, Some("\"1\"")));
    let same = ask("/same", &format!("If-None-Match: W/\"1\"\r\n{takes}"));
    assert_eq!((same.status, same.headers.get("etag")), (304, Some("W/\"1\"")), "as the response it confirms");
    assert_eq!(same.headers.all("vary").collect::<Vec<_>>(), ["Accept-Encoding"]);
    let mut client = gateway.client();
    client.send(format!("HEAD / HTTP/1.1\r\nHost: t\r\n{takes}\r\n"));
    let head = client.response_to("HEAD").expect("a head");
    assert_eq!((head.headers.get("content-encoding"), head.headers.has("content-length")), (Some("gzip"), false));
    // HTTP/1.0 has no chunks, and these clients get it plain unless told otherwise.
    let old = gateway.client().ask("GET / HTTP/1.0\r\nAccept-Encoding: gzip\r\n\r\n").expect("an answer");
    assert_eq!((old.text().len(), old.headers.get("content-length")), (600, Some("600")));
}

#[test]
fn answers_of_the_gateway_are_compressed_too() {
    let rig = Rig::with(
        "{ mocking: { response_example: 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', content_type: text/html }, gzip: {} }",
    );
    let mut client = rig.gateway.client();
    let answer = client.ask("GET / HTTP/1.1\r\nHost: t\r\nAccept-Encoding: gzip\r\n\r\n").expect("an answer");
    assert_eq!((answer.headers.get("content-encoding"), gunzipped(&answer.body)), (Some("gzip"), "a".repeat(36)));
    assert_eq!(answer.headers.get("content-length"), Some(answer.body.len().to_string().as_str()));
    assert_eq!(client.get("/").expect("on the same connection").text(), "a".repeat(36));
}

#[test]
fn events_are_not_held_back_by_compression() {
    let gate = Gate::new();
    let own = gate.clone();
    let origin = Origin::scripted(Reading::Strict, move |connection| {
        if connection.request().is_err() {
            return;
        }
        let head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
        let _ = connection.send(head);
        for event in ["data: 1\n\n", "data: 2\n\n"] {
            let _ = connection.send(format!("{:x}\r\n{event}\r\n", event.len()));
            own.wait();
        }
        let _ = connection.send("0\r\n\r\n");
    });
    let gateway = before(&origin, "{ gzip: { types: '*' } }");
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: t\r\nAccept-Encoding: gzip\r\n\r\n");
    assert_eq!(client.response_head("GET").expect("a head").headers.get("content-encoding"), Some("gzip"));
    let mut coded = Vec::new();
    for said in ["data: 1\n\n", "data: 1\n\ndata: 2\n\n"] {
        // Each event is there before the next has been sent.
        let mut text = vec![0; said.len()];
        while GzDecoder::new(&*coded).read_exact(&mut text).is_err() {
            coded.extend(client.chunk().expect("more of it"));
        }
        assert_eq!(text, said.as_bytes());
        gate.open_once();
    }
}

#[test]
fn a_response_that_is_wanted_whole_is_changed_or_refused() {
    let origin = Origin::serving(|request| {
        let lines = "Content-Type: application/json\r\nETag: \"1\"\r\n";
        match request.target.as_str() {
            "/large" => Answer::with(200, lines, format!("\"{}\"", "x".repeat(200))),
            "/grows" => Answer::raw(format!(
                "HTTP/1.1 200 OK\r\n{lines}Transfer-Encoding: chunked\r\n\r\nc8\r\n{}\r\n0\r\n\r\n",
                "x".repeat(200)
            )),
            "/cut" => Answer::raw(format!("HTTP/1.1 200 OK\r\n{lines}Content-Length: 50\r\n\r\n{{")).then_close(),
            "/text" => Answer::with(200, "Content-Type: text/plain\r\n", "card 1234"),
            _ => Answer::with(200, lines, r#"{"name": "jack", "card": "1234567890123456"}"#),
        }
    });
    let gateway = before(
        &origin,
        r#"{ gzip: { types: [application/json] }, content-filter: { max_body_size: 100, rules: [{ on: response, in: body, path: $.card, pattern: '\d{12}(\d{4})', action: mask, replacement: '****$1' }] } }"#,
    );
    let masked = r#"{"name": "jack", "card": "****3456"}"#;
    let mut client = gateway.client();
    let answer = client.get("/").expect("an answer");
    assert_eq!((answer.text(), answer.headers.get("etag")), (masked.to_owned(), None));
    assert_eq!(answer.headers.get("content-length"), Some("36"));
    let coded =
        client.ask("GET / HTTP/1.1\r\nHost: t\r\nAccept-Encoding: gzip\r\n\r\n").expect("on the same connection");
    assert_eq!(gunzipped(&coded.body), masked);
    assert!(origin.requests().iter().all(|request| !request.headers.has("accept-encoding")));
    for target in ["/large", "/grows", "/cut"] {
        assert_eq!(gateway.get(target).status, 502, "{target}");
    }
    assert_eq!(gateway.get("/text").text(), "card 1234");
    client.send("HEAD / HTTP/1.1\r\nHost: t\r\n\r\n");
    let head = client.response_to("HEAD").expect("a head");
    assert_eq!((head.status, head.headers.has("content-length")), (200, false));
}

#[test]
fn a_response_beyond_the_limit_of_a_plugin_is_a_502_with_a_line_whatever_the_limit() {
    let zipped = || {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(&[b'x'; 2_000]).expect("memory");
        encoder.finish().expect("memory")
    };
    let origin = Origin::serving(move |request| match request.target.as_str() {
        "/sized" => Answer::with(200, "", "x".repeat(200)),
        "/chunked" => Answer::raw(format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nc8\r\n{}\r\n0\r\n\r\n",
            "x".repeat(200)
        )),
        _ => Answer::with(200, "Content-Encoding: gzip\r\n", zipped()),
    });
    // 10 bytes are less than the gateway's own answers have, and 150 are more.
    for limit in [10, 150] {
        let filters = "filters: [{ regex: a, replace: b }]";
        let plugins = format!("{{ response-rewrite: {{ max_resp_body_size: {limit}, {filters} }} }}");
        let gateway = before(&origin, &plugins);
        for target in ["/sized", "/chunked", "/zipped"] {
            assert_eq!(gateway.get(target).status, 502, "{target}, {limit}");
        }
        gateway.wait_stderr("the reason", |line| line.contains("response-rewrite") && line.contains("502"));
    }
}

#[test]
fn requests_are_filtered_by_content() {
    let rig = Rig::with(
        r#"{ content-filter: { message: never, rules: [{ in: query, pattern: "union\\s+select", ignore_case: true, action: block }, { in: body, path: $.pin, pattern: "\\d", action: mask }] } }"#,
    );
    let blocked = rig.gateway.get("/?q=1%20UNION%20SELECT%202");
    assert_eq!((blocked.status, blocked.text()), (403, "{\"message\":\"never\"}\n".to_owned()));
    let mut client = rig.gateway.client();
    let answer = client.ask(chunked("", &["{\"pin\": \"1", "2\"}"])).expect("an answer");
    assert_eq!((answer.status, rig.origin.requests()[0].body.as_slice()), (200, &b"{\"pin\": \"******\"}"[..]));
    assert_eq!(rig.gateway.client().ask(post("", "pin=12")).expect("an answer").status, 400);
    let said = refused("{ content-filter: { rules: [{ in: body, path: a, pattern: a, action: block }] } }");
    assert!(said.contains("routes[0].plugins.content-filter.rules[0].path: is neither"), "{said}");
}

#[test]
fn sizes_are_limited_both_ways() {
    let origin = Origin::serving(|request| match request.target.as_str() {
        "/declared" => Answer::ok("x".repeat(20)),
        "/grows" => {
            Answer::raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n8\r\n12345678\r\n0\r\n\r\n")
        }
        "/chunked" => Answer::raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n0\r\n\r\n"),
        _ => Answer::ok("ok"),
    });
    let gateway = before(&origin, "{ message-size: { request: { min: 2, max: 10 }, response: { max: 10 } } }");
    let ask = |target: &str| {
        let request = format!("POST {target} HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\nhi");
        gateway.client().ask(request)
    };
    assert_eq!(ask("/a").expect("an answer").text(), "ok");
    assert_eq!(ask("/chunked").expect("an answer").text(), "12345");
    assert_eq!(ask("/declared").expect("an answer").status, 502);
    assert!(ask("/grows").is_err(), "cut off, so that the client can tell");
    for (request, status) in [
        (post("", "1"), 400),
        (post("", "12345678901"), 413),
        (chunked("", &["12345", "67890"]), 200),
        (chunked("", &["12345", "678901"]), 413),
        (chunked("", &["1"]), 400),
    ] {
        let answer = gateway.client().ask(&request).expect("an answer");
        assert_eq!(answer.status, status, "{request}");
    }
}

#[test]
fn wrong_options_are_refused_with_their_place() {
    for (plugins, want) in [
        ("{ gzip: { comp_level: 10 } }", "gzip.comp_level: expected a whole number from 1 to 9, found the number 10"),
        ("{ brotli: { lgwin: 30 } }", "brotli.lgwin: must be 0, or from 10 to 24"),
        ("{ message-size: { request: { min: 2, max: 1 } } }", "message-size.request.max: is less than `min`"),
        (
            "{ json-threat-protection: { max_depth: 0 } }",
            "json-threat-protection.max_depth: expected a whole number from 1 to 1000, found the number 0",
        ),
        (
            "{ xml-threat-protection: { max_dept: 1 } }",
            "xml-threat-protection.max_dept: the option `max_dept` is not known",
        ),
    ] {
        let said = refused(plugins);
        assert!(said.contains(&format!("routes[0].plugins.{want}")), "{said}");
    }
}

/// Asks over HTTP/2, with curl: status, head and decoded body.
fn over_http2(gateway: &Gateway, arguments: &[&str]) -> Option<(u16, String, String)> {
    let mut command = weir_testkit::Program::find("curl")?;
    command.args(["-s", "-i", "--compressed", "--http2-prior-knowledge", "--max-time", "20"]).args(arguments);
    command.arg(format!("http://{}/a", gateway.addr()));
    // Where an answer comes before all of the request was sent, the stream is reset without an error (RFC 9113 §8.1).
    // curl may take that for one, 92, and throw the answer away.
    let text = eventually_some("an answer that curl takes", DEADLINE, || {
        let output = command.output().expect("it can be run");
        (output.status.code() != Some(92)).then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    });
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {text}"));
    let status = head.strip_prefix("HTTP/2 ").and_then(|rest| rest.split(' ').next()?.trim().parse().ok());
    Some((status.unwrap_or_else(|| panic!("not HTTP/2: {head}")), head.to_ascii_lowercase(), body.to_owned()))
}

#[test]
fn content_is_looked_at_in_http2_as_well() {
    let origin = Origin::serving(|request| {
        let said = format!("{{\"card\": \"1234567890123456\", \"got\": {}}}", request.body.len());
        Answer::with(200, "Content-Type: application/json\r\n", said)
    });
    let gateway = before(
        &origin,
        "{ json-threat-protection: { max_depth: 2, max_body_size: 1000 }, gzip: { types: [application/json] },
           content-filter: { rules: [{ on: response, in: body, path: $.card, pattern: \"\\\\d{12}\", action: mask, replacement: x }] } }",
    );
    let Some((status, head, body)) = over_http2(&gateway, &["-d", "{\"a\": [1]}"]) else { return };
    assert_eq!((status, &*body), (200, "{\"card\": \"x3456\", \"got\": 10}"), "{head}");
    assert!(head.contains("content-encoding: gzip"), "{head}");
    let refused = |arguments: &[&str]| over_http2(&gateway, arguments).expect("there is a curl").0;
    assert_eq!(refused(&["-d", "[[[1]]]"]), 400);
    let large = format!("[\"{}\"]", "x".repeat(2000));
    assert_eq!(refused(&["-d", &large]), 413);
    assert_eq!(origin.requests().len(), 1);
    assert_eq!(origin.requests()[0].headers.get("content-length"), Some("10"));
}

#[test]
fn sizes_are_limited_in_http2_as_well() {
    let origin = Origin::serving(|request| Answer::ok("x".repeat(request.body.len() * 10)));
    let gateway = before(&origin, "{ message-size: { request: { max: 20 }, response: { max: 100 } } }");
    let Some((status, head, body)) = over_http2(&gateway, &["-d", "0123456789"]) else { return };
    assert_eq!((status, body.len()), (200, 100));
    assert!(head.contains("content-length: 100"), "{head}");
    assert_eq!(over_http2(&gateway, &["-d", "0123456789+"]).expect("an answer").0, 502);
    assert_eq!(over_http2(&gateway, &["-d", "012345678901234567890"]).expect("an answer").0, 413);
}

#[test]
fn a_signed_body_is_what_its_digest_says() {
    let origin = Origin::serving(|request| Answer::ok(&request.body));
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "routes:
  - uri: /*
    upstream: {{ type: roundrobin, nodes: {{ \"{}\": 1 }} }}
    plugins: {{ hmac-auth: {{ validate_request_body: true, max_req_body_size: 20, signed_headers: [date, digest] }} }}
consumers: [{{ username: jack, plugins: {{ hmac-auth: {{ key_id: id, secret_key: secret }} }} }}]
",
        origin.addr()
    ));
    let date = httpdate::fmt_http_date(SystemTime::now());
    let signed = |body: &str| {
        let digest = format!("SHA-256={}", STANDARD.encode(digest(&SHA256, body.as_bytes())));
        let text = format!("id\nPOST /a\ndate: {date}\ndigest: {digest}\n");
        let tag = STANDARD.encode(hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, b"secret"), text.as_bytes()));
        format!(
            "Date: {date}\r\nDigest: {digest}\r\nAuthorization: Signature keyId=\"id\",algorithm=\"hmac-sha256\",\
             headers=\"@request-target date digest\",signature=\"{tag}\"\r\n"
        )
    };
    let mut client = gateway.client();
    let mut ask = |request: String| client.ask(request).expect("an answer");
    assert_eq!(ask(post(&signed("hello"), "hello")).text(), "hello");
    assert_eq!(ask(chunked(&signed("hello"), &["hel", "lo"])).text(), "hello");
    assert_eq!(ask(post(&signed("hello"), "jello")).status, 401);
    assert_eq!(ask(chunked(&signed("hello"), &["hello", "!"])).status, 401);
    assert_eq!(ask(post("", "hello")).status, 401);
    assert_eq!(ask(post(&signed(&"x".repeat(21)), &"x".repeat(21))).status, 413);
    assert_eq!(origin.requests().len(), 2);
}
