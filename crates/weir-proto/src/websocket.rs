//! WebSockets (RFC 6455): reading and writing frames, close codes, extensions, compressed messages, and frame boundaries, between which the gateway
//! can insert a frame of its own.

pub mod close;
pub mod extensions;
pub mod frame;
pub mod inflate;
pub mod reader;
mod utf8;

pub use close::CloseCode;
pub use extensions::DeflateTerms;
pub use frame::{FrameHeader, FrameSender, Opcode};
pub use inflate::{InflateFault, MessageInflater};
pub use reader::{ControlFrame, FrameEvent, FrameFault, FrameReader, MaskedContent};

use frame::MAX_HEADER;

/// A close frame of a server with code 1001, going away (RFC 6455 §7.4.1).
pub const GOING_AWAY: [u8; 4] = [0x88, 2, 0x03, 0xe9];

/// Tracks frame boundaries in the bytes of one direction, without validation.
#[derive(Clone, Copy, Debug, Default)]
pub struct FrameBoundary {
    /// Bytes of the current frame's content still to come.
    content: u64,
    header: [u8; MAX_HEADER],
    header_len: usize,
}

impl FrameBoundary {
    /// Advances over bytes that were forwarded.
    pub fn pass(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.content > 0 {
                let count = self.content.min(bytes.len() as u64);
                self.content -= count;
                bytes = &bytes[count as usize..];
                continue;
            }
            self.header[self.header_len] = bytes[0];
            self.header_len += 1;
            bytes = &bytes[1..];
            if let Some(content) = content_of(&self.header[..self.header_len]) {
                self.content = content;
                self.header_len = 0;
            }
        }
    }

    /// The last byte passed was the end of a frame.
    pub fn is_between_frames(&self) -> bool {
        self.content == 0 && self.header_len == 0
    }
}

/// The length of the content of a frame with this header; `None` while the header is incomplete.
fn content_of(header: &[u8]) -> Option<u64> {
    let second = *header.get(1)?;
    let mask = if second & 0x80 == 0 { 0 } else { 4 };
    let (length_bytes, small) = match second & 0x7f {
        126 => (2, 0),
        127 => (8, 0),
        small => (0, u64::from(small)),
    };
    let length = header.get(2..2 + length_bytes)?;
    let is_complete = header.len() == 2 + length_bytes + mask;
    is_complete.then(|| length.iter().fold(small, |sum, &byte| sum << 8 | u64::from(byte)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(length: usize, masked: bool) -> Vec<u8> {
        let mask = if masked { 0x80 } else { 0 };
        let mut frame = vec![0x82];
        match length {
            0..126 => frame.push(mask | length as u8),
            126..65_536 => {
                frame.push(mask | 126);
                frame.extend_from_slice(&(length as u16).to_be_bytes());
            }
            _ => {
                frame.push(mask | 127);
                frame.extend_from_slice(&(length as u64).to_be_bytes());
            }
        }
        frame.resize(frame.len() + if masked { 4 } else { 0 } + length, 0xff);
        frame
    }

    #[test]
    fn u16_the_close_frame_is_a_frame() {
        let mut boundary = FrameBoundary::default();
        boundary.pass(&GOING_AWAY[..3]);
        assert!(!boundary.is_between_frames());
        boundary.pass(&GOING_AWAY[3..]);
        assert!(boundary.is_between_frames());
    }

    proptest! {
        #[test]
        fn u16_boundaries_are_where_frames_end(
            frames in prop::collection::vec((prop_oneof![0..300_usize, 65_530..65_545_usize], any::<bool>()), 1..6),
            cut in 1..70_usize,
        ) {
            let mut boundary = FrameBoundary::default();
            for (length, masked) in frames {
                let frame = frame(length, masked);
                for piece in frame[..frame.len() - 1].chunks(cut) {
                    boundary.pass(piece);
                    prop_assert!(!boundary.is_between_frames());
                }
                boundary.pass(&frame[frame.len() - 1..]);
                prop_assert!(boundary.is_between_frames());
            }
        }
    }
}
