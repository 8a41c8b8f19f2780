//! The frames of one direction, read as their bytes come, and held to the rules of RFC 6455 §5 to §7 and RFC 7692 §6.

use super::close::CloseCode;
use super::frame::{FrameHeader, FrameSender, MAX_CONTROL, MAX_HEADER, Opcode, apply_mask};
use super::utf8::Utf8Follower;

#[cfg(test)]
mod tests;

/// What was found at the start of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameEvent<'a> {
    /// A frame of a message begins.
    Begin(FrameHeader),
    /// Some of its content.
    Content(MaskedContent<'a>),
    /// The frame has ended, and with the last one its message.
    End { is_last: bool },
    /// A control frame, which may stand between the frames of a message.
    Control(ControlFrame),
}

/// Content as it travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskedContent<'a> {
    /// Of the wire.
    pub bytes: &'a [u8],
    mask: Option<[u8; 4]>,
    /// Where in its frame it begins.
    offset: u64,
}

impl MaskedContent<'_> {
    /// Appends it without its mask.
    pub fn unmask_into(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(self.bytes);
        if let Some(mask) = self.mask {
            apply_mask(mask, self.offset, &mut out[start..]);
        }
    }
}

/// A close, a ping or a pong.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ControlFrame {
    pub opcode: Opcode,
    mask: Option<[u8; 4]>,
    content: [u8; MAX_CONTROL],
    length: usize,
}

impl ControlFrame {
    /// Without its mask.
    pub fn content(&self) -> &[u8] {
        &self.content[..self.length]
    }

    /// Appends it as it came.
    pub fn write(&self, out: &mut Vec<u8>) {
        super::frame::write(out, self.opcode, self.mask, self.content());
    }
}

impl std::fmt::Debug for ControlFrame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}({})", self.opcode, self.content().escape_ascii())
    }
}

/// The rule that was broken. After one nothing more can be read: the connection fails (RFC 6455 §7.1.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameFault {
    /// §5.2: RSV2 and RSV3, and RSV1 where no compression was agreed to.
    ReservedBit,
    /// §5.2: opcodes 3 to 7 and 11 to 15.
    ReservedOpcode,
    /// §5.1: a client masks every frame.
    NotMasked,
    /// §5.1: a server masks none.
    Masked,
    /// §5.2: a length in more bytes than it needs.
    LengthNotMinimal,
    /// §5.2: the first bit of a length of eight bytes is 0.
    LengthTooLarge,
    /// §5.5: more than 125 bytes.
    ControlTooLong,
    /// §5.5: a control frame in fragments.
    ControlFragmented,
    /// RFC 7692 §6: RSV1 on a control frame, or not on the first frame of a message.
    CompressionMisplaced,
    /// §5.4: a continuation of nothing.
    NothingToContinue,
    /// §5.4: a message that begins within another.
    MessageWithinMessage,
    /// §5.6, §8.1: a text that is not UTF-8.
    TextNotUtf8,
    /// §5.5.1: a close frame whose content is one byte.
    CloseTooShort,
    /// §7.4: a code that no close frame may have.
    CloseCodeInvalid,
    /// §5.5.1: a reason that is not UTF-8.
    ReasonNotUtf8,
}

impl FrameFault {
    /// What the side that broke the rule is told (§7.4.1).
    pub fn close_code(self) -> CloseCode {
        match self {
            FrameFault::TextNotUtf8 | FrameFault::ReasonNotUtf8 => CloseCode::INVALID_CONTENT,
            _ => CloseCode::PROTOCOL_ERROR,
        }
    }

    /// The same in words.
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

/// Reads the frames of one direction. It keeps no content but that of a control frame.
#[derive(Clone, Debug)]
pub struct FrameReader {
    sender: FrameSender,
    /// `permessage-deflate` was agreed to.
    may_compress: bool,
    header: [u8; MAX_HEADER],
    header_len: usize,
    frame: Option<OpenFrame>,
    message: Option<OpenMessage>,
    /// The content of a control frame that has not ended.
    control: [u8; MAX_CONTROL],
    is_closed: bool,
}

/// A frame whose end has not come.
#[derive(Clone, Copy, Debug)]
struct OpenFrame {
    header: FrameHeader,
    /// Bytes of its content that have been read.
    read: u64,
}

/// A message whose end has not come.
#[derive(Clone, Copy, Debug)]
struct OpenMessage {
    /// Only of a text that is not compressed: of others it says nothing.
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

    /// Neither a frame nor a header has begun.
    pub fn is_between_frames(&self) -> bool {
        self.frame.is_none() && self.header_len == 0
    }

    /// A close frame has come. What follows is nothing (RFC 6455 §1.4, §5.5.1).
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Reads on, and takes from the input what it has read; nothing when it needs more.
    ///
    /// # Errors
    /// The rule that was broken.
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
                    continue; // it is told as a whole
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

    /// Takes bytes of a header; `Some` once it is complete. Each byte is judged as it comes.
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

    /// FIN, RSV1 to RSV3 and the opcode.
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

    /// MASK and the short length.
    fn check_second(&self, byte: u8) -> Result<(), FrameFault> {
        match (self.sender, byte & 0x80 != 0) {
            (FrameSender::Client, false) => return Err(FrameFault::NotMasked),
            (FrameSender::Server, true) => return Err(FrameFault::Masked),
            _ => {}
        }
        let is_control = self.header[0] & 0x08 != 0;
        if is_control && byte & 0x7f > 125 { Err(FrameFault::ControlTooLong) } else { Ok(()) }
    }

    /// The header, if all of it is there.
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

/// Shows masked content to who follows a text.
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

/// RFC 6455 §5.5.1: nothing, or a code and a reason.
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
