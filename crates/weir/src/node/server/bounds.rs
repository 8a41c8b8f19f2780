//! What clients of the node's own addresses may take, and for how long. docs/guide/security.md shows these numbers.

use std::time::Duration;

use super::peer::ServerClient;

/// The time from the connection to its first byte.
pub(crate) const FIRST_BYTE: Duration = Duration::from_secs(5);
/// The time from the connection to the end of its TLS handshake.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(10);
/// The time from the first byte, or the end of the TLS handshake, to the end of the first request's head. HTTP/2 has no other
/// bound for a connection that sends its preface and no request.
pub(crate) const HEAD: Duration = Duration::from_secs(10);
/// The time from the end of a response to the end of the next request's head, whatever else is sent in between.
pub(crate) const IDLE: Duration = Duration::from_secs(60);
/// The time for a whole request body.
pub(crate) const BODY: Duration = Duration::from_secs(60);
/// The time in which a client has to take the next [`PIECE`] bytes of a response.
pub(crate) const ANSWER: Duration = Duration::from_secs(60);
/// A response is handed to its connection in pieces of so many bytes.
pub(crate) const PIECE: usize = 16 << 10;
/// The send buffer of a TCP connection, which Linux doubles. In a larger one, the kernel takes nothing for a long time from a response
/// that its client reads slowly.
pub(crate) const SOCKET_BUFFER: usize = 128 << 10;
/// A stream whose client has taken nothing for this long, although there was something to take, ends.
pub(crate) const UNREAD: Duration = Duration::from_secs(20);
/// After that, the time for its client to take the last words of the stream, until the connection is closed.
pub(crate) const LAST_WORDS: Duration = Duration::from_secs(10);
/// How long a connection waits for a place while the node works for all others.
pub(crate) const WAIT: Duration = Duration::from_secs(5);
/// How long a connection may not be closed for another one, as long as there are older ones.
pub(crate) const YOUNG: Duration = Duration::from_secs(1);
/// The same for a connection that has sent nothing at all.
pub(crate) const SILENT: Duration = Duration::from_millis(200);
/// How often the times are compared with their bounds.
pub(crate) const LOOK: Duration = Duration::from_millis(500);
/// How long responses in progress may take when the server ends, and a connection without requests to say goodbye. So many
/// connections may do so at a time as there may be connections.
pub(crate) const FAREWELL: Duration = Duration::from_secs(1);
/// The pause after `accept` failed, usually for lack of file descriptors.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The most connections that wait for a place.
pub(crate) const WAITING: usize = 64;
/// The most bytes of a request head.
pub(crate) const HEAD_BYTES: usize = 32 << 10;
/// The most fields of a request head over HTTP/1.
pub(crate) const FIELDS: usize = 100;
/// The most bytes of request bodies of all connections together.
pub(crate) const HELD_BYTES: usize = 128 << 20;
/// The most bytes of responses that have not been sent, of all connections together. A larger one counts as the share of its client.
pub(crate) const ANSWER_BYTES: usize = 128 << 20;
/// How long a response waits for room.
pub(crate) const ROOM_WAIT: Duration = Duration::from_secs(10);
/// A body that comes, or a response that is read, by fewer bytes per second gives way to others that need its room.
pub(crate) const SLOW: usize = 256 << 10;
/// The most requests in progress on one connection: streams of HTTP/2.
pub(crate) const REQUESTS: usize = 16;

/// The most bytes of a body over HTTP/2 that may be on their way to a request that does not read them, and of a connection.
pub(crate) const STREAM_WINDOW: u32 = 64 << 10;
pub(crate) const CONNECTION_WINDOW: u32 = 256 << 10;
/// The most bytes of a response that hyper copies before they are sent.
pub(crate) const SEND_BUFFER: usize = 64 << 10;
/// Streams that the client has reset and that are not yet forgotten (rapid reset, CVE-2023-44487); more end the connection.
pub(crate) const PENDING_RESETS: usize = 20;
/// Streams that the client made the server reset; more end the connection.
pub(crate) const LOCAL_RESETS: usize = 64;
/// A PING is sent after a silence of this long, and has to be answered within the other.
pub(crate) const PING: Duration = Duration::from_secs(20);
pub(crate) const PONG: Duration = Duration::from_secs(10);

/// The bounds of one server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerBounds {
    /// The most connections that are open at a time.
    pub connections: usize,
    /// The most streams, which stay open as long as their clients like. Fewer than connections, so that streams leave room for
    /// requests.
    pub streams: usize,
}

impl ServerBounds {
    /// The connections that other machines may have together. The rest is left for commands on this machine.
    pub(crate) const fn remote(self) -> usize {
        self.connections - self.connections / 8
    }
}

/// The part that one client may have of what all share. Clients of a Unix socket are one user, who may have all of it.
pub(crate) fn share(of: usize, client: ServerClient) -> usize {
    match client {
        ServerClient::Unix => of,
        ServerClient::Network(_) => of / 2,
    }
}
