//! Time-outs of requests in progress: each runs for the side that the gateway waits for.

use std::thread;
use std::time::Duration;

use weir_testkit::{Client, DEADLINE, Gate, Gateway, Origin, ReadError, Reading};

use crate::harness::weir;

/// The time-outs that must not end anything, in seconds: a busy machine lets neither side wait so long for the other.
const TIMEOUT_S: u32 = 3;
/// Longer than these.
const LONGER: Duration = Duration::from_secs(4);

fn gateway(settings: &str, origin: &Origin, read_s: u32) -> Gateway {
    let timeouts = format!("timeout: {{ connect: 60, send: 60, read: {read_s} }}");
    weir().start(&format!(
        "{settings}\nroutes: [{{ uri: /*, upstream: {{ nodes: {{ \"{}\": 1 }}, {timeouts} }} }}]\n",
        origin.addr()
    ))
}

/// Nothing is received for longer than the time-outs.
#[track_caller]
fn is_waited_for(client: &mut Client) {
    client.set_deadline(LONGER);
    match client.some() {
        Err(ReadError::TimedOut { .. }) => client.set_deadline(DEADLINE),
        other => panic!("{other:?}"),
    }
}

/// An origin that sends `interim` on a request's head, and answers once it has the body.
fn with_interim(interim: &'static str) -> Origin {
    Origin::scripted(Reading::Strict, move |connection| {
        let Ok(request) = connection.head() else { return };
        if connection.send(interim).is_err() {
            return;
        }
        let Ok((body, _)) = connection.body(request.framing) else { return };
        let count = body.len().to_string();
        let _ = connection.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{count}", count.len()));
    })
}

#[test]
fn an_upload_after_an_interim_response_may_take_longer_than_the_read_time_out() {
    let upload = |interim: &'static str, expect: &str, status: u16| {
        let origin = with_interim(interim);
        let gateway = gateway("", &origin, TIMEOUT_S);
        let mut client = gateway.client();
        client.send(format!("POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: 6\r\n{expect}\r\n"));
        assert_eq!(client.next_head().expect("an interim response").status, status);
        client.send("abc");
        is_waited_for(&mut client);
        client.send("def");
        let answer = client.response().expect("an answer");
        assert_eq!((answer.status, answer.text().as_str()), (200, "6"), "after {status}");
    };
    thread::scope(|scope| {
        scope.spawn(|| upload("HTTP/1.1 100 Continue\r\n\r\n", "Expect: 100-continue\r\n", 100));
        scope.spawn(|| upload("HTTP/1.1 102 Processing\r\n\r\n", "", 102));
        scope.spawn(|| upload("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", "", 103));
    });
}

#[test]
fn a_client_that_expects_a_100_is_not_blamed_for_an_upstream_that_takes_its_time() {
    let gate = Gate::new();
    let origin = {
        let gate = gate.clone();
        Origin::scripted(Reading::Strict, move |connection| {
            let Ok(request) = connection.head() else { return };
            gate.wait();
            if connection.send("HTTP/1.1 100 Continue\r\n\r\n").is_err() || connection.body(request.framing).is_err() {
                return;
            }
            let _ = connection.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        })
    };
    let gateway = gateway(&format!("client_body_grace: {TIMEOUT_S}\nclient_body_min_rate: 240"), &origin, 60);
    let mut client = gateway.client();
    client.send("POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
    is_waited_for(&mut client);
    gate.open();
    assert_eq!(client.next_head().expect("an interim response").status, 100);
    client.send("abc");
    assert_eq!(client.response().expect("an answer").status, 200);
}

#[test]
fn an_upstream_that_does_not_answer_an_expectation_is_the_one_that_is_late() {
    let origin = Origin::scripted(Reading::Strict, |connection| connection.wait_gone());
    let gateway = gateway("", &origin, 1);
    let mut client = gateway.client();
    client.send("POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
    assert_eq!(client.response().expect("an answer").status, 504);
}

/// Simple servers give no 100 and wait for the content, which a client may withhold.
#[test]
fn a_client_that_withholds_its_content_does_not_harm_the_endpoint() {
    let origin = Origin::echo(Reading::Strict);
    let gateway = weir().start(&format!(
        "routes: [{{ uri: /*, upstream: {{ nodes: {{ \"{}\": 1 }}, all_down: refuse, \
         timeout: {{ connect: 60, send: 60, read: {TIMEOUT_S} }} }} }}]\n",
        origin.addr()
    ));
    let mut clients: Vec<_> = (0..4).map(|_| gateway.client()).collect();
    for client in &mut clients {
        client.send("POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
    }
    for client in &mut clients {
        assert_eq!(client.response().expect("an answer").status, 504);
    }
    assert_eq!(gateway.get("/b").status, 200, "the endpoint is in rotation");
}

/// A content type is no reason to wait for ever; calls of gRPC are made over HTTP/2 alone.
#[test]
fn content_that_claims_to_be_a_call_must_come_at_some_rate() {
    let origin = Origin::echo(Reading::Strict);
    let gateway = gateway("client_body_grace: 1\nclient_body_min_rate: 240", &origin, 60);
    for framing in ["Content-Length: 1000", "Transfer-Encoding: chunked"] {
        let mut client = gateway.client();
        client.send(format!("POST /a HTTP/1.1\r\nHost: t\r\nContent-Type: application/grpc\r\n{framing}\r\n\r\n"));
        assert_eq!(client.response().expect("an answer").status, 408, "{framing}");
    }
}

#[test]
fn a_client_that_stops_after_the_100_is_the_one_that_is_late() {
    let origin = with_interim("HTTP/1.1 100 Continue\r\n\r\n");
    let gateway = gateway("client_body_grace: 1\nclient_body_min_rate: 240", &origin, 60);
    let mut client = gateway.client();
    client.send("POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
    assert_eq!(client.next_head().expect("an interim response").status, 100);
    assert_eq!(client.response().expect("an answer").status, 408);
}

/// Some clients send a CRLF after a body (RFC 9112 §2.2).
#[test]
fn an_empty_line_after_a_body_begins_no_request() {
    let origin = Origin::echo(Reading::Strict);
    let gateway = gateway(&format!("client_header_timeout: {TIMEOUT_S}"), &origin, 60);
    let send = |line: &[&str]| {
        let mut client = gateway.client();
        client.send("POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\n\r\nabc");
        line.iter().for_each(|part| client.send(part));
        assert_eq!(client.response().expect("an answer").text(), "POST /a 3");
        is_waited_for(&mut client);
        assert_eq!(client.get("/b").expect("an answer").text(), "GET /b 0");
    };
    thread::scope(|scope| {
        scope.spawn(|| send(&["\r\n"]));
        scope.spawn(|| send(&["\r", "\n"]));
    });
}
