//! The connections of a thread: opening and closing them.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::time::Timespec;

use super::SWEEP_NS;
use super::response::ResponseParser;
use super::stream::{ClientStream, StreamBuffers};
use crate::engine::clock::now_ns;
use crate::engine::prepare::PreparedLoad;
use crate::engine::recorder::Cause;
use crate::engine::result::Connections;
use crate::engine::socket;

/// The most connections being opened at the same time before a run, so that a listener's backlog does not overflow.
const CONNECT_BURST: usize = 128;

/// How long a connection stays open after its last response, for the peer to close it as announced.
pub(super) const LINGER_NS: u64 = 1_000_000_000;

/// A slot for the connections of one client to one origin, one after the other.
pub(super) struct ConnectionSlot {
    pub(super) stream: Option<ClientStream>,
    pub(super) state: ConnectionState,
    /// Distinguishes late events of earlier connections in the same slot.
    pub(super) generation: u32,
    /// Whether an exchange is in progress, or is waiting for its connection.
    pub(super) occupied: bool,
    pub(super) request: u32,
    /// The bytes of the request that have been written.
    pub(super) written: usize,
    pub(super) due: u64,
    pub(super) started: u64,
    /// When connecting began.
    pub(super) opened: u64,
    /// When TCP was connected.
    pub(super) connected: u64,
    /// When the current state times out.
    pub(super) deadline: u64,
    pub(super) received: u64,
    pub(super) reader: ResponseParser,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionState {
    Empty,
    Connecting,
    Handshaking,
    Ready,
    /// A request is being written or its response read.
    Busy,
    /// The response is complete, and the peer is expected to close.
    Lingering,
}

/// All connections of a thread.
pub(super) struct Connector<'a> {
    pub(super) prepared: &'a PreparedLoad,
    pub(super) epoll: OwnedFd,
    pub(super) slots: Vec<ConnectionSlot>,
    /// Connections that were replaced while the peer was about to close them, at most as many as there are slots, and when each is
    /// closed at the latest. The side that closes first keeps the port for a minute (TIME_WAIT), and that should be the peer.
    leaving: VecDeque<(u64, ClientStream)>,
    pub(super) buffers: StreamBuffers,
    pub(super) connections: Connections,
    pub(super) open: u64,
    pub(super) connecting: usize,
    pub(super) first_client: usize,
    pub(super) events: Vec<Event>,
}

/// The effect of an event on a connection.
pub(super) enum ConnectionChange {
    Unchanged,
    Ready,
    Failed(Cause),
}

impl<'a> Connector<'a> {
    pub(super) fn new(prepared: &'a PreparedLoad, clients: &std::ops::Range<usize>) -> Self {
        let slots = (0..clients.len() * prepared.origins.len()).map(|_| ConnectionSlot {
            stream: None,
            state: ConnectionState::Empty,
            generation: 0,
            occupied: false,
            request: 0,
            written: 0,
            due: 0,
            started: 0,
            opened: 0,
            connected: 0,
            deadline: 0,
            received: 0,
            reader: ResponseParser::default(),
        });
        Self {
            prepared,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC).expect("the plan's check left room for this descriptor"),
            slots: slots.collect(),
            leaving: VecDeque::new(),
            buffers: StreamBuffers::new(),
            connections: Connections::default(),
            open: 0,
            connecting: 0,
            first_client: clients.start,
            events: Vec::with_capacity(512),
        }
    }

    pub(super) fn origins(&self) -> usize {
        self.prepared.origins.len()
    }

    /// Opens all connections, a burst at a time. Failed ones are opened again when they are needed.
    pub(super) fn connect_all(&mut self) {
        let mut next = 0;
        while next < self.slots.len() || self.connecting > 0 {
            while next < self.slots.len() && self.connecting < CONNECT_BURST {
                let _ = self.connect(next, now_ns());
                next += 1;
            }
            self.wait(Some(SWEEP_NS));
            let now = now_ns();
            let events = std::mem::take(&mut self.events);
            for event in &events {
                if let Some(index) = self.slot_of(event) {
                    match self.slots[index].state {
                        ConnectionState::Connecting | ConnectionState::Handshaking => {
                            self.advance(index, event.flags, now);
                        }
                        _ => {
                            self.idle(index, event.flags);
                        }
                    }
                }
            }
            self.events = events;
            for index in 0..next {
                let slot = &self.slots[index];
                if matches!(slot.state, ConnectionState::Connecting | ConnectionState::Handshaking)
                    && now >= slot.deadline
                {
                    self.connect_failed(index, Cause::ConnectTimeout);
                }
            }
        }
    }

    /// Starts to connect in an empty slot.
    pub(super) fn connect(&mut self, index: usize, now: u64) -> Result<(), Cause> {
        let plan = &self.prepared.plan;
        let origin = &self.prepared.origins[index % self.origins()];
        let client = self.first_client + index / self.origins();
        let source = plan.source_address(client);
        let slot = &mut self.slots[index];
        slot.opened = now;
        slot.deadline = now + plan.timeouts.connect_ms * 1_000_000;
        let opened = socket::connect(origin.address, source)
            .and_then(|socket| ClientStream::new(socket, origin.tls.as_ref()).map_err(|_| Cause::Tls));
        let stream = match opened {
            Ok(stream) => stream,
            Err(cause) => {
                self.connections.failed.count(cause);
                return Err(cause);
            }
        };
        slot.generation = slot.generation.wrapping_add(1);
        let token = u64::from(slot.generation) << 32 | index as u64;
        let interest = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        if epoll::add(&self.epoll, stream.socket(), EventData::new_u64(token), interest).is_err() {
            self.connections.failed.count(Cause::Local);
            return Err(Cause::Local);
        }
        slot.stream = Some(stream);
        slot.state = ConnectionState::Connecting;
        self.connecting += 1;
        Ok(())
    }

    /// Continues to connect after an event.
    pub(super) fn advance(&mut self, index: usize, flags: EventFlags, now: u64) -> ConnectionChange {
        let slot = &mut self.slots[index];
        let Some(stream) = slot.stream.as_mut() else { return ConnectionChange::Unchanged };
        stream.saw_event(flags);
        if slot.state == ConnectionState::Connecting {
            if !flags.intersects(EventFlags::OUT | EventFlags::ERR | EventFlags::HUP) {
                return ConnectionChange::Unchanged;
            }
            if let Err(error) = stream.connected() {
                return self.connect_failed(index, socket::connect_cause(&error));
            }
            slot.state = ConnectionState::Handshaking;
            slot.connected = now;
        }
        match stream.handshake(&mut self.buffers) {
            Ok(false) => return ConnectionChange::Unchanged,
            Ok(true) => {}
            Err(_) => return self.connect_failed(index, Cause::Tls),
        }
        slot.state = ConnectionState::Ready;
        self.connecting -= 1;
        self.open += 1;
        self.connections.opened += 1;
        self.connections.open_max = self.connections.open_max.max(self.open);
        if stream.is_tls() {
            self.connections.handshakes += 1;
            self.connections.tls_time.get_or_insert_default().record(now - slot.connected);
        }
        self.connections.resumed += u64::from(stream.resumed());
        self.connections.connect_time.record(now - slot.opened);
        ConnectionChange::Ready
    }

    /// Handles an event on a connection without an exchange: a TLS session ticket, or its end. Returns whether it has ended.
    pub(super) fn idle(&mut self, index: usize, flags: EventFlags) -> bool {
        let Some(stream) = self.slots[index].stream.as_mut() else { return false };
        stream.saw_event(flags);
        let over = !matches!(stream.receive(&mut self.buffers), Ok(None));
        if over {
            self.close(index);
        }
        over
    }

    pub(super) fn connect_failed(&mut self, index: usize, cause: Cause) -> ConnectionChange {
        self.connections.failed.count(cause);
        self.close(index);
        ConnectionChange::Failed(cause)
    }

    pub(super) fn close(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        match slot.state {
            ConnectionState::Empty => {}
            ConnectionState::Connecting | ConnectionState::Handshaking => self.connecting -= 1,
            ConnectionState::Ready | ConnectionState::Busy | ConnectionState::Lingering => self.open -= 1,
        }
        slot.stream = None;
        slot.state = ConnectionState::Empty;
    }

    /// Empties a slot whose peer has announced that it closes the connection, and leaves it the time to do so.
    pub(super) fn leave(&mut self, index: usize, now: u64) {
        let stream = self.slots[index].stream.take();
        self.close(index);
        let Some(stream) = stream else { return };
        // Its events would be taken for those of the next connection in the slot.
        let _ = epoll::delete(&self.epoll, stream.socket());
        if self.leaving.len() == self.slots.len() {
            self.leaving.pop_front();
        }
        self.leaving.push_back((now + LINGER_NS, stream));
    }

    /// Closes the connections whose peers have had enough time to do so.
    pub(super) fn close_left(&mut self, now: u64) {
        while self.leaving.front().is_some_and(|(latest, _)| *latest <= now) {
            self.leaving.pop_front();
        }
    }

    /// The slot of an event; `None` if its connection has been closed already.
    #[inline]
    pub(super) fn slot_of(&self, event: &Event) -> Option<usize> {
        let token = event.data.u64();
        let index = (token & u64::from(u32::MAX)) as usize;
        (self.slots[index].generation == (token >> 32) as u32 && self.slots[index].stream.is_some()).then_some(index)
    }

    /// Waits for events, for at most this time; without limit if `None`.
    pub(super) fn wait(&mut self, longest_ns: Option<u64>) {
        self.events.clear();
        let timeout =
            longest_ns.map(|ns| Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as _ });
        // An interrupted wait returns early without events.
        let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), timeout.as_ref());
    }
}
