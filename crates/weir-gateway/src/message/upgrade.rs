//! Changing to another protocol: what a WebSocket's handshake needs, and the relay after a 101.

use std::io;
use std::task::{Context, Poll};

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::prelude::{BASE64_STANDARD, Engine};
use weir_plugin::Exchange;
use weir_proto::{Known, Version};
use weir_telemetry::metrics::WorkerMetrics;

use super::sides::{ClientSide, Pipe};
use super::{tunnel, websocket};
use crate::connection::AfterExchange;
use crate::context::WorkerContext;
use crate::context::served_exchange::ServedExchange;

/// Whether the request asks for a WebSocket.
pub fn asks_for_websocket(exchange: &Exchange) -> bool {
    let asked = exchange.request.head.known(Known::Upgrade);
    exchange.request.upgrade && asked.is_some_and(|protocol| protocol.eq_ignore_ascii_case(b"websocket"))
}

/// The value of `Sec-WebSocket-Accept` that a client of HTTP/1.1 expects (RFC 6455 §4.2.2); `None` for one of HTTP/2.
pub fn websocket_accept(exchange: &Exchange) -> Option<String> {
    let key = exchange.request.head.received(b"Sec-WebSocket-Key").next()?;
    let of_http1 = exchange.request.version != Version::Http2;
    let digest = || digest(&SHA1_FOR_LEGACY_USE_ONLY, &[key, b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"].concat());
    of_http1.then(|| BASE64_STANDARD.encode(digest()))
}

/// After a 101: relays bytes, or the messages of a WebSocket if plugins filter them.
pub async fn tunneled(
    worker: &WorkerContext,
    client: &mut impl ClientSide,
    upstream: &mut impl Pipe,
    exchange: &mut ServedExchange,
) -> AfterExchange {
    let mut upstream = CountingPipe { pipe: upstream, metrics: &worker.metrics, received: 0, sent: 0 };
    let early = std::mem::take(&mut exchange.early);
    let after = match exchange.opening.take() {
        None => Box::pin(tunnel::run(worker, client, &mut upstream, exchange, early)).await,
        Some(opening) => Box::pin(websocket::run(worker, client, &mut upstream, exchange, *opening, early)).await,
    };
    exchange.upstream.bytes_received += upstream.received;
    exchange.upstream.bytes_sent += upstream.sent;
    after
}

/// The upstream of a tunnel, which counts the bytes that pass. A client's pipe counts its own.
struct CountingPipe<'a, P> {
    pipe: &'a mut P,
    metrics: &'a WorkerMetrics,
    received: u64,
    sent: u64,
}

impl<P: Pipe> Pipe for CountingPipe<'_, P> {
    fn poll_read(&mut self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let read = self.pipe.poll_read(context, buffer);
        if let Poll::Ready(Ok(count)) = read {
            self.received += count as u64;
            self.metrics.upstream_bytes_received.add(count as u64);
        }
        read
    }

    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = self.pipe.poll_write(context, bytes);
        if let Poll::Ready(Ok(count)) = written {
            self.sent += count as u64;
            self.metrics.upstream_bytes_sent.add(count as u64);
        }
        written
    }

    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.pipe.poll_shutdown(context)
    }

    fn poll_unread(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        self.pipe.poll_unread(context)
    }
}
