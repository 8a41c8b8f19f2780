//! Every feature for every pair of protocols. A new protocol is an implementation in `sides` and a line per pair at the
//! end of this file.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use weir_testkit::{DEADLINE, Gate, Gateway, Origin, eventually, is_full};

use crate::sides::{ClientSide, Exchange, Length, UpstreamSide, file, file_of, upstream};

fn before<C: ClientSide, U: UpstreamSide>(origin: &Origin) -> Gateway {
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&file::<C, U>(origin))
}

/// How many bytes a test of flat memory receives; with `WEIR_TEST_FULL` as many as a large file has. Buffers on the way take tens of MiB.
fn large() -> u64 {
    if is_full() { 4 << 30 } else { 128 << 20 }
}

/// How many it sends. Nothing waits on the way, so less of it shows as much.
fn large_upload() -> u64 {
    if is_full() { 4 << 30 } else { 64 << 20 }
}

/// What a transfer of any size may add to the gateway's resident memory.
const FLAT: u64 = 8 << 20;

fn echo(exchange: &mut dyn Exchange) {
    let Ok(body) = exchange.body() else { return };
    let text = format!("{} {} {}", exchange.method(), exchange.target(), String::from_utf8_lossy(&body));
    exchange.answer(200, &[], &text);
}

fn connections_are_kept<C: ClientSide, U: UpstreamSide>() {
    let origin = U::origin(echo);
    let gateway = before::<C, U>(&origin);
    let mut client = C::connect(&gateway);
    for number in 0..20 {
        let answer = client.ask("GET", &format!("/{number}"), &[], b"").expect("an answer");
        assert_eq!((answer.status, answer.body), (200, format!("GET /{number} ")));
    }
    assert_eq!(origin.connections(), 1, "one after the other, on one connection upstream");
}

fn bodies_pass_both_ways<C: ClientSide, U: UpstreamSide>() {
    let origin = U::origin(|exchange| {
        let Ok(body) = exchange.body() else { return };
        let length = if exchange.target() == "/known" { Length::Exactly(body.len() as u64) } else { Length::Unknown };
        exchange.respond(200, &[], length);
        for part in body.chunks(1000) {
            if exchange.send(part).is_err() {
                return;
            }
        }
        if length == Length::Unknown {
            exchange.finish(&[]);
        }
    });
    let gateway = before::<C, U>(&origin);
    let mut client = C::connect(&gateway);
    for size in [1, 2, 1000, 1 << 14, (1 << 16) + 1, 3 << 20] {
        let body: String = (0..size).map(|at| char::from(b'a' + (at % 23) as u8)).collect();
        for target in ["/known", "/unknown"] {
            for length in [Length::Exactly(size as u64), Length::Unknown] {
                client.begin("POST", target, &[], length);
                // The origin answers only when it has everything, so this cannot block for good.
                for part in body.as_bytes().chunks(60_000) {
                    client.send(part).expect("it is taken");
                }
                if length == Length::Unknown {
                    client.finish(&[]);
                }
                let answer = client.answer().expect("an answer");
                assert!(answer.status == 200 && answer.body == body, "{size} bytes, {target}, {length:?}");
            }
        }
    }
}

fn empty_segments_arrive_unless_the_route_merges_them<C: ClientSide, U: UpstreamSide>() {
    let origin = U::origin(echo);
    let route = |id: &str, rest: &str| format!("id: {id}, uri: /{id}/*, {rest}upstream: {}", upstream::<U>(&[&origin]));
    let prefixed = "plugins: { proxy-rewrite: { regex_uri: [\"^/prefixed/(.*)\", \"/$1\"] } }, ";
    let routes = [route("kept", ""), route("merged", "merge_slashes: true, "), route("prefixed", prefixed)];
    let routes: Vec<&str> = routes.iter().map(String::as_str).collect();
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&file_of::<C>(&routes));
    let mut client = C::connect(&gateway);
    for (target, forwarded) in [
        ("/kept/MFEw//Akg==?a=//", "/kept/MFEw//Akg==?a=//"),
        ("//kept///%61", "//kept///a"),
        ("/kept//../a", "/a"),
        ("/merged/a//b?a=//", "/merged/a/b?a=//"),
        ("/prefixed/a//b", "/a//b"),
    ] {
        let answer = client.ask("GET", target, &[], b"").expect("an answer");
        let expected = if forwarded == "/a" { (404, false) } else { (200, true) };
        assert_eq!((answer.status, answer.body == format!("GET {forwarded} ")), expected, "{target}: {}", answer.body);
    }
}

fn both_directions_flow_at_once<C: ClientSide, U: UpstreamSide>() {
    let origin = U::origin(|exchange| {
        exchange.respond(200, &[], Length::Unknown);
        while let Ok(part) = exchange.part() {
            if part.is_empty() {
                return exchange.finish(&[]);
            }
            if exchange.send(&part).is_err() {
                return;
            }
        }
    });
    let gateway = before::<C, U>(&origin);
    let mut client = C::connect(&gateway);
    client.begin("POST", "/", &[], Length::Unknown);
    for word in ["one", "two", "three"] {
        client.send(word.as_bytes()).expect("it is taken");
        if word == "one" {
            assert_eq!(client.response().expect("a head before the request has ended").0, 200);
        }
        let mut back = Vec::new();
        while back.len() < word.len() {
            back.extend(client.part().expect("the word comes back before the next is sent"));
        }
        assert_eq!(back, word.as_bytes());
    }
    client.finish(&[]);
    assert_eq!(client.part().expect("a proper end"), b"");
}

fn trailers_pass_to_who_takes_them<C: ClientSide, U: UpstreamSide>() {
    let origin = U::origin(|exchange| {
        let Ok(_) = exchange.body() else { return };
        let sum = exchange.trailers().get("X-Sum").unwrap_or("none").to_owned();
        exchange.respond(200, &[("X-Got", &sum), ("Trailer", "X-Sum")], Length::Unknown);
        let _ = exchange.send(b"body");
        exchange.finish(&[("X-Sum", "7"), ("Content-Length", "9"), ("Set-Cookie", "a=b")]);
    });
    let gateway = before::<C, U>(&origin);
    let mut client = C::connect(&gateway);
    client.begin("POST", "/", &[("TE", "trailers")], Length::Unknown);
    client.send(b"hello").expect("it is taken");
    client.finish(&[("X-Sum", "5")]);
    let answer = client.answer().expect("an answer");
    assert_eq!((answer.status, answer.body.as_str()), (200, "body"));
    assert_eq!(answer.fields.get("X-Got"), Some("5"), "the request's trailers");
    assert_eq!(client.trailers().get("X-Sum"), Some("7"), "the response's trailers");
    assert!(!client.trailers().has("Content-Length") && !client.trailers().has("Set-Cookie"));
}

fn te_reaches_an_upstream_only_from_the_client<C: ClientSide, U: UpstreamSide>() {
    let origin = U::origin(|exchange| {
        let Ok(_) = exchange.body() else { return };
        let (te, connection) = (exchange.fields().get("te"), exchange.fields().get("connection"));
        let text = format!("{} {}", te.unwrap_or("none"), connection.unwrap_or("none"));
        exchange.answer(200, &[], &text);
    });
    let gateway = before::<C, U>(&origin);
    let mut client = C::connect(&gateway);
    let nominated = if U::HTTP2 { "none" } else { "te" };
    for (fields, received) in [
        (&[][..], "none none".to_owned()),
        (&[("TE", "trailers")], format!("trailers {nominated}")),
        (&[], "none none".into()),
    ] {
        for (method, body) in [("GET", &b""[..]), ("POST", b"content")] {
            let answer = client.ask(method, "/", fields, body).expect("an answer");
            assert_eq!((answer.status, answer.body), (200, received.clone()), "{method} {fields:?}");
        }
    }
}

fn interim_responses_pass<C: ClientSide, U: UpstreamSide>() {
    let origin = U::origin(|exchange| {
        exchange.interim(103, &[("Link", "</style.css>; rel=preload")]);
        exchange.interim(102, &[]);
        echo(exchange);
    });
    let gateway = before::<C, U>(&origin);
    let mut client = C::connect(&gateway);
    client.begin("GET", "/a", &[], Length::None);
    let (status, fields) = client.interim().expect("the hints");
    assert_eq!((status, fields.get("Link")), (103, Some("</style.css>; rel=preload")));
    assert_eq!(client.interim().expect("the second").0, 102);
    assert_eq!(client.answer().expect("an answer").body, "GET /a ");
}

fn interim_responses_beyond_some_are_left_out<C: ClientSide, U: UpstreamSide>() {
    let origin = U::origin(|exchange| {
        for _ in 0..100 {
            exchange.interim(103, &[("Link", "</style.css>; rel=preload")]);
        }
        echo(exchange);
    });
    let gateway = before::<C, U>(&origin);
    let mut client = C::connect(&gateway);
    client.begin("GET", "/a", &[], Length::None);
    assert_eq!(client.interim().expect("one of the first").0, 103);
    assert_eq!(client.answer().expect("an answer").body, "GET /a ");
    assert_eq!(client.ask("GET", "/b", &[], b"").expect("an answer").body, "GET /b ");
}

fn response_heads_have_limits_of_their_own<C: ClientSide, U: UpstreamSide>() {
    let origin = U::origin(|exchange| {
        let (count, length) = match exchange.target() {
            "/many" => (200, 10),
            "/long" => (10, 5_000),
            "/too-many" => (300, 10),
            "/too-long" => (20, 5_000),
            _ => return echo(exchange),
        };
        let names: Vec<String> = (0..count).map(|number| format!("x-{number}")).collect();
        let value = "v".repeat(length);
        let fields: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), value.as_str())).collect();
        exchange.answer(200, &fields, "whole");
    });
    let passive = "checks: { passive: { unhealthy: { http_failures: 1, tcp_failures: 1, timeouts: 1 } } }";
    let upstream = upstream::<U>(&[&origin]).replacen('{', &format!("{{ {passive}, "), 1);
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "client_max_header_size: 1KiB\nclient_max_header_count: 20\n{}",
        file_of::<C>(&[&format!("id: all, uri: /*, upstream: {upstream}")])
    ));
    for (target, status) in [("/many", 200), ("/long", 200), ("/too-many", 502), ("/too-long", 502), ("/after", 200)] {
        // An endpoint that sends such a head stays in rotation: other requests are served.
        let answer = C::connect(&gateway).ask("GET", target, &[], b"").expect("an answer");
        assert_eq!(answer.status, status, "{target}");
    }
}

fn a_waiting_client_is_told_to_go_on<C: ClientSide, U: UpstreamSide>() {
    let origin = U::origin(|exchange| {
        if exchange.fields().has("Expect") {
            exchange.interim(100, &[]);
        }
        echo(exchange);
    });
    let gateway = before::<C, U>(&origin);
    let mut client = C::connect(&gateway);
    client.begin("POST", "/a", &[("Expect", "100-continue")], Length::Exactly(5));
    assert_eq!(client.interim().expect("a 100").0, 100);
    client.send(b"hello").expect("it is taken");
    assert_eq!(client.answer().expect("an answer").body, "POST /a hello");
}

fn responses_without_a_body_have_none<C: ClientSide, U: UpstreamSide>() {
    let origin = U::origin(|exchange| match exchange.target() {
        "/204" => exchange.respond(204, &[], Length::None),
        "/304" => exchange.respond(304, &[("ETag", "\"a\"")], Length::Exactly(10)),
        "/head" => exchange.respond(200, &[("X", "y")], Length::Exactly(1_000_000)),
        _ => echo(exchange),
    });
    let gateway = before::<C, U>(&origin);
    let mut client = C::connect(&gateway);
    for (method, target, status) in [("GET", "/204", 204), ("GET", "/304", 304), ("HEAD", "/head", 200)] {
        let answer = client.ask(method, target, &[], b"").expect("an answer");
        assert_eq!((answer.status, answer.body.as_str()), (status, ""), "{target}");
        if target == "/head" {
            assert_eq!(answer.fields.get("Content-Length"), Some("1000000"), "what a GET would have said");
        }
        assert_eq!(client.ask("GET", "/next", &[], b"").expect("an answer").body, "GET /next ", "after {target}");
    }
}

/// RFC 9110 §6.6.1: a response without `Date` gets one on its way, and another's is left alone.
fn a_response_says_when_it_was_made<C: ClientSide, U: UpstreamSide>() {
    const ORIGINS: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    let origin = U::origin(|exchange| match exchange.target() {
        "/dated" => exchange.answer(200, &[("Date", ORIGINS)], "dated"),
        "/unchanged" => exchange.respond(304, &[("ETag", "\"a\"")], Length::None),
        _ => exchange.answer(200, &[], "undated"),
    });
    let upstream = upstream::<U>(&[&origin]);
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&file_of::<C>(&[
        &format!("id: bare, uri: /bare, upstream: {upstream}, plugins: {{ response-rewrite: {{ headers: {{ remove: [Date] }} }} }}"),
        &format!("id: all, uri: /*, upstream: {upstream}"),
    ]));
    let mut client = C::connect(&gateway);
    let mut dates = |target| -> Vec<String> {
        let answer = client.ask("GET", target, &[], b"").unwrap_or_else(|error| panic!("{target}: {error}"));
        answer.fields.all("Date").map(str::to_owned).collect()
    };
    assert_eq!(dates("/dated"), [ORIGINS]);
    assert_eq!(dates("/bare"), [""; 0], "a plugin has removed it");
    for target in ["/undated", "/unchanged"] {
        let before = SystemTime::now();
        let dates = dates(target);
        let [date] = &*dates else { panic!("{target}: {dates:?}") };
        let date = httpdate::parse_http_date(date).expect("a date");
        // The date is in whole seconds, and the gateway reads the clock at most ten times a second.
        let second = Duration::from_secs(2);
        assert!(before - second < date && date <= SystemTime::now(), "{target}: {date:?}, asked at {before:?}");
    }
}

fn redirects_and_cookies_of_an_upstream_are_rewritten<C: ClientSide, U: UpstreamSide>() {
    let origin = U::origin(|exchange| {
        let fields = [
            ("Location", "http://app.internal:8080/a?b=c"),
            ("Set-Cookie", "one=1; Domain=app.internal; Path=/a"),
            ("Set-Cookie", "two=2"),
            ("Set-Cookie", "three=3; Path=/; SameSite=None"),
        ];
        exchange.answer(302, &fields, "there");
    });
    let plugin = "reverse-rewrite: { \
        redirects: [{ from: \"http://app.internal:8080/\", to: \"https://$http_x_host/\" }], \
        cookie_domains: [{ from: app.internal, to: $http_x_host }], cookie_paths: [{ from: /, to: /app/ }], \
        cookie_flags: [{ name: three, flags: [samesite=lax] }] }";
    let route = format!(
        "id: all, uri: /*, upstream: {{ {}, persistence: {{ type: cookie, name: sticky }} }}, plugins: {{ {plugin} }}",
        upstream::<U>(&[&origin]).trim().trim_start_matches('{').trim_end_matches('}')
    );
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&file_of::<C>(&[&route]));
    let mut client = C::connect(&gateway);
    let mut ask = |host: &str| {
        let answer = client.ask("GET", "/a", &[("X-Host", host)], b"").expect("an answer");
        let values = |name: &str| answer.fields.all(name).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!((answer.status, &*answer.body), (302, "there"), "{host}");
        (values("Location"), values("Set-Cookie"))
    };
    let (locations, cookies) = ask("shop.example");
    assert_eq!(locations, ["https://shop.example/a?b=c"]);
    assert_eq!(
        cookies[..3],
        ["one=1; Domain=shop.example; Path=/app/a", "two=2", "three=3; Path=/app/; SameSite=Lax"],
        "{cookies:?}"
    );
    assert!(cookies.len() == 4 && cookies[3].contains("Path=/;"), "that of the gateway stays: {cookies:?}");
    let (_, cookies) = ask("shop.example; Path=/");
    assert_eq!(cookies[0], "one=1; Domain=app.internal; Path=/app/a", "a client adds no attribute");
}

fn the_client_s_address_is_said_once_and_truly<C: ClientSide, U: UpstreamSide>() {
    let origin = U::origin(|exchange| {
        let fields = exchange.fields();
        let text = ["X-Forwarded-For", "X-Real-IP", "X-Forwarded-Proto", "X-Forwarded-Host"]
            .map(|name| fields.all(name).collect::<Vec<_>>().join("+"))
            .join(" ");
        exchange.answer(200, &[], &text);
    });
    let (scheme, claimed) = if C::TLS { ("https", "http") } else { ("http", "https") };
    let claims = [("X-Forwarded-For", "6.6.6.6"), ("X-Real-IP", "6.6.6.6"), ("X-Forwarded-Proto", claimed)];
    let gateway = before::<C, U>(&origin);
    let answer = C::connect(&gateway).ask("GET", "/", &claims, b"").expect("an answer");
    assert_eq!(answer.body, format!("127.0.0.1 127.0.0.1 {scheme} t"), "claims of a stranger");
    gateway.rewrite(&format!("trusted_addresses: [127.0.0.0/8]\n{}", file::<C, U>(&origin)));
    let answer = C::connect(&gateway).ask("GET", "/", &claims, b"").expect("an answer");
    assert!(answer.body.starts_with("6.6.6.6, 127.0.0.1 "), "claims of a trusted peer: {}", answer.body);
    assert!(answer.body.contains(&format!(" {claimed} ")), "claims of a trusted peer: {}", answer.body);
}

fn an_early_response_passes<C: ClientSide, U: UpstreamSide>() {
    let origin = U::origin(|exchange| {
        if exchange.target() == "/early" {
            exchange.answer(403, &[], "no need for all that");
        } else {
            echo(exchange);
        }
    });
    let gateway = before::<C, U>(&origin);
    let mut client = C::connect(&gateway);
    client.begin("POST", "/early", &[], Length::Exactly(1 << 20));
    // The answer may be quicker, and say that nothing more is wanted (RFC 9113 §8.1).
    let _ = client.send(b"the beginning");
    let answer = client.answer().expect("an answer before the request has ended");
    assert_eq!((answer.status, answer.body.as_str()), (403, "no need for all that"));
    let answer = C::connect(&gateway).ask("GET", "/other", &[], b"").expect("an answer");
    assert_eq!(answer.body, "GET /other ");
}

fn a_client_that_leaves_is_missed_upstream<C: ClientSide, U: UpstreamSide>() {
    let (gate, gone) = (Gate::new(), Arc::new(AtomicUsize::new(0)));
    let origin = U::origin({
        let (gate, gone) = (gate.clone(), Arc::clone(&gone));
        move |exchange| {
            if exchange.target() == "/streaming" {
                exchange.respond(200, &[], Length::Unknown);
                let _ = exchange.send(b"first");
            }
            gate.wait();
            exchange.wait_gone();
            gone.fetch_add(1, Ordering::Relaxed);
        }
    });
    gate.open();
    let gateway = before::<C, U>(&origin);
    for (number, target) in ["/waiting", "/streaming"].into_iter().enumerate() {
        let mut client = C::connect(&gateway);
        client.begin("GET", target, &[], Length::None);
        gate.wait_arrived(number + 1);
        if target == "/streaming" {
            assert_eq!(client.response().expect("a head").0, 200);
            assert_eq!(client.part().expect("a part"), b"first");
        }
        client.abort();
        eventually("the origin sees it", DEADLINE, || gone.load(Ordering::Relaxed) == number + 1);
    }
}

fn events_pass_one_by_one<C: ClientSide, U: UpstreamSide>() {
    let gate = Gate::new();
    let origin = U::origin({
        let gate = gate.clone();
        move |exchange| {
            exchange.respond(200, &[("Content-Type", "text/event-stream")], Length::Unknown);
            for number in 0..20 {
                gate.wait();
                if exchange.send(format!("data: {number}\n\n").as_bytes()).is_err() {
                    return;
                }
            }
            exchange.finish(&[]);
        }
    });
    let gateway = before::<C, U>(&origin);
    let mut client = C::connect(&gateway);
    client.begin("GET", "/events", &[("Accept", "text/event-stream")], Length::None);
    assert_eq!(client.response().expect("a head before the first event").0, 200);
    for number in 0..20 {
        gate.open_once();
        assert_eq!(client.part().expect("an event"), format!("data: {number}\n\n").as_bytes());
    }
    assert_eq!(client.part().expect("a proper end"), b"");
}

fn a_stream_that_a_plugin_would_hold_is_refused_or_passes<C: ClientSide, U: UpstreamSide>() {
    let (said, sent) = (Gate::new(), Gate::new());
    let (open, told) = (sent.clone(), said.clone());
    let origin = U::origin(move |exchange| {
        exchange.respond(200, &[("Content-Type", "text/event-stream")], Length::Unknown);
        let _ = exchange.send(b"data: one\n\n");
        told.open();
        open.wait();
        exchange.finish(&[]);
    });
    let route = |streams: &str| {
        let plugin = format!("response-rewrite: {{ filters: [{{ regex: one, replace: two }}]{streams} }}");
        format!("id: r{0}, uri: /{0}, plugins: {{ {plugin} }}, upstream: {1}", streams.len(), upstream::<U>(&[&origin]))
    };
    let (refuses, passes) = (route(""), route(", streams: pass"));
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&file_of::<C>(&[&refuses, &passes]));
    let mut client = C::connect(&gateway);
    client.begin("GET", "/15", &[], Length::None);
    assert_eq!(client.response().expect("a head while the stream is open").0, 200);
    assert_eq!(client.part().expect("an event while the stream is open"), b"data: one\n\n");
    said.wait();
    sent.open();
    assert_eq!(client.part().expect("its end"), b"");
    let answer = C::connect(&gateway).ask("GET", "/0", &[], b"").expect("an answer");
    assert_eq!(answer.status, 502);
    gateway.wait_stderr("the reason", |line| line.contains("response-rewrite") && line.contains("streams: pass"));
}

fn clients_share_an_event_stream<C: ClientSide, U: UpstreamSide>() {
    let (gate, opened) = (Gate::new(), Arc::new(AtomicUsize::new(0)));
    let origin = U::origin({
        let (gate, opened) = (gate.clone(), Arc::clone(&opened));
        move |exchange| {
            opened.fetch_add(1, Ordering::Relaxed);
            exchange.respond(200, &[("Content-Type", "text/event-stream")], Length::Unknown);
            for number in 0..3 {
                gate.wait();
                if exchange.send(format!("id: {number}\ndata: x\n\n").as_bytes()).is_err() {
                    return;
                }
            }
            exchange.wait_gone();
        }
    });
    let route = format!("id: all, uri: /*, plugins: {{ sse-fanout: {{}} }}, upstream: {}", upstream::<U>(&[&origin]));
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&file_of::<C>(&[&route]));
    let follow = |fields: &[(&str, &str)]| {
        let mut client = C::connect(&gateway);
        client.begin("GET", "/events", &[&[("Accept", "text/event-stream")], fields].concat(), Length::None);
        assert_eq!(client.response().expect("a head before the first event").0, 200);
        client
    };
    let mut clients = [follow(&[]), follow(&[])];
    for number in 0..3 {
        gate.open_once();
        for client in &mut clients {
            assert_eq!(client.part().expect("an event"), format!("id: {number}\ndata: x\n\n").as_bytes());
        }
    }
    let mut late = follow(&[("Last-Event-ID", "1")]);
    assert_eq!(late.part().expect("what it has missed"), b"id: 2\ndata: x\n\n");
    assert_eq!(opened.load(Ordering::Relaxed), 1);
}

fn a_kept_response_answers_again<C: ClientSide, U: UpstreamSide>() {
    let asked = Arc::new(AtomicUsize::new(0));
    let body: String = (0..300_000).map(|at| char::from(b'a' + (at % 23) as u8)).collect();
    let origin = U::origin({
        let (asked, body) = (Arc::clone(&asked), body.clone());
        move |exchange| {
            asked.fetch_add(1, Ordering::Relaxed);
            let is_known = exchange.target() == "/known";
            let length = if is_known { Length::Exactly(body.len() as u64) } else { Length::Unknown };
            exchange.respond(200, &[("Cache-Control", "max-age=60"), ("ETag", "\"a\"")], length);
            if exchange.send(body.as_bytes()).is_ok() && !is_known {
                exchange.finish(&[]);
            }
        }
    });
    let route = format!("id: all, uri: /*, plugins: {{ proxy-cache: {{}} }}, upstream: {}", upstream::<U>(&[&origin]));
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&file_of::<C>(&[&route]));
    let mut client = C::connect(&gateway);
    for target in ["/known", "/unknown"] {
        for want in ["MISS", "HIT", "HIT"] {
            let answer = client.ask("GET", target, &[], b"").expect("an answer");
            assert_eq!((answer.status, answer.fields.get("apisix-cache-status")), (200, Some(want)), "{target}");
            assert!(answer.body == body, "{target}: {} bytes", answer.body.len());
        }
        let head = client.ask("HEAD", target, &[], b"").expect("an answer");
        assert_eq!((head.status, head.fields.get("content-length"), &*head.body), (200, Some("300000"), ""));
        let part = client.ask("GET", target, &[("Range", "bytes=-7")], b"").expect("an answer");
        assert_eq!((part.status, &*part.body), (206, &body[body.len() - 7..]));
        assert_eq!(client.ask("GET", target, &[("If-None-Match", "\"a\"")], b"").expect("an answer").status, 304);
    }
    assert_eq!(asked.load(Ordering::Relaxed), 2);
}

fn a_large_upload_takes_no_memory<C: ClientSide, U: UpstreamSide>() {
    let origin = U::origin(|exchange| {
        let mut count = 0_u64;
        while let Ok(part) = exchange.part() {
            if part.is_empty() {
                return exchange.answer(200, &[], &count.to_string());
            }
            count += part.len() as u64;
        }
    });
    let gateway = before::<C, U>(&origin);
    let mut client = C::connect(&gateway);
    client.ask("POST", "/", &[], b"warm").expect("an answer");
    let before = gateway.rss();
    for length in [Length::Exactly(large_upload()), Length::Unknown] {
        client.begin("POST", "/", &[], length);
        let block = vec![b'x'; 1 << 20];
        // What is taken once, whatever the length, has its own bound: TLS before HTTP/2 takes a little more than 8 MiB.
        let (mut begun, mut peak) = (0, 0);
        for number in 0..large_upload() >> 20 {
            client.send(&block).expect("it is taken");
            match number % 16 {
                15 if begun == 0 => begun = gateway.rss(),
                15 => peak = peak.max(gateway.rss()),
                _ => {}
            }
        }
        if length == Length::Unknown {
            client.finish(&[]);
        }
        assert_eq!(client.answer().expect("an answer").body, large_upload().to_string());
        assert!(begun.saturating_sub(before) <= 2 * FLAT, "the first bytes took {} bytes", begun - before);
        assert!(peak.saturating_sub(begun) <= FLAT, "{} bytes took {} bytes of memory", large_upload(), peak - begun);
    }
}

fn a_large_download_takes_no_memory_and_waits_for_the_client<C: ClientSide, U: UpstreamSide>() {
    let sent = Arc::new(AtomicU64::new(0));
    let origin = U::origin({
        let sent = Arc::clone(&sent);
        move |exchange| {
            let length = if exchange.target() == "/known" { Length::Exactly(large()) } else { Length::Unknown };
            exchange.respond(200, &[], length);
            let block = vec![b'x'; 1 << 18];
            for _ in 0..large() >> 18 {
                if exchange.send(&block).is_err() {
                    return;
                }
                sent.fetch_add(1 << 18, Ordering::Relaxed);
            }
            if length == Length::Unknown {
                exchange.finish(&[]);
            }
        }
    });
    let gateway = before::<C, U>(&origin);
    let mut client = C::connect(&gateway);
    let before = gateway.rss();
    for target in ["/known", "/unknown"] {
        sent.store(0, Ordering::Relaxed);
        client.begin("GET", target, &[], Length::None);
        assert_eq!(client.response().expect("a head").0, 200);
        let mut got = client.part().expect("the beginning").len() as u64;
        // Nothing is read now, so the origin comes to a stop when the buffers on the way are full.
        let (mut still, mut last) = (0, u64::MAX);
        eventually("the origin waits", DEADLINE, || {
            let now = sent.load(Ordering::Relaxed);
            still = if now == last { still + 1 } else { 0 };
            last = now;
            still == 50
        });
        assert!(last < large() / 2, "the origin could send {last} bytes that nobody read");
        // What is taken once, whatever the length, has its own bound: HTTP/2 before TLS takes 10 MiB, for 4 GiB as well.
        let begun = gateway.rss();
        assert!(begun.saturating_sub(before) <= 2 * FLAT, "the first {got} bytes took {} bytes", begun - before);
        let mut peak = begun;
        let mut looked = 0;
        loop {
            let part = client.part().expect("more of it");
            if part.is_empty() {
                break;
            }
            got += part.len() as u64;
            if got >> 24 != looked {
                looked = got >> 24;
                peak = peak.max(gateway.rss());
            }
        }
        assert_eq!(got, large());
        assert!(peak - begun <= FLAT, "{} bytes took {} bytes of memory", large(), peak - begun);
        assert!(peak.saturating_sub(before) <= 2 * FLAT, "{} bytes took {} bytes of memory", large(), peak - before);
    }
}

/// The bytes of a response whose rate is limited: those of two seconds.
const PACED: usize = 400_000;

fn a_response_is_sent_at_the_rate_of_its_route<C: ClientSide, U: UpstreamSide>() {
    let origin = U::origin(|exchange| {
        let is_known = exchange.target().ends_with("known");
        exchange.respond(200, &[], if is_known { Length::Exactly(PACED as u64) } else { Length::Unknown });
        if exchange.send(&vec![b'x'; PACED]).is_ok() && !is_known {
            exchange.finish(&[("X-Sum", "7")]);
        }
    });
    let route = |name: &str, plugins: &str| {
        format!("id: {name}, uri: /{name}/*, plugins: {{ {plugins} }}, upstream: {}", upstream::<U>(&[&origin]))
    };
    let paced = "limit-rate: { rate: 200000 }";
    let routes = [
        route("paced", paced),
        route("held", &format!("{paced}, response-rewrite: {{ filters: [{{ regex: y, replace: z }}] }}")),
        route("filtered", &format!("{paced}, gzip: {{ min_length: 1000000000, types: [a/b] }}")),
        route("free", &format!("limit-rate: {{ rate: 1, after: {PACED} }}")),
    ];
    let routes: Vec<&str> = routes.iter().map(String::as_str).collect();
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&file_of::<C>(&routes));
    let ask = |name: &str, length: &str| {
        let mut client = C::connect(&gateway);
        let start = Instant::now();
        client.begin("GET", &format!("/{name}/{length}"), &[("TE", "trailers")], Length::None);
        let answer = client.answer().expect("an answer");
        let took = start.elapsed();
        let is_whole = answer.body.len() == PACED && answer.body.bytes().all(|byte| byte == b'x');
        assert!(answer.status == 200 && is_whole, "{name} {length}: {} bytes", answer.body.len());
        // What is sent at once is a twentieth of a second's. With a byte in a second, the free one would never end.
        let least = Duration::from_millis(if name == "free" { 0 } else { 1_900 });
        assert!(took >= least, "{name} {length}: {took:?}");
        if length == "known" {
            assert_eq!(answer.fields.get("Content-Length"), Some("400000"), "{name}: a rate changes no length");
        } else if name != "held" {
            assert_eq!(client.trailers().get("X-Sum"), Some("7"), "{name}: trailers come after the content");
        }
    };
    thread::scope(|scope| {
        for name in ["paced", "held", "filtered", "free"] {
            for length in ["known", "open"] {
                scope.spawn(move || ask(name, length));
            }
        }
    });
}

fn a_slow_response_stops_its_upstream_and_no_other_response<C: ClientSide, U: UpstreamSide>() {
    let (sent, gone) = (Arc::new(AtomicU64::new(0)), Gate::new());
    let origin = U::origin({
        let (sent, gone) = (Arc::clone(&sent), gone.clone());
        move |exchange| {
            if exchange.target() != "/slow" {
                return exchange.answer(200, &[], "soon");
            }
            exchange.respond(200, &[], Length::Exactly(large()));
            let block = vec![b'x'; 1 << 18];
            while exchange.send(&block).is_ok() {
                sent.fetch_add(1 << 18, Ordering::Relaxed);
            }
            gone.open();
        }
    });
    let upstream = upstream::<U>(&[&origin]);
    let slow =
        format!("id: slow, uri: /slow, plugins: {{ limit-rate: {{ rate: 1, after: 5000 }} }}, upstream: {upstream}");
    let other = format!("id: other, uri: /other, upstream: {upstream}");
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&file_of::<C>(&[&slow, &other]));
    let mut client = C::connect(&gateway);
    client.begin("GET", "/slow", &[], Length::None);
    assert_eq!(client.response().expect("a head").0, 200);
    let mut got = 0;
    while got < 5000 {
        got += client.part().expect("what is sent at once").len();
    }
    assert!(got <= 5000 + 512, "{got} bytes");
    let (mut still, mut last) = (0, u64::MAX);
    eventually("the origin waits", DEADLINE, || {
        let now = sent.load(Ordering::Relaxed);
        still = if now == last { still + 1 } else { 0 };
        last = now;
        still == 50
    });
    // What the buffers of both sockets take, and a stream's window.
    assert!(last <= 16 << 20, "the origin could send {last} bytes of which few were sent on");
    assert_eq!(C::connect(&gateway).ask("GET", "/other", &[], b"").expect("an answer").body, "soon");
    client.abort();
    gone.wait(); // the origin sees that the client has left
}

fn a_cut_response_is_seen_to_be_cut<C: ClientSide, U: UpstreamSide>() {
    let origin = U::origin(|exchange| {
        if exchange.target() == "/next" {
            return echo(exchange);
        }
        let length = if exchange.target() == "/known" { Length::Exactly(100) } else { Length::Unknown };
        exchange.respond(200, &[], length);
        let _ = exchange.send(b"half");
        exchange.abort();
    });
    let gateway = before::<C, U>(&origin);
    for target in ["/known", "/unknown"] {
        let outcome = C::connect(&gateway).ask("GET", target, &[], b"");
        assert!(outcome.as_ref().map_or(true, |answer| answer.status == 502), "{target}: {outcome:?}");
        assert_eq!(C::connect(&gateway).ask("GET", "/next", &[], b"").expect("an answer").body, "GET /next ");
    }
}

fn a_failed_attempt_is_made_elsewhere_where_that_is_safe<C: ClientSide, U: UpstreamSide>() {
    let failing = U::origin(|exchange| {
        let Ok(_) = exchange.body() else { return };
        exchange.abort();
    });
    let healthy = U::origin(echo);
    let both = upstream::<U>(&[&failing, &healthy]);
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir"))
        .start(&format!("worker_processes: 1\n{}", file_of::<C>(&[&format!("id: all, uri: /*, upstream: {both}")])));
    let mut client = C::connect(&gateway);
    // Each has the turn of one of the two.
    let mut statuses = Vec::new();
    for number in 0..2 {
        statuses.push(client.ask("POST", &format!("/{number}"), &[], b"hello").expect("an answer").status);
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 502], "a POST that may have been acted on is sent once");
    for number in 2..10 {
        let answer = client.ask("GET", &format!("/{number}"), &[], b"").expect("an answer");
        assert_eq!((answer.status, answer.body), (200, format!("GET /{number} ")));
    }
}

fn another_endpoint_is_tried_after_a_status_where_that_is_wanted<C: ClientSide, U: UpstreamSide>() {
    let busy = U::origin(|exchange| {
        if exchange.body().is_ok() {
            exchange.answer(503, &[("X-From", "busy")], "busy");
        }
    });
    let healthy = U::origin(echo);
    let upstream = upstream::<U>(&[&busy, &healthy]);
    let choosy = upstream.replacen(
        "{ ",
        "{ retry_on: [http_502, http_503], checks: { passive: { unhealthy: { http_failures: 0 } } }, ",
        1,
    );
    let failing = choosy.replace(&healthy.addr().to_string(), &format!("127.0.0.1:{}", weir_testkit::free_port()));
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&file_of::<C>(&[
        &format!("id: choosy, uri: /choosy/*, upstream: {choosy}"),
        &format!("id: failing, uri: /failing/*, upstream: {failing}"),
    ]));
    let mut client = C::connect(&gateway);
    for number in 0..6 {
        let target = format!("/choosy/{number}");
        let answer = client.ask("GET", &target, &[], b"").expect("an answer");
        assert_eq!((answer.status, answer.body), (200, format!("GET {target} ")));
        assert!(!answer.fields.has("x-from") && !answer.fields.has("x-apisix-upstream-status"));
    }
    let mut posted: Vec<u16> =
        (0..2).map(|_| client.ask("POST", "/choosy/p", &[], b"x").expect("an answer").status).collect();
    posted.sort_unstable();
    assert_eq!(posted, [200, 503], "a POST may have been acted on");
    // The other endpoint refuses connections: in the end, the client gets what the first one says, whichever is tried first.
    for _ in 0..4 {
        let status = client.ask("GET", "/failing/a", &[], b"").expect("an answer").status;
        assert!([502, 503].contains(&status), "{status}");
    }
    let again = client.ask("GET", "/choosy/last", &[], b"").expect("the connection goes on");
    assert_eq!(again.status, 200);
}

fn responses_are_framed_by_what_the_client_asked_and_is_told<C: ClientSide, U: UpstreamSide>() {
    let origin = U::origin(|exchange| match exchange.target() {
        "/none" => exchange.respond(204, &[], Length::None),
        "/unchanged" => exchange.respond(304, &[], Length::None),
        _ if exchange.method() == "HEAD" => exchange.respond(200, &[("Content-Length", "11")], Length::None),
        "/unknown" => {
            exchange.respond(200, &[], Length::Unknown);
            let _ = exchange.send(b"GET /unknown");
            exchange.finish(&[]);
        }
        _ => echo(exchange),
    });
    let upstream = upstream::<U>(&[&origin]);
    let rewritten = |uri: &str, plugin: &str| {
        format!(
            "uri: {uri}/*, upstream: {upstream}, plugins: {{ proxy-rewrite: {{ regex_uri: ['^/[^/]+', '']{plugin} }}"
        )
    };
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&file_of::<C>(&[
        &rewritten("/204", " }, response-rewrite: { status_code: 204 }"),
        &rewritten("/304", " }, response-rewrite: { status_code: 304 }"),
        &rewritten("/200", " }, response-rewrite: { status_code: 200 }"),
        &rewritten("/get", ", method: GET }"),
        &rewritten("/head", ", method: HEAD }"),
    ]));
    let mut client = C::connect(&gateway);
    for (method, target, status, body) in [
        ("GET", "/204/a", 204, ""),
        ("GET", "/204/unknown", 204, ""),
        ("GET", "/304/a", 304, ""),
        ("GET", "/304/unknown", 304, ""),
        ("GET", "/200/none", 200, ""),
        ("GET", "/200/unchanged", 200, ""),
        ("GET", "/200/a", 200, "GET /a "),
        ("HEAD", "/get/a", 200, ""),
        ("HEAD", "/get/unknown", 200, ""),
        ("GET", "/head/a", 200, ""),
        ("POST", "/get/a", 200, "GET /a "),
        ("GET", "/get/a", 200, "GET /a "),
    ] {
        let answer = client.ask(method, target, &[], b"").unwrap_or_else(|error| panic!("{method} {target}: {error}"));
        assert_eq!((answer.status, &*answer.body), (status, body), "{method} {target}");
        assert!(status != 204 || !answer.fields.has("Content-Length"), "{target}: {:?}", answer.fields);
    }
}

fn an_upstream_that_is_silent_is_a_504<C: ClientSide, U: UpstreamSide>() {
    let missed = Arc::new(AtomicUsize::new(0));
    let origin = U::origin({
        let missed = Arc::clone(&missed);
        move |exchange| {
            if exchange.target() != "/slow" {
                return echo(exchange);
            }
            exchange.wait_gone();
            missed.fetch_add(1, Ordering::Relaxed);
        }
    });
    let upstream = upstream::<U>(&[&origin]);
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&file_of::<C>(&[
        &format!("id: slow, uri: /slow, timeout: {{ connect: 5, send: 5, read: 0.1 }}, upstream: {upstream}"),
        &format!("id: all, uri: /*, upstream: {upstream}"),
    ]));
    let mut client = C::connect(&gateway);
    assert_eq!(client.ask("GET", "/slow", &[], b"").expect("an answer").status, 504);
    eventually("the origin is told", DEADLINE, || missed.load(Ordering::Relaxed) == 1);
    assert_eq!(client.ask("GET", "/next", &[], b"").expect("an answer").body, "GET /next ");
}

fn an_answer_of_the_gateway_to_head_names_no_type<C: ClientSide, U: UpstreamSide>() {
    let origin = U::origin(echo);
    let route = format!("id: a, uri: /a, upstream: {}", upstream::<U>(&[&origin]));
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&file_of::<C>(&[&route]));
    let mut client = C::connect(&gateway);
    for (method, has_type) in [("HEAD", false), ("GET", true)] {
        let answer = client.ask(method, "/none", &[], b"").expect("an answer");
        assert_eq!((answer.status, answer.fields.has("Content-Type")), (404, has_type), "{:?}", answer.fields);
    }
}

/// Of an upstream that goes on sending, each step is in time.
fn an_exchange_takes_no_longer_than_its_route_allows<C: ClientSide, U: UpstreamSide>() {
    let (begun, missed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let origin = U::origin({
        let (begun, missed) = (Arc::clone(&begun), Arc::clone(&missed));
        move |exchange| {
            let is_slow = match exchange.target() {
                "/silent" => false,
                "/slow" => true,
                _ => return echo(exchange),
            };
            begun.fetch_add(1, Ordering::Relaxed);
            if is_slow {
                exchange.respond(200, &[], Length::Exactly(1 << 20));
                let _ = exchange.send(b"some");
            }
            exchange.wait_gone();
            missed.fetch_add(1, Ordering::Relaxed);
        }
    });
    let upstream = upstream::<U>(&[&origin]);
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&file_of::<C>(&[
        &format!("id: timed, uris: [/silent, /slow], request_timeout: 0.5, upstream: {upstream}"),
        &format!("id: all, uri: /*, upstream: {upstream}"),
    ]));
    // On a busy machine a request may have had its time before the origin has seen it; then it is made again.
    let is_told = || {
        let all = begun.load(Ordering::Relaxed);
        all > 0 && missed.load(Ordering::Relaxed) == all
    };
    let mut client = C::connect(&gateway);
    eventually("the origin has seen it", DEADLINE, || {
        assert_eq!(client.ask("GET", "/silent", &[], b"").expect("an answer").status, 504);
        begun.load(Ordering::Relaxed) > 0
    });
    eventually("the origin is told", DEADLINE, is_told);
    assert_eq!(client.ask("GET", "/next", &[], b"").expect("an answer").body, "GET /next ");
    eventually("the response has begun, and is cut", DEADLINE, || {
        C::connect(&gateway).ask("GET", "/slow", &[], b"").map_or(true, |answer| {
            assert_eq!(answer.status, 504);
            false
        })
    });
    eventually("the origin is told", DEADLINE, is_told);
    assert_eq!(C::connect(&gateway).ask("GET", "/next", &[], b"").expect("an answer").body, "GET /next ");
}

/// Each feature as a test of each pair.
macro_rules! matrix {
    ($features:tt; $($pair:ident: $client:ty => $upstream:ty;)*) => {
        $(mod $pair { matrix!(@pair $features $client, $upstream); })*
    };
    (@pair [$($feature:ident),* $(,)?] $client:ty, $upstream:ty) => {
        $(#[test] fn $feature() { super::$feature::<$client, $upstream>(); })*
    };
}

matrix! {
    [
        connections_are_kept,
        bodies_pass_both_ways,
        empty_segments_arrive_unless_the_route_merges_them,
        both_directions_flow_at_once,
        trailers_pass_to_who_takes_them,
        te_reaches_an_upstream_only_from_the_client,
        interim_responses_pass,
        interim_responses_beyond_some_are_left_out,
        response_heads_have_limits_of_their_own,
        a_waiting_client_is_told_to_go_on,
        responses_without_a_body_have_none,
        a_response_says_when_it_was_made,
        redirects_and_cookies_of_an_upstream_are_rewritten,
        the_client_s_address_is_said_once_and_truly,
        an_answer_of_the_gateway_to_head_names_no_type,
        an_early_response_passes,
        an_exchange_takes_no_longer_than_its_route_allows,
        a_client_that_leaves_is_missed_upstream,
        events_pass_one_by_one,
        a_stream_that_a_plugin_would_hold_is_refused_or_passes,
        clients_share_an_event_stream,
        a_kept_response_answers_again,
        a_large_upload_takes_no_memory,
        a_large_download_takes_no_memory_and_waits_for_the_client,
        a_response_is_sent_at_the_rate_of_its_route,
        a_slow_response_stops_its_upstream_and_no_other_response,
        a_cut_response_is_seen_to_be_cut,
        a_failed_attempt_is_made_elsewhere_where_that_is_safe,
        another_endpoint_is_tried_after_a_status_where_that_is_wanted,
        responses_are_framed_by_what_the_client_asked_and_is_told,
        an_upstream_that_is_silent_is_a_504,
    ];
    http1_to_http1: crate::sides::Http1<crate::sides::Plain> => crate::sides::Http1<crate::sides::Plain>;
    http1_to_https1: crate::sides::Http1<crate::sides::Plain> => crate::sides::Http1<crate::sides::Secure>;
    http1_to_http2: crate::sides::Http1<crate::sides::Plain> => crate::sides::Http2<crate::sides::Plain>;
    http1_to_https2: crate::sides::Http1<crate::sides::Plain> => crate::sides::Http2<crate::sides::Secure>;
    https1_to_http1: crate::sides::Http1<crate::sides::Secure> => crate::sides::Http1<crate::sides::Plain>;
    https1_to_https1: crate::sides::Http1<crate::sides::Secure> => crate::sides::Http1<crate::sides::Secure>;
    https1_to_http2: crate::sides::Http1<crate::sides::Secure> => crate::sides::Http2<crate::sides::Plain>;
    https1_to_https2: crate::sides::Http1<crate::sides::Secure> => crate::sides::Http2<crate::sides::Secure>;
    http2_to_http1: crate::sides::Http2<crate::sides::Plain> => crate::sides::Http1<crate::sides::Plain>;
    http2_to_https1: crate::sides::Http2<crate::sides::Plain> => crate::sides::Http1<crate::sides::Secure>;
    http2_to_http2: crate::sides::Http2<crate::sides::Plain> => crate::sides::Http2<crate::sides::Plain>;
    http2_to_https2: crate::sides::Http2<crate::sides::Plain> => crate::sides::Http2<crate::sides::Secure>;
    https2_to_http1: crate::sides::Http2<crate::sides::Secure> => crate::sides::Http1<crate::sides::Plain>;
    https2_to_https1: crate::sides::Http2<crate::sides::Secure> => crate::sides::Http1<crate::sides::Secure>;
    https2_to_http2: crate::sides::Http2<crate::sides::Secure> => crate::sides::Http2<crate::sides::Plain>;
    https2_to_https2: crate::sides::Http2<crate::sides::Secure> => crate::sides::Http2<crate::sides::Secure>;
    http3_to_http1: crate::sides::Http3 => crate::sides::Http1<crate::sides::Plain>;
    http3_to_https1: crate::sides::Http3 => crate::sides::Http1<crate::sides::Secure>;
    http3_to_http2: crate::sides::Http3 => crate::sides::Http2<crate::sides::Plain>;
    http3_to_https2: crate::sides::Http3 => crate::sides::Http2<crate::sides::Secure>;
}
