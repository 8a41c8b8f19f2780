//! HTTP/1.1 load: one thread, one epoll, requests rendered beforehand unless they are made of data or depend on answers.
//!
//! An exchange costs one `write`, one `read`, and its share of an `epoll_wait`: a connection is registered once,
//! edge-triggered, and a read that returns less than requested is the last one until the next event.

mod connector;
mod requests;
mod response;
mod source;
mod stream;

use std::cmp::Reverse;
use std::io::ErrorKind;

use rustix::event::epoll::EventFlags;

use self::connector::{ConnectionChange, ConnectionState, Connector, LINGER_NS};
use self::requests::{FixedRequests, FlowRequests, RequestMaker};
pub(super) use self::response::{ResponseParser, ResponseStep};
use self::source::RequestSource;
use self::stream::ClientStream;
use super::clock::now_ns;
use super::flow::{AnswerVerdict, LoadFlow};
use super::job::{Chooser, Job, RequestBudget};
use super::plan::Pacing;
use super::prepare::PreparedLoad;
use super::recorder::{Cause, MeasuredWindow, Recorder};
use super::socket;

/// How often time-outs are checked.
const SWEEP_NS: u64 = 100_000_000;
/// The delay before a closed-loop client retries after a failed connection, so that a dead target does not keep the
/// generator busy.
const RETRY_NS: u64 = 100_000_000;
/// The longest duration of an empty poll; if it takes longer, another program had the processor.
const LONGEST_POLL_NS: u64 = 5_000;

/// Runs one thread's part of an HTTP/1.1 plan.
pub(super) fn run(job: Job) {
    match job.prepared.flow.clone() {
        None => run_with(job, |_| FixedRequests { dropped: () }),
        Some(plan) => {
            let (clients, origins) = (job.clients.clone(), job.prepared.origins.len());
            let mut flow = LoadFlow::new(plan, job.thread, clients.start, clients.len(), origins);
            run_with(job, |window| {
                flow.measure_from(window.measure);
                FlowRequests::new(flow, clients.len() * origins)
            });
        }
    }
}

fn run_with<R: RequestMaker>(job: Job, maker: impl FnOnce(MeasuredWindow) -> R) {
    let Job { thread, clients, prepared, tickets, gate } = job;
    let mut connector = Connector::new(&prepared, &clients);
    let plan = &prepared.plan;
    let ramps = matches!(plan.pacing, Pacing::Closed { ramp_up_ms, .. } if ramp_up_ms > 0);
    if plan.keep_alive && !ramps && prepared.origins.len() == 1 {
        connector.connect_all();
    }
    let Some((recorder, window)) = gate.pass() else { return };
    let source = RequestSource::new(plan, &prepared, thread, &clients, window);
    ClientThread {
        prepared: &prepared,
        connector,
        source,
        requests: maker(window),
        clients_left: clients.len(),
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

struct ClientThread<'a, R> {
    prepared: &'a PreparedLoad,
    connector: Connector<'a>,
    source: RequestSource,
    requests: R,
    /// Closed loop: the clients that still send requests. Those that have no data left do not.
    clients_left: usize,
    chooser: Chooser,
    tickets: RequestBudget,
    recorder: Recorder,
    window: MeasuredWindow,
    /// The last reading of the clock.
    now: u64,
    /// When the last wait ended.
    woken: u64,
    in_flight: u64,
    /// No further request is due.
    over: bool,
    /// Slots whose exchange failed. Their next exchange is not started at once, because it might fail at once as well.
    failed: Vec<(usize, Cause)>,
}

impl<R: RequestMaker> ClientThread<'_, R> {
    fn run(mut self) {
        let mut next_sweep = self.window.start + SWEEP_NS;
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

            let (until, spins) = self.next_due(next_sweep);
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
        let ClientThread { mut recorder, mut connector, mut requests, now, .. } = self;
        if let Some(tally) = requests.tally() {
            recorder.flow(tally);
        }
        connector.connections.open_at_end = connector.open;
        recorder.finish(now, connector.connections);
    }

    /// When the thread must act next if no event occurs, and whether that is so soon that it spins.
    #[inline]
    fn next_due(&self, next_sweep: u64) -> (u64, bool) {
        let until = self.recorder.next_roll().min(next_sweep);
        if self.over {
            return (until, false);
        }
        let until = until.min(self.window.end);
        let spin = self.prepared.plan.spin_ns;
        match &self.source {
            RequestSource::Closed { timers, .. } => match timers.peek() {
                Some(Reverse((due, _))) => (until.min(*due), false),
                None => (until, false),
            },
            RequestSource::Open { next: Some(due), .. } => {
                (until.min(due.saturating_sub(spin)), due.saturating_sub(self.now) <= spin)
            }
            RequestSource::Open { next: None, .. } => (until, false),
        }
    }

    /// Open loop: sends what is due, without reading the clock.
    #[inline]
    fn send_due_now(&mut self) {
        if let RequestSource::Open { next: Some(due), .. } = &self.source
            && *due <= self.now
        {
            self.send_due();
        }
    }

    /// Sends all requests that are due.
    fn send_due(&mut self) {
        if self.over {
            return;
        }
        loop {
            match &mut self.source {
                RequestSource::Closed { timers, .. } => {
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
                RequestSource::Open { arrivals, next, free, backlog } => {
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
                            self.requests.draw(slot, request, due);
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

    /// Starts the next exchange of a closed-loop client; false if the run is over.
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
        if !self.requests.draw(slot, request, due) {
            self.clients_left -= 1;
            if self.clients_left == 0 {
                self.end();
            }
            return false;
        }
        self.recorder.due(request, due);
        self.recorder.sent(request, due, self.now - due.min(self.woken).min(self.now));
        self.begin(slot, request, due);
        true
    }

    /// Begins an exchange in a free slot.
    fn begin(&mut self, index: usize, request: usize, due: u64) {
        self.in_flight += 1;
        self.requests.begin(index, request);
        let slot = &mut self.connector.slots[index];
        slot.occupied = true;
        slot.request = request as u32;
        slot.due = due;
        slot.started = self.now;
        slot.written = 0;
        slot.received = 0;
        slot.reader.reset();
        match slot.state {
            ConnectionState::Ready => self.send(index),
            ConnectionState::Empty => {
                if let Err(cause) = self.connector.connect(index, self.now) {
                    self.fail(index, cause);
                }
            }
            // The connection is being opened; the request is sent once it is ready.
            ConnectionState::Connecting | ConnectionState::Handshaking => {}
            ConnectionState::Busy | ConnectionState::Lingering => unreachable!("a slot in use is not free"),
        }
    }

    /// Writes the request, or the rest of it.
    #[inline]
    fn send(&mut self, index: usize) {
        let slot = &mut self.connector.slots[index];
        let wire = self.requests.wire(self.prepared, index, slot.request as usize);
        if slot.state == ConnectionState::Ready {
            slot.state = ConnectionState::Busy;
            slot.deadline = self.now + self.prepared.plan.timeouts.response_ms * 1_000_000;
        }
        let stream = slot.stream.as_mut().expect("a ready slot has a connection");
        match stream.send(wire, slot.written) {
            Ok(written) => slot.written = written,
            // The peer may have answered before it closed, so the received bytes decide.
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
            ConnectionState::Empty => {}
            ConnectionState::Connecting | ConnectionState::Handshaking => {
                match self.connector.advance(index, flags, self.now) {
                    ConnectionChange::Unchanged => {}
                    ConnectionChange::Ready => {
                        if self.connector.slots[index].occupied {
                            self.send(index);
                        }
                    }
                    ConnectionChange::Failed(cause) => {
                        if self.connector.slots[index].occupied {
                            self.fail(index, cause);
                        }
                    }
                }
            }
            ConnectionState::Ready | ConnectionState::Lingering => {
                let lingered = slot.state == ConnectionState::Lingering;
                if self.connector.idle(index, flags) {
                    if lingered {
                        self.release(index);
                    } else {
                        self.connector.connections.closed_idle += 1;
                    }
                }
            }
            ConnectionState::Busy => {
                slot.stream.as_mut().expect("a busy slot has a connection").saw_event(flags);
                let wire = self.requests.wire(self.prepared, index, slot.request as usize);
                if slot.written < wire.len() && flags.contains(EventFlags::OUT) {
                    self.send(index);
                } else if flags.contains(EventFlags::OUT)
                    && let Some(Err(error)) = slot.stream.as_mut().map(ClientStream::flush)
                {
                    return self.fail(index, socket::stream_cause(&error));
                }
                self.receive(index);
            }
        }
    }

    /// Reads the response as far as it has been received.
    #[inline]
    fn receive(&mut self, index: usize) {
        loop {
            let slot = &mut self.connector.slots[index];
            if slot.state != ConnectionState::Busy {
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
            self.requests.received(index, self.now);
            let data = &self.connector.buffers.plain[..read];
            match slot.reader.feed_to(data, request.head_only, self.requests.sink(index)) {
                Ok(ResponseStep::More) => {}
                Ok(ResponseStep::Done { used }) if used == read => return self.complete(index),
                // Bytes after the response belong to no request.
                Ok(ResponseStep::Done { .. }) | Err(_) => return self.fail(index, Cause::Protocol),
            }
        }
    }

    /// Handles a complete response.
    #[inline]
    fn complete(&mut self, index: usize) {
        let slot = &mut self.connector.slots[index];
        let (request, due, status) = (slot.request as usize, slot.due, slot.reader.status());
        let all_sent = slot.written == self.requests.wire(self.prepared, index, request).len();
        let judged = match self.requests.answered(self.prepared, index, request, status, due, self.now) {
            AnswerVerdict::Again => return self.send_again(index, all_sent),
            AnswerVerdict::Done(judged) => judged,
        };
        self.recorder.completed(request, due, slot.started, self.now);
        let refused_after = (!judged.is_expected).then(|| self.now.saturating_sub(slot.started));
        self.recorder.status(request, due, status, refused_after);
        let sent = self.requests.sent_before(index) + self.requests.wire(self.prepared, index, request).len() as u64;
        self.recorder.bytes(request, due, sent, slot.received);
        if let Some(at) = self.requests.first_byte(index) {
            self.recorder.first_byte(request, due, at.saturating_sub(slot.started));
        }
        if judged.failed_check {
            self.recorder.failed_check(request, due);
        }
        if judged.ends_pass {
            self.chooser.restart(index / self.prepared.origins.len());
        }
        self.in_flight -= 1;
        slot.occupied = false;
        if slot.reader.keeps_alive() && all_sent && self.prepared.plan.keep_alive {
            slot.state = ConnectionState::Ready;
            let stream = slot.stream.as_mut().expect("the response came over it");
            // The peer's close may have arrived together with the response; edge-triggered, it causes no further event.
            if !matches!(stream.receive(&mut self.connector.buffers), Ok(None)) {
                self.connector.close(index);
                self.connector.connections.closed_idle += 1;
            }
            return self.release(index);
        }
        // The side that closes first keeps the port in TIME_WAIT. That should be the peer, which has announced that it closes.
        slot.state = ConnectionState::Lingering;
        slot.deadline = self.now + LINGER_NS;
        let stream = slot.stream.as_mut().expect("the response came over it");
        let closes_later =
            all_sent && !slot.reader.ends_at_close() && matches!(stream.receive(&mut self.connector.buffers), Ok(None));
        if !closes_later {
            self.connector.close(index);
            self.release(index);
        }
    }

    /// Sends another request of the same exchange, on the same connection if that stays open. A new one is opened at once: the time
    /// in which the peer closes the old one is no part of the exchange.
    fn send_again(&mut self, index: usize, all_sent: bool) {
        let slot = &mut self.connector.slots[index];
        let stream = slot.stream.as_mut().expect("the response came over it");
        let stays_open = slot.reader.keeps_alive()
            && all_sent
            && self.prepared.plan.keep_alive
            && matches!(stream.receive(&mut self.connector.buffers), Ok(None));
        slot.written = 0;
        slot.reader.reset();
        if stays_open {
            slot.state = ConnectionState::Ready;
            return self.send(index);
        }
        self.connector.leave(index, self.now);
        if let Err(cause) = self.connector.connect(index, self.now) {
            self.fail(index, cause);
        }
    }

    /// Handles an exchange that will get no response.
    fn fail(&mut self, index: usize, cause: Cause) {
        self.connector.close(index);
        let slot = &mut self.connector.slots[index];
        slot.occupied = false;
        self.in_flight -= 1;
        self.recorder.failed(slot.request as usize, slot.due, cause);
        if self.requests.failed(index, slot.request as usize) {
            self.chooser.restart(index / self.prepared.origins.len());
        }
        self.failed.push((index, cause));
    }

    /// The slot is free for its next exchange.
    #[inline]
    fn release(&mut self, index: usize) {
        let origins = self.connector.origins();
        match &mut self.source {
            RequestSource::Closed { pauses, timers } => {
                let client = index / origins;
                let think = self.requests.think(self.connector.slots[index].request as usize);
                let pause = match think {
                    Some(think) => pauses.draw_of(think),
                    None => pauses.draw(),
                };
                match pause {
                    0 => {
                        self.start_client(client, self.now);
                    }
                    pause => timers.push(Reverse((self.now + pause, client))),
                }
            }
            RequestSource::Open { free, backlog, .. } => match backlog[index % origins].pop_front() {
                Some((due, request)) => {
                    // The response that freed the connection was readable when the wait ended, or earlier.
                    self.recorder.sent(request as usize, due, self.now.saturating_sub(due.max(self.woken)));
                    self.requests.draw(index, request as usize, due);
                    self.begin(index, request as usize, due);
                }
                None => free[index % origins].push_back(index),
            },
        }
    }

    fn after_failure(&mut self, index: usize, cause: Cause) {
        let connected = !matches!(cause, Cause::Connect | Cause::ConnectTimeout | Cause::Tls | Cause::Local);
        match &mut self.source {
            RequestSource::Closed { timers, .. } if !connected => {
                timers.push(Reverse((self.now + RETRY_NS, index / self.connector.origins())));
            }
            _ => self.release(index),
        }
    }

    /// Checks for exchanges and connections that have timed out.
    fn sweep(&mut self) {
        if self.tickets.stopped() {
            self.cut();
        }
        self.connector.close_left(self.now);
        for index in 0..self.connector.slots.len() {
            let slot = &self.connector.slots[index];
            if slot.state == ConnectionState::Empty || slot.state == ConnectionState::Ready || self.now < slot.deadline
            {
                continue;
            }
            match slot.state {
                ConnectionState::Lingering => {
                    self.connector.close(index);
                    self.release(index);
                }
                ConnectionState::Busy => self.fail(index, Cause::Timeout),
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

    /// No further request is due.
    fn end(&mut self) {
        self.over = true;
        self.recorder.end(self.now);
    }

    /// The time is up: no further request is due, and due requests that have not been sent count as missed.
    fn cut(&mut self) {
        if let RequestSource::Open { arrivals, next, backlog, .. } = &mut self.source {
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

    /// A finite schedule ends a run that has no duration.
    fn end_with_schedule(&mut self) {
        let exhausted = matches!(self.source, RequestSource::Open { next: None, .. });
        if exhausted && self.window.end == u64::MAX && !self.over {
            self.end();
        }
    }
}
