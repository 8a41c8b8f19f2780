//! Reads and validates the frames of one direction incrementally (RFC 6455 §5 to §7, RFC 7692 §6).

use super::close::CloseCode;
use super::frame::{FrameHeader, FrameSender, MAX_CONTROL, MAX_HEADER, Opcode, apply_mask};
use super::utf8::Utf8Follower;

#[cfg(test)]
mod tests;

/// What was read from the start of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameEvent<'a> {
    /// A frame of a message begins.
    Begin(FrameHeader),
    /// A piece of the frame's content.
    Content(MaskedContent<'a>),
    /// The frame has ended; if it is the last, so has its message.
    End { is_last: bool },
    /// A complete control frame, which may occur between the frames of a message.
    Control(ControlFrame),
}

/// Content as received, masked if a client sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskedContent<'a> {
    /// The bytes on the wire.
    pub bytes: &'a [u8],
    mask: Option<[u8; 4]>,
    /// Position of the bytes within their frame.
    offset: u64,
}

impl MaskedContent<'_> {
    /// Appends the unmasked content.
    pub fn unmask_into(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(self.bytes);
        if let Some(mask) = self.mask {
            apply_mask(mask, self.offset, &mut out[start..]);
        }
    }
}

/// A close, ping or pong frame.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ControlFrame {
    pub opcode: Opcode,
    mask: Option<[u8; 4]>,
    content: [u8; MAX_CONTROL],
    length: usize,
}

impl ControlFrame {
    /// The unmasked content.
    pub fn content(&self) -> &[u8] {
        &self.content[..self.length]
    }

    /// Appends the frame as it was received, with its mask.
    pub fn write(&self, out: &mut Vec<u8>) {
        super::frame::write(out, self.opcode, self.mask, self.content());
    }
}

impl std::fmt::Debug for ControlFrame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}({})", self.opcode, self.content().escape_ascii())
    }
}

/// The rule that a frame violates. Nothing more can be read then: the connection fails (RFC 6455 §7.1.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameFault {
    /// §5.2: RSV2 or RSV3 is set, or RSV1 without compression having been accepted.
    ReservedBit,
    /// §5.2: an opcode from 3 to 7 or 11 to 15.
    ReservedOpcode,
    /// §5.1: a frame from a client is not masked.
    NotMasked,
    /// §5.1: a frame from a server is masked.
    Masked,
    /// §5.2: a length encoded in more bytes than it needs.
    LengthNotMinimal,
    /// §5.2: an eight-byte length with its highest bit set.
    LengthTooLarge,
    /// §5.5: a control frame with more than 125 bytes of content.
    ControlTooLong,
    /// §5.5: a control frame without FIN.
    ControlFragmented,
    /// RFC 7692 §6: RSV1 on a control frame, or not on the first frame of a message.
    CompressionMisplaced,
    /// §5.4: a continuation frame outside a message.
    NothingToContinue,
    /// §5.4: a new message within another.
    MessageWithinMessage,
    /// §5.6, §8.1: a text message that is not UTF-8.
    TextNotUtf8,
    /// §5.5.1: a close frame whose content is one byte.
    CloseTooShort,
    /// §7.4: a code that is not allowed in a close frame.
    CloseCodeInvalid,
    /// §5.5.1: a reason that is not UTF-8.
    ReasonNotUtf8,
}

impl FrameFault {
    /// The close code to send to the violating side (§7.4.1).
    pub fn close_code(self) -> CloseCode {
        match self {
            FrameFault::TextNotUtf8 | FrameFault::ReasonNotUtf8 => CloseCode::INVALID_CONTENT,
            _ => CloseCode::PROTOCOL_ERROR,
        }
    }

    /// A description for the close frame and logs.
    pub fn reason(self) -> &'static str {
        match self {
            FrameFault::ReservedBit => "a reserved bit is set",
            FrameFault::ReservedOpcode => "the opcode is reserved",
            FrameFault::NotMasked => "a frame of the client is not masked",
            FrameFault::Masked => "a frame of the server is masked",
            FrameFault::LengthNotMinimal => "the length has more bytes than it needs",
            FrameFault::LengthTooLarge => "the length has more than 63 bits",
            FrameFault::ControlTooLong => "a control frame has more than 125 bytes",
            FrameFault::ControlFragmented => "a control frame is fragmented",
            FrameFault::CompressionMisplaced => "only the first frame of a message can say that it is compressed",
            FrameFault::NothingToContinue => "there is no message to continue",
            FrameFault::MessageWithinMessage => "a message begins before the one before has ended",
            FrameFault::TextNotUtf8 => "a text is not UTF-8",
            FrameFault::CloseTooShort => "a close frame has half a code",
            FrameFault::CloseCodeInvalid => "the close code cannot be sent",
            FrameFault::ReasonNotUtf8 => "the reason of a close frame is not UTF-8",
        }
    }
}

/// Reads the frames of one direction. It buffers only headers and the content of control frames.
#[derive(Clone, Debug)]
pub struct FrameReader {
    sender: FrameSender,
    /// `permessage-deflate` was accepted in the handshake.
    may_compress: bool,
    header: [u8; MAX_HEADER],
    header_len: usize,
    frame: Option<OpenFrame>,
    message: Option<OpenMessage>,
    /// The content of a control frame that is not complete.
    control: [u8; MAX_CONTROL],
    is_closed: bool,
}

/// A frame that has not ended.
#[derive(Clone, Copy, Debug)]
struct OpenFrame {
    header: FrameHeader,
    /// Bytes of its content read.
    read: u64,
}

/// A message that has not ended.
#[derive(Clone, Copy, Debug)]
struct OpenMessage {
    /// `Some` for uncompressed text; other messages are not validated.
    text: Option<Utf8Follower>,
}

impl FrameReader {
    pub fn new(sender: FrameSender, may_compress: bool) -> FrameReader {
        FrameReader {
            sender,
            may_compress,
            header: [0; MAX_HEADER],
            header_len: 0,
            frame: None,
            message: None,
            control: [0; MAX_CONTROL],
            is_closed: false,
        }
    }

    /// The last byte read was the end of a frame.
    pub fn is_between_frames(&self) -> bool {
        self.frame.is_none() && self.header_len == 0
    }

    /// A close frame was read; everything after it is ignored (RFC 6455 §1.4, §5.5.1).
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Reads one event and removes its bytes from the input. `None` if more input is needed, or after a close frame.
    ///
    /// # Errors
    /// The rule that the input violates.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<FrameEvent<'a>>, FrameFault> {
        loop {
            if self.is_closed {
                *input = &[];
                return Ok(None);
            }
            let Some(frame) = self.frame else {
                let Some(header) = self.take_header(input)? else { return Ok(None) };
                self.begin(&header);
                self.frame = Some(OpenFrame { header, read: 0 });
                if header.opcode.is_control() {
                    continue; // reported once complete
                }
                return Ok(Some(FrameEvent::Begin(header)));
            };
            let left = frame.header.length - frame.read;
            let (content, rest) = input.split_at(left.min(input.len() as u64) as usize);
            if frame.header.opcode.is_control() {
                return self.take_control(frame, content, rest, input);
            }
            if left == 0 {
                return self.end(frame.header.fin).map(Some);
            }
            if content.is_empty() {
                return Ok(None);
            }
            *input = rest;
            return self.take_content(frame, content).map(Some);
        }
    }

    /// Reads bytes of a header; `Some` once it is complete. Each byte is checked as it arrives.
    fn take_header(&mut self, input: &mut &[u8]) -> Result<Option<FrameHeader>, FrameFault> {
        while let Some((&byte, rest)) = input.split_first() {
            *input = rest;
            self.header[self.header_len] = byte;
            self.header_len += 1;
            match self.header_len {
                1 => self.check_first(byte)?,
                2 => self.check_second(byte)?,
                _ => {}
            }
            if let Some(header) = self.header()? {
                self.header_len = 0;
                return Ok(Some(header));
            }
        }
        Ok(None)
    }

    /// Checks FIN, RSV1 to RSV3 and the opcode.
    fn check_first(&self, byte: u8) -> Result<(), FrameFault> {
        let rsv1 = byte & 0x40 != 0;
        if byte & 0x30 != 0 || (rsv1 && !self.may_compress) {
            return Err(FrameFault::ReservedBit);
        }
        let opcode = Opcode::from_number(byte & 0x0f).ok_or(FrameFault::ReservedOpcode)?;
        if opcode.is_control() && byte & 0x80 == 0 {
            return Err(FrameFault::ControlFragmented);
        }
        if rsv1 && !matches!(opcode, Opcode::Text | Opcode::Binary) {
            return Err(FrameFault::CompressionMisplaced);
        }
        match (opcode, &self.message) {
            (Opcode::Continuation, None) => Err(FrameFault::NothingToContinue),
            (Opcode::Text | Opcode::Binary, Some(_)) => Err(FrameFault::MessageWithinMessage),
            _ => Ok(()),
        }
    }

    /// Checks the mask bit and the short length.
    fn check_second(&self, byte: u8) -> Result<(), FrameFault> {
        match (self.sender, byte & 0x80 != 0) {
            (FrameSender::Client, false) => return Err(FrameFault::NotMasked),
            (FrameSender::Server, true) => return Err(FrameFault::Masked),
            _ => {}
        }
        let is_control = self.header[0] & 0x08 != 0;
        if is_control && byte & 0x7f > 125 { Err(FrameFault::ControlTooLong) } else { Ok(()) }
    }

    /// Parses the header, if it is complete.
    fn header(&self) -> Result<Option<FrameHeader>, FrameFault> {
        let [first, second] = [self.header[0], self.header[1]];
        let length_bytes = match second & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let mask_at = 2 + length_bytes;
        if self.header_len < 2 || self.header_len < mask_at {
            return Ok(None);
        }
        let length = self.header[2..mask_at].iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
        let length = match length_bytes {
            0 => u64::from(second & 0x7f),
            2 if length < 126 => return Err(FrameFault::LengthNotMinimal),
            8 if length < 0x1_0000 => return Err(FrameFault::LengthNotMinimal),
            8 if length >> 63 != 0 => return Err(FrameFault::LengthTooLarge),
            _ => length,
        };
        let mask = match self.sender {
            FrameSender::Server => None,
            FrameSender::Client if self.header_len < mask_at + 4 => return Ok(None),
            FrameSender::Client => self.header[mask_at..].first_chunk::<4>().copied(),
        };
        let opcode = Opcode::from_number(first & 0x0f).ok_or(FrameFault::ReservedOpcode)?;
        Ok(Some(FrameHeader { fin: first & 0x80 != 0, compressed: first & 0x40 != 0, opcode, length, mask }))
    }

    fn begin(&mut self, header: &FrameHeader) {
        if matches!(header.opcode, Opcode::Text | Opcode::Binary) {
            let is_plain_text = header.opcode == Opcode::Text && !header.compressed;
            self.message = Some(OpenMessage { text: is_plain_text.then(Utf8Follower::default) });
        }
    }

    fn take_content<'a>(&mut self, frame: OpenFrame, bytes: &'a [u8]) -> Result<FrameEvent<'a>, FrameFault> {
        let content = MaskedContent { bytes, mask: frame.header.mask, offset: frame.read };
        if let Some(OpenMessage { text: Some(text) }) = &mut self.message {
            follow(text, content).map_err(|()| FrameFault::TextNotUtf8)?;
        }
        self.frame = Some(OpenFrame { read: frame.read + bytes.len() as u64, ..frame });
        Ok(FrameEvent::Content(content))
    }

    fn end(&mut self, is_last: bool) -> Result<FrameEvent<'static>, FrameFault> {
        self.frame = None;
        if is_last && let Some(OpenMessage { text: Some(text) }) = self.message.take() {
            text.end().map_err(|_| FrameFault::TextNotUtf8)?;
        }
        Ok(FrameEvent::End { is_last })
    }

    fn take_control<'a>(
        &mut self,
        frame: OpenFrame,
        content: &[u8],
        rest: &'a [u8],
        input: &mut &'a [u8],
    ) -> Result<Option<FrameEvent<'a>>, FrameFault> {
        let (read, length) = (frame.read as usize, frame.header.length as usize);
        self.control[read..][..content.len()].copy_from_slice(content);
        *input = rest;
        let read = read + content.len();
        if read < length {
            self.frame = Some(OpenFrame { read: read as u64, ..frame });
            return Ok(None);
        }
        self.frame = None;
        let mut control =
            ControlFrame { opcode: frame.header.opcode, mask: frame.header.mask, content: self.control, length };
        if let Some(mask) = control.mask {
            apply_mask(mask, 0, &mut control.content[..length]);
        }
        if control.opcode == Opcode::Close {
            check_close(control.content())?;
            self.is_closed = true;
        }
        Ok(Some(FrameEvent::Control(control)))
    }
}

/// Unmasks content in pieces and validates it as UTF-8.
fn follow(text: &mut Utf8Follower, content: MaskedContent<'_>) -> Result<(), ()> {
    let Some(mask) = content.mask else { return text.push(content.bytes).map_err(|_| ()) };
    let mut plain = [0; 1024];
    let mut offset = content.offset;
    for piece in content.bytes.chunks(plain.len()) {
        let plain = &mut plain[..piece.len()];
        plain.copy_from_slice(piece);
        apply_mask(mask, offset, plain);
        text.push(plain).map_err(|_| ())?;
        offset += piece.len() as u64;
    }
    Ok(())
}

/// Checks the content of a close frame: empty, or a code and a reason (RFC 6455 §5.5.1).
fn check_close(content: &[u8]) -> Result<(), FrameFault> {
    match content {
        [] => Ok(()),
        [_] => Err(FrameFault::CloseTooShort),
        [high, low, reason @ ..] => {
            if !CloseCode(u16::from_be_bytes([*high, *low])).may_be_sent() {
                return Err(FrameFault::CloseCodeInvalid);
            }
            str::from_utf8(reason).map(|_| ()).map_err(|_| FrameFault::ReasonNotUtf8)
        }
    }
}
