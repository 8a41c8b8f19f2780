//! Holds the table of listeners in docs/guide/security.md against the numbers in the code.

use std::time::Duration;

use weir_control::admin::MOST_WAITS;
use weir_gateway::snapshot::ClientSettings;
use weir_gateway::tail::{MOST_BYTES, MOST_READER_BYTES};

use super::server::bounds::{
    ACCEPT_PAUSE, ANSWER, ANSWER_BYTES, BODY, FIRST_BYTE, HANDSHAKE, HEAD, HEAD_BYTES, HELD_BYTES, IDLE, LAST_WORDS,
    LOCAL_RESETS, PENDING_RESETS, PIECE, PING, PONG, REQUESTS, ServerBounds, UNREAD, WAIT, WAITING,
};
use super::{admin, status};

fn seconds(time: Duration) -> String {
    format!("{} s", time.as_secs())
}

fn bytes(count: usize) -> String {
    if count < 1 << 20 { format!("{} KiB", count >> 10) } else { format!("{} MiB", count >> 20) }
}

/// One line of the table: a bound, and its value at each listener.
fn line(bound: &str, clients: &str, admin: &str, status: &str) -> String {
    format!("| {bound} | {clients} | {admin} | {status} |\n")
}

fn row(bound: &str, clients: &str, own: impl Fn(ServerBounds) -> String) -> String {
    line(bound, clients, &own(admin::BOUNDS), &own(status::BOUNDS))
}

fn table() -> String {
    let clients = ClientSettings::default();
    let setting = |value: String, name: &str| format!("{value} (`{name}`)");
    let same = |value: String| move |_: ServerBounds| value.clone();
    let mut table = "| | `listen` | `admin` | `status` |\n|---|--:|--:|--:|\n".to_owned();
    table += &row("connections", "by the limit of open files", |own| own.connections.to_string());
    table += &row("connections of other machines", "all", |own| own.remote().to_string());
    table += &row("connections of one client address of another machine", "half (`client_max_connections`)", |own| {
        (own.connections / 2).to_string()
    });
    table += &row(
        "first byte",
        &setting(seconds(clients.first_byte_timeout), "client_first_byte_timeout"),
        same(seconds(FIRST_BYTE)),
    );
    table += &line("TLS handshake", &seconds(clients.handshake_timeout), &seconds(HANDSHAKE), "no TLS");
    table += &row(
        "first request head",
        &setting(seconds(clients.header_timeout), "client_header_timeout"),
        same(seconds(HEAD)),
    );
    table += &row(
        "idle, until the next request",
        &setting(seconds(clients.idle_timeout), "keepalive_timeout"),
        same(seconds(IDLE)),
    );
    let rate = format!("{} bytes a second, after {}", clients.body_min_rate, seconds(clients.body_grace));
    table += &line("request body", &rate, &seconds(BODY), "not read");
    let answer = format!("{} for each {}", seconds(ANSWER), bytes(PIECE));
    table += &row("a response that is not read", &seconds(clients.write_timeout), same(answer));
    table += &row(
        "bytes of a request head",
        &setting(bytes(clients.limits.head_bytes), "client_max_header_size"),
        same(bytes(HEAD_BYTES)),
    );
    table +=
        &row("requests of one HTTP/2 connection", &clients.concurrent_streams.to_string(), same(REQUESTS.to_string()));
    table += &row(
        "bytes held of bodies, half of them for one client address",
        &format!("{}, a quarter for one (`held_content_max`)", bytes(clients.held.node as usize)),
        same(bytes(HELD_BYTES)),
    );
    table += &row(
        &format!("bytes held of responses of more than {}, half of them for one client address", bytes(PIECE)),
        "in the same",
        same(bytes(ANSWER_BYTES)),
    );
    table += &row("streams that stay open, half of them for one client address", "none of the node's own", |own| {
        own.streams.to_string()
    });
    table += &row("a stream that is not read", &seconds(clients.write_timeout), same(seconds(UNREAD + LAST_WORDS)));
    table +=
        &row("connections that wait for one of these", "in the backlog", same(format!("{WAITING}, {}", seconds(WAIT))));
    table
}

#[test]
fn the_table_of_listeners_has_the_numbers_of_the_code() {
    let page = include_str!("../../../../docs/guide/security.md");
    assert!(page.contains(&table()), "docs/guide/security.md is to have this table:\n{}", table());
    let text = page.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
    for phrase in [
        format!("{} of lines wait", bytes(MOST_READER_BYTES)),
        format!("for all readers together {};", bytes(MOST_BYTES)),
        format!("that is not read for {} ends", seconds(UNREAD)),
        format!("At most {MOST_WAITS} changes wait"),
        format!("at most {PENDING_RESETS} streams that the client has reset"),
        format!("and {LOCAL_RESETS} that it made the node reset"),
        format!("gets a PING after {}, and has {} to answer", seconds(PING), seconds(PONG)),
        format!("pauses for {} ms", ACCEPT_PAUSE.as_millis()),
    ] {
        assert!(text.contains(&phrase), "docs/guide/security.md is to say: {phrase}");
    }
}
