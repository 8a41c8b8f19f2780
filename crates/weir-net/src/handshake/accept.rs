//! The server side of a handshake: read the requested server name, then choose the configuration for it.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use rustls::pki_types::UnixTime;
use rustls::server::{Acceptor, UnbufferedServerConnection};
use tokio::net::TcpStream;

use crate::plain::{poll_read, poll_write};
use crate::stream::Stream;
use crate::tls::{CertificateFacts, Server, TlsSession};

/// The largest ClientHello accepted, in bytes. Today's, with post-quantum key shares, take two kilobytes.
const MOST_HELLO: usize = 64 * 1024;
/// Bytes of the ClientHello read at once.
const PART: usize = 2048;
/// The first byte of every TLS connection: the type of a handshake record (RFC 8446 §5.1).
const HANDSHAKE: u8 = 22;
/// A record with the fatal alert `unrecognized_name` (RFC 6066 §3).
const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];
/// The same with `decode_error` (RFC 8446 §6.2).
const DECODE_ERROR: [u8; 7] = [21, 3, 3, 0, 2, 2, 50];

/// The only protocol a CA offers when it validates the control of a name (RFC 8737 §6.2).
pub const ACME_TLS: &str = "acme-tls/1";

/// What a client requests in its ClientHello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestedServer {
    /// The server name in lower case; `None` without SNI, as from clients that connect to an address.
    pub name: Option<Box<str>>,
    /// A CA validates the name ([`ACME_TLS`]).
    pub proof: bool,
}

/// The first message of a client, with the bytes that were read.
#[derive(Debug)]
pub struct ClientHello {
    /// `None` if the client does not speak TLS.
    pub wanted: Option<RequestedServer>,
    /// What has been received, from the first byte of the connection.
    pub received: Vec<u8>,
}

/// Why a handshake failed.
#[derive(Debug)]
pub enum AcceptError {
    /// The client does not speak TLS. The stream and the bytes read so far, for a plain-text response.
    NotTls(Stream, Vec<u8>),
    /// There is no certificate for the requested name.
    UnknownName(Option<Box<str>>),
    /// The client disconnected, or the handshake failed.
    Failed(io::Error),
}

impl fmt::Display for AcceptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AcceptError::NotTls(..) => f.write_str("the client does not speak TLS"),
            AcceptError::UnknownName(Some(name)) => write!(f, "no certificate for {name:?}"),
            AcceptError::UnknownName(None) => f.write_str("no certificate for clients that send no server name (SNI)"),
            AcceptError::Failed(error) => error.fmt(f),
        }
    }
}

impl From<io::Error> for AcceptError {
    fn from(error: io::Error) -> AcceptError {
        AcceptError::Failed(error)
    }
}

/// Performs the handshake. `choose` returns the configuration for the requested server.
///
/// # Errors
/// Why it failed; the client has been sent an alert if TLS defines one.
pub async fn accept(
    tcp: TcpStream,
    choose: impl FnOnce(&RequestedServer) -> Option<Server>,
) -> Result<Stream, AcceptError> {
    let hello = read_hello(&tcp).await?;
    accept_after(tcp, hello, choose, async || ()).await
}

/// The same after the ClientHello has been read, with a wait for `turn` before the answer to it is computed.
///
/// # Errors
/// As [`accept`].
pub async fn accept_after(
    tcp: TcpStream,
    hello: ClientHello,
    choose: impl FnOnce(&RequestedServer) -> Option<Server>,
    turn: impl AsyncFn(),
) -> Result<Stream, AcceptError> {
    let ClientHello { wanted, received } = hello;
    let Some(wanted) = wanted else {
        return Err(AcceptError::NotTls(Stream::plain(tcp), received));
    };
    let Some(server) = choose(&wanted) else {
        tell(&tcp, &UNRECOGNIZED_NAME).await;
        return Err(AcceptError::UnknownName(wanted.name));
    };
    turn().await;
    let judge = server.judge.clone();
    let mut session = begin(&tcp, server, wanted.name, received).await?;
    poll_fn(|context| session.poll_handshake(&tcp, context)).await?;
    // After a HelloRetryRequest the ticket comes in the second ClientHello, which `begin` has not seen.
    if session.is_resumed() && has_expired_certificate(&session) {
        poll_fn(|context| session.poll_close(&tcp, context)).await?;
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the client's certificate has expired").into());
    }
    if let Some(judge) = judge
        && !judge.is_valid(session.peer_certificates(), UnixTime::now())
    {
        session.disregard_certificate();
    }
    Ok(Stream::secured(tcp, session))
}

/// A session that has received the ClientHello. rustls does not verify the certificate in a ticket again. If it has expired, the
/// handshake begins anew without the ticket, and the client shows the certificate that it has now.
async fn begin(
    tcp: &TcpStream,
    server: Server,
    name: Option<Box<str>>,
    received: Vec<u8>,
) -> Result<Box<TlsSession>, AcceptError> {
    let session = |config, name, received| {
        let connection = UnbufferedServerConnection::new(config).map_err(io::Error::other)?;
        Ok::<_, io::Error>(Box::new(TlsSession::server(connection, name, received)))
    };
    let Some(full) = server.full else { return Ok(session(server.config, name, received)?) };
    let mut begun = session(server.config, name.clone(), received.clone())?;
    poll_fn(|context| begun.poll_receive_handshake(tcp, context)).await?;
    // A certificate this early is from a ticket, and nothing has been sent yet.
    match begun.peer_certificate().is_some() && has_expired_certificate(&begun) {
        true => Ok(session(full, name, received)?),
        false => Ok(begun),
    }
}

/// Whether the client's certificate is out of date, or its dates cannot be read. `false` without a certificate.
fn has_expired_certificate(session: &TlsSession) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let is_current = |facts: CertificateFacts| i64::try_from(now).is_ok_and(|now| now <= facts.until);
    session.peer_certificate().is_some_and(|certificate| !CertificateFacts::of(certificate).is_ok_and(is_current))
}

/// Reads the ClientHello, for a connection that may be passed on as it is.
///
/// # Errors
/// The client disconnected, or its ClientHello is not valid; it has been sent an alert if TLS defines one.
pub async fn read_hello(tcp: &TcpStream) -> Result<ClientHello, AcceptError> {
    let mut received = Vec::new();
    let wanted = hello(tcp, &mut received).await?;
    Ok(ClientHello { wanted, received })
}

/// Reads the ClientHello. `None` if this is not TLS. The session reads the same bytes again: parsing two kilobytes twice is the
/// price for a configuration that depends on the name in every respect.
async fn hello(tcp: &TcpStream, received: &mut Vec<u8>) -> Result<Option<RequestedServer>, AcceptError> {
    let mut acceptor = Acceptor::default();
    loop {
        poll_fn(|context| tcp.poll_read_ready(context)).await?;
        // The buffer is allocated only once there is data, so that silent connections take no memory.
        let end = received.len();
        received.resize(end + PART, 0);
        let count = poll_fn(|context| poll_read(tcp, context, &mut received[end..])).await?;
        received.truncate(end + count);
        if count == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        if received[0] != HANDSHAKE {
            return Ok(None);
        }
        let mut part = &received[end..];
        while !part.is_empty() {
            acceptor.read_tls(&mut part)?;
            match acceptor.accept() {
                Ok(None) if received.len() < MOST_HELLO => {}
                Ok(None) => {
                    tell(tcp, &DECODE_ERROR).await;
                    return Err(io::Error::other("the ClientHello message is too long").into());
                }
                Ok(Some(accepted)) => {
                    let hello = accepted.client_hello();
                    let name = hello.server_name().map(|name| name.to_ascii_lowercase().into());
                    let proof = hello.alpn().is_some_and(|mut all| {
                        all.next().is_some_and(|first| first == ACME_TLS.as_bytes()) && all.next().is_none()
                    });
                    return Ok(Some(RequestedServer { name, proof }));
                }
                Err((error, mut alert)) => {
                    let mut record = Vec::new();
                    alert.write_all(&mut record)?;
                    // There is none if the client has sent an alert, for which there is no answer.
                    if !record.is_empty() {
                        tell(tcp, &record).await;
                    }
                    return Err(io::Error::new(io::ErrorKind::InvalidData, error).into());
                }
            }
        }
    }
}

/// Sends an alert. It fits into the socket's buffer, or the connection is closed.
async fn tell(tcp: &TcpStream, record: &[u8]) {
    let _ = poll_fn(|context| poll_write(tcp, context, record)).await;
}
