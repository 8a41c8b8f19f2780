//! The settings of an endpoint and of its connections.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::{hkdf, hmac};
use quinn_proto::{EndpointConfig, IdleTimeout, QlogConfig, ServerConfig, TransportConfig, VarInt};

use super::connection_ids::WorkerIdGenerator;
use super::cubic::Rfc9438;
use super::hello::ChooseServer;
use super::session::QuicTls;

/// What a client may make this end keep, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuicLimits {
    /// Streams of requests that are open at the same time, up to 100. More are permitted once a connection has many.
    pub streams: u32,
    /// The most bytes of one stream, and of a connection, that are received and not yet taken.
    pub stream_window: u32,
    pub connection_window: u32,
    /// The most bytes of a connection that are sent and not yet acknowledged, or wait to be sent.
    pub send_window: u32,
    /// How long a client may be silent.
    pub idle_timeout: Duration,
}

impl QuicLimits {
    /// A connection that can do nothing.
    pub(super) const NONE: QuicLimits = QuicLimits {
        streams: 0,
        stream_window: 0,
        connection_window: 0,
        send_window: 0,
        idle_timeout: Duration::from_secs(1),
    };
}

/// The most requests at once that a client may make by the handshake (RFC 9114 §6.1: at least 100 should be). QUIC keeps a place in a table for
/// each stream that a client may open, whether it does or not, and the tables double with the 113th.
const FIRST_STREAMS: u32 = 100;
/// The most streams of a client that carry no request: control, the two of QPACK, and some without a meaning (RFC 9114 §6.2).
const UNIDIRECTIONAL_STREAMS: u32 = 8;

/// The bytes that are sent before anything is acknowledged: 32 of the smallest packets, as servers of Chromium's QUIC and of quic-go do.
/// RFC 9002 §7.2 recommends 10. They are paced over the round trip, so the network never sees them as one burst.
const INITIAL_WINDOW: u64 = 32 * 1200;

const TOKEN_KEY_BYTES: usize = 32;

/// The least time between two resets of an endpoint. Each is shorter than what has caused it.
const RESET_INTERVAL: Duration = Duration::from_millis(1);

/// Keys that all workers use. They last as long as the process and those that take its service over, unless that of resets is kept: only
/// then do clients of a process that was not replaced learn at their next packet that it has ended, and not by their own time-out.
#[derive(Clone)]
pub struct QuicSecrets {
    reset: Arc<hmac::Key>,
    token: Arc<hkdf::Prk>,
    /// The keys as another process takes them over: that of tokens, and that of resets.
    handed_over: Arc<[u8]>,
}

impl QuicSecrets {
    /// New random keys.
    pub fn new() -> QuicSecrets {
        let mut secret = [0; 64];
        aws_lc_rs::rand::fill(&mut secret).expect("the system has random numbers");
        QuicSecrets::take_over(&secret).expect("it is longer than one key")
    }

    /// The keys of an earlier process, from its [`QuicSecrets::hand_over`]; `None` if they are not whole.
    pub fn take_over(handed_over: &[u8]) -> Option<QuicSecrets> {
        let (token, reset) = handed_over.split_at_checked(TOKEN_KEY_BYTES).filter(|(_, reset)| !reset.is_empty())?;
        let token = Arc::new(hkdf::Salt::new(hkdf::HKDF_SHA256, &[]).extract(token));
        Some(QuicSecrets { reset: reset_key(reset), token, handed_over: handed_over.into() })
    }

    /// The keys in the form in which another process takes them over. They are secret.
    pub fn hand_over(&self) -> Arc<[u8]> {
        Arc::clone(&self.handed_over)
    }

    /// For the endpoints of an address. They do not know the connections of other addresses, and must not reset these (RFC 9000 §21.11).
    pub fn of_address(&self, bound: SocketAddr) -> QuicSecrets {
        let key = hmac::sign(&self.reset, bound.to_string().as_bytes());
        QuicSecrets { reset: reset_key(key.as_ref()), ..self.clone() }
    }

    /// With the key of an earlier process for resets (RFC 9000 §10.3).
    pub fn with_reset_key(&self, key: &[u8]) -> QuicSecrets {
        let handed_over = [&self.handed_over[..TOKEN_KEY_BYTES], key].concat().into();
        QuicSecrets { reset: reset_key(key), token: Arc::clone(&self.token), handed_over }
    }
}

fn reset_key(bytes: &[u8]) -> Arc<hmac::Key> {
    Arc::new(hmac::Key::new(hmac::HMAC_SHA256, bytes))
}

impl Default for QuicSecrets {
    fn default() -> QuicSecrets {
        QuicSecrets::new()
    }
}

/// The configuration of a worker's endpoint.
pub(super) fn endpoint(secrets: &QuicSecrets, ids: WorkerIdGenerator) -> EndpointConfig {
    let mut config = EndpointConfig::new(Arc::clone(&secrets.reset) as _);
    config.cid_generator(move || Box::new(ids.clone())).min_reset_interval(RESET_INTERVAL);
    config
}

/// How a connection is accepted.
pub struct QuicTerms {
    pub limits: QuicLimits,
    pub choose: Arc<dyn ChooseServer>,
    /// Takes what happens on the connection (qlog, a sequence of JSON texts).
    pub trace: Option<Box<dyn Write + Send + Sync>>,
}

/// The configuration of a connection.
pub(super) fn server(
    secrets: &QuicSecrets,
    choose: Arc<dyn ChooseServer>,
    transport: Arc<TransportConfig>,
) -> ServerConfig {
    let mut config = ServerConfig::new(Arc::new(QuicTls(choose)), Arc::clone(&secrets.token) as _);
    config.transport_config(transport);
    config
}

/// What belongs to a connection that is traced.
pub(super) fn traced_transport(limits: QuicLimits, trace: Box<dyn Write + Send + Sync>) -> TransportConfig {
    let (mut transport, mut qlog) = (transport(limits), QlogConfig::default());
    qlog.writer(trace);
    transport.qlog_stream(qlog.into_stream());
    transport
}

pub(super) fn transport(limits: QuicLimits) -> TransportConfig {
    let mut transport = TransportConfig::default();
    transport
        .congestion_controller_factory(Arc::new(Rfc9438 { initial_window: INITIAL_WINDOW }))
        .max_concurrent_bidi_streams(VarInt::from_u32(limits.streams.min(FIRST_STREAMS)))
        .max_concurrent_uni_streams(VarInt::from_u32(UNIDIRECTIONAL_STREAMS))
        .stream_receive_window(VarInt::from_u32(limits.stream_window))
        .receive_window(VarInt::from_u32(limits.connection_window))
        .send_window(u64::from(limits.send_window))
        // A time-out that does not fit into the protocol's number is none.
        .max_idle_timeout(IdleTimeout::try_from(limits.idle_timeout).ok())
        // Datagrams (RFC 9221) have no use here, and observers need not learn the round-trip time.
        .datagram_receive_buffer_size(None)
        .allow_spin(false);
    transport
}

#[cfg(test)]
mod tests {
    use super::*;
    use quinn_proto::crypto::HandshakeTokenKey;

    #[test]
    fn a_process_that_takes_the_keys_over_knows_tokens_and_resets_of_the_earlier_one() {
        let addr = "192.0.2.1:443".parse().expect("an address");
        let sign = |secrets: &QuicSecrets| hmac::sign(&secrets.of_address(addr).reset, b"an id").as_ref().to_vec();
        for former in [QuicSecrets::new(), QuicSecrets::new().with_reset_key(b"of a file")] {
            let taken = QuicSecrets::take_over(&former.hand_over()).expect("they are whole");
            assert_eq!(sign(&former), sign(&taken));
            let mut token = b"a token".to_vec();
            former.token.aead_from_hkdf(&[1]).seal(&mut token, &[]).expect("it is sealed");
            let opened = taken.token.aead_from_hkdf(&[1]).open(&mut token, &[]).map(|opened| opened.to_vec());
            assert_eq!(opened.ok(), Some(b"a token".to_vec()));
        }
        assert_ne!(sign(&QuicSecrets::new()), sign(&QuicSecrets::new()));
        assert!(QuicSecrets::take_over(&[0; TOKEN_KEY_BYTES]).is_none(), "there is no key of resets");
    }
}
