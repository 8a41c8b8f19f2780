//! Clients by other people's libraries: `quinn` for QUIC and `h3` for the frames and QPACK above it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::{Buf, Bytes};
use h3::client::SendRequest;
use h3::error::{Code, StreamError};
use http::Request;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, EndpointConfig, IdleTimeout, TokioRuntime, TransportConfig, VarInt};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use weir_testkit::Authority;

use super::network::{ClientLink, GATEWAY};
use super::{NAME, PATIENCE, Sum, pattern};

type Sender = SendRequest<h3_quinn::OpenStreams, Bytes>;

/// What a client does with a request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PlannedRequest {
    pub upload: usize,
    pub download: usize,
    /// The response comes before the content has been read.
    pub is_early: bool,
    /// The client gives the request up after so many bytes of the response.
    pub cancelled_after: Option<usize>,
    /// How long after the connection was established it begins.
    pub begins_after: Duration,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestOutcome {
    /// It was answered, and all of it was right.
    Whole,
    Cancelled,
    /// The gateway leaves, and has not begun it: the client may send it again elsewhere (RFC 9114 §5.2).
    Rejected,
}

static TLS: LazyLock<Arc<QuicClientConfig>> = LazyLock::new(|| {
    let mut roots = RootCertStore::empty();
    let authority = Authority::of_tests().certificate.as_bytes();
    roots.add(CertificateDer::from_pem_slice(authority).expect("a certificate")).expect("an authority");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder =
        rustls::ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS13]);
    let mut tls = builder.expect("TLS 1.3").with_root_certificates(roots).with_no_client_auth();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    Arc::new(QuicClientConfig::try_from(tls).expect("it is fit for QUIC"))
});

/// A client with one connection.
pub(super) struct SimulatedClient {
    endpoint: quinn::Endpoint,
    quic: quinn::Connection,
    sender: Sender,
    /// The gateway has been told to leave: only then it may reject requests.
    drains: Arc<AtomicBool>,
}

/// Why a request has failed.
enum RequestFailure {
    /// Before the response has begun.
    Early(StreamError),
    Late(StreamError),
}

impl SimulatedClient {
    /// `None` if the gateway does not take the connection, because it drains.
    pub(super) async fn connect(link: Arc<ClientLink>, seed: u64, drains: Arc<AtomicBool>) -> Option<SimulatedClient> {
        let client = SimulatedClient::try_connect(link, seed, Arc::clone(&drains)).await;
        assert!(
            client.is_some() || drains.load(Ordering::Relaxed),
            "a connection is refused, and the gateway does not leave"
        );
        client
    }

    async fn try_connect(link: Arc<ClientLink>, seed: u64, drains: Arc<AtomicBool>) -> Option<SimulatedClient> {
        let mut config = EndpointConfig::default();
        let mut rng_seed = [0; 32];
        rng_seed[..8].copy_from_slice(&seed.to_be_bytes());
        rng_seed[8] = link.index() as u8;
        config.rng_seed(Some(rng_seed));
        let endpoint = quinn::Endpoint::new_with_abstract_socket(config, None, link, Arc::new(TokioRuntime));
        let endpoint = endpoint.expect("it has an address");
        let mut transport = TransportConfig::default();
        transport.max_idle_timeout(IdleTimeout::try_from(PATIENCE).ok());
        // If the only packet from a new address is lost, the gateway does not know the address, and a client that just waits gets nothing.
        transport.keep_alive_interval(Some(PATIENCE / 8));
        let mut config = ClientConfig::new(Arc::clone(&TLS) as _);
        config.transport_config(Arc::new(transport));
        let connecting = endpoint.connect_with(config, GATEWAY, NAME).expect("it is begun");
        let quic = connecting.await.ok()?;
        let (mut driver, sender) = h3::client::new(h3_quinn::Connection::new(quic.clone())).await.ok()?;
        tokio::spawn(async move { std::future::poll_fn(|context| driver.poll_close(context)).await });
        Some(SimulatedClient { endpoint, quic, sender, drains })
    }

    /// Sends a request, and receives its response.
    pub(super) fn begin(&self, planned: PlannedRequest) -> tokio::task::JoinHandle<RequestOutcome> {
        let mut sender = self.sender.clone();
        let (quic, drains) = (self.quic.clone(), Arc::clone(&self.drains));
        tokio::spawn(async move {
            tokio::time::sleep(planned.begins_after).await;
            let drains = || drains.load(Ordering::Relaxed);
            match planned.run(&mut sender).await {
                Ok(outcome) => outcome,
                Err(RequestFailure::Early(error)) if is_rejection(&error) && drains() => RequestOutcome::Rejected,
                Err(RequestFailure::Early(error)) => panic!("{planned:?}: {error}; {:?}", quic.close_reason()),
                Err(RequestFailure::Late(error)) => {
                    panic!("{planned:?}: in the response: {error}; {:?}", quic.close_reason())
                }
            }
        })
    }

    /// Closes the connection, which the gateway has to learn.
    pub(super) async fn close(self) {
        self.quic.close(VarInt::from_u32(0x100), b"");
        self.endpoint.wait_idle().await;
    }
}

fn is_rejection(error: &StreamError) -> bool {
    match error {
        StreamError::RemoteClosing { .. } => true,
        StreamError::RemoteTerminate { code, .. } => *code == Code::H3_REQUEST_REJECTED,
        error => error.is_h3_no_error(),
    }
}

impl PlannedRequest {
    async fn run(self, sender: &mut Sender) -> Result<RequestOutcome, RequestFailure> {
        let early = if self.is_early { "early/" } else { "" };
        let method = if self.upload > 0 { "POST" } else { "GET" };
        let uri = format!("https://{NAME}/{early}{}", self.download);
        let request = Request::builder().method(method).uri(uri).body(()).expect("a request");
        let (mut sending, mut receiving) = sender.send_request(request).await.map_err(RequestFailure::Early)?.split();
        let upload = async {
            for from in (0..self.upload).step_by(PIECE) {
                // The gateway may not need the rest (RFC 9114 §4.1).
                if sending.send_data(pattern(from, PIECE.min(self.upload - from)).into()).await.is_err() {
                    return self.is_early;
                }
            }
            sending.finish().await.is_ok() || self.is_early
        };
        let download = async move {
            let response = receiving.recv_response().await.map_err(RequestFailure::Early)?;
            assert_eq!(response.status(), 200, "{self:?}");
            let received = response.headers().get("x-received").map(|value| value.as_bytes().to_vec());
            let mut sum = Sum::default();
            while let Some(mut piece) = receiving.recv_data().await.map_err(RequestFailure::Late)? {
                sum.add(&piece.copy_to_bytes(piece.remaining()));
                if self.cancelled_after.is_some_and(|most| sum.length >= most) {
                    // Dropped, the stream says that it takes no more.
                    return Ok(None);
                }
            }
            let trailers = receiving.recv_trailers().await.map_err(RequestFailure::Late)?;
            let trailers = trailers.expect("the response has trailers");
            assert_eq!(trailers["x-sent"], self.download.to_string(), "{self:?}");
            Ok(Some((received, sum)))
        };
        let (is_sent, received) = tokio::join!(upload, download);
        let Some((received, sum)) = received? else { return Ok(RequestOutcome::Cancelled) };
        assert!(is_sent, "{self:?}: the gateway does not take the content");
        assert_eq!(sum, Sum::of_pattern(self.download), "{self:?}");
        let uploaded = if self.is_early { Sum::default() } else { Sum::of_pattern(self.upload) };
        assert_eq!(received, Some(uploaded.to_string().into_bytes()), "{self:?}");
        Ok(RequestOutcome::Whole)
    }
}

const PIECE: usize = 3000;
