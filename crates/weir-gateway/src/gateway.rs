//! The data plane from outside: start workers, publish snapshots, drain, stop.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use weir_net::clock::Clock;
use weir_telemetry::access_log::LogSink;
use weir_telemetry::metrics::{Metrics, RouteSlot};

use crate::access_log::LineFormat;
pub use crate::connection::listener::{Listener, ListenerProtocol};
use crate::context::lifecycle::WorkerPhase;
use crate::endpoint::probe::Prober;
use crate::endpoint::state::SharedState;
use crate::snapshot::{Endpoint, Snapshot, Upstream};
use crate::worker::commands::WorkerCommand;
use crate::worker::progress::WorkerProgress;
use crate::worker::rebalance::ConnectionRebalancer;
use crate::worker::thread::WorkerStart;

/// What a gateway starts with.
pub struct GatewayOptions {
    /// The sockets of each worker; the outer length is the number of workers. Not empty.
    pub listeners: Vec<Vec<Listener>>,
    pub snapshot: Arc<Snapshot>,
    pub metrics: Arc<Metrics>,
    /// A sink for each worker, and how lines look.
    pub access_log: Option<(LineFormat, Vec<LogSink>)>,
    /// Client connections each worker takes at most; beyond it, new ones wait in the kernel's queue.
    pub connections_per_worker: usize,
}

/// A running data plane. Dropping it stops the workers.
pub struct Gateway {
    workers: Vec<WorkerHandle>,
    metrics: Arc<Metrics>,
    shared: Arc<SharedState>,
    prober: Prober,
    snapshot: Mutex<Arc<Snapshot>>,
    clock: Clock,
    progress: Arc<WorkerProgress>,
}

/// An endpoint as operators see it.
#[derive(Clone, Debug)]
pub struct EndpointHealth {
    pub upstream: Box<str>,
    /// As written: `host:port`.
    pub name: Box<str>,
    pub addr: std::net::SocketAddr,
    pub weight: u32,
    pub priority: i64,
    pub is_up: bool,
    /// It is asked by active checks.
    pub is_checked: bool,
}

struct WorkerHandle {
    commands: UnboundedSender<WorkerCommand>,
    thread: Option<JoinHandle<()>>,
}
impl Gateway {
    /// Starts the workers. They serve `snapshot` when this returns.
    pub fn start(options: GatewayOptions) -> io::Result<Gateway> {
        let GatewayOptions { listeners, snapshot, metrics, access_log, connections_per_worker } = options;
        let clock = Clock::default();
        let shared = Arc::new(SharedState::default());
        let progress = Arc::new(WorkerProgress {
            revisions: listeners.iter().map(|_| AtomicU64::new(0)).collect(),
            running: AtomicUsize::new(0),
            changed: Condvar::new(),
            lock: Mutex::new(()),
        });
        let slots = slots(&metrics, &snapshot);
        let mut gateway = Gateway {
            workers: Vec::new(),
            metrics,
            prober: Prober::new(Arc::clone(&shared.health), clock),
            snapshot: Mutex::new(Arc::clone(&snapshot)),
            shared,
            clock,
            progress,
        };
        let (format, mut sinks) = match access_log {
            Some((format, sinks)) => (Some(format), sinks),
            None => (None, Vec::new()),
        };
        let (commands, inboxes): (Vec<_>, Vec<_>) = listeners.iter().map(|_| unbounded_channel()).unzip();
        let rebalancer = Arc::new(ConnectionRebalancer::new(commands.clone(), Arc::clone(&gateway.metrics)));
        for (index, ((listeners, commands), inbox)) in listeners.into_iter().zip(commands).zip(inboxes).enumerate() {
            let start = WorkerStart {
                index,
                listeners,
                clock,
                shared: Arc::clone(&gateway.shared),
                metrics: gateway.metrics.clone(),
                log: format.clone().zip(sinks.pop()),
                snapshot: Arc::clone(&snapshot),
                slots: Arc::clone(&slots),
                connections: connections_per_worker,
                progress: Arc::clone(&gateway.progress),
                rebalancer: Arc::clone(&rebalancer),
                inbox,
            };
            gateway.progress.running.fetch_add(1, Ordering::Relaxed);
            let builder = std::thread::Builder::new().name(format!("worker-{index}"));
            let thread = builder.spawn(move || start.run())?;
            gateway.workers.push(WorkerHandle { commands, thread: Some(thread) });
        }
        gateway.wait_for_revision(snapshot.revision, Duration::from_secs(10));
        gateway.shared.health.begin();
        gateway.prober.follow(&snapshot)?;
        Ok(gateway)
    }

    /// Hands a snapshot to every worker. New exchanges see it; those that run go on with what they began with.
    /// Returns when every worker serves it, `false` if that took longer than `patience`.
    pub fn publish(&self, snapshot: Arc<Snapshot>, patience: Duration) -> bool {
        let slots = slots(&self.metrics, &snapshot);
        let revision = snapshot.revision;
        self.command(|| WorkerCommand::Publish(Arc::clone(&snapshot), Arc::clone(&slots)));
        if let Err(error) = self.prober.follow(&snapshot) {
            tracing::error!("starting the health check thread failed, endpoints are not checked: {error}");
        }
        *self.snapshot.lock().unwrap_or_else(PoisonError::into_inner) = snapshot;
        self.wait_for_revision(revision, patience)
    }

    /// What policies cost is measured on one exchange in so many; 0 is none.
    pub fn price_every(&self) -> u32 {
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner).price_every
    }

    fn wait_for_revision(&self, revision: u64, patience: Duration) -> bool {
        let served =
            |progress: &WorkerProgress| progress.revisions.iter().all(|at| at.load(Ordering::Acquire) >= revision);
        self.progress.wait(Instant::now() + patience, served)
    }

    /// The revision each worker serves.
    pub fn revisions(&self) -> Vec<u64> {
        self.progress.revisions.iter().map(|revision| revision.load(Ordering::Acquire)).collect()
    }

    /// Client connections open now.
    pub fn connections(&self) -> u64 {
        self.metrics.workers().iter().map(|worker| worker.connections()).sum()
    }

    /// Every endpoint of the configuration published last, and whether it is in rotation.
    pub fn endpoints(&self) -> Vec<EndpointHealth> {
        let snapshot = Arc::clone(&self.snapshot.lock().unwrap_or_else(PoisonError::into_inner));
        let now_ns = self.clock.now_ns();
        let of = |upstream: &Upstream| {
            let health = |endpoint: &Endpoint| EndpointHealth {
                upstream: upstream.name.clone(),
                name: endpoint.name.clone(),
                addr: endpoint.addr,
                weight: endpoint.weight,
                priority: endpoint.priority,
                is_up: self.shared.health.endpoint(endpoint, now_ns).is_up(now_ns),
                is_checked: endpoint.checks.is_some(),
            };
            upstream.endpoints.iter().map(health).collect::<Vec<_>>()
        };
        snapshot.upstreams.iter().flat_map(of).collect()
    }

    /// Active health checks made so far: those that found the endpoint healthy, and those that did not.
    pub fn checks(&self) -> (u64, u64) {
        let checks = &self.shared.health.checks;
        (checks.healthy.load(Ordering::Relaxed), checks.unhealthy.load(Ordering::Relaxed))
    }

    /// Stops accepting, and ends each connection when its exchange ends. The listening sockets stay open until the
    /// workers end, so that whoever shares them loses nothing.
    pub fn drain(&self) {
        self.command(|| WorkerCommand::Enter(WorkerPhase::Draining));
    }

    /// Waits until every connection has ended; `false` if some are left at the deadline.
    pub fn wait_drained(&self, deadline: Instant) -> bool {
        self.progress.wait(deadline, |progress| progress.running.load(Ordering::Acquire) == 0)
    }

    /// Ends every connection now, and the workers with them.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.command(|| WorkerCommand::Enter(WorkerPhase::Stopping));
        for worker in &mut self.workers {
            if let Some(thread) = worker.thread.take() {
                // A worker that panicked has said so already; the others must still be waited for.
                let _ = thread.join();
            }
        }
    }

    fn command(&self, command: impl Fn() -> WorkerCommand) {
        for worker in &self.workers {
            // A worker whose inbox is closed has ended.
            let _ = worker.commands.send(command());
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.end();
    }
}

fn slots(metrics: &Metrics, snapshot: &Snapshot) -> Arc<[RouteSlot]> {
    let ids = snapshot.routes.iter().map(|route| &*route.facts.route_id);
    metrics.routes.assign(metrics.workers(), ids).into()
}
