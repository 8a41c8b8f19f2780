//! A parser for the chunked transfer coding (RFC 9112 §7.1).

use memchr::memchr;

/// The peer's bytes are not valid HTTP/1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MalformedMessage;

/// The state of parsing a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chunked {
    /// In the size of a chunk, with its value so far.
    Size {
        size: u64,
        digits: u8,
    },
    /// After the size, up to the end of its line (chunk extensions).
    SizeLine(u64),
    Data(u64),
    /// In the line end after the data.
    DataEnd,
    /// At the start of a trailer line.
    Trailer,
    /// Within a trailer line.
    TrailerLine,
}

impl Default for Chunked {
    fn default() -> Self {
        Chunked::Size { size: 0, digits: 0 }
    }
}

impl Chunked {
    /// Parses more bytes, and passes those of the content to `content`. Returns how many of the bytes belong to the
    /// body if it ends among them.
    pub(crate) fn feed(
        &mut self,
        data: &[u8],
        mut content: impl FnMut(&[u8]),
    ) -> Result<Option<usize>, MalformedMessage> {
        let mut at = 0;
        while at < data.len() {
            let byte = data[at];
            match *self {
                Chunked::Size { size, digits } => {
                    at += 1;
                    *self = match (byte as char).to_digit(16) {
                        Some(_) if digits == 16 => return Err(MalformedMessage),
                        Some(digit) => Chunked::Size { size: size << 4 | u64::from(digit), digits: digits + 1 },
                        None if digits == 0 => return Err(MalformedMessage),
                        None if byte == b'\n' => Self::after_size(size),
                        None if matches!(byte, b'\r' | b';' | b' ' | b'\t') => Chunked::SizeLine(size),
                        None => return Err(MalformedMessage),
                    };
                }
                Chunked::SizeLine(size) => match memchr(b'\n', &data[at..]) {
                    Some(end) => {
                        at += end + 1;
                        *self = Self::after_size(size);
                    }
                    None => return Ok(None),
                },
                Chunked::Data(left) => {
                    let here = left.min((data.len() - at) as u64);
                    content(&data[at..at + here as usize]);
                    at += here as usize;
                    *self = if here == left { Chunked::DataEnd } else { Chunked::Data(left - here) };
                }
                Chunked::DataEnd => {
                    at += 1;
                    match byte {
                        b'\r' => {}
                        b'\n' => *self = Chunked::default(),
                        _ => return Err(MalformedMessage),
                    }
                }
                Chunked::Trailer => {
                    at += 1;
                    match byte {
                        b'\r' => {}
                        b'\n' => return Ok(Some(at)),
                        _ => *self = Chunked::TrailerLine,
                    }
                }
                Chunked::TrailerLine => match memchr(b'\n', &data[at..]) {
                    Some(end) => {
                        at += end + 1;
                        *self = Chunked::Trailer;
                    }
                    None => return Ok(None),
                },
            }
        }
        Ok(None)
    }

    fn after_size(size: u64) -> Self {
        if size == 0 { Chunked::Trailer } else { Chunked::Data(size) }
    }
}
