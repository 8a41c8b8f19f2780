//! One HTTP/2 client connection: its driver reads and writes for all streams, and each stream is an exchange like any
//! other, in a task of its own.

mod incoming;
mod stream;

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};

use weir_proto::h2::{self, ErrorCode, PeerLimits, Role, Unfinished};

use super::accepted::Accepted;
use super::heads::Heads;
use crate::context::buffers::READ_BYTES;
use crate::context::frame::{Frame, own_waker};
use crate::context::lifecycle::{ServicePhase, WaitsFor, WorkerPhase};
use crate::http2::Session;
use crate::http2::silence::{SilenceVerdict, SilenceWatch};
use crate::message::sides::StreamLoss;
use crate::snapshot::ClientSettings;
use crate::worker::Worker;

use incoming::Incoming;

/// The most bytes a client may send on one stream, and on all together, before they have been taken.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// How long a client may take to close the connection after a GOAWAY.
const FAREWELL_NS: u64 = 5_000_000_000;
/// How long a client that sends nothing may take to close the connection, once this end has closed it for sending.
const LINGER_PAUSE_NS: u64 = 1_000_000_000;
/// The same after a graceful end: the client may still read responses, and then it sends a WINDOW_UPDATE now and then.
const LINGER_READING_NS: u64 = 5_000_000_000;
/// How long this takes at most, and how many bytes are discarded.
const LINGER_MOST_NS: u64 = 300_000_000_000;
const LINGER_MOST_BYTES: usize = 1024 * 1024;

/// A connection that has had no stream for this long frees the memory that only streams need.
const REST_NS: u64 = 1_000_000_000;

/// If nothing is received for this long while the client expects a response, a PING is sent.
const SILENCE_NS: u64 = 60_000_000_000;

/// The state that the streams of a connection share.
struct Shared {
    worker: Rc<Worker>,
    service: Rc<ServicePhase>,
    session: Session<Accepted>,
    heads: Heads,
    /// When the last stream ended, or the connection began.
    idle_since_ns: Cell<u64>,
    /// The byte of the connection behind the last response: the socket may take it much later.
    responses_end: Cell<u64>,
}

/// Serves one connection from its preface, part of which may have been read already, to its close. It gets a task of its own, so
/// that the task that negotiated HTTP/2 ends and its memory is freed.
pub(crate) fn spawn(accepted: Accepted) {
    tokio::task::spawn_local(run(accepted));
}

/// Not an `async fn`: its future would keep the argument's memory for as long as the connection lives.
fn run(mut accepted: Accepted) -> impl Future<Output = ()> {
    let worker = Rc::clone(&accepted.worker);
    let stash = std::mem::take(&mut accepted.stash);
    let now_ns = worker.now_ns();
    let (bounds, most_streams) = {
        let current = worker.current();
        let settings = &current.snapshot.clients;
        (bounds(settings), settings.concurrent_streams as usize)
    };
    let shared = Rc::new(Shared {
        service: Rc::clone(accepted.worker.service()),
        session: Session::new(Rc::clone(worker.context()), accepted, h2::Connection::new(Role::Server, bounds, now_ns)),
        worker,
        heads: Heads::new(most_streams),
        idle_since_ns: Cell::new(now_ns),
        responses_end: Cell::new(0),
    });
    let mut driver = Driver {
        incoming: Incoming::new(Rc::clone(&shared)),
        shared,
        stash,
        unfinished: None,
        ending: ClosingStep::No,
        silence: SilenceWatch::new(SILENCE_NS, now_ns),
        sent_ns: now_ns,
    };
    Frame::new(async move {
        let waker = own_waker().await;
        driver.shared.session.state().pipe.watch(waker);
        poll_fn(|context| driver.poll(context)).await;
        driver.shared.session.state().pipe.stream.send_close_notify();
    })
}

fn bounds(settings: &ClientSettings) -> PeerLimits {
    PeerLimits {
        limits: settings.limits,
        streams: settings.concurrent_streams,
        stream_window: STREAM_WINDOW,
        connection_window: CONNECTION_WINDOW,
    }
}

/// The steps in which a connection is closed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ClosingStep {
    No,
    /// A GOAWAY without an error has been sent; the open streams are served to their end.
    Leaving,
    /// The last GOAWAY is in the output, and has to be sent by this time; then the client has this long to close.
    Farewell {
        until_ns: u64,
        pause_ns: u64,
    },
    /// All has been sent, and received bytes are discarded until the client has closed: a socket that is closed before
    /// would answer what the client sends with a reset, which destroys what the client has not read (RFC 9112 §9.6).
    Lingering(Linger),
}

/// The wait for the close of the client.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Linger {
    /// How long the client may send nothing.
    pause_ns: u64,
    /// When that time is over.
    until_ns: u64,
    /// When the wait ends, whatever the client sends.
    last_ns: u64,
    /// Bytes received and discarded.
    discarded: usize,
}

struct Driver {
    shared: Rc<Shared>,
    incoming: Incoming,
    /// Bytes that were received before the connection turned out to use HTTP/2.
    stash: Vec<u8>,
    /// What the client has begun and not completed, and when this was seen first.
    unfinished: Option<(Unfinished, u64)>,
    ending: ClosingStep,
    silence: SilenceWatch,
    /// When the client last took bytes of a response.
    sent_ns: u64,
}

impl Driver {
    /// Ready when the connection has ended.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let now_ns = self.shared.worker.wake_up();
        self.shared.session.begin_turn(context);
        let mut polled = self.poll_at(context, now_ns);
        let was_farewell = matches!(self.ending, ClosingStep::Farewell { .. });
        if polled.is_pending() {
            polled = self.keep_deadlines(now_ns);
            if polled.is_ready() && matches!(self.ending, ClosingStep::Farewell { .. }) && !was_farewell {
                polled = self.poll_at(context, now_ns);
                if polled.is_pending() {
                    polled = self.keep_deadlines(now_ns);
                }
            }
            self.shared.session.end_turn();
            if polled.is_ready() && self.is_left_by_all() {
                polled = self.begin_linger(context, now_ns, LINGER_READING_NS);
            }
        }
        if polled.is_ready() {
            self.shared.session.state().fail_all_streams(StreamLoss::Connection);
        }
        polled
    }

    fn poll_at(&mut self, context: &mut Context<'_>, now_ns: u64) -> Poll<()> {
        if let ClosingStep::Lingering(linger) = self.ending {
            return self.linger(context, now_ns, linger);
        }
        if !matches!(self.ending, ClosingStep::Farewell { .. }) && self.receive(context, now_ns).is_ready() {
            return Poll::Ready(());
        }
        self.incoming.begin_streams();
        self.leave_if_due();
        let mut state = self.shared.session.state();
        // While output waits for the socket, the client's silence is not measured: it cannot read a PING either.
        let (heard, waits) = (state.take_received_frames(), state.len() > 0 && state.protocol.output().is_empty());
        match self.silence.look(now_ns, heard, waits) {
            SilenceVerdict::Alive => {}
            SilenceVerdict::SendPing => state.writable_protocol().send_ping(),
            SilenceVerdict::Lost => return Poll::Ready(()),
        }
        let (sent_before, polled) = (state.sent_bytes(), state.poll_send(context));
        if sent_before < self.shared.responses_end.get() && state.sent_bytes() > sent_before {
            self.sent_ns = now_ns;
        }
        match (polled, self.ending) {
            (Poll::Ready(Err(_)), _) => Poll::Ready(()),
            (Poll::Ready(Ok(())), ClosingStep::Farewell { pause_ns, .. }) => {
                drop(state);
                self.begin_linger(context, now_ns, pause_ns)
            }
            (Poll::Ready(Ok(())), _) if state.len() == 0 && state.protocol.is_done() => {
                drop(state);
                self.begin_linger(context, now_ns, LINGER_READING_NS)
            }
            _ => Poll::Pending,
        }
    }

    /// Receives frames. Ready when the client has closed.
    fn receive(&mut self, context: &mut Context<'_>, now_ns: u64) -> Poll<()> {
        let shared = &self.shared;
        let mut state = shared.session.state();
        let current = self.shared.worker.current();
        state.protocol.set_limits(current.snapshot.clients.limits);
        state.protocol.credit().earn_time(now_ns);
        self.incoming.now_ns = now_ns;
        let mut stash = std::mem::take(&mut self.stash);
        let begun = if stash.is_empty() { Ok(()) } else { state.received(&stash, &mut self.incoming) };
        self.shared.worker.buffers.release(&mut stash);
        let received = match begun {
            Ok(()) => state.poll_receive(context, &mut self.incoming),
            Err(code) => Poll::Ready(Ok(Err(code))),
        };
        self.unfinished = state.unfinished().map(|part| match self.unfinished {
            Some((same, since_ns)) if same == part => (part, since_ns),
            _ => (part, now_ns),
        });
        match received {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(Err(code))) => {
                tracing::debug!("HTTP/2 with {}: {}", state.pipe.peer, code.name());
                if code == ErrorCode::ENHANCE_YOUR_CALM {
                    self.shared.worker.metrics.errors.increment("flood");
                }
                state.writable_protocol().fail(code);
                state.fail_all_streams(StreamLoss::Connection);
                self.ending = ClosingStep::Farewell { until_ns: now_ns + FAREWELL_NS, pause_ns: LINGER_PAUSE_NS };
                Poll::Pending
            }
            Poll::Ready(_) => Poll::Ready(()),
        }
    }

    /// RFC 9113 §6.8: announces the end first, and names the last stream a round trip later.
    fn leave_if_due(&mut self) {
        let current = self.shared.worker.current();
        let most = current.snapshot.clients.keepalive_requests;
        let request_limit_reached = most.is_some_and(|most| self.incoming.requests >= most);
        if self.ending == ClosingStep::No
            && (request_limit_reached || self.shared.service.phase() == WorkerPhase::Draining)
        {
            self.shared.session.state().writable_protocol().leave();
            self.ending = ClosingStep::Leaving;
        }
    }

    /// The connection has ended gracefully, and only the client's acknowledgement is missing, or its close.
    fn is_left_by_all(&self) -> bool {
        self.ending == ClosingStep::Leaving
            && self.shared.session.state().len() == 0
            && self.shared.service.phase() != WorkerPhase::Stopping
    }

    /// Closes the connection for sending, and lets the client read everything before it sees that it is closed for good.
    fn begin_linger(&mut self, context: &mut Context<'_>, now_ns: u64, pause_ns: u64) -> Poll<()> {
        let (until_ns, last_ns) = (now_ns + pause_ns, now_ns + LINGER_MOST_NS);
        self.linger(context, now_ns, Linger { pause_ns, until_ns, last_ns, discarded: 0 })
    }

    fn linger(&mut self, context: &mut Context<'_>, now_ns: u64, mut linger: Linger) -> Poll<()> {
        let mut state = self.shared.session.state();
        // What has not been closed yet is closed at a later wake-up; meanwhile the client can send.
        if matches!(state.pipe.stream.poll_shutdown(context), Poll::Ready(Err(_))) {
            return Poll::Ready(());
        }
        while now_ns < linger.until_ns && linger.discarded < LINGER_MOST_BYTES {
            let pipe = &mut state.pipe;
            let buffers = &self.shared.worker.buffers;
            match buffers.with_read_buffer(|buffer| pipe.poll_read(context, &mut buffer[..READ_BYTES])) {
                Poll::Ready(Ok(count)) if count > 0 => {
                    linger.discarded += count;
                    linger.until_ns = (now_ns + linger.pause_ns).min(linger.last_ns);
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => {
                    self.ending = ClosingStep::Lingering(linger);
                    state.pipe.set_deadline(linger.until_ns);
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(())
    }

    /// Checks the deadlines when nothing is received, and sets the timer to the earliest.
    fn keep_deadlines(&mut self, now_ns: u64) -> Poll<()> {
        // Long, since the earliest of all deadlines is found here.
        let (shared, worker) = (&self.shared, &self.shared.worker);
        if shared.service.phase() == WorkerPhase::Stopping {
            return Poll::Ready(());
        }
        if matches!(self.ending, ClosingStep::Lingering(_)) {
            return Poll::Pending; // its own deadline is set
        }
        let current = worker.current();
        let settings = &current.snapshot.clients;
        let mut state = shared.session.state();
        // A response is complete for its stream before the client has taken the last of it.
        let idle_since_ns = shared.idle_since_ns.get().max(self.sent_ns);
        let write_ns = settings.write_timeout.as_nanos() as u64;
        let is_being_taken = state.sent_bytes() < shared.responses_end.get();
        let mut deadline_ns = self.silence.deadline_ns();
        if let Some((_, since_ns)) = self.unfinished {
            deadline_ns = deadline_ns.min(since_ns + settings.header_timeout.as_nanos() as u64);
        }
        let waiting = match (state.len(), self.ending) {
            (0, ClosingStep::No) => {
                let (waits_for, timeout) = settings.idle_patience(self.incoming.requests);
                let timeout_ns = timeout.as_nanos() as u64;
                let patience_ns = if is_being_taken { timeout_ns.max(write_ns) } else { timeout_ns };
                deadline_ns = deadline_ns.min(idle_since_ns + patience_ns);
                match self.unfinished {
                    Some((_, since_ns)) if state.protocol.has_begun() => Some((WaitsFor::RestOfHead, since_ns)),
                    _ => Some((waits_for, idle_since_ns)),
                }
            }
            (0, ClosingStep::Leaving) if is_being_taken => {
                deadline_ns = deadline_ns.min(idle_since_ns + write_ns);
                None
            }
            (0, ClosingStep::Leaving) => {
                let since_ns = idle_since_ns.max(shared.service.since_ns());
                deadline_ns = deadline_ns.min(since_ns + FAREWELL_NS);
                None
            }
            (_, ClosingStep::Farewell { until_ns, .. }) => {
                deadline_ns = deadline_ns.min(until_ns);
                None
            }
            _ => None,
        };
        let mut is_shed = false;
        if let Some((waits_for, since_ns)) = waiting {
            let until_ns = worker.wait_until_ns(waits_for, since_ns, deadline_ns);
            is_shed = until_ns.is_none() && deadline_ns > now_ns;
            deadline_ns = until_ns.unwrap_or(now_ns);
        }
        if deadline_ns <= now_ns {
            // RFC 9113 §6.8: a client that is sending a request meanwhile learns that it was not processed.
            if waiting.is_some() && self.unfinished.is_none() && state.protocol.has_begun() {
                state.writable_protocol().fail(ErrorCode::NO_ERROR);
                // The place of a connection that makes room for another is free at once.
                let pause_ns = if is_shed { 0 } else { LINGER_PAUSE_NS };
                self.ending = ClosingStep::Farewell { until_ns: now_ns + FAREWELL_NS, pause_ns };
            }
            return Poll::Ready(());
        }
        if state.len() == 0 && !state.is_idle() {
            let rest_ns = idle_since_ns + REST_NS;
            match rest_ns <= now_ns {
                true => state.rest(),
                false => deadline_ns = deadline_ns.min(rest_ns),
            }
        }
        state.pipe.set_deadline(deadline_ns);
        Poll::Pending
    }
}

impl Shared {
    /// Whether a head or trailers of `head` bytes may be kept beside those of the open streams. The only stream's always
    /// may.
    fn has_room(&self, streams: usize, head: usize, sections: u64) -> bool {
        let has_room = streams == 0 || self.heads.have_room(head, sections);
        if !has_room {
            self.session.worker.metrics.errors.increment("too_many_heads");
        }
        has_room
    }
}
