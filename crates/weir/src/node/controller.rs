//! `weir controller`: follows a cluster, and serves the state to nodes. Start reading at [`ControllerNode::start`].

mod certificates;
mod service;

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::time::{MissedTickBehavior, interval};
use weir_control::document::{ControllerCertificates, ServedClusterSettings};
use weir_control::stores::{CertificateIssuer, ServedCluster, controller_name};
use weir_control::{Diagnostic, DocumentLoader, LoadedDocument};
use weir_net::inherit::{InheritedSockets, ListenerKey};
use weir_net::limits::ProcessLimits;
use weir_telemetry::error_log;

use super::server::{NodeServer, ServerOptions};
use super::server_tally::ServerTally;
use super::signals::{ServiceSignals, SignalRequest, Signals};
use super::sockets::Sockets;
use super::{PLUGINS, STATUS, logs, status, system};
use crate::exit::ExitFailure;
use crate::say::{say, say_error};
use certificates::{CertificateFiles, IssuedCertificates, UsedCertificates};
use service::ControllerService;

/// How often the files of certificates are looked at, and whether the cluster has been read.
const LOOK: Duration = Duration::from_secs(1);
/// The purpose of the listening socket.
const STATE: &str = "state";

/// Options of a controller that are not in its file.
pub(crate) struct ControllerOptions {
    pub file: PathBuf,
    pub log_format: error_log::ErrorLogFormat,
}

/// A running controller. The order of the fields is the order in which they are dropped.
pub(crate) struct ControllerNode {
    _servers: Vec<NodeServer>,
    cluster: ServedCluster,
    certificates: UsedCertificates,
    signals: Signals,
    runtime: Runtime,
}

impl ControllerNode {
    /// Reads the file, opens the sockets, and begins to follow the cluster. An error has been reported when this returns it.
    pub(crate) fn start(options: ControllerOptions) -> Result<ControllerNode, ExitFailure> {
        let limits = ProcessLimits::raise();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| system("an async runtime cannot be started", &error))?;
        let signals = {
            let _guard = runtime.enter();
            ServiceSignals::take().and_then(Signals::take)
        };
        let signals = signals.map_err(|error| system("the signal handlers cannot be installed", &error))?;
        let (loaded, controller) = load(&options.file)?;
        let settings = &loaded.document.settings;
        error_log::start(logs::level(settings.error_log_level), options.log_format);
        let beside = options.file.parent().unwrap_or(Path::new(""));
        let failed = |problem: String| {
            say_error!("{problem}");
            ExitFailure::Configuration
        };
        let (files, issue) = match &controller.certificates {
            ControllerCertificates::Files(files) => {
                (Some(CertificateFiles::read(files, beside).map_err(failed)?), None)
            }
            ControllerCertificates::Issued(issue) => (None, Some(issue)),
        };
        let state_on = listen(STATE, controller.listen, limits.backlog)?;
        let status_on = settings.status.map(|addr| listen(STATUS, addr, limits.backlog)).transpose()?;
        let plugins = (PLUGINS, loaded.document.enabled_plugins.clone());
        let cluster = ServedCluster::follow(&controller.kubernetes, &controller_name(), beside, plugins, issue)
            .map_err(|failure| failed(failure.to_string()))?;
        let issuer = cluster.issuer().cloned();
        let certificates = used(files, issuer.clone()).map_err(failed)?;
        let service = Arc::new(ControllerService::new(cluster.feed().clone(), controller.node_names, issuer));
        let state = ServerOptions {
            name: "state",
            title: "the state address",
            bounds: service::BOUNDS,
            tcp: state_on,
            unix: None,
            tls: Some(certificates.tls()),
            tally: Arc::new(ServerTally::default()),
        };
        let mut servers = vec![service::start(state, &service, ControllerService::state)?];
        if let Some(tcp) = status_on {
            let (name, title, tally) = ("status", "the status address", Arc::new(ServerTally::default()));
            let status = ServerOptions { name, title, bounds: status::BOUNDS, tcp, unix: None, tls: None, tally };
            servers.push(service::start(status, &service, ControllerService::status)?);
        }
        say!("version {}, process {}, following {}", env!("CARGO_PKG_VERSION"), std::process::id(), cluster.address());
        Ok(ControllerNode { _servers: servers, cluster, certificates, signals, runtime })
    }

    /// Runs until a signal ends it.
    ///
    /// # Errors
    /// The cluster is not followed any more. With a new process the nodes get a state that is not an old one.
    pub(crate) fn run(mut self) -> Result<(), ExitFailure> {
        self.runtime.block_on(async {
            let (mut looks, mut is_ready) = (interval(LOOK), false);
            looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    request = self.signals.next() => match request {
                        SignalRequest::Drain | SignalRequest::Stop => return Ok(()),
                        SignalRequest::Reload => self.certificates.reload(),
                        SignalRequest::ReopenLogs | SignalRequest::Upgrade => say!("a controller does nothing at this signal"),
                    },
                    _ = looks.tick() => self.certificates.reload(),
                }
                if self.cluster.has_ended() {
                    say_error!("the cluster is not followed any more, after a fault of the program that the log has above");
                    return Err(ExitFailure::System);
                }
                let has_certificate = self.cluster.issuer().is_none_or(CertificateIssuer::is_ready);
                if !is_ready && has_certificate && self.cluster.feed().is_ready() {
                    is_ready = true;
                    say!("ready");
                }
            }
        })
    }
}

/// The certificates of the settings: files, or those of the authority in the cluster.
fn used(files: Option<CertificateFiles>, issuer: Option<CertificateIssuer>) -> Result<UsedCertificates, String> {
    match (files, issuer) {
        (Some(files), _) => Ok(UsedCertificates::Files(files)),
        (None, Some(issuer)) => Ok(UsedCertificates::Issued(IssuedCertificates::new(issuer)?)),
        (None, None) => Err("controller: has neither `tls` nor `issue`".to_owned()),
    }
}

/// The faults in the files that a controller's file names, for which `weir controller` would not start. Neither the cluster nor another
/// service is asked.
pub(crate) fn faults_of_files(file: &Path) -> Vec<Diagnostic> {
    let Ok(loaded) = DocumentLoader::of_file_directly(file).read() else { return Vec::new() };
    let document = &loaded.document;
    let Some(controller) = &document.settings.controller else { return Vec::new() };
    let beside = file.parent().unwrap_or(Path::new(""));
    let fault = |path: &str, problem: String, advice: &str| {
        let fault = Diagnostic::at_place(&document.source, document.place_at(path), problem).advise(advice);
        Diagnostic { path: path.to_owned(), ..fault }
    };
    let mut faults = Vec::new();
    if let ControllerCertificates::Files(files) = &controller.certificates
        && let Err(problem) = CertificateFiles::read(files, beside)
    {
        let problem = problem.trim_start_matches("controller.tls: ").to_owned();
        faults.push(fault(
            "controller.tls",
            problem,
            "name the certificate of this controller, its key, and the CA of the nodes",
        ));
    }
    if let Some(name) = &controller.kubernetes.kubeconfig
        && let Err(error) = std::fs::read(beside.join(&**name))
    {
        let problem = format!("the file `{name}` cannot be read: {error}");
        faults.push(fault(
            "controller.kubernetes.kubeconfig",
            problem,
            "correct the path, which starts at the directory of this file",
        ));
    }
    faults
}

/// The file, which has been checked, and the settings of a controller in it.
fn load(file: &Path) -> Result<(LoadedDocument, ServedClusterSettings), ExitFailure> {
    let tell = |faults: Vec<weir_control::Diagnostic>| {
        faults.iter().for_each(|fault| say_error!("{fault}"));
        ExitFailure::of_start(&faults)
    };
    let warnings = weir_control::check_file(file, &PLUGINS).map_err(tell)?;
    warnings.iter().for_each(|warning| say!("warning: {warning}"));
    let loaded = DocumentLoader::of_file_directly(file).read().map_err(tell)?;
    let Some(controller) = loaded.document.settings.controller.clone() else {
        say_error!(
            "{}: has no `controller`; write `controller: {{ kubernetes: {{ in_cluster: true }}, tls: {{ cert: tls.crt, key: tls.key, ca: \
             ca.crt }} }}`, or use `weir run` for a node",
            file.display()
        );
        return Err(ExitFailure::Configuration);
    };
    Ok((loaded, controller))
}

/// Opens a socket, and says where.
fn listen(purpose: &'static str, addr: SocketAddr, backlog: i32) -> Result<Vec<TcpListener>, ExitFailure> {
    let mut sockets = Sockets::default();
    let opened = sockets.open(ListenerKey { purpose, addr }, backlog, &mut InheritedSockets::default());
    let bound = opened.map_err(|error| {
        say_error!("{error}{}", error.advice().map(|advice| format!("; {advice}")).unwrap_or_default());
        ExitFailure::Listen
    })?;
    say!("{purpose} on {bound}");
    let copies = sockets.copies(purpose);
    copies.map_err(|error| system("the file descriptor of a listening socket cannot be duplicated", &error))
}
