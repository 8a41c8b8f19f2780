//! The oracle: attack, then a canary on the same connection, then a canary from another client.

use std::net::SocketAddr;

use weir_testkit::{Client, Gateway, Launcher, Origin, Reading, Response, latin1};

/// What follows every attack on its own connection.
const CANARY: &str = "GET /canary-1 HTTP/1.1\r\nHost: t\r\n\r\n";
/// Attacks up to this size are also sent byte by byte.
const TRICKLED: usize = 700;

/// The gateway under test.
pub(crate) fn weir() -> Launcher {
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir"))
}

/// Everything for `Host: t` goes to `origin`, but `/blocked`, which the gateway itself answers with 401.
pub(crate) fn routes(origin: SocketAddr) -> String {
    format!(
        "routes:
  - id: all
    uri: /*
    host: t
    upstream: {{ type: roundrobin, nodes: {{ \"{origin}\": 1 }} }}
  - id: blocked
    uri: /blocked
    host: t
    plugins: {{ mocking: {{ response_status: 401, response_example: \"no\" }} }}
    upstream: {{ type: roundrobin, nodes: {{ \"{origin}\": 1 }} }}
"
    )
}

/// A gateway before one origin.
pub(crate) struct Rig {
    pub gateway: Gateway,
    pub origin: Origin,
}

impl Rig {
    /// Before an origin that answers each request with its method, target and body length.
    pub(crate) fn echo(reading: Reading) -> Rig {
        Rig::before(Origin::echo(reading))
    }

    /// Before this origin.
    pub(crate) fn before(origin: Origin) -> Rig {
        let gateway = weir().start(&routes(origin.addr()));
        Rig { gateway, origin }
    }

    /// A GET for `target` from a client of its own gets its own answer.
    pub(crate) fn canary(&self, target: &str) -> Result<(), String> {
        let answer = self.gateway.client().get(target).map_err(|error| format!("the other client: {error}"))?;
        own_answer(&answer, "GET", target, 0).map_err(|what| format!("the other client: {what}"))
    }
}

/// What must come of an attack.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    /// One of these statuses with `Connection: close`, the connection closed, not one byte upstream.
    Refused(&'static [u16]),
    /// The same, but found in a body whose beginning may have gone up already: no complete request upstream.
    RefusedInBody(&'static [u16]),
    /// These requests, and nothing else, reach the upstream, and each gets its own answer.
    Served(Vec<Seen>),
}

/// A request as the origin must see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub method: String,
    pub target: String,
    pub body: Vec<u8>,
}

/// A request as the origin must see it.
pub(crate) fn seen(method: &str, target: &str, body: impl AsRef<[u8]>) -> Seen {
    Seen { method: method.to_owned(), target: target.to_owned(), body: body.as_ref().to_vec() }
}

/// One attack.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub bytes: Vec<u8>,
    pub outcome: Outcome,
}

/// 400 and the connection closed, nothing upstream.
pub(crate) fn refused(bytes: impl AsRef<[u8]>) -> Case {
    refused_with(&[400], bytes)
}

/// One of `statuses` and the connection closed, nothing upstream.
pub(crate) fn refused_with(statuses: &'static [u16], bytes: impl AsRef<[u8]>) -> Case {
    Case { bytes: bytes.as_ref().to_vec(), outcome: Outcome::Refused(statuses) }
}

/// 400 and the connection closed, no complete request upstream.
pub(crate) fn refused_in_body(bytes: impl AsRef<[u8]>) -> Case {
    Case { bytes: bytes.as_ref().to_vec(), outcome: Outcome::RefusedInBody(&[400]) }
}

/// Exactly this request upstream.
pub(crate) fn served(request: Seen, bytes: impl AsRef<[u8]>) -> Case {
    Case { bytes: bytes.as_ref().to_vec(), outcome: Outcome::Served(vec![request]) }
}

/// Runs every case against a strict origin and two careless ones, in one piece and byte by byte, and panics with all
/// that went wrong.
#[track_caller]
pub(crate) fn run(cases: &[Case]) {
    let mut failures = Vec::new();
    for reading in [Reading::Strict, Reading::LengthWins, Reading::ChunkedWins] {
        let mut rig = Rig::echo(reading);
        for case in cases {
            let trickled = case.bytes.len() <= TRICKLED && reading == Reading::Strict;
            for piece in [usize::MAX, 1].into_iter().take(1 + usize::from(trickled)) {
                if let Err(what) = run_one(&rig, case, piece) {
                    let how = if piece == 1 { "byte by byte" } else { "in one piece" };
                    failures.push(format!("{} ({reading:?}, {how}): {what}", shortened(&case.bytes)));
                    rig = Rig::echo(reading);
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} failures in {} cases:\n{}", failures.len(), cases.len(), failures.join("\n"));
}

fn run_one(rig: &Rig, case: &Case, piece: usize) -> Result<(), String> {
    rig.origin.forget();
    let mut client = rig.gateway.client();
    let mut attack = case.bytes.clone();
    attack.extend_from_slice(CANARY.as_bytes());
    for part in attack.chunks(piece.min(attack.len())) {
        if client.try_send(part).is_err() {
            break; // refused and closed before all was sent
        }
    }
    let mut expected = Vec::new();
    match &case.outcome {
        Outcome::Refused(statuses) => {
            refusal(&mut client, &case.bytes, statuses)?;
            let raw = rig.origin.raw_text();
            if !raw.is_empty() {
                return Err(format!("went upstream: {raw:?}"));
            }
        }
        Outcome::RefusedInBody(statuses) => {
            refusal(&mut client, &case.bytes, statuses)?;
            let raw = rig.origin.raw_text();
            if raw.contains("canary") || raw.contains("smuggled") {
                return Err(format!("went upstream: {raw:?}"));
            }
        }
        Outcome::Served(requests) => {
            expected.clone_from(requests);
            expected.push(seen("GET", "/canary-1", ""));
            for request in &expected {
                let what = format!("{} {}", request.method, request.target);
                let answer = client.response_to(&request.method).map_err(|error| format!("{what}: {error}"))?;
                own_answer(&answer, &request.method, &request.target, request.body.len())?;
            }
        }
    }
    rig.canary("/canary-2")?;
    expected.push(seen("GET", "/canary-2", ""));
    let requests = rig.origin.requests();
    let arrived: Vec<Seen> = requests.iter().map(|r| seen(&r.method, &r.target, &r.body)).collect();
    if arrived != expected {
        return Err(format!("the origin saw {arrived:?}\n  instead of {expected:?}"));
    }
    if !rig.origin.violations().is_empty() {
        return Err(format!("the origin found {:?} in {:?}", rig.origin.violations(), rig.origin.raw_text()));
    }
    Ok(())
}

/// Refused with one of `statuses`, announced as the last answer, and closed with nothing after it.
pub(crate) fn refusal(client: &mut Client, request: &[u8], statuses: &[u16]) -> Result<(), String> {
    let method = if request.starts_with(b"HEAD ") { "HEAD" } else { "GET" };
    let answer = client.response_to(method).map_err(|error| error.to_string())?;
    if !statuses.contains(&answer.status) {
        return Err(format!("{} instead of {statuses:?}: {:?}", answer.status, answer.text()));
    }
    if !answer.closes() {
        return Err(format!("{} without Connection: close", answer.status));
    }
    let rest = client.until_closed();
    if !rest.is_empty() {
        return Err(format!("after the {} came {:?}", answer.status, latin1(&rest)));
    }
    Ok(())
}

/// The answer that the echoing origin makes of this request and no other.
pub(crate) fn own_answer(answer: &Response, method: &str, target: &str, length: usize) -> Result<(), String> {
    let expected = if method == "HEAD" { String::new() } else { format!("{method} {target} {length}") };
    if answer.status == 200 && answer.text() == expected {
        return Ok(());
    }
    Err(format!("{method} {target} got {} {:?} instead of {expected:?}", answer.status, answer.text()))
}

fn shortened(bytes: &[u8]) -> String {
    let text = latin1(bytes);
    match text.char_indices().nth(160) {
        Some((at, _)) => format!("{:?} … {} bytes", &text[..at], bytes.len()),
        None => format!("{text:?}"),
    }
}
