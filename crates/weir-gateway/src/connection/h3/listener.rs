//! The task of one UDP socket: it receives for all of its connections, and sends for those that have something to send.

use std::collections::{BTreeSet, HashMap};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use tokio::time::Sleep;
use weir_net::quic::{
    ConnectionHandle, EndpointEvent, Incoming, OtherProcesses, QuicEndpoint, QuicLink, QuicSecrets, QuicSocket,
    QuicTerms, SocketGroup,
};
use weir_net::timer::Timer;

use super::connection::H3Connection;
use super::server::CurrentServer;
use super::socket_use::SocketUse;
use super::state::{ConnectionPhase, H3State};
use super::wakes::WakeList;
use super::{limits, qlog, requests};
use crate::context::lifecycle::{ServicePhase, WorkerPhase};
use crate::worker::Worker;

/// With more handshakes in progress, clients prove their addresses first, which costs them a round trip.
const RETRY_ABOVE: usize = 100;

/// The sockets of an address, and the keys that all workers use.
#[derive(Clone)]
pub struct QuicShare {
    /// All of them stay open until no worker needs its own any more.
    group: SocketGroup,
    others: Arc<OtherProcesses>,
    secrets: QuicSecrets,
    sockets: SocketUse,
}

impl QuicShare {
    /// Each worker gets a copy.
    pub fn new(group: SocketGroup, others: Arc<OtherProcesses>, secrets: QuicSecrets) -> QuicShare {
        QuicShare { group, others, secrets, sockets: SocketUse::new() }
    }
}

impl std::fmt::Debug for QuicShare {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("QuicShare").field("group", &self.group).finish_non_exhaustive()
    }
}

/// Serves a worker's socket until the listener or the worker has drained. `most`: the most connections of the worker.
pub(crate) async fn serve(worker: Rc<Worker>, share: QuicShare, service: Rc<ServicePhase>, most: usize) {
    let index = worker.index();
    let socket = share.group.sockets[share.group.own.base + index].try_clone().and_then(QuicSocket::new);
    match socket {
        Ok(socket) => {
            if index == 0 {
                tell_receive_buffer(&socket);
            }
            drive(worker, Box::new(socket), share, service, most).await;
        }
        Err(error) => tracing::error!("worker {index}: a socket of HTTP/3 cannot be used: {error}"),
    }
}

/// Says in the log if the kernel keeps fewer datagrams than Weir asks for.
fn tell_receive_buffer(socket: &QuicSocket) {
    let (has, wanted) = socket.receive_buffer();
    if has < wanted {
        let [has, wanted] = [has, wanted].map(|bytes| bytes / 1024);
        tracing::warn!(
            "{}: HTTP/3 has a receive buffer of {has} KiB for each worker, and not of {wanted}: datagrams are lost under load; \
             raise net.core.rmem_max",
            socket.local_addr()
        );
    }
}

/// Serves what comes to a worker by a link.
pub(super) async fn drive(
    worker: Rc<Worker>,
    link: Box<dyn QuicLink>,
    share: QuicShare,
    service: Rc<ServicePhase>,
    most: usize,
) {
    let guard = worker.task(&service);
    let ids = share.group.own.ids_of(worker.index());
    let timer = worker.wheel.add();
    let mut driver = SocketDriver {
        endpoint: QuicEndpoint::new(link, ids, Arc::clone(&share.others), share.secrets.clone()),
        connections: HashMap::default(),
        deadlines: BTreeSet::new(),
        sleep: Box::pin(tokio::time::sleep(Duration::ZERO)),
        sleeps_until: None,
        wakes: Rc::default(),
        handshakes: 0,
        phase: WorkerPhase::Serving,
        was_full: false,
        timer,
        others: Arc::clone(&share.others),
        sockets: share.sockets,
        worker,
        service,
        most,
    };
    poll_fn(|context| driver.poll(context)).await;
    driver.worker.wheel.remove(&driver.timer);
    drop((driver, share.group, guard));
}

/// A connection, and when the driver turns to it at the latest. Its deadlines move on with each packet. The driver keeps the former time
/// when a deadline becomes later, and finds the new one then.
struct DrivenConnection {
    connection: Rc<H3Connection>,
    deadline: Option<Instant>,
    is_handshaking: bool,
}

struct SocketDriver {
    worker: Rc<Worker>,
    service: Rc<ServicePhase>,
    most: usize,
    others: Arc<OtherProcesses>,
    sockets: SocketUse,
    endpoint: QuicEndpoint,
    connections: HashMap<ConnectionHandle, DrivenConnection, RandomState>,
    deadlines: BTreeSet<(Instant, ConnectionHandle)>,
    sleep: Pin<Box<Sleep>>,
    /// When `sleep` wakes the driver, unless it has done so.
    sleeps_until: Option<Instant>,
    /// Wakes the driver when the phase of the worker changes.
    timer: Timer,
    wakes: Rc<WakeList>,
    handshakes: usize,
    phase: WorkerPhase,
    /// The worker was at its connection limit.
    was_full: bool,
}

impl SocketDriver {
    /// Ready when the listener has drained.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.worker.wake_up();
        let now = tokio::time::Instant::now().into_std();
        if self.wakes.begin(context.waker()) {
            self.worker.wheel.watch(&self.timer, context.waker().clone());
            self.sleeps_until = None;
        }
        self.sleeps_until.take_if(|until| *until <= now);
        self.receive(context, now);
        self.expire(now);
        let (phase, is_full) = (self.service.phase(), self.worker.is_full());
        let is_new = phase != self.phase || is_full && !self.was_full;
        (self.phase, self.was_full) = (phase, is_full);
        if is_new {
            // Idle connections have less time at the limit.
            self.connections.values().for_each(|driven| driven.connection.touch());
        }
        if self.endpoint.poll_unsent(context).is_ready() {
            self.wakes.take().into_iter().for_each(|handle| self.drive(context, now, handle));
        }
        let has_drained = self.phase != WorkerPhase::Serving && self.connections.is_empty();
        if self.phase == WorkerPhase::Stopping || has_drained && self.sockets.poll_end(context).is_ready() {
            return Poll::Ready(());
        }
        self.wait(context);
        Poll::Pending
    }

    fn receive(&mut self, context: &mut Context<'_>, now: Instant) {
        let mut incoming = Vec::new();
        let connections = &self.connections;
        let received = self.endpoint.poll_receive(context, now, |_, event| match event {
            EndpointEvent::Connection(handle, event) => {
                if let Some(driven) = connections.get(&handle) {
                    driven.connection.state.borrow_mut().quic.handle_event(event);
                    driven.connection.touch();
                }
            }
            EndpointEvent::Incoming(begun) => incoming.push(begun),
        });
        if let Err(error) = received {
            // A UDP socket reports what the network says of datagrams that were sent.
            tracing::debug!("receiving datagrams failed: {error}");
        }
        for begun in incoming {
            self.accept(context, now, *begun);
        }
    }

    fn refuse(&mut self, context: &mut Context<'_>, incoming: Incoming) {
        self.worker.metrics.quic.refused.increment();
        self.endpoint.refuse(context, incoming);
    }

    fn accept(&mut self, context: &mut Context<'_>, now: Instant, incoming: Incoming) {
        if self.phase != WorkerPhase::Serving {
            // A later process would have accepted it.
            return match self.others.has_later_at(self.endpoint.local_addr(None)) {
                true => self.endpoint.ignore(incoming),
                false => self.refuse(context, incoming),
            };
        }
        if self.worker.lifecycle.tasks() >= self.most {
            self.worker.note_shortage();
            return self.refuse(context, incoming);
        }
        let current = self.worker.current();
        let clients = &current.snapshot.clients;
        // Forged addresses must not use up the files of traces.
        let must_prove = self.handshakes > RETRY_ABOVE || qlog::is_named(&clients.traced, incoming.remote_address());
        if must_prove && !incoming.remote_address_validated() {
            self.worker.metrics.quic.retried.increment();
            return self.endpoint.retry(context, incoming);
        }
        let task = self.worker.task(&self.service);
        if incoming.remote_address_validated() && !task.claim(incoming.remote_address().ip().to_canonical()) {
            return self.refuse(context, incoming);
        }
        let local = self.endpoint.local_addr(incoming.local_ip());
        let ends = (incoming.remote_address(), local);
        let (limits, trace) = (limits::of(clients), qlog::trace(&clients.traced, incoming.remote_address()));
        let snapshot = Mutex::new(Some(Arc::clone(&current.snapshot)));
        let terms = QuicTerms { limits, choose: Arc::new(CurrentServer { snapshot, local }), trace };
        let Some((handle, quic)) = self.endpoint.accept(context, now, incoming, terms) else { return };
        self.worker.metrics.quic.accepted.increment();
        let connection = Rc::new(H3Connection::new(task, (handle, quic), Rc::clone(&self.wakes), ends));
        connection.touch();
        self.connections.insert(handle, DrivenConnection { connection, deadline: None, is_handshaking: true });
        self.handshakes += 1;
    }

    /// Lets connections whose time has come handle that.
    fn expire(&mut self, now: Instant) {
        while let Some((deadline, handle)) = self.deadlines.first().copied().filter(|(deadline, _)| *deadline <= now) {
            self.deadlines.remove(&(deadline, handle));
            if let Some(driven) = self.connections.get_mut(&handle) {
                driven.deadline = None;
                driven.connection.state.borrow_mut().quic.handle_timeout(now);
                driven.connection.touch();
            }
        }
    }

    /// Handles the events of a connection, sends what it has to send, and notes when it has to be looked at next.
    fn drive(&mut self, context: &mut Context<'_>, now: Instant, handle: ConnectionHandle) {
        let Some(driven) = self.connections.get_mut(&handle) else { return };
        let connection = Rc::clone(&driven.connection);
        let mut state = connection.state.borrow_mut();
        self.endpoint.settle(handle, &mut state.quic);
        connection.handle_events(&mut state, &mut |state: &mut H3State, id| requests::begin(&connection, state, id));
        let now_ns = self.worker.now_ns();
        requests::begin_undecided(&connection, &mut state, now_ns);
        let check_ns = connection.keep_deadlines(&mut state, now_ns);
        if driven.is_handshaking && state.phase != ConnectionPhase::Handshake {
            driven.is_handshaking = false;
            self.handshakes -= 1;
        }
        if self.endpoint.poll_transmit(context, now, &mut state.quic).is_pending() {
            connection.touch();
        }
        self.endpoint.settle(handle, &mut state.quic);
        connection.count_packets(&state);
        let check = now.checked_add(Duration::from_nanos(check_ns.saturating_sub(now_ns)));
        let deadline = [state.quic.poll_timeout(), check].into_iter().flatten().min();
        if let Some(new) = deadline.filter(|new| driven.deadline.is_none_or(|old| *new < old)) {
            if let Some(old) = driven.deadline.replace(new) {
                self.deadlines.remove(&(old, handle));
            }
            self.deadlines.insert((new, handle));
        }
        if state.quic.is_drained() {
            drop(state);
            if let Some(deadline) = driven.deadline {
                self.deadlines.remove(&(deadline, handle));
            }
            self.handshakes -= usize::from(driven.is_handshaking);
            self.connections.remove(&handle);
        }
    }

    /// Sets the timer to the earliest deadline.
    fn wait(&mut self, context: &mut Context<'_>) {
        let mut is_due = !self.wakes.is_empty() && !self.endpoint.is_blocked();
        let earliest = self.deadlines.first().map(|(deadline, _)| *deadline);
        if let Some(deadline) = earliest.filter(|deadline| self.sleeps_until.is_none_or(|until| *deadline < until)) {
            self.sleep.as_mut().reset(deadline.into());
            self.sleeps_until = Some(deadline);
            is_due |= self.sleep.as_mut().poll(context).is_ready();
        }
        self.wakes.rest(is_due);
        if is_due {
            context.waker().wake_by_ref();
        }
    }
}
