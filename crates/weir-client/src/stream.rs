//! Connections for protocols other than HTTP, opened in the same way.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::client::TlsStream;

use crate::guarded::SharingStream;
use crate::settings::ServerVerification;
use crate::url::UrlOrigin;

/// The destination of a byte stream.
#[derive(Clone, Debug)]
pub struct StreamTarget {
    pub(crate) origin: Arc<UrlOrigin>,
    pub(crate) tls: Option<StreamTls>,
}

/// TLS settings of a stream. No ALPN protocol is negotiated.
#[derive(Clone, Debug)]
pub struct StreamTls {
    pub verification: ServerVerification,
    /// The name the certificate must contain, if it is not the host.
    pub name: Option<Box<str>>,
}

impl StreamTarget {
    /// `host` is a name, or an IP address without brackets.
    pub fn new(host: &str, port: u16, tls: Option<StreamTls>) -> StreamTarget {
        let origin = UrlOrigin { is_https: tls.is_some(), host: host.to_ascii_lowercase().into(), port };
        StreamTarget { origin: Arc::new(origin), tls }
    }

    /// Host and port.
    pub fn name(&self) -> String {
        let UrlOrigin { host, port, .. } = &*self.origin;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

/// An open connection.
pub enum ServiceStream {
    Plain(SharingStream),
    Tls(Box<TlsStream<SharingStream>>),
}

impl AsyncRead for ServiceStream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            ServiceStream::Plain(stream) => Pin::new(stream).poll_read(context, into),
            ServiceStream::Tls(stream) => Pin::new(stream).poll_read(context, into),
        }
    }
}

impl AsyncWrite for ServiceStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        match self.get_mut() {
            ServiceStream::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            ServiceStream::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            ServiceStream::Plain(stream) => Pin::new(stream).poll_flush(context),
            ServiceStream::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            ServiceStream::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            ServiceStream::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
