//! Frame headers, and writing of frames (RFC 6455 §5.2).

/// The longest header: two bytes, eight of length, four of a mask.
pub const MAX_HEADER: usize = 14;
/// The longest content of a control frame (RFC 6455 §5.5).
pub const MAX_CONTROL: usize = 125;

/// The type of a frame. Other numbers are reserved (RFC 6455 §5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    Continuation = 0,
    Text = 1,
    Binary = 2,
    Close = 8,
    Ping = 9,
    Pong = 10,
}

impl Opcode {
    pub fn from_number(number: u8) -> Option<Opcode> {
        Some(match number {
            0 => Opcode::Continuation,
            1 => Opcode::Text,
            2 => Opcode::Binary,
            8 => Opcode::Close,
            9 => Opcode::Ping,
            10 => Opcode::Pong,
            _ => return None,
        })
    }

    pub fn is_control(self) -> bool {
        self as u8 >= 8
    }
}

/// Which side sends the frames: clients mask them, servers do not (RFC 6455 §5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameSender {
    Client,
    Server,
}

/// A frame header. Its encoding is unique, since lengths are minimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// The last frame of its message.
    pub fin: bool,
    /// RSV1: the message is compressed (RFC 7692 §6).
    pub compressed: bool,
    pub opcode: Opcode,
    /// Bytes of content.
    pub length: u64,
    pub mask: Option<[u8; 4]>,
}

impl FrameHeader {
    pub fn write(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.fin) << 7 | u8::from(self.compressed) << 6 | self.opcode as u8);
        let masked = u8::from(self.mask.is_some()) << 7;
        match self.length {
            small @ 0..126 => out.push(masked | small as u8),
            medium @ 126..0x1_0000 => {
                out.push(masked | 126);
                out.extend_from_slice(&(medium as u16).to_be_bytes());
            }
            large => {
                out.push(masked | 127);
                out.extend_from_slice(&large.to_be_bytes());
            }
        }
        out.extend_from_slice(self.mask.as_ref().map_or(&[], |mask| mask));
    }
}

/// Masks or unmasks content (RFC 6455 §5.3). `offset` is the position of `content` within its frame.
pub fn apply_mask(mask: [u8; 4], offset: u64, content: &mut [u8]) {
    let turned: [u8; 4] = std::array::from_fn(|index| mask[(offset as usize + index) % 4]);
    let mut words = content.chunks_exact_mut(4);
    for word in &mut words {
        word.iter_mut().zip(turned).for_each(|(byte, mask)| *byte ^= mask);
    }
    words.into_remainder().iter_mut().zip(turned).for_each(|(byte, mask)| *byte ^= mask);
}

/// Appends a frame that is a whole message or a control frame.
pub fn write(out: &mut Vec<u8>, opcode: Opcode, mask: Option<[u8; 4]>, content: &[u8]) {
    write_message(out, opcode, false, mask, content);
}

/// Appends a frame that is a whole message, whose content may be compressed already.
pub fn write_message(out: &mut Vec<u8>, opcode: Opcode, compressed: bool, mask: Option<[u8; 4]>, content: &[u8]) {
    FrameHeader { fin: true, compressed, opcode, length: content.len() as u64, mask }.write(out);
    let start = out.len();
    out.extend_from_slice(content);
    if let Some(mask) = mask {
        apply_mask(mask, 0, &mut out[start..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_goes_on_and_comes_off() {
        // RFC 6455 §5.7: a single-frame masked text message.
        let mask = [0x37, 0xfa, 0x21, 0x3d];
        let mut frame = Vec::new();
        write(&mut frame, Opcode::Text, Some(mask), b"Hello");
        assert_eq!(frame, [0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58]);
        for cut in 0..=5 {
            let mut content = frame[6..].to_vec();
            let (first, second) = content.split_at_mut(cut);
            apply_mask(mask, 0, first);
            apply_mask(mask, cut as u64, second);
            assert_eq!(content, b"Hello", "cut at {cut}");
        }
    }

    #[test]
    fn lengths_are_minimal() {
        for (length, want) in [
            (0, &[0x82, 0][..]),
            (125, &[0x82, 125]),
            (126, &[0x82, 126, 0, 126]),
            (65_535, &[0x82, 126, 0xff, 0xff]),
            (65_536, &[0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0]),
        ] {
            let mut out = Vec::new();
            FrameHeader { fin: true, compressed: false, opcode: Opcode::Binary, length, mask: None }.write(&mut out);
            assert_eq!(out, want, "{length}");
        }
    }
}
