//! S11–S15, S22, S23, S25: what follows a message on its connection, and what a client may say about the connection.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;

use weir_testkit::{Answer, Client, DEADLINE, EndOfAttack, Gate, Origin, Reading, eventually, latin1};

use crate::harness::{Rig, own_answer, refused_with, run, seen, served, weir};

const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: t\r\n\r\n";

/// Sends `attack` with a canary behind it: `status` comes back, then the canary's own answer or the end of the
/// connection, and nothing of the attack's body is ever taken for a request.
fn answered_here(rig: &Rig, attack: &str, status: u16) -> Result<(), String> {
    rig.origin.forget();
    let mut client = rig.gateway.client();
    let _ = client.try_send(format!("{attack}GET /canary-1 HTTP/1.1\r\nHost: t\r\n\r\n"));
    let answer = client.response().map_err(|error| error.to_string())?;
    if answer.status != status {
        return Err(format!("{} instead of {status}", answer.status));
    }
    if answer.closes() {
        let rest = client.until_closed();
        if !rest.is_empty() {
            return Err(format!("after the last answer came {:?}", latin1(&rest)));
        }
    } else {
        let canary = client.response().map_err(|error| format!("the canary: {error}"))?;
        own_answer(&canary, "GET", "/canary-1", 0)?;
    }
    rig.canary("/canary-2")?;
    let raw = rig.origin.raw_text();
    if raw.contains("smuggled") { Err(format!("went upstream: {raw:?}")) } else { Ok(()) }
}

#[test]
fn s11_the_body_of_a_request_answered_here_is_no_request() {
    let rig = Rig::echo(Reading::Strict);
    let length = SMUGGLED.len();
    let chunk = format!("{length:x}\r\n{SMUGGLED}\r\n0\r\n\r\n");
    let twice = format!("{SMUGGLED}{SMUGGLED}");
    for (target, host, status) in [("/blocked", "t", 401), ("/", "nowhere", 404)] {
        for method in ["GET", "POST", "PUT", "DELETE", "OPTIONS"] {
            let head = format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n");
            for attack in [
                format!("{head}Content-Length: {length}\r\n\r\n{SMUGGLED}"),
                format!("{head}Content-Length: {}\r\n\r\n{twice}", twice.len()),
                format!("{head}Transfer-Encoding: chunked\r\n\r\n{chunk}"),
                format!("{head}Content-Length: {length}\r\nConnection: keep-alive\r\n\r\n{SMUGGLED}"),
                format!("{head}Content-Length: {length}\r\nExpect: 100-continue\r\n\r\n{SMUGGLED}"),
            ] {
                // With Expect, an interim 100 may come first; the client's reader sets it apart.
                answered_here(&rig, &attack, status).unwrap_or_else(|what| panic!("{attack:?}: {what}"));
            }
        }
    }
}

#[test]
fn s11_a_body_too_long_to_drain_ends_the_connection() {
    let rig = Rig::echo(Reading::Strict);
    let mut client = rig.gateway.client();
    let body = SMUGGLED.repeat(8192);
    let _ =
        client.try_send(format!("POST /blocked HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
    let answer = client.response().expect("an answer");
    assert_eq!(answer.status, 401);
    let rest = latin1(&client.until_closed());
    assert!(!rest.contains("HTTP/"), "a second answer: {rest:?}");
    rig.canary("/canary").unwrap_or_else(|what| panic!("{what}"));
    assert!(!rig.origin.raw_text().contains("smuggled"));
}

/// A client may send all its requests, close its sending side, and read.
#[test]
fn request_after_a_refused_body_is_answered_after_a_half_close() {
    let rig = Rig::echo(Reading::Strict);
    let mut client = rig.gateway.client();
    client.send("POST /blocked HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\n\r\nabcGET /a HTTP/1.1\r\nHost: t\r\n\r\n");
    client.finish_sending();
    assert_eq!(client.response().expect("an answer").status, 401);
    own_answer(&client.response().expect("an answer"), "GET", "/a", 0).unwrap_or_else(|what| panic!("{what}"));
    assert!(client.until_closed().is_empty());
}

/// A client that sends all of its body before it reads would lose the answer to a reset.
#[test]
fn a_large_upload_that_is_refused_gets_its_answer() {
    let rig = Rig::echo(Reading::Strict);
    let body = vec![b'x'; 16 << 20];
    for method in ["POST", "PUT"] {
        let mut client = rig.gateway.client();
        client.send(format!("{method} /blocked HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n", body.len()));
        client.send(&body);
        assert_eq!(client.response().expect("an answer").status, 401);
        client.finish_sending();
        assert!(client.until_closed().is_empty());
    }
}

/// An origin that answers a request with `Expect` as `early` says before its body has come, and others as an echo.
fn hasty(early: &'static str) -> Origin {
    Origin::scripted(Reading::Strict, move |connection| {
        while let Ok(mut request) = connection.head() {
            let expects = request.headers.has("Expect");
            if expects && connection.send(early).is_err() {
                return;
            }
            let Ok((body, _)) = connection.body(request.framing) else { return };
            request.body = body;
            connection.record(&request);
            let last = format!("{} {} {}", request.method, request.target, request.body.len());
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{last}", last.len());
            if (!expects || early.contains(" 100 ")) && connection.send(answer).is_err() {
                return;
            }
        }
    })
}

#[test]
fn s12_a_client_that_waits_is_told_to_go_on_once() {
    for early in ["HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"] {
        let rig = Rig::before(hasty(early));
        let mut client = rig.gateway.client();
        client.send("POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
        assert_eq!(client.next_head().expect("an interim answer").status, 100);
        client.send("hello");
        let answer = client.response().expect("an answer");
        own_answer(&answer, "POST", "/a", 5).unwrap_or_else(|what| panic!("{what}"));
        assert_eq!(answer.informational.len(), 0, "one 100 at most");
        own_answer(&client.get("/canary").expect("an answer"), "GET", "/canary", 0).unwrap_or_else(|e| panic!("{e}"));
    }
}

#[test]
fn s12_an_early_answer_leaves_no_half_request_behind() {
    for early in [
        "HTTP/1.1 417 No\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 401 No\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ] {
        let rig = Rig::before(hasty(early));
        let mut client = rig.gateway.client();
        // No body follows the early answer: a client that got its answer has no reason to send one.
        let expect = "POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: 35\r\nExpect: 100-continue\r\n\r\n";
        client.send(expect);
        let answer = client.response().expect("an answer");
        assert_eq!(answer.status.to_string(), early[9..12], "{early:?}");
        // What comes now is the announced body or nothing. It is never a request of its own.
        let _ = client.try_send(&SMUGGLED[..35]);
        if !answer.closes() {
            let _ = client.try_send(&SMUGGLED[35..]);
            own_answer(&client.get("/canary-1").expect("an answer"), "GET", "/canary-1", 0)
                .unwrap_or_else(|e| panic!("{e}"));
        }
        for number in 2..5 {
            rig.canary(&format!("/canary-{number}")).unwrap_or_else(|what| panic!("{early:?}: {what}"));
        }
        assert!(!rig.origin.targets().iter().any(|target| target == "/smuggled"), "{:?}", rig.origin.raw_text());
        assert_eq!(rig.origin.violations(), Vec::<String>::new());
    }
}

#[test]
fn s12_only_100_continue_can_be_expected() {
    let with = |line: &str| format!("POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n{line}\r\n\r\nhello");
    run(&[
        refused_with(&[417], with("Expect: y100-continue")),
        refused_with(&[417], with("Expect: 100-continuey")),
        refused_with(&[417], with("Expect: 200-ok")),
        refused_with(&[417], with("Expect: 100-continue=yes")),
        refused_with(&[400, 417], with("Expect: \x0b100-continue")),
        refused_with(&[400, 417], with("Expect: 100-continue\r\nExpect: 100-continue")),
        refused_with(&[400, 417], with("Expect: 100-continue, 100-continue")),
        refused_with(&[400], with("Expect : 100-continue")),
        served(seen("GET", "/a", ""), "GET /a HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\n\r\n"),
    ]);
}

/// Asks for an upgrade with `Host: t` and these bytes right behind it.
fn upgrade(target: &str, behind: &str) -> String {
    format!(
        "GET {target} HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n{behind}"
    )
}

#[test]
fn s13_what_follows_a_refused_upgrade_is_a_request_like_any_other() {
    for refusal in [
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno",
        "HTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nContent-Length: 2\r\n\r\nno",
        "HTTP/1.1 403 Forbidden\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n",
        "HTTP/1.1 204 No Content\r\n\r\n",
    ] {
        let rig = Rig::before(Origin::serving(move |request| match request.target.as_str() {
            "/ws" => Answer::raw(refusal),
            target => Answer::ok(format!("{} {target} 0", request.method)),
        }));
        let mut client = rig.gateway.client();
        client
            .send(upgrade("/ws", "GET /blocked HTTP/1.1\r\nHost: t\r\n\r\nGET /canary-1 HTTP/1.1\r\nHost: t\r\n\r\n"));
        let answer = client.response().expect("an answer");
        assert_eq!(answer.status.to_string(), refusal[9..12]);
        if answer.closes() {
            assert!(client.until_closed().is_empty());
        } else {
            assert_eq!(client.response().expect("an answer").status, 401, "the policy of /blocked was passed by");
            own_answer(&client.response().expect("an answer"), "GET", "/canary-1", 0).unwrap_or_else(|e| panic!("{e}"));
        }
        rig.canary("/canary-2").unwrap_or_else(|what| panic!("{what}"));
        assert!(!rig.origin.raw_text().contains("/blocked"), "{:?}", rig.origin.raw_text());
    }
}

#[test]
fn s13_nothing_is_tunnelled_before_the_101() {
    let before: Arc<Mutex<Vec<u8>>> = Arc::default();
    let gate = Gate::new();
    let origin = Origin::scripted(Reading::Strict, {
        let (before, gate) = (Arc::clone(&before), gate.clone());
        move |connection| {
            let Ok(head) = connection.head() else { return };
            gate.wait();
            before.lock().expect("no panic while held").extend_from_slice(&head.head);
            let _ = connection
                .send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
            while let Ok(bytes) = connection.some() {
                if bytes.is_empty() || connection.send(bytes).is_err() {
                    return;
                }
            }
        }
    });
    let rig = Rig::before(origin);
    let mut client = rig.gateway.client();
    client.send(upgrade("/ws", "early bytes"));
    gate.wait_arrived(1);
    let raw = rig.origin.raw_text();
    gate.open();
    assert_eq!(client.next_head().expect("an answer").status, 101);
    assert_eq!(client.exact(11).expect("an echo"), b"early bytes");
    client.send("later bytes");
    assert_eq!(client.exact(11).expect("an echo"), b"later bytes");
    assert_eq!(raw, latin1(&before.lock().expect("no panic while held")), "bytes went up before the 101");
}

#[test]
fn s13_a_101_nobody_asked_for_is_a_broken_answer() {
    let rig = Rig::before(Origin::serving(|request| match request.target.as_str() {
        "/ws" => Answer::raw("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"),
        target => Answer::ok(format!("{} {target} 0", request.method)),
    }));
    let asks = "Connection: Upgrade\r\nUpgrade: websocket\r\n";
    for (request, method) in [
        ("GET /ws HTTP/1.1\r\nHost: t\r\n\r\n".to_owned(), "GET"),
        (format!("HEAD /ws HTTP/1.1\r\nHost: t\r\n{asks}\r\n"), "HEAD"),
        (format!("POST /ws HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n{asks}\r\nhi"), "POST"),
        (format!("GET /ws HTTP/1.0\r\nHost: t\r\n{asks}\r\n"), "GET"),
        ("GET /ws HTTP/1.1\r\nHost: t\r\nUpgrade: websocket\r\n\r\n".to_owned(), "GET"),
    ] {
        let mut client = rig.gateway.client();
        client.send(&request);
        let answer = client.response_to(method).expect("an answer");
        assert_eq!(answer.status, 502, "{request:?}");
        rig.canary("/canary").unwrap_or_else(|what| panic!("{request:?}: {what}"));
    }
}

#[test]
fn s14_an_upgrade_to_http_2_is_not_passed_on() {
    let rig = Rig::before(Origin::serving(|request| {
        if request.headers.has("Upgrade") {
            return Answer::raw("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n");
        }
        Answer::ok(format!("{} {} {}", request.method, request.target, request.body.len()))
    }));
    for lines in [
        "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n",
        "Connection: Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n",
        "Connection: Upgrade\r\nUpgrade: H2C\r\n",
        "Connection: Upgrade\r\nUpgrade: websocket, h2c\r\n",
        "Connection: Upgrade\r\nUpgrade: h2\r\n",
        "Connection: Upgrade\r\nUpgrade: h2c\r\nUpgrade: websocket\r\n",
        "Connection: Upgrade\r\nUpgrade: websocket\r\nUpgrade: h2c\r\n",
        "Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n",
    ] {
        rig.origin.forget();
        let mut client = rig.gateway.client();
        let answer = client.ask(format!("GET /a HTTP/1.1\r\nHost: t\r\n{lines}\r\n")).expect("an answer");
        own_answer(&answer, "GET", "/a", 0).unwrap_or_else(|what| panic!("{lines:?}: {what}"));
        let head = &rig.origin.requests()[0].headers;
        assert!(!head.has("Upgrade") && !head.has("HTTP2-Settings"), "{lines:?}: {head:?}");
        own_answer(&client.get("/canary").expect("an answer"), "GET", "/canary", 0).unwrap_or_else(|e| panic!("{e}"));
    }
}

#[test]
fn s15_connect_is_not_served() {
    run(&[
        refused_with(&[400, 405, 501], "CONNECT 127.0.0.1:9180 HTTP/1.1\r\nHost: t\r\n\r\n"),
        refused_with(&[405, 501], "CONNECT t:80 HTTP/1.1\r\nHost: t:80\r\n\r\n"),
        refused_with(&[400, 405, 501], "CONNECT / HTTP/1.1\r\nHost: t\r\n\r\n"),
        refused_with(&[400, 405, 501], "CONNECT http://t/ HTTP/1.1\r\nHost: t\r\n\r\n"),
        refused_with(
            &[400, 405, 501],
            format!("CONNECT t:80 HTTP/1.1\r\nHost: t:80\r\nContent-Length: 35\r\n\r\n{SMUGGLED}"),
        ),
    ]);
}

#[test]
fn s22_what_the_gateway_adds_cannot_be_nominated_away() {
    let rig = Rig::echo(Reading::Strict);
    for name in ["X-Forwarded-For", "X-Real-IP", "X-Forwarded-Proto", "X-Forwarded-Host", "X-Forwarded-Port", "Host"] {
        rig.origin.forget();
        let request = format!("GET /a HTTP/1.1\r\nHost: t\r\nConnection: close, {name}\r\n{name}: t\r\n\r\n");
        let request = if name == "Host" { request.replace("Host: t\r\n\r\n", "\r\n") } else { request };
        let answer = rig.gateway.client().ask(&request).expect("an answer");
        if answer.status == 400 {
            continue; // refusing it is as good
        }
        own_answer(&answer, "GET", "/a", 0).unwrap_or_else(|what| panic!("{name}: {what}"));
        let head = &rig.origin.requests()[0].headers;
        assert_eq!(head.get("Host"), Some("t"), "{name}: {head:?}");
        assert_eq!(head.get("X-Forwarded-For"), Some("127.0.0.1"), "{name}: {head:?}");
        assert_eq!(head.get("X-Real-IP"), Some("127.0.0.1"), "{name}: {head:?}");
        assert!(!head.lists("Connection", name), "{name}: {head:?}");
    }
}

/// Each option is compared with each field, so their number has a limit.
#[test]
fn s22_a_list_of_very_many_options_is_refused() {
    let rig = Rig::echo(Reading::Strict);
    let ask = |options: usize| {
        let list: Vec<_> = (0..options).map(|number| format!("x-{number}")).collect();
        let (list, last) = (list.join(", "), options - 1);
        let request = format!("GET /a HTTP/1.1\r\nHost: t\r\nX-{last}: y\r\nX: y\r\nConnection: {list}\r\n\r\n");
        rig.gateway.client().ask(&request).expect("an answer").status
    };
    assert_eq!((ask(64), ask(65), ask(2_000)), (200, 400, 400));
    let requests = rig.origin.requests();
    assert_eq!(requests.len(), 1);
    assert!(requests[0].headers.has("X") && !requests[0].headers.has("X-63"), "{:?}", requests[0].headers);
}

/// `X-Forwarded-User`, `X-Forwarded-Client-Cert` and the like are identities to some upstreams.
#[test]
fn s22_what_proxies_tell_of_clients_comes_from_proxies_alone() {
    let names = ["X-Forwarded-User", "x-forwarded-client-cert", "X-Forwarded-Ssl", "X-FORWARDED-SCHEME"];
    let lines = names.map(|name| format!("{name}: y\r\n")).concat();
    let request = format!("GET /a HTTP/1.1\r\nHost: t\r\nX-Forward: y\r\n{lines}\r\n");
    for (settings, is_trusted) in [("", false), ("trusted_addresses: [127.0.0.1]\n", true)] {
        let origin = Origin::echo(Reading::Strict);
        let plugins = "proxy-rewrite: { headers: { set: { X-Forwarded-Email: jack } } }";
        let gateway = weir().start(&format!(
            "{settings}routes: [{{ uri: /*, plugins: {{ {plugins} }}, upstream: {{ nodes: {{ \"{}\": 1 }} }} }}]\n",
            origin.addr()
        ));
        assert_eq!(gateway.client().ask(&request).expect("an answer").status, 200);
        let head = &origin.requests()[0].headers;
        assert!(names.iter().all(|name| head.has(name) == is_trusted), "{settings}: {head:?}");
        assert_eq!((head.get("X-Forwarded-Email"), head.get("X-Forward")), (Some("jack"), Some("y")));
    }
}

#[test]
fn s22_what_every_recipient_needs_cannot_be_nominated_away() {
    let fields = [
        ("Date", "Tue, 15 Nov 1994 08:12:31 GMT"),
        ("Cache-Control", "no-store"),
        ("Content-Type", "text/x-own"),
        ("Content-Encoding", "own"),
        ("Vary", "Accept"),
        ("Set-Cookie", "a=b"),
    ];
    let origin = Origin::serving(move |_| {
        let names = fields.map(|(name, _)| name.to_ascii_lowercase()).join(", ");
        let lines: String = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        Answer::with(200, &format!("Connection: {names}, X-Own\r\nX-Own: 1\r\n{lines}"), "all")
    });
    let rig = Rig::before(origin);
    let answer = rig.gateway.get("/a");
    for (name, value) in fields {
        assert_eq!(answer.headers.all(name).collect::<Vec<_>>(), [value], "{name}");
    }
    assert!(!answer.headers.has("x-own"), "it is for one connection");
}

#[test]
fn s22_framing_cannot_be_nominated_away() {
    let post = |nominated: &str, lines: &str, body: &str| {
        format!("POST /a HTTP/1.1\r\nHost: t\r\nConnection: {nominated}\r\n{lines}\r\n{body}")
    };
    run(&[
        served(seen("POST", "/a", "hello"), post("Content-Length", "Content-Length: 5\r\n", "hello")),
        served(seen("POST", "/a", "hello"), post("keep-alive, content-length", "Content-Length: 5\r\n", "hello")),
        served(
            seen("POST", "/a", "hello"),
            post("Transfer-Encoding", "Transfer-Encoding: chunked\r\n", "5\r\nhello\r\n0\r\n\r\n"),
        ),
        served(seen("POST", "/a", SMUGGLED), post("Content-Length", "Content-Length: 35\r\n", SMUGGLED)),
    ]);
}

#[test]
fn s22_what_is_meant_for_one_hop_goes_no_further() {
    let rig = Rig::echo(Reading::Strict);
    let lines = "Connection: X-Private, keep-alive\r\nX-Private: 1\r\nKeep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\n\
                 TE: gzip\r\nProxy-Authorization: Basic eDp5\r\nX-Kept: 1\r\n";
    let answer = rig.gateway.client().ask(format!("GET /a HTTP/1.1\r\nHost: t\r\n{lines}\r\n")).expect("an answer");
    assert_eq!(answer.status, 200);
    let head = &rig.origin.requests()[0].headers;
    for gone in ["X-Private", "Keep-Alive", "Proxy-Connection", "Proxy-Authorization", "Upgrade"] {
        assert!(!head.has(gone), "{gone}: {head:?}");
    }
    assert!(!head.lists("TE", "gzip") && !head.lists("Connection", "X-Private"), "{head:?}");
    assert_eq!(head.get("X-Kept"), Some("1"));
}

#[test]
fn s23_any_method_may_have_a_body() {
    let mut cases = Vec::new();
    for method in ["GET", "HEAD", "DELETE", "OPTIONS", "POST", "PUT", "PATCH", "PURGE"] {
        let head = format!("{method} /a HTTP/1.1\r\nHost: t\r\n");
        let length = SMUGGLED.len();
        cases.push(served(seen(method, "/a", SMUGGLED), format!("{head}Content-Length: {length}\r\n\r\n{SMUGGLED}")));
        let chunk = format!("{length:x}\r\n{SMUGGLED}\r\n0\r\n\r\n");
        cases.push(served(seen(method, "/a", SMUGGLED), format!("{head}Transfer-Encoding: chunked\r\n\r\n{chunk}")));
        cases.push(served(seen(method, "/a", ""), format!("{head}Content-Length: 0\r\n\r\n")));
        cases.push(served(seen(method, "/a", ""), format!("{head}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n")));
    }
    run(&cases);
}

#[test]
fn s25_an_aborted_upload_leaves_no_half_request_behind() {
    let rig = Rig::echo(Reading::Strict);
    for round in 0..20 {
        let mut client = rig.gateway.client();
        client.send("POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: 100000\r\n\r\n");
        client.send(vec![b'x'; 50_000]);
        eventually("half of it is upstream", DEADLINE, || {
            rig.origin.raw().iter().map(Vec::len).sum::<usize>() > 50_000 * (round + 1)
        });
        if round % 2 == 0 {
            client.reset()
        } else {
            drop(client)
        }
        rig.canary(&format!("/canary-{round}")).unwrap_or_else(|what| panic!("round {round}: {what}"));
    }
    assert!(rig.origin.targets().iter().all(|target| target.starts_with("/canary")), "{:?}", rig.origin.targets());
    eventually("only idle connections are left", DEADLINE, || rig.origin.open_connections() <= 1);
}

#[test]
fn s25_an_aborted_download_leaves_no_half_response_behind() {
    let rig = Rig::before(Origin::scripted(Reading::Strict, |connection| {
        while let Ok(request) = connection.request() {
            let sent = match request.target.as_str() {
                "/large" => connection.send("HTTP/1.1 200 OK\r\nContent-Length: 50000000\r\n\r\n").and_then(|()| {
                    let block = vec![b'x'; 1 << 20];
                    (0..40).try_for_each(|_| connection.send(&block))
                }),
                target => {
                    let body = format!("GET {target} 0");
                    connection.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()))
                }
            };
            if sent.is_err() {
                return;
            }
        }
    }));
    for round in 0..20 {
        let mut client: Client = rig.gateway.client();
        client.send("GET /large HTTP/1.1\r\nHost: t\r\n\r\n");
        assert_eq!(client.response_head("GET").expect("a head").status, 200);
        client.exact(100_000).expect("some of the body");
        if round % 2 == 0 {
            client.reset()
        } else {
            drop(client)
        }
        rig.canary(&format!("/canary-{round}")).unwrap_or_else(|what| panic!("round {round}: {what}"));
    }
    eventually("only idle connections are left", DEADLINE, || rig.origin.open_connections() <= 1);
}

/// Requests that need no upstream are answered without waiting for anything, as long as more of them come.
#[test]
fn pipelined_requests_take_turns_with_those_of_other_clients() {
    const REQUEST: &str = "GET / HTTP/1.1\r\nHost: t\r\n\r\n";
    const LAST: &str = "GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
    let gateway = weir().start("worker_processes: 1\nroutes: []\n");
    let flood = TcpStream::connect(gateway.addr()).expect("it listens");
    let (received, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let send = || {
        let many = REQUEST.repeat(50_000);
        while !is_over.load(Relaxed) {
            (&flood).write_all(many.as_bytes()).expect("they are taken");
        }
        (&flood).write_all(LAST.as_bytes()).expect("it is taken");
    };
    let receive = || {
        let mut answers = vec![0; 1 << 20];
        while let count @ 1.. = (&flood).read(&mut answers).expect("answers") {
            received.fetch_add(count, Relaxed);
        }
    };
    thread::scope(|scope| {
        // Without an end before that of the other client, which would wait for it.
        let end = EndOfAttack(&is_over);
        scope.spawn(send);
        scope.spawn(receive);
        eventually("the flood has begun", DEADLINE, || received.load(Relaxed) > 0);
        let mut other = gateway.client();
        (0..50).for_each(|_| assert_eq!(other.get("/").expect("an answer").status, 404));
        drop(end);
    });
}
