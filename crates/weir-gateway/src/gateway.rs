//! The interface of the data plane: start workers, publish snapshots, drain, stop.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use weir_net::clock::Clock;
use weir_telemetry::log_file::LogSink;
use weir_telemetry::metrics::Metrics;

use crate::access_log::LineFormat;
pub use crate::connection::h3::QuicShare;
pub use crate::context::lifecycle::ListenerId;
use crate::context::lifecycle::WorkerPhase;
use crate::endpoint::probe::Prober;
use crate::endpoint::state::SharedState;
use crate::published::{Latest, Published, RetiredSnapshotDropper};
use crate::snapshot::{Endpoint, ListenerSettings, Snapshot, Upstream};
use crate::thread::WorkerStart;
use crate::thread::command::WorkerCommand;
pub use crate::thread::listener::Listener;
use crate::thread::listener::WorkerListenerChange;
use crate::thread::progress::WorkerProgress;
use crate::thread::rebalance::ConnectionRebalancer;
use crate::worker::client_connections::ClientConnections;

/// What a gateway starts with.
pub struct GatewayOptions {
    /// The listeners of each worker; the outer length is the number of workers. Not empty.
    pub listeners: Vec<Vec<Listener>>,
    pub snapshot: Arc<Snapshot>,
    pub metrics: Arc<Metrics>,
    /// The format of lines, and a sink for each worker.
    pub access_log: Option<(LineFormat, Vec<LogSink>)>,
    /// The most client connections of each worker; further ones wait in the kernel's queue.
    pub connections_per_worker: usize,
    /// The most pipes of each worker, up to [`PIPES`](crate::PIPES), through which the kernel moves the bytes of streams.
    pub pipes_per_worker: usize,
}

/// A change of the listeners of a running data plane.
#[derive(Debug, Default)]
pub struct ListenerChange {
    /// The new listeners, for each worker; the outer length is the number of workers. Their numbers are higher than any
    /// before.
    pub open: Vec<Vec<Listener>>,
    /// New settings of listeners, for the connections that they accept from now on.
    pub set: Vec<(ListenerId, ListenerSettings)>,
    /// Listeners that accept no more.
    pub close: Vec<ListenerId>,
    /// How long connections of closed listeners may take to end.
    pub drain: Duration,
}

/// A running data plane. Dropping it stops the workers.
pub struct DataPlane {
    workers: Vec<WorkerHandle>,
    metrics: Arc<Metrics>,
    shared: Arc<SharedState>,
    prober: Prober,
    latest: Latest,
    shredder: RetiredSnapshotDropper,
    clock: Clock,
    progress: Arc<WorkerProgress>,
    /// How many changes of listeners were sent to the workers.
    listener_changes: AtomicU64,
}

/// The state of an endpoint, for operators.
#[derive(Clone, Debug)]
pub struct EndpointHealth {
    pub upstream: Box<str>,
    /// As written: `host:port`.
    pub name: Box<str>,
    pub addr: std::net::SocketAddr,
    pub weight: u32,
    pub priority: i64,
    pub is_up: bool,
    /// Whether it has active checks.
    pub is_checked: bool,
}

impl EndpointHealth {
    fn new(upstream: &Upstream, endpoint: &Endpoint, is_up: bool) -> EndpointHealth {
        EndpointHealth {
            upstream: upstream.name.clone(),
            name: endpoint.name.clone(),
            addr: endpoint.addr,
            weight: endpoint.weight,
            priority: endpoint.priority,
            is_up,
            is_checked: endpoint.checks.is_some(),
        }
    }
}

/// A filter of endpoints for operators.
#[derive(Clone, Debug)]
pub struct EndpointFilter {
    /// A part of the upstream's name.
    pub upstream: Option<String>,
    /// Only those in rotation, or only those out of it.
    pub is_up: Option<bool>,
    /// The number of matching endpoints to leave out,
    pub skip: usize,
    /// and the most to return after them.
    pub limit: usize,
}

/// A part of the endpoints, with the totals.
#[derive(Clone, Debug, Default)]
pub struct EndpointPage {
    pub upstreams: usize,
    pub endpoints: usize,
    /// Endpoints in rotation.
    pub up: usize,
    /// Endpoints that match the filter.
    pub matching: usize,
    /// Ordered by upstream.
    pub shown: Vec<EndpointHealth>,
}

struct WorkerHandle {
    commands: UnboundedSender<WorkerCommand>,
    thread: Option<JoinHandle<()>>,
}

impl DataPlane {
    /// Starts the workers. They serve `snapshot` when this returns.
    pub fn start(options: GatewayOptions) -> io::Result<DataPlane> {
        let GatewayOptions { listeners, snapshot, metrics, access_log, connections_per_worker, pipes_per_worker } =
            options;
        let clock = Clock::default();
        let shared = Arc::new(SharedState::default());
        let progress = Arc::new(WorkerProgress {
            revisions: listeners.iter().map(|_| AtomicU64::new(0)).collect(),
            listener_changes: listeners.iter().map(|_| AtomicU64::new(0)).collect(),
            running: AtomicUsize::new(0),
            changed: Condvar::new(),
            lock: Mutex::new(()),
        });
        let published = Published::new(Arc::clone(&snapshot), None, &metrics, &shared.health, clock.now_ns());
        let published = Arc::new(published);
        let mut gateway = DataPlane {
            workers: Vec::new(),
            metrics: Arc::clone(&metrics),
            prober: Prober::new(Arc::clone(&shared.health), clock),
            latest: Latest::new(Arc::clone(&published)),
            shredder: RetiredSnapshotDropper::start(Arc::clone(&shared.health), metrics)?,
            shared,
            clock,
            progress,
            listener_changes: AtomicU64::new(0),
        };
        let (format, mut sinks) = match access_log {
            Some((format, sinks)) => (Some(format), sinks),
            None => (None, Vec::new()),
        };
        let workers = listeners.len();
        let clients = Arc::new(ClientConnections::new(connections_per_worker.saturating_mul(workers)));
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
                workers,
                published: Arc::clone(&published),
                connections: connections_per_worker,
                pipes: pipes_per_worker,
                clients: Arc::clone(&clients),
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
        gateway.prober.follow(gateway.latest.get().upstreams())?;
        Ok(gateway)
    }

    /// Hands a snapshot to every worker. New exchanges use it; those in progress keep the snapshot they began with. Returns
    /// when every worker serves it, or `false` if that takes longer than `patience`.
    pub fn publish(&self, snapshot: Arc<Snapshot>, patience: Duration) -> bool {
        let revision = snapshot.revision;
        let before = self.latest.get();
        let now_ns = self.clock.now_ns();
        let published = Published::new(snapshot, Some(&before), &self.metrics, &self.shared.health, now_ns);
        let published = Arc::new(published);
        self.command(|| WorkerCommand::Publish(Arc::clone(&published)));
        if published.has_other_checks(&before)
            && let Err(error) = self.prober.follow(published.upstreams())
        {
            tracing::error!("starting the health check thread failed, endpoints are not checked: {error}");
        }
        drop(before);
        self.shredder.take(self.latest.replace(published));
        self.wait_for_revision(revision, patience)
    }

    /// Opens, changes and closes listeners. Connections in the queue of a closed one are served before its sockets are
    /// closed; the caller must have closed its own copies of them. Returns when every worker has carried the change out, or
    /// `false` if that takes longer than `patience`.
    pub fn change_listeners(&self, change: ListenerChange, patience: Duration) -> bool {
        let ListenerChange { open, set, close, drain } = change;
        let number = self.listener_changes.fetch_add(1, Ordering::Relaxed) + 1;
        let mut open = open.into_iter();
        for worker in &self.workers {
            let open = open.next().unwrap_or_default();
            let change = WorkerListenerChange { open, set: set.clone(), close: close.clone(), patience: drain };
            // A worker whose inbox is closed has ended.
            let _ = worker.commands.send(WorkerCommand::ChangeListeners(change));
        }
        self.progress.wait(Instant::now() + patience, |progress| {
            progress.listener_changes.iter().all(|done| done.load(Ordering::Acquire) >= number)
        })
    }

    /// Serves HTTP/3 on sockets of a listener's address, one for each worker, until the listener is closed and has drained.
    pub fn serve_http3(&self, listener: ListenerId, share: &QuicShare) {
        self.command(|| WorkerCommand::ServeHttp3 { listener, share: share.clone() });
    }

    /// The cost of plugins is measured on one exchange in this many; 0 measures none.
    pub fn measured_every(&self) -> u32 {
        self.latest.get().snapshot.price_every
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

    /// The endpoints of the last published configuration that match the filter, and the totals.
    pub fn endpoints(&self, filter: &EndpointFilter) -> EndpointPage {
        let latest = self.latest.get();
        let now_ns = self.clock.now_ns();
        let mut page = EndpointPage::default();
        for (upstream, health) in latest.upstreams() {
            page.upstreams += 1;
            let is_wanted = filter.upstream.as_ref().is_none_or(|name| upstream.name.contains(&**name));
            for (endpoint, health) in upstream.endpoints.iter().zip(health) {
                let is_up = health.is_up(now_ns);
                page.endpoints += 1;
                page.up += usize::from(is_up);
                if !is_wanted || filter.is_up.is_some_and(|wanted| wanted != is_up) {
                    continue;
                }
                page.matching += 1;
                if page.matching > filter.skip && page.shown.len() < filter.limit {
                    page.shown.push(EndpointHealth::new(upstream, endpoint, is_up));
                }
            }
        }
        page
    }

    /// Routes, upstreams and endpoints that share series, since more are configured than have their own.
    pub fn without_series(&self) -> [(&'static str, usize); 3] {
        let latest = self.latest.get();
        let names = self.metrics.names;
        let upstreams = &latest.snapshot.upstreams;
        let endpoints = upstreams.iter().map(|(_, upstream)| upstream.endpoints.len()).sum::<usize>();
        let (upstreams_full, endpoints_full) = self.metrics.upstreams.is_full();
        let beyond = |count: usize, is_full: bool| if is_full { count.saturating_sub(names) } else { 0 };
        [
            ("route", beyond(latest.snapshot.routes.iter().count(), true)),
            ("upstream", beyond(upstreams.iter().count(), upstreams_full)),
            ("endpoint", beyond(endpoints, endpoints_full)),
        ]
    }

    /// Active health checks made so far: those that found the endpoint healthy, and those that did not.
    pub fn checks(&self) -> (u64, u64) {
        let checks = &self.shared.health.checks;
        (checks.healthy.load(Ordering::Relaxed), checks.unhealthy.load(Ordering::Relaxed))
    }

    /// Stops accepting, and ends each connection when its exchange ends; after `patience` everything is ended. The
    /// listening sockets stay open until the workers end, so that a process that shares them loses no connection.
    pub fn drain(&self, patience: Duration) {
        self.command(|| WorkerCommand::Drain { patience });
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
                // A worker that panicked has logged that; the others must still be waited for.
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

impl Drop for DataPlane {
    fn drop(&mut self) {
        self.end();
    }
}
