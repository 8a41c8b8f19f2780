//! The ClientHello of a client, by which its server is chosen.

use rustls::server::Acceptor;

use crate::tls::Server;

/// Chooses the configuration for the name that a client asks for.
pub trait ChooseServer: Send + Sync {
    /// `name` is in lower case; `None` without SNI. `None` refuses the handshake.
    fn choose(&self, name: Option<&str>) -> Option<Server>;
}

/// The largest ClientHello accepted, in bytes. Today's, with post-quantum key shares, take two kilobytes.
const MOST_HELLO: usize = 64 * 1024;
/// The most bytes of a TLS record (RFC 8446 §5.1).
const MOST_RECORD: usize = 16 * 1024;

/// Collects a ClientHello, and reads the requested name.
#[derive(Debug, Default)]
pub(super) struct HelloReader {
    bytes: Vec<u8>,
}

/// What the bytes so far are.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReadHello {
    Incomplete,
    /// The name in lower case.
    Complete(Option<Box<str>>),
    Invalid,
}

impl HelloReader {
    /// Takes some more bytes of the handshake.
    pub(super) fn read(&mut self, bytes: &[u8]) -> ReadHello {
        self.bytes.extend_from_slice(bytes);
        let Some([kind, length @ ..]) = self.bytes.first_chunk::<4>() else { return ReadHello::Incomplete };
        let length = length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        if *kind != 1 || length > MOST_HELLO {
            return ReadHello::Invalid;
        }
        let Some(hello) = self.bytes.get(..4 + length) else { return ReadHello::Incomplete };
        requested_name(hello).map_or(ReadHello::Invalid, ReadHello::Complete)
    }

    /// All bytes so far.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// The requested name. rustls reads it from a connection of TCP, so the message is put into records.
fn requested_name(hello: &[u8]) -> Option<Option<Box<str>>> {
    let mut acceptor = Acceptor::default();
    for part in hello.chunks(MOST_RECORD) {
        let record = [&[22, 3, 1][..], &(part.len() as u16).to_be_bytes(), part].concat();
        let mut rest = &record[..];
        while !rest.is_empty() {
            acceptor.read_tls(&mut rest).ok()?;
        }
        if let Some(accepted) = acceptor.accept().ok()? {
            return Some(accepted.client_hello().server_name().map(|name| name.to_ascii_lowercase().into()));
        }
    }
    None
}
