//! One run on several machines: all generators begin at one time, and their results are added up.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use super::{
    clock_offset::ClockOffset,
    fleet::{Fleet, compare_clocks},
    shares::PlanShare,
};
use crate::{
    engine::{CpuTime, LoadPlan, LoadResult, clock::now_ns},
    result::{GeneratorShare, HostSample, Process},
    run::{
        LoadError,
        agent::{AgentAnswer, AgentLink, AgentRequest, LoadState, SampleOrder},
        machine_error::LinkError,
    },
};

/// How often states are asked for before the start, and during a load.
const LOOK_BEFORE: Duration = Duration::from_millis(20);
const LOOK: Duration = Duration::from_millis(200);
/// How long generators may take to open the connections that a plan opens in advance.
const READY_LIMIT: Duration = Duration::from_secs(120);
/// From the order to start until the start, besides the time of the orders themselves.
const HEAD_START_NS: u64 = 100_000_000;

/// Why there is no result of a load on several machines.
#[derive(Debug, thiserror::Error)]
pub(super) enum SpreadError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Link(#[from] LinkError),
    /// A generator could not run its part.
    #[error("{machine}: {reason}")]
    Generator { machine: String, reason: String },
    #[error("no generator is left: {0}")]
    AllLost(String),
    #[error("the generators were not ready within {} s", READY_LIMIT.as_secs())]
    NotReady,
}

/// The samples of a run: when they are taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct SampleTimes {
    pub warm_up: Duration,
    pub interval: Duration,
    pub length: Duration,
}

/// What all machines measured.
pub(super) struct SpreadLoad {
    pub load: LoadResult,
    pub generators: Vec<GeneratorShare>,
    pub processes: Vec<Process>,
    /// The target's machine.
    pub host: Vec<HostSample>,
    /// Why the first generator that was lost was lost.
    pub lost: Option<LinkError>,
}

/// A generator during a run.
struct RunningGenerator<'a> {
    link: &'a AgentLink,
    share: &'a PlanShare,
    clock: ClockOffset,
    /// `None` until it ends.
    end: Option<ShareEnd>,
}

enum ShareEnd {
    Measured { result: Box<LoadResult>, late_ns: u64 },
    Lost(LinkError),
}

/// Runs the parts of a plan on their generators, at the same time, with samples of the target and the backend. Ends early once
/// `stop` is set.
pub(super) fn measure(
    fleet: &Fleet,
    shares: &[PlanShare],
    verified: bool,
    times: SampleTimes,
    stop: &AtomicBool,
) -> Result<SpreadLoad, SpreadError> {
    let mut running = Vec::new();
    for share in shares {
        let link = fleet.generator(share.generator);
        link.order(AgentRequest::Prepare { plan: Box::new(share.plan.clone()), verified })?;
        running.push(RunningGenerator { link, share, clock: ClockOffset::default(), end: None });
    }
    wait_until_ready(&running, stop)?;
    let sampled: Vec<&AgentLink> = fleet.sampled().into_iter().flatten().collect();
    let of_generators = running.iter().filter(|one| !fleet.is_sampled(one.share.generator)).map(|one| one.link);
    let all: Vec<&AgentLink> = sampled.iter().copied().chain(of_generators).collect();
    let clocks = all.iter().map(|link| compare_clocks(link)).collect::<Result<Vec<_>, LinkError>>()?;
    for one in &mut running {
        one.clock = compare_clocks(one.link)?;
    }
    // All orders are given before the start, one after the other.
    let trips_ns = (all.len() + running.len()) as u64 * 4 * longest_trip_ns(&running, &clocks);
    let start_ns = now_ns() + HEAD_START_NS + trips_ns;
    for (link, clock) in all.iter().zip(&clocks) {
        let SampleTimes { warm_up, interval, length } = times;
        let start_ns = clock.there_ns(start_ns);
        link.order(AgentRequest::Sample(SampleOrder { start_ns, warm_up, interval, length }))?;
    }
    for one in &mut running {
        let start_ns = one.clock.there_ns(start_ns + one.share.after_ns);
        one.end = one.link.order(AgentRequest::Go { start_ns }).err().map(ShareEnd::Lost);
    }
    wait_for_ends(&mut running, &sampled, stop)?;
    gather(fleet, running, &sampled)
}

fn longest_trip_ns(running: &[RunningGenerator<'_>], clocks: &[ClockOffset]) -> u64 {
    let all = running.iter().map(|one| one.clock).chain(clocks.iter().copied());
    all.map(|clock| (clock.uncertainty_us() * 2e3) as u64).max().unwrap_or(0)
}

fn state_of(link: &AgentLink) -> Result<LoadState, LinkError> {
    match link.call(AgentRequest::LoadState)? {
        AgentAnswer::Load(state) => Ok(state),
        other => Err(link.unexpected(&other)),
    }
}

fn wait_until_ready(running: &[RunningGenerator<'_>], stop: &AtomicBool) -> Result<(), SpreadError> {
    let deadline = now_ns() + READY_LIMIT.as_nanos() as u64;
    for one in running {
        loop {
            match state_of(one.link)? {
                LoadState::Preparing if stop.load(Ordering::Relaxed) => return Err(LoadError::EndedEarly.into()),
                LoadState::Preparing if now_ns() > deadline => return Err(SpreadError::NotReady),
                LoadState::Preparing => thread::sleep(LOOK_BEFORE),
                LoadState::Failed(reason) => {
                    return Err(SpreadError::Generator { machine: one.link.name.clone(), reason });
                }
                LoadState::Ready | LoadState::Running | LoadState::Ended { .. } => break,
            }
        }
    }
    Ok(())
}

/// Waits until each generator has ended or is lost. Without the target or the backend, the load ends at once.
fn wait_for_ends(
    running: &mut [RunningGenerator<'_>],
    sampled: &[&AgentLink],
    stop: &AtomicBool,
) -> Result<(), SpreadError> {
    let mut told = false;
    while running.iter().any(|one| one.end.is_none()) {
        thread::sleep(LOOK);
        if let Some(lost) = sampled.iter().find_map(|link| link.lost()) {
            for one in running.iter().filter(|one| one.end.is_none()) {
                // If it is lost as well, its load ends with the connection.
                let _ = one.link.order(AgentRequest::StopLoad);
            }
            return Err(lost.into());
        }
        let tells = stop.load(Ordering::Relaxed) && !std::mem::replace(&mut told, stop.load(Ordering::Relaxed));
        for one in running.iter_mut().filter(|one| one.end.is_none()) {
            if tells {
                // A generator that is lost now is found to be below.
                let _ = one.link.order(AgentRequest::StopLoad);
            }
            one.end = match state_of(one.link) {
                Ok(LoadState::Ended { result, late_ns }) => Some(ShareEnd::Measured { result, late_ns }),
                Ok(LoadState::Failed(reason)) => {
                    return Err(SpreadError::Generator { machine: one.link.name.clone(), reason });
                }
                Ok(LoadState::Preparing | LoadState::Ready | LoadState::Running) => None,
                Err(error) => Some(ShareEnd::Lost(error)),
            };
        }
    }
    Ok(())
}

/// Adds up the results, and fetches the samples.
fn gather(
    fleet: &Fleet,
    running: Vec<RunningGenerator<'_>>,
    sampled: &[&AgentLink],
) -> Result<SpreadLoad, SpreadError> {
    let (mut processes, mut host) = (Vec::new(), Vec::new());
    for (index, link) in sampled.iter().enumerate() {
        let (theirs, machine) = samples(link)?;
        processes.extend(theirs);
        if index == 0 {
            host = machine;
        }
    }
    let (mut whole, mut lost, mut generators) = (None::<LoadResult>, None, Vec::new());
    for one in running {
        let mut share = GeneratorShare {
            machine: one.link.name.clone(),
            connections: one.share.plan.connections as u64,
            cpus: one.share.plan.cpus.iter().map(|cpu| *cpu as u32).collect(),
            clock_ahead_us: one.clock.unix_us(),
            clock_uncertainty_us: one.clock.uncertainty_us(),
            ..GeneratorShare::default()
        };
        match one.end.expect("all have ended") {
            ShareEnd::Lost(error) => {
                share.lost = Some(error.to_string());
                lost = lost.or(Some(error));
            }
            ShareEnd::Measured { result, late_ns } => {
                share.late_us = late_ns as f64 / 1e3;
                share.answered = result.counted_answers();
                share.busy = busy_share(&result, share.cpus.len());
                share.cpus_used = cpus_used(&result);
                if !fleet.is_sampled(one.share.generator) {
                    share.host = samples(one.link)?.1;
                }
                match &mut whole {
                    None => whole = Some(*result),
                    Some(whole) => whole.merge(&result),
                }
            }
        }
        generators.push(share);
    }
    let gone = || lost.as_ref().map(LinkError::to_string).unwrap_or_default();
    let load = whole.ok_or_else(|| SpreadError::AllLost(gone()))?;
    Ok(SpreadLoad { load, generators, processes, host, lost })
}

/// The share of its processors' time that a generator used for work.
fn busy_share(load: &LoadResult, cpus: usize) -> f64 {
    let busy_ns: u64 = load.generator.threads.iter().map(CpuTime::busy_ns).sum();
    busy_ns as f64 / load_ns(load) / cpus.max(1) as f64
}

/// The processors that a generator used, with the time that it waited actively.
fn cpus_used(load: &LoadResult) -> f64 {
    let CpuTime { user_ns, system_ns, .. } = load.generator.cpu();
    (user_ns + system_ns) as f64 / load_ns(load)
}

fn load_ns(load: &LoadResult) -> f64 {
    (load.measured_ns + load.drain_ns).max(1) as f64
}

fn samples(link: &AgentLink) -> Result<(Vec<Process>, Vec<HostSample>), LinkError> {
    match link.call(AgentRequest::Samples)? {
        AgentAnswer::Samples { processes, host } => Ok((processes, host)),
        other => Err(link.unexpected(&other)),
    }
}

/// Runs a plan on the first generator, without samples.
pub(super) fn run_once(link: &AgentLink, plan: &LoadPlan, verified: bool) -> Result<LoadResult, SpreadError> {
    link.order(AgentRequest::Prepare { plan: Box::new(plan.clone()), verified })?;
    let mut is_told = false;
    loop {
        match state_of(link)? {
            LoadState::Ended { result, .. } => return Ok(*result),
            LoadState::Failed(reason) => {
                return Err(SpreadError::Generator { machine: link.name.clone(), reason });
            }
            LoadState::Ready if !is_told => {
                is_told = true;
                // A time that has passed: at once.
                link.order(AgentRequest::Go { start_ns: 0 })?;
            }
            LoadState::Preparing | LoadState::Ready | LoadState::Running => thread::sleep(LOOK_BEFORE),
        }
    }
}
