//! Runs a scenario: starts the processes, applies the load, samples, and assembles the result.

pub mod agent;
mod backend;
mod beside;
mod cell;
mod configure;
mod counters;
mod credentials;
mod error;
mod events;
mod generators;
mod instructions;
mod log_store;
mod machine_error;
mod machines;
mod not_started;
mod place;
pub mod plan;
mod probe;
mod profile;
mod records;
mod reload;
mod route_changes;
mod search;
mod services;
mod target_log;
mod turns;

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
};

use indicatif::{ProgressBar, ProgressStyle};
use jiff::Timestamp;

use self::{
    backend::{BackendTask, Backends, RunningBackends},
    cell::{MoreSamples, RunTask, Setting, Started},
    log_store::LogStores,
    machines::Fleet,
    not_started::StartFailureKind,
    place::RunDirectory,
    services::BesideServices,
    turns::StartedTarget,
};
pub use self::{
    counters::available as counters_available,
    error::{AskError, AskProblem, LoadError, NoRate, ReloadError, RunError, SetupError, StoreNotFound},
    machine_error::{AgentKeyError, FleetError, LinkError, MachinesRefusal, NetworkError},
    machines::MachineOptions,
    place::usable_cpus,
};
use crate::{
    analysis::knee,
    manifest::{Cpu, LogicalCpu, Manifest, Pinning},
    result::{
        Cell, CellOutcome, InstructionCount, LoadLevel, MeasuredRun, ResultFile, SCHEMA, Search, SearchAttempt,
        StackProfile, TargetRecord,
    },
    scenario::{BackendKind, RateOf, Scenario, ScenarioRow, Speak},
    target::{self, InstallError, Installed, PeerDefinition, PeerError},
};

/// The user's choices besides the scenario.
#[derive(Clone, Debug)]
pub struct RunOptions {
    pub quick: bool,
    /// Programs of peers that the command line gives by path.
    pub programs: BTreeMap<String, PathBuf>,
    /// The directory of installed peers.
    pub cache: PathBuf,
    pub seed: u64,
    /// Also count user instructions under valgrind.
    pub valgrind: bool,
    /// Also sample where targets spend their time, by perf.
    pub flame_graph: bool,
    pub command: Vec<String>,
    /// Where parts of the run are, if not on this machine.
    pub machines: MachineOptions,
    /// Set when the user interrupts: running processes are stopped, and the result has what was measured until then.
    pub stop: Arc<AtomicBool>,
}

/// Runs the whole scenario. Failures of targets are recorded in the result. A failure of the lab itself, or an interruption, ends
/// the run with what was measured until then, and the result names the reason; it is an `Err` if nothing was measured.
pub fn run(scenario: Scenario, options: &RunOptions) -> Result<ResultFile, RunError> {
    if options.flame_graph && !profile::is_available() {
        return Err(RunError::NoPerf);
    }
    let started_at = Timestamp::now();
    let place = RunDirectory::new(options)?;
    let Prepared { fleet, peers, placement, manifest, backends, backend_records } =
        Prepared::of(&scenario, options, &place)?;
    let record = |name: &String| target_record(name, &peers[name]);
    let mut records: Vec<TargetRecord> = scenario.targets.iter().map(record).collect();
    let mut lab = Lab {
        scenario: &scenario,
        options,
        place: &place,
        fleet: fleet.clone(),
        backend_records,
        backends,
        stores: LogStores::find(options),
        services: BesideServices::find(&scenario.rows, options),
        placement,
        counters: manifest.counters,
        cells: Vec::new(),
        searches: Vec::new(),
        counts: Vec::new(),
        order: 0,
        bar: progress(&scenario),
    };
    let incomplete = lab.everything(&peers, &mut records).err();
    lab.bar.finish_and_clear();
    let measured = !lab.counts.is_empty() || lab.cells.iter().any(|cell| !cell.runs().is_empty());
    let incomplete = match incomplete {
        Some(error) if !measured => return Err(error),
        incomplete => incomplete.map(|error| error.to_string()),
    };
    lab.backend_records.extend(lab.stores.record());
    lab.backend_records.extend(lab.services.records());
    let mut cells = lab.cells;
    in_scenario_order(&scenario, &mut cells);
    Ok(ResultFile {
        schema: SCHEMA.to_owned(),
        id: format!("{}-{}", scenario.name, started_at.strftime("%Y%m%dT%H%M%SZ")),
        started_at: started_at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        finished_at: Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        command: options.command.clone(),
        quick: options.quick,
        seed: options.seed,
        manifest,
        machines: fleet.map(|fleet| fleet.records()).unwrap_or_default(),
        targets: records,
        backends: lab.backend_records,
        knees: knee::knees(&scenario, &cells),
        profiles: profiles(&cells),
        cells,
        incomplete,
        searches: lab.searches,
        counts: lab.counts,
        scenario: scenario.clone(),
    })
}

/// The samples of the slowest run of each cell that has any, or why none has.
fn profiles(cells: &[Cell]) -> Vec<StackProfile> {
    let of_cell = |cell: &Cell| {
        let slowest = |wanted: &dyn Fn(&MeasuredRun) -> bool| {
            let runs = cell.runs().iter().filter(|run| wanted(run));
            runs.min_by(|one, other| one.throughput().total_cmp(&other.throughput()))
        };
        let sampled = slowest(&|run| !run.stacks.stacks.is_empty());
        let slowest = sampled.or_else(|| slowest(&|run| run.stacks.missing.is_some()))?;
        Some(StackProfile {
            row: cell.row.clone(),
            target: cell.target.clone(),
            level: cell.level,
            repeat: slowest.repeat,
            rps: slowest.throughput(),
            stacks: slowest.stacks.stacks.counts().clone(),
            missing: slowest.stacks.missing.clone().filter(|_| slowest.stacks.stacks.is_empty()),
        })
    };
    cells.iter().filter_map(of_cell).collect()
}

/// What a run needs before its first row.
struct Prepared {
    /// Other machines, if the run uses them.
    fleet: Option<Arc<Fleet>>,
    peers: BTreeMap<String, Found>,
    placement: Placement,
    manifest: Manifest,
    backends: Backends,
    backend_records: Vec<TargetRecord>,
}

impl Prepared {
    fn of(scenario: &Scenario, options: &RunOptions, place: &RunDirectory) -> Result<Prepared, RunError> {
        check_versions(scenario, options)?;
        let fleet = match scenario.network.is_none() && options.machines.is_empty() {
            true => None,
            false => Some(fleet(scenario, options, place)?),
        };
        let peers = match &fleet {
            None => find_peers(scenario, options)?,
            Some(fleet) => fleet.find_peers(scenario)?,
        };
        let (backends, backend_records) = match &fleet {
            None => {
                let backends = Backends::provide(scenario, options)?;
                let records = backends.records();
                (backends, records)
            }
            Some(fleet) => (Backends::of(BackendKind::Builtin, None), fleet.find_backends(scenario)?),
        };
        let direct = peers.values().all(|(peer, _)| peer.direct);
        let cpus = place::usable_cpus(&Cpu::read());
        let placement = Placement { cpus, direct, alone: scenario.backend.alone };
        let workers = scenario.workers.iter().copied().max().unwrap_or(1);
        let manifest = match &fleet {
            None => Manifest { counters: counters_available(), ..Manifest::read(placement.pinning(workers)) },
            Some(fleet) => fleet.manifest(if direct { 0 } else { workers }, scenario.backend.alone),
        };
        Ok(Prepared { fleet, peers, placement, manifest, backends, backend_records })
    }
}

/// The machines of the command line, at the beginning of a run.
fn fleet(scenario: &Scenario, options: &RunOptions, place: &RunDirectory) -> Result<Arc<Fleet>, RunError> {
    if let Some(refusal) = MachinesRefusal::of(scenario, options) {
        return Err(refusal.into());
    }
    let fleet = match &scenario.network {
        None => Fleet::connect(options)?,
        Some(network) => Fleet::behind(network, options)?,
    };
    fleet.begin(&place.certificate)?;
    Ok(Arc::new(fleet))
}

/// The program of each version that a target names has to be given; on another machine, by its agent.
fn check_versions(scenario: &Scenario, options: &RunOptions) -> Result<(), SetupError> {
    let mut programs = scenario.targets.iter().map(|name| scenario.variant(name).peer);
    let is_missing = |program: &String| target::is_version(program) && !options.programs.contains_key(program);
    match programs.find(is_missing) {
        Some(program) if options.machines.gateway.is_none() => Err(PeerError::NoVersion { program }.into()),
        _ => Ok(()),
    }
}

/// The peer of every target, with its installation.
fn find_peers(scenario: &Scenario, options: &RunOptions) -> Result<BTreeMap<String, Found>, SetupError> {
    let find = |name: &String| {
        let variant = scenario.variant(name);
        let peer = target::read(&variant.peer)?;
        let given = options.programs.get(&variant.peer).map(PathBuf::as_path);
        let installed = if peer.direct { Ok(None) } else { target::locate(&peer, given, &options.cache).map(Some) };
        Ok((name.clone(), (peer, installed)))
    };
    scenario.targets.iter().map(find).collect()
}

fn target_record(name: &str, (peer, installed): &Found) -> TargetRecord {
    TargetRecord {
        name: name.to_owned(),
        version: match installed {
            Ok(Some(installed)) => installed.version.clone(),
            _ => None,
        },
        instead: peer.instead.clone(),
        configurations: Vec::new(),
    }
}

/// A peer and its installation, or the reason why it is not installed.
pub type Found = (PeerDefinition, Result<Option<Installed>, InstallError>);

/// How the processes of a run are placed on processors.
struct Placement {
    cpus: Vec<LogicalCpu>,
    /// There is no target process: the generator sends requests to the backend directly.
    direct: bool,
    /// The backend has processors that the generator does not use.
    alone: bool,
}

impl Placement {
    fn pinning(&self, workers: u32) -> Pinning {
        plan::pinning(&self.cpus, if self.direct { 0 } else { workers }, self.alone)
    }

    /// Processors for the lab's own threads: those of the backend that the generator does not use; all if there are none.
    fn own(&self, pinning: &Pinning) -> Vec<u32> {
        let beside: Vec<u32> = pinning.backend.iter().copied().filter(|cpu| !pinning.generator.contains(cpu)).collect();
        if beside.is_empty() { self.cpus.iter().map(|cpu| cpu.id).collect() } else { beside }
    }
}

/// The state shared by all cells of a run.
pub struct Lab<'a> {
    pub scenario: &'a Scenario,
    options: &'a RunOptions,
    place: &'a RunDirectory,
    /// Other machines, if the run uses them.
    fleet: Option<Arc<Fleet>>,
    placement: Placement,
    backends: Backends,
    stores: LogStores,
    services: BesideServices,
    backend_records: Vec<TargetRecord>,
    counters: bool,
    cells: Vec<Cell>,
    searches: Vec<Search>,
    counts: Vec<InstructionCount>,
    order: u32,
    bar: ProgressBar,
}

/// Why a rate of a search was not measured.
pub enum AttemptFailure {
    /// The target failed; the run goes on.
    Target(String),
    /// The lab failed or was interrupted, which ends the run.
    Lab(RunError),
}

impl AttemptFailure {
    fn setup(error: SetupError) -> AttemptFailure {
        AttemptFailure::Lab(error.into())
    }
}

impl Lab<'_> {
    /// All repeats, searches and counts. What was measured before an error stays.
    fn everything(&mut self, peers: &BTreeMap<String, Found>, records: &mut [TargetRecord]) -> Result<(), RunError> {
        for repeat in 0..self.scenario.method.repeats {
            for groups in plan::order(self.scenario, repeat, self.options.seed) {
                self.row(repeat, &groups, peers, records)?;
            }
        }
        search::all(self, peers, records)?;
        if self.options.valgrind { self.count_instructions(peers, records) } else { Ok(()) }
    }

    /// One row in one repeat: starts the backend once, then one target after the other for all its levels, or all targets
    /// together when they take turns.
    fn row(
        &mut self,
        repeat: u32,
        groups: &[plan::CellGroup],
        peers: &BTreeMap<String, Found>,
        records: &mut [TargetRecord],
    ) -> Result<(), RunError> {
        if let Some(fleet) = self.fleet.clone() {
            return self.row_on_machines(&fleet, (repeat, groups), peers, records);
        }
        let Some(first) = groups.first() else { return Ok(()) };
        let scenario = self.scenario;
        let row = scenario.row(&first.row).expect("groups are made from the scenario's rows");
        let workers = first.levels.first().map_or(1, |level| level.workers);
        let pinning = self.placement.pinning(workers);
        place::keep_to(&self.placement.own(&pinning));
        let mut backend = None;
        let together = if scenario.method.slices > 1 { groups.len() } else { 1 };
        for groups in groups.chunks(together) {
            let mut up = Vec::new();
            for group in groups {
                let (peer, installed) = &peers[&group.target];
                self.bar.set_message(format!("{} · {} · repeat {}", group.row, group.target, repeat + 1));
                let has_settings = scenario.variant(&group.target).has_settings();
                let asked = scenario.row_for(&group.target, row);
                if let Some(reason) = self.unsupported(&asked, peer, installed, has_settings) {
                    self.fail(group, StartFailureKind::Unsupported, &reason);
                    continue;
                }
                if backend.is_none() {
                    backend = Some(self.backend(row, workers, &pinning)?);
                }
                let backend = backend.as_ref().expect("it was started above");
                up.extend(self.start(group, row, &peers[&group.target], (workers, &pinning), backend, records)?);
            }
            if let Some(backend) = &mut backend {
                for level in &groups[0].levels {
                    self.level(&mut up, *level, repeat, backend)?;
                }
            }
        }
        Ok(())
    }

    /// Starts a target for a row; after a failure, records it and returns nothing.
    fn start<'g>(
        &mut self,
        group: &'g plan::CellGroup,
        row: &'g ScenarioRow,
        found: &Found,
        (workers, pinning): (u32, &Pinning),
        backend: &RunningBackends,
        records: &mut [TargetRecord],
    ) -> Result<Option<StartedTarget<'g>>, SetupError> {
        let scenario = self.scenario;
        let highest = group.levels.iter().map(|level| level.connections).max().unwrap_or(1);
        let row = scenario.row_for(&group.target, row);
        let variant = scenario.variant(&group.target);
        let logs = self.stores.provide(&row, self.place, &pinning.backend)?;
        let services = self.services.provide(&row, self.place, &pinning.backend)?;
        let (place, under) = (self.place, Vec::new());
        let setting = Setting { place, scenario, row: &row, workers, pinning, variant, under, logs, services };
        match Started::start(&setting, found, backend, highest) {
            Ok(mut started) => {
                record(records, &group.target, started.configuration.take());
                Ok(Some(StartedTarget::new(group, row, started)))
            }
            Err(failure) => {
                record(records, &group.target, failure.configuration);
                self.fail(group, failure.kind, &failure.reason);
                Ok(None)
            }
        }
    }

    /// Records that no level of a target will be measured in this repeat.
    fn fail(&mut self, group: &plan::CellGroup, kind: StartFailureKind, reason: &str) {
        for level in &group.levels {
            self.cell(group, *level, |cell| cell.outcome = kind.outcome(reason.to_owned(), cell));
        }
        self.bar.inc(group.levels.len() as u64);
    }

    /// Starts the backends of a row.
    fn backend(&mut self, row: &ScenarioRow, workers: u32, pinning: &Pinning) -> Result<RunningBackends, SetupError> {
        let backend = self.scenario.backend(row);
        let task = BackendTask {
            settings: backend,
            row: &row.name,
            one_process_each: !row.events.is_empty(),
            host: Ipv4Addr::LOCALHOST,
            started: &|_| {},
        };
        let mut running = RunningBackends::start(self.place, &self.backends, &task, workers, pinning)?;
        if let Some(name) = backend.kind.folder() {
            record(&mut self.backend_records, name, running.configuration.take());
        }
        Ok(running)
    }

    /// The rate of a row whose rate depends on another row, in this repeat.
    fn rate_of(&self, of: &RateOf, repeat: u32) -> Result<f64, NoRate> {
        let baseline = &self.scenario.baseline;
        let cells = self.cells.iter().filter(|cell| cell.row == of.row && cell.target == *baseline);
        let highest = cells.max_by_key(|cell| cell.level.connections);
        let run = highest.and_then(|cell| cell.runs().iter().find(|run| run.repeat == repeat));
        let rate = run.map(MeasuredRun::throughput).filter(|rate| *rate > 0.0);
        let rate = rate.ok_or_else(|| NoRate { row: of.row.clone(), baseline: baseline.clone() })?;
        Ok(rate * of.times)
    }

    /// Median throughput of a target in a row at a level, when it was measured.
    pub fn median_rate(&self, row: &str, target: &str, at: LoadLevel) -> Option<f64> {
        let mut cells = self.cells.iter().filter(|cell| cell.row == row && cell.target == target);
        let cell = cells.find(|cell| cell.level == at)?;
        let rates: Vec<f64> = cell.runs().iter().map(MeasuredRun::throughput).collect();
        crate::stats::median(&rates).filter(|rate| *rate > 0.0)
    }

    /// Starts a target for a row and lets `body` try rates on it, each in a run of its own.
    pub fn search<T>(
        &mut self,
        row: &ScenarioRow,
        target: &str,
        at: LoadLevel,
        found: &Found,
        records: &mut [TargetRecord],
        body: impl FnOnce(&mut dyn FnMut(f64) -> Result<SearchAttempt, AttemptFailure>) -> Result<T, AttemptFailure>,
    ) -> Result<T, AttemptFailure> {
        let LoadLevel { connections, workers, .. } = at;
        let pinning = self.placement.pinning(workers);
        place::keep_to(&self.placement.own(&pinning));
        let mut backend = self.backend(row, workers, &pinning).map_err(AttemptFailure::setup)?;
        let row = &*self.scenario.row_for(target, row);
        let variant = self.scenario.variant(target);
        let setting = Setting {
            place: self.place,
            scenario: self.scenario,
            row,
            workers,
            pinning: &pinning,
            variant,
            under: Vec::new(),
            logs: self.stores.provide(row, self.place, &pinning.backend).map_err(AttemptFailure::setup)?,
            services: self.services.provide(row, self.place, &pinning.backend).map_err(AttemptFailure::setup)?,
        };
        let started = Started::start(&setting, found, &backend, connections);
        let mut started = started.map_err(|failure| AttemptFailure::Target(failure.reason))?;
        record(records, target, started.configuration.take());
        body(&mut |rate| {
            self.bar.set_message(format!("{} · {target} · search at {rate:.0}/s", row.name));
            let level = LoadLevel { rate: Some(rate), ..at };
            let (order, seed) = (self.order, self.options.seed);
            self.order += 1;
            let tell = |words: &str| self.bar.suspend(|| eprintln!("weir bench: {words}"));
            let (scenario, tell) = (self.scenario, &tell);
            let task = RunTask { scenario, row, level, repeat: 0, order, seed, more: MoreSamples::default(), tell };
            let run = started.measure(task, &mut backend, &self.options.stop).map_err(AttemptFailure::Lab)?;
            let run = run.map_err(|ended| AttemptFailure::Target(ended.to_string()))?;
            Ok(SearchAttempt {
                rate,
                achieved: run.throughput(),
                mean_ms: run.mean_latency_ms(),
                p99_ms: run.latency_ms(99.0),
                error_share: run.error_share(),
                sent_within_us: run.sent_within_us(),
                noticed_within_us: run.noticed_within_us(),
                kept: false,
            })
        })
    }

    /// Why a target cannot run a row, as far as that is known without starting it.
    fn unsupported(
        &self,
        row: &ScenarioRow,
        peer: &PeerDefinition,
        installed: &Result<Option<Installed>, InstallError>,
        settings: bool,
    ) -> Option<String> {
        let mut needs: Vec<&str> = row.needs.iter().map(String::as_str).collect();
        if row.routes > 1 {
            needs.push("routes");
        }
        if settings {
            needs.push("upstream-settings");
        }
        if row.consumers > 0 && !peer.direct {
            needs.push("consumers");
        }
        if self.scenario.tls(row) {
            needs.push("tls");
        }
        let backend = self.scenario.backend(row);
        if backend.tls && !peer.direct {
            needs.push("upstream-tls");
        }
        if backend.http2 && !peer.direct {
            needs.push("upstream-http2");
        }
        match row.speak {
            Speak::Http2 { .. } => needs.push("http2"),
            Speak::Http3 { .. } => needs.push("http3"),
            _ => {}
        }
        let lacks = peer.lacks(row.policies.keys(), &needs);
        lacks
            .or_else(|| installed.as_ref().err().map(ToString::to_string))
            .or_else(|| self.stores.missing(row))
            .or_else(|| self.services.missing(row))
    }

    fn cell(&mut self, group: &plan::CellGroup, level: LoadLevel, change: impl FnOnce(&mut Cell)) {
        let position = self
            .cells
            .iter()
            .position(|cell| cell.row == group.row && cell.target == group.target && cell.level == level);
        let index = position.unwrap_or_else(|| {
            self.cells.push(Cell {
                row: group.row.clone(),
                target: group.target.clone(),
                level,
                outcome: CellOutcome::Measured { runs: Vec::new() },
            });
            self.cells.len() - 1
        });
        change(&mut self.cells[index]);
    }
}

impl Cell {
    fn add(&mut self, run: MeasuredRun) {
        match &mut self.outcome {
            CellOutcome::Measured { runs } | CellOutcome::Failed { runs, .. } => runs.push(run),
            CellOutcome::Unsupported { .. } => {}
        }
    }

    fn fail(&mut self, reason: String) {
        let runs = self.runs().to_vec();
        self.outcome = CellOutcome::Failed { reason, runs };
    }
}

/// Keeps the configuration of a row at its first start: in later repeats only ports differ.
fn record(records: &mut [TargetRecord], target: &str, configuration: Option<crate::result::Configuration>) {
    let record = records.iter_mut().find(|record| record.name == target);
    if let (Some(record), Some(configuration)) = (record, configuration)
        && record.configurations.iter().all(|have| have.row != configuration.row)
    {
        record.configurations.push(configuration);
    }
}

fn in_scenario_order(scenario: &Scenario, cells: &mut [Cell]) {
    let row = |cell: &Cell| scenario.rows.iter().position(|row| row.name == cell.row);
    let target = |cell: &Cell| scenario.targets.iter().position(|target| *target == cell.target);
    cells.sort_by_key(|cell| (row(cell), cell.level.workers, cell.level.connections, target(cell)));
}

fn progress(scenario: &Scenario) -> ProgressBar {
    let cells: usize = scenario
        .rows
        .iter()
        .map(|row| scenario.levels(row).len() * scenario.workers.len() * scenario.targets.len())
        .sum();
    let bar = ProgressBar::new(cells as u64 * u64::from(scenario.method.repeats));
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed_precise} (~{eta} left) {msg}");
    bar.set_style(style.expect("the template is valid"));
    bar
}
