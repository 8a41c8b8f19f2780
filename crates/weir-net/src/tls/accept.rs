//! The server's side of a handshake: look who is wanted, then answer as that one.

use std::fmt;
use std::future::poll_fn;
use std::io;

use rustls::server::{Acceptor, UnbufferedServerConnection};
use tokio::net::TcpStream;

use super::{Server, TlsSession};
use crate::stream::{Stream, poll_read, poll_write};

/// The largest ClientHello that is listened to. Those of today, with post-quantum key shares, have two kilobytes.
const MOST_HELLO: usize = 64 * 1024;
/// Bytes of it that are read at once.
const PART: usize = 2048;
/// The first byte of every TLS connection: a handshake record (RFC 8446 §5.1).
const HANDSHAKE: u8 = 22;
/// A fatal `unrecognized_name` (RFC 6066 §3) as a record.
const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

/// What an authority of certificates speaks, and nothing else, to see whether a name is ours (RFC 8737 §6.2).
pub const ACME_TLS: &str = "acme-tls/1";

/// Who a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestedServer {
    /// In lower case; `None` if it names nobody, as clients that were given an address do.
    pub name: Option<Box<str>>,
    /// It is an authority that asks for a proof ([`ACME_TLS`]).
    pub proof: bool,
}

/// Why a client is not served.
#[derive(Debug)]
pub enum AcceptError {
    /// It does not speak TLS; what it said so far. It can still be answered, in the clear.
    NotTls(Stream, Vec<u8>),
    /// There is no certificate for the name it wants.
    UnknownName(Option<Box<str>>),
    /// It has gone, or its TLS is refused.
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

/// Completes when the client can be talked to. `choose` finds the configuration for whom the client wants.
///
/// # Errors
/// Why not; the client has been told as far as TLS has words for it.
pub async fn accept(
    tcp: TcpStream,
    choose: impl FnOnce(&RequestedServer) -> Option<Server>,
) -> Result<Stream, AcceptError> {
    let mut received = Vec::new();
    let Some(wanted) = hello(&tcp, &mut received).await? else {
        return Err(AcceptError::NotTls(Stream::plain(tcp), received));
    };
    let Some(server) = choose(&wanted) else {
        tell(&tcp, &UNRECOGNIZED_NAME).await;
        return Err(AcceptError::UnknownName(wanted.name));
    };
    let connection = UnbufferedServerConnection::new(server.config).map_err(io::Error::other)?;
    let mut session = Box::new(TlsSession::server(connection, wanted.name, received));
    poll_fn(|context| session.poll_handshake(&tcp, context)).await?;
    Ok(Stream::secured(tcp, session))
}

/// Reads until it is known who is wanted. `None` if this is not TLS. What was read is read again by the session: finding
/// the configuration first costs a second look at two kilobytes, and lets everything in it depend on the name.
async fn hello(tcp: &TcpStream, received: &mut Vec<u8>) -> Result<Option<RequestedServer>, AcceptError> {
    let mut acceptor = Acceptor::default();
    loop {
        poll_fn(|context| tcp.poll_read_ready(context)).await?;
        // Whoever says nothing yet needs no room for it.
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
                Ok(None) => return Err(io::Error::other("the ClientHello message is too long").into()),
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
                    tell(tcp, &record).await;
                    return Err(io::Error::new(io::ErrorKind::InvalidData, error).into());
                }
            }
        }
    }
}

/// Last words. They fit into the socket's buffer, or nobody listens.
async fn tell(tcp: &TcpStream, record: &[u8]) {
    let _ = poll_fn(|context| poll_write(tcp, context, record)).await;
}
