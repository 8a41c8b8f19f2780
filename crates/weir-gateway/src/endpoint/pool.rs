//! Connections to endpoints. Idle ones are reused, the most recently used first, so that a few stay in use and the others
//! time out.

mod connect;
mod multiplexed;
mod permit;
mod queue;
pub(crate) mod secure;
mod shared_queue;

use std::cell::{Cell, RefCell, RefMut};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::rc::{self, Rc};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use weir_net::proxy_protocol::{self, ProxyProtocolVersion};
use weir_net::stream::Stream;
use weir_plugin::{Exchange, Stop};
use weir_proto::h1::chunked;
use weir_proto::{RequestHead, ResponseHead, Trailers};

use crate::context::WorkerContext;
use crate::endpoint::balance::LatencyEstimate;
use crate::endpoint::concurrency::{ConcurrencyLimiter, LimiterGroup};
use crate::endpoint::state::Health;
use crate::message::forward::{self, HopFraming};
use crate::message::sides::{Received, RequestTerms, Sending, UpstreamSide};
use crate::message::unsent::UnsentBytes;
use crate::snapshot::{self, Keepalive, Timeouts};

use connect::{connect, is_shortage};
pub use permit::Permit;
use queue::WaitQueue;
use secure::EndpointTls;
pub use shared_queue::{QueueSeats, SharedQueue};

/// The endpoints of one worker, by address and by how they are connected to. They are kept across snapshots.
#[derive(Default)]
pub struct Pools {
    endpoints: EndpointTable,
    /// The shared queues that have waiters.
    shared_queues: RefCell<Vec<Rc<SharedQueue>>>,
    /// Endpoints that exchanges wait for; only these need work for their queues at each tick.
    waited_for: RefCell<Vec<Rc<EndpointPool>>>,
    /// Endpoints with idle or shared connections.
    connected: RefCell<Vec<Rc<EndpointPool>>>,
    sweep: Cell<Sweep>,
    /// Endpoints that a retired upstream has released.
    released: RefCell<VecDeque<Rc<EndpointPool>>>,
    /// The number of workers of the node, among which the concurrency of an endpoint is divided.
    workers: u32,
}

/// Endpoints by their keys, in several tables: a table that grows moves all its entries at once.
struct EndpointTable {
    shards: [RefCell<HashMap<PoolKey, Rc<EndpointPool>>>; EndpointTable::SHARDS],
    random: RandomState,
}

impl EndpointTable {
    const SHARDS: usize = 64;

    fn shard_of(&self, key: &PoolKey) -> RefMut<'_, HashMap<PoolKey, Rc<EndpointPool>>> {
        self.shards[self.random.hash_one(key) as usize % Self::SHARDS].borrow_mut()
    }
}

impl Default for EndpointTable {
    fn default() -> EndpointTable {
        EndpointTable { shards: std::array::from_fn(|_| RefCell::default()), random: RandomState::default() }
    }
}

/// The progress of a sweep over the connected endpoints.
#[derive(Clone, Copy, Default)]
struct Sweep {
    began_ns: u64,
    /// An index into the connected endpoints; the sweep ends at the end of the list.
    next: usize,
    /// Idle connections counted in this sweep.
    idle: u64,
}

/// The interval between the starts of two sweeps.
const SWEEP_NS: u64 = 1_000_000_000;
/// Each tick checks this fraction of the connected endpoints (one in 25): a sweep takes half of its interval.
const SWEEP_PARTS: usize = 25;
/// The most released endpoints that one tick checks.
const RELEASED_AT_ONCE: usize = 256;

type PoolKey = (SocketAddr, bool, Option<ProxyProtocolVersion>, Option<secure::TlsIdentity>);

/// One worker's connections to one endpoint.
pub struct EndpointPool {
    /// The pools that this endpoint belongs to.
    pools: rc::Weak<Pools>,
    pub addr: SocketAddr,
    /// How its connections are secured; `None` without TLS.
    tls: Option<EndpointTls>,
    keepalive: Cell<Keepalive>,
    /// The endpoint is used over HTTP/2, by the connections in `multiplexed`; other endpoints use those in `idle`.
    pub http2: bool,
    /// Each connection begins with a PROXY protocol header, and can only be used for the client named there.
    proxy_protocol: Option<ProxyProtocolVersion>,
    multiplexed: RefCell<Vec<Rc<multiplexed::SharedConnection>>>,
    /// HTTP/2 connections that are being opened.
    openings: multiplexed::Openings,
    idle: RefCell<Vec<IdleConnection>>,
    /// Exchanges that have begun and not ended, including those that wait for a permit in this endpoint's own queue.
    in_flight: Cell<u32>,
    /// Recorded only if a balancer uses it.
    pub latency: LatencyEstimate,
    goes_by_latency: Cell<bool>,
    /// Exchanges that hold a permit, with or without a connection yet.
    in_use: Cell<u32>,
    limiter: ConcurrencyLimiter,
    /// Exchanges that wait for this endpoint and no other.
    queue: WaitQueue,
    /// The shared queues that this endpoint serves, with its seat in each: those that have waiters, or had some at the last
    /// tick.
    shared_queues: RefCell<Vec<(Rc<SharedQueue>, usize)>>,
    /// Whether it is in [`Pools::waited_for`], and in [`Pools::connected`].
    is_waited_for: Cell<bool>,
    is_connected: Cell<bool>,
    /// The health that each upstream sees. Two upstreams may check the endpoint differently.
    health: RefCell<Vec<Weak<Health>>>,
    key: PoolKey,
}

struct IdleConnection {
    stream: Stream,
    /// The client named in its PROXY header, if there is one.
    client: Option<SocketAddr>,
    requests: u64,
    since_ns: u64,
}

impl Pools {
    /// The pools of one worker; `workers` is the number of all of them.
    pub fn new(workers: usize) -> Pools {
        Pools { workers: u32::try_from(workers).unwrap_or(u32::MAX), ..Pools::default() }
    }

    /// The pool of an endpoint of an upstream, whose endpoints all get the same `group`.
    pub fn endpoint(
        self: &Rc<Pools>,
        endpoint: &snapshot::Endpoint,
        health: &Arc<Health>,
        upstream: &snapshot::Upstream,
        group: &Rc<LimiterGroup>,
    ) -> Rc<EndpointPool> {
        let tls = EndpointTls::new(endpoint, upstream);
        let key = (endpoint.addr, upstream.http2, upstream.proxy_protocol, tls.as_ref().map(EndpointTls::identity));
        let mut endpoints = self.endpoints.shard_of(&key);
        let shared = endpoints.entry(key.clone()).or_insert_with(|| {
            Rc::new(EndpointPool {
                pools: Rc::downgrade(self),
                addr: endpoint.addr,
                tls: tls.map(EndpointTls::with_own_sessions),
                keepalive: Cell::new(upstream.keepalive),
                http2: upstream.http2,
                proxy_protocol: upstream.proxy_protocol,
                multiplexed: RefCell::default(),
                openings: multiplexed::Openings::default(),
                idle: RefCell::default(),
                in_flight: Cell::new(0),
                latency: LatencyEstimate::default(),
                goes_by_latency: Cell::new(false),
                in_use: Cell::new(0),
                limiter: ConcurrencyLimiter::new(upstream.concurrency, self.workers),
                queue: WaitQueue::new(upstream.queue),
                shared_queues: RefCell::default(),
                is_waited_for: Cell::new(false),
                is_connected: Cell::new(false),
                health: RefCell::default(),
                key,
            })
        });
        shared.keepalive.set(upstream.keepalive);
        shared.limiter.configure(upstream.concurrency);
        shared.limiter.join(group);
        shared.queue.configure(upstream.queue);
        // Upstreams may share an endpoint; latency is recorded if one of them uses it.
        shared.goes_by_latency.set(shared.goes_by_latency.get() || upstream.balance.uses_latency());
        shared.add_health(health);
        Rc::clone(shared)
    }

    /// Called when an exchange enters an empty shared queue: registers the queue with all endpoints, and for the regular
    /// checks.
    fn register_waiters(&self, shared_queue: &Rc<SharedQueue>, endpoints: &[Rc<EndpointPool>]) {
        for (seat, endpoint) in endpoints.iter().enumerate() {
            let mut shared_queues = endpoint.shared_queues.borrow_mut();
            // Two nodes may be the same endpoint, which then has a seat for each.
            if !shared_queues.iter().any(|(known, known_seat)| Rc::ptr_eq(known, shared_queue) && *known_seat == seat) {
                shared_queues.push((Rc::clone(shared_queue), seat));
            }
            drop(shared_queues);
            self.check_queues_each_tick(endpoint);
        }
        let mut shared_queues = self.shared_queues.borrow_mut();
        if !shared_queues.iter().any(|known| Rc::ptr_eq(known, shared_queue)) {
            shared_queues.push(Rc::clone(shared_queue));
        }
    }

    /// Has the endpoint's queues checked at every tick, while exchanges wait.
    fn check_queues_each_tick(&self, endpoint: &Rc<EndpointPool>) {
        if !endpoint.is_waited_for.replace(true) {
            self.waited_for.borrow_mut().push(Rc::clone(endpoint));
        }
    }

    /// Has the endpoint's connections checked by the sweeps.
    fn connected(&self, endpoint: &Rc<EndpointPool>) {
        if !endpoint.is_connected.replace(true) {
            self.connected.borrow_mut().push(Rc::clone(endpoint));
        }
    }

    /// Takes back the endpoints of an upstream that is no longer used. Those without other references are dropped, with
    /// their idle connections, during the next ticks.
    pub fn release(&self, endpoints: Vec<Rc<EndpointPool>>) {
        self.released.borrow_mut().extend(endpoints);
    }

    fn drop_unused_endpoints(&self, worker: &WorkerContext) {
        let mut released = self.released.borrow_mut();
        let few = released.len().saturating_sub(RELEASED_AT_ONCE);
        let looked_at = released.split_off(few);
        for endpoint in looked_at {
            if endpoint.in_flight.get() > 0 || endpoint.is_waited_for.get() {
                released.push_front(endpoint);
                continue;
            }
            let lists = usize::from(endpoint.is_connected.get());
            if Rc::strong_count(&endpoint) == 2 + lists {
                self.endpoints.shard_of(&endpoint.key).remove(&endpoint.key);
                endpoint.close_idle(worker);
            }
        }
    }

    /// Closes the connection that has been idle longest, to free its file descriptor; `false` if there is none.
    fn close_oldest_idle(&self, worker: &WorkerContext) -> bool {
        let connected = self.connected.borrow();
        let oldest = connected
            .iter()
            .filter_map(|endpoint| Some((endpoint.idle.borrow().first()?.since_ns, endpoint)))
            .min_by_key(|(since_ns, _)| *since_ns);
        let Some((_, endpoint)) = oldest else { return false };
        endpoint.idle.borrow_mut().remove(0);
        worker.metrics.upstream_connections_closed.increment();
        true
    }

    /// The regular work, called at every tick.
    pub fn maintain(&self, worker: &WorkerContext) {
        self.maintain_queues(worker.now_ns());
        self.sweep(worker);
        self.drop_unused_endpoints(worker);
    }

    /// Raises limits that have become too low, and ends waits that have lasted too long.
    fn maintain_queues(&self, now_ns: u64) {
        self.waited_for.borrow_mut().retain(|endpoint| {
            let stays = endpoint.on_queue_tick(now_ns);
            endpoint.is_waited_for.set(stays);
            stays
        });
        self.shared_queues.borrow_mut().retain(|shared_queue| {
            shared_queue.look(now_ns);
            !shared_queue.is_empty()
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
            let Some(endpoint) = connected.get(sweep.next) else { break };
            sweep.idle += endpoint.sweep(worker);
            match endpoint.idle.borrow().is_empty() && endpoint.multiplexed.borrow().is_empty() {
                false => sweep.next += 1,
                true => {
                    endpoint.is_connected.set(false);
                    drop(connected.swap_remove(sweep.next));
                }
            }
        }
        if sweep.next >= connected.len() {
            worker.metrics.upstream_idle.set(sweep.idle);
        }
        self.sweep.set(sweep);
    }
}

impl EndpointPool {
    /// Called when it has a connection that is idle or shared.
    fn register_connection(self: &Rc<EndpointPool>) {
        if !self.is_connected.get()
            && let Some(pools) = self.pools.upgrade()
        {
            pools.connected(self);
        }
    }

    /// Called when an exchange waits for it.
    fn register_waiter(self: &Rc<EndpointPool>) {
        if !self.is_waited_for.get()
            && let Some(pools) = self.pools.upgrade()
        {
            pools.check_queues_each_tick(self);
        }
    }

    /// Adds the health that an upstream sees of this endpoint.
    fn add_health(&self, health: &Arc<Health>) {
        let mut all = self.health.borrow_mut();
        all.retain(|known| known.strong_count() > 0);
        if !all.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(health))) {
            all.push(Arc::downgrade(health));
        }
    }

    /// Closes connections that are not worth keeping, and returns how many idle ones are left.
    fn sweep(&self, worker: &WorkerContext) -> u64 {
        let now_ns = worker.now_ns();
        // An endpoint that is out of rotation may have failed without closing its connections: once it is back, new ones
        // are opened.
        let is_out =
            self.health.borrow().iter().any(|health| health.upgrade().is_some_and(|health| !health.is_up(now_ns)));
        if is_out {
            self.close_idle(worker);
        }
        let patience = self.keepalive.get().idle_timeout.as_nanos() as u64;
        let mut idle = self.idle.borrow_mut();
        let before = idle.len();
        idle.retain_mut(|idle| {
            let stays = now_ns.saturating_sub(idle.since_ns) < patience && idle.stream.is_quiet();
            if !stays {
                idle.stream.send_close_notify();
            }
            stays
        });
        worker.metrics.upstream_connections_closed.add((before - idle.len()) as u64);
        self.multiplexed.borrow_mut().retain(|shared| !shared.is_over(now_ns, patience));
        idle.len() as u64
    }
}

const HAS_STREAM: &str = "a pooled connection owns its stream until it is returned to the pool or closed";

/// A connection to an endpoint, with the permit of the exchange that uses it.
pub struct UpstreamConnection<'w> {
    permit: Permit<'w>,
    stream: Option<Stream>,
    client: Option<SocketAddr>,
    unsent: UnsentBytes,
    /// Exchanges it carried before this one.
    pub requests: u64,
}

/// Which connection a request may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// Any idle one: if the endpoint has closed it, the request can be sent again.
    Any,
    /// An idle one only after checking that its socket is not closed, because the request must not be sent twice.
    Checked,
    /// A new one only.
    New,
}

impl<'w> Permit<'w> {
    /// An idle connection for the exchange's request; if there is none, returns the permit.
    pub fn reuse(self, freshness: Freshness, exchange: &Exchange) -> Result<UpstreamConnection<'w>, Permit<'w>> {
        if freshness == Freshness::New {
            return Err(self);
        }
        let client = self.proxy_protocol_source(exchange);
        match self.endpoint.take_idle(self.worker, freshness, &exchange.request, client) {
            Some(IdleConnection { stream, requests, .. }) => {
                self.worker.metrics.upstream_reuses.increment();
                Ok(UpstreamConnection::new(self, stream, client, requests))
            }
            None => Err(self),
        }
    }

    /// A connection for the exchange's request: a new one, unless one becomes idle while the exchange waits for a file
    /// descriptor.
    pub async fn open(
        mut self,
        freshness: Freshness,
        timeouts: Timeouts,
        exchange: &Exchange,
    ) -> Result<UpstreamConnection<'w>, Stop> {
        let worker = self.worker;
        let began_ns = worker.now_ns();
        loop {
            let connecting = self.endpoint.connect(worker, timeouts.send, exchange);
            match within_timeout(worker, timeouts.connect, connecting).await {
                Err(Stop::Overloaded)
                    if self.endpoint.should_wait_for_connection(began_ns, timeouts.connect, worker.now_ns()) =>
                {
                    self = match self.again(timeouts.connect).await?.reuse(freshness, exchange) {
                        Ok(connection) => return Ok(connection),
                        Err(permit) => permit,
                    };
                }
                connected => {
                    let client = self.proxy_protocol_source(exchange);
                    return Ok(UpstreamConnection::new(self, connected?, client, 0));
                }
            }
        }
    }

    /// The client that a connection's PROXY header must name, if it has one.
    fn proxy_protocol_source(&self, exchange: &Exchange) -> Option<SocketAddr> {
        self.endpoint.proxy_protocol.map(|_| proxy_protocol_client(exchange))
    }
}

impl EndpointPool {
    /// Called when there was no file descriptor for one more connection: whether an exchange that began to connect at
    /// `began_ns` should wait for one of the existing connections.
    fn should_wait_for_connection(&self, began_ns: u64, patience: Duration, now_ns: u64) -> bool {
        now_ns - began_ns < patience.as_nanos() as u64 && self.limiter.lower_for_shortage(self.in_use.get(), now_ns)
    }

    async fn connect(
        &self,
        worker: &WorkerContext,
        send_timeout: Duration,
        exchange: &Exchange,
    ) -> Result<Stream, Stop> {
        let mut connected = connect(self.addr, send_timeout).await;
        if connected.as_ref().is_err_and(is_shortage) && self.close_an_idle_connection(worker) {
            // Its file descriptor is free now, unless another thread has taken it.
            connected = connect(self.addr, send_timeout).await;
        }
        let tcp = connected.map_err(|error| {
            tracing::debug!("connect to {}: {error}", self.addr);
            if is_shortage(&error) { Stop::Overloaded } else { Stop::ConnectFailed }
        })?;
        if let Some(version) = self.proxy_protocol {
            let header =
                proxy_protocol::header(version, Some((proxy_protocol_client(exchange), exchange.client.local)));
            // The first bytes on a connection fit into its send buffer.
            let sent = tcp.try_write(&header);
            if !sent.is_ok_and(|count| count == header.len()) {
                return Err(Stop::ConnectFailed);
            }
        }
        let stream = match &self.tls {
            None => Stream::plain(tcp),
            Some(secured) => secured.server(self.addr, &exchange.request).handshake(tcp).await?,
        };
        worker.metrics.upstream_connects.increment();
        Ok(stream)
    }

    /// Closes an idle connection of any endpoint, to free its file descriptor; `false` if there is none.
    fn close_an_idle_connection(&self, worker: &WorkerContext) -> bool {
        self.pools.upgrade().is_some_and(|pools| pools.close_oldest_idle(worker))
    }

    /// Whether its connections use TLS.
    pub fn is_secured(&self) -> bool {
        self.tls.is_some()
    }

    /// Whether a failed TLS handshake may be due to the host of the request.
    pub fn is_named_by_clients(&self) -> bool {
        self.tls.as_ref().is_some_and(EndpointTls::is_named_by_clients)
    }

    pub fn in_flight(&self) -> u32 {
        self.in_flight.get()
    }

    /// Closes all idle connections. A connection to a dead endpoint looks alive until the kernel gives up on it.
    pub fn close_idle(&self, worker: &WorkerContext) {
        worker.metrics.upstream_connections_closed.add(self.idle.borrow_mut().drain(..).len() as u64);
        self.multiplexed.borrow_mut().clear();
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
        let server = self.tls.as_ref().map(|secured| secured.server(self.addr, request));
        loop {
            let mut idle = match &server {
                None if client.is_none() => self.idle.borrow_mut().pop()?,
                server => {
                    let is_with = |stream| server.as_ref().is_none_or(|server| server.is_of(stream));
                    let mut idle = self.idle.borrow_mut();
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
    let connected = Box::pin(tokio::time::timeout(patience, connecting)).await.unwrap_or(Err(Stop::ConnectTimeout));
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
    fn new(permit: Permit<'w>, stream: Stream, client: Option<SocketAddr>, requests: u64) -> UpstreamConnection<'w> {
        UpstreamConnection { permit, stream: Some(stream), client, unsent: UnsentBytes::default(), requests }
    }

    pub fn stream(&mut self) -> &mut Stream {
        self.stream.as_mut().expect(HAS_STREAM)
    }

    /// Returns the connection to the pool. Only for a connection whose exchange is complete, with no bytes left over.
    pub fn keep(mut self, now_ns: u64) {
        let keepalive = self.permit.endpoint.keepalive.get();
        let requests = self.requests + 1;
        let mut idle = self.permit.endpoint.idle.borrow_mut();
        if requests < keepalive.requests && keepalive.size > 0 {
            // Not every request can use every connection: some are for one server name, or one client. So it is the one that
            // has been idle longest that makes room, and not the newest.
            if idle.len() >= keepalive.size {
                idle.remove(0).stream.send_close_notify();
                self.permit.worker.metrics.upstream_connections_closed.increment();
            }
            let stream = self.stream.take().expect(HAS_STREAM);
            idle.push(IdleConnection { stream, client: self.client, requests, since_ns: now_ns });
            self.permit.endpoint.register_connection();
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
        self.permit.endpoint.addr
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
