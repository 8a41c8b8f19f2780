//! Frames (RFC 9114 §7): a type and a length, each of variable length, and the payload.

use super::varint;

/// The types of §7.2, and of RFC 9218 §7.2.
pub mod kind {
    pub const DATA: u64 = 0x0;
    pub const HEADERS: u64 = 0x1;
    pub const CANCEL_PUSH: u64 = 0x3;
    pub const SETTINGS: u64 = 0x4;
    pub const PUSH_PROMISE: u64 = 0x5;
    pub const GOAWAY: u64 = 0x7;
    pub const MAX_PUSH_ID: u64 = 0xd;
    /// Of a request.
    pub const PRIORITY_UPDATE: u64 = 0xf0700;
    /// Of a push.
    pub const PRIORITY_UPDATE_PUSH: u64 = 0xf0701;
}

/// The type and length of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct H3FrameHead {
    pub kind: u64,
    pub length: u64,
}

impl H3FrameHead {
    /// Whether the type is one of HTTP/2 that HTTP/3 must not have (§7.2.8): PRIORITY, PING, WINDOW_UPDATE, CONTINUATION.
    pub fn is_of_http2(self) -> bool {
        matches!(self.kind, 0x2 | 0x6 | 0x8 | 0x9)
    }
}

/// Reads the head of a frame, however it is cut.
#[derive(Clone, Debug, Default)]
pub struct FrameHeadReader {
    bytes: [u8; 2 * varint::MAX_BYTES],
    count: u8,
}

impl FrameHeadReader {
    /// Takes bytes from the front of `rest` until the head is complete.
    pub fn take(&mut self, rest: &mut &[u8]) -> Option<H3FrameHead> {
        while let Some((&byte, others)) = rest.split_first() {
            *rest = others;
            self.bytes[usize::from(self.count)] = byte;
            self.count += 1;
            let mut head = &self.bytes[..usize::from(self.count)];
            if let (Some(kind), Some(length)) = (varint::take(&mut head), varint::take(&mut head)) {
                self.count = 0;
                return Some(H3FrameHead { kind, length });
            }
        }
        None
    }

    /// Whether a part of a head has been taken.
    pub fn is_within(&self) -> bool {
        self.count > 0
    }
}

/// Appends the head of a frame with `length` bytes of payload.
pub fn write_head(out: &mut Vec<u8>, kind: u64, length: usize) {
    varint::write(out, kind);
    varint::write(out, length as u64);
}

/// Appends a GOAWAY: requests on the stream `id` and later ones are not processed (§5.2).
pub fn write_goaway(out: &mut Vec<u8>, id: u64) {
    let mut payload = Vec::new();
    varint::write(&mut payload, id);
    write_head(out, kind::GOAWAY, payload.len());
    out.extend_from_slice(&payload);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_however_it_is_cut() {
        let mut written = Vec::new();
        write_head(&mut written, kind::PRIORITY_UPDATE, 70_000);
        write_head(&mut written, kind::DATA, 0);
        let heads =
            [H3FrameHead { kind: kind::PRIORITY_UPDATE, length: 70_000 }, H3FrameHead { kind: kind::DATA, length: 0 }];
        for piece in 1..=written.len() {
            let (mut reader, mut seen) = (FrameHeadReader::default(), Vec::new());
            for mut bytes in written.chunks(piece) {
                while let Some(head) = reader.take(&mut bytes) {
                    seen.push(head);
                }
            }
            assert_eq!((seen.as_slice(), reader.is_within()), (&heads[..], false), "in pieces of {piece}");
        }
    }

    #[test]
    fn a_goaway_has_the_stream_as_payload() {
        let mut out = Vec::new();
        write_goaway(&mut out, 64);
        assert_eq!(out, [7, 2, 0x40, 64]);
    }
}
