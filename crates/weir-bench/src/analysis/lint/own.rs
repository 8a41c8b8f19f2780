//! Converts a result of this lab to evidence.

use super::{Evidence, LatencyFrom, Machine, RowEvidence, measured};
use crate::{
    engine::{self, LoadPhase, LoadResult, RequestTemplate},
    result::{Cell, MachineRole, MeasuredRun, PacingKind, ProcessRole, ResultFile},
    scenario::ScenarioRow,
};

/// The evidence of every run of a result, with the facts about the machine.
pub fn evidence_of(result: &ResultFile) -> Evidence {
    Evidence {
        title: result.scenario.title.clone(),
        machine: Machine {
            instance: result.manifest.machine.clone(),
            cpu_model: Some(result.manifest.cpu.model.clone()),
            shared_cpus: result.manifest.shared_cpus(),
            threads_per_core: Some(result.manifest.cpu.threads_per_core),
        },
        topology: vec![if result.is_one_machine() { "one machine" } else { "separate machines" }.to_owned()],
        repeats: Some(result.scenario.method.repeats),
        spread: Some(true),
        tool: Some("weir bench".to_owned()),
        resolution_ms: None,
        rows: result.cells.iter().flat_map(|cell| cell.runs().iter().map(|run| row(result, cell, run))).collect(),
        scaling: measured::scaling(result),
        scaling_cause: None,
        // The text of a result makes no claims beyond its table.
        claims: Vec::new(),
        measured: measured::measured(result),
    }
}

/// The name of a cell in verdicts.
pub fn subject(cell: &Cell) -> String {
    let workers = if cell.level.workers == 1 { String::new() } else { format!(", {} workers", cell.level.workers) };
    let rate = cell.level.rate.map_or(String::new(), |rate| format!(" at {rate:.0}/s"));
    format!("{}: {}, {} connections{rate}{workers}", cell.target, cell.row, cell.level.connections)
}

fn row(result: &ResultFile, cell: &Cell, run: &MeasuredRun) -> RowEvidence {
    // Long, since it is a table: one entry for each thing that verdicts look at.
    let total = &run.load.total;
    let open = run.plan.pacing.is_open();
    let requests = run.plan.protocol.is_http();
    let histogram = if open { &total.latency } else { &total.service_time };
    let quantile_ms = |share: f64| (!histogram.is_empty()).then(|| histogram.quantile(share) as f64 / 1e6);
    let direct = measured::direct(result, &cell.target);
    let carries_streams = |row: &ScenarioRow| row.name == cell.row && row.needs.iter().any(|need| need == "streams");
    let carries_streams = result.scenario.rows.iter().any(carries_streams);
    let backend_cpus: Vec<u32> = run.role(ProcessRole::Backend).flat_map(|process| process.cpus.clone()).collect();
    let check = result
        .targets
        .iter()
        .find(|target| target.name == cell.target)
        .and_then(|target| target.configurations.iter().find(|one| one.row == cell.row))
        .and_then(|configuration| configuration.check.as_ref());
    let host = run.host.first().zip(run.host.last());
    let steal_share = host.and_then(|(first, last)| {
        let all = |sample: &crate::result::HostSample| sample.cpu_busy_s + sample.cpu_idle_s + sample.cpu_steal_s;
        let elapsed = all(last) - all(first);
        (elapsed > 0.0).then(|| (last.cpu_steal_s - first.cpu_steal_s) / elapsed)
    });
    // Of the process with the most open files, over time.
    let holder = run.role(if direct { ProcessRole::Backend } else { ProcessRole::Target }).next();
    let files: Vec<u64> = holder.iter().flat_map(|one| one.samples.iter().map(|sample| sample.fds_most)).collect();
    let others_cpu = host.map(|(first, last)| others(first, last, result, run));
    RowEvidence {
        name: subject(cell),
        direct,
        pacing: Some(if open { PacingKind::Open } else { PacingKind::Closed }),
        connections: Some(cell.level.connections),
        streams: run.plan.protocol.streams().map(|streams| streams as u32),
        target_rps: match run.plan.pacing {
            engine::Pacing::Open { rate: engine::Rate::Constant(rate), spacing: engine::Spacing::Even } => Some(rate),
            // The actual rate, for random arrivals or a rate that changes.
            _ if open => Some(total.due as f64 / run.measured_s()),
            _ => cell.level.rate,
        },
        rps: Some(run.throughput()),
        latency_from: Some(if open { LatencyFrom::Due } else { LatencyFrom::Sent }),
        mean_ms: (requests && !histogram.is_empty()).then(|| histogram.mean() / 1e6),
        p50_ms: quantile_ms(0.5),
        p95_ms: quantile_ms(0.95),
        p99_ms: quantile_ms(0.99),
        corrected_p99_ms: (!open && !histogram.is_empty()).then(|| {
            let interval = histogram.mean().max(1.0) as u64;
            histogram.as_hdr().clone_correct(interval).value_at_quantile(0.99) as f64 / 1e6
        }),
        duration_s: Some(run.measured_s()),
        turns: u32::try_from(run.slices.len()).ok().filter(|turns| *turns > 0),
        // A rate that is given has no edges, and one that changes has its own.
        edges_move: (requests && !open && run.slices.is_empty()).then(|| edges_move(&run.load)).flatten(),
        drain_s: Some(run.load.drain_ns as f64 / 1e9),
        asked_count: run.plan.stop.count,
        sent: Some(total.due.saturating_sub(total.missed)),
        completed: Some(total.completed),
        error_share: Some((total.errors.sum() + total.missed) as f64 / total.due.max(1) as f64),
        unanswered_share: Some((total.errors.timeout + total.missed) as f64 / total.due.max(1) as f64),
        failed_connections: Some(run.load.connections.failed.sum()),
        held: run.held(),
        open_at_start: run.load.connections.open_at_start,
        closed_idle: Some(run.load.connections.closed_idle),
        target_files_limit: run.target_files,
        target_files: files.iter().copied().max(),
        target_files_grew: files.last() > files.get(files.len() * 3 / 4),
        // If the scenario sets expected statuses, those decide.
        not_2xx: requests.then(|| match run.plan.requests.iter().any(RequestTemplate::names_statuses) {
            false => total.statuses.values().sum::<u64>() - total.class(2),
            true => total.unexpected,
        }),
        failed_checks: Some(total.failed_checks),
        // The kernel counts connections of the whole machine: on a busy one, they may belong to other processes.
        // A target that does not look into the bytes opens a connection for each of its clients'.
        upstream_connects: (requests
            && !direct
            && !carries_streams
            && run.new_clients.is_none()
            && result.is_one_machine()
            && others_cpu.is_some_and(|share| share < 0.03))
        .then(|| run.upstream_connects())
        .flatten(),
        upstream_keepalive: None,
        configuration_error: check.filter(|check| !check.passed).map(|check| check.output.clone()),
        configuration_loaded: None,
        workers: Some(cell.level.workers),
        target_cpus: run
            .role(ProcessRole::Target)
            .map(|process| process.cpus.len() as u32)
            .next()
            .filter(|cpus| *cpus > 0),
        target_cpu: run.utilisation(ProcessRole::Target),
        backend_cpu: run.utilisation(ProcessRole::Backend),
        generator_cpu: Some(generator_cpu(run)),
        generator_with_backend: backend_cpus.iter().any(|cpu| beside_backend(result, run).contains(cpu)),
        backend_was_limit: None,
        events: result.scenario.row(&cell.row).is_some_and(ScenarioRow::disturbs),
        backend_limits: result.scenario.row(&cell.row).is_some_and(|row| row.backend_limits),
        // Slightly lower than Little's law predicts, since nothing is in flight at both ends of a run.
        in_flight: (requests && run.load.generator.in_flight_mean > 0.0).then_some(run.load.generator.in_flight_mean),
        on_time_share: (open && !total.lag.is_empty()).then(|| total.lag.share_within(1_000_000)),
        missed: Some(total.missed),
        // A rate that changes is an intended trend.
        slices_rps: if requests && is_level(&run.plan.pacing) { slices(run) } else { Vec::new() },
        others_cpu,
        steal_share,
        out_of_ports: Some(total.errors.local + run.load.connections.failed.local),
        listen_overflows: host.map(|(first, last)| last.listen_overflows - first.listen_overflows),
        processes_ended: run.role(ProcessRole::Target).map(crate::result::Process::ended).sum(),
        oom_kills: host.map_or(0, |(_, last)| last.oom_kills),
        target_errors: run.target_errors.clone(),
        stand_ins: result
            .stand_ins(&cell.row, &cell.target)
            .map(|(policy, instead)| format!("{policy} is {instead}"))
            .collect(),
        records_lost: run.records.map(crate::result::AccessRecords::lost_share),
        records_pending: run.records.map_or(0, crate::result::AccessRecords::pending),
        account_disagrees: run.records.and_then(crate::result::AccessRecords::disagreement),
    }
}

/// Whether the rate is the same throughout a run.
fn is_level(pacing: &engine::Pacing) -> bool {
    matches!(pacing, engine::Pacing::Closed { .. } | engine::Pacing::Open { rate: engine::Rate::Constant(_), .. })
}

/// The busy share of the generator, or of the busiest of several: each limits its own clients.
fn generator_cpu(run: &MeasuredRun) -> f64 {
    match run.generators.is_empty() {
        true => run.generator_cpus_used() / run.generator_cpus.len().max(1) as f64,
        false => run.generators.iter().map(|one| one.busy).fold(0.0, f64::max),
    }
}

/// The processors of the generators on the backends' machine.
fn beside_backend(result: &ResultFile, run: &MeasuredRun) -> Vec<u32> {
    if run.generators.is_empty() {
        return run.generator_cpus.clone();
    }
    let there = run.generators.iter().filter(|one| result.has_role(&one.machine, MachineRole::Backend));
    there.flat_map(|one| one.cpus.clone()).collect()
}

/// The share of the machine's processor time used by processes that do not belong to the lab, over the whole run. The kernel
/// delivers loopback traffic in soft interrupts; that time counts as load.
fn others(
    first: &crate::result::HostSample,
    last: &crate::result::HostSample,
    result: &ResultFile,
    run: &MeasuredRun,
) -> f64 {
    let busy = last.cpu_busy_s - first.cpu_busy_s;
    let interrupts = last.cpu_interrupts_s - first.cpu_interrupts_s;
    let all = busy + last.cpu_idle_s - first.cpu_idle_s;
    let has_backend = result.has_backend_beside_target();
    let is_here = |process: &&crate::result::Process| process.role != ProcessRole::Backend || has_backend;
    let ours: f64 = run.processes.iter().filter(is_here).map(crate::result::Process::cpu_s).sum();
    let elapsed = last.at_s - first.at_s;
    // The generator spins until requests are due, so its whole processor time counts here, not only its work.
    let cpu = run.load.generator.cpu();
    let whole_s = (cpu.user_ns + cpu.system_ns) as f64 / 1e9;
    let load_s = (run.load.measured_ns + run.load.drain_ns).max(1) as f64 / 1e9;
    let beside = run.generators.iter().filter(|one| result.has_role(&one.machine, MachineRole::Gateway));
    let cpus_used = match run.generators.is_empty() {
        true => whole_s / load_s,
        false => beside.map(|one| one.cpus_used).sum(),
    };
    let generator = cpus_used * elapsed;
    if all > 0.0 { ((busy - interrupts - ours - generator) / all).max(0.0) } else { 0.0 }
}

/// The fewest intervals of which the first and the last can be left out.
const ENOUGH_INTERVALS: usize = 5;

/// How far the first and the last interval of the measured part move its throughput.
fn edges_move(load: &LoadResult) -> Option<f64> {
    let measured = load.intervals.iter().filter(|interval| interval.phase == LoadPhase::Measured);
    let intervals: Vec<(u64, u64)> =
        measured.map(|interval| (interval.tally.completed, interval.length_ns)).filter(|(_, ns)| *ns > 0).collect();
    let rate = |part: &[(u64, u64)]| {
        let (completed, ns) = part.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        completed as f64 / ns as f64
    };
    let inner = intervals.get(1..intervals.len().checked_sub(1)?).filter(|_| intervals.len() >= ENOUGH_INTERVALS)?;
    let without = rate(inner);
    (without > 0.0).then(|| rate(&intervals) / without - 1.0)
}

/// The throughput of each whole interval of the measured part, starting once all answers belong to requests of the measured part:
/// answers to requests of the warm-up are counted nowhere.
fn slices(run: &MeasuredRun) -> Vec<f64> {
    let load = &run.load;
    let longest = load.intervals.iter().map(|interval| interval.length_ns).max().unwrap_or(0);
    let answered_ns = load.total.service_time.quantile(0.99);
    let (mut slices, mut warming, mut begin_ns) = (Vec::new(), false, 0);
    for interval in &load.intervals {
        if interval.phase == LoadPhase::Measured {
            if std::mem::take(&mut warming) {
                begin_ns = interval.start_ns + answered_ns;
            }
            if interval.start_ns >= begin_ns && interval.length_ns * 2 > longest {
                slices.push(interval.tally.completed as f64 * 1e9 / interval.length_ns as f64);
            }
        }
        warming |= interval.phase == LoadPhase::WarmUp;
    }
    slices
}
