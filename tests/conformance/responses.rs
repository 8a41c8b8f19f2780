//! S24: upstreams that answer badly. The client gets 502 or a response it can see is cut short, the connection to the
//! upstream is never used again, and nobody gets somebody else's bytes.

use weir_testkit::{Gate, Gateway, Origin, ReadError, Reading, latin1_bytes};

use crate::harness::{Rig, own_answer, routes, weir};

/// An origin that answers `/bad` with these bytes and the rest as an echo, on the same connections.
fn bad(bytes: Vec<u8>, then_close: bool) -> Origin {
    Origin::scripted(Reading::Strict, move |connection| {
        while let Ok(request) = connection.request() {
            let is_bad = request.target == "/bad";
            let echo = format!("{} {} {}", request.method, request.target, request.body.len());
            let answer = match is_bad {
                true => bytes.clone(),
                false => format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{echo}", echo.len()).into_bytes(),
            };
            if connection.send(answer).is_err() || (is_bad && then_close) {
                return;
            }
        }
    })
}

/// What a client makes of a bad answer.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    /// 502 from the gateway.
    BadGateway,
    /// A head that was good, and a body that visibly never ends.
    CutShort,
}

fn check(bytes: &[u8], method: &str, fate: Fate, then_close: bool) -> Result<(), String> {
    let rig = Rig::before(bad(bytes.to_vec(), then_close));
    rig.canary("/canary-0")?;
    let mut client = rig.gateway.client();
    client.send(format!("{method} /bad HTTP/1.1\r\nHost: t\r\n\r\n"));
    let closes = match (client.response_to(method), fate) {
        (Ok(answer), Fate::BadGateway) if answer.status == 502 => answer.closes(),
        // A broken body may be seen before the head has gone.
        (Ok(answer), Fate::CutShort) if answer.status == 502 => answer.closes(),
        (Err(ReadError::Closed { .. } | ReadError::Reset { .. }), Fate::CutShort) => true,
        (other, _) => return Err(format!("{other:?} instead of {fate:?}")),
    };
    if !closes {
        let canary = client.get("/canary-1").map_err(|error| format!("the canary: {error}"))?;
        own_answer(&canary, "GET", "/canary-1", 0)?;
    }
    for number in 2..5 {
        rig.canary(&format!("/canary-{number}"))?;
    }
    let requests = rig.origin.requests();
    let spoiled = requests.iter().rfind(|request| request.target == "/bad").expect("it was asked");
    let after =
        requests.iter().filter(|request| request.target.starts_with("/canary") && request.target != "/canary-0");
    match after.clone().find(|request| request.connection == spoiled.connection) {
        Some(request) => Err(format!("{} used the spoiled connection", request.target)),
        None => Ok(()),
    }
}

#[track_caller]
fn check_all(cases: &[(&str, Fate)]) {
    let mut failures = Vec::new();
    for (text, fate) in cases {
        for then_close in [false, true] {
            if let Err(what) = check(&latin1_bytes(text), "GET", *fate, then_close) {
                let shown: String = text.chars().take(160).collect();
                failures.push(format!("{shown:?} (closes: {then_close}): {what}"));
            }
        }
    }
    assert!(failures.is_empty(), "{} failures in {} cases:\n{}", failures.len(), 2 * cases.len(), failures.join("\n"));
}

#[test]
fn s24_a_response_head_is_as_strict_as_a_request_head() {
    let many_fields = format!("HTTP/1.1 200 OK\r\n{}Content-Length: 0\r\n\r\n", "X: y\r\n".repeat(1000));
    let long_field = format!("HTTP/1.1 200 OK\r\nX: {}\r\nContent-Length: 0\r\n\r\n", "y".repeat(100_000));
    let cases: Vec<(&str, Fate)> = [
        "hello\r\n\r\n",
        "hello\r\n\r\nworld\r\n",
        "HTTP/1.1\r\n\r\n",
        "HTTP/1.1 \r\n\r\n",
        "HTTP/1.1 99 X\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 1000 X\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 20 X\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 0 X\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 -200 X\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 abc X\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 2OO X\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1  200 X\r\nContent-Length: 0\r\n\r\n",
        "HTTP/2 200 OK\r\nContent-Length: 0\r\n\r\n",
        "HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.2 200 OK\r\nContent-Length: 0\r\n\r\n",
        "http/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        "ICY 200 OK\r\nContent-Length: 0\r\n\r\n",
        " HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\nContent-Length: 0\n\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 0\n\r\n",
        "HTTP/1.1 200 OK\r\nX: y\n z: a\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: y\rZ: a\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: y\r\n folded\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\n X: y\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX : y\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\n: y\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: a\0b\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX\0: b\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nContent-Length: 5, 6\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nContent-Length: 0x5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding:\u{b}chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        many_fields.as_str(),
        long_field.as_str(),
    ]
    .into_iter()
    .map(|text| (text, Fate::BadGateway))
    .collect();
    check_all(&cases);
}

#[test]
fn s24_a_response_body_is_as_strict_as_a_request_body() {
    let chunked = |body: &str| format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{body}");
    let bodies: Vec<String> = [
        "5\r\nhello!!\r\n0\r\n\r\n",
        "5\r\nhello0\r\n\r\n",
        "5\nhello\r\n0\r\n\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        "+5\r\nhello\r\n0\r\n\r\n",
        "-1\r\nhello\r\n0\r\n\r\n",
        " 5\r\nhello\r\n0\r\n\r\n",
        "5 \r\nhello\r\n0\r\n\r\n",
        "g\r\nhello\r\n0\r\n\r\n",
        "\r\nhello\r\n0\r\n\r\n",
        "FFFFFFFFFFFFFFFF0\r\nhello\r\n0\r\n\r\n",
        "5;\r\nhello\r\n0\r\n\r\n",
        "5;a=\nb\r\nhello\r\n0\r\n\r\n",
        "5\r\nhello\r\n0\r\nX\r\n\r\n",
        "5\r\nhello\r\n0\r\nX: y\n\r\n",
        "5\r\nhello\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    ]
    .into_iter()
    .map(chunked)
    .collect();
    let cases: Vec<(&str, Fate)> = bodies.iter().map(|body| (body.as_str(), Fate::CutShort)).collect();
    check_all(&cases);
}

#[test]
fn s24_interim_responses_are_bounded() {
    // 64 KiB are read, and eight of them passed on.
    for (count, status) in [(1_000, 200), (2_000, 502)] {
        let storm = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n".repeat(count)
            + "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        let rig = Rig::before(bad(storm.into_bytes(), false));
        let mut client = rig.gateway.client();
        let answer = client.get("/bad").expect("an answer");
        assert_eq!((answer.status, answer.informational.len()), (status, 8));
        for number in 0..3 {
            rig.canary(&format!("/canary-{number}")).unwrap_or_else(|what| panic!("{what}"));
        }
    }
}

#[test]
fn s24_bytes_after_a_response_reach_nobody() {
    let poison = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison";
    for (method, before) in [
        ("GET", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"),
        ("GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"),
        ("GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
        ("GET", "HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", "HTTP/1.1 204 No Content\r\nContent-Length: 47\r\n\r\n"),
        ("GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 47\r\n\r\n"),
        ("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 47\r\n\r\n"),
        ("HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
        ("HEAD", "HTTP/1.1 200 OK\r\n\r\n"),
    ] {
        let bytes = format!("{before}{poison}");
        let rig = Rig::before(bad(bytes.into_bytes(), false));
        let mut client = rig.gateway.client();
        client.send(format!("{method} /bad HTTP/1.1\r\nHost: t\r\n\r\n"));
        let answer = client.response_to(method).unwrap_or_else(|error| panic!("{before:?}: {error}"));
        assert_eq!(answer.status.to_string(), before[9..12], "{before:?}");
        assert!(!answer.text().contains("poison"));
        if answer.closes() {
            assert!(client.until_closed().is_empty(), "{before:?}");
        } else {
            let canary = client.get("/canary-0").unwrap_or_else(|error| panic!("{before:?}: {error}"));
            own_answer(&canary, "GET", "/canary-0", 0).unwrap_or_else(|what| panic!("{before:?}: {what}"));
        }
        for number in 1..4 {
            rig.canary(&format!("/canary-{number}")).unwrap_or_else(|what| panic!("{before:?}: {what}"));
        }
    }
}

#[test]
fn s24_an_answer_before_any_request_reaches_nobody() {
    let poisoned = Gate::new();
    let rig = Rig::before(Origin::scripted(Reading::Strict, {
        let poisoned = poisoned.clone();
        move |connection| {
            while let Ok(request) = connection.request() {
                let body = format!("GET {} 0", request.target);
                let own = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
                if connection.send(own).is_err() {
                    return;
                }
                if connection.index == 0 {
                    // Once more, without being asked, while the connection is idle.
                    let _ = connection.send("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison");
                    poisoned.wait();
                }
            }
        }
    }));
    poisoned.open();
    for number in 0..5 {
        rig.canary(&format!("/canary-{number}")).unwrap_or_else(|what| panic!("{what}"));
        poisoned.wait_arrived(1);
    }
}

#[test]
fn s24_lenient_where_nothing_is_doubtful() {
    for (bytes, status, body) in [
        ("HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok", 200, "ok"),
        ("HTTP/1.1 200 \r\nContent-Length: 2\r\n\r\nok", 200, "ok"),
        ("HTTP/1.1 599 Odd\r\nContent-Length: 2\r\n\r\nok", 599, "ok"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 002\r\n\r\nok", 200, "ok"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n02;a=b\r\nok\r\n0\r\n\r\n", 200, "ok"),
        ("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, "ok"),
    ] {
        let rig = Rig::before(bad(bytes.as_bytes().to_vec(), false));
        let answer = rig.gateway.get("/bad");
        assert_eq!((answer.status, answer.text().as_str()), (status, body), "{bytes:?}");
    }
}

/// A gateway whose upstream is forgiven these faults, before an origin that has them.
fn forgiving(tolerate: &str, answer: &'static str) -> (Gateway, Origin) {
    let origin = bad(answer.as_bytes().to_vec(), false);
    let config = routes(origin.addr()).replace("type: roundrobin", &format!("type: roundrobin, tolerate: {tolerate}"));
    (weir().start(&config), origin)
}

#[test]
fn u10_faults_of_an_upstream_can_be_forgiven_by_name() {
    for (answer, tolerate, status) in [
        ("HTTP/1.1 999 X\r\nContent-Length: 2\r\n\r\nok", "[extended_status]", 999),
        ("HTTP/1.1 600 X\r\nContent-Length: 2\r\n\r\nok", "[repeated_content_length]", 502),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok", "[repeated_content_length]", 200),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nok", "[repeated_content_length, extended_status]", 200),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok", "[repeated_content_length]", 502),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nok", "[]", 502),
    ] {
        let (gateway, _origin) = forgiving(tolerate, answer);
        let mut client = gateway.client();
        let got = client.get("/bad").expect("an answer");
        assert_eq!(got.status, status, "{answer:?} {tolerate}");
        if status != 502 {
            assert_eq!((got.text().as_str(), got.headers.all("Content-Length").count()), ("ok", 1), "{answer:?}");
        }
        own_answer(&client.get("/after").expect("an answer"), "GET", "/after", 0).unwrap_or_else(|e| panic!("{e}"));
    }
}

#[test]
fn u10_a_204_has_no_length() {
    let rig = Rig::before(bad(b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\nX: y\r\n\r\n".to_vec(), false));
    let mut client = rig.gateway.client();
    let answer = client.get("/bad").expect("an answer");
    assert_eq!((answer.status, answer.headers.get("Content-Length"), answer.headers.get("X")), (204, None, Some("y")));
    own_answer(&client.get("/after").expect("an answer"), "GET", "/after", 0).unwrap_or_else(|what| panic!("{what}"));
}

#[test]
fn u09_a_101_to_another_protocol_is_a_broken_answer() {
    let answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: other\r\n\r\n";
    let rig = Rig::before(bad(answer.as_bytes().to_vec(), false));
    let mut client = rig.gateway.client();
    let request = "GET /bad HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    assert_eq!(client.ask(request).expect("an answer").status, 502);
    rig.canary("/canary").unwrap_or_else(|what| panic!("{what}"));
}
