//! A client of HTTP/3 by other people's libraries: `quinn` for QUIC and `h3` for the frames and QPACK above it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use http::{HeaderMap, Request, Response};
use quinn::crypto::rustls::QuicClientConfig;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use weir_testkit::Authority;

/// The name in the certificate of the gateway.
pub(crate) const NAME: &str = "a.test";

pub(crate) type Sender = h3::client::SendRequest<h3_quinn::OpenStreams, Bytes>;
pub(crate) type Stream = h3::client::RequestStream<h3_quinn::BidiStream<Bytes>, Bytes>;

/// The time for all steps of a client together: some make hundreds of handshakes, or wait for several processes to start.
const ALL_STEPS: Duration = weir_testkit::DEADLINE.saturating_mul(10);

/// Runs a client.
pub(crate) fn run<T>(client: impl Future<Output = T>) -> T {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async { tokio::time::timeout(ALL_STEPS, client).await.expect("it ends in time") })
}

/// The configuration of a client that trusts the authority.
pub(crate) fn client_config(authority: &Authority) -> quinn::ClientConfig {
    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_slice(authority.certificate.as_bytes()).expect("a certificate");
    roots.add(certificate).expect("an authority");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder =
        rustls::ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS13]);
    let mut tls = builder.expect("TLS 1.3").with_root_certificates(roots).with_no_client_auth();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).expect("it is fit for QUIC")))
}

/// An endpoint that trusts the authority.
pub(crate) fn endpoint(authority: &Authority) -> quinn::Endpoint {
    let mut endpoint = quinn::Endpoint::client(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
    endpoint.set_default_client_config(client_config(authority));
    endpoint
}

/// A connection of QUIC without HTTP.
pub(crate) async fn connect(authority: &Authority, to: SocketAddr) -> quinn::Connection {
    let connecting = endpoint(authority).connect(to, NAME).expect("it is begun");
    connecting.await.expect("it is established")
}

/// A connection of HTTP/3, with that of QUIC below it.
pub(crate) async fn client(authority: &Authority, to: SocketAddr) -> (Sender, quinn::Connection) {
    let quic = connect(authority, to).await;
    let (mut driver, sender) = h3::client::new(h3_quinn::Connection::new(quic.clone())).await.expect("it begins");
    tokio::spawn(async move { std::future::poll_fn(|context| driver.poll_close(context)).await });
    (sender, quic)
}

pub(crate) fn request(method: &str, path: &str) -> Request<()> {
    Request::builder().method(method).uri(format!("https://{NAME}{path}")).body(()).expect("a request")
}

/// The rest of a response: its content, and its trailers.
pub(crate) async fn rest(stream: &mut Stream) -> (Vec<u8>, Option<HeaderMap>) {
    let mut content = Vec::new();
    while let Some(mut piece) = stream.recv_data().await.expect("content") {
        content.extend_from_slice(&piece.copy_to_bytes(piece.remaining()));
    }
    (content, stream.recv_trailers().await.expect("trailers or none"))
}

/// Sends a request without content, and receives the whole response.
pub(crate) async fn ask(sender: &mut Sender, request: Request<()>) -> (Response<()>, Vec<u8>) {
    let mut stream = sender.send_request(request).await.expect("it is sent");
    stream.finish().await.expect("it ends");
    let response = stream.recv_response().await.expect("a response");
    let (content, _) = rest(&mut stream).await;
    (response, content)
}
