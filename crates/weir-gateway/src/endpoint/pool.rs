//! Endpoints as a worker uses them: connections, permits and queues. Settings belong to the upstream; what concerns
//! the machine behind the address is shared by all upstreams with an endpoint there.
//!
//! Idle connections are reused, the most recently used first, so that a few stay in use and the others time out.

mod connect;
mod limit;
mod machine;
mod multiplexed;
mod permit;
mod queue;
mod queue_order;
pub(crate) mod secure;
mod shared_queue;
mod stream;

use std::cell::{Cell, RefCell, RefMut};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::error::Elapsed;
use weir_net::proxy_protocol;
use weir_net::stream::Stream;
use weir_plugin::{Exchange, Stop};
use weir_proto::h1::chunked;
use weir_proto::{RequestHead, ResponseHead, Trailers};

use crate::context::WorkerContext;
use crate::endpoint::balance::LatencyEstimate;
use crate::endpoint::concurrency::LimiterGroup;
use crate::endpoint::state::Health;
use crate::message::forward::{self, HopFraming};
use crate::message::sides::{Received, RequestTerms, Sending, UpstreamSide};
use crate::message::unsent::UnsentBytes;
use crate::snapshot::{self, Concurrency, Timeouts};

use connect::{connect, is_shortage, user_timeout};
use limit::AdmissionLimit;
use machine::{IdleConnection, KeptConnections, MachineKey, UpstreamMachine};
pub(crate) use permit::Permit;
use queue::WaitQueue;
pub(crate) use shared_queue::{QueueSeats, SharedQueue};
pub(crate) use stream::StreamConnection;

/// The machines of one worker, by address and by how they are connected to. They are kept across snapshots.
#[derive(Default)]
pub(crate) struct Pools {
    machines: MachineTable,
    /// The shared queues that have waiters.
    shared_queues: RefCell<Vec<Rc<SharedQueue>>>,
    /// The limits that exchanges wait under; only these need work for their queues at each tick.
    waited_for: RefCell<Vec<Rc<AdmissionLimit>>>,
    /// Machines with idle or shared connections.
    connected: RefCell<Vec<Rc<UpstreamMachine>>>,
    sweep: Cell<Sweep>,
    /// Machines that a retired upstream has released, each once.
    released: RefCell<VecDeque<Rc<UpstreamMachine>>>,
    /// The number of workers of the node, among which the concurrency of a machine is divided.
    workers: u32,
}

/// Machines by their keys, in several tables: a table that grows moves all its entries at once.
struct MachineTable {
    shards: [RefCell<HashMap<MachineKey, Rc<UpstreamMachine>>>; MachineTable::SHARDS],
    random: RandomState,
}

impl MachineTable {
    const SHARDS: usize = 64;

    fn shard_of(&self, key: &MachineKey) -> RefMut<'_, HashMap<MachineKey, Rc<UpstreamMachine>>> {
        self.shards[self.random.hash_one(key) as usize % Self::SHARDS].borrow_mut()
    }
}

impl Default for MachineTable {
    fn default() -> MachineTable {
        MachineTable { shards: std::array::from_fn(|_| RefCell::default()), random: RandomState::default() }
    }
}

/// The progress of a sweep over the connected machines.
#[derive(Clone, Copy, Default)]
struct Sweep {
    began_ns: u64,
    /// An index into the connected machines; the sweep ends at the end of the list.
    next: usize,
    /// Idle connections counted in this sweep.
    idle: u64,
}

/// The interval between the starts of two sweeps.
const SWEEP_NS: u64 = 1_000_000_000;
/// Each tick checks this fraction of the connected machines (one in 25): a sweep takes half of its interval.
const SWEEP_PARTS: usize = 25;
/// The most released machines that one tick checks.
const RELEASED_AT_ONCE: usize = 256;

/// One worker's state of an endpoint of an upstream.
pub(crate) struct EndpointPool {
    machine: Rc<UpstreamMachine>,
    connections: Rc<KeptConnections>,
    limit: Rc<AdmissionLimit>,
    /// Exchanges that wait for this endpoint and no other.
    queue: Rc<WaitQueue>,
    /// What its upstream has completed, at any endpoint.
    group: Rc<LimiterGroup>,
    records_latency: bool,
}

impl Drop for EndpointPool {
    fn drop(&mut self) {
        self.machine.endpoints.set(self.machine.endpoints.get() - 1);
        self.limit.limiter().leave(&self.group);
    }
}

/// Builds the endpoints of an upstream, with what the worker knows of them from the upstream's earlier settings.
pub(crate) struct EndpointBuilder<'a> {
    pools: &'a Rc<Pools>,
    upstream: &'a snapshot::Upstream,
    group: Rc<LimiterGroup>,
    /// By machine: the endpoints of the earlier settings, and those that have been built.
    known: HashMap<*const UpstreamMachine, Rc<EndpointPool>>,
    built: HashMap<*const UpstreamMachine, Rc<EndpointPool>>,
}

impl<'a> EndpointBuilder<'a> {
    pub(crate) fn new(pools: &'a Rc<Pools>, upstream: &'a snapshot::Upstream) -> EndpointBuilder<'a> {
        EndpointBuilder { pools, upstream, group: Rc::default(), known: HashMap::new(), built: HashMap::new() }
    }

    /// Makes known an endpoint that the upstream has had until now. What it has completed goes on to be counted, so that an edit does
    /// not disturb what the limits of `auto` measure.
    pub(crate) fn know(&mut self, before: &Rc<EndpointPool>) {
        self.group = Rc::clone(&before.group);
        self.known.insert(Rc::as_ptr(&before.machine), Rc::clone(before));
    }

    /// What the endpoints built here share.
    pub(crate) fn group(&self) -> &Rc<LimiterGroup> {
        &self.group
    }

    pub(crate) fn build(&mut self, endpoint: &snapshot::Endpoint, health: &Arc<Health>) -> Rc<EndpointPool> {
        let (upstream, workers) = (self.upstream, self.pools.workers);
        let machine = self.pools.machine(endpoint, upstream);
        machine.add_health(health);
        if let Some(same) = self.built.get(&Rc::as_ptr(&machine)) {
            return Rc::clone(same); // two nodes with one address are one endpoint
        }
        let before = self.known.get(&Rc::as_ptr(&machine));
        let limit = match (upstream.concurrency, before) {
            (Concurrency::Auto, _) => Rc::clone(machine.found_limit(workers)),
            (setting, Some(before)) if !before.limit.limiter().is_found() => {
                before.limit.limiter().configure(setting);
                Rc::clone(&before.limit)
            }
            (setting, _) => Rc::new(AdmissionLimit::new(setting, workers)),
        };
        limit.limiter().join(&self.group);
        machine.endpoints.set(machine.endpoints.get() + 1);
        // A queue belongs to one limit, under which those that wait in it get their permits.
        let queue = match before.filter(|before| Rc::ptr_eq(&before.limit, &limit)) {
            Some(before) => {
                before.queue.configure(upstream.queue);
                Rc::clone(&before.queue)
            }
            None => Rc::new(WaitQueue::new(upstream.queue)),
        };
        let built = Rc::new(EndpointPool {
            connections: machine.connections(upstream.keepalive),
            limit,
            queue,
            group: Rc::clone(&self.group),
            records_latency: upstream.balance.uses_latency(),
            machine,
        });
        self.built.insert(Rc::as_ptr(&built.machine), Rc::clone(&built));
        built
    }
}

impl Pools {
    /// The pools of one worker; `workers` is the number of all of them.
    pub(crate) fn new(workers: usize) -> Pools {
        Pools { workers: u32::try_from(workers).unwrap_or(u32::MAX), ..Pools::default() }
    }

    /// The machine of an endpoint of an upstream.
    fn machine(self: &Rc<Pools>, endpoint: &snapshot::Endpoint, upstream: &snapshot::Upstream) -> Rc<UpstreamMachine> {
        let (key, tls) = MachineKey::of(endpoint, upstream);
        let mut machines = self.machines.shard_of(&key);
        Rc::clone(machines.entry(key.clone()).or_insert_with(|| Rc::new(UpstreamMachine::new(key, tls, self))))
    }

    /// Called when an exchange enters an empty shared queue: registers the queue with all endpoints, and for the regular
    /// checks.
    fn register_waiters(&self, shared_queue: &Rc<SharedQueue>, endpoints: &[Rc<EndpointPool>]) {
        for (seat, endpoint) in endpoints.iter().enumerate() {
            if endpoint.limit.register_shared_queue(shared_queue, seat) {
                self.check_queues_each_tick(&endpoint.limit);
            }
        }
        if !shared_queue.is_checked.replace(true) {
            self.shared_queues.borrow_mut().push(Rc::clone(shared_queue));
        }
    }

    /// Has the queues of the limit checked at every tick, while exchanges wait.
    fn check_queues_each_tick(&self, limit: &Rc<AdmissionLimit>) {
        self.waited_for.borrow_mut().push(Rc::clone(limit));
    }

    /// Has the machine's connections checked by the sweeps.
    fn connected(&self, machine: &Rc<UpstreamMachine>) {
        if !machine.is_connected.replace(true) {
            self.connected.borrow_mut().push(Rc::clone(machine));
        }
    }

    /// Takes back the endpoints of an upstream that is no longer used. Machines that no endpoint sends to are dropped, with their
    /// idle connections, during the next ticks.
    pub(crate) fn release(&self, endpoints: Vec<Rc<EndpointPool>>) {
        let machines = endpoints.iter().map(|endpoint| &endpoint.machine);
        let new = machines.filter(|machine| !machine.is_released.replace(true));
        self.released.borrow_mut().extend(new.cloned());
    }

    fn drop_unused_machines(&self, worker: &WorkerContext) {
        let mut released = self.released.borrow_mut();
        let few = released.len().saturating_sub(RELEASED_AT_ONCE);
        let looked_at = released.split_off(few);
        for machine in looked_at {
            machine.drop_unused_connections(worker);
            if machine.in_flight.get() > 0 {
                released.push_front(machine);
                continue;
            }
            machine.is_released.set(false);
            if machine.endpoints.get() == 0 {
                self.machines.shard_of(&machine.key).remove(&machine.key);
                machine.close_idle(worker);
            }
        }
    }

    /// Closes the connection that has been idle longest, to free its file descriptor; `false` if there is none.
    fn close_oldest_idle(&self, worker: &WorkerContext) -> bool {
        let connected = self.connected.borrow();
        let oldest = connected
            .iter()
            .filter_map(|machine| Some((machine.oldest_idle_ns()?, machine)))
            .min_by_key(|(since_ns, _)| *since_ns);
        oldest.is_some_and(|(_, machine)| machine.close_oldest_idle(worker))
    }

    /// The regular work, called at every tick.
    pub(crate) fn maintain(&self, worker: &WorkerContext) {
        self.maintain_queues(worker.now_ns());
        self.sweep(worker);
        self.drop_unused_machines(worker);
    }

    /// Raises limits that have become too low, and ends waits that have lasted too long.
    fn maintain_queues(&self, now_ns: u64) {
        self.waited_for.borrow_mut().retain(|limit| limit.on_queue_tick(now_ns));
        self.shared_queues.borrow_mut().retain(|shared_queue| {
            shared_queue.look(now_ns);
            let has_waiters = !shared_queue.is_empty();
            shared_queue.is_checked.set(has_waiters);
            has_waiters
        });
    }

    /// Closes idle connections that their endpoint has closed, or that have been idle too long; a part of them at each
    /// tick.
    fn sweep(&self, worker: &WorkerContext) {
        let mut connected = self.connected.borrow_mut();
        let mut sweep = self.sweep.get();
        if sweep.next >= connected.len() {
            if worker.now_ns() < sweep.began_ns + SWEEP_NS {
                return;
            }
            sweep = Sweep { began_ns: worker.now_ns(), ..Sweep::default() };
        }
        for _ in 0..connected.len().div_ceil(SWEEP_PARTS) {
            let Some(machine) = connected.get(sweep.next) else { break };
            sweep.idle += machine.sweep(worker);
            if machine.has_connections() {
                sweep.next += 1;
            } else {
                machine.is_connected.set(false);
                drop(connected.swap_remove(sweep.next));
            }
        }
        if sweep.next >= connected.len() {
            worker.metrics.upstream_idle.set(sweep.idle);
        }
        self.sweep.set(sweep);
    }
}

const HAS_STREAM: &str = "a pooled connection owns its stream until it is returned to the pool or closed";

/// A connection to an endpoint, with the permit of the exchange that uses it.
pub(crate) struct UpstreamConnection<'w> {
    permit: Permit<'w>,
    stream: Option<Stream>,
    client: Option<SocketAddr>,
    /// The longest send time-out of the requests that it has carried.
    send_timeout: Duration,
    unsent: UnsentBytes,
    /// Exchanges it carried before this one.
    pub requests: u64,
}

/// Which connection a request may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// Any idle one: if the endpoint has closed it, the request can be sent again.
    Any,
    /// An idle one only after checking that its socket is not closed, because the request must not be sent twice.
    Checked,
    /// A new one only.
    New,
}

impl<'w> Permit<'w> {
    /// An idle connection for the exchange's request; if there is none, returns the permit.
    pub(crate) fn reuse(
        self,
        freshness: Freshness,
        send_timeout: Duration,
        exchange: &Exchange,
    ) -> Result<UpstreamConnection<'w>, Permit<'w>> {
        if freshness == Freshness::New {
            return Err(self);
        }
        let client = self.proxy_protocol_source(exchange);
        match self.endpoint.take_idle(self.worker, freshness, &exchange.request, client) {
            Some(mut idle) => {
                self.worker.metrics.upstream_reuses.increment();
                // It may have been opened for another route or upstream, with a shorter time-out.
                if send_timeout > idle.send_timeout {
                    idle.stream.set_user_timeout(user_timeout(send_timeout));
                    idle.send_timeout = send_timeout;
                }
                Ok(UpstreamConnection::new(self, idle))
            }
            None => Err(self),
        }
    }

    /// A connection for the exchange's request: a new one, unless one becomes idle while the exchange waits for a file
    /// descriptor.
    pub(crate) async fn open(
        mut self,
        freshness: Freshness,
        timeouts: Timeouts,
        exchange: &mut Exchange,
    ) -> Result<UpstreamConnection<'w>, Stop> {
        let worker = self.worker;
        let began_ns = worker.now_ns();
        loop {
            let connecting = self.endpoint.connect(worker, Some(timeouts.send), exchange);
            match within_timeout(worker, timeouts.connect, connecting).await {
                Err(Stop::Overloaded)
                    if self.endpoint.should_wait_for_connection(began_ns, timeouts.connect, worker.now_ns()) =>
                {
                    self = match self.again(timeouts.connect).await?.reuse(freshness, timeouts.send, exchange) {
                        Ok(connection) => {
                            exchange.upstream.os_error = 0;
                            return Ok(connection);
                        }
                        Err(permit) => permit,
                    };
                }
                connected => {
                    let client = self.proxy_protocol_source(exchange);
                    let (stream, send_timeout) = (connected?, timeouts.send);
                    let opened = IdleConnection { stream, client, send_timeout, requests: 0, since_ns: 0 };
                    return Ok(UpstreamConnection::new(self, opened));
                }
            }
        }
    }

    /// The client that a connection's PROXY header must name, if it has one.
    fn proxy_protocol_source(&self, exchange: &Exchange) -> Option<SocketAddr> {
        self.endpoint.machine.key.proxy_protocol.map(|_| proxy_protocol_client(exchange))
    }
}

impl EndpointPool {
    /// Called when there was no file descriptor for one more connection: whether an exchange that began to connect at
    /// `began_ns` should wait for one of the existing connections.
    fn should_wait_for_connection(&self, began_ns: u64, patience: Duration, now_ns: u64) -> bool {
        let limit = &self.limit;
        now_ns - began_ns < patience.as_nanos() as u64 && limit.limiter().lower_for_shortage(limit.in_use(), now_ns)
    }

    async fn connect(
        &self,
        worker: &WorkerContext,
        send_timeout: Option<Duration>,
        exchange: &mut Exchange,
    ) -> Result<Stream, Stop> {
        let addr = self.addr();
        let mut connected = connect(addr, send_timeout).await;
        if connected.as_ref().is_err_and(is_shortage) && self.close_an_idle_connection(worker) {
            // Its file descriptor is free now, unless another thread has taken it.
            connected = connect(addr, send_timeout).await;
        }
        let tcp = connected.map_err(|error| {
            tracing::debug!("connect to {addr}: {error}");
            exchange.upstream.os_error = error.raw_os_error().unwrap_or(0);
            if is_shortage(&error) { Stop::Overloaded } else { Stop::ConnectFailed }
        })?;
        if send_timeout.is_none() && (self.machine.tls.is_some() || self.machine.key.proxy_protocol.is_some()) {
            // What the stream sends first is not the first on this connection.
            tcp.set_nodelay(true).map_err(|_| Stop::ConnectFailed)?;
        }
        if let Some(version) = self.machine.key.proxy_protocol {
            let header =
                proxy_protocol::header(version, Some((proxy_protocol_client(exchange), exchange.client.local)));
            // The first bytes on a connection fit into its send buffer.
            let sent = tcp.try_write(&header);
            if !sent.is_ok_and(|count| count == header.len()) {
                return Err(Stop::ConnectFailed);
            }
        }
        let stream = match &self.machine.tls {
            None => Stream::plain(tcp),
            Some(secured) => {
                let server = secured.server(addr, &exchange.request);
                // Boxed, so that connections without TLS have no room for it.
                Box::pin(server.handshake(tcp, &worker.upstream_handshakes)).await?
            }
        };
        exchange.upstream.os_error = 0;
        worker.metrics.upstream_connects.increment();
        Ok(stream)
    }

    /// Closes an idle connection of any endpoint, to free its file descriptor; `false` if there is none.
    fn close_an_idle_connection(&self, worker: &WorkerContext) -> bool {
        self.machine.pools.upgrade().is_some_and(|pools| pools.close_oldest_idle(worker))
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.machine.key.addr
    }

    /// Whether it is used over HTTP/2, by connections that exchanges share.
    pub(crate) fn is_http2(&self) -> bool {
        self.machine.key.http2
    }

    /// Whether its connections use TLS.
    pub(crate) fn is_secured(&self) -> bool {
        self.machine.tls.is_some()
    }

    /// Whether this failure of a TLS handshake may be due to the host of the request.
    pub(crate) fn may_fail_by_clients(&self, stop: Stop) -> bool {
        self.machine.tls.as_ref().is_some_and(|tls| tls.may_fail_by_clients(stop))
    }

    /// Exchanges that the machine works on, whichever upstream has sent them, and those that wait here for a permit. What waits
    /// under the limit of another upstream is no load of the machine.
    pub(crate) fn in_flight(&self) -> u32 {
        self.machine.in_flight.get() + self.limit.waiting()
    }

    pub(crate) fn latency(&self) -> &LatencyEstimate {
        &self.machine.latency
    }

    /// Whether a permit is free, so that one more exchange need not wait.
    pub(crate) fn has_room(&self) -> bool {
        self.limit.has_room()
    }

    /// Whether the permits of both are of one limit.
    pub(crate) fn has_limit_of(&self, other: &EndpointPool) -> bool {
        Rc::ptr_eq(&self.limit, &other.limit)
    }

    /// The most recently used connection with the TLS server that a request needs, and for this client if
    /// connections name one.
    fn take_idle(
        &self,
        worker: &WorkerContext,
        freshness: Freshness,
        request: &RequestHead,
        client: Option<SocketAddr>,
    ) -> Option<IdleConnection> {
        let server = self.machine.tls.as_ref().map(|secured| secured.server(self.addr(), request));
        let pool = &self.connections.idle;
        loop {
            let mut idle = match &server {
                None if client.is_none() => pool.borrow_mut().pop()?,
                server => {
                    let is_with = |stream| server.as_ref().is_none_or(|server| server.is_of(stream));
                    let mut idle = pool.borrow_mut();
                    let last = idle.iter().rposition(|idle| idle.client == client && is_with(&idle.stream))?;
                    idle.remove(last)
                }
            };
            if idle.stream.is_quiet() && (freshness == Freshness::Any || idle.stream.is_alive()) {
                return Some(idle);
            }
            worker.metrics.upstream_connections_closed.increment();
        }
    }
}

/// Opens a connection with a time limit. Boxed, so that the state of connecting is not part of every client connection's
/// task.
async fn within_timeout<T>(
    worker: &WorkerContext,
    patience: Duration,
    connecting: impl Future<Output = Result<T, Stop>>,
) -> Result<T, Stop> {
    connected(worker, Box::pin(tokio::time::timeout(patience, connecting)).await)
}

/// What a connection that had to be open in time has come to.
fn connected<T>(worker: &WorkerContext, in_time: Result<Result<T, Stop>, Elapsed>) -> Result<T, Stop> {
    let connected = in_time.unwrap_or(Err(Stop::ConnectTimeout));
    if connected.is_err() {
        worker.metrics.upstream_connect_failures.increment();
    }
    connected
}

/// The client that a connection's PROXY header names: the peer with its port, or the address that a trusted peer reported.
fn proxy_protocol_client(exchange: &Exchange) -> SocketAddr {
    let client = &exchange.client;
    if client.addr == client.peer.ip() { client.peer } else { SocketAddr::new(client.addr, 0) }
}

impl<'w> UpstreamConnection<'w> {
    fn new(permit: Permit<'w>, connection: IdleConnection) -> UpstreamConnection<'w> {
        let IdleConnection { stream, client, send_timeout, requests, .. } = connection;
        let (stream, unsent) = (Some(stream), UnsentBytes::default());
        UpstreamConnection { permit, stream, client, send_timeout, unsent, requests }
    }

    pub(crate) fn stream(&mut self) -> &mut Stream {
        self.stream.as_mut().expect(HAS_STREAM)
    }

    /// Returns the connection to the pool. Only for a connection whose exchange is complete, with no bytes left over.
    pub(crate) fn keep(&mut self, now_ns: u64) {
        let endpoint = &self.permit.endpoint;
        let keepalive = endpoint.connections.keepalive;
        let requests = self.requests + 1;
        let mut idle = endpoint.connections.idle.borrow_mut();
        if requests < keepalive.requests && keepalive.size > 0 {
            // Not every request can use every connection: some are for one server name, or one client. So it is the one that
            // has been idle longest that makes room, and not the newest.
            if idle.len() >= keepalive.size {
                idle.remove(0).stream.send_close_notify();
                self.permit.worker.metrics.upstream_connections_closed.increment();
            }
            let stream = self.stream.take().expect(HAS_STREAM);
            let (client, send_timeout) = (self.client, self.send_timeout);
            idle.push(IdleConnection { stream, client, send_timeout, requests, since_ns: now_ns });
            endpoint.machine.register_connection();
        }
    }
}

impl Sending for UpstreamConnection<'_> {
    fn end(&mut self, out: &mut Vec<u8>, coding: HopFraming, trailers: Option<&Trailers>) {
        if coding == HopFraming::Chunked {
            chunked::write_end(out, trailers);
        }
    }

    fn send(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> io::Result<usize> {
        let stream = self.stream.as_mut().expect(HAS_STREAM);
        self.unsent.send(self.permit.worker, stream, context, bytes)
    }

    fn is_blocked(&self) -> bool {
        !self.unsent.is_empty()
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let stream = self.stream.as_mut().expect(HAS_STREAM);
        self.unsent.poll_flush(self.permit.worker, stream, context)
    }
}

impl UpstreamSide for UpstreamConnection<'_> {
    fn addr(&self) -> SocketAddr {
        self.permit.endpoint.addr()
    }

    fn write_request_head(&mut self, out: &mut Vec<u8>, exchange: &Exchange, terms: &RequestTerms<'_>) -> HopFraming {
        forward::write_request_head(out, exchange, terms.pass_host, terms.endpoint)
    }

    fn poll_receive(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
        _: &mut ResponseHead,
    ) -> Poll<io::Result<Received>> {
        self.stream().poll_read(context, buffer).map_ok(|count| match count {
            0 => Received::End,
            count => Received::Bytes(count),
        })
    }

    fn take_trailers(&mut self) -> Trailers {
        Trailers::default()
    }

    fn answered(&mut self) {
        self.permit.answered();
    }
}

impl Drop for UpstreamConnection<'_> {
    fn drop(&mut self) {
        self.unsent.release(&self.permit.worker.buffers);
        if self.stream.take().is_some() {
            self.permit.worker.metrics.upstream_connections_closed.increment();
        }
    }
}
