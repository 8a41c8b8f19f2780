//! HTTP/1.1 load: one thread, one epoll, requests rendered beforehand.
//!
//! An exchange costs one `write` and one `read`, and its share of an `epoll_wait`: a connection is registered once,
//! edge-triggered, for its whole life, and reads stop when they got less than they asked for.

mod response;
mod stream;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;

use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::time::Timespec;

pub(super) use self::response::{ResponseReader, Step};
use self::stream::{Buffers, Stream};
use super::clock::now_ns;
use super::job::{Chooser, Job, Tickets};
use super::plan::Pacing;
use super::prepare::Prepared;
use super::recorder::{Cause, Recorder, Window};
use super::result::Connections;
use super::socket;
use crate::pacing::{Arrivals, Pauses, client_start};

/// How often time-outs are looked for.
const SWEEP_NS: u64 = 100_000_000;
/// A closed-loop client that got no connection waits so long: a dead target is not measured as a busy generator.
const RETRY_NS: u64 = 100_000_000;
/// Connections opened at the same time before a run: a listener's backlog must not overflow.
const CONNECT_BURST: usize = 128;
/// A connection whose last response is complete waits so long for the peer to close it, as the peer said it would.
const LINGER_NS: u64 = 1_000_000_000;

/// An empty poll takes no longer than this; if it did, another program had the processor.
const LONGEST_POLL_NS: u64 = 5_000;

/// Runs one thread's part of an HTTP/1.1 plan.
pub(super) fn run(job: Job) {
    let Job { thread, clients, prepared, tickets, gate } = job;
    let mut connector = Connector::new(&prepared, &clients);
    let plan = &prepared.plan;
    let ramps = matches!(plan.pacing, Pacing::Closed { ramp_up_ms, .. } if ramp_up_ms > 0);
    if plan.keep_alive && !ramps && prepared.origins.len() == 1 {
        connector.connect_all();
    }
    let Some((recorder, window)) = gate.pass() else { return };
    let source = Source::new(plan, &prepared, thread, &clients, window);
    Worker {
        prepared: &prepared,
        connector,
        source,
        chooser: Chooser::new(plan, thread, clients.len()),
        tickets,
        recorder,
        window,
        now: window.start,
        woken: window.start,
        in_flight: 0,
        over: false,
        failed: Vec::new(),
    }
    .run();
}

/// A connection's place: it belongs to one client and one origin, and outlives single connections.
struct Slot {
    stream: Option<Stream>,
    state: State,
    /// Told apart from its predecessors in events that come late.
    generation: u32,
    /// An exchange is waiting for its connection, or under way.
    occupied: bool,
    request: u32,
    /// Bytes of the request written.
    written: usize,
    due: u64,
    started: u64,
    /// When connecting began.
    opened: u64,
    /// When patience ends.
    deadline: u64,
    received: u64,
    reader: ResponseReader,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Empty,
    Connecting,
    Handshaking,
    Ready,
    /// A request is being written or its response read.
    Busy,
    /// The response is complete and the peer is about to close.
    Lingering,
}

/// All connections of a thread, and how they come to be.
struct Connector<'a> {
    prepared: &'a Prepared,
    epoll: OwnedFd,
    slots: Vec<Slot>,
    buffers: Buffers,
    connections: Connections,
    open: u64,
    connecting: usize,
    first_client: usize,
    events: Vec<Event>,
}

/// What an event did to a connection.
enum Became {
    Unchanged,
    Ready,
    Failed(Cause),
}

impl<'a> Connector<'a> {
    fn new(prepared: &'a Prepared, clients: &std::ops::Range<usize>) -> Self {
        let slots = (0..clients.len() * prepared.origins.len()).map(|_| Slot {
            stream: None,
            state: State::Empty,
            generation: 0,
            occupied: false,
            request: 0,
            written: 0,
            due: 0,
            started: 0,
            opened: 0,
            deadline: 0,
            received: 0,
            reader: ResponseReader::default(),
        });
        Self {
            prepared,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC).expect("the plan's check left room for this descriptor"),
            slots: slots.collect(),
            buffers: Buffers::new(),
            connections: Connections::default(),
            open: 0,
            connecting: 0,
            first_client: clients.start,
            events: Vec::with_capacity(512),
        }
    }

    fn origins(&self) -> usize {
        self.prepared.origins.len()
    }

    /// Connects everything, a burst at a time. What fails is tried again when it is needed.
    fn connect_all(&mut self) {
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
                        State::Connecting | State::Handshaking => {
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
                if matches!(slot.state, State::Connecting | State::Handshaking) && now >= slot.deadline {
                    self.connect_failed(index, Cause::ConnectTimeout);
                }
            }
        }
    }

    /// Starts to connect an empty slot.
    fn connect(&mut self, index: usize, now: u64) -> Result<(), Cause> {
        let plan = &self.prepared.plan;
        let origin = &self.prepared.origins[index % self.origins()];
        let client = self.first_client + index / self.origins();
        let source =
            (!plan.source_addresses.is_empty()).then(|| plan.source_addresses[client % plan.source_addresses.len()]);
        let slot = &mut self.slots[index];
        slot.opened = now;
        slot.deadline = now + plan.timeouts.connect_ms * 1_000_000;
        let opened = socket::connect(origin.address, source)
            .and_then(|socket| Stream::new(socket, origin.tls.as_ref()).map_err(|_| Cause::Tls));
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
        slot.state = State::Connecting;
        self.connecting += 1;
        Ok(())
    }

    /// Goes on connecting after an event.
    fn advance(&mut self, index: usize, flags: EventFlags, now: u64) -> Became {
        let slot = &mut self.slots[index];
        let Some(stream) = slot.stream.as_mut() else { return Became::Unchanged };
        stream.saw_event(flags);
        if slot.state == State::Connecting {
            if !flags.intersects(EventFlags::OUT | EventFlags::ERR | EventFlags::HUP) {
                return Became::Unchanged;
            }
            if let Err(error) = stream.connected() {
                return self.connect_failed(index, socket::connect_cause(&error));
            }
            slot.state = State::Handshaking;
        }
        match stream.handshake(&mut self.buffers) {
            Ok(false) => return Became::Unchanged,
            Ok(true) => {}
            Err(_) => return self.connect_failed(index, Cause::Tls),
        }
        slot.state = State::Ready;
        self.connecting -= 1;
        self.open += 1;
        self.connections.opened += 1;
        self.connections.open_max = self.connections.open_max.max(self.open);
        self.connections.handshakes += u64::from(stream.is_tls());
        self.connections.resumed += u64::from(stream.resumed());
        self.connections.connect_time.record(now - slot.opened);
        Became::Ready
    }

    /// An event on a connection without an exchange: a TLS session ticket, or its end. True when it has ended.
    fn idle(&mut self, index: usize, flags: EventFlags) -> bool {
        let Some(stream) = self.slots[index].stream.as_mut() else { return false };
        stream.saw_event(flags);
        let over = !matches!(stream.receive(&mut self.buffers), Ok(None));
        if over {
            self.close(index);
        }
        over
    }

    fn connect_failed(&mut self, index: usize, cause: Cause) -> Became {
        self.connections.failed.count(cause);
        self.close(index);
        Became::Failed(cause)
    }

    fn close(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        match slot.state {
            State::Empty => {}
            State::Connecting | State::Handshaking => self.connecting -= 1,
            State::Ready | State::Busy | State::Lingering => self.open -= 1,
        }
        slot.stream = None;
        slot.state = State::Empty;
    }

    /// The slot an event is for, unless its connection is gone already.
    #[inline]
    fn slot_of(&self, event: &Event) -> Option<usize> {
        let token = event.data.u64();
        let index = (token & u64::from(u32::MAX)) as usize;
        (self.slots[index].generation == (token >> 32) as u32 && self.slots[index].stream.is_some()).then_some(index)
    }

    /// Waits for events, at most this long; for ever with none.
    fn wait(&mut self, longest_ns: Option<u64>) {
        self.events.clear();
        let timeout =
            longest_ns.map(|ns| Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as _ });
        // An interrupted wait is a short one.
        let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), timeout.as_ref());
    }
}

/// What makes requests due.
enum Source {
    Closed {
        pauses: Pauses,
        /// When clients that pause, or have not started, want to send.
        timers: BinaryHeap<Reverse<(u64, usize)>>,
    },
    Open {
        arrivals: Arrivals,
        next: Option<u64>,
        /// Free slots, per origin. The one that has been free longest goes first, so that all connections are in use.
        free: Vec<VecDeque<usize>>,
        /// Requests that are due and have no connection, per origin.
        backlog: Vec<VecDeque<(u64, u32)>>,
    },
}

impl Source {
    fn new(
        plan: &super::plan::LoadPlan,
        prepared: &Prepared,
        thread: usize,
        clients: &std::ops::Range<usize>,
        window: Window,
    ) -> Self {
        match (&plan.pacing, Arrivals::new(&plan.pacing, plan.seed, thread, plan.threads)) {
            (_, Some(mut arrivals)) => {
                let origins = prepared.origins.len();
                let slots_of = |origin: usize| (0..clients.len()).map(|client| client * origins + origin).collect();
                Source::Open {
                    next: arrivals.next().map(|at| window.start + at),
                    arrivals,
                    free: (0..origins).map(slots_of).collect(),
                    backlog: vec![VecDeque::new(); origins],
                }
            }
            (Pacing::Closed { think, ramp_up_ms }, None) => {
                let start = |client| window.start + client_start(client, plan.connections, *ramp_up_ms);
                Source::Closed {
                    pauses: Pauses::new(*think, plan.seed, thread),
                    timers: clients.clone().map(|client| Reverse((start(client), client - clients.start))).collect(),
                }
            }
            (_, None) => unreachable!("every pacing but the closed loop has arrivals"),
        }
    }
}

impl Source {
    fn has_backlog(&self) -> bool {
        matches!(self, Source::Open { backlog, .. } if backlog.iter().any(|queue| !queue.is_empty()))
    }
}

struct Worker<'a> {
    prepared: &'a Prepared,
    connector: Connector<'a>,
    source: Source,
    chooser: Chooser,
    tickets: Tickets,
    recorder: Recorder,
    window: Window,
    /// The clock as it was last read.
    now: u64,
    /// When the last wait ended.
    woken: u64,
    in_flight: u64,
    /// Nothing is due any more.
    over: bool,
    /// Slots whose exchange failed and that want their next one. Not at once, because that might fail at once.
    failed: Vec<(usize, Cause)>,
}

impl Worker<'_> {
    fn run(mut self) {
        let mut next_sweep = self.window.start + SWEEP_NS;
        let spin = self.prepared.plan.spin_ns;
        loop {
            self.now = now_ns();
            if self.now >= self.recorder.next_roll() {
                self.recorder.roll(self.now);
            }
            if self.now >= next_sweep {
                next_sweep = self.now + SWEEP_NS;
                self.sweep();
            }
            if !self.over && self.now >= self.window.end {
                self.cut();
            }
            self.send_due();
            self.end_with_schedule();
            while let Some((slot, cause)) = self.failed.pop() {
                self.after_failure(slot, cause);
            }
            self.recorder.in_flight(self.in_flight, self.now);
            if self.over && self.in_flight == 0 && !self.source.has_backlog() {
                break;
            }

            let mut until = self.recorder.next_roll().min(next_sweep);
            let mut spins = false;
            if !self.over {
                until = until.min(self.window.end);
                match &self.source {
                    Source::Closed { timers, .. } => {
                        if let Some(Reverse((due, _))) = timers.peek() {
                            until = until.min(*due);
                        }
                    }
                    Source::Open { next: Some(due), .. } => {
                        spins = due.saturating_sub(self.now) <= spin;
                        until = until.min(due.saturating_sub(spin));
                    }
                    Source::Open { next: None, .. } => {}
                }
            }
            let longest = if spins { 0 } else { until.saturating_sub(self.now) };
            self.connector.wait(Some(longest));
            self.woken = now_ns();
            if spins && self.connector.events.is_empty() {
                self.recorder.spun((self.woken - self.now).min(LONGEST_POLL_NS));
            }
            self.now = self.woken;
            let events = std::mem::take(&mut self.connector.events);
            for event in &events {
                if let Some(slot) = self.connector.slot_of(event) {
                    self.handle(slot, event.flags);
                    self.send_due_now();
                }
            }
            self.connector.events = events;
        }
        let Worker { mut recorder, mut connector, now, .. } = self;
        connector.connections.open_at_end = connector.open;
        recorder.finish(now, connector.connections);
    }

    /// Sends what is due, in an open loop only, without reading the clock.
    #[inline]
    fn send_due_now(&mut self) {
        if let Source::Open { next: Some(due), .. } = &self.source
            && *due <= self.now
        {
            self.send_due();
        }
    }

    /// Sends everything that is due.
    fn send_due(&mut self) {
        if self.over {
            return;
        }
        loop {
            match &mut self.source {
                Source::Closed { timers, .. } => {
                    let Some(Reverse((due, client))) = timers.peek().copied() else { return };
                    if due > self.now {
                        return;
                    }
                    timers.pop();
                    if !self.start_client(client, due) {
                        return;
                    }
                    self.now = now_ns();
                }
                Source::Open { arrivals, next, free, backlog } => {
                    let Some(due) = *next else { return };
                    if due > self.now || due >= self.window.end {
                        return;
                    }
                    if self.recorder.measures(due) && !self.tickets.take() {
                        return self.end();
                    }
                    *next = arrivals.next().map(|at| self.window.start + at);
                    let request = self.chooser.next(0, self.prepared.requests.len());
                    let origin = self.prepared.requests[request].origin;
                    self.recorder.due(request, due);
                    match free[origin].pop_front() {
                        Some(slot) => {
                            self.recorder.sent(request, due, self.now - due);
                            self.begin(slot, request, due);
                            self.now = now_ns();
                        }
                        None => {
                            self.recorder.queued(request, due);
                            backlog[origin].push_back((due, request as u32));
                        }
                    }
                }
            }
        }
    }

    /// Starts the next exchange of a closed-loop client; false when the run is over.
    fn start_client(&mut self, client: usize, due: u64) -> bool {
        if self.over || due >= self.window.end {
            return false;
        }
        if self.recorder.measures(due) && !self.tickets.take() {
            self.end();
            return false;
        }
        let request = self.chooser.next(client, self.prepared.requests.len());
        let slot = client * self.connector.origins() + self.prepared.requests[request].origin;
        self.recorder.due(request, due);
        self.recorder.sent(request, due, self.now - due.min(self.woken).min(self.now));
        self.begin(slot, request, due);
        true
    }

    /// Begins an exchange on a slot that has none.
    fn begin(&mut self, index: usize, request: usize, due: u64) {
        self.in_flight += 1;
        let slot = &mut self.connector.slots[index];
        slot.occupied = true;
        slot.request = request as u32;
        slot.due = due;
        slot.started = self.now;
        slot.written = 0;
        slot.received = 0;
        slot.reader.reset();
        match slot.state {
            State::Ready => self.send(index),
            State::Empty => {
                if let Err(cause) = self.connector.connect(index, self.now) {
                    self.fail(index, cause);
                }
            }
            // It is being connected already.
            State::Connecting | State::Handshaking => {}
            State::Busy | State::Lingering => unreachable!("a slot in use is not free"),
        }
    }

    /// Writes the request, or what is left of it.
    #[inline]
    fn send(&mut self, index: usize) {
        let slot = &mut self.connector.slots[index];
        let wire = &self.prepared.requests[slot.request as usize].wire;
        if slot.state == State::Ready {
            slot.state = State::Busy;
            slot.deadline = self.now + self.prepared.plan.timeouts.response_ms * 1_000_000;
        }
        let stream = slot.stream.as_mut().expect("a ready slot has a connection");
        match stream.send(wire, slot.written) {
            Ok(written) => slot.written = written,
            // The peer may have answered before it closed: what is left to read decides.
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                stream.saw_event(EventFlags::IN | EventFlags::HUP);
                self.receive(index);
            }
            Err(error) => self.fail(index, socket::stream_cause(&error)),
        }
    }

    fn handle(&mut self, index: usize, flags: EventFlags) {
        let slot = &mut self.connector.slots[index];
        match slot.state {
            State::Empty => {}
            State::Connecting | State::Handshaking => match self.connector.advance(index, flags, self.now) {
                Became::Unchanged => {}
                Became::Ready => {
                    if self.connector.slots[index].occupied {
                        self.send(index);
                    }
                }
                Became::Failed(cause) => {
                    if self.connector.slots[index].occupied {
                        self.fail(index, cause);
                    }
                }
            },
            State::Ready | State::Lingering => {
                let lingered = slot.state == State::Lingering;
                if self.connector.idle(index, flags) {
                    if lingered {
                        self.release(index);
                    } else {
                        self.connector.connections.closed_idle += 1;
                    }
                }
            }
            State::Busy => {
                slot.stream.as_mut().expect("a busy slot has a connection").saw_event(flags);
                let request = &self.prepared.requests[slot.request as usize];
                if slot.written < request.wire.len() && flags.contains(EventFlags::OUT) {
                    self.send(index);
                } else if flags.contains(EventFlags::OUT)
                    && let Some(Err(error)) = slot.stream.as_mut().map(Stream::flush)
                {
                    return self.fail(index, socket::stream_cause(&error));
                }
                self.receive(index);
            }
        }
    }

    /// Reads the response as far as it has come.
    #[inline]
    fn receive(&mut self, index: usize) {
        loop {
            let slot = &mut self.connector.slots[index];
            if slot.state != State::Busy {
                return;
            }
            let request = &self.prepared.requests[slot.request as usize];
            let stream = slot.stream.as_mut().expect("a busy slot has a connection");
            let read = match stream.receive(&mut self.connector.buffers) {
                Ok(Some(read)) => read,
                Ok(None) => return,
                Err(error) => {
                    self.now = now_ns();
                    return self.fail(index, socket::stream_cause(&error));
                }
            };
            self.now = now_ns();
            if read == 0 {
                return match slot.reader.ends_at_close() {
                    true => self.complete(index),
                    false => self.fail(index, Cause::Closed),
                };
            }
            slot.received += read as u64;
            match slot.reader.feed(&self.connector.buffers.plain[..read], request.head_only) {
                Ok(Step::More) => {}
                Ok(Step::Done { used }) if used == read => return self.complete(index),
                // Bytes after the response answer nothing that was asked.
                Ok(Step::Done { .. }) | Err(_) => return self.fail(index, Cause::Protocol),
            }
        }
    }

    /// The response is complete.
    #[inline]
    fn complete(&mut self, index: usize) {
        let slot = &mut self.connector.slots[index];
        let (request, due, status) = (slot.request as usize, slot.due, slot.reader.status());
        let prepared = &self.prepared.requests[request];
        self.recorder.completed(request, due, slot.started, self.now);
        self.recorder.status(request, due, status, prepared.expects(status));
        self.recorder.bytes(request, due, prepared.wire.len() as u64, slot.received);
        self.in_flight -= 1;
        slot.occupied = false;
        let all_sent = slot.written == prepared.wire.len();
        if slot.reader.keeps_alive() && all_sent && self.prepared.plan.keep_alive {
            slot.state = State::Ready;
            let stream = slot.stream.as_mut().expect("the response came over it");
            // The peer's close may have come with the response; no event will tell of it again.
            if !matches!(stream.receive(&mut self.connector.buffers), Ok(None)) {
                self.connector.close(index);
                self.connector.connections.closed_idle += 1;
            }
            return self.release(index);
        }
        // Who closes first keeps the port in TIME_WAIT: that is to be the peer, which said it would close.
        slot.state = State::Lingering;
        slot.deadline = self.now + LINGER_NS;
        let stream = slot.stream.as_mut().expect("the response came over it");
        let closes_later =
            all_sent && !slot.reader.ends_at_close() && matches!(stream.receive(&mut self.connector.buffers), Ok(None));
        if !closes_later {
            self.connector.close(index);
            self.release(index);
        }
    }

    /// There will be no response.
    fn fail(&mut self, index: usize, cause: Cause) {
        self.connector.close(index);
        let slot = &mut self.connector.slots[index];
        slot.occupied = false;
        self.in_flight -= 1;
        self.recorder.failed(slot.request as usize, slot.due, cause);
        self.failed.push((index, cause));
    }

    /// The slot is free for its next exchange.
    #[inline]
    fn release(&mut self, index: usize) {
        let origins = self.connector.origins();
        match &mut self.source {
            Source::Closed { pauses, timers } => {
                let client = index / origins;
                match pauses.draw() {
                    0 => {
                        self.start_client(client, self.now);
                    }
                    pause => timers.push(Reverse((self.now + pause, client))),
                }
            }
            Source::Open { free, backlog, .. } => match backlog[index % origins].pop_front() {
                Some((due, request)) => {
                    self.recorder.sent(request as usize, due, 0);
                    self.begin(index, request as usize, due);
                }
                None => free[index % origins].push_back(index),
            },
        }
    }

    fn after_failure(&mut self, index: usize, cause: Cause) {
        let connected = !matches!(cause, Cause::Connect | Cause::ConnectTimeout | Cause::Tls | Cause::Local);
        match &mut self.source {
            Source::Closed { timers, .. } if !connected => {
                timers.push(Reverse((self.now + RETRY_NS, index / self.connector.origins())));
            }
            _ => self.release(index),
        }
    }

    /// Looks for exchanges and connections that took too long.
    fn sweep(&mut self) {
        if self.tickets.stopped() {
            self.cut();
        }
        for index in 0..self.connector.slots.len() {
            let slot = &self.connector.slots[index];
            if slot.state == State::Empty || slot.state == State::Ready || self.now < slot.deadline {
                continue;
            }
            match slot.state {
                State::Lingering => {
                    self.connector.close(index);
                    self.release(index);
                }
                State::Busy => self.fail(index, Cause::Timeout),
                _ => {
                    let occupied = slot.occupied;
                    self.connector.connect_failed(index, Cause::ConnectTimeout);
                    if occupied {
                        self.fail(index, Cause::ConnectTimeout);
                    }
                }
            }
        }
    }

    /// Nothing is due from now on.
    fn end(&mut self) {
        self.over = true;
        self.recorder.end(self.now);
    }

    /// Time is up: nothing is due from now on, and what was due and has not been sent never will be.
    fn cut(&mut self) {
        if let Source::Open { arrivals, next, backlog, .. } = &mut self.source {
            let end = self.now.min(self.window.end);
            while let Some(due) = *next
                && due < end
                && !self.over
                && (!self.recorder.measures(due) || self.tickets.take())
            {
                let request = self.chooser.next(0, self.prepared.requests.len());
                self.recorder.due(request, due);
                self.recorder.missed(request, due);
                *next = arrivals.next().map(|at| self.window.start + at);
            }
            for (due, request) in backlog.iter_mut().flat_map(std::mem::take) {
                self.recorder.missed(request as usize, due);
            }
        }
        self.end();
    }

    /// A schedule of limited length ends a run that no time ends.
    fn end_with_schedule(&mut self) {
        let exhausted = matches!(self.source, Source::Open { next: None, .. });
        if exhausted && self.window.end == u64::MAX && !self.over {
            self.end();
        }
    }
}
