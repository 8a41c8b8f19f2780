//! The data plane from outside: start workers, publish snapshots, drain, stop.

use std::cell::Cell;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use weir_net::clock::Clock;
use weir_net::stream::Stream;
use weir_net::timer::TICK_NS;
use weir_telemetry::access_log::LogSink;
use weir_telemetry::metrics::{Metrics, RouteSlot};

use crate::access_log::{AccessLogWriter, LineFormat};
use crate::connection::accepted::Accepted;
use crate::connection::{announced, h1, h2, secure};
use crate::endpoint::pool::Pools;
use crate::endpoint::probe::Prober;
use crate::endpoint::state::SharedState;
use crate::snapshot::{Endpoint, Snapshot, Upstream};
use crate::worker::rebalance::ConnectionRebalancer;
use crate::worker::snapshot::WorkerSnapshot;
use crate::worker::{Worker, WorkerPhase};

/// How often idle upstream connections are looked through.
const SWEEP: Duration = Duration::from_secs(1);
/// How long accepting pauses when there is no descriptor left. Established connections go on meanwhile.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// A listening socket.
#[derive(Debug)]
pub struct Listener {
    pub socket: TcpListener,
    pub spoken: ListenerProtocol,
}

/// What clients speak on a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerProtocol {
    pub tls: bool,
    /// A balancer says first whom it speaks for.
    pub proxy_protocol: bool,
    /// HTTP/2 in the clear, and nothing else.
    pub h2c: bool,
}

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

enum WorkerCommand {
    Publish(Arc<Snapshot>, Arc<[RouteSlot]>),
    Enter(WorkerPhase),
    /// A connection that another worker has accepted.
    Take {
        stream: std::net::TcpStream,
        spoken: ListenerProtocol,
        peer: SocketAddr,
    },
}

/// What workers report, for those who wait for facts.
#[derive(Debug)]
struct WorkerProgress {
    revisions: Vec<AtomicU64>,
    running: AtomicUsize,
    changed: Condvar,
    lock: Mutex<()>,
}

impl WorkerProgress {
    fn announce(&self) {
        let _guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.changed.notify_all();
    }

    /// Waits until `done`, or the deadline; says whether it is done.
    fn wait(&self, deadline: Instant, done: impl Fn(&WorkerProgress) -> bool) -> bool {
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if done(self) {
                return true;
            }
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { return false };
            guard = self.changed.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
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
            tracing::error!("health checks cannot begin: {error}");
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

/// What a worker's thread is given.
struct WorkerStart {
    index: usize,
    listeners: Vec<Listener>,
    clock: Clock,
    shared: Arc<SharedState>,
    metrics: Arc<Metrics>,
    log: Option<(LineFormat, LogSink)>,
    snapshot: Arc<Snapshot>,
    slots: Arc<[RouteSlot]>,
    connections: usize,
    progress: Arc<WorkerProgress>,
    rebalancer: Arc<ConnectionRebalancer<WorkerCommand>>,
    inbox: UnboundedReceiver<WorkerCommand>,
}

impl WorkerStart {
    fn run(self) {
        let progress = Arc::clone(&self.progress);
        let index = self.index;
        if let Err(error) = self.serve() {
            tracing::error!("worker {index}: {error}");
        }
        progress.running.fetch_sub(1, Ordering::Release);
        progress.announce();
    }

    fn serve(self) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default())?;
        let pools = Pools::default();
        let shared = self.shared;
        let current = WorkerSnapshot::new(self.snapshot, self.slots, &pools, &shared, self.clock.now_ns());
        let revision = current.snapshot.revision;
        let log = self.log.map(|(format, sink)| AccessLogWriter::new(format, sink));
        let worker = Rc::new(Worker::new(self.index, self.clock, self.metrics.worker(self.index), log, pools, current));
        runtime.block_on(async {
            for Listener { socket, spoken } in self.listeners {
                socket.set_nonblocking(true)?;
                let socket = tokio::net::TcpListener::from_std(socket)?;
                let accept = accept(Rc::clone(&worker), socket, spoken, self.connections, Arc::clone(&self.rebalancer));
                tokio::task::spawn_local(accept);
            }
            tokio::task::spawn_local(tick(Rc::clone(&worker)));
            self.progress.revisions[self.index].store(revision, Ordering::Release);
            self.progress.announce();
            run_commands(&worker, self.inbox, &shared, &self.rebalancer, &self.progress).await;
            Ok(())
        })
    }
}

/// Follows commands until the worker has nothing left to do.
async fn run_commands(
    worker: &Rc<Worker>,
    mut inbox: UnboundedReceiver<WorkerCommand>,
    shared: &SharedState,
    rebalancer: &ConnectionRebalancer<WorkerCommand>,
    progress: &WorkerProgress,
) {
    let mut check = tokio::time::interval(Duration::from_millis(10));
    loop {
        let command = match worker.phase() {
            WorkerPhase::Serving => inbox.recv().await,
            // From here on it also looks whether the last connection has gone.
            WorkerPhase::Draining | WorkerPhase::Stopping => tokio::select! {
                command = inbox.recv() => command,
                _ = check.tick() => {
                    if worker.tasks() == 0 && !rebalancer.expects(worker.index()) {
                        return;
                    }
                    continue;
                }
            },
        };
        match command {
            Some(WorkerCommand::Publish(snapshot, slots)) => {
                let revision = snapshot.revision;
                let current = WorkerSnapshot::new(snapshot, slots, &worker.pools, shared, worker.wake_up());
                worker.replace(current);
                progress.revisions[worker.index()].store(revision, Ordering::Release);
                progress.announce();
            }
            Some(WorkerCommand::Enter(phase)) => {
                rebalancer.leave(worker.index());
                worker.enter(phase);
            }
            Some(WorkerCommand::Take { stream, spoken, peer }) => {
                // Without a place in the poller it is closed; the client sees what it sees of any full server.
                if let Ok(stream) = TcpStream::from_std(stream) {
                    begin(worker, stream, spoken, peer);
                }
                rebalancer.arrived(worker.index());
            }
            None => worker.enter(WorkerPhase::Stopping),
        }
    }
}

/// Drives deadlines, and what is done now and then.
async fn tick(worker: Rc<Worker>) {
    let mut ticks = tokio::time::interval(Duration::from_nanos(TICK_NS));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let swept_ns = Cell::new(0);
    loop {
        ticks.tick().await;
        let now_ns = worker.wake_up();
        worker.wheel.advance(now_ns);
        worker.pools.look_after_queues(now_ns);
        if let Some(log) = &worker.access_log {
            log.flush_if_due(now_ns);
        }
        if now_ns - swept_ns.get() >= SWEEP.as_nanos() as u64 {
            swept_ns.set(now_ns);
            worker.current().keep_none_of_those_out(&worker);
            worker.pools.sweep(&worker);
        }
    }
}

/// Takes new connections until draining begins; then what has queued up until that moment, and no more. Closing the
/// socket closes nothing for another process that accepts from the same queue.
async fn accept(
    worker: Rc<Worker>,
    listener: tokio::net::TcpListener,
    spoken: ListenerProtocol,
    most: usize,
    rebalancer: Arc<ConnectionRebalancer<WorkerCommand>>,
) {
    let _accepting = worker.task();
    while worker.phase() == WorkerPhase::Serving {
        if worker.tasks() >= most {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        }
        let accepted = tokio::select! {
            biased;
            accepted = listener.accept() => accepted,
            () = worker.phase_change() => break,
        };
        match accepted {
            Ok((stream, peer)) => match rebalancer.less_loaded_than(worker.index()) {
                None => begin(&worker, stream, spoken, peer),
                Some(other) => hand_over(&worker, &rebalancer, other, stream, spoken, peer),
            },
            Err(error) => {
                worker.metrics.accept_errors.increment();
                // A client that has gone again is no reason to pause; having no descriptor, and whatever else, is.
                if !matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
    // The socket itself is asked: what the poller has not reported yet is waiting all the same, and would be reset.
    let Ok(listener) = listener.into_std() else { return };
    while let Ok((stream, peer)) = listener.accept() {
        let stream = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
        if let Ok(stream) = stream {
            begin(&worker, stream, spoken, peer);
        }
    }
}

/// Gives a new connection to a worker that has fewer.
fn hand_over(
    worker: &Rc<Worker>,
    rebalancer: &ConnectionRebalancer<WorkerCommand>,
    to: usize,
    stream: TcpStream,
    spoken: ListenerProtocol,
    peer: SocketAddr,
) {
    // Only a poller that does not work would refuse; then the connection is lost here as there.
    let Ok(stream) = stream.into_std() else { return };
    match rebalancer.hand_over(to, WorkerCommand::Take { stream, spoken, peer }) {
        Ok(()) => worker.metrics.connections_handed_over.increment(),
        Err(WorkerCommand::Take { stream, spoken, peer }) => {
            if let Ok(stream) = TcpStream::from_std(stream) {
                begin(worker, stream, spoken, peer);
            }
        }
        Err(_) => unreachable!("what comes back is what was given"),
    }
}

fn begin(worker: &Rc<Worker>, stream: TcpStream, spoken: ListenerProtocol, peer: SocketAddr) {
    match spoken {
        ListenerProtocol { tls: false, proxy_protocol: false, h2c: false } => {
            tokio::task::spawn_local(h1::run(Accepted::new(worker.task(), Stream::plain(stream), peer, None)))
        }
        ListenerProtocol { h2c: true, proxy_protocol: false, .. } => {
            tokio::task::spawn_local(h2::run(Accepted::new(worker.task(), Stream::plain(stream), peer, None)))
        }
        ListenerProtocol { tls: true, proxy_protocol: false, .. } => {
            tokio::task::spawn_local(secure::run(worker.task(), stream, peer))
        }
        ListenerProtocol { proxy_protocol: true, .. } => {
            tokio::task::spawn_local(announced::run(worker.task(), stream, spoken, peer))
        }
    };
}
