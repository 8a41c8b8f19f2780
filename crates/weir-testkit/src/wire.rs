//! HTTP/1 messages as received: all bytes are kept, and no value is normalised.

use std::io::{ErrorKind, Read};
use std::sync::{Arc, Mutex, PoisonError};

use crate::reading::{ReadError, Reading};
use crate::tls::Wire;

/// The most bytes of a connection that are recorded; the rest is discarded.
const RECORDING_LIMIT: usize = 4 << 20;
/// The longest line that is read; longer than the limits of a gateway under test.
const LINE_LIMIT: usize = 4 << 20;

/// The header or trailer fields of a message, in the order and spelling received. Bytes are Latin-1 characters, so
/// nothing is lost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields(pub Vec<(String, String)>);

impl Fields {
    /// The value of the first field of this name, in any case.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// The values of all fields of this name, in any case.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// Whether a field of this name is there, in any case.
    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Whether the comma-separated field `name` lists `member`, in any case.
    pub fn lists(&self, name: &str, member: &str) -> bool {
        self.all(name).flat_map(|value| value.split(',')).any(|item| item.trim().eq_ignore_ascii_case(member))
    }
}

/// How the end of a message's body is determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFraming {
    /// No body.
    None,
    /// `Content-Length`.
    Length(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked,
    /// A response that ends when its connection is closed.
    Close,
}

/// A request as an origin read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The method.
    pub method: String,
    /// The target, as in the request line.
    pub target: String,
    /// The version, as in the request line.
    pub version: String,
    /// The header fields.
    pub headers: Fields,
    /// How the body was framed.
    pub framing: BodyFraming,
    /// The body without its framing.
    pub body: Vec<u8>,
    /// The trailer fields.
    pub trailers: Fields,
    /// The bytes of the head, with the empty line.
    pub head: Vec<u8>,
    /// The index of the connection at its origin, from 0.
    pub connection: usize,
}

/// A response as a client read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The reason phrase.
    pub reason: String,
    /// `HTTP/1.1` or `HTTP/1.0`.
    pub version: String,
    /// The header fields.
    pub headers: Fields,
    /// How the body was framed.
    pub framing: BodyFraming,
    /// The body without its framing.
    pub body: Vec<u8>,
    /// The trailer fields.
    pub trailers: Fields,
    /// The 1xx responses that came before this one.
    pub informational: Vec<Response>,
}

impl Response {
    /// The body as text, for messages and comparisons.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Whether it was received over HTTP/1, where fields determine the framing.
    pub fn is_http1(&self) -> bool {
        self.version.starts_with("HTTP/1.")
    }

    /// Whether the sender closes the connection after this response.
    pub fn closes(&self) -> bool {
        self.headers.lists("Connection", "close")
            || self.framing == BodyFraming::Close
            || (self.version == "HTTP/1.0" && !self.headers.lists("Connection", "keep-alive"))
    }
}

/// Bytes as Latin-1 text: one character per byte.
pub fn latin1(bytes: &[u8]) -> String {
    bytes.iter().map(|&byte| char::from(byte)).collect()
}

/// The reverse of [`latin1`].
pub fn latin1_bytes(text: &str) -> Vec<u8> {
    text.chars().map(|letter| u8::try_from(u32::from(letter)).expect("Latin-1 text")).collect()
}

/// All bytes that a connection has received.
pub(crate) type Recording = Arc<Mutex<Vec<u8>>>;

/// Reads messages from a connection, with a buffer for bytes that were read ahead.
pub(crate) struct MessageReader {
    stream: Wire,
    held: Vec<u8>,
    recording: Option<Recording>,
}

impl MessageReader {
    pub(crate) fn new(stream: Wire, recording: Option<Recording>) -> MessageReader {
        MessageReader { stream, held: Vec::new(), recording }
    }

    /// Reads more bytes into `held`; `Ok(0)` is the end of the stream.
    fn fill(&mut self) -> Result<usize, ReadError> {
        let mut block = [0; 64 << 10];
        let count = loop {
            match self.stream.read(&mut block) {
                Ok(count) => break count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(&error)),
            }
        };
        self.held.extend_from_slice(&block[..count]);
        if let Some(recording) = &self.recording {
            let mut recording = recording.lock().unwrap_or_else(PoisonError::into_inner);
            let room = RECORDING_LIMIT.saturating_sub(recording.len()).min(count);
            recording.extend_from_slice(&block[..room]);
        }
        Ok(count)
    }

    fn failed(&self, error: &std::io::Error) -> ReadError {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => ReadError::TimedOut { partial: latin1(&self.held) },
            _ => ReadError::Reset { partial: latin1(&self.held) },
        }
    }

    fn need(&mut self) -> Result<(), ReadError> {
        match self.fill()? {
            0 => Err(ReadError::Closed { partial: latin1(&self.held) }),
            _ => Ok(()),
        }
    }

    /// One line with its line end.
    fn line(&mut self) -> Result<Vec<u8>, ReadError> {
        let mut from = 0;
        loop {
            if let Some(at) = self.held[from..].iter().position(|&byte| byte == b'\n') {
                return Ok(self.take(from + at + 1));
            }
            from = self.held.len();
            if from > LINE_LIMIT {
                return Err(ReadError::Malformed(format!("a line longer than {LINE_LIMIT} bytes")));
            }
            self.need()?;
        }
    }

    /// Exactly `count` bytes.
    pub(crate) fn exact(&mut self, count: u64) -> Result<Vec<u8>, ReadError> {
        let count = usize::try_from(count).map_err(|_| ReadError::Malformed(format!("a body of {count} bytes")))?;
        while self.held.len() < count {
            self.need()?;
        }
        Ok(self.take(count))
    }

    /// The first bytes of those that are held. They are copied as a whole: bytes that are collected one by one took a tenth of the
    /// time of tests that transfer much.
    fn take(&mut self, count: usize) -> Vec<u8> {
        let rest = self.held.split_off(count);
        std::mem::replace(&mut self.held, rest)
    }

    /// The bytes that are available, at least one; empty at the end of the stream.
    pub(crate) fn some(&mut self) -> Result<Vec<u8>, ReadError> {
        if self.held.is_empty() {
            self.fill()?;
        }
        Ok(std::mem::take(&mut self.held))
    }

    /// The bytes that are available, at least one and at most `limit`; empty at the end of the stream.
    pub(crate) fn up_to(&mut self, limit: u64) -> Result<Vec<u8>, ReadError> {
        if self.held.is_empty() {
            self.fill()?;
        }
        let count = usize::try_from(limit).unwrap_or(usize::MAX).min(self.held.len());
        Ok(self.take(count))
    }

    /// All bytes up to the end of the stream.
    pub(crate) fn rest(&mut self) -> Result<Vec<u8>, ReadError> {
        while self.fill()? > 0 {}
        Ok(std::mem::take(&mut self.held))
    }

    /// A head: its first line, its fields, and all its bytes.
    fn head(&mut self, reading: Reading) -> Result<(String, Fields, Vec<u8>), ReadError> {
        let mut bytes = self.line()?;
        // RFC 9112 §2.2: a server should ignore an empty line before a request.
        while reading != Reading::Strict && matches!(bytes.as_slice(), b"\r\n" | b"\n") {
            bytes = self.line()?;
        }
        let start = end_of_line(&bytes, reading)?;
        let mut fields = Fields::default();
        loop {
            let line = self.line()?;
            bytes.extend_from_slice(&line);
            let line = end_of_line(&line, reading)?;
            if line.is_empty() {
                return Ok((start, fields, bytes));
            }
            field(&line, &mut fields, reading)?;
        }
    }

    fn chunked(&mut self, reading: Reading) -> Result<(Vec<u8>, Fields), ReadError> {
        let mut body = Vec::new();
        loop {
            let data = self.chunk(reading)?;
            if data.is_empty() {
                return Ok((body, self.trailers(reading)?));
            }
            body.extend_from_slice(&data);
        }
    }

    /// One chunk with its line end; empty for the last chunk, whose trailers are not read.
    pub(crate) fn chunk(&mut self, reading: Reading) -> Result<Vec<u8>, ReadError> {
        let size = self.chunk_size(reading)?;
        if size == 0 {
            return Ok(Vec::new());
        }
        let data = self.exact(size)?;
        let end = self.exact(2)?;
        if reading == Reading::Strict && end != b"\r\n" {
            return Err(ReadError::Malformed(format!("{:?} where a chunk ends", latin1(&end))));
        }
        Ok(data)
    }

    /// The trailer section after the last chunk, with its empty line.
    pub(crate) fn trailers(&mut self, reading: Reading) -> Result<Fields, ReadError> {
        let mut trailers = Fields::default();
        loop {
            let line = self.line()?;
            let line = end_of_line(&line, reading)?;
            if line.is_empty() {
                return Ok(trailers);
            }
            field(&line, &mut trailers, reading)?;
        }
    }

    /// The size line of a chunk.
    fn chunk_size(&mut self, reading: Reading) -> Result<u64, ReadError> {
        let line = self.line()?;
        let line = end_of_line(&line, reading)?;
        let digits = match reading {
            Reading::Strict => line.as_str(),
            Reading::LengthWins | Reading::ChunkedWins => {
                let line = line.trim_start();
                &line[..line.find(|letter: char| !letter.is_ascii_hexdigit()).unwrap_or(line.len())]
            }
        };
        let valid = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let size = valid.then(|| u64::from_str_radix(digits, 16).ok()).flatten();
        size.ok_or_else(|| ReadError::Malformed(format!("{line:?} is not a chunk size")))
    }

    /// One request without its body.
    pub(crate) fn request_head(&mut self, reading: Reading, connection: usize) -> Result<Request, ReadError> {
        let (start, headers, head) = self.head(reading)?;
        let parts: Vec<&str> = match reading {
            Reading::Strict => start.split(' ').collect(),
            Reading::LengthWins | Reading::ChunkedWins => start.split_ascii_whitespace().collect(),
        };
        let [method, target, version] = parts[..] else {
            return Err(ReadError::Malformed(format!("{start:?} is not a request line")));
        };
        if reading == Reading::Strict && !(is_token(method) && matches!(version, "HTTP/1.1" | "HTTP/1.0")) {
            return Err(ReadError::Malformed(format!("{start:?} is not a request line")));
        }
        let framing = framing(&headers, reading)?.unwrap_or(BodyFraming::None);
        Ok(Request {
            method: method.to_owned(),
            target: target.to_owned(),
            version: version.to_owned(),
            headers,
            framing,
            body: Vec::new(),
            trailers: Fields::default(),
            head,
            connection,
        })
    }

    /// Reads a body with this framing.
    pub(crate) fn body(&mut self, framing: BodyFraming, reading: Reading) -> Result<(Vec<u8>, Fields), ReadError> {
        match framing {
            BodyFraming::None => Ok((Vec::new(), Fields::default())),
            BodyFraming::Length(length) => Ok((self.exact(length)?, Fields::default())),
            BodyFraming::Chunked => self.chunked(reading),
            BodyFraming::Close => Ok((self.rest()?, Fields::default())),
        }
    }

    /// One response without its body, to a request with `method`.
    pub(crate) fn response_head(&mut self, method: &str) -> Result<Response, ReadError> {
        let (start, headers, _) = self.head(Reading::Strict)?;
        let malformed = || ReadError::Malformed(format!("{start:?} is not a status line"));
        let (version, rest) = start.split_once(' ').ok_or_else(malformed)?;
        let (status, reason) = rest.split_once(' ').ok_or_else(malformed)?;
        if !matches!(version, "HTTP/1.1" | "HTTP/1.0") || status.len() != 3 {
            return Err(malformed());
        }
        let status: u16 = status.parse().map_err(|_| malformed())?;
        // The first rules of RFC 9112 §6.3: these never have a body, regardless of their fields.
        let bodiless = method == "HEAD" || status < 200 || status == 204 || status == 304;
        let framing = match framing(&headers, Reading::Strict)? {
            _ if bodiless || (method == "CONNECT" && status < 300) => BodyFraming::None,
            Some(framing) => framing,
            None => BodyFraming::Close,
        };
        Ok(Response {
            status,
            reason: reason.to_owned(),
            version: version.to_owned(),
            headers,
            framing,
            body: Vec::new(),
            trailers: Fields::default(),
            informational: Vec::new(),
        })
    }
}

/// A line without its line end.
fn end_of_line(line: &[u8], reading: Reading) -> Result<String, ReadError> {
    let content = line.strip_suffix(b"\n").unwrap_or(line);
    match reading {
        Reading::Strict => match content.strip_suffix(b"\r") {
            Some(content) if !content.contains(&b'\r') => Ok(latin1(content)),
            _ => Err(ReadError::Malformed(format!("{:?} does not end in one CRLF", latin1(line)))),
        },
        Reading::LengthWins | Reading::ChunkedWins => Ok(latin1(content).trim_end_matches('\r').to_owned()),
    }
}

fn field(line: &str, fields: &mut Fields, reading: Reading) -> Result<(), ReadError> {
    let malformed = || ReadError::Malformed(format!("{line:?} is not a field"));
    if reading == Reading::Strict {
        let (name, value) = line.split_once(':').ok_or_else(malformed)?;
        if !is_token(name) || value.contains(|letter: char| letter.is_ascii_control() && letter != '\t') {
            return Err(malformed());
        }
        fields.0.push((name.to_owned(), value.trim_matches([' ', '\t']).to_owned()));
        return Ok(());
    }
    match line.split_once(':') {
        _ if line.starts_with([' ', '\t']) && !fields.0.is_empty() => {
            let last = fields.0.last_mut().expect("not empty");
            last.1.push(' ');
            last.1.push_str(line.trim());
        }
        Some((name, value)) => fields.0.push((name.trim().to_owned(), value.trim().to_owned())),
        None => {}
    }
    Ok(())
}

/// The framing of a message: strictly by RFC 9112 §6.3, with all ambiguities as errors, or as lenient servers read it.
fn framing(headers: &Fields, reading: Reading) -> Result<Option<BodyFraming>, ReadError> {
    if reading == Reading::Strict {
        let codings: Vec<&str> = headers.all("Transfer-Encoding").collect();
        let lengths: Vec<&str> = headers.all("Content-Length").collect();
        return match (&codings[..], &lengths[..]) {
            ([], []) => Ok(None),
            ([coding], []) if coding.eq_ignore_ascii_case("chunked") => Ok(Some(BodyFraming::Chunked)),
            ([], [length]) if !length.is_empty() && length.bytes().all(|digit| digit.is_ascii_digit()) => {
                let length = length.parse().map_err(|_| ReadError::Malformed(format!("Content-Length: {length}")))?;
                Ok(Some(BodyFraming::Length(length)))
            }
            _ => Err(ReadError::Malformed(format!("doubtful framing: {codings:?} with {lengths:?}"))),
        };
    }
    let like = |wanted: &str| {
        let found = headers.0.iter().find(|(name, _)| name.replace('_', "-").eq_ignore_ascii_case(wanted));
        found.map(|(_, value)| value.to_ascii_lowercase())
    };
    let chunked = like("transfer-encoding").filter(|value| value.contains("chunk")).map(|_| BodyFraming::Chunked);
    let length = like("content-length").map(|value| {
        let digits = value.trim_start_matches('+');
        let digits = &digits[..digits.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(digits.len())];
        BodyFraming::Length(digits.parse().unwrap_or(0))
    });
    Ok(match reading {
        Reading::LengthWins => length.or(chunked),
        _ => chunked.or(length),
    })
}

/// Whether the text is a token (RFC 9110 §5.6.2).
fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}
