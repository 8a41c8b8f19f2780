//! What only HTTP/1 has: pipelines, HTTP/1.0, target forms, half-closed connections, upgrades.

use weir_testkit::{Answer, Client, DEADLINE, Gate, Gateway, Origin, Reading, eventually};

fn before(origin: &Origin) -> Gateway {
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "routes:\n  - {{ id: all, uri: /*, upstream: {{ type: roundrobin, nodes: {{ \"{}\": 1 }} }} }}\n",
        origin.addr()
    ))
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let gate = Gate::new();
    let origin = Origin::reading(Reading::Strict, {
        let gate = gate.clone();
        move |request| {
            if request.target == "/0" {
                gate.wait(); // the first is the slowest
            }
            Answer::ok(format!("{} {}", request.target, request.body.len()))
        }
    });
    let gateway = before(&origin);
    let mut client = gateway.client();
    let mut pipeline = String::new();
    for number in 0..50 {
        let body = "x".repeat(number * 7 % 40);
        pipeline += &format!("POST /{number} HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    }
    client.send(pipeline);
    gate.open();
    for number in 0..50 {
        let answer = client.response().unwrap_or_else(|error| panic!("{number}: {error}"));
        assert_eq!(answer.text(), format!("/{number} {}", number * 7 % 40));
    }
    assert_eq!(origin.targets(), (0..50).map(|number| format!("/{number}")).collect::<Vec<_>>());
}

#[test]
fn http_1_0_clients_are_served_as_they_understand_it() {
    let origin = Origin::serving(|request| match request.target.as_str() {
        "/chunked" => {
            Answer::raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n")
        }
        _ => Answer::ok(format!("{} {}", request.version, request.headers.get("Host").unwrap_or("none"))),
    });
    let gateway = before(&origin);

    let mut client = gateway.client();
    let answer = client.ask("GET / HTTP/1.0\r\nHost: t\r\n\r\n").expect("an answer");
    assert_eq!((answer.status, answer.text().as_str()), (200, "HTTP/1.1 t"));
    assert!(answer.closes());
    assert!(client.until_closed().is_empty());

    let mut client = gateway.client();
    let answer = client.ask("GET / HTTP/1.0\r\nHost: t\r\nConnection: keep-alive\r\n\r\n").expect("an answer");
    assert!(answer.headers.lists("Connection", "keep-alive"), "{:?}", answer.headers);
    assert_eq!(client.ask("GET / HTTP/1.0\r\nHost: t\r\n\r\n").expect("an answer").status, 200);

    let mut client = gateway.client();
    let answer = client.ask("GET /chunked HTTP/1.0\r\nHost: t\r\nConnection: keep-alive\r\n\r\n").expect("an answer");
    assert!(!answer.headers.has("Transfer-Encoding"), "HTTP/1.0 has no codings: {:?}", answer.headers);
    assert_eq!(answer.text(), "abcdef");
    assert!(client.until_closed().is_empty());

    let answer = gateway.client().ask("GET / HTTP/1.0\r\n\r\n").expect("an answer");
    assert_eq!(answer.status, 200, "HTTP/1.0 needs no Host");
}

#[test]
fn an_upstream_of_http_1_0_is_understood() {
    let origin = Origin::serving(|request| match request.target.as_str() {
        "/close" => Answer::raw("HTTP/1.0 200 OK\r\n\r\nto the end").then_close(),
        _ => Answer::raw("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok").then_close(),
    });
    let gateway = before(&origin);
    let mut client = gateway.client();
    for _ in 0..5 {
        let answer = client.get("/").expect("an answer");
        assert_eq!((answer.version.as_str(), answer.text().as_str()), ("HTTP/1.1", "ok"));
    }
    let answer = client.get("/close").expect("an answer");
    assert_eq!(answer.text(), "to the end");
}

#[test]
fn a_response_that_ends_with_its_connection_is_framed_anew() {
    let origin = Origin::serving(|_| Answer::raw("HTTP/1.1 200 OK\r\nX: y\r\n\r\nto the end").then_close());
    let gateway = before(&origin);
    let mut client = gateway.client();
    for _ in 0..3 {
        let answer = client.get("/").expect("an answer");
        assert_eq!((answer.text().as_str(), answer.headers.get("X")), ("to the end", Some("y")));
        assert!(answer.headers.has("Transfer-Encoding"), "so that the client's connection can stay");
    }
}

#[test]
fn connection_options_are_for_one_hop() {
    let origin = Origin::serving(|request| {
        assert!(!request.headers.lists("Connection", "x-private"));
        Answer::with(200, "Connection: X-Secret, keep-alive\r\nX-Secret: 1\r\nKeep-Alive: timeout=1\r\nX: y\r\n", "ok")
    });
    let gateway = before(&origin);
    let mut client = gateway.client();
    for _ in 0..2 {
        let answer = client
            .ask("GET / HTTP/1.1\r\nHost: t\r\nConnection: x-private\r\nX-Private: 1\r\n\r\n")
            .expect("an answer");
        assert_eq!(answer.headers.get("X"), Some("y"));
        for gone in ["X-Secret", "Keep-Alive"] {
            assert!(!answer.headers.has(gone), "{gone}: {:?}", answer.headers);
        }
    }
    assert!(!origin.raw_text().contains("Private"));
}

/// RFC 9110 §15.5.22.
#[test]
fn a_426_says_which_protocol_is_required() {
    let origin = Origin::serving(|request| match request.target.as_str() {
        "/426" => {
            Answer::with(426, "Connection: upgrade, x\r\nX: y\r\nUpgrade: TLS/1.3\r\nUpgrade: HTTP/3.0\r\n", "no")
        }
        _ => Answer::with(200, "Connection: upgrade\r\nUpgrade: HTTP/3.0\r\n", "yes"),
    });
    let gateway = before(&origin);
    let mut client = gateway.client();
    for _ in 0..2 {
        let answer = client.get("/426").expect("an answer");
        assert_eq!((answer.status, answer.text().as_str()), (426, "no"));
        let upgrades: Vec<_> = answer.headers.all("Upgrade").collect();
        assert_eq!(upgrades, ["TLS/1.3", "HTTP/3.0"]);
        assert!(answer.headers.lists("Connection", "upgrade") && !answer.headers.has("X"));
    }
    assert!(!client.get("/200").expect("an answer").headers.has("Upgrade"));
}

#[test]
fn connection_close_is_kept_on_both_sides() {
    let origin = Origin::serving(|request| match request.target.as_str() {
        "/last" => Answer::with(200, "Connection: close\r\n", "bye").then_close(),
        _ => Answer::ok("ok"),
    });
    let gateway = before(&origin);
    let mut client = gateway.client();
    let answer = client.ask("GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n").expect("an answer");
    assert!(answer.closes());
    assert!(client.until_closed().is_empty());
    // An upstream that closes says nothing about the client's connection.
    let mut client = gateway.client();
    assert_eq!(client.get("/last").expect("an answer").text(), "bye");
    assert_eq!(client.get("/").expect("an answer").text(), "ok");
}

/// Such a client is closed at once if nothing of it is left to read: what it has not taken yet still arrives. Bytes after its request
/// are against RFC 9112 §9.6, and must not turn the close into a reset.
#[test]
fn a_client_that_asked_for_the_end_gets_every_byte_before_it() {
    const CONTENT: usize = 4 << 20;
    let origin = Origin::serving(|_| Answer::ok("x".repeat(CONTENT)));
    let gateway = before(&origin);
    const LAST: &str = "POST / HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 4\r\n\r\nabcd";
    for surplus in [0, 1, 100_000] {
        for round in 0..10 {
            let mut client = match round % 2 {
                0 => gateway.client(),
                _ => Client::connect_narrow(gateway.addr()).expect("the gateway listens"),
            };
            // The gateway may have closed before all of the surplus is sent.
            let _ = client.try_send([LAST.as_bytes(), &vec![b'y'; surplus]].concat());
            let answer = client.response().unwrap_or_else(|error| panic!("{surplus}, round {round}: {error}"));
            assert!(answer.closes());
            assert_eq!(answer.body.len(), CONTENT, "{surplus}, round {round}");
        }
    }
}

#[test]
fn a_client_may_end_its_stream_and_still_be_answered() {
    let gate = Gate::new();
    let origin = Origin::reading(Reading::Strict, {
        let gate = gate.clone();
        move |_| {
            gate.wait();
            Answer::ok("late")
        }
    });
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "client_half_close_timeout: 60\n\
         routes:\n  - {{ id: all, uri: /*, upstream: {{ type: roundrobin, nodes: {{ \"{}\": 1 }} }} }}\n",
        origin.addr()
    ));
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
    client.finish_sending();
    gate.wait_arrived(1);
    gate.open();
    assert_eq!(client.response().expect("an answer").text(), "late");
    assert!(client.until_closed().is_empty());
}

/// A client may send all its requests, close its sending side, and read.
#[test]
fn pipelined_requests_before_a_half_close_are_all_answered() {
    let origin = Origin::serving(|request| Answer::ok(format!("{} {}", request.target, request.body.len())));
    let gateway = before(&origin);
    let get = |target: &str| format!("GET {target} HTTP/1.1\r\nHost: t\r\n\r\n");
    let post = "POST /post HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\n\r\nabc";
    let mut client = gateway.client();
    client.send([get("/a"), post.to_owned(), get("/b")].concat());
    client.finish_sending();
    for expected in ["/a 0", "/post 3", "/b 0"] {
        assert_eq!(client.response().unwrap_or_else(|error| panic!("{expected}: {error}")).text(), expected);
    }
    assert!(client.until_closed().is_empty());
}

#[test]
fn a_tunnel_opens_with_the_101_and_passes_everything() {
    let origin = Origin::scripted(Reading::Strict, |connection| {
        let Ok(request) = connection.request() else { return };
        assert_eq!(request.headers.get("Upgrade"), Some("echo/1"));
        assert!(request.headers.lists("Connection", "upgrade"));
        let _ = connection
            .send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo/1\r\n\r\nwelcome");
        while let Ok(bytes) = connection.some() {
            if bytes.is_empty() {
                let _ = connection.send("farewell");
                return;
            }
            if connection.send(bytes).is_err() {
                return;
            }
        }
    });
    let gateway = before(&origin);
    let mut client = gateway.client();
    client.send("GET /t HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: echo/1\r\n\r\n");
    let answer = client.next_head().expect("an answer");
    assert_eq!((answer.status, answer.headers.get("Upgrade")), (101, Some("echo/1")));
    assert!(answer.headers.lists("Connection", "upgrade"));
    assert_eq!(client.exact(7).expect("what came with the 101"), b"welcome");
    for size in [1, 100, 70_000] {
        let bytes = vec![b'\0'; size];
        client.send(&bytes);
        assert_eq!(client.exact(size as u64).expect("an echo"), bytes);
    }
    client.finish_sending();
    assert_eq!(client.until_closed(), b"farewell", "the other direction ends in its own time");
    eventually("the tunnel is gone", DEADLINE, || origin.open_connections() == 0);
}

#[test]
fn a_tunnel_ends_when_either_side_is_gone() {
    let origin = Origin::scripted(Reading::Strict, |connection| {
        let Ok(request) = connection.request() else { return };
        let _ = connection.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n");
        if request.target == "/reset" {
            connection.reset();
        } else {
            connection.wait_gone();
        }
    });
    let gateway = before(&origin);
    for target in ["/reset", "/wait"] {
        let mut client = gateway.client();
        client.send(format!("GET {target} HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"));
        assert_eq!(client.next_head().expect("an answer").status, 101);
        if target == "/reset" {
            assert!(client.until_closed().is_empty());
        } else {
            client.reset();
        }
        eventually("the tunnel is gone", DEADLINE, || origin.open_connections() == 0);
    }
}

#[test]
fn a_request_is_retried_on_a_connection_that_went_stale() {
    let origin = Origin::scripted(Reading::Strict, |connection| {
        // Answers once and closes without a word.
        let Ok(request) = connection.request() else { return };
        let body = format!("{} {}", request.method, request.target);
        let _ = connection.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
    });
    let gateway = before(&origin);
    let mut client = gateway.client();
    for number in 0..100 {
        let answer = client.get(&format!("/{number}")).unwrap_or_else(|error| panic!("{number}: {error}"));
        assert_eq!(answer.text(), format!("GET /{number}"));
    }
}
