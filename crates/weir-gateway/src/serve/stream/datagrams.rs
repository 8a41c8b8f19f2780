//! A session: the datagrams of one client, and those that an endpoint sends back over a socket which is the session's own. It is a
//! stream that no side can end, so it ends when nothing has come for a while.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::net::{SendFlags, send};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use weir_net::datagram::{self, DatagramSocket};
use weir_net::listener::Transport;
use weir_net::timer::Timer;
use weir_plugin::Stop;

use super::opening::OpeningClient;
use super::{begin, connect, poll_stopped, record};
use crate::context::WorkerContext;
use crate::context::frame::own_waker;
use crate::context::lifecycle::{ServicePhase, WorkerPhase};
use crate::context::served_exchange::ServedExchange;
use crate::message::sides::until_client_disconnects;
use crate::message::turn::ConnectionTurn;
use crate::serve::attempt::{AttemptStart, Failure, attempt_record};
use crate::serve::retry::Attempts;
use crate::worker::Worker;
use crate::worker::snapshot::{UpstreamView, WorkerSnapshot};

/// The most bytes of a session's datagrams that are held until an endpoint has answered, to be sent to another one if it refuses
/// them. A single datagram may be larger, and is held only until a socket to an endpoint is open. Until then, further ones are
/// dropped.
const HELD_BYTES: usize = 4 * 1024;
/// The same as a number of datagrams.
const HELD_DATAGRAMS: usize = 4;
/// How long a session waits for answers while its listener drains: datagrams of clients come to another process then, or to none.
const DRAIN_IDLE: Duration = Duration::from_secs(1);

/// What the task of a session shares with the task that receives from clients.
pub(crate) struct DatagramSession {
    /// In the form in which the socket reports them.
    client: SocketAddr,
    local: SocketAddr,
    socket: Rc<DatagramSocket>,
    timer: Timer,
    /// Connected to the endpoint.
    upstream: RefCell<Option<Rc<UdpSocket>>>,
    /// The datagrams that no endpoint has answered; `None` once one has, or there were too many.
    held: RefCell<Option<Vec<Box<[u8]>>>>,
    last_ns: Cell<u64>,
    /// Ended for want of room.
    is_over: Cell<bool>,
    /// The endpoint has refused a datagram.
    is_refused: Cell<bool>,
    received: Cell<u64>,
    upstream_sent: Cell<u64>,
    upstream_received: Cell<u64>,
    sent: Cell<u64>,
}

fn byte_count(datagrams: &[Box<[u8]>]) -> usize {
    datagrams.iter().map(|one| one.len()).sum()
}

fn add(to: &Cell<u64>, bytes: usize) {
    to.set(to.get() + bytes as u64);
}

impl DatagramSession {
    pub(crate) fn new(
        worker: &WorkerContext,
        socket: Rc<DatagramSocket>,
        (client, local): (SocketAddr, SocketAddr),
    ) -> DatagramSession {
        DatagramSession {
            client,
            local,
            socket,
            timer: worker.wheel.add(),
            upstream: RefCell::default(),
            held: RefCell::new(Some(Vec::new())),
            last_ns: Cell::new(worker.now_ns()),
            is_over: Cell::default(),
            is_refused: Cell::default(),
            received: Cell::default(),
            upstream_sent: Cell::default(),
            upstream_received: Cell::default(),
            sent: Cell::default(),
        }
    }

    /// The client, and the address that it has sent to.
    pub(crate) fn key(&self) -> (SocketAddr, SocketAddr) {
        (self.client, self.local)
    }

    pub(crate) fn idle_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.last_ns.get())
    }

    /// Has the session end soon.
    pub(crate) fn end(&self, worker: &WorkerContext) {
        self.is_over.set(true);
        worker.wheel.set(&self.timer, worker.now_ns());
    }

    /// Ready when nothing is worth waiting for any more, before an endpoint is reached.
    fn poll_leave(&self, service: &ServicePhase) -> Poll<Stop> {
        if self.is_over.get() { Poll::Ready(Stop::Overloaded) } else { poll_stopped(service) }
    }

    /// The last thing to do with a session.
    pub(crate) fn forget_timer(&self, worker: &WorkerContext) {
        worker.wheel.remove(&self.timer);
    }

    /// Sends a datagram of the client on to the endpoint.
    pub(crate) fn take(&self, worker: &WorkerContext, bytes: &[u8]) {
        worker.metrics.client_bytes_received.add(bytes.len() as u64);
        add(&self.received, bytes.len());
        self.last_ns.set(worker.now_ns());
        let upstream = self.upstream.borrow();
        let is_held = self.hold(bytes);
        match &*upstream {
            Some(upstream) => {
                if !is_held {
                    self.held.take();
                }
                self.forward(worker, upstream, bytes);
            }
            None if is_held => {}
            None => worker.metrics.datagrams_dropped.increment("not_connected"),
        }
    }

    /// Keeps a copy until there is an answer; `false` if there is no room, or copies are not kept any more.
    fn hold(&self, bytes: &[u8]) -> bool {
        let mut held = self.held.borrow_mut();
        let Some(held) = &mut *held else { return false };
        let has_room = held.is_empty() || held.len() < HELD_DATAGRAMS && byte_count(held) + bytes.len() <= HELD_BYTES;
        if has_room {
            held.push(bytes.into());
        }
        has_room
    }

    fn forward(&self, worker: &WorkerContext, upstream: &UdpSocket, bytes: &[u8]) {
        match send(upstream, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).map_err(io::Error::from) {
            Ok(_) => {
                worker.metrics.upstream_bytes_sent.add(bytes.len() as u64);
                add(&self.upstream_sent, bytes.len());
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                // The answer to an earlier one, which this call reports instead of sending.
                self.is_refused.set(true);
                worker.wheel.set(&self.timer, worker.now_ns());
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                worker.metrics.datagrams_dropped.increment("endpoint_full");
            }
            Err(error) => {
                tracing::debug!("a datagram of {} is not sent: {error}", self.client);
                worker.metrics.datagrams_dropped.increment("send_failed");
            }
        }
    }

    /// Opens the session's socket to an endpoint, and sends what is held.
    fn open(&self, worker: &WorkerContext, endpoint: SocketAddr) -> io::Result<Rc<UdpSocket>> {
        let upstream = Rc::new(datagram::connect(endpoint)?);
        let mut held = self.held.borrow_mut();
        held.iter().flatten().for_each(|bytes| self.forward(worker, &upstream, bytes));
        held.take_if(|held| byte_count(held) > HELD_BYTES);
        self.upstream.replace(Some(Rc::clone(&upstream)));
        Ok(upstream)
    }

    /// Sends what the endpoint has answered to the client.
    fn poll_answers(
        &self,
        context: &mut Context<'_>,
        worker: &WorkerContext,
        upstream: &UdpSocket,
    ) -> Poll<io::Result<()>> {
        self.socket.poll_answers(upstream, context, |bytes| {
            worker.metrics.upstream_bytes_received.add(bytes.len() as u64);
            add(&self.upstream_received, bytes.len());
            match self.socket.send(bytes, self.client, self.local.ip()) {
                Ok(()) => {
                    worker.metrics.client_bytes_sent.add(bytes.len() as u64);
                    add(&self.sent, bytes.len());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    worker.metrics.datagrams_dropped.increment("client_full");
                }
                Err(error) => {
                    tracing::debug!("an answer to {} is not sent: {error}", self.client);
                    worker.metrics.datagrams_dropped.increment("send_failed");
                }
            }
        })
    }

    /// Notes that the endpoint has refused a datagram, if it has. A socket with an error is not readable to the runtime. `watch`: a
    /// new future in place of `failing`.
    fn note_refusal<F: Future>(
        &self,
        context: &mut Context<'_>,
        mut failing: Pin<&mut F>,
        watch: impl Fn() -> F,
        upstream: &UdpSocket,
        exchange: &mut ServedExchange,
    ) {
        while !self.is_refused.get() && failing.as_mut().poll(context).is_ready() {
            // Without an error the runtime learns that there is none any more: a send has reported it.
            let none = || io::Error::from(io::ErrorKind::WouldBlock);
            let failed = upstream.try_io(Interest::ERROR, || upstream.take_error()?.ok_or_else(none));
            if let Ok(error) = failed {
                exchange.upstream.os_error = error.raw_os_error().unwrap_or(0);
                self.is_refused.set(true);
            }
            failing.set(watch());
        }
    }

    /// Ready when nothing has come for so long, or the session has to end for another reason.
    fn poll_over(&self, worker: &WorkerContext, service: &ServicePhase, idle: Duration, now_ns: u64) -> Poll<()> {
        let idle = match service.phase() {
            WorkerPhase::Serving => idle,
            WorkerPhase::Draining => idle.min(DRAIN_IDLE),
            WorkerPhase::Stopping => return Poll::Ready(()),
        };
        let idle_ns = u64::try_from(idle.as_nanos()).unwrap_or(u64::MAX);
        let end_ns = self.last_ns.get().saturating_add(idle_ns);
        if self.is_over.get() || now_ns >= end_ns {
            return Poll::Ready(());
        }
        worker.wheel.set(&self.timer, end_ns);
        Poll::Pending
    }

    /// Copies what was counted to the exchange.
    fn tell(&self, exchange: &mut ServedExchange) {
        exchange.request_bytes = self.received.get();
        exchange.response_bytes = self.sent.get();
        exchange.upstream.bytes_sent = self.upstream_sent.get();
        exchange.upstream.bytes_received = self.upstream_received.get();
    }
}

/// A session that is being opened.
struct OpeningSession<'s> {
    session: &'s DatagramSession,
    service: &'s ServicePhase,
}

impl OpeningClient for OpeningSession<'_> {
    fn poll_leave(&mut self, _: &mut Context<'_>) -> Poll<Stop> {
        self.session.poll_leave(self.service)
    }
}

/// Carries the datagrams of a session until it ends.
pub(crate) async fn serve_session(
    worker: &Rc<Worker>,
    session: &DatagramSession,
    service: &ServicePhase,
    mut exchange: Box<ServedExchange>,
) {
    let current = worker.current(); // one configuration for the whole session
    worker.wheel.watch(&session.timer, own_waker().await);
    worker.metrics.streams_opened.increment();
    let end = carry(worker, &current, session, service, &mut exchange).await;
    session.tell(&mut exchange);
    record::finish(worker, &current, exchange, end);
}

async fn carry(
    worker: &Rc<Worker>,
    current: &Rc<WorkerSnapshot>,
    session: &DatagramSession,
    service: &ServicePhase,
    exchange: &mut ServedExchange,
) -> Result<(), Stop> {
    let (taken, number) = begin(worker, current, Transport::Udp, OpeningSession { session, service }, exchange).await?;
    let upstream = current.upstream(number);
    let UpstreamView { settings, state } = upstream;
    let idle = taken.idle_timeout.unwrap_or(settings.session_idle_timeout);
    let mut attempts = Attempts::new(exchange, settings, worker.now_ns());
    state.retries.earn(settings.retry_budget);
    let mut picked = upstream.pick(exchange, attempts.tried, attempts.first_ns).ok_or(Stop::NoEndpoint)?;
    loop {
        let started_ns = worker.now_ns();
        let endpoint = &state.endpoints[picked];
        let permit = connect::permit(worker, endpoint, settings.timeouts.connect, started_ns);
        let permit = until_client_disconnects(permit, |_| session.poll_leave(service)).await?;
        let start = AttemptStart::queued_since(started_ns, worker.now_ns());
        exchange.upstream = attempt_record(permit.endpoint(), exchange.upstream.attempts + 1, start);
        let end = match session.open(worker, endpoint.addr()) {
            Ok(socket) => {
                exchange.upstream.connect_ns = worker.wake_up();
                state.counters.connected(picked);
                let answered = || state.health[picked].connected(&settings.passive, started_ns, worker.now_ns());
                relay(worker, session, &socket, service, exchange, idle, answered).await
            }
            Err(error) => {
                exchange.upstream.os_error = error.raw_os_error().unwrap_or(0);
                Err(Stop::ConnectFailed)
            }
        };
        session.upstream.take();
        exchange.upstream.ended_ns = worker.now_ns();
        match end {
            Ok(()) => return Ok(()),
            Err(stop) if session.held.borrow().is_some() => {
                let failure = Failure { stop, on_reused_connection: false };
                picked = attempts.next(worker, upstream, exchange, picked, failure)?;
            }
            Err(stop) => {
                state.health[picked].failed(stop, &settings.passive, started_ns, worker.now_ns());
                return Err(stop);
            }
        }
    }
}

/// Passes on the answers of an endpoint until the session ends. `answered` is called at the first one.
///
/// # Errors
/// The endpoint has refused a datagram: nothing receives at its port.
async fn relay(
    worker: &WorkerContext,
    session: &DatagramSession,
    upstream: &UdpSocket,
    service: &ServicePhase,
    exchange: &mut ServedExchange,
    idle: Duration,
    answered: impl Fn(),
) -> Result<(), Stop> {
    let mut failing = pin!(upstream.ready(Interest::ERROR));
    poll_fn(|context| {
        let now_ns = worker.wake_up();
        session.note_refusal(context, failing.as_mut(), || upstream.ready(Interest::ERROR), upstream, exchange);
        let mut turn = ConnectionTurn::default();
        loop {
            match session.poll_answers(context, worker, upstream) {
                Poll::Ready(Ok(())) => {
                    session.last_ns.set(now_ns);
                    if exchange.upstream.header_ns == 0 {
                        exchange.upstream.header_ns = now_ns;
                        session.held.take();
                        answered();
                    }
                    if turn.ends_with_piece(context) {
                        break;
                    }
                }
                Poll::Ready(Err(error)) => {
                    exchange.upstream.os_error = error.raw_os_error().unwrap_or(0);
                    session.is_refused.set(true);
                    break;
                }
                Poll::Pending => break,
            }
        }
        if session.is_refused.take() {
            let has_answered = exchange.upstream.header_ns != 0;
            return Poll::Ready(Err(if has_answered { Stop::UpstreamAborted } else { Stop::ConnectFailed }));
        }
        session.poll_over(worker, service, idle, now_ns).map(Ok)
    })
    .await
}
