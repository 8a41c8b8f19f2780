//! The chunked transfer coding (RFC 9112 §7.1): framing is parsed byte by byte, chunk data is passed on in whole slices.
//!
//! Strict: upper- or lower-case hexadecimal digits, CRLF and nothing else after data, extensions checked, bounded and dropped.
//! Trailer fields are collected, checked and bounded; the caller decides whether to forward them.

use crate::field;
use crate::trailers::Trailers;

/// Limit of the chunk extension bytes of one message; a message with more is refused.
pub const MAX_EXTENSION_BYTES: usize = 1024;
/// Chunk sizes have at most this many digits, leading zeros included.
const MAX_SIZE_DIGITS: u8 = 16;

/// The coding is broken: where the message ends is unknown, so its connection must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadChunk;

/// What [`ChunkedDecoder::next`] found at the start of its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// All of the input was framing and is consumed; the decoder needs more.
    More,
    /// After `skip` bytes of framing there are `length` bytes of data.
    Data { skip: usize, length: usize },
    /// The message ended; `consumed` bytes belonged to it.
    End { consumed: usize },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkedState {
    SizeStart,
    Size,
    Extension,
    Quoted,
    QuotedPair,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    TrailerStart,
    Trailer,
    TrailerLf,
    EndLf,
    Ended,
}

/// Decodes one chunked message body.
#[derive(Clone, Debug)]
pub struct ChunkedDecoder {
    state: ChunkedState,
    digits: u8,
    /// Position in one extension, `";" name [ "=" value ]`, while `state` is `Extension`.
    part: Part,
    extension_bytes: u16,
    remaining: u64,
    trailer_limit: u32,
    trailer_fields: u16,
    line_start: u32,
    /// Trailer lines as received, each with its CRLF.
    trailers: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    NameStart,
    Name,
    ValueStart,
    Value,
    AfterQuoted,
}

impl ChunkedDecoder {
    /// `trailer_limit` bounds the trailer section in bytes.
    pub fn new(trailer_limit: usize) -> ChunkedDecoder {
        ChunkedDecoder {
            state: ChunkedState::SizeStart,
            digits: 0,
            part: Part::NameStart,
            extension_bytes: 0,
            remaining: 0,
            trailer_limit: u32::try_from(trailer_limit).unwrap_or(u32::MAX),
            trailer_fields: 0,
            line_start: 0,
            trailers: Vec::new(),
        }
    }

    pub fn ended(&self) -> bool {
        self.state == ChunkedState::Ended
    }

    /// Decodes the next piece of input. Data in the returned [`Step::Data`] counts as consumed: the next call starts after it.
    pub fn next(&mut self, input: &[u8]) -> Result<Step, BadChunk> {
        let mut at = 0;
        while at < input.len() {
            if self.state == ChunkedState::Data {
                let available = (input.len() - at) as u64;
                let length = available.min(self.remaining);
                self.remaining -= length;
                if self.remaining == 0 {
                    self.state = ChunkedState::DataCr;
                }
                return Ok(Step::Data { skip: at, length: length as usize });
            }
            self.state = self.byte(input[at])?;
            at += 1;
            if self.state == ChunkedState::Ended {
                return Ok(Step::End { consumed: at });
            }
        }
        Ok(Step::More)
    }

    fn byte(&mut self, byte: u8) -> Result<ChunkedState, BadChunk> {
        match self.state {
            ChunkedState::SizeStart => {
                self.remaining = u64::from(hex(byte).ok_or(BadChunk)?);
                self.digits = 1;
                Ok(ChunkedState::Size)
            }
            ChunkedState::Size => match byte {
                b'\r' => Ok(ChunkedState::SizeLf),
                b';' => self.extension(byte),
                _ => {
                    let digit = hex(byte).ok_or(BadChunk)?;
                    self.digits += 1;
                    if self.digits > MAX_SIZE_DIGITS || self.remaining >> 60 != 0 {
                        return Err(BadChunk);
                    }
                    self.remaining = self.remaining << 4 | u64::from(digit);
                    Ok(ChunkedState::Size)
                }
            },
            ChunkedState::Extension | ChunkedState::Quoted | ChunkedState::QuotedPair => self.extension(byte),
            ChunkedState::SizeLf if byte == b'\n' && self.remaining == 0 => Ok(ChunkedState::TrailerStart),
            ChunkedState::SizeLf if byte == b'\n' => Ok(ChunkedState::Data),
            ChunkedState::DataCr if byte == b'\r' => Ok(ChunkedState::DataLf),
            ChunkedState::DataLf if byte == b'\n' => Ok(ChunkedState::SizeStart),
            ChunkedState::TrailerStart if byte == b'\r' => Ok(ChunkedState::EndLf),
            ChunkedState::TrailerStart => {
                self.line_start = self.trailers.len() as u32;
                self.trailer(byte)
            }
            ChunkedState::Trailer => self.trailer(byte),
            ChunkedState::TrailerLf if byte == b'\n' => {
                self.trailers.push(byte);
                self.check_trailer()?;
                Ok(ChunkedState::TrailerStart)
            }
            ChunkedState::EndLf if byte == b'\n' => Ok(ChunkedState::Ended),
            _ => Err(BadChunk),
        }
    }

    /// `*( ";" token [ "=" ( token / quoted-string ) ] )`. The "bad white space" that RFC 9112 §7.1.1 tolerates around these is
    /// refused: only attacks use it.
    fn extension(&mut self, byte: u8) -> Result<ChunkedState, BadChunk> {
        self.extension_bytes += 1;
        if usize::from(self.extension_bytes) > MAX_EXTENSION_BYTES {
            return Err(BadChunk);
        }
        match self.state {
            ChunkedState::QuotedPair if field::is_value(&[byte]) => return Ok(ChunkedState::Quoted),
            ChunkedState::Quoted => {
                return match byte {
                    b'"' => {
                        self.part = Part::AfterQuoted;
                        Ok(ChunkedState::Extension)
                    }
                    b'\\' => Ok(ChunkedState::QuotedPair),
                    _ if field::is_value(&[byte]) => Ok(ChunkedState::Quoted),
                    _ => Err(BadChunk),
                };
            }
            ChunkedState::QuotedPair => return Err(BadChunk),
            ChunkedState::Size => {
                self.part = Part::NameStart;
                return Ok(ChunkedState::Extension);
            }
            _ => {}
        }
        self.part = match (self.part, byte) {
            (Part::Name | Part::Value | Part::AfterQuoted, b'\r') => return Ok(ChunkedState::SizeLf),
            (Part::Name | Part::Value | Part::AfterQuoted, b';') => Part::NameStart,
            (Part::Name, b'=') => Part::ValueStart,
            (Part::ValueStart, b'"') => return Ok(ChunkedState::Quoted),
            (Part::NameStart | Part::Name, _) if field::is_token_byte(byte) => Part::Name,
            (Part::ValueStart | Part::Value, _) if field::is_token_byte(byte) => Part::Value,
            _ => return Err(BadChunk),
        };
        Ok(ChunkedState::Extension)
    }

    fn trailer(&mut self, byte: u8) -> Result<ChunkedState, BadChunk> {
        if self.trailers.len() as u32 >= self.trailer_limit || !(field::is_value(&[byte]) || byte == b'\r') {
            return Err(BadChunk);
        }
        self.trailers.push(byte);
        Ok(if byte == b'\r' { ChunkedState::TrailerLf } else { ChunkedState::Trailer })
    }

    fn check_trailer(&mut self) -> Result<(), BadChunk> {
        self.trailer_fields += 1;
        let line = &self.trailers[self.line_start as usize..self.trailers.len() - 2];
        let colon = memchr::memchr(b':', line).ok_or(BadChunk)?;
        match field::is_name(&line[..colon]) && self.trailer_fields <= 100 {
            true => Ok(()),
            false => Err(BadChunk),
        }
    }

    /// The trailer section, once the message has ended.
    pub fn take_trailers(&mut self) -> Trailers {
        Trailers::from_lines(std::mem::take(&mut self.trailers))
    }
}

fn hex(byte: u8) -> Option<u8> {
    (byte as char).to_digit(16).map(|digit| digit as u8)
}

/// Writes the line before a chunk's data. `length` must not be 0: that would end the message.
pub fn write_size(out: &mut Vec<u8>, length: usize) {
    debug_assert!(length != 0, "a chunk of no bytes ends the message");
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let count = (usize::BITS - length.leading_zeros()).div_ceil(4).max(1);
    for index in (0..count).rev() {
        out.push(DIGITS[length >> (index * 4) & 15]);
    }
    out.extend_from_slice(b"\r\n");
}

/// Writes the last chunk and the trailer section.
pub fn write_end(out: &mut Vec<u8>, trailers: Option<&Trailers>) {
    out.extend_from_slice(b"0\r\n");
    for (name, value) in trailers.into_iter().flat_map(Trailers::fields) {
        crate::head::write_field(out, name, value);
    }
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(input: &[u8], piece: usize) -> Result<(Vec<u8>, Vec<u8>, ChunkedDecoder), BadChunk> {
        let mut decoder = ChunkedDecoder::new(1000);
        let mut data = Vec::new();
        let mut at = 0;
        while at < input.len() {
            let end = input.len().min(at + piece);
            match decoder.next(&input[at..end])? {
                Step::More => at = end,
                Step::Data { skip, length } => {
                    data.extend_from_slice(&input[at + skip..at + skip + length]);
                    at += skip + length;
                }
                Step::End { consumed } => return Ok((data, input[at + consumed..].to_vec(), decoder)),
            }
        }
        Ok((data, Vec::new(), decoder))
    }

    #[test]
    fn data_comes_out_however_it_is_cut() {
        let input = b"5;a=b;c=\"d\\\"e\"\r\nhello\r\n00B\r\n0123456789a\r\n0\r\nX-Sum: 1\r\nHost: evil\r\n\r\nNEXT";
        for piece in 1..=input.len() {
            let (data, _, mut decoder) = decode(input, piece).expect("valid");
            assert_eq!(data, b"hello0123456789a");
            assert!(decoder.ended());
            assert_eq!(decoder.take_trailers().fields().collect::<Vec<_>>(), [(&b"X-Sum"[..], &b"1"[..])]);
        }
        assert_eq!(decode(input, input.len()).unwrap().1, b"NEXT");
    }

    #[test]
    fn invalid_chunked_coding_is_refused() {
        let long = format!("2;{}\r\n", "a".repeat(2000));
        for bad in [
            &b"0x5\r\n"[..],
            b"+5\r\n",
            b"-1\r\n",
            b" 5\r\n",
            b"5 \r\n",
            b"1_0\r\n",
            b"FFFFFFFFFFFFFFFF0\r\n",
            b"5\nhello",
            b"5\rX",
            b"\r\n",
            b"g\r\n",
            b"000000000000000005\r\n",
            b"5;\r\n",
            b"5;\nX",
            b"5;a=\rb",
            b"5;a=\"\r\n\"\r\n",
            b"5\r;a",
            b"5;bad[=x\r\n",
            b"5;a=\r\n",
            b"5;=b\r\n",
            b"5;a=\"b\"c\r\n",
            b"5; a=b\r\n",
            b"5\r\nhello!!\r\n",
            b"5\r\nhello0\r\n\r\n",
            b"5\r\nhello\n",
            b"0\r\nBad\r\n\r\n",
            b"0\r\nA: b\nC: d\r\n\r\n",
            b"0\r\n: x\r\n\r\n",
            b"0\r\nA B: x\r\n",
            b"0\r\n\n",
            b"0\r\nA: \0\r\n",
            b"5;a=\"\x7f\"\r\n",
            long.as_bytes(),
        ] {
            assert_eq!(decode(bad, bad.len()).err(), Some(BadChunk), "{}", bad.escape_ascii());
            assert_eq!(decode(bad, 1).err(), Some(BadChunk), "{}", bad.escape_ascii());
        }
    }

    #[test]
    fn trailers_are_bounded() {
        let many = format!("0\r\n{}\r\n", "A: b\r\n".repeat(200));
        assert!(decode(many.as_bytes(), 64).is_err());
        let long = format!("0\r\nA: {}\r\n\r\n", "b".repeat(2000));
        assert!(decode(long.as_bytes(), 64).is_err());
    }

    #[test]
    fn sizes_are_written_as_they_are_read() {
        for length in [1, 9, 10, 15, 16, 255, 256, 65536, usize::MAX] {
            let mut out = Vec::new();
            write_size(&mut out, length);
            assert_eq!(out, format!("{length:x}\r\n").as_bytes());
        }
    }

    proptest::proptest! {
        #[test]
        fn never_panics_and_agrees_with_itself(input in proptest::collection::vec(proptest::sample::select(b"05aF;=\"\\\r\n x:".to_vec()), 0..60)) {
            let whole = decode(&input, input.len().max(1)).map(|(data, _, decoder)| (data, decoder.ended()));
            let pieces = decode(&input, 1).map(|(data, _, decoder)| (data, decoder.ended()));
            proptest::prop_assert_eq!(whole, pieces);
        }
    }
}
