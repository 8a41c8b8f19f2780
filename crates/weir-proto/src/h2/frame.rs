//! Frames (RFC 9113 §4, §6): the frame header, and frames with a fixed payload.

/// Length of a frame header in bytes.
pub const HEAD: usize = 9;
/// The initial limit of a frame's payload (§6.5.2), in bytes. We never announce a larger one, and never send a larger frame.
pub const MOST: usize = 16_384;
/// Stream identifiers have 31 bits (§5.1.1), as have windows (§6.9.1).
pub const MAX_STREAM_ID: u32 = 0x7fff_ffff;

/// The types of §6, and of RFC 9218 §7.1.
pub mod kind {
    pub const DATA: u8 = 0x0;
    pub const HEADERS: u8 = 0x1;
    pub const PRIORITY: u8 = 0x2;
    pub const RST_STREAM: u8 = 0x3;
    pub const SETTINGS: u8 = 0x4;
    pub const PUSH_PROMISE: u8 = 0x5;
    pub const PING: u8 = 0x6;
    pub const GOAWAY: u8 = 0x7;
    pub const WINDOW_UPDATE: u8 = 0x8;
    pub const CONTINUATION: u8 = 0x9;
    pub const PRIORITY_UPDATE: u8 = 0x10;
}

pub const ACK: u8 = 0x1;
pub const END_STREAM: u8 = 0x1;
pub const END_HEADERS: u8 = 0x4;
pub const PADDED: u8 = 0x8;
pub const WITH_PRIORITY: u8 = 0x20;

/// Why a stream or a connection ends (§7). Unknown codes have no special meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorCode(pub u32);

impl ErrorCode {
    pub const NO_ERROR: ErrorCode = ErrorCode(0x0);
    pub const PROTOCOL_ERROR: ErrorCode = ErrorCode(0x1);
    pub const INTERNAL_ERROR: ErrorCode = ErrorCode(0x2);
    pub const FLOW_CONTROL_ERROR: ErrorCode = ErrorCode(0x3);
    pub const SETTINGS_TIMEOUT: ErrorCode = ErrorCode(0x4);
    pub const STREAM_CLOSED: ErrorCode = ErrorCode(0x5);
    pub const FRAME_SIZE_ERROR: ErrorCode = ErrorCode(0x6);
    pub const REFUSED_STREAM: ErrorCode = ErrorCode(0x7);
    pub const CANCEL: ErrorCode = ErrorCode(0x8);
    pub const COMPRESSION_ERROR: ErrorCode = ErrorCode(0x9);
    pub const CONNECT_ERROR: ErrorCode = ErrorCode(0xa);
    pub const ENHANCE_YOUR_CALM: ErrorCode = ErrorCode(0xb);
    pub const INADEQUATE_SECURITY: ErrorCode = ErrorCode(0xc);
    pub const HTTP_1_1_REQUIRED: ErrorCode = ErrorCode(0xd);

    /// The name in the RFC.
    pub fn name(self) -> &'static str {
        const NAMES: [&str; 14] = [
            "NO_ERROR",
            "PROTOCOL_ERROR",
            "INTERNAL_ERROR",
            "FLOW_CONTROL_ERROR",
            "SETTINGS_TIMEOUT",
            "STREAM_CLOSED",
            "FRAME_SIZE_ERROR",
            "REFUSED_STREAM",
            "CANCEL",
            "COMPRESSION_ERROR",
            "CONNECT_ERROR",
            "ENHANCE_YOUR_CALM",
            "INADEQUATE_SECURITY",
            "HTTP_1_1_REQUIRED",
        ];
        NAMES.get(self.0 as usize).copied().unwrap_or("unknown")
    }
}

/// A frame header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHead {
    pub length: u32,
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
}

impl FrameHead {
    pub fn parse(bytes: &[u8; HEAD]) -> FrameHead {
        let [a, b, c, kind, flags, stream @ ..] = *bytes;
        // §4.1: the reserved bit is ignored.
        let stream = u32::from_be_bytes(stream) & MAX_STREAM_ID;
        FrameHead { length: u32::from_be_bytes([0, a, b, c]), kind, flags, stream }
    }

    pub fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub fn bytes(self) -> [u8; HEAD] {
        let ([_, a, b, c], [s, t, u, v]) = (self.length.to_be_bytes(), self.stream.to_be_bytes());
        [a, b, c, self.kind, self.flags, s, t, u, v]
    }
}

/// Writes the header of a frame with `length` bytes of payload.
pub fn write_head(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, length: usize) {
    out.extend_from_slice(&FrameHead { length: length as u32, kind, flags, stream }.bytes());
}

fn write(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    write_head(out, kind, flags, stream, payload.len());
    out.extend_from_slice(payload);
}

pub fn write_reset(out: &mut Vec<u8>, stream: u32, code: ErrorCode) {
    write(out, kind::RST_STREAM, 0, stream, &code.0.to_be_bytes());
}

pub fn write_window_update(out: &mut Vec<u8>, stream: u32, increment: u32) {
    write(out, kind::WINDOW_UPDATE, 0, stream, &increment.to_be_bytes());
}

pub fn write_ping(out: &mut Vec<u8>, flags: u8, payload: [u8; 8]) {
    write(out, kind::PING, flags, 0, &payload);
}

pub fn write_goaway(out: &mut Vec<u8>, last: u32, code: ErrorCode) {
    write_head(out, kind::GOAWAY, 0, 0, 8);
    out.extend_from_slice(&last.to_be_bytes());
    out.extend_from_slice(&code.0.to_be_bytes());
}

/// Completes a field section at the end of `out`, which stands after a placeholder of [`HEAD`] bytes at `start`: writes the
/// HEADERS frame header, and splits a long section into CONTINUATION frames (§6.10).
pub fn end_headers(out: &mut Vec<u8>, start: usize, stream: u32, ended: bool) {
    let length = out.len() - start - HEAD;
    let end_stream = if ended { END_STREAM } else { 0 };
    if length <= MOST {
        let head = FrameHead { length: length as u32, kind: kind::HEADERS, flags: END_HEADERS | end_stream, stream };
        return out[start..start + HEAD].copy_from_slice(&head.bytes());
    }
    let section = out.split_off(start + HEAD);
    out.truncate(start);
    let pieces = section.len().div_ceil(MOST);
    for (at, piece) in section.chunks(MOST).enumerate() {
        let last = if at + 1 == pieces { END_HEADERS } else { 0 };
        match at {
            0 => write(out, kind::HEADERS, last | end_stream, stream, piece),
            _ => write(out, kind::CONTINUATION, last, stream, piece),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_as_it_is_written() {
        let head = FrameHead { length: 0x12_3456, kind: kind::DATA, flags: END_STREAM | PADDED, stream: 0x7654_3210 };
        assert_eq!(head.bytes(), [0x12, 0x34, 0x56, 0, 9, 0x76, 0x54, 0x32, 0x10]);
        assert_eq!(FrameHead::parse(&head.bytes()), head);
        let mut reserved = head.bytes();
        reserved[5] |= 0x80;
        assert_eq!(FrameHead::parse(&reserved), head);
    }

    #[test]
    fn a_long_section_is_cut() {
        for (length, frames) in [(10, 1), (MOST, 1), (MOST + 1, 2), (3 * MOST, 3)] {
            let mut out = b"before".to_vec();
            out.extend_from_slice(&vec![7; HEAD + length]);
            end_headers(&mut out, 6, 5, true);
            let (mut rest, mut seen, mut content) = (&out[6..], 0, 0);
            while let Some((head, payload)) = rest.split_first_chunk::<HEAD>() {
                let head = FrameHead::parse(head);
                let (payload, others) = payload.split_at(head.length as usize);
                assert_eq!(head.kind, if seen == 0 { kind::HEADERS } else { kind::CONTINUATION });
                assert_eq!((head.stream, head.has(END_STREAM)), (5, seen == 0));
                assert_eq!(head.has(END_HEADERS), others.is_empty());
                assert!(payload.iter().all(|&byte| byte == 7));
                (seen, content, rest) = (seen + 1, content + payload.len(), others);
            }
            assert_eq!((seen, content), (frames, length));
        }
    }
}
