//! The scripted peers, tried on each other.

use weir_testkit::{Answer, BodyFraming, Client, DEADLINE, Gate, Origin, ReadError, Reading, eventually};

#[test]
fn a_client_and_an_origin_understand_each_other() {
    let origin = Origin::serving(|request| match request.target.as_str() {
        "/chunked" => {
            Answer::raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-T: 1\r\n\r\n")
        }
        "/early" => Answer::raw("HTTP/1.1 103 Early\r\nLink: a\r\n\r\nHTTP/1.1 204 No\r\n\r\n"),
        "/last" => Answer::raw("HTTP/1.1 200 OK\r\n\r\nto the end").then_close(),
        _ => Answer::ok(&request.body),
    });
    let mut client = Client::connect(origin.addr());
    let response = client.ask("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\nhello").expect("an answer");
    assert_eq!((response.status, response.text().as_str()), (200, "hello"));

    let response = client.get("/chunked").expect("an answer");
    assert_eq!((response.framing, response.text().as_str()), (BodyFraming::Chunked, "abc"));
    assert_eq!(response.trailers.get("x-t"), Some("1"));

    let response = client.get("/early").expect("an answer");
    assert_eq!((response.status, response.informational[0].status), (204, 103));

    let response = client.get("/last").expect("an answer");
    assert!(response.closes());
    assert_eq!(response.text(), "to the end");
    assert!(client.until_closed().is_empty());
    assert_eq!(origin.targets(), ["/", "/chunked", "/early", "/last"]);
    assert_eq!(origin.raw().len(), 1);
    assert!(origin.raw_text().starts_with("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\nhelloGET /chunked"));
    drop(client);
    eventually("the connection ends", DEADLINE, || origin.open_connections() == 0);
}

#[test]
fn a_strict_origin_names_what_is_wrong() {
    for (request, what) in [
        ("GET / HTTP/1.1\nHost: t\n\n", "CRLF"),
        ("GET / HTTP/1.1\r\nHost: t\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", "framing"),
        ("GET / HTTP/1.1\r\nHost : t\r\n\r\n", "not a field"),
        ("POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n5;a\r\n", "chunk size"),
    ] {
        let origin = Origin::echo(Reading::Strict);
        let mut client = Client::connect(origin.addr());
        client.send(request);
        client.until_closed();
        assert_eq!(origin.requests(), []);
        let violations = origin.violations();
        assert!(violations.len() == 1 && violations[0].contains(what), "{request:?}: {violations:?}");
    }
}

#[test]
fn careless_origins_disagree_about_where_a_request_ends() {
    let request = "POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: 4\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\nGET /b HTTP/1.1\nHost: t\n\n";
    for (reading, targets) in [(Reading::ChunkedWins, vec!["/a", "/b"]), (Reading::LengthWins, vec!["/a"])] {
        let origin = Origin::echo(reading);
        let mut client = Client::connect(origin.addr());
        client.send(request);
        client.finish_sending();
        client.until_closed();
        let seen = origin.targets();
        assert_eq!(seen[..targets.len()], targets, "{reading:?}");
    }
}

#[test]
fn a_script_can_wait_reset_and_come_back() {
    let gate = Gate::new();
    let origin = Origin::scripted(Reading::Strict, {
        let gate = gate.clone();
        move |connection| {
            let Ok(_) = connection.request() else { return };
            let _ = connection.send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n");
            gate.wait();
            connection.reset();
        }
    });
    let mut client = Client::connect(origin.addr());
    client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
    assert_eq!(client.response_head("GET").expect("a head").status, 200);
    gate.open();
    assert_eq!(client.exact(9), Err(ReadError::Reset { partial: String::new() }));
    let address = origin.addr();
    drop(origin);
    let again = Origin::scripted_at(address, Reading::Strict, |connection| connection.close());
    assert_eq!(again.addr(), address);
    Client::connect(address).until_closed();
}
