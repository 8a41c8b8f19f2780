//! One connection, of either side: what has been said on it, and what may be said next.

mod content;
mod receive;
mod sections;
mod send;

use super::PREFACE;
use super::credit::Credit;
use super::frame::{self, ErrorCode, MOST_STREAM};
use super::hpack::{Decoder, Encoder};
use super::priority::Priority;
use super::settings::{self, FIRST_WINDOW, Settings};
use super::streams::Streams;
use super::window::{ReceiveWindow, SendWindow};
use crate::h1::Limits;
use crate::h1::{BadResponse, Reject};
use crate::head::{RequestHead, ResponseHead};
use crate::trailers::Trailers;

pub use send::{FieldWriter, Sent};

/// Which side of the connection is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Client,
    Server,
}

/// What the peer is held to.
#[derive(Clone, Copy, Debug)]
pub struct PeerLimits {
    /// Of a head, and of trailers.
    pub limits: Limits,
    /// Streams that the peer may have open at a time.
    pub streams: u32,
    /// Content that may be on its way or waiting here: of a stream, and of all of them.
    pub stream_window: u32,
    pub connection_window: u32,
}

/// Where the next head goes. It must be clear.
pub enum HeadTarget<'l> {
    Request(&'l mut RequestHead),
    Response(&'l mut ResponseHead),
}

/// What has come. `key` is what the user calls the stream.
#[derive(Debug, PartialEq, Eq)]
pub enum ConnectionEvent<'b> {
    /// A request began, and stands in the head that was lent. What is refused is still to be answered.
    Request { stream: u32, ended: bool, parsed: Result<(), Reject> },
    /// A malformed request: its stream was reset.
    Malformed { stream: u32 },
    /// The head of a response, interim or final, stands where it was lent. After one that is refused the stream is over.
    Response { key: usize, ended: bool, parsed: Result<(), BadResponse> },
    /// Content; with `ended`, the last of it. Its window opens with [`Connection::release`].
    Data { key: usize, bytes: &'b [u8], ended: bool },
    /// What comes after the content, and ends it.
    Trailers { key: usize, trailers: Trailers },
    /// The peer has reset the stream.
    Reset { key: usize, code: ErrorCode },
    /// The stream was reset for what came on it.
    Failed { key: usize, code: ErrorCode },
    /// More may be sent: on this stream, or on any of them.
    Opened { key: Option<usize> },
    /// The peer will go; what began after stream `last` it has not looked at.
    Leaves { last: u32, code: ErrorCode },
}

/// How far our own leaving has come (§6.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GoawayState {
    No,
    /// It was announced; the peer's answer to a ping says that it knows.
    Announced,
    /// This was the last stream.
    Final(u32),
}

/// A field section whose frames have not all come.
#[derive(Clone, Copy, Debug)]
struct Section {
    stream: u32,
    ended: bool,
    purpose: Purpose,
    /// It says that the stream depends on itself (RFC 7540 §5.3.1).
    depends_on_itself: bool,
    frames: u8,
}

/// What a field section is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Message,
    Trailers,
    /// Nothing: it is decoded for what it does to the table.
    Nothing,
}

/// A DATA frame whose payload has not all come.
#[derive(Clone, Copy, Debug)]
struct DataFrame {
    /// 0 where it is thrown away.
    stream: u32,
    left: u32,
    padding: u32,
    ended: bool,
}

/// The state of one connection. It reads bytes with [`Connection::next`]; what it says stands in [`Connection::output`]
/// until somebody sends it.
#[derive(Debug)]
pub struct Connection {
    role: Role,
    bounds: PeerLimits,
    peer: Settings,
    decoder: Decoder,
    encoder: Encoder,
    streams: Streams,
    /// The highest number of a stream that the peer has begun.
    last_peer: u32,
    /// The number of the next stream of ours.
    next_own: u32,
    send: SendWindow,
    receive: ReceiveWindow,
    credit: Credit,
    /// Bytes of the preface that have come.
    preface: u8,
    settings_seen: bool,
    has_priorities: bool,
    /// Priorities of streams that have not begun (RFC 9218 §7.1), the oldest first.
    early: Vec<(u32, Priority)>,
    leaving: GoawayState,
    /// The peer has said that it takes no more streams.
    peer_leaves: bool,
    section: Option<Section>,
    section_bytes: Vec<u8>,
    /// What all field sections have taken on the wire.
    sections: u64,
    content: Option<DataFrame>,
    out: Vec<u8>,
}

impl Connection {
    /// Begins a connection: what has to be said first stands in the output.
    pub fn new(role: Role, bounds: PeerLimits, now_ns: u64) -> Connection {
        let mut out = Vec::new();
        let mut receive = ReceiveWindow::new(FIRST_WINDOW);
        let mut said = vec![
            (settings::INITIAL_WINDOW_SIZE, bounds.stream_window),
            (settings::MAX_HEADER_LIST_SIZE, u32::try_from(bounds.limits.head_bytes).unwrap_or(u32::MAX)),
        ];
        match role {
            Role::Client => {
                out.extend_from_slice(PREFACE);
                said.push((settings::ENABLE_PUSH, 0));
            }
            Role::Server => said.extend([
                (settings::MAX_CONCURRENT_STREAMS, bounds.streams),
                (settings::ENABLE_CONNECT_PROTOCOL, 1),
                (settings::NO_RFC7540_PRIORITIES, 1),
            ]),
        }
        frame::write_head(&mut out, frame::kind::SETTINGS, 0, 0, said.len() * 6);
        for (name, value) in said {
            out.extend_from_slice(&name.to_be_bytes());
            out.extend_from_slice(&value.to_be_bytes());
        }
        let more = receive.grow(bounds.connection_window);
        if more > 0 {
            frame::write_window_update(&mut out, 0, more);
        }
        Connection {
            role,
            bounds,
            peer: Settings::default(),
            decoder: Decoder::default(),
            encoder: Encoder::default(),
            streams: Streams::default(),
            last_peer: 0,
            next_own: 1,
            send: SendWindow::new(FIRST_WINDOW),
            receive,
            credit: Credit::new(now_ns),
            preface: if role == Role::Server { 0 } else { PREFACE.len() as u8 },
            settings_seen: false,
            has_priorities: false,
            early: Vec::new(),
            leaving: GoawayState::No,
            peer_leaves: false,
            section: None,
            section_bytes: Vec::new(),
            sections: 0,
            content: None,
            out,
        }
    }

    /// What is to be sent. It grows by what is said, and the user takes from its front what has left.
    pub fn output(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// What the peer may still do for nothing.
    pub fn credit(&mut self) -> &mut Credit {
        &mut self.credit
    }

    pub fn peer(&self) -> &Settings {
        &self.peer
    }

    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// A head is on its way and not complete; nor is the beginning of the connection, where that is still to come.
    pub fn expects_more(&self) -> bool {
        self.section.is_some() || usize::from(self.preface) < PREFACE.len() || !self.settings_seen
    }

    /// Bytes that all field sections have taken on the wire.
    pub fn sections(&self) -> u64 {
        self.sections
    }

    /// The preface and the first settings have come.
    pub fn has_begun(&self) -> bool {
        self.settings_seen
    }

    /// The peer says which of its responses matter more.
    pub fn has_priorities(&self) -> bool {
        self.has_priorities
    }

    /// Of a stream that is open.
    pub fn priority(&self, stream: u32) -> Priority {
        self.streams.get(stream).map(|stream| stream.priority).unwrap_or_default()
    }

    /// From now on events call the stream by this key.
    pub fn set_key(&mut self, stream: u32, key: usize) {
        if let Some(stream) = self.streams.get_mut(stream) {
            stream.key = key;
        }
    }

    /// The stream is neither closed nor unknown.
    pub fn is_open(&self, stream: u32) -> bool {
        self.streams.get(stream).is_some()
    }

    /// All streams that are open, by their keys.
    pub fn keys(&self) -> impl Iterator<Item = (u32, usize)> {
        self.streams.iter().map(|stream| (stream.id, stream.key))
    }

    /// Says that it will end, and with which stream once the peer knows (§6.8).
    pub fn leave(&mut self) {
        if self.leaving == GoawayState::No {
            self.leaving = GoawayState::Announced;
            frame::write_goaway(&mut self.out, MOST_STREAM, ErrorCode::NO_ERROR);
            frame::write_ping(&mut self.out, 0, LEAVING);
        }
    }

    /// The peer knows which stream is the last, and it has ended.
    pub fn is_done(&self) -> bool {
        matches!(self.leaving, GoawayState::Final(_)) && self.streams.is_empty()
    }

    /// Asks whether the peer is there: it will answer (§6.7).
    pub fn send_ping(&mut self) {
        frame::write_ping(&mut self.out, 0, ASKING);
    }

    /// Says why the connection ends now.
    pub fn fail(&mut self, code: ErrorCode) {
        // §6.8: that number never grows.
        let last = if let GoawayState::Final(last) = self.leaving { last } else { self.last_peer };
        frame::write_goaway(&mut self.out, last, code);
    }

    /// From now on heads are held to these limits.
    pub fn set_limits(&mut self, limits: Limits) {
        self.bounds.limits = limits;
    }

    /// Gives back the memory that only messages need, while no stream is open.
    pub fn rest(&mut self) {
        self.encoder.forget();
        self.streams.rest();
    }

    /// Memory taken beside the connection's own, in bytes.
    pub fn capacity(&self) -> usize {
        self.decoder.capacity() + self.encoder.capacity() + self.out.capacity() + self.section_bytes.capacity()
    }
}

/// The most that may wait in the output for a peer that takes nothing: many times what heads and content come to, so what
/// makes it grow are answers to frames of the connection.
const MOST_OUTPUT: usize = 8 << 20;

/// What a ping says whose answer means that the peer knows that we leave.
const LEAVING: [u8; 8] = *b"leaving?";
/// What any other ping says.
const ASKING: [u8; 8] = *b"present?";

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
