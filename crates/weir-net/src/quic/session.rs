//! TLS within QUIC (RFC 9001): the session of one client, whose configuration is chosen once its ClientHello has come.

use std::any::Any;
use std::io::Cursor;
use std::sync::{Arc, LazyLock};

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use quinn_proto::crypto::{self, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, UnsupportedVersion};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectionId, Side, TransportError, TransportErrorCode};
use rustls::HandshakeKind;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::quic::{KeyChange, Secrets, ServerConnection, Suite, Version};

use super::hello::{ChooseServer, HelloReader, ReadHello};
use crate::tls::{Scope, Server, cipher_name, curve_name};

/// Alerts of RFC 8446 §6.
const UNRECOGNIZED_NAME: u8 = 112;
const HANDSHAKE_FAILURE: u8 = 40;
const DECODE_ERROR: u8 = 50;
const PROTOCOL_VERSION: u8 = 70;
const NO_APPLICATION_PROTOCOL: u8 = 120;

/// The version of QUIC (RFC 9000 §15).
const QUIC_V1: u32 = 1;

/// The cipher suite of Initial packets (RFC 9001 §5.2).
static INITIAL: LazyLock<Suite> = LazyLock::new(|| {
    let suite = rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
    suite.tls13().and_then(|suite| suite.quic_suite()).expect("the provider has it for QUIC")
});

/// What a handshake came to.
#[derive(Clone, Debug)]
pub struct QuicHandshake {
    /// In lower case; `None` without SNI.
    pub server_name: Option<Box<str>>,
    /// The name in nginx and OpenSSL.
    pub cipher: &'static str,
    /// The same of the group of the key exchange.
    pub curve: &'static str,
    pub resumed: bool,
    /// The client's own certificate, if it has shown one that counts.
    pub certificate: Option<CertificateDer<'static>>,
    /// The requirements of client certificates that it was held against.
    pub scope: Scope,
}

/// The TLS of an endpoint, for one client.
pub(super) struct QuicTls(pub Arc<dyn ChooseServer>);

impl crypto::ServerConfig for QuicTls {
    fn initial_keys(&self, version: u32, id: &ConnectionId) -> Result<Keys, UnsupportedVersion> {
        if version == QUIC_V1 { Ok(initial_keys(id, Side::Server)) } else { Err(UnsupportedVersion) }
    }

    fn retry_tag(&self, _: u32, original: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        // RFC 9001 §5.8.
        const KEY: [u8; 16] =
            [0xbe, 0x0c, 0x69, 0x0b, 0x9f, 0x66, 0x57, 0x5a, 0x1d, 0x76, 0x6b, 0x54, 0xe3, 0x68, 0xc8, 0x4e];
        const NONCE: [u8; 12] = [0x46, 0x15, 0x99, 0xd3, 0x5d, 0x63, 0x2b, 0xf2, 0x23, 0x98, 0x25, 0xbb];
        let pseudo_packet = [&[original.len() as u8], &original[..], packet].concat();
        let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &KEY).expect("a key of its length"));
        let (nonce, aad) = (Nonce::assume_unique_for_key(NONCE), Aad::from(pseudo_packet));
        let tag = key.seal_in_place_separate_tag(nonce, aad, &mut []).expect("there is nothing to encrypt");
        tag.as_ref().try_into().expect("a tag has 16 bytes")
    }

    fn start_session(self: Arc<Self>, _: u32, parameters: &TransportParameters) -> Box<dyn crypto::Session> {
        let mut bytes = Vec::new();
        parameters.write(&mut bytes);
        Box::new(QuicSession {
            choose: Arc::clone(&self.0),
            parameters: bytes,
            state: SessionState::Hello(HelloReader::default()),
            next: None,
        })
    }
}

fn initial_keys(id: &ConnectionId, side: Side) -> Keys {
    packet_keys(INITIAL.keys(id, side.into(), Version::V1))
}

fn packet_keys(keys: rustls::quic::Keys) -> Keys {
    Keys {
        header: KeyPair { local: Box::new(keys.local.header), remote: Box::new(keys.remote.header) },
        packet: KeyPair { local: Box::new(keys.local.packet), remote: Box::new(keys.remote.packet) },
    }
}

struct QuicSession {
    choose: Arc<dyn ChooseServer>,
    /// The transport parameters of this end, as they are sent.
    parameters: Vec<u8>,
    state: SessionState,
    /// The secrets for the next update of the keys.
    next: Option<Secrets>,
}

enum SessionState {
    Hello(HelloReader),
    Begun { server: Server, name: Option<Box<str>>, connection: Box<ServerConnection> },
}

impl QuicSession {
    fn connection(&self) -> Option<&ServerConnection> {
        match &self.state {
            SessionState::Hello(_) => None,
            SessionState::Begun { connection, .. } => Some(connection),
        }
    }

    fn begin(&mut self, name: Option<Box<str>>) -> Result<(), TransportError> {
        let Some(server) = self.choose.choose(name.as_deref()) else {
            return Err(alert(UNRECOGNIZED_NAME, "there is no certificate for the requested name"));
        };
        let parameters = std::mem::take(&mut self.parameters);
        let connection = ServerConnection::new(server.quic_config(), Version::V1, parameters)
            .map_err(|error| alert(PROTOCOL_VERSION, &error.to_string()))?;
        let begun = SessionState::Begun { server, name, connection: Box::new(connection) };
        let SessionState::Hello(hello) = std::mem::replace(&mut self.state, begun) else { return Ok(()) };
        self.read(&hello.into_bytes())
    }

    fn read(&mut self, bytes: &[u8]) -> Result<(), TransportError> {
        let SessionState::Begun { connection, .. } = &mut self.state else { return Ok(()) };
        connection.read_hs(bytes).map_err(|error| {
            let description = connection.alert().map_or(HANDSHAKE_FAILURE, u8::from);
            alert(description, &error.to_string())
        })?;
        // RFC 9001 §8.1: both ends agree on an application protocol.
        match connection.is_handshaking() || connection.alpn_protocol().is_some() {
            true => Ok(()),
            false => Err(alert(NO_APPLICATION_PROTOCOL, "the client offers no application protocol")),
        }
    }
}

fn alert(description: u8, reason: &str) -> TransportError {
    TransportError { reason: reason.to_owned(), ..TransportErrorCode::crypto(description).into() }
}

impl crypto::Session for QuicSession {
    fn initial_keys(&self, id: &ConnectionId, side: Side) -> Keys {
        initial_keys(id, side)
    }

    /// A [`QuicHandshake`].
    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        let SessionState::Begun { server, name, connection } = &self.state else { return None };
        let shown = connection.peer_certificates().unwrap_or_default();
        let counts = server.judge.as_ref().is_none_or(|judge| judge.is_valid(shown, UnixTime::now()));
        Some(Box::new(QuicHandshake {
            server_name: name.clone(),
            cipher: cipher_name(connection.negotiated_cipher_suite()),
            curve: curve_name(connection.negotiated_key_exchange_group()),
            resumed: connection.handshake_kind() == Some(HandshakeKind::Resumed),
            certificate: shown.first().filter(|_| counts).map(|certificate| certificate.clone().into_owned()),
            scope: server.scope(),
        }))
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        None // it is a part of the handshake's data
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        None // no early data is accepted
    }

    fn early_data_accepted(&self) -> Option<bool> {
        None
    }

    fn is_handshaking(&self) -> bool {
        self.connection().is_none_or(|connection| connection.is_handshaking())
    }

    fn read_handshake(&mut self, bytes: &[u8]) -> Result<bool, TransportError> {
        let SessionState::Hello(hello) = &mut self.state else { return self.read(bytes).map(|()| false) };
        match hello.read(bytes) {
            ReadHello::Incomplete => Ok(false),
            ReadHello::Invalid => Err(alert(DECODE_ERROR, "the ClientHello cannot be read")),
            ReadHello::Complete(name) => self.begin(name).map(|()| true),
        }
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        let sent = self.connection().and_then(|connection| connection.quic_transport_parameters());
        let read = |sent| TransportParameters::read(Side::Server, &mut Cursor::new(sent)).map_err(Into::into);
        sent.map(read).transpose()
    }

    fn write_handshake(&mut self, out: &mut Vec<u8>) -> Option<Keys> {
        let SessionState::Begun { connection, .. } = &mut self.state else { return None };
        let keys = match connection.write_hs(out)? {
            KeyChange::Handshake { keys } => keys,
            KeyChange::OneRtt { keys, next } => {
                self.next = Some(next);
                keys
            }
        };
        Some(packet_keys(keys))
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        let keys = self.next.as_mut()?.next_packet_keys();
        Some(KeyPair { local: Box::new(keys.local), remote: Box::new(keys.remote) })
    }

    fn is_valid_retry(&self, _: &ConnectionId, _: &[u8], _: &[u8]) -> bool {
        false // only clients receive one
    }

    fn export_keying_material(&self, _: &mut [u8], _: &[u8], _: &[u8]) -> Result<(), ExportKeyingMaterialError> {
        Err(ExportKeyingMaterialError) // nothing here asks for it
    }
}
