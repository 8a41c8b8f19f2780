//! The client side of a handshake.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError, Error, InvalidMessage};
use tokio::net::TcpStream;

use crate::stream::Stream;
use crate::tls::{TlsConnector, TlsSession};

/// Performs the handshake on a new connection. The peer must have a valid certificate for `name`, unless the terms disable
/// verification.
///
/// # Errors
/// Why the handshake failed; the text may contain names from the peer's certificate.
pub async fn connect(tcp: TcpStream, client: &TlsConnector, name: ServerName<'static>) -> io::Result<Stream> {
    connect_in_turns(tcp, client, name, async || ()).await
}

/// The same with a wait for `turn` before the peer's answer to the ClientHello is processed, and its certificate verified.
///
/// # Errors
/// As [`connect`].
pub async fn connect_in_turns(
    tcp: TcpStream,
    client: &TlsConnector,
    name: ServerName<'static>,
    turn: impl AsyncFn(),
) -> io::Result<Stream> {
    let shown = name.to_str().into_owned().into();
    let connection = UnbufferedClientConnection::new(client.config.clone(), name).map_err(io::Error::other)?;
    let mut session = Box::new(TlsSession::client(connection, Some(shown)));
    // Sends the ClientHello.
    match poll_fn(|context| Poll::Ready(session.poll_handshake(&tcp, context))).await {
        Poll::Ready(outcome) => outcome?,
        Poll::Pending => {
            tcp.readable().await?;
            turn().await;
            poll_fn(|context| session.poll_handshake(&tcp, context)).await?;
        }
    }
    Ok(Stream::secured(tcp, session))
}

/// Whether a handshake failed because of the name alone: the peer does not know it, or has a valid certificate for other names.
pub fn is_unknown_name(error: &io::Error) -> bool {
    matches!(
        of_tls(error),
        Some(
            Error::AlertReceived(AlertDescription::UnrecognisedName)
                | Error::InvalidCertificate(
                    CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }
                )
        )
    )
}

/// Whether a handshake failed because the peer answered with something that is not TLS.
pub fn is_not_tls(error: &io::Error) -> bool {
    matches!(of_tls(error), Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)))
}

fn of_tls(error: &io::Error) -> Option<&Error> {
    error.get_ref()?.downcast_ref()
}
