use std::{
    collections::BTreeMap,
    env,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

use super::{
    RunOptions, SetupError,
    place::{RunDirectory, free_port, write},
};
use rustix::process::Signal;

use crate::{
    manifest::Pinning,
    result::{Configuration, ProcessRole, TargetRecord},
    sample::WatchedProcess,
    scenario::{BackendKind, BackendSettings, Scenario},
    target::{
        self, BackendAddress, Child, Inputs, Installed, PeerDefinition, ProcessError, Readiness, send_signal,
        wait_until_listening,
    },
};

/// The installed programs for backends that are not built into the lab.
pub struct Backends {
    found: BTreeMap<BackendKind, (PeerDefinition, Installed)>,
}

impl Backends {
    /// Finds the backend programs that the scenario's rows need, and installs those missing from the lab's cache.
    pub fn provide(scenario: &Scenario, options: &RunOptions) -> Result<Backends, SetupError> {
        let mut found = BTreeMap::new();
        for kind in scenario.rows.iter().map(|row| scenario.backend(row).kind) {
            let Some(name) = kind.folder().filter(|_| !found.contains_key(&kind)) else { continue };
            let peer = target::read_backend(name, &options.cache)?;
            let given = options.programs.get(name).map(PathBuf::as_path);
            let installed = target::provide(&peer, given, &options.cache, |line| eprintln!("{line}"))
                .map_err(SetupError::Backend)?;
            found.insert(kind, (peer, installed));
        }
        Ok(Backends { found })
    }

    /// The program of one kind; none of the backend that is built into the lab.
    pub(super) fn of(kind: BackendKind, found: Option<(PeerDefinition, Installed)>) -> Backends {
        Backends { found: found.map(|found| (kind, found)).into_iter().collect() }
    }

    pub fn records(&self) -> Vec<TargetRecord> {
        let record = |(peer, installed): &(PeerDefinition, Installed)| TargetRecord {
            name: peer.name.clone(),
            version: installed.version.clone(),
            ..TargetRecord::default()
        };
        self.found.values().map(record).collect()
    }
}

/// The backends of a row that are to be started.
pub struct BackendTask<'a> {
    pub settings: &'a BackendSettings,
    /// The name of the row.
    pub row: &'a str,
    /// Each backend has a process of its own, since events act on one of them.
    pub one_process_each: bool,
    /// The address to listen on.
    pub host: Ipv4Addr,
    /// Called with each process that is started.
    pub started: &'a dyn Fn(u32),
}

/// The running backends of a row: all in one process, or one process each if the row's events act on a backend.
pub struct RunningBackends {
    processes: Vec<Child>,
    /// Command and directory to start the first backend again.
    first: (Vec<String>, PathBuf),
    pub endpoints: Vec<BackendAddress>,
    pub tls: bool,
    /// The configuration of a backend that is not built into the lab.
    pub configuration: Option<Configuration>,
    cpus: Vec<u32>,
}

impl RunningBackends {
    /// Starts the backends of a named row.
    pub fn start(
        place: &RunDirectory,
        backends: &Backends,
        task: &BackendTask<'_>,
        workers: u32,
        pinning: &Pinning,
    ) -> Result<RunningBackends, SetupError> {
        let backend = task.settings;
        let endpoint = |_| Ok(BackendAddress { host: task.host.to_string(), port: free_port(task.host)? });
        let endpoints = (0..backend.instances.max(1)).map(endpoint).collect::<Result<Vec<_>, SetupError>>()?;
        let cpus = pinning.backend.clone();
        let dir = place.directory("backend")?;
        let mut configuration = None;
        let together = if task.one_process_each { 1 } else { endpoints.len() };
        let commands = match backends.found.get(&backend.kind) {
            None => {
                let each = endpoints.chunks(together).map(|some| builtin(place, backend, some, cpus.len()));
                each.collect::<Result<Vec<_>, SetupError>>()?
            }
            Some((peer, installed)) => {
                let inputs = inputs(place, backend, &endpoints, workers.min(cpus.len() as u32).max(1), &dir);
                configuration = Some(configure(place, peer, &inputs, &dir, task.row)?);
                let program = installed.program.display().to_string();
                vec![peer.command(&peer.start, &program, &inputs.dir, inputs.workers)]
            }
        };
        let start = |command: &Vec<String>| {
            let child = Child::start(command, &BTreeMap::new(), Vec::new(), &dir, &cpus)?;
            (task.started)(child.pid());
            Ok(child)
        };
        let processes = commands.iter().map(start).collect::<Result<Vec<_>, ProcessError>>()?;
        let first = (commands.into_iter().next().unwrap_or_default(), dir);
        let mut running = RunningBackends { processes, first, endpoints, tls: backend.tls, configuration, cpus };
        for endpoint in &running.endpoints {
            let address = SocketAddr::from((task.host, endpoint.port));
            match wait_until_listening(&mut running.processes[0], address) {
                Readiness::Ready => {}
                Readiness::Ended(ended) => return Err(SetupError::BackendEnded(ended)),
                Readiness::TimedOut => return Err(SetupError::BackendSilent),
            }
        }
        Ok(running)
    }

    /// Backends that run on another machine, at these addresses.
    pub(super) fn elsewhere(endpoints: Vec<BackendAddress>, tls: bool) -> RunningBackends {
        RunningBackends {
            processes: Vec::new(),
            first: (Vec::new(), PathBuf::new()),
            endpoints,
            tls,
            configuration: None,
            cpus: Vec::new(),
        }
    }

    /// The ids of all backend processes, children included.
    pub fn pids(&self) -> Vec<u32> {
        self.processes.iter().flat_map(Child::tree).collect()
    }

    /// Sends a signal to the first backend.
    pub fn signal_first(&self, signal: Signal) -> Result<(), ProcessError> {
        send_signal(self.processes[0].pid(), signal)
    }

    /// Makes the first backend answer again on the same port: continues it after a freeze, restarts it after a kill.
    pub fn restore_first(&mut self) -> Result<(), ProcessError> {
        if self.processes[0].ended().is_none() {
            return self.signal_first(Signal::CONT);
        }
        let (command, dir) = &self.first;
        self.processes[0] = Child::start(command, &BTreeMap::new(), Vec::new(), dir, &self.cpus)?;
        Ok(())
    }

    /// The processes to sample, all backends together.
    pub fn watched(&self) -> WatchedProcess {
        // With one process per backend, the last one is sampled: events may kill the first.
        let sampled = self.processes.last().expect("a row has a backend");
        WatchedProcess {
            role: ProcessRole::Backend,
            name: "backend".to_owned(),
            cpus: self.cpus.clone(),
            root: sampled.pid(),
            workers: None,
        }
    }
}

fn body(backend: &BackendSettings) -> String {
    match (&backend.body, backend.body_bytes) {
        (Some(body), _) => body.clone(),
        (None, Some(bytes)) => "x".repeat(bytes as usize),
        (None, None) => "OK".to_owned(),
    }
}

/// The values that a backend's templates may use.
pub(super) fn inputs(
    place: &RunDirectory,
    backend: &BackendSettings,
    endpoints: &[BackendAddress],
    workers: u32,
    dir: &Path,
) -> Inputs {
    Inputs {
        dir: dir.display().to_string(),
        host: String::new(),
        port: 0,
        admin_port: 0,
        workers,
        open_files: place.open_files,
        upstream_connections: 0,
        backends: endpoints.to_vec(),
        hosts: Vec::new(),
        backend_tls: backend.tls,
        backend_http2: backend.http2,
        tls: None,
        http2: false,
        http3: false,
        websocket: false,
        sse: false,
        websub: false,
        fan_out: false,
        streams: false,
        installed: String::new(),
        hub: BTreeMap::new(),
        routes: Vec::new(),
        own_upstreams: false,
        changed: String::new(),
        changed_timeout_s: 0,
        change_number: 0,
        consumers: Vec::new(),
        policies: BTreeMap::new(),
        upstream: BTreeMap::new(),
        node: BTreeMap::new(),
        certificate: Some(place.certificate.clone()),
        body: body(backend),
    }
}

/// Writes a backend's files; the result records their text with this machine's paths removed.
fn configure(
    place: &RunDirectory,
    peer: &PeerDefinition,
    inputs: &Inputs,
    dir: &Path,
    row: &str,
) -> Result<Configuration, SetupError> {
    let mut files = target::render(peer, inputs)?;
    for (name, text) in &mut files {
        write(&dir.join(name), text)?;
        *text = place.redacted(&text.replace(&inputs.dir, "."));
    }
    let installed = peer.installed(&place.cache)?.display().to_string();
    let program = Path::new(peer.programs.first().map_or("", String::as_str)).file_name().unwrap_or_default();
    let command = peer.command(&peer.start, &program.to_string_lossy(), ".", inputs.workers);
    Ok(Configuration {
        row: row.to_owned(),
        sha256: target::hash(&files),
        files,
        command: command.into_iter().map(|word| word.replace(&installed, "{installed}")).collect(),
        check: None,
    })
}

/// The command for the lab's own backends: this program again as `weir backend`, all of them in one process.
fn builtin(
    place: &RunDirectory,
    backend: &BackendSettings,
    endpoints: &[BackendAddress],
    threads: usize,
) -> Result<Vec<String>, SetupError> {
    let program = env::current_exe().map_err(SetupError::OwnProgram)?;
    let mut command = vec![program.display().to_string(), "backend".to_owned()];
    let mut option = |name: &str, value: String| command.extend([name.to_owned(), value]);
    for endpoint in endpoints {
        option("--listen", format!("{}:{}", endpoint.host, endpoint.port));
    }
    option("--threads", threads.max(1).to_string());
    match body(backend).len() {
        2 => option("--answer", "ok".to_owned()),
        bytes => option("--answer", format!("{bytes}B")),
    }
    if let Some(delay) = &backend.delay {
        option("--delay", delay.clone());
    }
    if backend.tls {
        option("--cert", place.certificate.cert_file.clone());
        option("--key", place.certificate.key_file.clone());
    }
    Ok(command)
}
