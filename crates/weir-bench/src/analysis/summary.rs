//! The figures derived from a result: a summary of each cell, comparisons between targets, and costs of policies. Pure.

use crate::{
    analysis::{
        knee,
        lint::{self, LintVerdict, Severity},
        recovery,
    },
    result::{Cell, CellOutcome, Knee, LoadLevel, MeasuredRun, ProcessRole, ResultFile, SliceFigures},
    scenario::{NO_POLICY, Scenario, ScenarioRow, Speak},
    stats::{
        Comparison, ConfidenceInterval, Scalability, compare, fit_scalability, median_interval, ratios, sliced_ratio,
    },
};

/// A cell's figures over its repeats.
#[derive(Clone, Debug)]
pub struct CellSummary<'a> {
    pub cell: &'a Cell,
    /// Requests (or messages) per second.
    pub rps: Option<ConfidenceInterval>,
    pub mean_ms: Option<ConfidenceInterval>,
    pub p50_ms: Option<ConfidenceInterval>,
    pub p95_ms: Option<ConfidenceInterval>,
    pub p99_ms: Option<ConfidenceInterval>,
    pub p999_ms: Option<ConfidenceInterval>,
    /// CPU microseconds of the target for each request, and the part in user mode.
    pub cpu_us: Option<ConfidenceInterval>,
    pub cpu_user_us: Option<ConfidenceInterval>,
    pub rss_bytes: Option<ConfidenceInterval>,
    pub rss_after_bytes: Option<ConfidenceInterval>,
    /// What allocators and stacks of the target hold then.
    pub held_after_bytes: Option<ConfidenceInterval>,
    /// Bytes of the target for each connection held: idle connections only.
    pub bytes_per_connection: Option<ConfidenceInterval>,
    pub error_share: Option<ConfidenceInterval>,
    pub open_connections: Option<ConfidenceInterval>,
    pub goodput: Option<ConfidenceInterval>,
    pub refusal_p99_ms: Option<ConfidenceInterval>,
    pub instructions: Option<ConfidenceInterval>,
    pub recovery_s: Option<ConfidenceInterval>,
    pub longest_ms: Option<ConfidenceInterval>,
    /// The number of route changes, and the time until requests showed them.
    pub route_changes: Option<ConfidenceInterval>,
    pub visible_p50_ms: Option<ConfidenceInterval>,
    pub visible_p99_ms: Option<ConfidenceInterval>,
    /// The time until the target said that all its workers serve a change.
    pub served_p50_ms: Option<ConfidenceInterval>,
    pub served_p99_ms: Option<ConfidenceInterval>,
    pub route_changes_failed: Option<ConfidenceInterval>,
    /// Resident bytes of the target in the first and in the last sample of a run.
    pub rss_begin_bytes: Option<ConfidenceInterval>,
    pub rss_end_bytes: Option<ConfidenceInterval>,
    /// Received events or messages, in per cent of those due.
    pub delivered_percent: Option<ConfidenceInterval>,
    /// The growth of the target's memory per connection.
    pub bytes_per_client: Option<ConfidenceInterval>,
    pub sent_within_us: Option<ConfidenceInterval>,
    pub noticed_within_us: Option<ConfidenceInterval>,
    pub target_use: Option<ConfidenceInterval>,
    /// Throughput against the baseline target, in the same row and level.
    pub against_baseline: Option<Comparison>,
    /// Throughput against the row named by `compare_with`, on the same target and level.
    pub against_compared: Option<Comparison>,
    /// The 99th percentile of latency against the same row.
    pub p99_against_compared: Option<Comparison>,
    /// The difference of the 99th percentile of latency to that without a gateway, in the same row, level and repeat.
    pub p99_added_ms: Option<ConfidenceInterval>,
    /// Deliveries of a hub beside the load, those that failed, and the longest time until an event was delivered to all.
    pub fan_out_delivered: Option<ConfidenceInterval>,
    pub fan_out_failed: Option<ConfidenceInterval>,
    pub fan_out_longest_ms: Option<ConfidenceInterval>,
    /// Clients that connected all at once beside the load: answered, failed, and the longest time until the last one was answered.
    pub new_clients_answered: Option<ConfidenceInterval>,
    pub new_clients_failed: Option<ConfidenceInterval>,
    pub new_clients_longest_ms: Option<ConfidenceInterval>,
    /// CPU microseconds per request of the threads that process requests.
    pub worker_cpu_us: Option<ConfidenceInterval>,
    /// The same against the row that `compare_with` names.
    pub worker_cpu_against_compared: Option<Comparison>,
    /// CPU time per request against the baseline.
    pub cpu_against_baseline: Option<Comparison>,
    /// Instructions per request against the baseline.
    pub instructions_against_baseline: Option<Comparison>,
    /// The worst severity among the verdicts about the cell.
    pub worst: Option<Severity>,
    /// Open loop: the share of lost requests, if it is so high that the latency of the answered ones is not representative.
    /// Latencies are absent then.
    pub survivors_only: Option<f64>,
}

/// Open loop: above this share of lost requests, the latency of the answered ones is not shown.
const LOST_TOO_MANY: f64 = 0.01;
/// The target without a gateway.
const DIRECT: &str = "none";
/// Rules that make throughput a lower bound, but do not affect the processor time per request.
const OF_THROUGHPUT_ALONE: [&str; 2] = ["generator-saturated", "backend-saturated"];

/// The cost of a policy on a target: the row with it against the row without.
#[derive(Clone, Debug)]
pub struct PolicyCost<'a> {
    /// The policy, if the rows were added by `--ablation` and differ only in it.
    pub policy: Option<&'a str>,
    pub row: &'a ScenarioRow,
    pub base: &'a ScenarioRow,
    pub target: &'a str,
    pub level: LoadLevel,
    /// Additional CPU microseconds per request.
    pub cpu_us: Option<ConfidenceInterval>,
    /// Additional microseconds per completed request: the difference of 1/throughput. This is what publications of throughput
    /// imply.
    pub time_us: Option<ConfidenceInterval>,
    /// Additional user instructions per request, counted by valgrind.
    pub instructions: Option<f64>,
    /// `time_us` computed from the published figures.
    pub published_us: Option<f64>,
}

/// Scaling of a target over workers, in a row.
#[derive(Clone, Debug)]
pub struct TargetScaling<'a> {
    pub row: &'a str,
    pub target: &'a str,
    pub fit: Scalability,
}

/// Everything a report shows.
pub struct Findings<'a> {
    pub result: &'a ResultFile,
    pub cells: Vec<CellSummary<'a>>,
    pub costs: Vec<PolicyCost<'a>>,
    pub scaling: Vec<TargetScaling<'a>>,
    pub knees: Vec<Knee>,
    pub verdicts: Vec<LintVerdict>,
}

/// Derives everything from a result; the same result gives the same findings.
pub fn findings(result: &ResultFile) -> Findings<'_> {
    let mut verdicts = lint::judge(&lint::evidence_of(result));
    lint::judge_completeness(result, &mut verdicts);
    Findings {
        result,
        cells: result.cells.iter().map(|cell| summary(result, cell, &verdicts)).collect(),
        costs: costs(result),
        scaling: scaling(result),
        // Derived here, since older results do not contain them.
        knees: knee::knees(&result.scenario, &result.cells),
        verdicts,
    }
}

/// A figure of each run; empty unless every run has it.
pub fn values(runs: &[MeasuredRun], figure: impl Fn(&MeasuredRun) -> Option<f64>) -> Vec<f64> {
    let values: Vec<f64> = runs.iter().filter_map(&figure).collect();
    if values.len() == runs.len() { values } else { Vec::new() }
}

fn summary<'a>(result: &'a ResultFile, cell: &'a Cell, verdicts: &[LintVerdict]) -> CellSummary<'a> {
    // Long, since it names every figure of a cell once.
    let runs = cell.runs();
    let confidence = result.scenario.method.confidence;
    let of =
        |figure: &dyn Fn(&MeasuredRun) -> Option<f64>| median_interval(&values(runs, figure), confidence, result.seed);
    let baseline = baseline(result, cell);
    let against = |figure: RunFigure<'_>, turns: &dyn Fn(&SliceFigures) -> Option<f64>| {
        compared_with(result, cell, baseline, figure, turns)
    };
    let throughput = |other: Option<&Cell>| {
        let compared = compared_with(result, cell, other, &|run| Some(run.throughput()), &|turn| Some(turn.rps));
        compared.filter(|_| !is_invalid(&[Some(cell), other], verdicts, &|_| true))
    };
    let invalid = |rule: &dyn Fn(&str) -> bool| is_invalid(&[Some(cell), baseline], verdicts, rule);
    let costs_compare = !invalid(&|rule| !OF_THROUGHPUT_ALONE.contains(&rule));
    let lost = median_interval(&values(runs, |run| Some(run.lost_share())), confidence, result.seed);
    let open = runs.iter().any(|run| run.plan.pacing.is_open());
    let survivors_only = lost.map(|lost| lost.median).filter(|lost| open && *lost > LOST_TOO_MANY);
    let latency = |figure: &dyn Fn(&MeasuredRun) -> f64| {
        let answered = |run: &MeasuredRun| (!run.load.total.latency.is_empty()).then(|| figure(run));
        if survivors_only.is_some() { None } else { of(&answered) }
    };
    CellSummary {
        cell,
        rps: of(&|run| Some(run.throughput())),
        mean_ms: latency(&MeasuredRun::mean_latency_ms),
        p50_ms: latency(&|run| run.latency_ms(50.0)),
        p95_ms: latency(&|run| run.latency_ms(95.0)),
        p99_ms: latency(&|run| run.latency_ms(99.0)),
        p999_ms: latency(&|run| run.latency_ms(99.9)),
        cpu_us: of(&MeasuredRun::target_cpu_us),
        cpu_user_us: of(&cpu_user_us),
        rss_bytes: of(&|run| run.rss_peak_bytes().map(|bytes| bytes as f64)),
        rss_after_bytes: of(&|run| run.rss_after_bytes.map(|bytes| bytes as f64)),
        held_after_bytes: of(&|run| Some(run.memory_after?.held_bytes() as f64)),
        bytes_per_connection: of(&bytes_per_connection),
        error_share: of(&|run| Some(run.error_share())),
        open_connections: of(&|run| Some(run.held().unwrap_or(run.load.connections.open_max) as f64)),
        goodput: of(&|run| Some(run.goodput())),
        refusal_p99_ms: of(&|run| run.refusal_ms(99.0)),
        instructions: of(&MeasuredRun::instructions_per_request).or_else(|| {
            let counted = result.counted(&cell.row, &cell.target)?;
            Some(ConfidenceInterval { median: counted, low: counted, high: counted })
        }),
        recovery_s: of(&|run| recovery::longest_s(result, cell, run)),
        longest_ms: of(&|run| run.longest_ms()),
        route_changes: of(&|run| Some(run.route_changes.as_ref()?.visible_after_ms.len() as f64)),
        visible_p50_ms: of(&|run| run.route_changes.as_ref()?.visible_ms(50.0)),
        visible_p99_ms: of(&|run| run.route_changes.as_ref()?.visible_ms(99.0)),
        served_p50_ms: of(&|run| run.route_changes.as_ref()?.served_ms(50.0)),
        served_p99_ms: of(&|run| run.route_changes.as_ref()?.served_ms(99.0)),
        route_changes_failed: of(&|run| Some(run.route_changes.as_ref()?.failed as f64)),
        rss_begin_bytes: of(&|run| Some(run.role(ProcessRole::Target).next()?.samples.first()?.rss_bytes as f64)),
        rss_end_bytes: of(&|run| Some(run.role(ProcessRole::Target).next()?.samples.last()?.rss_bytes as f64)),
        delivered_percent: of(&|run| delivered_percent(result, cell, run)),
        bytes_per_client: of(&bytes_per_client),
        sent_within_us: of(&MeasuredRun::sent_within_us),
        noticed_within_us: of(&MeasuredRun::noticed_within_us),
        target_use: of(&|run| run.utilisation(ProcessRole::Target)),
        against_baseline: throughput(baseline),
        against_compared: throughput(compared_cell(result, cell)),
        p99_against_compared: p99_against(result, cell, compared_cell(result, cell), verdicts),
        p99_added_ms: p99_added_ms(result, cell, verdicts).filter(|_| survivors_only.is_none()),
        fan_out_delivered: of(&|run| Some(run.fan_out?.delivered as f64)),
        fan_out_failed: of(&|run| Some(run.fan_out?.failed as f64)),
        fan_out_longest_ms: of(&|run| Some(run.fan_out?.longest_ms)),
        new_clients_answered: of(&|run| Some(run.new_clients?.answered as f64)),
        new_clients_failed: of(&|run| Some(run.new_clients?.failed as f64)),
        new_clients_longest_ms: of(&|run| Some(run.new_clients?.longest_ms)),
        worker_cpu_us: of(&MeasuredRun::worker_cpu_us),
        worker_cpu_against_compared: worker_cpu_against(result, cell, compared_cell(result, cell), verdicts),
        cpu_against_baseline: against(&MeasuredRun::target_cpu_us, &|turn| turn.target_cpu_us)
            .filter(|_| costs_compare),
        instructions_against_baseline: against(&MeasuredRun::instructions_per_request, &|_| None)
            .filter(|_| costs_compare),
        worst: worst(verdicts, &lint::subject(cell)),
        survivors_only,
    }
}

/// A figure of a run; `None` if the run does not have it.
type RunFigure<'a> = &'a dyn Fn(&MeasuredRun) -> Option<f64>;

/// A figure of a cell against that of another.
fn compared_with(
    result: &ResultFile,
    cell: &Cell,
    other: Option<&Cell>,
    figure: RunFigure<'_>,
    turns: &dyn Fn(&SliceFigures) -> Option<f64>,
) -> Option<Comparison> {
    let (theirs, ours) = (other?.runs(), cell.runs());
    let within = within_repeats(theirs, ours, figure, turns);
    let confidence = result.scenario.method.confidence;
    compare(&values(theirs, figure), &values(ours, figure), &within, confidence, result.seed)
}

/// Throughput and CPU time per request of a cell against the baseline, whatever the verdicts say of them.
pub fn unjudged(result: &ResultFile, cell: &Cell) -> [Option<Comparison>; 2] {
    let baseline = baseline(result, cell);
    [
        compared_with(result, cell, baseline, &|run| Some(run.throughput()), &|turn| Some(turn.rps)),
        compared_with(result, cell, baseline, &MeasuredRun::target_cpu_us, &|turn| turn.target_cpu_us),
    ]
}

/// The 99th percentile of latency of a cell, less that of the row's direct runs, in each repeat; `None` if one of them is invalid.
fn p99_added_ms(result: &ResultFile, cell: &Cell, verdicts: &[LintVerdict]) -> Option<ConfidenceInterval> {
    let is_direct = |other: &&Cell| {
        other.target == DIRECT && other.row == cell.row && other.level == cell.level && cell.target != DIRECT
    };
    let direct = result.cells.iter().find(is_direct)?;
    let is_paired = direct.runs().len() == cell.runs().len();
    if !is_paired || is_invalid(&[Some(cell), Some(direct)], verdicts, &|_| true) {
        return None;
    }
    let p99 = |run: &MeasuredRun| (!run.load.total.latency.is_empty()).then(|| run.latency_ms(99.0));
    let (with, without) = (values(cell.runs(), p99), values(direct.runs(), p99));
    let added: Vec<f64> = with.iter().zip(&without).map(|(with, without)| with - without).collect();
    median_interval(&added, result.scenario.method.confidence, result.seed)
}

/// The CPU time per request of the threads that process requests, against that of another cell, unless one of them is invalid for
/// a reason that affects it.
fn worker_cpu_against(
    result: &ResultFile,
    cell: &Cell,
    other: Option<&Cell>,
    verdicts: &[LintVerdict],
) -> Option<Comparison> {
    let compared = compared_with(result, cell, other, &MeasuredRun::worker_cpu_us, &|turn| turn.worker_cpu_us);
    let affects_costs = |rule: &str| !OF_THROUGHPUT_ALONE.contains(&rule);
    compared.filter(|_| !is_invalid(&[Some(cell), other], verdicts, &affects_costs))
}

/// The 99th percentile of latency of a cell against that of another, unless one of them is invalid.
fn p99_against(result: &ResultFile, cell: &Cell, other: Option<&Cell>, verdicts: &[LintVerdict]) -> Option<Comparison> {
    let p99 = |run: &MeasuredRun| (!run.load.total.latency.is_empty()).then(|| run.latency_ms(99.0));
    let compared = compared_with(result, cell, other, &p99, &|_| None);
    compared.filter(|_| !is_invalid(&[Some(cell), other], verdicts, &|_| true))
}

/// The cell of the row that a cell's row names in `compare_with`.
fn compared_cell<'a>(result: &'a ResultFile, cell: &Cell) -> Option<&'a Cell> {
    let name = result.scenario.row(&cell.row)?.compare_with.as_ref()?;
    let is_its = |other: &&Cell| other.row == *name && other.target == cell.target && other.level == cell.level;
    result.cells.iter().find(is_its)
}

/// The worst severity among the verdicts about a cell.
fn worst(verdicts: &[LintVerdict], cell: &str) -> Option<Severity> {
    let of_cell = verdicts.iter().filter(|verdict| verdict.subject.as_deref() == Some(cell));
    of_cell.map(|verdict| verdict.severity).max()
}

/// The ratio of a figure of `b` to that of `a` in each repeat: per turn if the two took turns, otherwise per run. Empty unless
/// every repeat has both.
fn within_repeats(
    a: &[MeasuredRun],
    b: &[MeasuredRun],
    figure: &dyn Fn(&MeasuredRun) -> Option<f64>,
    turns: &dyn Fn(&SliceFigures) -> Option<f64>,
) -> Vec<f64> {
    if a.len() != b.len() || a.iter().zip(b).any(|(a, b)| a.repeat != b.repeat) {
        return Vec::new();
    }
    let of_turns = |run: &MeasuredRun| run.slices.iter().map(turns).collect::<Option<Vec<f64>>>().unwrap_or_default();
    let sliced = a.iter().zip(b).map(|(a, b)| sliced_ratio(&of_turns(a), &of_turns(b)));
    sliced.collect::<Option<Vec<f64>>>().unwrap_or_else(|| ratios(&values(a, figure), &values(b, figure)))
}

/// The baseline's cell in the same row and level; `None` for the baseline itself.
fn baseline<'a>(result: &'a ResultFile, cell: &Cell) -> Option<&'a Cell> {
    let baseline = &result.scenario.baseline;
    let is_its = |other: &&Cell| other.target == *baseline && other.row == cell.row && other.level == cell.level;
    result.cells.iter().find(is_its).filter(|_| cell.target != *baseline)
}

/// Whether one of the cells is invalid by one of these rules; such a cell is excluded from comparisons.
fn is_invalid(cells: &[Option<&Cell>], verdicts: &[LintVerdict], rule: &dyn Fn(&str) -> bool) -> bool {
    let subjects: Vec<String> = cells.iter().flatten().map(|cell| lint::subject(cell)).collect();
    verdicts.iter().any(|verdict| {
        verdict.severity == Severity::Invalid
            && verdict.subject.as_ref().is_some_and(|subject| subjects.contains(subject))
            && rule(&verdict.rule)
    })
}

/// User CPU microseconds of the target per answer.
fn cpu_user_us(run: &MeasuredRun) -> Option<f64> {
    let target = run.role(ProcessRole::Target).next()?;
    let (user, _) = target.cpu_split_s();
    let rate = run.throughput();
    (rate > 0.0 && target.span_s() > 0.0).then(|| user / target.span_s() / rate * 1e6)
}

fn bytes_per_connection(run: &MeasuredRun) -> Option<f64> {
    let held = run.held().filter(|held| *held > 0)?;
    let grown = run.rss_peak_bytes()?.saturating_sub(run.rss_before_bytes?);
    Some(grown as f64 / held as f64)
}

fn bytes_per_client(run: &MeasuredRun) -> Option<f64> {
    let clients = Some(run.load.connections.open_max).filter(|clients| *clients > 0)?;
    let grown = run.rss_peak_bytes()?.saturating_sub(run.rss_before_bytes?);
    Some(grown as f64 / clients as f64)
}

/// Received messages or events, in per cent of those due in the measured part.
fn delivered_percent(result: &ResultFile, cell: &Cell, run: &MeasuredRun) -> Option<f64> {
    let speak = &result.scenario.row(&cell.row)?.speak;
    let due = match speak {
        // For events, the engine counts only received ones. The number due is computed from the rate and the number of clients.
        Speak::Sse { per_second, .. } => per_second * f64::from(cell.level.connections) * run.measured_s(),
        _ => run.load.total.due as f64,
    };
    (due > 0.0).then(|| run.load.total.completed as f64 / due * 100.0)
}

/// Pairs of rows to compare: a policy's two rows, or a row and the one it names.
fn compared(scenario: &Scenario) -> Vec<(Option<&str>, &ScenarioRow, &ScenarioRow)> {
    let by_policy = scenario
        .ablations
        .iter()
        .filter_map(|one| Some((Some(one.policy.as_str()), scenario.row(&one.with)?, scenario.row(&one.without)?)));
    let mut pairs: Vec<(Option<&str>, &ScenarioRow, &ScenarioRow)> = by_policy.collect();
    for row in &scenario.rows {
        let Some(base) = row.compare_with.as_deref().and_then(|name| scenario.row(name)) else { continue };
        if !pairs.iter().any(|(_, with, without)| with.name == row.name && without.name == base.name) {
            pairs.push((None, row, base));
        }
    }
    pairs
}

/// The cost of policies, at every level and target where both rows were measured.
fn costs(result: &ResultFile) -> Vec<PolicyCost<'_>> {
    let (confidence, seed) = (result.scenario.method.confidence, result.seed);
    let mut costs = Vec::new();
    for (policy, row, base) in compared(&result.scenario) {
        for cell in result.cells.iter().filter(|cell| cell.row == row.name && !cell.runs().is_empty()) {
            let without = result
                .cells
                .iter()
                .find(|other| other.row == base.name && other.target == cell.target && other.level == cell.level);
            let Some(without) = without.filter(|other| other.runs().len() == cell.runs().len()) else { continue };
            let difference = |figure: &dyn Fn(&MeasuredRun) -> Option<f64>| {
                let (with, without) = (values(cell.runs(), figure), values(without.runs(), figure));
                // The same repeat of both, so that disturbances of the machine affect both alike.
                let pairs: Vec<f64> = with.iter().zip(&without).map(|(with, without)| with - without).collect();
                median_interval(&pairs, confidence, seed)
            };
            let published = |row: &ScenarioRow| row.published.iter().find_map(|one| one.rps);
            costs.push(PolicyCost {
                policy,
                row,
                base,
                target: &cell.target,
                level: cell.level,
                cpu_us: difference(&MeasuredRun::target_cpu_us),
                time_us: difference(&|run| (run.throughput() > 0.0).then(|| 1e6 / run.throughput())),
                instructions: result
                    .counted(&row.name, &cell.target)
                    .zip(result.counted(&base.name, &cell.target))
                    .map(|(with, without)| with - without),
                published_us: published(row).zip(published(base)).map(|(with, without)| 1e6 / with - 1e6 / without),
            });
        }
    }
    costs
}

/// A fit over the number of workers, for every target and row with at least three such numbers.
fn scaling(result: &ResultFile) -> Vec<TargetScaling<'_>> {
    let mut fits = Vec::new();
    // At a fixed rate, any number of workers answers the same number of requests.
    for row in result.scenario.rows.iter().filter(|row| result.scenario.is_closed(row)) {
        for target in &result.scenario.targets {
            let points: Vec<(f64, f64)> = result
                .series(&row.name, target)
                .flat_map(|cell| cell.runs().iter().map(|run| (f64::from(cell.level.workers), run.throughput())))
                .collect();
            if let Some(fit) = fit_scalability(&points) {
                fits.push(TargetScaling { row: &row.name, target, fit });
            }
        }
    }
    fits
}

impl CellSummary<'_> {
    /// The reason why the cell has no figures, if it has none.
    pub fn absent(&self) -> Option<&str> {
        match &self.cell.outcome {
            CellOutcome::Unsupported { reason } | CellOutcome::Failed { reason, .. } => Some(reason),
            CellOutcome::Measured { .. } => None,
        }
    }
}

impl PolicyCost<'_> {
    /// The name of the cost: `key-auth alone, of ROW`, `key-auth in ROW`, or the row.
    pub fn name(&self) -> String {
        match self.policy {
            None => self.row.name.clone(),
            Some(policy) if self.row.policies.len() == 1 => {
                let bare = &self.base.name;
                bare.strip_suffix(&format!(": {NO_POLICY}")).map_or_else(
                    || format!("{policy} alone, against {bare}"),
                    |row| format!("{policy} alone, of {row}"),
                )
            }
            Some(policy) => format!("{policy} in {}", self.row.name),
        }
    }
}

impl Findings<'_> {
    /// The worst verdict, for the exit status and the report's head.
    pub fn worst(&self) -> Option<Severity> {
        lint::worst(&self.verdicts)
    }
}
