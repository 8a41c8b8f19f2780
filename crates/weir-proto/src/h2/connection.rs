//! One HTTP/2 connection, of either role: frames and their state machine, without I/O.

mod content;
mod receive;
mod sections;
mod send;

use super::PREFACE;
use super::credit::Credit;
use super::frame::{self, ErrorCode, MAX_STREAM_ID};
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

/// The role of this end of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Client,
    Server,
}

/// Limits the peer must keep.
#[derive(Clone, Copy, Debug)]
pub struct PeerLimits {
    /// Limits of a head, and of trailers.
    pub limits: Limits,
    /// Streams the peer may have open at a time.
    pub streams: u32,
    /// Flow-control windows in bytes: content in flight or held here, of one stream and of the connection.
    pub stream_window: u32,
    pub connection_window: u32,
}

/// Where the next head is decoded to. The head must be clear.
pub enum HeadTarget<'l> {
    Request(&'l mut RequestHead),
    Response(&'l mut ResponseHead),
}

/// What was received. `key` is the caller's key for the stream, see [`Connection::set_key`].
#[derive(Debug, PartialEq, Eq)]
pub enum ConnectionEvent<'b> {
    /// A request began; its head is in the `HeadTarget`. If `parsed` is an error, the caller still has to respond.
    Request { stream: u32, ended: bool, parsed: Result<(), Reject> },
    /// A malformed request; its stream was reset.
    Malformed { stream: u32 },
    /// The head of a response, interim or final, is in the `HeadTarget`. If `parsed` is an error, the stream was reset.
    Response { key: usize, ended: bool, parsed: Result<(), BadResponse> },
    /// Content; with `ended`, the last piece. [`Connection::release`] opens the flow-control window again.
    Data { key: usize, bytes: &'b [u8], ended: bool },
    /// Trailers, which end the message.
    Trailers { key: usize, trailers: Trailers },
    /// The peer reset the stream (RST_STREAM).
    Reset { key: usize, code: ErrorCode },
    /// The stream was reset here, because the peer violated the protocol on it.
    Failed { key: usize, code: ErrorCode },
    /// A send window grew: that of one stream, or with `None` possibly those of all.
    WindowOpened { key: Option<usize> },
    /// The peer sent GOAWAY: it has not processed streams above `last`.
    GoAway { last: u32, code: ErrorCode },
}

/// Something the peer has begun and not completed. Equal values are the same thing, begun at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfinished {
    /// The preface, and the first SETTINGS frame.
    Beginning,
    /// The field section with this number, counted over those of more than one frame.
    Section(u64),
    /// The frame that began after so many bytes of the connection.
    Frame(u64),
}

/// State of our own graceful shutdown (§6.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GoawayState {
    No,
    /// GOAWAY with the highest stream number was sent, and a PING whose answer shows that the peer has read it.
    Announced,
    /// The final GOAWAY was sent, with the last stream that is processed.
    Final(u32),
}

/// A field section of which more frames are to come.
#[derive(Clone, Copy, Debug)]
struct Section {
    stream: u32,
    ended: bool,
    purpose: Purpose,
    /// Its HEADERS frame declares that the stream depends on itself (RFC 7540 §5.3.1), an error.
    depends_on_itself: bool,
    frames: u8,
}

/// What a field section is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Message,
    Trailers,
    /// The section is only decoded to keep the HPACK table in step, then discarded.
    Nothing,
}

/// A DATA frame of which more payload is to come.
#[derive(Clone, Copy, Debug)]
struct DataFrame {
    /// 0 if the payload is discarded.
    stream: u32,
    /// Payload bytes to come, padding included.
    left: u32,
    padding: u32,
    ended: bool,
}

/// The state of one connection. [`Connection::next`] reads received bytes; bytes to send collect in [`Connection::output`] until
/// the caller sends them.
#[derive(Debug)]
pub struct Connection {
    role: Role,
    bounds: PeerLimits,
    peer: Settings,
    decoder: Decoder,
    encoder: Encoder,
    streams: Streams,
    /// The highest stream number the peer has used.
    last_peer: u32,
    /// The number of the next stream this end opens.
    next_own: u32,
    send: SendWindow,
    receive: ReceiveWindow,
    credit: Credit,
    /// Bytes of the client preface received.
    preface: u8,
    settings_seen: bool,
    has_priorities: bool,
    /// Priorities received for streams that are not open yet (RFC 9218 §7.1), the oldest first.
    early: Vec<(u32, Priority)>,
    leaving: GoawayState,
    /// The peer has sent GOAWAY and accepts no more streams.
    goaway_received: bool,
    section: Option<Section>,
    section_bytes: Vec<u8>,
    /// Field sections that took more than one frame, the current one included.
    unfinished_sections: u64,
    /// Bytes of all HEADERS and CONTINUATION payloads received.
    sections: u64,
    content: Option<DataFrame>,
    out: Vec<u8>,
}

impl Connection {
    /// Begins a connection: the output starts with the preface (client), SETTINGS and WINDOW_UPDATE.
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
            goaway_received: false,
            section: None,
            section_bytes: Vec::new(),
            unfinished_sections: 0,
            sections: 0,
            content: None,
            out,
        }
    }

    /// Bytes to send, appended by other methods. The caller removes from the front what it has sent.
    pub fn output(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// The peer's credit for frames that cause work and carry no content.
    pub fn credit(&mut self) -> &mut Credit {
        &mut self.credit
    }

    pub fn peer(&self) -> &Settings {
        &self.peer
    }

    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// What the peer has begun and not completed: a field section, or the connection's beginning. An incomplete frame is the
    /// caller's to see, since its bytes have not been taken.
    pub fn unfinished(&self) -> Option<Unfinished> {
        match self.section {
            Some(_) => Some(Unfinished::Section(self.unfinished_sections)),
            None if usize::from(self.preface) < PREFACE.len() || !self.settings_seen => Some(Unfinished::Beginning),
            None => None,
        }
    }

    /// Bytes of all HEADERS and CONTINUATION payloads received.
    pub fn sections(&self) -> u64 {
        self.sections
    }

    /// The preface and the first SETTINGS frame have arrived.
    pub fn has_begun(&self) -> bool {
        self.settings_seen
    }

    /// The peer has sent priorities for its responses (RFC 9218).
    pub fn has_priorities(&self) -> bool {
        self.has_priorities
    }

    /// The priority of an open stream; the default for any other.
    pub fn priority(&self, stream: u32) -> Priority {
        self.streams.get(stream).map(|stream| stream.priority).unwrap_or_default()
    }

    /// Sets the caller's key for a stream, which later events carry.
    pub fn set_key(&mut self, stream: u32, key: usize) {
        if let Some(stream) = self.streams.get_mut(stream) {
            stream.key = key;
        }
    }

    /// The stream is open or half closed.
    pub fn is_open(&self, stream: u32) -> bool {
        self.streams.get(stream).is_some()
    }

    /// Number and key of all open streams.
    pub fn keys(&self) -> impl Iterator<Item = (u32, usize)> {
        self.streams.iter().map(|stream| (stream.id, stream.key))
    }

    /// Begins a graceful shutdown (§6.8): announces it, and sends the final GOAWAY once the peer has answered the PING.
    pub fn leave(&mut self) {
        if self.leaving == GoawayState::No {
            self.leaving = GoawayState::Announced;
            frame::write_goaway(&mut self.out, MAX_STREAM_ID, ErrorCode::NO_ERROR);
            frame::write_ping(&mut self.out, 0, LEAVING);
        }
    }

    /// The final GOAWAY was sent, and all streams have ended.
    pub fn is_done(&self) -> bool {
        matches!(self.leaving, GoawayState::Final(_)) && self.streams.is_empty()
    }

    /// Sends a PING (§6.7); its answer shows that the peer is alive.
    pub fn send_ping(&mut self) {
        frame::write_ping(&mut self.out, 0, ASKING);
    }

    /// Sends GOAWAY with the reason why the connection is closed now.
    pub fn fail(&mut self, code: ErrorCode) {
        // §6.8: the last stream number of a GOAWAY must not grow.
        let last = if let GoawayState::Final(last) = self.leaving { last } else { self.last_peer };
        frame::write_goaway(&mut self.out, last, code);
    }

    /// Changes the limits of heads received from now on.
    pub fn set_limits(&mut self, limits: Limits) {
        self.bounds.limits = limits;
    }

    /// Frees the memory that only messages need. To be called while no stream is open.
    pub fn rest(&mut self) {
        self.encoder.forget();
        self.streams.rest();
    }

    /// Heap memory in use, in bytes.
    pub fn capacity(&self) -> usize {
        self.decoder.capacity() + self.encoder.capacity() + self.out.capacity() + self.section_bytes.capacity()
    }
}

/// Limit of unsent output, in bytes. Heads and content stay far below it, so only answers to control frames can reach it, of a
/// peer that does not read them. Then the connection ends with ENHANCE_YOUR_CALM.
const MAX_OUTPUT_BYTES: usize = 8 << 20;

/// Payload of the PING that follows the announcement of a graceful shutdown.
const LEAVING: [u8; 8] = *b"leaving?";
/// Payload of [`Connection::send_ping`].
const ASKING: [u8; 8] = *b"present?";

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
