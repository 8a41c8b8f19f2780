use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{
    Found, LoadError, RunError, SetupError,
    backend::RunningBackends,
    beside::LoadBeside,
    configure::configure,
    counters::Counting,
    events, generators,
    log_store::LogTargets,
    not_started::{StartFailure, StartFailureKind},
    place::{RunDirectory, free_port},
    probe::probe,
    profile::{NoStacks, StackSampler},
    records::{RecordWatch, TargetRecords},
    reload::Reload,
    route_changes,
    services::ServicesOfRow,
    target_log,
};
use crate::{
    engine::{self, Interruptions, LoadPlan, LoadResult, LoadStart, StopCondition},
    manifest::Pinning,
    result::{
        Configuration, FanOutDeliveries, HostSample, Instructions, LoadLevel, MeasuredRun, MemoryKinds,
        NewClientsServed, ProcessRole, RouteChanges,
    },
    run::plan::{self, LoadDestination},
    sample::{ProcessSampler, WatchedProcess, memory_kinds, open_files_limit, rss_bytes},
    scenario::{EventAction, Scenario, ScenarioRow, Speak, Variant},
    stacks::{FoldedStacks, StackSamples},
    target::{
        BackendAddress, Child, Inputs, PeerDefinition, ProcessEnded, Readiness, TemplateRoute, credentials,
        wait_until_listening,
    },
};

/// A running target with one configuration, in front of the backends.
pub struct Started {
    peer: PeerDefinition,
    child: Option<Child>,
    dir: PathBuf,
    destination: LoadDestination,
    pinning: Pinning,
    /// The services beside it.
    beside: Vec<WatchedProcess>,
    /// The destination of its access records.
    records: Option<TargetRecords>,
    /// How to give it another configuration, if it supports that.
    reload: Option<Reload>,
    pub configuration: Option<Configuration>,
    /// Resident bytes before the first load; memory used by an earlier level is not released.
    fresh_bytes: Option<u64>,
}

impl Drop for Started {
    /// Stops the target and removes its files, which would fill a disk over a long scenario.
    fn drop(&mut self) {
        drop(self.child.take());
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// The settings that all targets of a row share.
pub struct Setting<'a> {
    pub place: &'a RunDirectory,
    pub scenario: &'a Scenario,
    pub row: &'a ScenarioRow,
    pub workers: u32,
    pub pinning: &'a Pinning,
    /// What distinguishes the target from a plain peer.
    pub variant: Variant,
    /// A command that wraps the target's command, such as valgrind; empty for none.
    pub under: Vec<String>,
    /// The destinations available for its access records.
    pub logs: LogTargets,
    pub services: ServicesOfRow,
}

/// One run: its row, level and position.
pub struct RunTask<'a> {
    pub scenario: &'a Scenario,
    pub row: &'a ScenarioRow,
    pub level: LoadLevel,
    pub repeat: u32,
    pub order: u32,
    pub seed: u64,
    pub more: MoreSamples,
    /// Told what a run waits for, when it takes long.
    pub tell: &'a dyn Fn(&str),
}

/// What is sampled of a target besides its time and memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct MoreSamples {
    /// Its instructions, by the counters of the processor.
    pub counters: bool,
    /// Where it spends its time.
    pub stacks: bool,
}

struct RunningSamples {
    counting: Option<thread::JoinHandle<Option<Instructions>>>,
    stacks: Option<Result<StackSampler, NoStacks>>,
}

impl MoreSamples {
    fn start(
        self,
        pids: &[u32],
        load: &LoadStart,
        (warm_up, measured): (Duration, Duration),
        dir: &Path,
    ) -> RunningSamples {
        let sampled = self.stacks && !pids.is_empty();
        RunningSamples {
            counting: self.counters.then(|| count_later(pids.to_vec(), load.clone(), warm_up, measured)),
            stacks: sampled.then(|| StackSampler::start(pids, dir.join("stacks.perf"), warm_up + measured)),
        }
    }
}

impl RunningSamples {
    fn finish(self) -> (Option<Instructions>, StackSamples) {
        let instructions = self.counting.and_then(|thread| thread.join().expect("counting does not panic"));
        let stacks = match self.stacks.map(|sampler| sampler?.finish()) {
            None => StackSamples::default(),
            Some(Ok(stacks)) => StackSamples { stacks, missing: None },
            Some(Err(reason)) => StackSamples { stacks: FoldedStacks::default(), missing: Some(reason.to_string()) },
        };
        (instructions, stacks)
    }
}

/// What the load of a row came to.
struct LoadedRow {
    load: LoadResult,
    route_changes: Option<RouteChanges>,
    fan_out: Option<FanOutDeliveries>,
    new_clients: Option<NewClientsServed>,
}

/// How long interruptions of the generator's processor are measured before an open loop that has it for itself.
const WATCH: Duration = Duration::from_secs(1);
/// Pause between the load and the second reading of memory.
const SETTLE: Duration = Duration::from_millis(200);

impl Started {
    /// Configures, checks and starts a target, and sends it one request of the row.
    pub fn start(
        setting: &Setting<'_>,
        (peer, installed): &Found,
        backend: &RunningBackends,
        connections: u32,
    ) -> Result<Started, Box<StartFailure>> {
        let Setting { place, scenario, row, workers, pinning, .. } = setting;
        let authority = |tls: bool| tls.then(|| PathBuf::from(&place.certificate.cert_file));
        let dir = place.directory(&peer.name)?;
        let Ok(Some(installed)) = installed else {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, backend.endpoints[0].port));
            let destination =
                LoadDestination { address, tls: backend.tls, authority: authority(backend.tls), events: None };
            return Ok(Started::of(peer, None, dir, destination, pinning));
        };
        let port = free_port(Ipv4Addr::LOCALHOST)?;
        let mut inputs = setting.inputs(backend, &dir, port, connections)?;
        let directory = peer.installed(&place.cache).map_err(SetupError::from)?;
        if installed.program.starts_with(&directory) {
            inputs.installed = directory.display().to_string();
        }
        let configuration = configure(place, (peer, installed), &inputs, &dir, (&row.name, &|_| {}))?;
        let program = installed.program.display().to_string();
        let command = |words: &[String]| peer.command(words, &program, &inputs.dir, *workers);
        let environment = peer.environment(&inputs.dir, *workers);
        let stop = command(&peer.stop);
        let started = [setting.under.clone(), command(&peer.start)].concat();
        let mut child = Child::start(&started, &environment, stop, &dir, &pinning.target).map_err(SetupError::from)?;
        let failure = |reason: String, configuration: Configuration| {
            Box::new(StartFailure { kind: StartFailureKind::Failed, reason, configuration: Some(configuration) })
        };
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        match wait_until_listening(&mut child, address) {
            Readiness::Ready => {}
            Readiness::Ended(ended) => return Err(failure(ended.to_string(), configuration)),
            Readiness::TimedOut => {
                let reason = format!("it did not listen in time; it printed: {}", child.last_words());
                return Err(failure(reason, configuration));
            }
        }
        let tls = scenario.tls(row);
        let destination = LoadDestination { address, tls, authority: authority(tls), events: peer.events.clone() };
        let mut started = Started::of(peer, Some(child), dir, destination, pinning);
        let account = peer.account.then(|| SocketAddr::from((Ipv4Addr::LOCALHOST, inputs.admin_port)));
        started.beside = setting.services.watched.iter().chain(&setting.logs.watched).cloned().collect();
        started.records = TargetRecords::of(&inputs.policies, &setting.logs, account);
        if !peer.reload.is_empty() || peer.change.is_some() {
            started.reload = Some(Reload::new(peer.clone(), program.clone(), started.dir.clone(), inputs.clone()));
        }
        let run_here = |plan: &LoadPlan| Ok(engine::run(plan, &mut |_| {})?);
        if let Err(error) = probe(scenario, row, &started.destination, pinning, run_here) {
            return Err(failure(error.to_string(), configuration));
        }
        started.configuration = Some(configuration);
        Ok(started)
    }

    fn of(
        peer: &PeerDefinition,
        child: Option<Child>,
        dir: PathBuf,
        destination: LoadDestination,
        pinning: &Pinning,
    ) -> Started {
        Started {
            peer: peer.clone(),
            child,
            dir,
            destination,
            pinning: pinning.clone(),
            beside: Vec::new(),
            records: None,
            reload: None,
            configuration: None,
            fresh_bytes: None,
        }
    }

    /// One run. The outer error is a failure of the lab, the inner one a failure of the target.
    pub fn measure(
        &mut self,
        task: RunTask<'_>,
        backend: &mut RunningBackends,
        stop: &Arc<AtomicBool>,
    ) -> Result<Result<MeasuredRun, ProcessEnded>, RunError> {
        let RunTask { scenario, row, level, repeat, order, seed, more, tell } = task;
        let watch = RecordWatch { stop, tell };
        let plan = plan::load(scenario, row, level, &self.destination, &self.pinning, seed);
        let pids: Vec<u32> = self.child.as_ref().map(Child::tree).unwrap_or_default();
        let interruptions = plan.spins().then(|| Interruptions::watch(plan.cpus.first().copied(), WATCH));
        let records_before = self.records.as_ref().map(|records| records.settled(&watch)).transpose()?;
        let (log_start, start) = (self.log().len(), LoadStart::default());
        let rss_before_bytes = (!pids.is_empty()).then(|| *self.fresh_bytes.get_or_insert_with(|| rss_bytes(&pids)));
        let measured = Duration::from_secs_f64(scenario.method.measured_s / f64::from(scenario.method.slices));
        let interval = (measured / 20).clamp(Duration::from_millis(100), Duration::from_secs(1));
        let warm_up = Duration::from_millis(plan.warm_up_ms);
        let started_at = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string();
        let sampler = ProcessSampler::start(self.watched(backend), &start, warm_up, interval, measured);
        let more = more.start(&pids, &start, (warm_up, measured), &self.dir);
        let load = self.load(&plan, (scenario, row), backend, (&start, stop));
        // Read after the load: some targets raise their own limit only after they listen.
        let target_files = open_files_limit(&if pids.is_empty() { backend.pids() } else { pids.clone() });
        let (processes, host) = sampler.finish();
        let LoadedRow { mut load, route_changes, fan_out, new_clients } = load?;
        let counted = self.records.as_ref().zip(records_before);
        let records = counted.map(|(records, before)| records.count(before, &load, &watch)).transpose()?;
        if stop.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(RunError::Interrupted);
        }
        leave_out_details(&mut load, row);
        if let Some(ended) = self.failed(row, &host) {
            return Ok(Err(ended));
        }
        let (instructions, stacks) = more.finish();
        Ok(Ok(MeasuredRun {
            repeat,
            order,
            started_at,
            generator_cpus: self.pinning.generator.clone(),
            generators: Vec::new(),
            plan: without_paths(plan),
            load,
            slices: Vec::new(),
            processes,
            host,
            interruptions,
            target_errors: target_log::errors(&self.log(), log_start, &self.peer),
            instructions,
            records,
            route_changes,
            fan_out,
            new_clients,
            rss_before_bytes,
            target_files,
            rss_after_bytes: None,
            memory_after: None,
            stacks,
        }))
    }

    /// Why the target has ended, if it should run.
    fn failed(&mut self, row: &ScenarioRow, host: &[HostSample]) -> Option<ProcessEnded> {
        let drains = row.events.iter().any(|event| event.action == EventAction::DrainTarget);
        let ended = self.child.as_mut().and_then(Child::ended).filter(|_| !drains)?;
        let out_of_memory = host.last().is_some_and(|sample| sample.oom_kills > 0);
        Some(ProcessEnded { out_of_memory, ..ended })
    }

    /// Runs the load of a row, and meanwhile its events and what is beside it.
    fn load(
        &self,
        plan: &LoadPlan,
        (scenario, row): (&Scenario, &ScenarioRow),
        backend: &mut RunningBackends,
        (start, stop): (&LoadStart, &Arc<AtomicBool>),
    ) -> Result<LoadedRow, RunError> {
        let start_beside = |plan: Option<LoadPlan>, gives_way: bool| {
            let started = plan.map(|plan| LoadBeside::start(plan, gives_way, stop)).transpose();
            started.inspect_err(|_| start.load_ended())
        };
        let fan_out = plan::fan_out(scenario, row, &self.destination, &self.pinning, plan.seed);
        let fan_out = start_beside(fan_out, false)?;
        let new_clients = plan::new_clients(scenario, row, &self.destination, &self.pinning, plan.seed);
        let new_clients = start_beside(new_clients, true)?;
        let target = self.child.as_ref().map(Child::pid);
        let warm_up = Duration::from_millis(plan.warm_up_ms);
        let measured = Duration::from_secs_f64(scenario.method.measured_s);
        let (load, changes) = thread::scope(|scope| {
            let reload = self.reload.as_ref();
            let changes = row.route_changes_per_s.zip(reload).zip(target).map(|((per_s, reload), pid)| {
                scope.spawn(move || {
                    let begin = start.wait()? + warm_up;
                    Some(route_changes::make(reload, pid, per_s, begin, measured))
                })
            });
            if !row.events.is_empty() {
                scope.spawn(move || {
                    if let Some(at) = start.wait() {
                        events::play(&row.events, at + warm_up, backend, target, reload);
                    }
                });
            }
            let load = match scenario.load.processes {
                1 => engine::run_signalled(plan, stop, start, &mut |_| {}).map_err(LoadError::from),
                processes => generators::run(plan, processes as usize, stop, start),
            };
            start.load_ended();
            (load, changes.and_then(|thread| thread.join().expect("it reports every problem")))
        });
        let load = load.map_err(LoadError::of(&row.name))?;
        let fan_out = fan_out.map(LoadBeside::deliveries).transpose()?;
        let new_clients = new_clients.map(LoadBeside::new_clients).transpose()?;
        Ok(LoadedRow { load, route_changes: changes, fan_out, new_clients })
    }

    /// Sends this number of requests of a row without measuring.
    pub fn load_count(
        &self,
        scenario: &Scenario,
        row: &ScenarioRow,
        level: LoadLevel,
        count: u64,
    ) -> Result<(), RunError> {
        let whole = plan::load(scenario, row, level, &self.destination, &self.pinning, 0);
        let plan = LoadPlan {
            pacing: engine::Pacing::default(),
            stop: StopCondition::after_count(count),
            warm_up_ms: 0,
            timeouts: engine::LoadTimeouts { response_ms: 60_000, ..whole.timeouts },
            ..whole
        };
        let named = LoadError::of(&row.name);
        let result = engine::run(&plan, &mut |_| {}).map_err(|error| named(error.into()))?;
        match result.total.completed {
            answered if answered == count => Ok(()),
            answered => Err(named(LoadError::Unanswered { answered, sent: count })),
        }
    }

    /// Stops the target and returns its complete output.
    pub fn end(mut self, limit: Duration) -> String {
        self.child.take().map_or(String::new(), |child| child.end(limit))
    }

    /// Resident bytes of the target, `SETTLE` after a load, and what they are.
    pub fn settled_memory(&self) -> Option<(u64, Option<MemoryKinds>)> {
        let child = self.child.as_ref()?;
        thread::sleep(SETTLE);
        let pids = child.tree();
        Some((rss_bytes(&pids), memory_kinds(&pids)))
    }

    /// The processes whose time belongs to the measurement.
    fn watched(&self, backend: &RunningBackends) -> Vec<WatchedProcess> {
        let of_target = |child: &Child| WatchedProcess {
            role: ProcessRole::Target,
            name: self.peer.name.clone(),
            cpus: self.pinning.target.clone(),
            root: child.pid(),
            workers: self.peer.worker_threads.clone(),
        };
        let target = self.child.as_ref().map(of_target);
        target.into_iter().chain([backend.watched()]).chain(self.beside.iter().cloned()).collect()
    }

    /// The target's log so far.
    fn log(&self) -> String {
        self.child.as_ref().map(|child| target_log::text(child, &self.peer, &self.dir)).unwrap_or_default()
    }
}

impl Setting<'_> {
    pub(super) fn inputs(
        &self,
        backend: &RunningBackends,
        dir: &Path,
        port: u16,
        connections: u32,
    ) -> Result<Inputs, SetupError> {
        let Setting { place, scenario, row, workers, .. } = self;
        let (mut routes, consumers) = credentials(row.routes, row.consumers);
        if row.endpoints > 0 {
            give_endpoints(&mut routes, row.endpoints, &backend.endpoints);
        }
        let first = backend.endpoints.first().map_or(String::new(), |one| format!("{}:{}", one.host, one.port));
        let scheme = if backend.tls { "https" } else { "http" };
        let mut placeholders: Vec<(&str, Value)> = self.logs.placeholders();
        placeholders.extend(self.services.placeholders.iter().map(|(name, value)| (name.as_str(), value.clone())));
        placeholders.extend([("{dir}", dir.display().to_string().into()), ("{backend}", first.into())]);
        Ok(Inputs {
            dir: dir.display().to_string(),
            host: Ipv4Addr::LOCALHOST.to_string(),
            port,
            admin_port: free_port(Ipv4Addr::LOCALHOST)?,
            workers: *workers,
            open_files: place.open_files,
            upstream_connections: connections.max(512),
            hosts: backend.endpoints.iter().map(|one| format!("{scheme}://{}:{}", one.host, one.port)).collect(),
            backends: backend.endpoints.clone(),
            backend_tls: backend.tls,
            tls: scenario.tls(row).then(|| place.certificate.clone()),
            backend_http2: scenario.backend(row).http2,
            http2: matches!(row.speak, Speak::Http2 { .. }),
            http3: matches!(row.speak, Speak::Http3 { .. }),
            websocket: matches!(row.speak, Speak::WebSocket { .. }),
            sse: matches!(row.speak, Speak::Sse { .. }),
            websub: matches!(row.speak, Speak::WebSub { .. }),
            fan_out: row.fan_out.is_some(),
            streams: row.needs.iter().any(|need| need == "streams"),
            installed: String::new(),
            hub: row.fan_out.as_ref().map(|fan_out| fan_out.hub.clone()).unwrap_or_default(),
            routes,
            own_upstreams: row.endpoints > 0,
            changed: String::new(),
            changed_timeout_s: 0,
            change_number: 0,
            consumers,
            policies: row.policies_with(&placeholders),
            upstream: self.variant.upstream.clone(),
            node: self.variant.node.clone(),
            certificate: None,
            body: String::new(),
        })
    }
}

/// Counts instructions during the measured part of a run, on a thread of its own.
fn count_later(
    pids: Vec<u32>,
    start: LoadStart,
    warm_up: Duration,
    measured: Duration,
) -> thread::JoinHandle<Option<Instructions>> {
    thread::spawn(move || {
        let begin = start.wait()? + warm_up;
        thread::sleep(begin.saturating_duration_since(Instant::now()));
        Counting::start(&pids, measured.as_secs_f64()).and_then(Counting::finish)
    })
}

/// A plan as it stands in a result, which must not contain this machine's paths.
pub(super) fn without_paths(mut plan: LoadPlan) -> LoadPlan {
    plan.tls.ca_file = plan.tls.ca_file.as_deref().and_then(Path::file_name).map(PathBuf::from);
    plan
}

/// Removes details that would make up most of the result file and can be derived from the rest.
pub(super) fn leave_out_details(load: &mut LoadResult, row: &ScenarioRow) {
    // A hundred routes are one workload, so their separate tallies are removed; kinds of requests are kept apart.
    if row.requests.is_empty() {
        load.requests.clear();
        if let Some(flow) = &mut load.flow {
            flow.join_requests(&row.request.path);
        }
    }
    // Intervals keep their latency; their other histograms are contained in the totals.
    for interval in &mut load.intervals {
        interval.tally.service_time.clear();
        interval.tally.lag.clear();
        interval.tally.first_byte = None;
        interval.tally.refused.clear();
    }
}

/// Gives each route an upstream of its own: the backends for requested routes, and otherwise `endpoints` addresses on which
/// nothing listens.
fn give_endpoints(routes: &mut [TemplateRoute], endpoints: u32, backends: &[BackendAddress]) {
    for (index, route) in routes.iter_mut().enumerate() {
        let address = |number: usize| BackendAddress {
            host: format!("127.{}.{}.{}", 1 + (number >> 16), number >> 8 & 255, number & 255),
            port: 9,
        };
        let first = index * endpoints as usize;
        route.endpoints = (first..first + endpoints as usize).map(address).collect();
    }
    for index in plan::asked_routes(routes.len()) {
        routes[index].endpoints = backends.to_vec();
    }
}
