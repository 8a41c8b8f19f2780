//! Clients without a valid key: they take no places from clients with one, however many requests they send.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::json;
use weir_testkit::{
    Answer, Client, ClientMode, DEADLINE, EndOfAttack, Gate, Origin, eventually, is_full, most_beside, p99, scaled,
};

use crate::own_addresses::{Site, is_soon, request};

/// Two client addresses, each with as many connections as it may have: all that there are.
const ATTACKERS: [Ipv4Addr; 2] = [Ipv4Addr::new(127, 0, 0, 2), Ipv4Addr::new(127, 0, 0, 3)];
const CONNECTIONS: usize = 70;
/// What a change may take at the 99th percentile beside them, where nothing else runs on the machine.
const MOST_PUT: Duration = Duration::from_millis(250);

/// Sends a request again and again, many times at once on each of many connections.
fn flood(address: SocketAddr, attacker: Ipv4Addr, request: &str, stop: &AtomicBool) {
    let pipelined = request.repeat(20);
    let begin = || {
        let mut client = Client::connect_from(attacker, address).ok()?;
        client.set_deadline(Duration::from_millis(1));
        client.try_send(&pipelined).ok().map(|()| client)
    };
    let mut clients: Vec<Option<Client>> = (0..CONNECTIONS).map(|_| begin()).collect();
    while !stop.load(Relaxed) {
        for entry in &mut clients {
            let is_open = entry.as_mut().is_some_and(|client| match client.up_to(1 << 20) {
                Ok(read) => !read.is_empty() && client.try_send(request).is_ok(),
                Err(error) => matches!(error, weir_testkit::ReadError::TimedOut { .. }),
            });
            if !is_open && !stop.load(Relaxed) {
                *entry = begin();
            }
        }
    }
}

/// Makes changes with a key, each on a new connection, beside strangers who send this.
fn changes_beside(site: &Site, name: &str, request: &str, is_under_way: &dyn Fn() -> bool) {
    let put = || assert!(is_soon(|| site.changes()), "{name}: no change is made");
    let count = scaled(10, 500);
    let alone = p99(count, put);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for attacker in ATTACKERS {
            let stop = &stop;
            scope.spawn(move || flood(site.admin(), attacker, request, stop));
        }
        let _end = EndOfAttack(&stop);
        eventually("they are under way", 3 * DEADLINE, is_under_way);
        let beside = p99(count, put);
        println!("{name}, {:?}, workers: {}: {alone:?} alone, {beside:?} beside", site.mode, site.workers);
        if is_full() {
            // Attackers and node share the machine.
            assert!(beside <= most_beside(alone).max(MOST_PUT), "{name}: {beside:?}, alone {alone:?}");
        }
    });
}

fn has_connections(site: &Site) -> bool {
    site.server("weir_server_connections", "admin") >= 100.0
}

#[test]
fn u05_wrong_keys_take_no_places_of_clients_with_a_key() {
    let workers: &[usize] = if is_full() { &[1, 2] } else { &[1] };
    for workers in workers {
        for mode in [ClientMode::Clear, ClientMode::Http2] {
            let site = Site::start(mode, *workers);
            let wrong = request("GET", "routes", "a-wrong-key", "");
            changes_beside(&site, "wrong keys", &wrong, &|| has_connections(&site));
        }
    }
}

/// An issuer that accepts requests and answers none, until its gate is opened.
fn hanging_issuer() -> (Origin, Arc<Gate>) {
    let gate = Arc::new(Gate::new());
    let waiting = Arc::clone(&gate);
    let origin = Origin::serving(move |_| {
        waiting.wait();
        Answer::status(404, "")
    });
    (origin, gate)
}

#[test]
fn u05_tokens_of_unknown_keys_take_no_places_while_the_issuer_hangs() {
    let (issuer, gate) = hanging_issuer();
    let settings = format!(
        "  tokens:\n    issuer: \"http://127.0.0.1:{}\"\n    audience: a\n    roles: {{ claim: g, map: {{ ops: admin }} }}\n",
        issuer.addr().port()
    );
    let site = Site::with_settings(ClientMode::Clear, 1, &settings);
    let encoded = |part: serde_json::Value| URL_SAFE_NO_PAD.encode(part.to_string());
    let token = format!("{}.{}.c2ln", encoded(json!({"alg": "EdDSA", "kid": "none"})), encoded(json!({"sub": "a"})));
    let stranger =
        format!("GET /apisix/admin/routes HTTP/1.1\r\nHost: a.example\r\nAuthorization: Bearer {token}\r\n\r\n");
    changes_beside(&site, "unknown tokens", &stranger, &|| has_connections(&site) && !issuer.requests().is_empty());
    gate.open();
}
