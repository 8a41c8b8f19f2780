//! The client's side of a handshake.

use std::future::poll_fn;
use std::io;

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;

use super::{TlsConnector, TlsSession};
use crate::stream::Stream;

/// Secures a new connection. The peer must prove to be `name`, unless the terms ask for no proof.
///
/// # Errors
/// What went wrong with the handshake; who the peer claims to be may be part of it.
pub async fn connect(tcp: TcpStream, client: &TlsConnector, name: ServerName<'static>) -> io::Result<Stream> {
    let shown = name.to_str().into_owned().into();
    let connection = UnbufferedClientConnection::new(client.config.clone(), name).map_err(io::Error::other)?;
    let mut session = Box::new(TlsSession::client(connection, Some(shown)));
    poll_fn(|context| session.poll_handshake(&tcp, context)).await?;
    Ok(Stream::secured(tcp, session))
}
