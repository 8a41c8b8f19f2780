//! One HTTP/2 client connection: its driver reads and writes for all of its streams, and each of these is an exchange
//! like any other, in a task of its own.

mod heads;
mod incoming;
mod stream;

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};

use weir_proto::h2::{self, ErrorCode, PeerLimits, Role};

use super::accepted::Accepted;
use crate::context::buffers::READ_BYTES;
use crate::context::frame::{Frame, own_waker};
use crate::context::lifecycle::{WaitsFor, WorkerPhase};
use crate::http2::Session;
use crate::http2::silence::{Silence, SilenceVerdict};
use crate::message::sides::StreamLoss;
use crate::snapshot::ClientSettings;
use crate::worker::Worker;

use heads::Heads;
use incoming::Incoming;

/// Content a client may send on one stream, and on all of them, before somebody has taken it.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// How long a client may take to go once it has been told to.
const FAREWELL_NS: u64 = 5_000_000_000;
/// What a client may still send, and for how long, so that it can read why its connection ends: closing with unread bytes
/// would reset the connection (RFC 9112 §9.6 says it of HTTP/1).
const LINGER_NS: u64 = 1_000_000_000;
const LINGER_BYTES: usize = 1024 * 1024;

/// An idle connection gives back the memory that its streams have needed after this time.
const REST_NS: u64 = 1_000_000_000;

/// A client from which nothing comes for so long, while it waits for an answer, is asked whether it is there.
const SILENCE_NS: u64 = 60_000_000_000;

/// What the streams of a connection share.
struct Shared {
    worker: Rc<Worker>,
    session: Session<Accepted>,
    heads: Heads,
    /// When the last stream ended, or the connection began.
    idle_since_ns: Cell<u64>,
}

/// Serves a connection from its preface, which may stand in the stash already, to its close: in a task of its own, so that the
/// task in which HTTP/2 was negotiated ends and its memory is free.
pub fn spawn(accepted: Accepted) {
    tokio::task::spawn_local(run(accepted));
}

/// Not an `async fn`, which would keep its argument beside what is made of it for as long as the connection lives.
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
        session: Session::new(Rc::clone(worker.context()), accepted, h2::Connection::new(Role::Server, bounds, now_ns)),
        worker,
        heads: Heads::new(most_streams),
        idle_since_ns: Cell::new(now_ns),
    });
    let mut driver = Driver {
        incoming: Incoming::new(Rc::clone(&shared)),
        shared,
        stash,
        head_since_ns: None,
        ending: ClosingStep::No,
        silence: Silence::new(SILENCE_NS, now_ns),
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

/// How far the end of a connection has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ClosingStep {
    No,
    /// It was announced, and streams end by themselves.
    Leaving,
    /// The last word has been said, and has to leave by this time.
    Failed {
        until_ns: u64,
    },
    /// It has left, and what still comes is thrown away.
    Lingering {
        until_ns: u64,
        thrown_away: usize,
    },
}

struct Driver {
    shared: Rc<Shared>,
    incoming: Incoming,
    /// What came before it was known that HTTP/2 is spoken.
    stash: Vec<u8>,
    /// Since when a head has been on its way without being complete.
    head_since_ns: Option<u64>,
    ending: ClosingStep,
    silence: Silence,
}

impl Driver {
    /// Ready when the connection is over.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let now_ns = self.shared.worker.wake_up();
        self.shared.session.begin_turn(context);
        let mut polled = self.poll_at(context, now_ns);
        if polled.is_pending() {
            self.shared.session.end_turn();
            polled = self.keep_deadlines(now_ns);
        }
        if polled.is_ready() {
            self.shared.session.state().lose_all(StreamLoss::Connection);
        }
        polled
    }

    fn poll_at(&mut self, context: &mut Context<'_>, now_ns: u64) -> Poll<()> {
        if let ClosingStep::Lingering { until_ns, thrown_away } = self.ending {
            return self.linger(context, now_ns, until_ns, thrown_away);
        }
        if !matches!(self.ending, ClosingStep::Failed { .. }) && self.receive(context, now_ns).is_ready() {
            return Poll::Ready(());
        }
        self.incoming.begin_streams();
        self.leave_if_due();
        let mut state = self.shared.session.state();
        // One that does not take what waits for it has another deadline.
        let (heard, waits) = (state.take_heard(), state.len() > 0 && state.protocol.output().is_empty());
        match self.silence.look(now_ns, heard, waits) {
            SilenceVerdict::Well => {}
            SilenceVerdict::Ask => state.protocol().send_ping(),
            SilenceVerdict::Gone => return Poll::Ready(()),
        }
        match state.poll_send(context) {
            Poll::Ready(Err(_)) => Poll::Ready(()),
            Poll::Ready(Ok(())) if matches!(self.ending, ClosingStep::Failed { .. }) => {
                let until_ns = now_ns + LINGER_NS;
                self.ending = ClosingStep::Lingering { until_ns, thrown_away: 0 };
                drop(state);
                self.linger(context, now_ns, until_ns, 0)
            }
            Poll::Ready(Ok(())) if state.len() == 0 && state.protocol.is_done() => Poll::Ready(()),
            _ => Poll::Pending,
        }
    }

    /// Ready when the client has closed.
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
        let is_incomplete = state.protocol.expects_more() || state.is_in_frame();
        self.head_since_ns = is_incomplete.then(|| self.head_since_ns.unwrap_or(now_ns));
        match received {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(Err(code))) => {
                tracing::debug!("HTTP/2 with {}: {}", state.pipe.peer, code.name());
                if code == ErrorCode::ENHANCE_YOUR_CALM {
                    self.shared.worker.metrics.errors.increment("flood");
                }
                state.protocol().fail(code);
                state.lose_all(StreamLoss::Connection);
                self.ending = ClosingStep::Failed { until_ns: now_ns + FAREWELL_NS };
                Poll::Pending
            }
            Poll::Ready(_) => Poll::Ready(()),
        }
    }

    /// RFC 9113 §6.8: first that it will end, and a round trip later with which stream.
    fn leave_if_due(&mut self) {
        let current = self.shared.worker.current();
        let most = current.snapshot.clients.keepalive_requests;
        let is_worn = most.is_some_and(|most| self.incoming.requests >= most);
        if self.ending == ClosingStep::No && (is_worn || self.shared.worker.phase() == WorkerPhase::Draining) {
            self.shared.session.state().protocol().leave();
            self.ending = ClosingStep::Leaving;
        }
    }

    /// Lets the client read the last word before it learns that the connection is closed.
    fn linger(&mut self, context: &mut Context<'_>, now_ns: u64, until_ns: u64, mut thrown_away: usize) -> Poll<()> {
        let mut state = self.shared.session.state();
        if state.pipe.stream.poll_shutdown(context).is_pending() {
            return Poll::Pending;
        }
        while now_ns < until_ns && thrown_away < LINGER_BYTES {
            let pipe = &mut state.pipe;
            match self
                .shared
                .worker
                .buffers
                .with_read_buffer(|buffer| pipe.poll_read(context, &mut buffer[..READ_BYTES]))
            {
                Poll::Ready(Ok(count)) if count > 0 => thrown_away += count,
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => {
                    self.ending = ClosingStep::Lingering { until_ns, thrown_away };
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(())
    }

    /// Nothing comes: has the client run out of time?
    fn keep_deadlines(&mut self, now_ns: u64) -> Poll<()> {
        let (shared, worker) = (&self.shared, &self.shared.worker);
        if worker.phase() == WorkerPhase::Stopping {
            return Poll::Ready(());
        }
        let current = worker.current();
        let settings = &current.snapshot.clients;
        let mut state = shared.session.state();
        let idle_since_ns = shared.idle_since_ns.get();
        let mut deadline_ns = self.silence.deadline_ns();
        if let Some(since_ns) = self.head_since_ns {
            deadline_ns = deadline_ns.min(since_ns + settings.header_timeout.as_nanos() as u64);
        }
        let waiting = match (state.len(), self.ending) {
            (0, ClosingStep::No) => {
                let (waits_for, timeout) = settings.idle_patience(self.incoming.requests);
                deadline_ns = deadline_ns.min(idle_since_ns + timeout.as_nanos() as u64);
                match self.head_since_ns {
                    Some(since_ns) if state.protocol.has_begun() => Some((WaitsFor::RestOfHead, since_ns)),
                    _ => Some((waits_for, idle_since_ns)),
                }
            }
            (0, ClosingStep::Leaving) => {
                let since_ns = idle_since_ns.max(worker.lifecycle.phase_since_ns());
                deadline_ns = deadline_ns.min(since_ns + FAREWELL_NS);
                None
            }
            (_, ClosingStep::Failed { until_ns } | ClosingStep::Lingering { until_ns, .. }) => {
                deadline_ns = deadline_ns.min(until_ns);
                None
            }
            _ => None,
        };
        if let Some((waits_for, since_ns)) = waiting {
            deadline_ns = worker.wait_until_ns(waits_for, since_ns, deadline_ns).unwrap_or(now_ns);
        }
        if deadline_ns <= now_ns {
            return Poll::Ready(());
        }
        if state.len() == 0 && !state.is_at_rest() {
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
    /// Whether a head or trailers of so many bytes may be kept beside what there is. A head alone always may.
    fn has_room(&self, streams: usize, head: usize, sections: u64) -> bool {
        let has_room = streams == 0 || self.heads.have_room(head, sections);
        if !has_room {
            self.session.worker.metrics.errors.increment("too_many_heads");
        }
        has_room
    }
}
