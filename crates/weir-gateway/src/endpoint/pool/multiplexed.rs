//! Endpoints used over HTTP/2: exchanges share a few connections, each in a stream of its own.

mod opening;
mod stream;

use std::cell::Cell;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use weir_net::stream::Stream as ByteStream;
use weir_net::timer::Timer;
use weir_plugin::{Exchange, Stop};
use weir_proto::h1::Limits;
use weir_proto::h2::{self, ConnectionEvent, ErrorCode, HeadTarget, PeerLimits, Role};
use weir_proto::{RequestHead, ResponseHead};

use super::connect::user_timeout;
use super::{EndpointPool, Freshness};
use crate::context::WorkerContext;
use crate::context::frame::own_waker;
use crate::http2::silence::{SilenceVerdict, SilenceWatch};
use crate::http2::{Handler, Session, State};
use crate::message::sides::StreamLoss;
use opening::ConnectionOpening;
pub(super) use opening::Openings;

/// The most exchanges on one connection before another is opened.
const MOST_STREAMS: usize = 100;
/// The most bytes an endpoint may send on one stream at first, before its client has taken them.
const FIRST_STREAM_WINDOW: u32 = 64 * 1024;
/// The same once the client has taken half of that, unless the rate of the response is limited.
const STREAM_WINDOW: u32 = 256 * 1024;
/// The same for a connection: more than all its streams together, since a client that does not read must not stop the others.
/// It is twice their sum, since half of it may be content that was taken and not returned to the endpoint yet.
const CONNECTION_WINDOW: u32 = 2 * MOST_STREAMS as u32 * STREAM_WINDOW;
/// If nothing is received for this long while exchanges wait, a PING is sent.
const SILENCE_NS: u64 = 15_000_000_000;

/// One connection and its use. Once dropped from the pool, it closes with its last stream.
pub(super) struct SharedConnection {
    session: Rc<Session<ByteStream>>,
    opened_ns: u64,
    /// The longest send time-out of its requests.
    send_timeout: Cell<Duration>,
    carried: Cell<u64>,
    idle_since_ns: Cell<u64>,
    /// The most streams until the endpoint's SETTINGS have been received.
    streams_at_first: usize,
}

impl SharedConnection {
    /// Whether the connection has ended, or has been idle for `patience_ns`.
    pub(super) fn is_over(&self, now_ns: u64, patience_ns: u64) -> bool {
        let state = self.session.state();
        let idle = state.len() == 0 && now_ns.saturating_sub(self.idle_since_ns.get()) >= patience_ns;
        state.is_over() || idle
    }

    /// Ready once the endpoint's SETTINGS have been received, or the connection has ended.
    fn has_begun(&self) -> Poll<()> {
        let state = self.session.state();
        if state.protocol.has_begun() || state.is_over() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Whether an idle connection has not ended without its driver having seen it yet. Other frames may have come, such as a PING.
    fn is_fresh(&self) -> bool {
        let state = self.session.state();
        state.len() > 0 || !state.pipe.has_ended()
    }

    /// Called for each request, with its send time-out: the connection may have been opened for one with a shorter time-out.
    fn allow(&self, send_timeout: Duration) {
        if send_timeout > self.send_timeout.get() {
            self.send_timeout.set(send_timeout);
            self.session.state().pipe.set_user_timeout(user_timeout(send_timeout));
        }
    }

    fn can_take_more(&self) -> bool {
        let state = self.session.state();
        let most = match state.protocol.has_begun() {
            true => state.protocol.peer().concurrent_streams as usize,
            false => self.streams_at_first,
        };
        // Streams whose request has not been sent yet count, too.
        let most = MOST_STREAMS.min(most);
        !state.is_over() && !state.is_leaving() && state.len() < most && state.protocol.may_request()
    }
}

impl Drop for SharedConnection {
    fn drop(&mut self) {
        self.session.state().close();
        self.session.wake_driver();
    }
}

impl EndpointPool {
    /// A connection opened at `since_ns` or later that can take one more exchange, with the TLS server that a request needs.
    fn with_room(&self, freshness: Freshness, request: &RequestHead, since_ns: u64) -> Option<Rc<SharedConnection>> {
        let server = self.machine.tls.as_ref().map(|secured| secured.server(self.addr(), request));
        let is_with =
            |shared: &SharedConnection| server.as_ref().is_none_or(|server| server.is_of(&shared.session.state().pipe));
        let all = self.connections.multiplexed.borrow();
        let is_usable = |shared: &SharedConnection| {
            shared.can_take_more() && is_with(shared) && (freshness != Freshness::Checked || shared.is_fresh())
        };
        all.iter().find(|shared| shared.opened_ns >= since_ns && is_usable(shared)).cloned()
    }

    /// A connection, and whether it existed before. As many are opened as the exchanges need that come meanwhile, by the number
    /// of streams that the endpoint allows on each: the others wait, and share them. Until that number is known, one is opened.
    async fn join_or_connect(
        &self,
        worker: &Rc<WorkerContext>,
        freshness: Freshness,
        (send_timeout, head_bytes): (Duration, usize),
        exchange: &mut Exchange,
    ) -> Result<(Rc<SharedConnection>, bool), Stop> {
        // An attempt after the loss of a connection avoids those that may be as stale, but not those that others have opened
        // since: the exchanges of a lost connection would otherwise open one each.
        let queue_ns = u64::from(exchange.upstream.queue_us) * 1_000;
        let asked_ns = exchange.upstream.started_ns.saturating_sub(queue_ns);
        let since_ns = if freshness == Freshness::New { asked_ns } else { 0 };
        let tls = self.machine.tls.as_ref();
        let server = tls.map_or(&b""[..], |secured| secured.chosen_by(exchange.request.upstream_host()));
        loop {
            if let Some(shared) = self.with_room(freshness, &exchange.request, since_ns) {
                return Ok((shared, true));
            }
            if let Some(opening) = self.connections.openings.wait(server).await {
                let shared = self.connect_multiplexed(worker, (send_timeout, head_bytes), exchange, opening).await?;
                return Ok((shared, false));
            }
        }
    }

    async fn connect_multiplexed(
        &self,
        worker: &Rc<WorkerContext>,
        (send_timeout, head_bytes): (Duration, usize),
        exchange: &mut Exchange,
        opening: ConnectionOpening,
    ) -> Result<Rc<SharedConnection>, Stop> {
        let stream = self.connect(worker, Some(send_timeout), exchange).await?;
        if stream.tls().is_some_and(|session| session.protocol() != Some(b"h2")) {
            tracing::error!("the endpoint {} did not agree to HTTP/2 in its TLS handshake (ALPN h2)", self.addr());
            return Err(Stop::UpstreamTls);
        }
        let bounds = PeerLimits {
            limits: Limits { head_bytes, ..Limits::default() },
            streams: 0,
            stream_window: FIRST_STREAM_WINDOW,
            connection_window: CONNECTION_WINDOW,
        };
        let protocol = h2::Connection::new(Role::Client, bounds, worker.now_ns());
        let session = Rc::new(Session::new(Rc::clone(worker), stream, protocol));
        let shared = Rc::new(SharedConnection {
            session: Rc::clone(&session),
            opened_ns: worker.now_ns(),
            send_timeout: Cell::new(send_timeout),
            carried: Cell::new(0),
            idle_since_ns: Cell::new(worker.now_ns()),
            streams_at_first: opening.streams_at_first(),
        });
        tokio::task::spawn_local(drive(session, self.addr(), opening));
        let mut all = self.connections.multiplexed.borrow_mut();
        all.retain(|other| !other.session.state().is_over()); // otherwise connections that have ended would stay until the next sweep
        if all.len() >= self.connections.keepalive.size
            && let Some(unused) = all.iter().position(|other| other.session.state().len() == 0)
        {
            all.remove(unused);
        }
        all.push(Rc::clone(&shared));
        drop(all);
        Ok(shared)
    }
}

/// Reads and writes for all streams of a connection, until it ends.
async fn drive(session: Rc<Session<ByteStream>>, addr: SocketAddr, opening: ConnectionOpening) {
    let worker = Rc::clone(&session.worker);
    let mut answers = Answers::default();
    let mut watch = Watch::new(&worker);
    watch.begin().await;
    opening.connected();
    let mut opening = Some(opening);
    poll_fn(|context| {
        let now_ns = worker.wake_up();
        session.begin_turn(context);
        let mut state = session.state();
        match state.poll_receive(context, &mut answers) {
            Poll::Pending => {}
            Poll::Ready(Ok(Err(code))) => {
                tracing::debug!("HTTP/2 with {addr}: {}", code.name());
                state.writable_protocol().fail(code);
                let _ = state.poll_send(context); // as much as the socket takes at once
                // The endpoint violated the protocol. That is not the fate of a stale connection, so none of the requests that
                // it has got is sent again.
                state.fail_unsent_streams(StreamLoss::NotProcessed);
                state.fail_all_streams(StreamLoss::Failed(code));
                return Poll::Ready(());
            }
            Poll::Ready(_) => return Poll::Ready(()),
        }
        if state.protocol.has_begun()
            && let Some(opening) = opening.take()
        {
            opening.begun(state.protocol.peer().concurrent_streams);
            state.wake_all(); // some streams wait for the endpoint's SETTINGS
        }
        match watch.look(&mut state, now_ns) {
            SilenceVerdict::Alive => {}
            SilenceVerdict::SendPing => state.writable_protocol().send_ping(),
            SilenceVerdict::Lost => {
                tracing::warn!("the endpoint {addr} has not answered an HTTP/2 PING: the connection is closed");
                return Poll::Ready(());
            }
        }
        let sent = state.poll_send(context);
        if matches!(sent, Poll::Ready(Err(_))) || state.len() == 0 && (state.is_closed() || state.is_leaving()) {
            return Poll::Ready(());
        }
        session.end_turn();
        Poll::Pending
    })
    .await;
    let mut state = session.state();
    state.fail_all_streams(StreamLoss::Connection);
    state.pipe.send_close_notify();
    worker.metrics.upstream_connections_closed.increment();
}

/// Notices when an endpoint no longer answers.
struct Watch {
    worker: Rc<WorkerContext>,
    silence: SilenceWatch,
    timer: Timer,
}

impl Watch {
    fn new(worker: &Rc<WorkerContext>) -> Watch {
        Watch {
            worker: Rc::clone(worker),
            silence: SilenceWatch::new(SILENCE_NS, worker.now_ns()),
            timer: worker.wheel.add(),
        }
    }

    /// Registers the calling task to be woken by the timer.
    async fn begin(&self) {
        let waker = own_waker().await;
        self.worker.wheel.watch(&self.timer, waker);
    }

    fn look(&mut self, state: &mut State<ByteStream>, now_ns: u64) -> SilenceVerdict {
        let (heard, waits) = (state.take_received_frames(), state.len() > 0);
        let finding = self.silence.look(now_ns, heard, waits);
        self.worker.wheel.set(&self.timer, self.silence.deadline_ns());
        finding
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.worker.wheel.remove(&self.timer);
    }
}

/// Receives the heads of responses.
#[derive(Default)]
struct Answers {
    next: ResponseHead,
}

impl Handler<ByteStream> for Answers {
    fn lend(&mut self) -> HeadTarget<'_> {
        HeadTarget::Response(&mut self.next)
    }

    fn answer(&mut self) -> ResponseHead {
        std::mem::take(&mut self.next)
    }

    fn event(&mut self, state: &mut State<ByteStream>, event: ConnectionEvent<'_>) {
        if let ConnectionEvent::GoAway { last, code } = event {
            // RFC 9113 §6.8: later streams were not processed. After a GOAWAY with an error this is not relied on.
            let lost = if code == ErrorCode::NO_ERROR { StreamLoss::NotProcessed } else { StreamLoss::Reset(code) };
            state.receive_goaway(last, lost);
        }
    }
}
