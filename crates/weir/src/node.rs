//! One running gateway: its sockets, workers, configuration and signals. Start reading at [`Node::start`].

mod certificates;
mod configuration;
mod health;
mod logs;
mod policies;
mod signals;
mod sockets;
mod state;
mod status;
mod systemd;
mod traffic;
mod upgrade;

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::time::{Interval, interval};
use weir_control::document::NodeSettings;
use weir_control::{Acme, ConfigWatch, DocumentLoader, Publication, Publisher};
use weir_gateway::{Gateway, GatewayOptions, Listener, ListenerProtocol};
use weir_net::inherit::{Inherited, Place};
use weir_net::limits::Limits;
use weir_net::tls::TicketKeys;
use weir_telemetry::access_log::LogWriter;
use weir_telemetry::error_log;
use weir_telemetry::metrics::Metrics;

use crate::exit::ExitFailure;
use crate::say::say;
use configuration::SnapshotPublisher;
use signals::{SignalRequest, Signals};
use sockets::Sockets;
use state::{NodePhase, NodeState};
use status::StatusServer;
use upgrade::{Failed, Invocation, UpgradeAttempt};

/// How a node is run; everything else is in its file.
#[derive(Debug, Clone)]
pub struct NodeOptions {
    pub file: PathBuf,
    pub log_shape: error_log::LineFormat,
    /// How long a new binary may take until it serves.
    pub upgrade_patience: Duration,
}

/// The plugins of this binary.
pub use weir_plugins::REGISTRY as PLUGINS;

/// What listening sockets are for.
const STATUS: &str = "status";

/// The same for those of clients, by what is spoken there. In TLS, HTTP/2 is agreed upon.
const PURPOSES: [(&str, ListenerProtocol); 6] = [
    ("http", ListenerProtocol { tls: false, proxy_protocol: false, h2c: false }),
    ("https", ListenerProtocol { tls: true, proxy_protocol: false, h2c: false }),
    ("proxy-http", ListenerProtocol { tls: false, proxy_protocol: true, h2c: false }),
    ("proxy-https", ListenerProtocol { tls: true, proxy_protocol: true, h2c: false }),
    ("h2c", ListenerProtocol { tls: false, proxy_protocol: false, h2c: true }),
    ("proxy-h2c", ListenerProtocol { tls: false, proxy_protocol: true, h2c: true }),
];

/// How often a node that drains looks whether it is done.
const DRAIN_LOOK: Duration = Duration::from_millis(20);

/// A gateway that serves.
pub struct GatewayNode {
    runtime: Runtime,
    control: Control,
}

/// What follows signals and changes of the file. Its fields end in the order in which they stand: what takes work,
/// what does it, what records it.
struct Control {
    status: Option<StatusServer>,
    sockets: Sockets,
    gateway: Arc<Gateway>,
    acme: Arc<Acme>,
    access_log: Option<LogWriter>,
    watch: ConfigWatch,
    road: SnapshotPublisher,
    signals: Signals,
    state: Arc<NodeState>,
    invocation: Invocation,
    options: NodeOptions,
}

/// Why a node ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Drain,
    Stop,
    /// Another process carries on.
    HandOver,
}

impl GatewayNode {
    /// Reads the file, opens every socket and starts the workers. Nothing serves before everything that can fail has
    /// succeeded. What went wrong has been said when this returns an error.
    pub fn start(options: NodeOptions) -> Result<Self, ExitFailure> {
        let invocation = Invocation::of_this_process();
        // SAFETY: the process has opened nothing yet, so whatever the environment names came from outside.
        let inherited = unsafe { Inherited::from_environment() };
        let mut inherited = inherited.map_err(|error| system("sockets that were passed on cannot be used", &error))?;
        if !inherited.secrets.is_empty() && !TicketKeys::take_over(&inherited.secrets) {
            say!("the session tickets of the process before are not understood; clients make new ones");
        }
        let limits = Limits::raise();

        let mut loader = DocumentLoader::of_file(&options.file);
        let loaded = loader.load();
        // How many workers there are is known from the file, and so is whether it can be served at all.
        let workers = loaded.as_ref().map_or(1, |loaded| workers(&loaded.document.settings));
        let metrics = Arc::new(Metrics::new(workers));
        let road = SnapshotPublisher::new(Arc::clone(&metrics));
        let publisher = Arc::new(Publisher::new(loader.source_name(), PLUGINS, Box::new(road.clone())));
        let loaded = loaded.map_err(|diagnostics| {
            publisher.refuse(diagnostics);
            ExitFailure::Configuration
        })?;
        let first = publisher.publish(&loaded.document, loaded.revision.clone(), loaded.warnings.clone());
        let Publication { snapshot, settings, acme: wanted, .. } = first.map_err(|_| ExitFailure::Configuration)?;
        error_log::start(logs::level(settings.error_log_level), options.log_shape);
        say!("version {}, process {}, workers: {workers}", env!("CARGO_PKG_VERSION"), std::process::id());
        say!("limits: {limits}");

        let mut sockets = Sockets::default();
        let mut open = |purpose, addr, count| {
            sockets.open(Place { purpose, addr }, count, limits.backlog, &mut inherited).map_err(|error| {
                say!("{error}");
                ExitFailure::Listen
            })
        };
        let listening = settings.listen.iter().map(|listen| {
            let spoken = ListenerProtocol { tls: listen.tls, proxy_protocol: listen.proxy_protocol, h2c: listen.h2c };
            let (purpose, _) =
                PURPOSES.into_iter().find(|(_, own)| *own == spoken).expect("settings refuse what is none");
            open(purpose, sockets::socket_addr(listen.address), workers).map(|addr| (addr, purpose))
        });
        let listening = listening.collect::<Result<Vec<_>, _>>()?;
        let status_on = settings.status.map(|addr| open(STATUS, addr, 1)).transpose()?;
        for addr in inherited.left_over() {
            say!("{addr} was passed on, but nothing in the file listens there");
        }

        let access_log = logs::open(settings.enable_access_log.as_ref(), &metrics)?;
        let state = Arc::new(NodeState::new(Arc::clone(&metrics), limits, Arc::clone(&publisher)));
        let no_thread = |error: io::Error| system("a thread or its runtime cannot be made", &error);
        let no_copy = |error: io::Error| system("a socket cannot be copied", &error);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(no_thread)?;
        let signals = {
            let _guard = runtime.enter();
            Signals::take().map_err(|error| system("signals cannot be handled", &error))?
        };
        let status = sockets.share(STATUS, 1).map_err(no_copy)?.remove(0);
        let status = StatusServer::start(status, Arc::clone(&state)).map_err(no_thread)?;

        let acme = Arc::new(Acme::new(Arc::clone(publisher.challenges()), |line| say!("{line}")));
        acme.recall(wanted.as_ref());
        let gateway = Gateway::start(GatewayOptions {
            listeners: listeners(&sockets, workers).map_err(no_copy)?,
            snapshot,
            metrics,
            access_log: logs::for_workers(settings.enable_access_log.as_ref(), access_log.as_ref(), workers),
            connections_per_worker: connections_per_worker(&limits, workers),
        });
        let gateway = Arc::new(gateway.map_err(no_thread)?);
        road.leads_to(&gateway, &acme);
        let asked = Arc::downgrade(&gateway);
        state.started(move || asked.upgrade().map(|gateway| gateway.revisions()).unwrap_or_default());
        state.watches(&gateway, &acme);

        // From here on, so that no change gets lost between reading the file and watching it.
        let watch = weir_control::watch(loader, loaded, publisher).map_err(no_thread)?;
        // Last of all: who cannot start asks nobody for certificates, however often it is tried.
        acme.follow(wanted.as_ref()).map_err(no_thread)?;

        let control = Control {
            status: Some(status),
            sockets,
            gateway,
            acme,
            access_log,
            watch,
            road,
            signals,
            state,
            invocation,
            options,
        };
        control.announce(&listening, status_on, &mut inherited)?;
        Ok(Self { runtime, control })
    }

    /// Serves until a signal ends it.
    pub fn run(mut self) {
        self.runtime.block_on(async {
            let end = self.control.serve().await;
            self.control.end(end).await;
        });
    }
}

fn system(what: &str, error: &io::Error) -> ExitFailure {
    say!("{what}: {error}");
    ExitFailure::System
}

/// Each worker's sockets for clients.
fn listeners(sockets: &Sockets, workers: usize) -> io::Result<Vec<Vec<Listener>>> {
    let mut shares: Vec<Vec<Listener>> = Vec::new();
    shares.resize_with(workers, Vec::new);
    for (purpose, spoken) in PURPOSES {
        for (share, more) in shares.iter_mut().zip(sockets.share(purpose, workers)?) {
            share.extend(more.into_iter().map(|socket| Listener { socket, spoken }));
        }
    }
    Ok(shares)
}

fn workers(settings: &NodeSettings) -> usize {
    match settings.worker_processes {
        Some(workers) => usize::from(workers),
        None => std::thread::available_parallelism().map_or(1, usize::from),
    }
}

/// How many clients a worker takes at most, so that descriptors are left for connections to upstreams, for the status
/// address and for log files. Where there are few, each client's exchange can have a connection of its own; where there
/// are many, most clients are idle.
fn connections_per_worker(limits: &Limits, workers: usize) -> usize {
    /// For everything that is neither a client nor an upstream.
    const OWN: u64 = 32;
    const RESERVE: u64 = 1_000;
    const RESERVED_PART: u64 = 20;
    /// Where nothing limits open files, memory does.
    const UNLIMITED: u64 = 1 << 24;
    let files = limits.open_files.unwrap_or(UNLIMITED).min(UNLIMITED);
    let reserve = (files / RESERVED_PART).max(RESERVE).min(files / 2 + OWN);
    usize::try_from(files.saturating_sub(reserve)).unwrap_or(usize::MAX).div_ceil(workers).max(1)
}

impl Control {
    /// Says where the node is, to everybody who waits for that.
    fn announce(
        &self,
        listening: &[(SocketAddr, &str)],
        status_on: Option<SocketAddr>,
        inherited: &mut Inherited,
    ) -> Result<(), ExitFailure> {
        self.state.enter(NodePhase::Serving);
        for (addr, purpose) in listening {
            say!("listening on {addr} ({purpose})");
        }
        if let Some(addr) = status_on {
            say!("status on {addr}");
        }
        // Where the process before this one has gone meanwhile, carrying on is all the more right.
        if let Err(error) = inherited.tell_ready() {
            say!("the process before this one is gone: {error}");
        }
        systemd::ready();
        say!("ready");
        Ok(())
    }

    /// Follows requests until one ends the node.
    async fn serve(&mut self) -> End {
        let mut attempt: Option<UpgradeAttempt> = None;
        let mut alive = systemd::alive_every().map(interval);
        let end = loop {
            tokio::select! {
                request = self.signals.next() => match request {
                    SignalRequest::Drain => break End::Drain,
                    SignalRequest::Stop => break End::Stop,
                    SignalRequest::Reload => {
                        systemd::reloading();
                        self.watch.reload();
                    }
                    SignalRequest::ReopenLogs => self.reopen_logs(),
                    SignalRequest::Upgrade => self.upgrade(&mut attempt),
                },
                outcome = outcome(&mut attempt) => match outcome {
                    Ok(()) => {
                        systemd::handed_over(attempt.as_ref().and_then(UpgradeAttempt::pid).unwrap_or_default());
                        return End::HandOver;
                    }
                    Err(failed) => {
                        attempt = None;
                        self.acme.pause(false);
                        self.upgrade_failed(&failed);
                    }
                },
                () = tick(&mut alive) => systemd::alive(),
            }
        };
        if let Some(attempt) = attempt {
            attempt.abandon().await;
        }
        end
    }

    fn reopen_logs(&self) {
        if let Some(log) = &self.access_log {
            log.reopen(|reopened| match reopened {
                Ok(()) => say!("the access log was opened again"),
                Err(error) => say!("the access log cannot be opened again, the old file stays in use: {error}"),
            });
        }
    }

    fn upgrade(&self, attempt: &mut Option<UpgradeAttempt>) {
        if attempt.is_some() {
            return say!("an upgrade is going on already");
        }
        // An order that began now could be asked about at the new process, which would not know it.
        self.acme.pause(true);
        match UpgradeAttempt::start(&self.invocation, &self.sockets, self.options.upgrade_patience) {
            Ok(started) => {
                say!("upgrade: process {} was started", started.pid().unwrap_or_default());
                self.state.upgrade_error(None);
                *attempt = Some(started);
            }
            Err(failed) => {
                self.acme.pause(false);
                self.upgrade_failed(&failed);
            }
        }
    }

    fn upgrade_failed(&self, failed: &Failed) {
        say!("upgrade failed: {failed}; this process, {}, keeps serving", std::process::id());
        self.state.metrics.control.upgrades_failed.fetch_add(1, Relaxed);
        self.state.upgrade_error(Some(failed.to_string()));
    }

    /// Ends the node.
    async fn end(&mut self, end: End) {
        match end {
            End::HandOver => {
                // Both answer on one address now, and this one would say that it is not ready.
                self.status = None;
                say!("upgrade: the new process serves; process {} drains", std::process::id());
            }
            End::Drain => {
                systemd::stopping();
                say!("draining, for {} s at most", self.drain_patience().as_secs_f32());
            }
            End::Stop => systemd::stopping(),
        }
        // A process that carries on waits for this.
        self.acme.end();
        // Readiness goes first, so that whoever asks sends nothing more here.
        self.state.enter(NodePhase::Draining);
        if end != End::Stop {
            self.drain().await;
        }
        say!("process {} ends", std::process::id());
    }

    fn drain_patience(&self) -> Duration {
        let settings = self.road.settings().expect("a node starts with a configuration");
        settings.worker_shutdown_timeout
    }

    async fn drain(&mut self) {
        // The workers hold sockets of their own, and close them when they have taken what waits there. These copies
        // would keep a queue open that nobody serves.
        self.sockets = Sockets::default();
        self.gateway.drain();
        let deadline = Instant::now() + self.drain_patience();
        let mut look = interval(DRAIN_LOOK);
        loop {
            tokio::select! {
                _ = look.tick() => {
                    if self.gateway.wait_drained(Instant::now()) {
                        return;
                    }
                    if Instant::now() >= deadline {
                        return say!("{} connections are cut off", self.gateway.connections());
                    }
                }
                request = self.signals.next() => match request {
                    SignalRequest::Stop => return,
                    SignalRequest::ReopenLogs => self.reopen_logs(),
                    SignalRequest::Drain | SignalRequest::Reload | SignalRequest::Upgrade => say!("draining already"),
                },
            }
        }
    }
}

/// The outcome of an attempt, if there is one.
async fn outcome(attempt: &mut Option<UpgradeAttempt>) -> Result<(), Failed> {
    match attempt {
        Some(attempt) => attempt.outcome().await,
        None => pending().await,
    }
}

async fn tick(interval: &mut Option<Interval>) {
    match interval {
        Some(interval) => drop(interval.tick().await),
        None => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f17_descriptors_are_kept_for_what_is_not_a_client() {
        let limits = |open_files| Limits { open_files, open_files_before: None, backlog: 1, ports: 1 };
        assert_eq!(connections_per_worker(&limits(Some(1_024)), 1), 480);
        assert_eq!(connections_per_worker(&limits(Some(20_000)), 1), 19_000);
        assert_eq!(connections_per_worker(&limits(Some(20_000)), 2), 9_500);
        assert_eq!(connections_per_worker(&limits(Some(16)), 4), 1);
        assert!(connections_per_worker(&limits(None), 4) > 1_000_000);
    }
}
