//! One running gateway: its sockets, workers, configuration and signals. Start reading at [`Node::start`].

mod admin;
mod certificates;
mod configuration;
pub(crate) mod controller;
mod figures;
mod health;
mod http3;
mod hubs;
mod key_file;
mod lab;
mod listening;
mod logs;
mod metrics_export;
mod metrics_export_tally;
mod policies;
mod records;
#[cfg(test)]
mod security_table;
mod server;
mod server_tally;
mod shutdown;
mod signals;
mod sockets;
mod state;
mod status;
mod systemd;
pub(crate) mod tail;
mod traffic;
mod upgrade;

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::runtime::Runtime;
use tokio::time::{Interval, interval};
use weir_control::document::{AdminAddress, NodeSettings, StoreKind};
use weir_control::stores::given_directory;
use weir_control::{Acme, ConfigWatch, DocumentLoader, Hubs, Publication, Publisher};
use weir_gateway::{DataPlane, GatewayOptions, PIPE_DESCRIPTORS, PIPES};
use weir_net::inherit::{InheritedSockets, ListenerKey};
use weir_net::limits::ProcessLimits;
use weir_net::listener::Transport;
use weir_net::quic::InheritedQuic;
use weir_net::tls::TicketKeys;
use weir_records::{SinkLimits, SinkRegister};
use weir_telemetry::error_log;
use weir_telemetry::log_file::LogWriter;
use weir_telemetry::metrics::Metrics;
use weir_telemetry::routes::LIMIT;

use crate::exit::ExitFailure;
use crate::say::say;
use admin::{AdminServer, NodeResources};
use configuration::SnapshotPublisher;
use listening::ClientListeners;
use metrics_export::MetricsExporter;
use server::NodeServer;
use signals::{ServiceSignals, SignalRequest, Signals};
use sockets::Sockets;
use state::{NodePhase, NodeState};
use upgrade::{Failed, Invocation, UpgradeAttempt};

/// Options of a node that are not in its file.
#[derive(Debug, Clone)]
pub(crate) struct NodeOptions {
    pub file: PathBuf,
    pub log_format: error_log::ErrorLogFormat,
    /// How long a new binary may take until it serves, in an upgrade.
    pub upgrade_patience: Duration,
}

/// The plugins of this binary.
/// The plugins of this binary, with what runs those in files.
#[cfg(feature = "wasm")]
pub(crate) static PLUGINS: weir_plugin::Registry = weir_plugins::REGISTRY.with_runtime(&weir_wasm::RUNTIME);
#[cfg(not(feature = "wasm"))]
pub use weir_plugins::REGISTRY as PLUGINS;

/// The purposes of listening sockets of the node itself.
const STATUS: &str = "status";
const ADMIN: &str = "admin";

/// A running gateway.
pub(crate) struct GatewayNode {
    runtime: Runtime,
    control: Control,
}

/// Handles signals and changes of the file. The order of the fields is the order in which they are dropped: first the parts that
/// accept work, then those that carry it out, then those that record it.
struct Control {
    status: Option<NodeServer>,
    admin: Option<AdminServer>,
    sockets: Sockets,
    listeners: Arc<ClientListeners>,
    gateway: Arc<DataPlane>,
    acme: Arc<Acme>,
    hubs: Arc<Hubs>,
    exporter: Arc<MetricsExporter>,
    access_log: Option<LogWriter>,
    audit_log: Option<LogWriter>,
    watch: ConfigWatch,
    snapshots: SnapshotPublisher,
    signals: Signals,
    state: Arc<NodeState>,
    invocation: Invocation,
    options: NodeOptions,
    /// The resources are in memory only, so that another process cannot take them over.
    is_volatile: bool,
    /// Can be read to its end when the process that has started this one cannot take the service back any more. No upgrade begins before
    /// that: if this process failed then, the one that it had started would serve beside the old one.
    certain: Option<OwnedFd>,
}

/// The reason why a node ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Drain,
    Stop,
    /// Another process continues the service.
    HandOver,
}

impl GatewayNode {
    /// Reads the file, opens every socket and starts the workers. The node serves only after everything that can fail has
    /// succeeded. An error has already been reported when this returns it.
    pub(crate) fn start(options: NodeOptions) -> Result<Self, ExitFailure> {
        // Long, since it is the order in which a node starts: each step needs what those before it have opened.
        let invocation = Invocation::of_this_process();
        #[expect(unsafe_code, reason = "only the start of the process knows that it has opened nothing")]
        // SAFETY: the process has not opened a file yet, so all descriptors named in the environment are inherited ones.
        let inherited = unsafe { InheritedSockets::from_environment() };
        #[expect(unsafe_code, reason = "as above")]
        // SAFETY: as above; no descriptor is named twice.
        let http3 = unsafe { InheritedQuic::from_environment() };
        let http3 = http3.map_err(|error| system("the inherited sockets of HTTP/3 cannot be used", &error))?;
        let mut inherited = inherited.map_err(|error| system("the inherited sockets cannot be used", &error))?;
        if !inherited.secrets.is_empty() && !TicketKeys::take_over(&inherited.secrets) {
            say!("the session ticket keys of the previous process cannot be read; clients cannot resume TLS sessions");
        }
        weir_plugins::take_over_counters(std::mem::take(&mut inherited.memory));
        let limits = ProcessLimits::raise();

        let no_thread = |error: io::Error| system("a thread or its async runtime cannot be started", &error);
        let no_handlers = |error: io::Error| system("the signal handlers cannot be installed", &error);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(no_thread)?;
        // Before the configuration is loaded, which may wait for etcd, for name servers and for secrets.
        let service_signals = {
            let _guard = runtime.enter();
            ServiceSignals::take().map_err(no_handlers)?
        };
        let opened = DocumentLoader::open_telling(&options.file, PLUGINS, &|text| say!("{text}"));
        // The file determines the number of workers, and whether it can be served at all.
        let workers = opened.as_ref().map_or(1, |(_, loaded)| workers(&loaded.document.settings));
        let names = opened.as_ref().map_or(LIMIT, |(_, loaded)| usize::from(loaded.document.settings.metrics_names));
        let metrics = Arc::new(Metrics::with_names(workers, names));
        let beside = options.file.parent().unwrap_or(Path::new(""));
        let had_identity = inherited.has_identity;
        let directory = opened.as_ref().ok().and_then(|(_, loaded)| given_directory(&loaded.document.settings, beside));
        #[cfg(feature = "wasm")]
        let compiled_code = directory.as_ref().map(|directory| directory.join("wasm"));
        let listeners = Arc::new(ClientListeners::new(workers, limits.backlog, inherited, http3, directory));
        let snapshots = SnapshotPublisher::new(Arc::clone(&metrics), Arc::clone(&listeners));
        let source = options.file.to_string_lossy();
        let publisher = Arc::new(Publisher::new(&source, PLUGINS, Box::new(snapshots.clone())));
        let (mut loader, loaded) = opened.map_err(|diagnostics| {
            let failure = ExitFailure::of_start(&diagnostics);
            publisher.refuse(diagnostics);
            failure
        })?;
        // Publishing starts plugins, which may log.
        let settings = &loaded.document.settings;
        if settings.controller.is_some() {
            say!("{source} is the file of a controller; run it with `weir controller -c {source}`");
            return Err(ExitFailure::Configuration);
        }
        error_log::start(logs::level(settings.error_log_level), options.log_format);
        #[cfg(feature = "wasm")]
        if let Some(folder) = compiled_code {
            weir_wasm::keep_compiled(folder);
        }
        let records = &settings.records;
        let sinks = SinkRegister::of_process();
        sinks.set_cpus(&records.cpus);
        if let Some(directory) = given_directory(settings, beside) {
            sinks.set_directory(&directory.join("records"));
        }
        sinks.set_limits(SinkLimits { memory: records.memory, threads: records.threads.into(), ..sinks.limits() });
        let first = weir_control::publish_first(&mut loader, loaded, &publisher);
        #[cfg(feature = "wasm")]
        weir_wasm::forget_unused_code();
        let (loaded, first) = first.map_err(|faults| match listeners.has_failed() {
            true => ExitFailure::Listen,
            false => ExitFailure::of_start(&faults),
        })?;
        if let Some(refusal) = weir_plugins::counter_refusal() {
            say!("{refusal}");
            return Err(ExitFailure::System);
        }
        if had_identity && let Some(problem) = loader.workload().absence() {
            say!("{problem}; the process to be replaced has one, and goes on");
            return Err(ExitFailure::System);
        }
        let Publication { snapshot, settings, acme: wanted, hubs: wanted_hubs, http, .. } = first;
        say!("version {}, process {}, workers: {workers}", env!("CARGO_PKG_VERSION"), std::process::id());
        say!("limits: {limits}");

        let mut sockets = Sockets::default();
        let mut open = |purpose, addr| {
            let opened = listeners
                .with_inherited(|inherited| sockets.open(ListenerKey { purpose, addr }, limits.backlog, inherited));
            opened.map_err(|error| {
                say!("{error}{}", error.advice().map(|advice| format!("; {advice}")).unwrap_or_default());
                ExitFailure::Listen
            })
        };
        let status_on = settings.status.map(|addr| open(STATUS, addr)).transpose()?;
        let admin_on = match settings.admin.as_ref().map(|admin| &admin.listen) {
            Some(AdminAddress::Tcp(addr)) => Some(open(ADMIN, *addr)?.to_string()),
            Some(AdminAddress::Unix(path)) => Some(format!("unix:{}", beside.join(path).display())),
            None => None,
        };
        listeners.with_inherited(|inherited| {
            for addr in inherited.left_over(Transport::Tcp).chain(inherited.left_over(Transport::Udp)) {
                say!("the socket {addr} was inherited, but no entry of `listen` uses it");
            }
        });

        let path = settings.enable_access_log.as_ref().map(|log| &*log.path);
        let access_log = logs::open(logs::ACCESS_LOG, path, &metrics.access_log)?;
        let path = settings.admin.as_ref().and_then(|admin| admin.audit.as_deref());
        let audit_log = logs::open(logs::AUDIT_LOG, path, &metrics.audit_log)?;
        let live = loader.live().map(Arc::clone);
        let state = NodeState::new(
            Arc::clone(&metrics),
            limits,
            Arc::clone(&publisher),
            loader.lookups(),
            loader.workload(),
            live,
        );
        let state = Arc::new(state);
        let no_copy =
            |error: io::Error| system("the file descriptor of a listening socket cannot be duplicated", &error);
        let signals = {
            let _guard = runtime.enter();
            Signals::take(service_signals).map_err(no_handlers)?
        };
        let status = sockets.copies(STATUS).map_err(no_copy)?;
        let status = status::start(status, Arc::clone(&state)).map_err(no_thread)?;

        let acme = Arc::new(Acme::new(Arc::clone(publisher.challenges()), |line| say!("{line}")));
        acme.recall(wanted.as_ref());
        let hubs = Arc::clone(publisher.hubs());
        hubs.follow(&wanted_hubs, |line| say!("{line}"));
        let gateway = DataPlane::start(GatewayOptions {
            listeners: listeners.for_workers().map_err(no_copy)?,
            snapshot,
            metrics,
            access_log: logs::for_workers(settings.enable_access_log.as_ref(), access_log.as_ref(), workers),
            connections_per_worker: connections_per_worker(&limits, workers),
            pipes_per_worker: pipes_per_worker(&limits, workers),
        });
        let gateway = Arc::new(gateway.map_err(no_thread)?);
        let exporter = Arc::new(MetricsExporter::new(Arc::clone(&state)));
        exporter.follow(settings.otlp_metrics.as_ref(), &http).map_err(no_thread)?;
        listeners.follow_with(&gateway);
        snapshots.publishes_to(&gateway, &acme, &hubs, &exporter);
        let asked = Arc::downgrade(&gateway);
        state.started(move || asked.upgrade().map(|gateway| gateway.revisions()).unwrap_or_default());
        state.watches(&gateway, &acme);

        // Watches from the state that was loaded above, so that no change since then is missed.
        let (live, files) = (loader.resources().map(Arc::clone), loader.shown().map(Arc::clone));
        let watch = weir_control::watch(loader, loaded, publisher).map_err(no_thread)?;
        let resources = live.zip(watch.checker()).map(|(live, checker)| NodeResources {
            live,
            files,
            hubs: Arc::clone(&hubs),
            writer: watch.writer(),
            checker,
            audit: audit_log.as_ref().map(LogWriter::lines),
            tally: Arc::clone(&state.servers.admin),
            state: Arc::clone(&state),
            listeners: Arc::clone(&listeners),
        });
        let admin = resources.map(|resources| {
            let sockets = sockets.copies(ADMIN).map_err(no_copy)?;
            let sockets = admin::sockets(sockets, &settings, beside, limits.backlog)?;
            admin::start(sockets, &settings, &options.file, resources, &gateway)
        });
        let admin = admin.transpose()?.flatten();
        // Last: a node that cannot start must not request certificates, however often it is restarted.
        acme.follow(wanted.as_ref()).map_err(no_thread)?;

        let mut control = Control {
            status: Some(status),
            admin,
            sockets,
            listeners,
            gateway,
            acme,
            hubs,
            exporter,
            access_log,
            audit_log,
            watch,
            snapshots,
            signals,
            state,
            invocation,
            options,
            is_volatile: settings.store.as_ref().is_some_and(|store| store.kind == StoreKind::Standalone),
            certain: None,
        };
        control.announce(status_on, admin_on.as_deref())?;
        Ok(Self { runtime, control })
    }

    /// Serves until a signal ends it.
    pub(crate) fn run(mut self) {
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

fn workers(settings: &NodeSettings) -> usize {
    match settings.worker_processes {
        Some(workers) => usize::from(workers),
        None => std::thread::available_parallelism().map_or(1, usize::from),
    }
}

/// The file descriptors that the process may have. Without a limit, memory is the limit.
fn descriptors(limits: &ProcessLimits) -> usize {
    const UNLIMITED: u64 = 1 << 24;
    let files = limits.open_files.unwrap_or(UNLIMITED).min(UNLIMITED);
    usize::try_from(files).unwrap_or(usize::MAX)
}

/// Descriptors for everything except clients, upstreams and pipes.
const OWN: usize = 32;
/// What pipes may have of all descriptors, out of those that are kept from clients.
const PIPES_PART: usize = 100;

/// The most client connections per worker, so that file descriptors are left for connections to upstreams, for the status address,
/// for log files and for pipes. With a low limit of descriptors, each client can have one upstream connection; with a high one, most
/// clients are expected to be idle.
fn connections_per_worker(limits: &ProcessLimits, workers: usize) -> usize {
    const RESERVE: usize = 1_000;
    const RESERVED_PART: usize = 20;
    let files = descriptors(limits);
    // With a low limit, what is kept beside the connections to upstreams is twice as much: pipes have the second half.
    let reserve = (files / RESERVED_PART).max(RESERVE).min(files / 2 + OWN);
    files.saturating_sub(reserve).div_ceil(workers).max(1)
}

/// The most pipes per worker through which the kernel moves the bytes of streams; without one, bytes are copied.
fn pipes_per_worker(limits: &ProcessLimits, workers: usize) -> usize {
    (descriptors(limits) / PIPES_PART / (workers * PIPE_DESCRIPTORS)).min(PIPES)
}

impl Control {
    /// Announces that the node serves: in the log, to the previous process and to systemd.
    fn announce(&mut self, status_on: Option<SocketAddr>, admin_on: Option<&str>) -> Result<(), ExitFailure> {
        // Not earlier: until here, the previous process may have to continue.
        if let Some(admin) = &self.admin {
            admin.show_socket()?;
        }
        self.state.enter(NodePhase::Serving);
        for (addr, purpose) in self.listeners.addresses() {
            say!("listening on {addr} ({purpose})");
        }
        if let Some(addr) = status_on {
            say!("status on {addr}");
        }
        if let Some(addr) = admin_on {
            say!("admin on {addr}");
        }
        let steered = self.listeners.take_new_http3();
        steered.map_err(|error| system("new connections over HTTP/3 cannot be directed to this process", &error))?;
        // If the previous process has ended meanwhile, this process has to serve anyway.
        self.certain = self.listeners.with_inherited(|inherited| inherited.certain.take());
        if let Err(error) = self.listeners.with_inherited(InheritedSockets::tell_ready) {
            say!("the previous process ended before this one was ready: {error}");
        }
        SinkRegister::of_process().tell_orphaned(|line| say!("{line}"));
        systemd::ready();
        say!("ready");
        Ok(())
    }

    /// Handles signals and requests until one of them ends the node.
    async fn serve(&mut self) -> End {
        let mut attempt: Option<UpgradeAttempt> = None;
        let mut certain = self.certain.take().and_then(|end| pipe::Receiver::from_owned_fd(end).ok());
        let mut is_asked = false;
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
                    SignalRequest::Upgrade if certain.is_some() => say_waits(std::mem::replace(&mut is_asked, true)),
                    SignalRequest::Upgrade => self.upgrade(&mut attempt),
                },
                () = end_of(&mut certain) => {
                    certain = None;
                    if std::mem::take(&mut is_asked) {
                        self.upgrade(&mut attempt);
                    }
                }
                outcome = outcome(&mut attempt) => match outcome {
                    Ok(()) => {
                        self.listeners.handed_over();
                        systemd::handed_over(attempt.as_ref().and_then(UpgradeAttempt::pid).unwrap_or_default());
                        return End::HandOver;
                    }
                    Err(failed) => {
                        attempt = None;
                        self.carry_on();
                        self.upgrade_failed(&failed);
                    }
                },
                () = tick(&mut alive) => systemd::alive(),
            }
        };
        if is_asked {
            say!("upgrade: it does not begin, because this process ends");
        }
        if let Some(attempt) = attempt {
            attempt.abandon().await;
            // It may have taken new connections over HTTP/3 already.
            self.listeners.keep();
        }
        end
    }

    fn reopen_logs(&self) {
        for (name, log) in [(logs::ACCESS_LOG, &self.access_log), (logs::AUDIT_LOG, &self.audit_log)] {
            if let Some(log) = log {
                logs::reopen(name, log);
            }
        }
    }

    fn upgrade(&self, attempt: &mut Option<UpgradeAttempt>) {
        if attempt.is_some() {
            return say!("an upgrade is already in progress");
        }
        if self.is_volatile {
            return self.upgrade_failed(&Failed::Volatile);
        }
        // The authority might validate an order that is begun now at the new process, which does not know it. And only one
        // process may write to the store.
        self.acme.pause(true);
        if let Err(failure) = self.watch.lend_store(true) {
            say!("upgrade: {failure}");
        }
        let has_identity = self.state.spiffe().is_some_and(|report| !report.svids.is_empty());
        let started = self.listeners.hand_over(|clients, http3| {
            let sockets = clients.into_iter().chain(self.sockets.all());
            let http3 = http3.map_err(Failed::System)?;
            UpgradeAttempt::start(&self.invocation, sockets, (&http3, has_identity), self.options.upgrade_patience)
        });
        match started {
            Ok(started) => {
                say!("upgrade: process {} was started", started.pid().unwrap_or_default());
                self.state.upgrade_error(None);
                *attempt = Some(started);
            }
            Err(failed) => {
                self.carry_on();
                self.upgrade_failed(&failed);
            }
        }
    }

    /// After a failed upgrade: resumes the work that the new process was to take over.
    fn carry_on(&self) {
        self.listeners.keep();
        self.acme.pause(false);
        if let Err(failure) = self.watch.lend_store(false) {
            say!("{failure}; the store stays read-only until the next start");
        }
    }

    fn upgrade_failed(&self, failed: &Failed) {
        say!("upgrade failed: {failed}; this process, {}, keeps serving", std::process::id());
        // In this order: who has seen the count finds the reason.
        self.state.upgrade_error(Some(failed.to_string()));
        self.state.metrics.control.upgrades_failed.fetch_add(1, Relaxed);
    }
}

/// The outcome of an upgrade attempt; pending if there is none.
async fn outcome(attempt: &mut Option<UpgradeAttempt>) -> Result<(), Failed> {
    match attempt {
        Some(attempt) => attempt.outcome().await,
        None => pending().await,
    }
}

/// Says why an upgrade does not begin yet.
fn say_waits(is_asked: bool) {
    match is_asked {
        true => say!("an upgrade is already in progress"),
        false => say!(
            "upgrade: it waits, usually for a second at most, until the process that started this one has handed over, \
             because that one may still take the service back"
        ),
    }
}

/// Waits until a pipe can be read to its end; forever if there is none.
async fn end_of(pipe: &mut Option<pipe::Receiver>) {
    match pipe {
        // Nothing is ever written. An error is an end, too.
        Some(pipe) => drop(pipe.read(&mut [0; 1]).await),
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
        let limits = |open_files| ProcessLimits { open_files, open_files_before: None, backlog: 1, ports: 1 };
        assert_eq!(connections_per_worker(&limits(Some(1_024)), 1), 480);
        assert_eq!(connections_per_worker(&limits(Some(20_000)), 1), 19_000);
        assert_eq!(connections_per_worker(&limits(Some(20_000)), 2), 9_500);
        assert_eq!(connections_per_worker(&limits(Some(16)), 4), 1);
        assert!(connections_per_worker(&limits(None), 4) > 1_000_000);
    }

    #[test]
    fn pipes_are_among_the_descriptors_that_are_kept_from_clients_and_upstreams() {
        for (files, workers) in [300_usize, 1_024, 1_935, 4_096, 20_000, 1 << 20].into_iter().zip([1, 2, 8].repeat(2)) {
            let limits =
                ProcessLimits { open_files: Some(files as u64), open_files_before: None, backlog: 1, ports: 1 };
            let clients = connections_per_worker(&limits, workers) * workers;
            let pipes = pipes_per_worker(&limits, workers) * workers * PIPE_DESCRIPTORS;
            let upstreams = files.saturating_sub(clients + pipes + OWN);
            assert!(upstreams >= clients.min(900), "{files} files, {workers} workers: {upstreams} are left");
        }
        let many = ProcessLimits { open_files: Some(20_000), open_files_before: None, backlog: 1, ports: 1 };
        assert_eq!((pipes_per_worker(&many, 2), pipes_per_worker(&many, 20)), (PIPES, 5));
    }
}
