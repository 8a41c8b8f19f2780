//! WebSub subscribers and publisher against a scripted hub.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::thread;

use aws_lc_rs::hmac;
use weir_bench::engine::{Errors, LoadPlan, LoadResult, Pacing, Protocol, Rate, Spacing, StopCondition, run};

use crate::http1::PATIENT_MS;
use crate::peer::{PeerDefinition, Then, answer};

/// What the hub does with a delivery.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hub {
    Honest,
    /// Signs with another secret.
    WrongSecret,
    /// Leaves out every second subscriber.
    Forgetful,
}

/// A hub that verifies intent and delivers at once, one connection per call.
fn hub(kind: Hub) -> PeerDefinition {
    let callbacks: Arc<Mutex<Vec<String>>> = Arc::default();
    PeerDefinition::start(move |seen, stream| {
        if seen.line.contains("hub.mode=publish") {
            assert!(seen.line.contains("hub.topic=news%2Fall"), "{}", seen.line);
            let secret = if kind == Hub::WrongSecret { "other" } else { "s3cret" };
            let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), &seen.body);
            let digits: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
            let (content, callbacks) = (seen.body.clone(), callbacks.lock().expect("no panic").clone());
            thread::spawn(move || {
                for callback in callbacks.iter().step_by(if kind == Hub::Forgetful { 2 } else { 1 }) {
                    let head = format!(
                        "X-Hub-Signature: sha256={digits}\r\nContent-Length: {}\r\nConnection: close\r\n",
                        content.len()
                    );
                    call("POST", callback, &head, &content);
                }
            });
        } else {
            let form = String::from_utf8(seen.body.clone()).expect("a form is text");
            assert!(form.contains("hub.mode=subscribe") && form.contains("hub.secret=s3cret"), "{form}");
            let callback = form.split('&').find_map(|pair| pair.strip_prefix("hub.callback=")).expect("a callback");
            let callback = callback.replace("%3A", ":").replace("%2F", "/");
            // Known before it is verified: a publication may follow the verification at once.
            callbacks.lock().expect("no panic").push(callback.clone());
            thread::spawn(move || {
                let query = "?hub.mode=subscribe&hub.topic=news%2Fall&hub.challenge=c0ffee&hub.lease_seconds=60";
                let reply = call("GET", &format!("{callback}{query}"), "Connection: close\r\n", b"");
                assert!(reply.ends_with("\r\n\r\nc0ffee"), "{reply}");
            });
        }
        answer(stream, "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n");
        Then::Next
    })
}

/// One request to a callback; returns the head and what came of the body with it.
fn call(method: &str, url: &str, head: &str, content: &[u8]) -> String {
    let (authority, path) = url.strip_prefix("http://").and_then(|rest| rest.split_once('/')).expect("a URL");
    let mut stream = TcpStream::connect(authority).expect("the engine listens");
    let request = format!("{method} /{path} HTTP/1.1\r\nHost: {authority}\r\n{head}\r\n");
    stream.write_all(&[request.as_bytes(), content].concat()).expect("the engine reads");
    let mut reply = vec![0; 1024];
    let read = stream.read(&mut reply).expect("the engine answers");
    String::from_utf8_lossy(&reply[..read]).into_owned()
}

fn load(kind: Hub) -> LoadResult {
    let hub = hub(kind);
    let protocol = Protocol::WebSub { topic: "news/all".into(), secret: Some("s3cret".into()), payload_bytes: 8_192 };
    let mut plan = LoadPlan { protocol, ..LoadPlan::closed(hub.url(), 20, StopCondition::after_count(5)) };
    plan.pacing = Pacing::Open { rate: Rate::Constant(20.0), spacing: Spacing::Even };
    // Those that are delivered may take longer on a busy machine.
    plan.timeouts.response_ms = if kind == Hub::Forgetful { 5_000 } else { PATIENT_MS };
    let result = run(&plan, &mut |_| {}).expect("the plan is good");
    assert_eq!(result.connections.opened, 20, "every subscription is verified");
    assert_eq!(result.total.due, 100, "each publication is due at each subscriber");
    assert_eq!(result.total.due, result.total.completed + result.total.errors.sum() + result.total.missed);
    result
}

#[test]
fn every_subscriber_gets_every_publication() {
    let result = load(Hub::Honest);
    assert_eq!((result.total.completed, result.total.errors), (100, Errors::default()));
    assert_eq!(result.total.bytes_received, 100 * 8_192);
}

#[test]
fn a_wrong_signature_is_a_mismatch() {
    assert_eq!(load(Hub::WrongSecret).total.errors, Errors { mismatch: 100, ..Errors::default() });
}

#[test]
fn event_that_is_not_delivered_times_out() {
    assert_eq!(load(Hub::Forgetful).total.errors, Errors { timeout: 50, ..Errors::default() });
}

#[test]
fn a_closed_loop_of_publications_is_refused() {
    let protocol = Protocol::WebSub { topic: "t".into(), secret: None, payload_bytes: 10 };
    let plan = LoadPlan { protocol, ..LoadPlan::closed("http://127.0.0.1:1/", 1, StopCondition::after_count(1)) };
    assert!(run(&plan, &mut |_| {}).expect_err("the plan is wrong").to_string().starts_with("pacing: "));
}
