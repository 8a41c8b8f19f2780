//! Opens a connection to an origin: name lookup, TCP, TLS, HTTP. All steps share one deadline.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use weir_net::tls::ServerName;

use crate::call_content::CallContent;
use crate::client::HttpClient;
use crate::conduct::ServerConduct;
use crate::error::CallError;
use crate::guarded::{GuardedStream, SharingStream};
use crate::pool::{PooledConnection, RequestSender};
use crate::settings::{CallSettings, HttpProtocol};
use crate::stream::{ServiceStream, StreamTarget};
use crate::url::UrlOrigin;

/// Limit of a response head in bytes; a larger one is an error of the connection.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Content that a server may send over HTTP/2 before the caller has taken it, for one response. A connection has no limit beyond that of its
/// responses: else a few callers that do not read theirs would stop all others.
const HTTP2_STREAM_WINDOW_BYTES: u32 = 256 << 10;
const HTTP2_CONNECTION_WINDOW_BYTES: u32 = (1 << 31) - 1;
/// Each address is given an equal part of the remaining time, but at least this.
const MIN_PER_ADDRESS: Duration = Duration::from_millis(250);

/// The deadline for opening a connection, and the time-out it was computed from, for error messages.
#[derive(Clone, Copy)]
struct ConnectDeadline {
    at: Instant,
    after: Duration,
}

impl HttpClient {
    pub(crate) async fn connect(
        &self,
        origin: &Arc<UrlOrigin>,
        how: &CallSettings,
    ) -> Result<PooledConnection, CallError> {
        let after = how.connect_timeout.min(how.timeout);
        let deadline = ConnectDeadline { at: Instant::now() + after, after };
        let addresses = self.allowed_addresses(origin, deadline).await?;
        let (address, tcp) = connect_tcp((origin, self.port_of(origin)), &addresses, deadline).await?;
        if !origin.is_https {
            let http2 = how.protocol == HttpProtocol::Http2;
            return handshake(origin, tcp, http2).await;
        }
        let tls = connect_tls(origin, &origin.host, (address, tcp), self.tls_connector(how), deadline).await?;
        let http2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
        handshake(origin, tls, http2).await
    }

    /// Opens a connection for a protocol other than HTTP.
    ///
    /// # Errors
    /// No connection is open within `timeout`.
    pub async fn stream(&self, target: &StreamTarget, timeout: Duration) -> Result<ServiceStream, CallError> {
        let StreamTarget { origin, tls } = target;
        let deadline = ConnectDeadline { at: Instant::now() + timeout, after: timeout };
        let addresses = self.allowed_addresses(origin, deadline).await?;
        let (address, tcp) = connect_tcp((origin, self.port_of(origin)), &addresses, deadline).await?;
        let Some(tls) = tls else { return Ok(ServiceStream::Plain(tcp)) };
        let name = tls.name.as_ref().unwrap_or(&origin.host);
        let connector = self.stream_connector(&tls.verification);
        let stream = connect_tls(origin, name, (address, tcp), connector, deadline).await?;
        Ok(ServiceStream::Tls(Box::new(stream)))
    }

    fn port_of(&self, origin: &UrlOrigin) -> u16 {
        self.settings().connect_to.map_or(origin.port, |address| address.port())
    }

    async fn allowed_addresses(&self, origin: &UrlOrigin, deadline: ConnectDeadline) -> Result<Vec<IpAddr>, CallError> {
        let host = &origin.host;
        let given = self.settings().connect_to.map(|address| Ok(address.ip()));
        let found: Vec<IpAddr> = match given.unwrap_or_else(|| host.parse::<IpAddr>()) {
            Ok(address) => vec![address],
            Err(_) => match timeout_at(deadline.at, self.resolver().addresses(host)).await {
                Ok(Ok(addresses)) => addresses.to_vec(),
                Ok(Err(reason)) => return Err(CallError::NameLookup { host: host.clone(), reason }),
                Err(_) => return Err(CallError::NameLookupTimedOut { host: host.clone(), after: deadline.after }),
            },
        };
        let filter = &self.settings().addresses;
        let allowed: Vec<IpAddr> = found.into_iter().filter(|address| filter.allows(*address)).collect();
        if allowed.is_empty() { Err(CallError::AddressDenied { host: host.clone() }) } else { Ok(allowed) }
    }
}

async fn connect_tls(
    origin: &UrlOrigin,
    name: &str,
    (address, tcp): (SocketAddr, SharingStream),
    connector: std::io::Result<TlsConnector>,
    deadline: ConnectDeadline,
) -> Result<TlsStream<SharingStream>, CallError> {
    let host = &origin.host;
    let failed = |error| CallError::Tls { host: host.clone(), address, error };
    let name = ServerName::try_from(name.to_owned()).map_err(|error| failed(std::io::Error::other(error)))?;
    match timeout_at(deadline.at, connector.map_err(failed)?.connect(name, tcp)).await {
        Ok(connected) => connected.map_err(failed),
        Err(_) => Err(CallError::TlsTimedOut { host: host.clone(), address, after: deadline.after }),
    }
}

/// Tries one address after another. If all fail, the error is that of the last one.
async fn connect_tcp(
    (origin, port): (&UrlOrigin, u16),
    addresses: &[IpAddr],
    deadline: ConnectDeadline,
) -> Result<(SocketAddr, SharingStream), CallError> {
    let host = &origin.host;
    let mut failure = None;
    for (number, address) in addresses.iter().enumerate() {
        let address = SocketAddr::new(*address, port);
        let now = Instant::now();
        let left = (addresses.len() - number) as u32;
        let share = (deadline.at.saturating_duration_since(now) / left).max(MIN_PER_ADDRESS);
        match timeout_at(deadline.at.min(now + share), weir_net::connect::open(address)).await {
            Ok(Ok(tcp)) => {
                // Requests are written as a whole, so waiting for more data would only delay them.
                let delayed = |error| CallError::Connect { host: host.clone(), address, error };
                tcp.set_nodelay(true).map_err(delayed)?;
                return Ok((address, SharingStream::new(tcp)));
            }
            Ok(Err(error)) => failure = Some(CallError::Connect { host: host.clone(), address, error }),
            Err(_) => {
                let after = deadline.after.min(share);
                failure = Some(CallError::ConnectTimedOut { host: host.clone(), address, after });
            }
        }
        if Instant::now() >= deadline.at {
            break;
        }
    }
    Err(failure.expect("there is at least one address"))
}

/// Starts the connection in a task of its own, which ends when the connection's last sender is dropped.
async fn handshake(
    origin: &UrlOrigin,
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    http2: bool,
) -> Result<PooledConnection, CallError> {
    let broken = |error| CallError::Broken { origin: origin.to_string(), error };
    let conduct = Arc::<ServerConduct>::default();
    let stream = TokioIo::new(GuardedStream::new(stream, Arc::clone(&conduct), http2));
    // hyper reports a connection's failure to each pending call on it.
    let sender = if http2 {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.timer(TokioTimer::new()).max_header_list_size(MAX_HEAD_BYTES as u32);
        builder.initial_stream_window_size(HTTP2_STREAM_WINDOW_BYTES);
        builder.initial_connection_window_size(HTTP2_CONNECTION_WINDOW_BYTES);
        let (sender, connection) = builder.handshake::<_, CallContent>(stream).await.map_err(broken)?;
        tokio::spawn(async { drop(connection.await) });
        RequestSender::Http2(sender)
    } else {
        let mut builder = http1::Builder::new();
        builder.max_buf_size(MAX_HEAD_BYTES);
        let (sender, connection) = builder.handshake::<_, CallContent>(stream).await.map_err(broken)?;
        tokio::spawn(async { drop(connection.await) });
        RequestSender::Http1(sender)
    };
    Ok(PooledConnection { sender, conduct })
}
