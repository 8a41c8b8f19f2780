//! The streams of a connection, and how far it has come.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use foldhash::fast::RandomState;
use weir_net::quic::{Connection, StreamId, VarInt};
use weir_net::timer::NEVER;
use weir_proto::h2;
use weir_proto::h2::credit::Credit;
use weir_proto::h3::{H3ErrorCode, PeerStreams, UnidirectionalReader, frame};

use super::slot::RequestSlot;
use crate::message::sides::StreamLoss;

/// How long a connection stays open after its GOAWAY at least and at most, and in round trips: requests that the client has sent meanwhile
/// are rejected as such, so that it may send them again elsewhere. A client that is asked to leave first has as long before the GOAWAY.
const FAREWELL: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(3)];
const FAREWELL_TRIPS: u32 = 2;

/// The highest number of a request (RFC 9000 §2.1). A GOAWAY with it ends nothing yet.
const LAST_REQUEST: u64 = (1 << 62) - 4;

/// The most bytes of heads and trailers of one connection that have come in part.
const MOST_PARTIAL_SECTIONS: usize = 1024 * 1024;

/// The most requests that have not begun and whose priority has been updated.
const MOST_EARLY_UPDATES: usize = 128;

/// The places for requests that a connection without any keeps.
const KEPT_PLACES: usize = 16;

/// What is borrowed in turn.
pub(super) struct H3State {
    pub quic: Connection,
    pub slots: HashMap<StreamId, RequestSlot, RandomState>,
    /// Streams whose whole response QUIC has, and whose client has not acknowledged all of it. Closing the connection would lose the
    /// rest.
    pub unacknowledged: HashSet<StreamId, RandomState>,
    pub unidirectional: HashMap<StreamId, UnidirectionalReader, RandomState>,
    pub peer: PeerStreams,
    pub has_settings: bool,
    /// The control stream of this end, once the handshake is done.
    pub control: Option<StreamId>,
    pub credit: Credit,
    /// Bytes of field sections received so far.
    pub sections: u64,
    /// The number of the next request that the client has not begun.
    pub next: u64,
    pub phase: ConnectionPhase,
    /// Requests that have not begun, and whose priority has been updated already.
    early_updates: HashSet<StreamId, RandomState>,
    /// When it is decided at the latest whether the next request has content.
    pub undecided_until_ns: u64,
    /// When the client was asked to begin its next requests on another connection.
    asked_ns: Option<u64>,
    /// When the GOAWAY was sent.
    left_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionPhase {
    Handshake,
    Open,
    /// A GOAWAY has been sent; requests that began before are served to their end.
    Leaving,
    /// Nothing more is received or sent by streams.
    Closed,
}

impl H3State {
    pub(super) fn new(quic: Connection, now_ns: u64) -> H3State {
        H3State {
            quic,
            slots: HashMap::default(),
            unacknowledged: HashSet::default(),
            unidirectional: HashMap::default(),
            peer: PeerStreams::default(),
            has_settings: false,
            control: None,
            credit: Credit::new(now_ns),
            sections: 0,
            next: 0,
            phase: ConnectionPhase::Handshake,
            early_updates: HashSet::default(),
            undecided_until_ns: NEVER,
            asked_ns: None,
            left_ns: 0,
        }
    }

    /// Ends both directions of a stream.
    pub(super) fn reset(&mut self, id: StreamId, error: H3ErrorCode) {
        self.unacknowledged.remove(&id);
        // Each fails only if the stream has ended in that direction.
        let _ = self.quic.send_stream(id).reset(code(error));
        let _ = self.quic.recv_stream(id).stop(code(error));
    }

    /// The client has given up a request: it has stopped the response, reset the request, or both.
    pub(super) fn cancelled(&mut self, id: StreamId) {
        let Some(slot) = self.slots.get_mut(&id) else { return };
        if slot.lost.is_none() {
            self.credit.stream_left();
        }
        slot.lose(StreamLoss::Reset(h2::ErrorCode::CANCEL));
    }

    /// Adds a stream of a request that the client has opened.
    pub(super) fn add(&mut self, id: StreamId, mut slot: RequestSlot) {
        slot.has_priority_update = self.early_updates.remove(&id);
        self.slots.insert(id, slot);
    }

    /// Gives back the memory of a burst of requests once the last of them has ended.
    pub(super) fn forget_places(&mut self) {
        if self.slots.is_empty() && self.slots.capacity() > KEPT_PLACES {
            self.slots = HashMap::default();
        }
    }

    /// A PRIORITY_UPDATE frame: the request's own field counts no more. Updates of requests that are too far in the future are ignored.
    pub(super) fn update_priority(&mut self, id: StreamId, priority: h2::Priority) {
        match self.slots.get_mut(&id) {
            Some(slot) => slot.has_priority_update = true,
            None if VarInt::from(id).into_inner() < self.next || self.early_updates.len() >= MOST_EARLY_UPDATES => {
                return;
            }
            None => drop(self.early_updates.insert(id)),
        }
        prioritize(&mut self.quic, id, priority);
    }

    /// Whether the sections that have come in part take more memory than a connection may use for them.
    pub(super) fn has_too_many_sections(&self) -> bool {
        self.slots.values().map(RequestSlot::held_sections).sum::<usize>() > MOST_PARTIAL_SECTIONS
    }

    /// Closes the connection. What is in flight of responses is lost.
    pub(super) fn close(&mut self, error: H3ErrorCode) {
        if self.phase != ConnectionPhase::Closed {
            self.quic.close(tokio::time::Instant::now().into_std(), code(error), Default::default());
            self.close_streams();
        }
    }

    /// RFC 9114 §5.2: requests that begin from now on are not served.
    pub(super) fn leave(&mut self, now_ns: u64) {
        self.left_ns = now_ns;
        self.write_goaway(self.next);
        self.phase = ConnectionPhase::Leaving;
    }

    /// RFC 9114 §5.2: asks the client to begin its next requests on another connection, and leaves when those have arrived that it had
    /// sent before it knew.
    pub(super) fn ask_to_leave(&mut self, now_ns: u64) {
        if self.asked_ns.is_none() {
            self.asked_ns = Some(now_ns);
            self.write_goaway(LAST_REQUEST);
        } else if self.leave_ns() <= now_ns {
            self.leave(now_ns);
        }
    }

    /// When the connection leaves; never if its client was not asked to, or it has left.
    pub(super) fn leave_ns(&self) -> u64 {
        let asked_ns = self.asked_ns.filter(|_| self.phase == ConnectionPhase::Open);
        asked_ns.map_or(NEVER, |asked_ns| asked_ns + self.farewell().as_nanos() as u64)
    }

    fn write_goaway(&mut self, id: u64) {
        let mut bytes = Vec::new();
        frame::write_goaway(&mut bytes, id);
        self.write_control(&bytes);
    }

    /// Whether a request is being served, or its response not acknowledged.
    pub(super) fn is_busy(&self) -> bool {
        !self.slots.is_empty() || !self.unacknowledged.is_empty()
    }

    /// When the connection may be closed after its GOAWAY, if nothing else is going on.
    pub(super) fn farewell_ns(&self) -> u64 {
        self.left_ns + self.farewell().as_nanos() as u64
    }

    fn farewell(&self) -> Duration {
        let [least, most] = FAREWELL;
        (self.quic.rtt() * FAREWELL_TRIPS).clamp(least, most)
    }

    pub(super) fn write_control(&mut self, bytes: &[u8]) {
        // Less than a hundred bytes in the life of a connection, which every client takes.
        if let Some(control) = self.control {
            let _ = self.quic.send_stream(control).write(bytes);
        }
    }

    pub(super) fn close_streams(&mut self) {
        self.phase = ConnectionPhase::Closed;
        self.slots.values_mut().for_each(|slot| slot.lose(StreamLoss::Connection));
        self.slots.retain(|_, slot| slot.task.is_some());
    }
}

/// Responses of the same urgency take turns, whether they are incremental or not.
pub(super) fn prioritize(quic: &mut Connection, id: StreamId, priority: h2::Priority) {
    let of_others = i32::from(h2::Priority::default().urgency);
    // It fails if the stream has ended, or is beyond those that the client may open.
    let _ = quic.send_stream(id).set_priority(of_others - i32::from(priority.urgency));
}

pub(super) fn code(error: H3ErrorCode) -> VarInt {
    VarInt::from_u64(error.0).unwrap_or(VarInt::MAX)
}
