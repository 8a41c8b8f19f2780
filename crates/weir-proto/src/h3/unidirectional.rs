//! Streams that only the client sends on (RFC 9114 §6.2): each begins with its type.

use super::control::{ControlEvent, ControlReader};
use super::error::H3ErrorCode;
use super::qpack::{DecoderStream, EncoderStream};
use super::varint;

/// The types of §6.2 and of RFC 9204 §4.2.
pub mod kind {
    pub const CONTROL: u64 = 0x0;
    pub const PUSH: u64 = 0x1;
    pub const QPACK_ENCODER: u64 = 0x2;
    pub const QPACK_DECODER: u64 = 0x3;
}

/// The streams that a connection has once at most in each direction, and that must not end.
#[derive(Clone, Copy, Debug, Default)]
pub struct PeerStreams {
    control: bool,
    encoder: bool,
    decoder: bool,
}

impl PeerStreams {
    fn begin(&mut self, kind: u64) -> Result<(), H3ErrorCode> {
        let begun = match kind {
            kind::CONTROL => &mut self.control,
            kind::QPACK_ENCODER => &mut self.encoder,
            kind::QPACK_DECODER => &mut self.decoder,
            // §6.2.2: only servers push.
            kind::PUSH => return Err(H3ErrorCode::H3_STREAM_CREATION_ERROR),
            _ => return Ok(()),
        };
        match std::mem::replace(begun, true) {
            false => Ok(()),
            true => Err(H3ErrorCode::H3_STREAM_CREATION_ERROR),
        }
    }
}

/// Reads a stream of the client.
#[derive(Debug)]
pub enum UnidirectionalReader {
    /// The type is not complete.
    Begins {
        bytes: [u8; varint::MAX_BYTES],
        count: u8,
    },
    Control(Box<ControlReader>),
    Encoder(EncoderStream),
    Decoder(DecoderStream),
    /// Of a type without a meaning here: it may be stopped, and must not be an error (§6.2.3).
    Unknown,
}

impl Default for UnidirectionalReader {
    fn default() -> UnidirectionalReader {
        UnidirectionalReader::Begins { bytes: [0; varint::MAX_BYTES], count: 0 }
    }
}

impl UnidirectionalReader {
    /// Reads `rest` up to the next event of the control stream; `None` once all has been read. An error ends the connection.
    pub fn next(&mut self, rest: &mut &[u8], streams: &mut PeerStreams) -> Result<Option<ControlEvent>, H3ErrorCode> {
        if let UnidirectionalReader::Begins { bytes, count } = self {
            let Some(kind) = stream_type(bytes, count, rest) else { return Ok(None) };
            streams.begin(kind)?;
            *self = match kind {
                kind::CONTROL => UnidirectionalReader::Control(Box::default()),
                kind::QPACK_ENCODER => UnidirectionalReader::Encoder(EncoderStream),
                kind::QPACK_DECODER => UnidirectionalReader::Decoder(DecoderStream::default()),
                _ => UnidirectionalReader::Unknown,
            };
        }
        match self {
            UnidirectionalReader::Control(control) => return control.next(rest),
            UnidirectionalReader::Encoder(encoder) => encoder.read(std::mem::take(rest))?,
            UnidirectionalReader::Decoder(decoder) => decoder.read(std::mem::take(rest))?,
            UnidirectionalReader::Begins { .. } | UnidirectionalReader::Unknown => *rest = &[],
        }
        Ok(None)
    }

    /// The client has ended or reset the stream.
    pub fn end(&self) -> Result<(), H3ErrorCode> {
        match self {
            UnidirectionalReader::Begins { .. } | UnidirectionalReader::Unknown => Ok(()),
            _ => Err(H3ErrorCode::H3_CLOSED_CRITICAL_STREAM),
        }
    }

    pub fn is_unknown(&self) -> bool {
        matches!(self, UnidirectionalReader::Unknown)
    }
}

fn stream_type(bytes: &mut [u8; varint::MAX_BYTES], count: &mut u8, rest: &mut &[u8]) -> Option<u64> {
    while let Some((&byte, others)) = rest.split_first() {
        *rest = others;
        bytes[usize::from(*count)] = byte;
        *count += 1;
        if let Some(kind) = varint::take(&mut &bytes[..usize::from(*count)]) {
            return Some(kind);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::settings::H3Settings;
    use super::*;

    /// What a stream with these bytes comes to, in pieces of this size.
    fn read(bytes: &[u8], piece: usize, streams: &mut PeerStreams) -> Result<Vec<ControlEvent>, H3ErrorCode> {
        let (mut reader, mut events) = (UnidirectionalReader::default(), Vec::new());
        for mut rest in bytes.chunks(piece) {
            while let Some(event) = reader.next(&mut rest, streams)? {
                events.push(event);
            }
            assert!(rest.is_empty());
        }
        Ok(events)
    }

    #[test]
    fn a_control_stream_is_read_however_it_is_cut() {
        let mut bytes = vec![0];
        H3Settings::default().write(&mut bytes);
        bytes.extend([0x0d, 1, 5, 0x21, 3, 1, 2, 3, 7, 1, 0]);
        let settings = ControlEvent::Settings(H3Settings::default());
        let all = [settings, ControlEvent::MaxPushId, ControlEvent::Skipped, ControlEvent::Goaway];
        for piece in 1..bytes.len() {
            let events = read(&bytes, piece, &mut PeerStreams::default()).expect("it is valid");
            assert_eq!(events, all, "in pieces of {piece}");
        }
    }

    #[test]
    fn streams_that_must_be_alone_are() {
        for kind in [kind::CONTROL, kind::QPACK_ENCODER, kind::QPACK_DECODER] {
            let mut streams = PeerStreams::default();
            assert_eq!(read(&[kind as u8], 1, &mut streams), Ok(Vec::new()));
            assert_eq!(read(&[kind as u8], 1, &mut streams), Err(H3ErrorCode::H3_STREAM_CREATION_ERROR));
        }
    }

    #[test]
    fn a_client_must_not_push_and_may_open_streams_without_a_meaning() {
        let mut streams = PeerStreams::default();
        assert_eq!(read(&[1, 0], 2, &mut streams), Err(H3ErrorCode::H3_STREAM_CREATION_ERROR));
        for _ in 0..2 {
            assert_eq!(read(&[0x40, 0x21, 1, 2, 3], 2, &mut streams), Ok(Vec::new()));
        }
    }

    #[test]
    fn critical_streams_must_not_end() {
        for (bytes, expected) in [
            (&[0][..], Err(H3ErrorCode::H3_CLOSED_CRITICAL_STREAM)),
            (&[2], Err(H3ErrorCode::H3_CLOSED_CRITICAL_STREAM)),
            (&[3], Err(H3ErrorCode::H3_CLOSED_CRITICAL_STREAM)),
            (&[0x21], Ok(())),
            (&[0x40], Ok(())),
        ] {
            let mut reader = UnidirectionalReader::default();
            reader.next(&mut &bytes[..], &mut PeerStreams::default()).expect("it has begun");
            assert_eq!(reader.end(), expected, "{bytes:x?}");
        }
    }
}
