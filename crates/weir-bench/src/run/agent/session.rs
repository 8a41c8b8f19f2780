//! What an agent does for one commander. Dropping a session ends everything that it has started.

use std::{
    cell::RefCell,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    super::{
        backend::{BackendTask, Backends, RunningBackends},
        not_started::{StartFailure, StartFailureKind},
        place::{self, RunDirectory},
    },
    keeper::AgentKeeper,
    load::{FURTHEST_START, SessionLoad},
    message::{
        AgentAnswer, AgentMachine, AgentRequest, AgentVersion, BackendOrder, LoadState, ProgramKind, ProgramList,
        SampleOrder, TargetOrder,
    },
    portable::{LONGEST_PART, MOST_BODY_BYTES, portable},
    target::SessionTarget,
};
use crate::{
    engine::{
        LoadPlan, LoadStart,
        clock::{now_ns, unix_ns},
    },
    manifest::{Cpu, Manifest, Pinning},
    sample::ProcessSampler,
    scenario::BackendKind,
    target::{self, Installed, PeerDefinition},
};

/// The most backends of a row.
const MOST_BACKENDS: u32 = 1_000;
/// The most workers of a target, and processors of a machine: as many as the kernel's sets have.
const MOST_WORKERS: u32 = 1 << 10;
/// The shortest interval and the most samples of a run.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);
const MOST_SAMPLES: u128 = 100_000;

/// What an agent may do.
#[derive(Clone, Debug)]
pub struct AgentSettings {
    /// Programs of targets and backends, by the names of their folders.
    pub programs: ProgramList,
    /// The directory for files of runs, and of installed programs.
    pub cache: PathBuf,
    /// Only those of `programs` may be started, and the lab's own backend.
    pub only_listed: bool,
}

pub(in crate::run) struct AgentSession {
    settings: AgentSettings,
    /// The address that its programs listen on.
    address: Ipv4Addr,
    keeper: Option<Arc<AgentKeeper>>,
    load: Option<SessionLoad>,
    sampler: Option<ProcessSampler>,
    target: Option<(SessionTarget, KeptProcesses)>,
    backend: Option<(RunningBackends, KeptProcesses)>,
    /// Last, since the others have files in it.
    place: Option<RunDirectory>,
}

impl AgentSession {
    pub(in crate::run) fn new(
        settings: AgentSettings,
        address: Ipv4Addr,
        keeper: Option<Arc<AgentKeeper>>,
    ) -> AgentSession {
        AgentSession { settings, address, keeper, load: None, sampler: None, target: None, backend: None, place: None }
    }

    pub(in crate::run) fn handle(&mut self, request: AgentRequest) -> AgentAnswer {
        let answer = match request {
            AgentRequest::Hello(version) => self.hello(&version),
            AgentRequest::Alive => Ok(AgentAnswer::Done),
            AgentRequest::Clock => Ok(AgentAnswer::Clock { monotonic_ns: now_ns(), unix_ns: unix_ns() }),
            AgentRequest::Begin { certificate, key } => self.begin(certificate, key),
            AgentRequest::Find { kind, name } => self.find(kind, &name),
            AgentRequest::StartBackend(order) => self.start_backend(&order),
            AgentRequest::StartTarget(order) => self.start_target(*order),
            AgentRequest::StopTarget => {
                self.stop_target();
                Ok(AgentAnswer::Done)
            }
            AgentRequest::TargetState => {
                Ok(AgentAnswer::TargetState(self.target.as_mut().map(|(target, _)| target.state()).unwrap_or_default()))
            }
            AgentRequest::Prepare { plan, verified } => self.prepare(*plan, verified),
            AgentRequest::Go { start_ns } => self.go(start_ns),
            AgentRequest::LoadState => Ok(AgentAnswer::Load(
                self.load.as_mut().map_or_else(|| LoadState::Failed("no load".to_owned()), SessionLoad::state),
            )),
            AgentRequest::StopLoad => {
                self.load.iter_mut().for_each(SessionLoad::stop);
                Ok(AgentAnswer::Done)
            }
            AgentRequest::Sample(order) => self.sample(order),
            AgentRequest::Samples => {
                let (processes, host) = self.sampler.take().map(ProcessSampler::finish).unwrap_or_default();
                Ok(AgentAnswer::Samples { processes, host })
            }
        };
        answer.unwrap_or_else(AgentAnswer::Refused)
    }

    fn hello(&self, version: &AgentVersion) -> Result<AgentAnswer, String> {
        let own = AgentVersion::own();
        // A commander of another release must be able to read the refusal.
        if *version != own {
            return Err(format!(
                "the agent is release {} (messages {}), and the program that commands it is {} (messages {}): use the same \
                 release on all machines",
                own.release, own.messages, version.release, version.messages
            ));
        }
        // For the clients and the programs.
        place::raise_open_files();
        let machine = AgentMachine {
            manifest: Manifest::read(Pinning::default()),
            cpus: place::usable_cpus(&Cpu::read()),
            address: self.address,
            boot_id: std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned(),
        };
        Ok(AgentAnswer::Hello { version: own, machine: Box::new(machine) })
    }

    fn begin(&mut self, certificate: String, key: String) -> Result<AgentAnswer, String> {
        self.end();
        let place = RunDirectory::with_certificate(&self.settings.cache, certificate, key);
        self.place = Some(place.map_err(|error| error.to_string())?);
        Ok(AgentAnswer::Done)
    }

    fn place(&self) -> Result<&RunDirectory, String> {
        self.place.as_ref().ok_or_else(|| "no run has begun".to_owned())
    }

    /// A program of the list. What is not in it is not started for another machine: with Weir as a target, a configuration could
    /// read and write the files of the agent's user as well.
    fn located(&self, peer: &PeerDefinition, name: &str) -> Result<Installed, String> {
        let given = self.settings.programs.get(name).map(PathBuf::as_path);
        if given.is_none() && (self.settings.only_listed || target::is_version(name)) {
            return Err(format!("{name} is not in the list of the agent; its owner adds it by --program {name}=PATH"));
        }
        target::locate(peer, given, &self.settings.cache).map_err(|error| error.to_string())
    }

    fn found_peer(&self, name: &str) -> Result<(PeerDefinition, Installed), String> {
        let peer = target::read(name).map_err(|error| error.to_string())?;
        if peer.direct {
            return Err(format!("{name} has no program"));
        }
        let installed = self.located(&peer, name)?;
        Ok((peer, installed))
    }

    fn found_backend(&self, name: &str) -> Result<(PeerDefinition, Installed), String> {
        let peer = target::read_backend(name, &self.settings.cache).map_err(|error| error.to_string())?;
        let installed = self.located(&peer, name)?;
        Ok((peer, installed))
    }

    fn find(&self, kind: ProgramKind, name: &str) -> Result<AgentAnswer, String> {
        let (_, installed) = match kind {
            ProgramKind::Peer => self.found_peer(name)?,
            ProgramKind::Backend => self.found_backend(name)?,
        };
        let program = installed.program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(AgentAnswer::Found { program, version: installed.version })
    }

    fn start_backend(&mut self, order: &BackendOrder) -> Result<AgentAnswer, String> {
        self.stop_backend();
        let BackendOrder { settings, row, workers, cpus } = order;
        check_size(*workers, cpus)?;
        if settings.instances > MOST_BACKENDS {
            return Err(format!("{} backends are more than {MOST_BACKENDS}", settings.instances));
        }
        if settings.body_bytes.is_some_and(|bytes| bytes > MOST_BODY_BYTES) {
            return Err(format!("an answer has at most {MOST_BODY_BYTES} bytes"));
        }
        let found = settings.kind.folder().map(|name| self.found_backend(name)).transpose()?;
        let backends = Backends::of(settings.kind, found);
        let pinning = Pinning { backend: cpus.clone(), ..Pinning::default() };
        let kept = KeptProcesses::new(self.keeper.clone());
        let started = |pid| kept.add(pid);
        let task = BackendTask { settings, row, one_process_each: false, host: self.address, started: &started };
        let running = RunningBackends::start(self.place()?, &backends, &task, *workers, &pinning);
        let mut running = running.map_err(|error| error.to_string())?;
        let answer = AgentAnswer::Backend {
            endpoints: running.endpoints.clone(),
            configuration: running.configuration.take().filter(|_| settings.kind != BackendKind::Builtin),
        };
        self.backend = Some((running, kept));
        Ok(answer)
    }

    fn start_target(&mut self, order: TargetOrder) -> Result<AgentAnswer, String> {
        self.stop_target();
        check_size(order.inputs.workers, &order.cpus)?;
        let found = self.found_peer(&order.peer)?;
        let kept = KeptProcesses::new(self.keeper.clone());
        let started = SessionTarget::start(order, found, self.place()?, self.address, &|pid| kept.add(pid));
        match started {
            Ok(started) => {
                self.target = Some((started.target, kept));
                Ok(AgentAnswer::Target { port: started.port, configuration: started.configuration })
            }
            Err(failure) => {
                let StartFailure { kind, reason, configuration } = *failure;
                let unsupported = matches!(kind, StartFailureKind::Unsupported);
                Ok(AgentAnswer::NotStarted { unsupported, reason, configuration })
            }
        }
    }

    fn prepare(&mut self, mut plan: LoadPlan, verified: bool) -> Result<AgentAnswer, String> {
        self.load = None;
        portable(&plan)?;
        if verified {
            plan.tls.ca_file = Some(Path::new(&self.place()?.certificate.cert_file).to_owned());
        }
        self.load = Some(SessionLoad::prepare(plan).map_err(|error| error.to_string())?);
        Ok(AgentAnswer::Done)
    }

    fn go(&mut self, start_ns: u64) -> Result<AgentAnswer, String> {
        near(start_ns)?;
        let load = self.load.as_mut().ok_or("no load is prepared")?;
        if load.go(start_ns) { Ok(AgentAnswer::Done) } else { Err("the load has begun before".to_owned()) }
    }

    fn sample(&mut self, order: SampleOrder) -> Result<AgentAnswer, String> {
        let SampleOrder { start_ns, warm_up, interval, length } = order;
        near(start_ns)?;
        if warm_up.max(length).max(interval) > LONGEST_PART {
            return Err(format!("a part of a run is at most {LONGEST_PART:?}"));
        }
        if interval < SHORTEST_INTERVAL || length.as_nanos() / interval.as_nanos() > MOST_SAMPLES {
            return Err(format!("samples are taken every {SHORTEST_INTERVAL:?} or less often, at most {MOST_SAMPLES}"));
        }
        let target = self.target.as_ref().map(|(target, _)| target.watched());
        let backend = self.backend.as_ref().map(|(backend, _)| backend.watched());
        let start = LoadStart::default();
        start.set(Instant::now() + Duration::from_nanos(start_ns.saturating_sub(now_ns())));
        let watched = target.into_iter().chain(backend).collect();
        self.sampler = Some(ProcessSampler::start(watched, &start, warm_up, interval, length));
        Ok(AgentAnswer::Done)
    }

    fn stop_target(&mut self) {
        if let Some((target, kept)) = self.target.take() {
            target.stop();
            drop(kept);
        }
    }

    fn stop_backend(&mut self) {
        if let Some((backend, kept)) = self.backend.take() {
            drop(backend);
            drop(kept);
        }
    }

    /// Ends everything: first the target and the backend, so that a load gets no more answers.
    fn end(&mut self) {
        self.load.iter_mut().for_each(SessionLoad::stop);
        self.stop_target();
        self.stop_backend();
        self.load = None;
        drop(self.sampler.take().map(ProcessSampler::finish));
        self.place = None;
    }
}

/// Processes that the keeper ends if the agent is killed. They have ended when this value is dropped.
struct KeptProcesses {
    keeper: Option<Arc<AgentKeeper>>,
    pids: RefCell<Vec<u32>>,
}

impl KeptProcesses {
    fn new(keeper: Option<Arc<AgentKeeper>>) -> KeptProcesses {
        KeptProcesses { keeper, pids: RefCell::default() }
    }

    fn add(&self, pid: u32) {
        if let Some(keeper) = &self.keeper {
            keeper.started(pid);
            self.pids.borrow_mut().push(pid);
        }
    }
}

impl Drop for KeptProcesses {
    fn drop(&mut self) {
        if let Some(keeper) = &self.keeper {
            self.pids.borrow().iter().for_each(|pid| keeper.ended(*pid));
        }
    }
}

impl Drop for AgentSession {
    fn drop(&mut self) {
        self.end();
    }
}

/// Workers and processors must be within bounds.
fn check_size(workers: u32, cpus: &[u32]) -> Result<(), String> {
    let is_small = workers <= MOST_WORKERS && cpus.len() <= MOST_WORKERS as usize;
    match is_small && cpus.iter().all(|cpu| *cpu < MOST_WORKERS) {
        true => Ok(()),
        false => {
            Err(format!("workers and processors are at most {MOST_WORKERS}, and processors are numbered below that"))
        }
    }
}

/// A start must not be further ahead than a bound.
fn near(start_ns: u64) -> Result<(), String> {
    match start_ns.saturating_sub(now_ns()) <= FURTHEST_START.as_nanos() as u64 {
        true => Ok(()),
        false => Err(format!("the start is more than {} s ahead", FURTHEST_START.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::StopCondition;

    fn session(name: &str) -> AgentSession {
        let settings = AgentSettings {
            programs: ProgramList::from([("envoy".to_owned(), PathBuf::from("/no/such/envoy"))]),
            cache: std::env::temp_dir().join(format!("weir-bench-session-{name}-{}", std::process::id())),
            only_listed: true,
        };
        AgentSession::new(settings, Ipv4Addr::LOCALHOST, None)
    }

    fn refusal(answer: AgentAnswer) -> String {
        match answer {
            AgentAnswer::Refused(reason) => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn another_release_is_refused_with_both_names() {
        let mut session = session("release");
        let version = AgentVersion { release: "0.0.1".to_owned(), messages: 9 };
        let reason = refusal(session.handle(AgentRequest::Hello(version)));
        let own = env!("CARGO_PKG_VERSION");
        assert!(reason.contains(own) && reason.contains("0.0.1 (messages 9)"), "{reason}");
    }

    #[test]
    fn a_program_that_is_not_in_the_list_is_refused() {
        let mut session = session("list");
        let mut find = |kind, name: &str| refusal(session.handle(AgentRequest::Find { kind, name: name.to_owned() }));
        let reason = find(ProgramKind::Peer, "nginx");
        assert!(reason.contains("not in the list") && reason.contains("--program nginx=PATH"), "{reason}");
        let reason = find(ProgramKind::Backend, "nginx");
        assert!(reason.contains("not in the list"), "{reason}");
        let reason = find(ProgramKind::Peer, "envoy");
        assert!(reason.contains("/no/such/envoy is not a file"), "{reason}");
        // With any configuration, it could read and write files of the agent's user.
        for name in ["weir", "weir-api"] {
            let reason = find(ProgramKind::Peer, name);
            assert!(reason.contains(&format!("--program {name}=PATH")), "{reason}");
        }
        let reason = find(ProgramKind::Peer, "../../bin/sh");
        assert!(reason.contains("no peer"), "{reason}");
    }

    #[test]
    fn orders_out_of_order_or_beyond_a_bound_are_refused() {
        let mut session = session("order");
        let plan = LoadPlan::closed("http://localhost:1/", 1, StopCondition::after_count(1));
        let reason = refusal(session.handle(AgentRequest::Go { start_ns: now_ns() }));
        assert!(reason.contains("no load is prepared"), "{reason}");
        let reason = refusal(session.handle(AgentRequest::Prepare { plan: Box::new(plan), verified: true }));
        assert!(reason.contains("no run has begun"), "{reason}");
        let reason = refusal(session.handle(AgentRequest::Go { start_ns: now_ns() + 100_000_000_000 }));
        assert!(reason.contains("60 s ahead"), "{reason}");
        let order = SampleOrder {
            start_ns: now_ns(),
            warm_up: Duration::ZERO,
            interval: Duration::from_millis(1),
            length: Duration::from_secs(1),
        };
        let reason = refusal(session.handle(AgentRequest::Sample(order)));
        assert!(reason.contains("every 100ms"), "{reason}");
        let many = crate::scenario::BackendSettings::default();
        let order = BackendOrder { settings: many, row: "r".to_owned(), workers: 1, cpus: vec![5_000] };
        let reason = refusal(session.handle(AgentRequest::StartBackend(order)));
        assert!(reason.contains("at most 1024"), "{reason}");
        let order = BackendOrder {
            settings: crate::scenario::BackendSettings::default(),
            row: "r".to_owned(),
            workers: 1,
            cpus: vec![0; 5_000],
        };
        let reason = refusal(session.handle(AgentRequest::StartBackend(order)));
        assert!(reason.contains("at most 1024"), "{reason}");
        let large = crate::scenario::BackendSettings { body_bytes: Some(1 << 30), ..Default::default() };
        let order = BackendOrder { settings: large, row: "r".to_owned(), workers: 1, cpus: Vec::new() };
        let reason = refusal(session.handle(AgentRequest::StartBackend(order)));
        assert!(reason.contains("at most 67108864 bytes"), "{reason}");
        let many = crate::scenario::BackendSettings { instances: 5_000, ..Default::default() };
        let order = BackendOrder { settings: many, row: "r".to_owned(), workers: 1, cpus: Vec::new() };
        let reason = refusal(session.handle(AgentRequest::StartBackend(order)));
        assert!(reason.contains("more than 1000"), "{reason}");
    }
}
