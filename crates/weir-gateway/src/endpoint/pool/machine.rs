//! What a worker has to do with the machine behind an address, whichever upstreams send to it: connections, exchanges in
//! flight, response times, and the limit that `concurrency: auto` has found.

use std::cell::{Cell, OnceCell, RefCell};
use std::net::SocketAddr;
use std::rc::{self, Rc};
use std::sync::{Arc, Weak};
use std::time::Duration;

use weir_net::proxy_protocol::ProxyProtocolVersion;
use weir_net::stream::Stream;

use super::Pools;
use super::limit::AdmissionLimit;
use super::multiplexed::{Openings, SharedConnection};
use super::secure::{EndpointTls, TlsIdentity};
use crate::context::WorkerContext;
use crate::endpoint::balance::LatencyEstimate;
use crate::endpoint::state::Health;
use crate::snapshot::{self, Concurrency, Keepalive};

/// The properties that make a connection to one address usable for an upstream.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct MachineKey {
    pub(super) addr: SocketAddr,
    /// It is used over HTTP/2, by connections that exchanges share.
    pub(super) http2: bool,
    /// Each connection begins with a PROXY protocol header, and can only be used for the client named there.
    pub(super) proxy_protocol: Option<ProxyProtocolVersion>,
    tls: Option<TlsIdentity>,
}

pub(super) struct UpstreamMachine {
    pub(super) key: MachineKey,
    pub(super) pools: rc::Weak<Pools>,
    /// How its connections are secured; `None` without TLS.
    pub(super) tls: Option<EndpointTls>,
    /// The connections of the upstreams with equal `keepalive_pool` settings.
    connections: RefCell<Vec<Rc<KeptConnections>>>,
    /// The endpoints of upstreams, in use or retired, that send to it. While there is one, the machine stays.
    pub(super) endpoints: Cell<u32>,
    /// Exchanges that have been granted a permit and have not ended.
    pub(super) in_flight: Cell<u32>,
    /// Recorded only for upstreams whose balancer uses it.
    pub(super) latency: LatencyEstimate,
    /// The limit of the upstreams with `concurrency: auto`.
    found_limit: OnceCell<Rc<AdmissionLimit>>,
    /// Whether it is in [`Pools::connected`], and in [`Pools::released`].
    pub(super) is_connected: Cell<bool>,
    pub(super) is_released: Cell<bool>,
    /// The health that upstreams see. Two of them may check the machine differently.
    health: RefCell<Vec<Weak<Health>>>,
    /// For how many of these it was out of rotation at the last sweep.
    out: Cell<usize>,
}

/// Connections to one machine, of the upstreams that keep connections in the same way.
pub(super) struct KeptConnections {
    pub(super) keepalive: Keepalive,
    pub(super) idle: RefCell<Vec<IdleConnection>>,
    pub(super) multiplexed: RefCell<Vec<Rc<SharedConnection>>>,
    /// HTTP/2 connections that are being opened.
    pub(super) openings: Openings,
}

pub(super) struct IdleConnection {
    pub(super) stream: Stream,
    /// The client named in its PROXY header, if there is one.
    pub(super) client: Option<SocketAddr>,
    /// The longest send time-out of its requests.
    pub(super) send_timeout: Duration,
    pub(super) requests: u64,
    pub(super) since_ns: u64,
}

impl MachineKey {
    /// The key of an endpoint of an upstream, and how its connections are secured.
    pub(super) fn of(
        endpoint: &snapshot::Endpoint,
        upstream: &snapshot::Upstream,
    ) -> (MachineKey, Option<EndpointTls>) {
        let secured = EndpointTls::new(endpoint, upstream);
        let key = MachineKey {
            addr: endpoint.addr,
            http2: upstream.http2,
            proxy_protocol: upstream.proxy_protocol,
            tls: secured.as_ref().map(EndpointTls::identity),
        };
        (key, secured)
    }
}

impl UpstreamMachine {
    pub(super) fn new(key: MachineKey, tls: Option<EndpointTls>, pools: &Rc<Pools>) -> UpstreamMachine {
        UpstreamMachine {
            key,
            pools: Rc::downgrade(pools),
            tls: tls.map(EndpointTls::with_own_sessions),
            connections: RefCell::default(),
            endpoints: Cell::new(0),
            in_flight: Cell::new(0),
            latency: LatencyEstimate::default(),
            found_limit: OnceCell::new(),
            is_connected: Cell::new(false),
            is_released: Cell::new(false),
            health: RefCell::default(),
            out: Cell::new(0),
        }
    }

    /// The limit of the upstreams with `concurrency: auto`.
    pub(super) fn found_limit(&self, workers: u32) -> &Rc<AdmissionLimit> {
        self.found_limit.get_or_init(|| Rc::new(AdmissionLimit::new(Concurrency::Auto, workers)))
    }

    /// The connections of upstreams with this setting.
    pub(super) fn connections(&self, keepalive: Keepalive) -> Rc<KeptConnections> {
        let mut all = self.connections.borrow_mut();
        if let Some(known) = all.iter().find(|known| known.keepalive == keepalive) {
            return Rc::clone(known);
        }
        let new = Rc::new(KeptConnections {
            keepalive,
            idle: RefCell::default(),
            multiplexed: RefCell::default(),
            openings: Openings::default(),
        });
        all.push(Rc::clone(&new));
        new
    }

    /// Closes the connections of settings that no upstream has any more.
    pub(super) fn drop_unused_connections(&self, worker: &WorkerContext) {
        self.connections.borrow_mut().retain(|pool| {
            let is_used = Rc::strong_count(pool) > 1;
            if !is_used {
                pool.close_idle(worker);
            }
            is_used
        });
    }

    /// Adds the health that an upstream sees.
    pub(super) fn add_health(&self, health: &Arc<Health>) {
        let mut all = self.health.borrow_mut();
        all.retain(|known| known.strong_count() > 0);
        if !all.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(health))) {
            all.push(Arc::downgrade(health));
        }
    }

    /// Called when it has a connection that is idle or shared.
    pub(super) fn register_connection(self: &Rc<UpstreamMachine>) {
        if !self.is_connected.get()
            && let Some(pools) = self.pools.upgrade()
        {
            pools.connected(self);
        }
    }

    /// Since when its oldest idle connection has been idle.
    pub(super) fn oldest_idle_ns(&self) -> Option<u64> {
        let connections = self.connections.borrow();
        connections.iter().filter_map(|pool| Some(pool.idle.borrow().first()?.since_ns)).min()
    }

    /// Closes the connection that has been idle longest; `false` if there is none.
    pub(super) fn close_oldest_idle(&self, worker: &WorkerContext) -> bool {
        let Some(oldest_ns) = self.oldest_idle_ns() else { return false };
        let connections = self.connections.borrow();
        let is_oldest =
            |pool: &&Rc<KeptConnections>| pool.idle.borrow().first().is_some_and(|idle| idle.since_ns == oldest_ns);
        let Some(pool) = connections.iter().find(is_oldest) else { return false };
        pool.idle.borrow_mut().remove(0);
        worker.metrics.upstream_connections_closed.increment();
        true
    }

    /// Closes all idle connections. A connection to a dead endpoint looks alive until the kernel gives up on it.
    pub(super) fn close_idle(&self, worker: &WorkerContext) {
        self.connections.borrow().iter().for_each(|pool| pool.close_idle(worker));
    }

    /// Closes connections that are not worth keeping, and returns how many idle ones are left.
    pub(super) fn sweep(&self, worker: &WorkerContext) -> u64 {
        let now_ns = worker.now_ns();
        // An endpoint that goes out of rotation may have failed without closing its connections: once it is back, new ones
        // are opened. This happens once: an upstream whose checks never succeed leaves their connections to the others.
        let is_out = |health: &&Weak<Health>| health.upgrade().is_some_and(|health| !health.is_up(now_ns));
        let out = self.health.borrow().iter().filter(is_out).count();
        if out > self.out.replace(out) {
            self.close_idle(worker);
        }
        self.connections.borrow().iter().map(|pool| pool.sweep(worker)).sum()
    }

    pub(super) fn has_connections(&self) -> bool {
        let connections = self.connections.borrow();
        connections.iter().any(|pool| !pool.idle.borrow().is_empty() || !pool.multiplexed.borrow().is_empty())
    }
}

impl KeptConnections {
    fn close_idle(&self, worker: &WorkerContext) {
        worker.metrics.upstream_connections_closed.add(self.idle.borrow_mut().drain(..).len() as u64);
        self.multiplexed.borrow_mut().clear();
    }

    fn sweep(&self, worker: &WorkerContext) -> u64 {
        let now_ns = worker.now_ns();
        let patience = self.keepalive.idle_timeout.as_nanos() as u64;
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
