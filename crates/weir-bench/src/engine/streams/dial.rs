//! Opening connections.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::PreparedStreams;
use crate::engine::clock::now_ns;
use crate::engine::prepare::PreparedLoad;
use crate::engine::recorder::Cause;
use crate::engine::socket;

/// A connection with or without TLS.
pub(in crate::engine) enum DialedStream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Opens a connection for a request of the plan. `client` is numbered over the whole run.
///
/// Counts neither success nor failure: the protocol may need further steps before the connection is ready.
pub(in crate::engine) async fn dial(
    lobby: &PreparedStreams,
    client: usize,
    request: usize,
) -> Result<DialedStream, Cause> {
    let prepared: &PreparedLoad = &lobby.prepared;
    let plan = &prepared.plan;
    let origin = &prepared.origins[prepared.requests[request].origin];
    let source = plan.source_address(client);
    let attempt = async {
        let socket = std::net::TcpStream::from(socket::connect(origin.address, source)?);
        let stream = TcpStream::from_std(socket).map_err(|_| Cause::Local)?;
        stream.writable().await.map_err(|_| Cause::Connect)?;
        match stream.take_error() {
            Ok(None) => {}
            Ok(Some(error)) | Err(error) => return Err(socket::connect_cause(&error)),
        }
        let Some(tls) = &origin.tls else { return Ok(DialedStream::Plain(stream)) };
        let connector = TlsConnector::from(tls.config.clone());
        let since = now_ns();
        let stream = connector.connect(tls.name.clone(), stream).await.map_err(|_| Cause::Tls)?;
        let mut connections = lobby.connections.borrow_mut();
        connections.handshakes += 1;
        connections.tls_time.get_or_insert_default().record(now_ns() - since);
        let resumed = stream.get_ref().1.handshake_kind() == Some(rustls::HandshakeKind::Resumed);
        connections.resumed += u64::from(resumed);
        Ok(DialedStream::Tls(Box::new(stream)))
    };
    timeout(Duration::from_millis(plan.timeouts.connect_ms), attempt).await.unwrap_or(Err(Cause::ConnectTimeout))
}

impl AsyncRead for DialedStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            DialedStream::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            DialedStream::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for DialedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        match &mut *self {
            DialedStream::Plain(stream) => Pin::new(stream).poll_write(cx, data),
            DialedStream::Tls(stream) => Pin::new(stream).poll_write(cx, data),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            DialedStream::Plain(stream) => Pin::new(stream).poll_flush(cx),
            DialedStream::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            DialedStream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            DialedStream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
