//! What the clients of HTTP/3 may make this end keep.

use std::time::Duration;

use weir_net::quic::QuicLimits;

use crate::snapshot::ClientSettings;

/// The most bytes a client may send on one stream, and on all together, before they have been taken.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// The most bytes of responses that are sent and not acknowledged, or wait to be sent.
const SEND_WINDOW: u32 = 1024 * 1024;
/// How long a client may be silent at least: it is asked for a sign of life while it waits for a response.
const LEAST_SILENCE: Duration = Duration::from_secs(60);
/// The limits of a new connection.
pub(super) fn of(clients: &ClientSettings) -> QuicLimits {
    QuicLimits {
        streams: clients.concurrent_streams,
        stream_window: STREAM_WINDOW,
        connection_window: CONNECTION_WINDOW,
        send_window: SEND_WINDOW,
        idle_timeout: clients.idle_timeout.max(LEAST_SILENCE),
    }
}
