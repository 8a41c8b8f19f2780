//! A row of a scenario on several machines.

use std::{net::SocketAddr, path::Path, thread, time::Duration};

use super::{
    fleet::{Fleet, FleetPinning},
    measure::{SampleTimes, SpreadError, SpreadLoad, measure, run_once},
    refusal::refusal,
    shares::shares,
};
use crate::{
    engine::LoadPlan,
    manifest::Pinning,
    result::{Configuration, LoadLevel, MeasuredRun},
    run::{
        Found, Lab, LoadError, RunError,
        agent::{
            AgentAnswer, AgentLink, AgentRequest, BackendOrder, RUN_DIRECTORY, TargetOrder, TargetState, portable,
        },
        backend::RunningBackends,
        cell::{Setting, leave_out_details, without_paths},
        machine_error::LinkError,
        not_started::StartFailureKind,
        plan::{self, CellGroup, LoadDestination},
        probe::probe,
        record,
    },
    scenario::ScenarioRow,
    target::{BackendAddress, NO_MEMORY},
};

/// Pause between the load and the second reading of memory.
const SETTLE: Duration = Duration::from_millis(200);

/// A target that an agent runs, or the backend alone.
struct SpreadTarget<'a> {
    fleet: &'a Fleet,
    row: &'a ScenarioRow,
    destination: LoadDestination,
    pinning: &'a FleetPinning,
    /// There is no process in front of the backend.
    is_direct: bool,
    fresh_bytes: Option<u64>,
}

/// Why a target did not start.
struct NotStarted {
    kind: StartFailureKind,
    reason: String,
}

impl Lab<'_> {
    /// One row in one repeat: the backend once, then one target after the other at all its levels.
    pub(in crate::run) fn row_on_machines(
        &mut self,
        fleet: &Fleet,
        (repeat, groups): (u32, &[CellGroup]),
        peers: &std::collections::BTreeMap<String, Found>,
        records: &mut [crate::result::TargetRecord],
    ) -> Result<(), RunError> {
        let Some(first) = groups.first() else { return Ok(()) };
        let scenario = self.scenario;
        let row = scenario.row(&first.row).expect("groups are made from the scenario's rows");
        let workers = first.levels.first().map_or(1, |level| level.workers);
        let target_workers = if self.placement.direct { 0 } else { workers };
        let pinning = fleet.pinning(target_workers, scenario.backend(row).alone);
        let mut backend = None;
        for group in groups {
            let found = &peers[&group.target];
            self.bar.set_message(format!("{} · {} · repeat {}", group.row, group.target, repeat + 1));
            let asked = scenario.row_for(&group.target, row);
            let has_settings = scenario.variant(&group.target).has_settings();
            let unsupported = self.unsupported(&asked, &found.0, &found.1, has_settings);
            if let Some(reason) = unsupported.or_else(|| refusal(&asked, fleet.generators())) {
                self.fail(group, StartFailureKind::Unsupported, &reason);
                continue;
            }
            if backend.is_none() {
                backend = Some(self.backend_on(fleet, row, workers, &pinning)?);
            }
            let backend = backend.as_ref().expect("it was started above");
            match self.start_on(fleet, group, (&asked, found), (workers, &pinning), backend, records)? {
                Ok(mut target) => self.levels_on(&mut target, group, repeat)?,
                Err(NotStarted { kind, reason }) => self.fail(group, kind, &reason),
            }
            fleet.gateway().order(AgentRequest::StopTarget)?;
        }
        Ok(())
    }

    fn backend_on(
        &mut self,
        fleet: &Fleet,
        row: &ScenarioRow,
        workers: u32,
        pinning: &FleetPinning,
    ) -> Result<RunningBackends, LinkError> {
        let settings = self.scenario.backend(row).clone();
        let (kind, tls, cpus) = (settings.kind, settings.tls, pinning.backend.clone());
        let link = fleet.backend();
        match link.call(AgentRequest::StartBackend(BackendOrder { settings, row: row.name.clone(), workers, cpus }))? {
            AgentAnswer::Backend { endpoints, configuration } => {
                if let Some(name) = kind.folder() {
                    record(&mut self.backend_records, name, configuration);
                }
                Ok(RunningBackends::elsewhere(endpoints, tls))
            }
            other => Err(link.unexpected(&other)),
        }
    }

    fn start_on<'a>(
        &self,
        fleet: &'a Fleet,
        group: &CellGroup,
        (row, (peer, _)): (&'a ScenarioRow, &Found),
        (workers, pinning): (u32, &'a FleetPinning),
        backend: &RunningBackends,
        records: &mut [crate::result::TargetRecord],
    ) -> Result<Result<SpreadTarget<'a>, NotStarted>, RunError> {
        let failed = |reason: String| NotStarted { kind: StartFailureKind::Failed, reason };
        let authority = |tls: bool| tls.then(|| Path::new(&self.place.certificate.cert_file).to_owned());
        let destination = match peer.direct {
            true => {
                let address = address_of(fleet.backend(), backend)?;
                LoadDestination { address, tls: backend.tls, authority: authority(backend.tls), events: None }
            }
            false => {
                let order = self.order_of(group, row, (workers, pinning), backend)?;
                let (port, configuration) = match ask_to_start(fleet.gateway(), order)? {
                    Ok(started) => started,
                    Err((not_started, configuration)) => {
                        record(records, &group.target, configuration);
                        return Ok(Err(not_started));
                    }
                };
                record(records, &group.target, Some(configuration));
                let tls = self.scenario.tls(row);
                LoadDestination {
                    address: SocketAddr::from((fleet.gateway_address(), port)),
                    tls,
                    authority: authority(tls),
                    events: peer.events.clone(),
                }
            }
        };
        let mut target = SpreadTarget { fleet, row, destination, pinning, is_direct: peer.direct, fresh_bytes: None };
        let verified = target.destination.authority.is_some();
        let mut lost = None;
        let run = |plan: &LoadPlan| {
            run_once(fleet.generator(0), &without_files(plan), verified).map_err(|error| {
                let words = error.to_string();
                if let SpreadError::Link(error @ LinkError::Lost { .. }) = error {
                    lost = Some(error);
                }
                LoadError::Machine(words)
            })
        };
        if let Err(error) = probe(self.scenario, row, &target.destination, &target.one_generator(), run) {
            // Without the generator the run ends; the target has not failed.
            return match lost {
                Some(lost) => Err(lost.into()),
                None => Ok(Err(failed(error.to_string()))),
            };
        }
        target.fresh_bytes = (!target.is_direct).then(|| target.state()).transpose()?.map(|state| state.rss_bytes);
        Ok(Ok(target))
    }

    fn order_of(
        &self,
        group: &CellGroup,
        row: &ScenarioRow,
        (workers, pinning): (u32, &FleetPinning),
        backend: &RunningBackends,
    ) -> Result<TargetOrder, RunError> {
        let highest = group.levels.iter().map(|level| level.connections).max().unwrap_or(1);
        let setting = Setting {
            place: self.place,
            scenario: self.scenario,
            row,
            workers,
            pinning: &pinning.of_gateway,
            variant: self.scenario.variant(&group.target),
            under: Vec::new(),
            logs: Default::default(),
            services: Default::default(),
        };
        let inputs = setting.inputs(backend, Path::new(RUN_DIRECTORY), 0, highest)?;
        Ok(TargetOrder {
            peer: setting.variant.peer.clone(),
            row: row.name.clone(),
            inputs,
            cpus: pinning.target.clone(),
        })
    }

    /// All levels of a started target. A target that ends has no further levels.
    fn levels_on(&mut self, target: &mut SpreadTarget<'_>, group: &CellGroup, repeat: u32) -> Result<(), RunError> {
        for (index, level) in group.levels.iter().enumerate() {
            let rate = match target.row.rate_of.as_ref().map(|rate_of| self.rate_of(rate_of, repeat)) {
                None => level.rate,
                Some(Ok(rate)) => Some(rate),
                Some(Err(no_rate)) => {
                    self.cell(group, *level, |cell| cell.fail(no_rate.to_string()));
                    self.bar.inc(1);
                    continue;
                }
            };
            let order = self.order;
            self.order += 1;
            let (run, lost) = self.run_on(target, LoadLevel { rate, ..*level }, repeat, order)?;
            if self.options.stop.load(std::sync::atomic::Ordering::Relaxed) {
                return Err(RunError::Interrupted);
            }
            let ended = if target.is_direct { None } else { target.state()?.ended };
            self.bar.inc(1);
            if let Some(mut reason) = ended {
                if run.host.last().is_some_and(|sample| sample.oom_kills > 0) {
                    reason.push_str(NO_MEMORY);
                }
                for level in &group.levels[index..] {
                    self.cell(group, *level, |cell| cell.fail(reason.clone()));
                }
                return Ok(());
            }
            self.cell(group, *level, |cell| cell.add(run));
            if let Some(lost) = lost {
                return Err(lost.into());
            }
        }
        Ok(())
    }

    /// One run, and why a generator was lost.
    fn run_on(
        &self,
        target: &SpreadTarget<'_>,
        level: LoadLevel,
        repeat: u32,
        order: u32,
    ) -> Result<(MeasuredRun, Option<LinkError>), RunError> {
        let SpreadTarget { fleet, row, destination, pinning, .. } = target;
        let seed = self.options.seed ^ u64::from(repeat);
        let plan = plan::load(self.scenario, row, level, destination, &target.one_generator(), seed);
        let times = SampleTimes {
            warm_up: Duration::from_millis(plan.warm_up_ms),
            interval: sample_interval(self.scenario.method.measured_s),
            length: Duration::from_secs_f64(self.scenario.method.measured_s),
        };
        let named = |error: SpreadError| match error {
            SpreadError::Link(error) => RunError::from(error),
            error => LoadError::of(&row.name)(LoadError::Machine(error.to_string())),
        };
        let bare = without_files(&plan);
        portable(&bare).map_err(|problem| LoadError::of(&row.name)(LoadError::Machine(problem)))?;
        if !target.is_direct {
            // What it has logged so far belongs to no run.
            target.state()?;
        }
        let shares = shares(&bare, &pinning.generators);
        let started_at = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string();
        let spread =
            measure(fleet, &shares, destination.authority.is_some(), times, &self.options.stop).map_err(named)?;
        let SpreadLoad { mut load, generators, processes, host, lost } = spread;
        let state = if target.is_direct { TargetState::default() } else { target.state()? };
        thread::sleep(SETTLE);
        let settled = if target.is_direct { None } else { Some(target.state()?) };
        leave_out_details(&mut load, row);
        let run = MeasuredRun {
            repeat,
            order,
            started_at,
            generator_cpus: generators.iter().flat_map(|share| share.cpus.clone()).collect(),
            generators,
            plan: without_paths(plan),
            load,
            slices: Vec::new(),
            processes,
            host,
            interruptions: None,
            target_errors: state.errors,
            instructions: None,
            records: None,
            route_changes: None,
            fan_out: None,
            new_clients: None,
            rss_before_bytes: target.fresh_bytes,
            target_files: state.open_files,
            rss_after_bytes: settled.as_ref().map(|state| state.rss_bytes),
            memory_after: settled.and_then(|state| state.memory),
            stacks: Default::default(),
        };
        Ok((run, lost))
    }
}

impl SpreadTarget<'_> {
    /// The processors of the first generator, as those of a machine on which it is alone.
    fn one_generator(&self) -> Pinning {
        let generator = self.pinning.generators.first().map(|place| place.cpus.clone()).unwrap_or_default();
        Pinning { generator, ..Pinning::default() }
    }

    fn state(&self) -> Result<TargetState, LinkError> {
        let link = self.fleet.gateway();
        match link.call(AgentRequest::TargetState)? {
            AgentAnswer::TargetState(state) => Ok(state),
            other => Err(link.unexpected(&other)),
        }
    }
}

/// The address of the first backend.
fn address_of(link: &AgentLink, backend: &RunningBackends) -> Result<SocketAddr, LinkError> {
    let parsed = |one: &BackendAddress| Some(SocketAddr::new(one.host.parse().ok()?, one.port));
    backend.endpoints.first().and_then(parsed).ok_or_else(|| LinkError::Refused {
        address: link.name.clone(),
        reason: "it gives no address of a backend".to_owned(),
    })
}

/// Its port and its configuration; or why it did not start, with the configuration if there was one.
type Startup = Result<(u16, Configuration), (NotStarted, Option<Configuration>)>;

fn ask_to_start(link: &AgentLink, order: TargetOrder) -> Result<Startup, LinkError> {
    match link.call(AgentRequest::StartTarget(Box::new(order))) {
        Ok(AgentAnswer::Target { port, configuration }) => Ok(Ok((port, configuration))),
        Ok(AgentAnswer::NotStarted { unsupported, reason, configuration }) => {
            let kind = if unsupported { StartFailureKind::Unsupported } else { StartFailureKind::Failed };
            Ok(Err((NotStarted { kind, reason }, configuration)))
        }
        Err(LinkError::Refused { reason, .. }) => {
            Ok(Err((NotStarted { kind: StartFailureKind::Failed, reason }, None)))
        }
        Ok(other) => Err(link.unexpected(&other)),
        Err(error) => Err(error),
    }
}

/// The certificate that verifies the target is on each machine; its path is not the same there.
fn without_files(plan: &LoadPlan) -> LoadPlan {
    let mut plan = plan.clone();
    plan.tls.ca_file = None;
    plan
}

/// A twentieth of the measured part, between a tenth of a second and a second.
fn sample_interval(measured_s: f64) -> Duration {
    Duration::from_secs_f64(measured_s / 20.0).clamp(Duration::from_millis(100), Duration::from_secs(1))
}
