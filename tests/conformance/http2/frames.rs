//! A client that sends HTTP/2 frame by frame, right or wrong. It shares no code with the gateway: field sections are
//! literals, and of answers only what is not compressed is looked at.

use std::collections::BTreeMap;
use std::time::Duration;

use weir_testkit::{Client, DEADLINE, Gateway, ReadError};

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const PRIORITY: u8 = 2;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PUSH_PROMISE: u8 = 5;
pub(super) const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
pub(super) const WINDOW_UPDATE: u8 = 8;
pub(super) const CONTINUATION: u8 = 9;

pub(super) const END_STREAM: u8 = 0x1;
pub(super) const ACK: u8 = 0x1;
pub(super) const END_HEADERS: u8 = 0x4;
/// A whole field section, and nothing after it.
pub(super) const WHOLE: u8 = END_STREAM | END_HEADERS;

pub(super) const NO_ERROR: u32 = 0x0;
pub(super) const PROTOCOL_ERROR: u32 = 0x1;
pub(super) const INTERNAL_ERROR: u32 = 0x2;
pub(super) const REFUSED_STREAM: u32 = 0x7;
pub(super) const CANCEL: u32 = 0x8;
pub(super) const ENHANCE_YOUR_CALM: u32 = 0xb;

/// Fields that make any message malformed, from a client or from an upstream (RFC 9113 §8.2, §8.3): control characters, white
/// space around a value, names that are not lower-case tokens, fields of a connection, and pseudo-fields that are unknown, repeated
/// or of the other direction.
pub(super) const MALFORMED_FIELDS: [(&str, &str); 29] = [
    ("x", "a\x7fb"),
    ("x", "a\0b"),
    ("x", "a\rb"),
    ("x", "a\nb"),
    ("x", "a\x01b"),
    ("x", "a\x1bb"),
    ("x", " a"),
    ("x", "a "),
    ("x", "\ta"),
    ("x", "a\t"),
    ("X", "a"),
    ("x-Y", "a"),
    ("", "a"),
    ("x y", "a"),
    ("x:", "a"),
    ("x\0", "a"),
    ("x\n", "a"),
    ("x\u{fc}", "a"),
    ("x(", "a"),
    ("connection", "close"),
    ("keep-alive", "timeout=5"),
    ("proxy-connection", "close"),
    ("transfer-encoding", "chunked"),
    ("upgrade", "h2c"),
    (":unknown", "x"),
    (":method", "GET"),
    (":scheme", "http"),
    (":authority", "t"),
    (":protocol", "websocket"),
];

pub(super) const MAX_CONCURRENT_STREAMS: u16 = 0x3;
pub(super) const INITIAL_WINDOW_SIZE: u16 = 0x4;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// One frame as it goes over the wire (RFC 9113 §4.1).
pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: impl AsRef<[u8]>) -> Vec<u8> {
    let payload = payload.as_ref();
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A HEADERS frame with these fields, pseudo-fields among them.
pub(super) fn headers(stream: u32, flags: u8, fields: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, flags, stream, section(fields))
}

pub(super) fn reset(stream: u32, code: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, code.to_be_bytes())
}

/// The fields of a GET, with `more` behind them.
pub(super) fn get<'a>(path: &'a str, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    request("GET", path, more)
}

pub(super) fn request<'a>(method: &'a str, path: &'a str, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut fields = vec![(":method", method), (":scheme", "http"), (":authority", "t"), (":path", path)];
    fields.extend_from_slice(more);
    fields
}

/// A field section of literals that are not remembered (RFC 7541 §6.2.2).
pub(super) fn section(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in fields {
        bytes.push(0);
        text(&mut bytes, name);
        text(&mut bytes, value);
    }
    bytes
}

/// The same for one field that is remembered (RFC 7541 §6.2.1): from then on it is entry 62.
pub(super) fn remembered(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = vec![0x40];
    text(&mut bytes, name);
    text(&mut bytes, value);
    bytes
}

/// A string that is not Huffman coded (RFC 7541 §5.2).
fn text(bytes: &mut Vec<u8>, text: &str) {
    match u8::try_from(text.len()) {
        Ok(length) if length < 127 => bytes.push(length),
        _ => {
            bytes.push(127);
            let mut rest = text.len() - 127;
            while rest >= 128 {
                bytes.push((rest % 128) as u8 | 0x80);
                rest /= 128;
            }
            bytes.push(rest as u8);
        }
    }
    bytes.extend_from_slice(text.as_bytes());
}

/// A received frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl Frame {
    /// The error code of RST_STREAM, or the first number of whatever else.
    fn number(&self, at: usize) -> u32 {
        self.payload.get(at..at + 4).map_or(0, |bytes| u32::from_be_bytes(bytes.try_into().expect("four bytes")))
    }
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// An answer. Its status is one that HPACK has an entry for (RFC 7541 appendix A), or 0.
    Answered(u16, String),
    /// The stream was reset, with this code.
    Reset(u32),
    /// The connection ends, with this code.
    GoAway(u32),
    /// The connection ended without a word.
    Closed,
}

/// One connection of HTTP/2.
pub(super) struct Frames {
    client: Client,
    /// What each stream has brought until now.
    heads: BTreeMap<u32, (u16, Vec<u8>)>,
    next_stream: u32,
}

impl Frames {
    /// Begins a connection by prior knowledge.
    pub(super) fn connect(gateway: &Gateway) -> Frames {
        Frames::over(gateway.client())
    }

    /// The same with settings.
    pub(super) fn connect_with(gateway: &Gateway, settings: &[(u16, u32)]) -> Frames {
        Frames::begin(gateway.client(), settings)
    }

    /// The same with the smallest receive buffer that the kernel allows.
    pub(super) fn connect_narrow(gateway: &Gateway, settings: &[(u16, u32)]) -> Frames {
        Frames::begin(Client::connect_narrow(gateway.addr()).expect("it listens"), settings)
    }

    /// Begins a connection on what `client` has agreed on already.
    pub(super) fn over(client: Client) -> Frames {
        Frames::begin(client, &[])
    }

    fn begin(mut client: Client, settings: &[(u16, u32)]) -> Frames {
        let mut payload = Vec::new();
        for (name, value) in settings {
            payload.extend_from_slice(&name.to_be_bytes());
            payload.extend_from_slice(&value.to_be_bytes());
        }
        client.send([PREFACE, &frame(SETTINGS, 0, 0, payload), &frame(SETTINGS, ACK, 0, b"")].concat());
        Frames { client, heads: BTreeMap::new(), next_stream: 1 }
    }

    /// The number of a stream that was not used before.
    pub(super) fn stream(&mut self) -> u32 {
        self.next_stream += 2;
        self.next_stream - 2
    }

    /// Sends as it is; whether it was taken.
    pub(super) fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.client.try_send(bytes).is_ok()
    }

    /// Receives a frame. `None` is the end of the connection, with or without a reset.
    pub(super) fn receive(&mut self) -> Option<Frame> {
        match self.read() {
            Ok(frame) => Some(frame),
            Err(ReadError::Closed { .. } | ReadError::Reset { .. }) => None,
            Err(error) => panic!("{error}"),
        }
    }

    fn read(&mut self) -> Result<Frame, ReadError> {
        let head = self.client.exact(9)?;
        let length = u64::from(u32::from_be_bytes([0, head[0], head[1], head[2]]));
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        Ok(Frame { kind: head[3], flags: head[4], stream, payload: self.client.exact(length)? })
    }

    /// Waits for what becomes of the request on `stream`.
    pub(super) fn end(&mut self, stream: u32) -> End {
        while let Some(frame) = self.receive() {
            match frame.kind {
                GOAWAY if frame.number(4) != NO_ERROR => return End::GoAway(frame.number(4)),
                RST_STREAM if frame.stream == stream => return End::Reset(frame.number(0)),
                HEADERS => {
                    self.heads.entry(frame.stream).or_insert_with(|| (status(&frame.payload), Vec::new()));
                }
                DATA => self.heads.entry(frame.stream).or_default().1.extend_from_slice(&frame.payload),
                _ => {}
            }
            if matches!(frame.kind, HEADERS | DATA)
                && frame.flags & END_STREAM != 0
                && let Some((status, body)) = self.heads.remove(&frame.stream)
                && frame.stream == stream
            {
                return End::Answered(status, String::from_utf8_lossy(&body).into_owned());
            }
        }
        End::Closed
    }

    /// Waits until the connection's window is opened, and says by how much.
    pub(super) fn opened(&mut self) -> u32 {
        loop {
            let frame = self.receive().expect("the connection stands");
            if frame.kind == WINDOW_UPDATE && frame.stream == 0 {
                return frame.number(0);
            }
        }
    }

    /// Waits for the answer to a ping.
    pub(super) fn answer_to_ping(&mut self) {
        loop {
            let frame = self.receive().expect("the connection stands");
            if frame.kind == PING && frame.flags & ACK != 0 {
                return;
            }
        }
    }

    /// Waits for `time`, in which nothing may be received, and the connection must stand.
    #[track_caller]
    pub(super) fn stands_silent_for(&mut self, time: Duration) {
        self.client.set_deadline(time);
        match self.read() {
            Err(ReadError::TimedOut { .. }) => self.client.set_deadline(DEADLINE),
            other => panic!("{other:?}"),
        }
    }

    /// Asks for `path` on a stream of its own.
    pub(super) fn ask(&mut self, path: &str) -> End {
        self.ask_for(&get(path, &[]))
    }

    /// Sends a request of these fields on a stream of its own.
    pub(super) fn ask_for(&mut self, fields: &[(&str, &str)]) -> End {
        let stream = self.stream();
        self.send(headers(stream, WHOLE, fields));
        self.end(stream)
    }

    /// A GET for `target` gets its own answer from an echoing origin.
    pub(super) fn canary(&mut self, target: &str) -> Result<(), String> {
        match self.ask(target) {
            End::Answered(200, body) if body == format!("GET {target} 0") => Ok(()),
            end => Err(format!("{target} on the same connection: {end:?}")),
        }
    }

    /// Reads to the end of the connection; the frames that came.
    pub(super) fn until_closed(&mut self) -> Farewell {
        let mut farewell = Farewell::default();
        while let Some(frame) = self.receive() {
            match frame.kind {
                GOAWAY => (farewell.last_stream, farewell.code) = (frame.number(0), Some(frame.number(4))),
                PING if frame.flags & ACK != 0 => farewell.answers += 1,
                SETTINGS if frame.flags & ACK != 0 => farewell.answers += 1,
                RST_STREAM => farewell.resets += 1,
                _ => {}
            }
        }
        farewell
    }
}

/// What came before the end of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Farewell {
    /// The code of the last GOAWAY; `None` where there was none.
    pub code: Option<u32>,
    /// The last stream that it names.
    pub last_stream: u32,
    /// Answers to pings and settings.
    pub answers: usize,
    pub resets: usize,
}

fn status(section: &[u8]) -> u16 {
    match section.first() {
        Some(index @ 0x88..=0x8e) => [200, 204, 206, 304, 400, 404, 500][usize::from(index - 0x88)],
        _ => 0,
    }
}
