//! HTTP/3: connections with several streams each, by the libraries `quinn` (QUIC) and `h3` (frames and QPACK).
//!
//! Each connection has a socket of its own, as those of separate clients have. It is connected, so that the kernel reports a
//! port on which nothing listens. `quinn` ignores that report, and would wait until its time-outs; [`PortUnreachable`] does not.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use h3::error::{Code, StreamError};
use h3::quic::RecvStream;
use http::{Method, Request, Response, StatusCode, header};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{
    ClientConfig, ConnectionError, Endpoint, EndpointConfig, TokioRuntime, TransportConfig, TransportErrorCode, VarInt,
};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::task::spawn_local;
use tokio::time::timeout;

use super::multiplexed::{Multiplexed, MultiplexedRequest, WINDOW, captured_head};
use super::{Answered, PreparedStreams};
use crate::engine::flow::CapturedAnswer;
use crate::engine::plan::LoadPlan;
use crate::engine::prepare::{LoadOrigin, OriginTls};
use crate::engine::recorder::Cause;
use crate::engine::socket;

/// The largest head of a response, as RFC 9114 §4.2.2 measures it.
const LARGEST_HEAD: u64 = 256 * 1024;
/// How often a connection without traffic sends a PING, so that a server does not take it for lost.
const PING: Duration = Duration::from_secs(10);
/// A server that has sent nothing for so long, in milliseconds, is lost.
const LOST_MS: u32 = 30_000;
/// How long the end of a connection may take.
const CLOSE: Duration = Duration::from_secs(1);
/// H3_NO_ERROR (RFC 9114 §8.1).
const NO_ERROR: VarInt = VarInt::from_u32(0x100);

type SendRequest = h3::client::SendRequest<h3_quinn::OpenStreams, Bytes>;
type RequestStream<S> = h3::client::RequestStream<S, Bytes>;

pub(super) struct DialedHttp3 {
    endpoint: Endpoint,
    sender: SendRequest,
    connection: Rc<OpenHttp3>,
}

/// A connection until its last request has ended, which may be after it has been replaced by another one.
struct OpenHttp3 {
    quic: quinn::Connection,
    is_unreachable: Rc<Cell<bool>>,
    /// `h3` closes a connection that has no sender.
    _sender: SendRequest,
}

pub(super) struct SentOverHttp3 {
    stream: RequestStream<h3_quinn::BidiStream<Bytes>>,
    connection: Rc<OpenHttp3>,
}

impl Multiplexed for DialedHttp3 {
    type Sent = SentOverHttp3;

    async fn open(lobby: &Rc<PreparedStreams>, client: usize, request: usize) -> Result<Self, Cause> {
        let prepared = &lobby.prepared;
        let origin = &prepared.origins[prepared.requests[request].origin];
        let attempt = async {
            let (endpoint, quic, unreachable) = dial(&prepared.plan, origin, client).await?;
            let mut builder = h3::client::builder();
            builder.max_field_section_size(LARGEST_HEAD).send_grease(false);
            let (driver, sender) =
                builder.build(h3_quinn::Connection::new(quic.clone())).await.map_err(|_| Cause::Protocol)?;
            let connection = Rc::new(OpenHttp3 { quic, is_unreachable: Rc::default(), _sender: sender.clone() });
            Ok((driver, unreachable, DialedHttp3 { endpoint, sender, connection }))
        };
        let limit = Duration::from_millis(prepared.plan.timeouts.connect_ms);
        let (mut driver, unreachable, dialed) = timeout(limit, attempt).await.unwrap_or(Err(Cause::ConnectTimeout))?;
        lobby.connections.borrow_mut().handshakes += 1;
        let (quic, is_unreachable) = (dialed.connection.quic.clone(), dialed.connection.is_unreachable.clone());
        let lobby = lobby.clone();
        spawn_local(async move {
            tokio::select! {
                // The error is ignored here, because the streams report it.
                _ = poll_fn(|context| driver.poll_close(context)) => {}
                () = unreachable.wait() => {
                    is_unreachable.set(true);
                    quic.close(NO_ERROR, b"");
                }
            }
            lobby.closed();
        });
        Ok(dialed)
    }

    async fn send(&mut self, request: &MultiplexedRequest) -> Result<SentOverHttp3, Cause> {
        let sent = self.sender.send_request(request.head.clone()).await;
        let stream = sent.map_err(|error| self.connection.cause(&error))?;
        Ok(SentOverHttp3 { stream, connection: self.connection.clone() })
    }

    async fn answer(
        sent: SentOverHttp3,
        request: &MultiplexedRequest,
        capture: &mut CapturedAnswer,
    ) -> Result<Option<Answered>, Cause> {
        let SentOverHttp3 { mut stream, connection } = sent;
        let answered = if request.body.is_empty() {
            match stream.finish().await {
                Ok(()) => receive(&mut stream, capture).await,
                Err(error) => Err(error),
            }
        } else {
            exchange_bodies(stream, &request.body, capture).await
        };
        let answer = match answered {
            // RFC 9114 §4.1.1
            Err(StreamError::RemoteTerminate { code: Code::H3_REQUEST_REJECTED, .. }) => return Ok(None),
            answered => answered.map_err(|error| connection.cause(&error))?,
        };
        if !answer.has_declared_length(&request.head) {
            return Err(Cause::Protocol);
        }
        let status = Some(answer.head.status().as_u16());
        let (sent, received, first_byte) = (request.body.len() as u64, answer.received, answer.first_byte);
        Ok(Some(Answered { status, sent, received, first_byte, ..Answered::default() }))
    }

    /// Returns when the server has been told: else it would keep the connection until its time-out.
    async fn close(self) {
        self.endpoint.close(NO_ERROR, b"");
        let _ = timeout(CLOSE, self.endpoint.wait_idle()).await;
    }
}

async fn dial(
    plan: &LoadPlan,
    origin: &LoadOrigin,
    client: usize,
) -> Result<(Endpoint, quinn::Connection, PortUnreachable), Cause> {
    let tls = origin.tls.as_ref().expect("the plan's check accepts https:// only");
    let socket = socket::connect_datagrams(origin.address, plan.source_address(client))?;
    let unreachable = PortUnreachable::of(&socket).map_err(|_| Cause::Local)?;
    let endpoint = Endpoint::new(EndpointConfig::default(), None, socket, Arc::new(TokioRuntime));
    let endpoint = endpoint.map_err(|_| Cause::Local)?;
    let connecting = endpoint.connect_with(quic_config(tls), origin.address, &tls.name.to_str());
    let connected = tokio::select! {
        connected = connecting.map_err(|_| Cause::Connect)? => connected,
        () = unreachable.wait() => return Err(Cause::Connect),
    };
    let quic = connected.map_err(|error| match quic_cause(&error) {
        Cause::Timeout => Cause::ConnectTimeout,
        Cause::Reset | Cause::Closed => Cause::Connect,
        other => other,
    })?;
    Ok((endpoint, quic, unreachable))
}

/// The report that nothing listens at the other end of a socket (ICMP, port unreachable).
struct PortUnreachable(UdpSocket);

impl PortUnreachable {
    fn of(socket: &std::net::UdpSocket) -> io::Result<PortUnreachable> {
        UdpSocket::from_std(socket.try_clone()?).map(PortUnreachable)
    }

    /// Returns when the kernel reports it.
    async fn wait(&self) {
        // The error itself may be gone: the next call on the socket gets it, whichever that is.
        let _ = self.0.ready(Interest::ERROR).await;
    }
}

fn quic_config(tls: &OriginTls) -> ClientConfig {
    let crypto =
        QuicClientConfig::try_from(tls.config.clone()).expect("the provider has the cipher suite QUIC begins with");
    let mut transport = TransportConfig::default();
    transport
        .stream_receive_window(VarInt::from_u32(WINDOW))
        .receive_window(VarInt::from_u32(WINDOW))
        .max_idle_timeout(Some(VarInt::from_u32(LOST_MS).into()))
        .keep_alive_interval(Some(PING));
    let mut config = ClientConfig::new(Arc::new(crypto));
    config.transport_config(Arc::new(transport));
    config
}

/// Sends the body of a request while the answer is received, which may begin before the body has been sent.
async fn exchange_bodies(
    stream: RequestStream<h3_quinn::BidiStream<Bytes>>,
    body: &Bytes,
    capture: &mut CapturedAnswer,
) -> Result<ReceivedAnswer, StreamError> {
    let (mut upload, mut download) = stream.split();
    let mut answered = pin!(receive(&mut download, capture));
    let uploaded = async {
        upload.send_data(body.clone()).await?;
        upload.finish().await
    };
    tokio::select! {
        answered = &mut answered => answered,
        uploaded = uploaded => match uploaded {
            // A server may stop a request whose rest it does not need, and answer it (RFC 9114 §4.1).
            Ok(()) | Err(StreamError::RemoteTerminate { .. }) => answered.await,
            Err(error) => Err(error),
        },
    }
}

/// A complete answer.
struct ReceivedAnswer {
    head: Response<()>,
    /// Bytes of content.
    received: u64,
    first_byte: Option<u64>,
}

async fn receive<S: RecvStream>(
    stream: &mut RequestStream<S>,
    capture: &mut CapturedAnswer,
) -> Result<ReceivedAnswer, StreamError> {
    let head = loop {
        let head = stream.recv_response().await?;
        if !head.status().is_informational() {
            break head;
        }
    };
    let first_byte = captured_head(capture, head.status(), head.headers());
    let mut received = 0;
    while let Some(mut data) = stream.recv_data().await? {
        received += data.remaining() as u64;
        while capture.is_used() && data.has_remaining() {
            let piece = data.chunk();
            let length = piece.len();
            capture.content(piece);
            data.advance(length);
        }
    }
    stream.recv_trailers().await?;
    Ok(ReceivedAnswer { head, received, first_byte })
}

impl ReceivedAnswer {
    /// Whether the content is as long as `Content-Length` says (RFC 9114 §4.1.2).
    fn has_declared_length(&self, request: &Request<()>) -> bool {
        let Some(declared) = self.head.headers().get(header::CONTENT_LENGTH) else { return true };
        let declared: Option<u64> = declared.to_str().ok().and_then(|text| text.parse().ok());
        let has_no_content = request.method() == Method::HEAD || self.head.status() == StatusCode::NOT_MODIFIED;
        declared == Some(self.received) || (has_no_content && self.received == 0)
    }
}

impl OpenHttp3 {
    fn cause(&self, error: &StreamError) -> Cause {
        match error {
            _ if self.is_unreachable.get() => Cause::Reset,
            StreamError::RemoteTerminate { .. } => Cause::Reset,
            StreamError::RemoteClosing { .. } => Cause::Closed,
            _ => self.quic.close_reason().map_or(Cause::Protocol, |reason| quic_cause(&reason)),
        }
    }
}

fn quic_cause(error: &ConnectionError) -> Cause {
    // CRYPTO_ERROR (RFC 9000 §20.1): an alert of TLS.
    let is_tls = |code: TransportErrorCode| (0x100..0x200).contains(&u64::from(code));
    match error {
        ConnectionError::TransportError(error) if is_tls(error.code) => Cause::Tls,
        ConnectionError::ConnectionClosed(close) if is_tls(close.error_code) => Cause::Tls,
        // The socket has failed.
        ConnectionError::TransportError(error) if error.code == TransportErrorCode::INTERNAL_ERROR => Cause::Reset,
        ConnectionError::Reset => Cause::Reset,
        ConnectionError::TimedOut => Cause::Timeout,
        ConnectionError::ApplicationClosed(_) | ConnectionError::ConnectionClosed(_) => Cause::Closed,
        // This side closes a connection only if its peer violates the protocol.
        ConnectionError::TransportError(_)
        | ConnectionError::LocallyClosed
        | ConnectionError::VersionMismatch
        | ConnectionError::CidsExhausted => Cause::Protocol,
    }
}
