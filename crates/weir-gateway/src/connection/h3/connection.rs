//! One connection: its streams, and what its client says on the control stream.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use weir_net::quic::{
    Connection, ConnectionError, ConnectionHandle, Dir, Event, QuicHandshake, StreamEvent, StreamId, VarInt,
};
use weir_net::timer::NEVER;
use weir_plugin::{Exchange, Tls};
use weir_proto::h2;
use weir_proto::h3::{ControlEvent, H3ErrorCode, H3Fault, H3Settings, UnidirectionalReader, unidirectional};

use super::slot::{RequestSlot, next_chunk};
use super::state::{ConnectionPhase, H3State, code};
use super::wakes::WakeList;
use crate::connection::heads::Heads;
use crate::connection::secure;
use crate::context::lifecycle::{WaitsFor, WorkerPhase};
use crate::message::sides::StreamLoss;
use crate::snapshot::ClientSettings;
use crate::worker::TaskGuard;

/// While a client waits for a response, a PING is sent after so long, so that neither end takes the other for gone.
const PING_NS: u64 = 15_000_000_000;

/// A connection with so many requests at once may have all that the settings allow. Until then QUIC keeps places for fewer.
const MANY_REQUESTS: usize = 64;

/// How long a handshake in progress may take when its worker begins to drain.
const LATE_HANDSHAKE_NS: u64 = 3_000_000_000;

/// How long a connection without a request waits at most for the acknowledgement of its last responses: the megabyte that may
/// be in flight takes so long at 28 kbit/s.
const ACKNOWLEDGEMENT_NS: u64 = 300_000_000_000;

/// A connection, as its driver and its streams share it.
pub(super) struct H3Connection {
    pub worker: TaskGuard,
    pub handle: ConnectionHandle,
    wakes: Rc<WakeList>,
    /// It is in the list of what the driver has to look after.
    is_touched: Cell<bool>,
    pub heads: Heads,
    pub state: RefCell<H3State>,
    tls: RefCell<Option<Rc<Tls>>>,
    local: SocketAddr,
    /// The address of the handshake, which that has proven. A packet with another one may be forged.
    peer: SocketAddr,
    /// Unique in this process.
    number: u64,
    begun_ns: u64,
    pub requests: Cell<u64>,
    /// When the last request ended, or the connection was established.
    pub idle_since_ns: Cell<u64>,
    pinged_ns: Cell<u64>,
    /// Packets sent and lost that are counted.
    counted: Cell<[u64; 2]>,
}

impl H3Connection {
    pub(super) fn new(
        worker: TaskGuard,
        (handle, quic): (ConnectionHandle, Connection),
        wakes: Rc<WakeList>,
        (peer, local): (SocketAddr, SocketAddr),
    ) -> H3Connection {
        worker.metrics.connections_opened.increment();
        let now_ns = worker.now_ns();
        let most_streams = worker.current().snapshot.clients.concurrent_streams as usize;
        H3Connection {
            number: worker.number_connection(),
            worker,
            handle,
            wakes,
            is_touched: Cell::new(false),
            heads: Heads::new(most_streams),
            state: RefCell::new(H3State::new(quic, now_ns)),
            tls: RefCell::default(),
            local,
            peer: SocketAddr::new(peer.ip().to_canonical(), peer.port()),
            begun_ns: now_ns,
            requests: Cell::new(0),
            idle_since_ns: Cell::new(now_ns),
            pinged_ns: Cell::new(now_ns),
            counted: Cell::default(),
        }
    }

    /// Lets the driver look after the connection, which has something to send.
    pub(super) fn touch(&self) {
        if !self.is_touched.replace(true) {
            self.wakes.add(self.handle);
        }
    }

    /// Handles the events of QUIC. `begin`: called for each request whose head is to be read.
    pub(super) fn handle_events(&self, state: &mut H3State, begin: &mut impl FnMut(&mut H3State, StreamId)) {
        self.is_touched.set(false);
        state.credit.earn_time(self.worker.now_ns());
        while let Some(event) = state.quic.poll() {
            match event {
                Event::Connected => self.established(state),
                Event::ConnectionLost { reason } => self.lost(state, &reason),
                Event::Stream(event) => self.stream_event(state, event, begin),
                Event::HandshakeDataReady | Event::DatagramReceived | Event::DatagramsUnblocked => {}
            }
        }
        if state.credit.is_exhausted() && state.phase != ConnectionPhase::Closed {
            self.worker.metrics.errors.increment("flood");
            self.fail(state, H3ErrorCode::H3_EXCESSIVE_LOAD);
        }
    }

    fn established(&self, state: &mut H3State) {
        state.phase = ConnectionPhase::Open;
        // The address is proven only now, unless it was before the handshake: another client cannot use up its share.
        if !self.worker.claim(self.peer.ip()) {
            return self.fail(state, H3ErrorCode::H3_EXCESSIVE_LOAD);
        }
        let handshake = state.quic.crypto_session().handshake_data();
        let handshake = handshake.and_then(|data| data.downcast::<QuicHandshake>().ok());
        let tls = handshake.map(|handshake| secure::quic_facts(&handshake)).unwrap_or_default();
        self.worker.metrics.tls_handshakes.increment();
        if tls.resumed {
            self.worker.metrics.tls_resumptions.increment();
        }
        self.tls.replace(Some(Rc::new(tls)));
        let limits = self.worker.current().snapshot.clients.limits;
        let settings = H3Settings { max_field_section_size: Some(limits.head_bytes as u64), connect_protocol: true };
        let mut bytes = vec![unidirectional::kind::CONTROL as u8];
        settings.write(&mut bytes);
        state.control = state.quic.streams().open(Dir::Uni);
        // Nothing that is urgent to the client holds a GOAWAY up.
        state.control.into_iter().for_each(|control| drop(state.quic.send_stream(control).set_priority(i32::MAX)));
        state.write_control(&bytes);
        self.idle_since_ns.set(self.worker.now_ns());
    }

    fn lost(&self, state: &mut H3State, reason: &ConnectionError) {
        let peer = state.quic.remote_address();
        if state.phase == ConnectionPhase::Handshake {
            self.worker.metrics.tls_failures.increment();
            tracing::info!("QUIC handshake with {peer} failed: {reason}");
        } else {
            tracing::debug!("HTTP/3 with {peer}: {reason}");
        }
        state.close_streams();
    }

    fn stream_event(&self, state: &mut H3State, event: StreamEvent, begin: &mut impl FnMut(&mut H3State, StreamId)) {
        match event {
            StreamEvent::Opened { dir: Dir::Bi } => {
                while let Some(id) = state.quic.streams().accept(Dir::Bi) {
                    self.opened(state, id);
                    begin(state, id);
                }
            }
            StreamEvent::Opened { dir: Dir::Uni } => {
                while let Some(id) = state.quic.streams().accept(Dir::Uni) {
                    state.unidirectional.insert(id, UnidirectionalReader::default());
                    self.read_unidirectional(state, id);
                }
            }
            StreamEvent::Readable { id } if id.dir() == Dir::Uni => self.read_unidirectional(state, id),
            StreamEvent::Readable { id } => {
                let Some(slot) = state.slots.get_mut(&id) else { return };
                if slot.task.is_none() {
                    begin(state, id);
                } else if slot.is_reset(id, &mut state.quic) {
                    // The exchange may wait for something else, and has to know at once.
                    self.fault(state, id, H3Fault::Stream(H3ErrorCode::H3_REQUEST_CANCELLED));
                } else {
                    slot.wake();
                }
            }
            StreamEvent::Writable { id } => self.writable(state, id),
            StreamEvent::Stopped { id, .. } if Some(id) == state.control => {
                self.fail(state, H3ErrorCode::H3_CLOSED_CRITICAL_STREAM);
            }
            StreamEvent::Stopped { id, .. } => {
                state.unacknowledged.remove(&id);
                state.cancelled(id);
            }
            StreamEvent::Finished { id } => {
                state.unacknowledged.remove(&id);
                self.idle_since_ns.set(self.worker.now_ns());
            }
            StreamEvent::Available { .. } => {}
        }
    }

    fn writable(&self, state: &mut H3State, id: StreamId) {
        let Some(slot) = state.slots.get(&id) else { return };
        slot.wake();
        // What waits in a tunnel must not wait until the upstream sends more.
        if slot.is_tunnel {
            self.flush(state, id);
        }
    }

    /// Gives QUIC what it takes of the bytes that wait on a stream; returns their number.
    pub(super) fn flush(&self, state: &mut H3State, id: StreamId) -> usize {
        let Some(slot) = state.slots.get_mut(&id) else { return 0 };
        let was_finished = slot.finished;
        let flushed = slot.flush(id, &mut state.quic, &self.worker.buffers);
        if slot.finished && !was_finished {
            state.unacknowledged.insert(id);
        }
        self.worker.metrics.client_bytes_sent.add(flushed as u64);
        state.credit.sent(flushed);
        flushed
    }

    fn opened(&self, state: &mut H3State, id: StreamId) {
        state.next = state.next.max(VarInt::from(id).into_inner() + 4);
        if state.phase != ConnectionPhase::Open {
            state.credit.stream_left();
            return state.reset(id, H3ErrorCode::H3_REQUEST_REJECTED);
        }
        let current = self.worker.current();
        let clients = &current.snapshot.clients;
        let max_section = weir_proto::h3::head::max_section(&clients.limits);
        state.add(id, RequestSlot::new(max_section, self.worker.now_ns()));
        if state.slots.len() == MANY_REQUESTS {
            state.quic.set_max_concurrent_streams(Dir::Bi, VarInt::from_u32(clients.concurrent_streams));
        }
    }

    /// Reads what a stream that only the client sends on has brought.
    fn read_unidirectional(&self, state: &mut H3State, id: StreamId) {
        let H3State { quic, unidirectional, peer, has_settings, credit, .. } = state;
        let mut updates = Vec::new();
        let Some(reader) = unidirectional.get_mut(&id) else { return };
        let outcome = loop {
            let bytes = match next_chunk(id, quic) {
                Ok(Some(bytes)) => bytes,
                Err(weir_net::quic::ReadError::Blocked) => break Ok(false),
                Ok(None) | Err(_) => break reader.end().map(|()| true),
            };
            let mut rest = &bytes[..];
            let read = loop {
                match reader.next(&mut rest, peer) {
                    Ok(None) => break Ok(()),
                    Ok(Some(ControlEvent::Settings(_))) => *has_settings = true,
                    Ok(Some(ControlEvent::Priority { stream, priority })) => {
                        credit.empty_frame();
                        updates.extend(VarInt::from_u64(stream).map(|stream| (StreamId::from(stream), priority)));
                    }
                    Ok(Some(_)) => credit.empty_frame(),
                    Err(code) => break Err(code),
                }
            };
            if let Err(code) = read {
                break Err(code);
            }
            if reader.is_unknown() {
                // It is stopped, as it has no meaning here (RFC 9114 §6.2).
                credit.empty_frame();
                let _ = quic.recv_stream(id).stop(code(H3ErrorCode::H3_STREAM_CREATION_ERROR));
                break Ok(true);
            }
        };
        updates.into_iter().for_each(|(id, priority)| state.update_priority(id, priority));
        match outcome {
            Ok(true) => drop(state.unidirectional.remove(&id)),
            Ok(false) => {}
            Err(code) => self.fail(state, code),
        }
    }

    /// Handles a fault on the stream of a request.
    pub(super) fn fault(&self, state: &mut H3State, id: StreamId, fault: H3Fault) {
        match fault {
            H3Fault::Connection(code) => self.fail(state, code),
            // The client itself has reset the stream.
            H3Fault::Stream(H3ErrorCode::H3_REQUEST_CANCELLED) => {
                state.reset(id, H3ErrorCode::H3_REQUEST_CANCELLED);
                state.cancelled(id);
            }
            H3Fault::Stream(code) => {
                self.worker.metrics.errors.increment("malformed");
                state.credit.stream_left();
                state.reset(id, code);
                if let Some(slot) = state.slots.get_mut(&id) {
                    slot.lose(StreamLoss::Failed(h2::ErrorCode::PROTOCOL_ERROR));
                }
            }
        }
        self.touch();
    }

    /// Ends the connection with an error.
    pub(super) fn fail(&self, state: &mut H3State, error: H3ErrorCode) {
        tracing::debug!("HTTP/3 with {}: {}", state.quic.remote_address(), error.name());
        state.close(error);
        self.touch();
    }

    /// Checks the deadlines and the phase; returns the time of the next check.
    pub(super) fn keep_deadlines(&self, state: &mut H3State, now_ns: u64) -> u64 {
        let current = self.worker.current();
        let settings = &current.snapshot.clients;
        match (self.worker.service().phase(), state.phase) {
            (_, ConnectionPhase::Closed) => return NEVER,
            (WorkerPhase::Stopping, _) => state.close(H3ErrorCode::H3_NO_ERROR),
            (WorkerPhase::Draining, ConnectionPhase::Open) => state.ask_to_leave(now_ns),
            (WorkerPhase::Draining, ConnectionPhase::Handshake) if self.handshake_ends_ns() <= now_ns => {
                state.close(H3ErrorCode::H3_REQUEST_REJECTED);
            }
            (_, ConnectionPhase::Open)
                if settings.keepalive_requests.is_some_and(|most| self.requests.get() >= most) =>
            {
                state.leave(now_ns);
            }
            _ => {}
        }
        if state.phase == ConnectionPhase::Leaving && !state.is_busy() && state.farewell_ns() <= now_ns {
            state.close(H3ErrorCode::H3_NO_ERROR);
        }
        let deadline_ns = self.deadline_ns(state, settings);
        if deadline_ns > now_ns {
            return deadline_ns;
        }
        self.time_is_over(state, settings, now_ns);
        self.deadline_ns(state, settings).max(now_ns + 1)
    }

    /// When a handshake in progress is ended because the worker drains.
    fn handshake_ends_ns(&self) -> u64 {
        match self.worker.service().phase() {
            WorkerPhase::Serving => NEVER,
            _ => self.worker.service().since_ns() + LATE_HANDSHAKE_NS,
        }
    }

    fn deadline_ns(&self, state: &H3State, settings: &ClientSettings) -> u64 {
        self.next_deadline_ns(state, settings).min(state.leave_ns())
    }

    fn next_deadline_ns(&self, state: &H3State, settings: &ClientSettings) -> u64 {
        let ns = |timeout: Duration| timeout.as_nanos() as u64;
        match state.phase {
            ConnectionPhase::Closed => NEVER,
            ConnectionPhase::Handshake => {
                let end_ns = self.waits_until_ns(WaitsFor::RestOfHead, self.begun_ns, settings.handshake_timeout);
                end_ns.min(self.handshake_ends_ns())
            }
            _ if state.slots.is_empty() && !state.unacknowledged.is_empty() => {
                self.idle_since_ns.get() + ACKNOWLEDGEMENT_NS
            }
            ConnectionPhase::Leaving if state.slots.is_empty() => state.farewell_ns(),
            _ if state.slots.is_empty() => {
                let (waits_for, patience) = settings.idle_patience(self.requests.get());
                self.waits_until_ns(waits_for, self.idle_since_ns.get(), patience)
            }
            _ => {
                let is_partial = |slot: &&RequestSlot| slot.task.is_none() && slot.head.is_none();
                let heads = state.slots.values().filter(is_partial).map(|slot| slot.begun_ns);
                let head_ns = heads.min().map_or(NEVER, |begun_ns| begun_ns + ns(settings.header_timeout));
                head_ns.min(state.undecided_until_ns).min(self.pinged_ns.get() + PING_NS)
            }
        }
    }

    /// Until when a connection without a request may wait: shorter at the connection limit.
    fn waits_until_ns(&self, waits_for: WaitsFor, since_ns: u64, patience: Duration) -> u64 {
        let deadline_ns = since_ns + patience.as_nanos() as u64;
        self.worker.wait_until_ns(waits_for, since_ns, deadline_ns).unwrap_or(0)
    }

    fn time_is_over(&self, state: &mut H3State, settings: &ClientSettings, now_ns: u64) {
        if state.slots.is_empty() {
            return match state.phase {
                ConnectionPhase::Open if !state.is_busy() => state.leave(now_ns),
                _ => state.close(H3ErrorCode::H3_NO_ERROR),
            };
        }
        if self.pinged_ns.get() + PING_NS <= now_ns {
            self.pinged_ns.set(now_ns);
            state.quic.ping();
        }
        let patience_ns = settings.header_timeout.as_nanos() as u64;
        let is_late =
            |slot: &RequestSlot| slot.task.is_none() && slot.head.is_none() && slot.begun_ns + patience_ns <= now_ns;
        let late: Vec<StreamId> = state.slots.iter().filter(|(_, slot)| is_late(slot)).map(|(id, _)| *id).collect();
        for id in late {
            state.slots.remove(&id);
            state.reset(id, H3ErrorCode::H3_REQUEST_INCOMPLETE);
        }
    }

    /// Counts the packets that were sent, and were found to be lost, since the last call.
    pub(super) fn count_packets(&self, state: &H3State) {
        let path = state.quic.stats().path;
        let [sent, lost] = self.counted.replace([path.sent_packets, path.lost_packets]);
        let counters = &self.worker.metrics.quic;
        counters.packets_sent.add(path.sent_packets.saturating_sub(sent));
        counters.packets_lost.add(path.lost_packets.saturating_sub(lost));
    }

    /// Fills in the exchange's facts about the client. Its address stays that of the handshake, although QUIC lets a client move: the
    /// state machine uses another address before the client has proven that it receives there.
    pub(super) fn describe(&self, exchange: &mut Exchange) {
        let peer = self.peer;
        exchange.started_ns = self.worker.now_ns();
        exchange.client = weir_plugin::ClientFacts {
            peer,
            local: self.local,
            addr: peer.ip(),
            port: peer.port(),
            public_port: self.local.port(),
            trusted: false,
            tls: true,
            protocol: weir_plugin::ClientProtocol::Http,
            connection: self.number,
            connection_requests: self.requests.get(),
        };
        exchange.tls.clone_from(&self.tls.borrow());
    }
}

impl Drop for H3Connection {
    fn drop(&mut self) {
        self.worker.metrics.connections_closed.increment();
    }
}
