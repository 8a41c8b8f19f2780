//! What has happened at the node's own addresses, as metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use weir_telemetry::page::Page;

/// Why the server has closed a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionEnd {
    FirstByte,
    Handshake,
    Head,
    Idle,
    /// A response or a stream was not read.
    Untaken,
    /// Another connection was to be accepted.
    Shed,
    /// It held room for a body or a response that others needed, and was slow.
    Slow,
}

/// The counters of one server.
#[derive(Debug, Default)]
pub(super) struct ServerTally {
    pub connections: AtomicU64,
    pub ended: [AtomicU64; 7],
    pub refused: AtomicU64,
    pub accept_errors: AtomicU64,
    pub streams: AtomicU64,
    pub streams_refused: AtomicU64,
    pub streams_unread: AtomicU64,
}

impl ServerTally {
    pub(super) fn ended(&self, why: ConnectionEnd) -> &AtomicU64 {
        &self.ended[why as usize]
    }
}

/// The counters of the servers of a node.
#[derive(Debug, Default)]
pub(super) struct ServerTallies {
    pub admin: Arc<ServerTally>,
    pub status: Arc<ServerTally>,
}

impl ServerTallies {
    pub(super) fn write(&self, page: &mut Page) {
        page.gauge("weir_server_connections", "Open connections at the Admin API's address and at the status address.");
        page.value(&[("server", "admin")], self.admin.connections.load(Relaxed));
        page.value(&[("server", "status")], self.status.connections.load(Relaxed));
        page.counter(
            "weir_server_connections_closed",
            "Connections that the server has closed: `first_byte`, `handshake`, `head` and `idle` exceeded the time for that, \
             `untaken` did not read a response or a stream, `shed` gave way to another connection, `slow` held room that others needed for a body or a response.",
        );
        for (server, tally) in self.each() {
            let ended = |why| tally.ended(why).load(Relaxed);
            page.total(&[("server", server), ("why", "first_byte")], ended(ConnectionEnd::FirstByte));
            page.total(&[("server", server), ("why", "handshake")], ended(ConnectionEnd::Handshake));
            page.total(&[("server", server), ("why", "head")], ended(ConnectionEnd::Head));
            page.total(&[("server", server), ("why", "idle")], ended(ConnectionEnd::Idle));
            page.total(&[("server", server), ("why", "untaken")], ended(ConnectionEnd::Untaken));
            page.total(&[("server", server), ("why", "shed")], ended(ConnectionEnd::Shed));
            page.total(&[("server", server), ("why", "slow")], ended(ConnectionEnd::Slow));
        }
        page.counter(
            "weir_server_connections_refused",
            "Connections that were closed at once, because the node was working for all others, or all of the same client.",
        );
        totals(page, self.each(), |tally| &tally.refused);
        page.counter(
            "weir_server_accept_errors",
            "Connections that could not be accepted, for example for lack of file descriptors.",
        );
        totals(page, self.each(), |tally| &tally.accept_errors);
        page.gauge("weir_server_streams", "Open streams, such as `/tail`.");
        page.value(&[("server", "admin")], self.admin.streams.load(Relaxed));
        page.value(&[("server", "status")], self.status.streams.load(Relaxed));
        page.counter(
            "weir_server_streams_refused",
            "Streams that were refused, because there were as many as there may be.",
        );
        totals(page, self.each(), |tally| &tally.streams_refused);
        page.counter("weir_server_streams_unread", "Streams that were ended because their clients did not read them.");
        totals(page, self.each(), |tally| &tally.streams_unread);
    }

    fn each(&self) -> [(&'static str, &ServerTally); 2] {
        [("admin", &self.admin), ("status", &self.status)]
    }
}

fn totals(page: &mut Page, servers: [(&'static str, &ServerTally); 2], count: fn(&ServerTally) -> &AtomicU64) {
    for (server, tally) in servers {
        page.total(&[("server", server)], count(tally).load(Relaxed));
    }
}
