//! The result of a run of the lab: one versioned JSON file, complete enough to be checked, drawn again and repeated without the
//! machine it was made on. `docs/reference/bench-result.md` describes every field.

use std::{
    collections::BTreeMap,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    engine::{Interruptions, LoadPhase, LoadPlan, LoadResult, LoadTally, Protocol},
    errors::FileError,
    manifest::Manifest,
    scenario::Scenario,
    stacks::StackSamples,
};

/// The schema's name and version. The number grows when a reader of the old version would misread the new one.
pub const SCHEMA: &str = "weir-bench/result/1";

/// Share of an open loop's requests that figures about its schedule cover.
const ON_TIME: f64 = 0.999;

/// One scenario, run once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ResultFile {
    pub schema: String,
    /// Scenario name and start time: unique enough to be a file name.
    pub id: String,
    /// RFC 3339, UTC.
    pub started_at: String,
    pub finished_at: String,
    /// The command line that made this file.
    pub command: Vec<String>,
    pub quick: bool,
    /// Seed of every random choice: order of targets, bootstrap.
    pub seed: u64,
    /// The scenario with every setting, after `quick` and command-line changes.
    pub scenario: Scenario,
    /// The machine of the target, and of everything else unless `machines` says otherwise.
    pub manifest: Manifest,
    /// The machines of a run on several ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub machines: Vec<MachineRecord>,
    pub targets: Vec<TargetRecord>,
    /// Backends that are not the lab's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backends: Vec<TargetRecord>,
    pub cells: Vec<Cell>,
    /// Why the run ended before all was measured: it was interrupted, or the lab failed. Absent for a complete run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<String>,
    /// Highest rates that kept an objective.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub searches: Vec<Search>,
    /// User instructions, counted by valgrind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counts: Vec<InstructionCount>,
    /// Where curves over the number of clients bend.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub knees: Vec<Knee>,
    /// Where targets spent their time in the slowest run of each cell, with `--flame-graph`; or why that is not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub profiles: Vec<StackProfile>,
}

/// Where a target spent its processor time in the slowest run of a cell, by samples of perf.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StackProfile {
    pub row: String,
    pub target: String,
    pub level: LoadLevel,
    pub repeat: u32,
    /// Requests (or messages) per second of this run.
    pub rps: f64,
    /// Frames from the outermost, separated by `;`, and the number of samples.
    pub stacks: BTreeMap<String, u64>,
    /// Why there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// A machine of a run on several ones.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MachineRecord {
    /// The address of its agent, or `this machine`.
    pub name: String,
    pub roles: Vec<MachineRole>,
    pub manifest: Manifest,
    /// Changes with every start of the kernel: agents with the same value share the processors of one machine.
    #[serde(default)]
    pub boot_id: String,
}

/// What a machine does in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MachineRole {
    Generator,
    Gateway,
    Backend,
}

/// One generator's part of a run on several machines.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct GeneratorShare {
    /// The name of its machine.
    pub machine: String,
    /// Clients.
    pub connections: u64,
    /// Microseconds that its wall clock was ahead of that of the machine that commanded the run.
    pub clock_ahead_us: f64,
    /// The clocks are compared exactly to this, in each direction.
    pub clock_uncertainty_us: f64,
    /// How much later than agreed it began.
    pub late_us: f64,
    /// Complete answers of the measurement.
    pub answered: u64,
    /// The processors that it was allowed to use.
    #[serde(default)]
    pub cpus: Vec<u32>,
    /// The share of their time that it used for work.
    #[serde(default)]
    pub busy: f64,
    /// How many of them it used, with the time that it waited actively for requests to be due.
    #[serde(default)]
    pub cpus_used: f64,
    /// Why there is nothing of it in the figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
    /// Its machine during the measured part.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host: Vec<HostSample>,
}

/// User instructions of a target for one request of a row, counted by valgrind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct InstructionCount {
    pub row: String,
    pub target: String,
    pub per_request: f64,
}

/// The level of a curve beyond which more clients add less throughput than latency.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Knee {
    pub row: String,
    pub target: String,
    pub workers: u32,
    /// The level, and the medians there; absent when no level is the knee.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rps: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_ms: Option<f64>,
    /// Why no level is the knee.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// The highest rate at which a target kept an objective.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Search {
    pub objective: String,
    pub row: String,
    pub target: String,
    pub connections: u32,
    #[serde(default = "default_workers")]
    pub workers: u32,
    /// Requests per second; absent when even the lowest rate tried broke the objective.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// Why the search ended without a rate, if the target failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// Every rate that was tried, in order.
    pub attempts: Vec<SearchAttempt>,
}

fn default_workers() -> u32 {
    1
}

/// One rate tried by a search.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct SearchAttempt {
    pub rate: f64,
    pub achieved: f64,
    /// Milliseconds from when requests were due.
    pub mean_ms: f64,
    pub p99_ms: f64,
    pub error_share: f64,
    /// The time after their due moment within which 99.9 % of the requests were sent; absent when more than 0.1 % waited for a
    /// connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_within_us: Option<f64>,
    /// The same limit of the machine just before the run, by [`MeasuredRun::noticed_within_us`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noticed_within_us: Option<f64>,
    pub kept: bool,
}

/// A target as it was run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TargetRecord {
    pub name: String,
    /// First line of the target's output about its version.
    pub version: Option<String>,
    /// For policies that the target replaces by something else: what that is.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub instead: BTreeMap<String, String>,
    /// Every configuration the target was started with, one per row.
    pub configurations: Vec<Configuration>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Configuration {
    pub row: String,
    /// File names and contents as the target read them, with its own directory replaced by `.`.
    pub files: BTreeMap<String, String>,
    /// SHA-256 over names and contents.
    pub sha256: String,
    pub command: Vec<String>,
    /// The result of the target's own configuration check; `None` when it has no checker.
    pub check: Option<ConfigurationCheck>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ConfigurationCheck {
    pub command: Vec<String>,
    pub passed: bool,
    pub output: String,
}

/// One row of the scenario at one level on one target.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(from = "CellForm", into = "CellForm")]
pub struct Cell {
    pub row: String,
    pub target: String,
    pub level: LoadLevel,
    pub outcome: CellOutcome,
}

/// The position of a cell on the scenario's axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadLevel {
    pub connections: u32,
    /// Requests (or messages) per second to send; absent in a closed loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// Worker threads of the target.
    pub workers: u32,
}

#[derive(Clone, Debug)]
pub enum CellOutcome {
    Measured {
        runs: Vec<MeasuredRun>,
    },
    /// The target does not support what the row needs.
    Unsupported {
        reason: String,
    },
    /// The target supports the row, but failed to start, to become ready or to stay alive.
    Failed {
        reason: String,
        runs: Vec<MeasuredRun>,
    },
}

/// A cell as it stands in the file. Written out, because serde's `flatten` turns numeric map keys into strings.
#[derive(Serialize, Deserialize)]
struct CellForm {
    row: String,
    target: String,
    level: LoadLevel,
    status: CellStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    runs: Vec<MeasuredRun>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum CellStatus {
    Measured,
    Unsupported,
    Failed,
}

impl From<CellForm> for Cell {
    fn from(form: CellForm) -> Cell {
        let reason = form.reason.unwrap_or_default();
        let outcome = match form.status {
            CellStatus::Measured => CellOutcome::Measured { runs: form.runs },
            CellStatus::Unsupported => CellOutcome::Unsupported { reason },
            CellStatus::Failed => CellOutcome::Failed { reason, runs: form.runs },
        };
        Cell { row: form.row, target: form.target, level: form.level, outcome }
    }
}

impl From<Cell> for CellForm {
    fn from(cell: Cell) -> CellForm {
        let (status, reason, runs) = match cell.outcome {
            CellOutcome::Measured { runs } => (CellStatus::Measured, None, runs),
            CellOutcome::Unsupported { reason } => (CellStatus::Unsupported, Some(reason), Vec::new()),
            CellOutcome::Failed { reason, runs } => (CellStatus::Failed, Some(reason), runs),
        };
        CellForm { row: cell.row, target: cell.target, level: cell.level, status, reason, runs }
    }
}

impl Cell {
    /// The runs that took place, also those before a failure.
    pub fn runs(&self) -> &[MeasuredRun] {
        match &self.outcome {
            CellOutcome::Measured { runs } | CellOutcome::Failed { runs, .. } => runs,
            CellOutcome::Unsupported { .. } => &[],
        }
    }
}

/// One repeat of one cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MeasuredRun {
    pub repeat: u32,
    /// Position in the interleaved order of the whole scenario, from 0.
    pub order: u32,
    /// RFC 3339, UTC.
    pub started_at: String,
    /// The plan given to the load engine.
    pub plan: LoadPlan,
    /// The load engine's results without the warm-up, raw histograms included.
    pub load: LoadResult,
    /// The slices of the run, if there were several, in the order of time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slices: Vec<SliceFigures>,
    /// Processors the generator was allowed to use; of several generators, those of all.
    pub generator_cpus: Vec<u32>,
    /// The generators of a run on several machines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub generators: Vec<GeneratorShare>,
    /// Processes other than the generator, sampled over the measured part.
    pub processes: Vec<Process>,
    pub host: Vec<HostSample>,
    /// Interruptions of the generator's processor, measured before the run; only for open loops whose generator has a processor
    /// of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interruptions: Option<Interruptions>,
    /// Lines of the target's log at level error or above during the run, at most 20.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub target_errors: Vec<String>,
    /// Instructions of the target, where the machine has counters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<Instructions>,
    /// Only for a target that records requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub records: Option<AccessRecords>,
    /// Only for rows that change a route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route_changes: Option<RouteChanges>,
    /// Only for rows with a fan-out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fan_out: Option<FanOutDeliveries>,
    /// Only for rows with clients that connect all at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_clients: Option<NewClientsServed>,
    /// Resident bytes of the target before its first load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rss_before_bytes: Option<u64>,
    /// The limit of open files of one process of the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_files: Option<u64>,
    /// Resident bytes of the target a moment after the load ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rss_after_bytes: Option<u64>,
    /// What this memory is, where the kernel says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_after: Option<MemoryKinds>,
    /// Samples of where the target spent its time; of the slowest run they are in [`ResultFile::profiles`].
    #[serde(skip)]
    pub stacks: StackSamples,
}

/// The memory of all processes of a target at one moment, as the kernel divides it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryKinds {
    /// With a page that several processes share divided among them: a sum of resident bytes counts it for each.
    pub proportional_bytes: u64,
    /// Resident pages that no file is behind: those of allocators, and stacks.
    pub anonymous_bytes: u64,
    /// Of these, what an allocator has given back, and the kernel takes when it needs it.
    pub given_back_bytes: u64,
    pub swapped_bytes: u64,
}

impl MemoryKinds {
    /// What allocators and stacks hold.
    pub fn held_bytes(self) -> u64 {
        self.anonymous_bytes.saturating_sub(self.given_back_bytes)
    }
}

/// Records that a target with a logging policy wrote in a run, warm-up and drain included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessRecords {
    /// Requests that were answered.
    pub answered: u64,
    /// Records that reached the file, the store or the receiver. A file has a few more than there were answered requests: those
    /// of the probes before the load.
    pub written: u64,
    /// The target's own account, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<AccountOfRun>,
}

/// A target's own account of the records of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountOfRun {
    /// Requests that the load began; the target may have answered some that the lab did not wait for.
    pub begun: u64,
    pub accepted: u64,
    pub delivered: u64,
    pub rejected: u64,
    pub dropped: u64,
    /// Still in the target when the lab stopped waiting.
    pub pending: u64,
}

impl AccessRecords {
    /// The first contradiction between the target's numbers, the requests made and the records at the destination. `None` if the
    /// target has no account, or if all agree.
    pub fn disagreement(self) -> Option<String> {
        let AccountOfRun { begun, accepted, delivered, rejected, dropped, pending } = self.account?;
        let sum = delivered + rejected + dropped + pending;
        if accepted != sum {
            return Some(format!("{accepted} records were accepted, and {sum} are accounted for"));
        }
        if accepted < self.answered || accepted > begun {
            let answered = self.answered;
            return Some(format!("{accepted} records were accepted of {begun} requests, {answered} of them answered"));
        }
        (delivered != self.written)
            .then(|| format!("{delivered} records were delivered, and {} are at the destination", self.written))
    }

    /// Share of the answered requests without a record, 0 to 1. Records that are still in the target are not lost.
    pub fn lost_share(self) -> f64 {
        self.answered.saturating_sub(self.written + self.pending()) as f64 / self.answered.max(1) as f64
    }

    /// Records that were still in the target when the lab stopped waiting.
    pub fn pending(self) -> u64 {
        self.account.map_or(0, |account| account.pending)
    }
}

/// What a hub delivered beside the load of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FanOutDeliveries {
    /// Deliveries that arrived whole and with a valid signature, of events that were due in the measured part.
    pub delivered: u64,
    /// Those that did not.
    pub failed: u64,
    /// Milliseconds from when an event was due until its last subscriber had it: the longest of all events.
    pub longest_ms: f64,
}

/// What became of the clients that connected all at once beside the load of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NewClientsServed {
    pub answered: u64,
    /// Connections and requests without an expected answer.
    pub failed: u64,
    /// Milliseconds from when all connected until the last one had its answer: the longest of all times.
    pub longest_ms: f64,
}

/// Changes of a route during a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RouteChanges {
    /// For each change, milliseconds from its beginning to the first request that shows it, in the order of time.
    pub visible_after_ms: Vec<f64>,
    /// For each of them, milliseconds until the target said that all its workers serve it; empty unless it says so.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub served_after_ms: Vec<f64>,
    /// Changes that the target refused, or that no request showed in time.
    pub failed: u64,
}

impl RouteChanges {
    /// The time within which this percentage of the changes was visible.
    pub fn visible_ms(&self, percent: f64) -> Option<f64> {
        share_of(&self.visible_after_ms, percent)
    }

    /// The time within which all workers served this percentage of the changes.
    pub fn served_ms(&self, percent: f64) -> Option<f64> {
        share_of(&self.served_after_ms, percent)
    }
}

fn share_of(times: &[f64], percent: f64) -> Option<f64> {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    let last = times.len().checked_sub(1)?;
    times.get((last as f64 * percent / 100.0).round() as usize).copied()
}

/// The figures of one slice of a run. Comparisons are computed from these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SliceFigures {
    /// Requests (or messages) per second.
    pub rps: f64,
    /// CPU microseconds of the target for each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_cpu_us: Option<f64>,
    /// The same for its threads that process requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_cpu_us: Option<f64>,
}

/// Who sets the pace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Pacing")]
pub enum PacingKind {
    /// Closed loop: the next request is sent after the response to the previous one.
    Closed,
    /// Open loop: requests are sent at fixed times, whether or not earlier ones have been answered.
    Open,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessRole {
    Target,
    Backend,
    /// What the target asks, or sends its access records to, beside the backend.
    Service,
}

/// A process tree over time: a target with several processes is one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Process {
    pub role: ProcessRole,
    pub name: String,
    /// Processors it is pinned to; empty when it may use all.
    pub cpus: Vec<u32>,
    pub samples: Vec<ProcessSample>,
}

/// Counters grow from the start of the run's measured part; gauges show the moment of the sample.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct ProcessSample {
    pub at_s: f64,
    pub cpu_user_s: f64,
    pub cpu_system_s: f64,
    pub rss_bytes: u64,
    pub fds: u64,
    /// The highest number of open files of a single process among them.
    #[serde(default)]
    pub fds_most: u64,
    pub threads: u32,
    pub switches_voluntary: u64,
    pub switches_involuntary: u64,
    /// Time its threads were runnable and waited for a processor.
    pub run_delay_s: f64,
    /// Processes that have ended since the first sample, though the target as a whole goes on: after a crash, or replaced by others.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ended: u64,
    /// CPU seconds of the threads that process requests, for targets whose manifest names them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_cpu_s: Option<f64>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Process {
    /// Processes that ended during the measured part.
    pub fn ended(&self) -> u64 {
        self.samples.last().map_or(0, |sample| sample.ended)
    }

    /// CPU seconds between the first and the last sample.
    pub fn cpu_s(&self) -> f64 {
        let (user, system) = self.cpu_split_s();
        user + system
    }

    /// User and system CPU seconds between the first and the last sample.
    pub fn cpu_split_s(&self) -> (f64, f64) {
        let Some(first) = self.samples.first() else { return (0.0, 0.0) };
        // The maximum, not the last sample: once a process has ended, its counters can no longer be read.
        let most = |of: fn(&ProcessSample) -> f64| self.samples.iter().map(of).fold(of(first), f64::max);
        (most(|one| one.cpu_user_s) - first.cpu_user_s, most(|one| one.cpu_system_s) - first.cpu_system_s)
    }

    /// CPU seconds of the threads that process requests, between the first and the last sample.
    pub fn worker_cpu_s(&self) -> Option<f64> {
        let first = self.samples.first()?.worker_cpu_s?;
        // The maximum: see `cpu_split_s`.
        let most = self.samples.iter().filter_map(|one| one.worker_cpu_s).fold(first, f64::max);
        Some(most - first)
    }

    /// Seconds between the first and the last sample.
    pub fn span_s(&self) -> f64 {
        match (self.samples.first(), self.samples.last()) {
            (Some(first), Some(last)) => last.at_s - first.at_s,
            _ => 0.0,
        }
    }

    pub fn rss_peak_bytes(&self) -> u64 {
        self.samples.iter().map(|sample| sample.rss_bytes).max().unwrap_or(0)
    }
}

/// The machine as a whole. Counters grow from the start of the run's measured part.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct HostSample {
    pub at_s: f64,
    pub cpu_busy_s: f64,
    /// The part of `cpu_busy_s` that served interrupts (network traffic among them) and is charged to no process.
    #[serde(default)]
    pub cpu_interrupts_s: f64,
    pub cpu_idle_s: f64,
    /// Time the hypervisor gave to other machines (steal).
    pub cpu_steal_s: f64,
    pub run_queue: u32,
    pub retransmits: u64,
    pub listen_overflows: u64,
    pub active_opens: u64,
    pub passive_opens: u64,
    pub time_wait: u64,
    pub memory_available_bytes: u64,
    /// Processes that the kernel has killed because there was no memory left, on the whole machine.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub oom_kills: u64,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Instructions {
    pub user: u64,
    pub kernel: u64,
}

impl ResultFile {
    /// User instructions of a target for one request of a row, where valgrind counted them.
    pub fn counted(&self, row: &str, target: &str) -> Option<f64> {
        let one = self.counts.iter().find(|one| one.row == row && one.target == target);
        one.map(|one| one.per_request)
    }
}

impl MachineRecord {
    /// Whether these are one machine: agents of one machine have the same start of its kernel.
    fn is_same(&self, other: &MachineRecord) -> bool {
        self.name == other.name || (!self.boot_id.is_empty() && self.boot_id == other.boot_id)
    }
}

fn is_one_machine(machines: &[MachineRecord]) -> bool {
    machines.iter().all(|one| one.is_same(&machines[0]))
}

fn has_role(machines: &[MachineRecord], name: &str, role: MachineRole) -> bool {
    let named = machines.iter().find(|one| one.name == name);
    named.is_some_and(|one| machines.iter().any(|other| other.roles.contains(&role) && one.is_same(other)))
}

impl ResultFile {
    /// Whether everything ran on one machine.
    pub fn is_one_machine(&self) -> bool {
        is_one_machine(&self.machines)
    }

    /// Whether the machine of this name is also that of a role.
    pub fn has_role(&self, name: &str, role: MachineRole) -> bool {
        has_role(&self.machines, name, role)
    }

    /// Whether the backends ran on the target's machine.
    pub fn has_backend_beside_target(&self) -> bool {
        let mut backends = self.machines.iter().filter(|one| one.roles.contains(&MachineRole::Backend));
        self.machines.is_empty() || backends.any(|one| self.has_role(&one.name, MachineRole::Gateway))
    }
}

impl MeasuredRun {
    /// Idle connections that stayed open to the end.
    pub fn held(&self) -> Option<u64> {
        let idle = matches!(self.plan.protocol, Protocol::Idle { .. });
        idle.then_some(self.load.connections.open_at_end)
    }

    pub fn throughput(&self) -> f64 {
        self.load.rate()
    }

    pub fn measured_s(&self) -> f64 {
        self.load.measured_ns as f64 / 1e9
    }

    /// Answers with an expected status and without a failed check per second, of those that arrived during the measured part.
    pub fn goodput(&self) -> f64 {
        let measured = self.load.intervals.iter().filter(|interval| interval.phase == LoadPhase::Measured);
        let (good, ns) = measured.fold((0, 0), |(good, ns), interval| {
            let LoadTally { completed, unexpected, failed_checks, .. } = &interval.tally;
            (good + completed - unexpected - failed_checks, ns + interval.length_ns)
        });
        if ns == 0 { 0.0 } else { good as f64 * 1e9 / ns as f64 }
    }

    /// The longest latency of an answered request, in milliseconds; in an open loop from when it was due.
    pub fn longest_ms(&self) -> Option<f64> {
        let latency = &self.load.total.latency;
        (!latency.is_empty()).then(|| latency.max() as f64 / 1e6)
    }

    /// How long answers with an unexpected status took, in milliseconds, at a percentile between 0 and 100.
    pub fn refusal_ms(&self, percentile: f64) -> Option<f64> {
        let refused = &self.load.total.refused;
        (!refused.is_empty()).then(|| refused.quantile(percentile / 100.0) as f64 / 1e6)
    }

    /// Instructions of the target for each completed request, where counters can be read.
    pub fn instructions_per_request(&self) -> Option<f64> {
        let Instructions { user, kernel } = self.instructions?;
        let completed = self.throughput() * self.measured_s();
        (completed > 0.0).then(|| (user + kernel) as f64 / completed)
    }

    /// Milliseconds from when a request was due, at a percentile between 0 and 100.
    pub fn latency_ms(&self, percentile: f64) -> f64 {
        self.load.total.latency.quantile(percentile / 100.0) as f64 / 1e6
    }

    /// Milliseconds; 0 when no request was answered.
    pub fn mean_latency_ms(&self) -> f64 {
        let latency = &self.load.total.latency;
        if latency.is_empty() { 0.0 } else { latency.mean() / 1e6 }
    }

    /// Open loop: microseconds after their due moment within which 99.9 % of the requests were sent; `None` when more than 0.1 %
    /// waited for a connection.
    pub fn sent_within_us(&self) -> Option<f64> {
        let ns = self.plan.pacing.is_open().then(|| self.load.total.sent_within(ON_TIME)).flatten()?;
        Some(ns as f64 / 1e3)
    }

    /// Microseconds within which a thread that only reads the clock notices 99.9 % of all moments, on the generator's
    /// processor just before the run. No load engine can send more punctually there.
    pub fn noticed_within_us(&self) -> Option<f64> {
        Some(self.interruptions.as_ref()?.noticed_within(ON_TIME) as f64 / 1e3)
    }

    /// Share of the due requests that were never sent or had no complete answer, 0 to 1; latency does not include these.
    pub fn lost_share(&self) -> f64 {
        let total = &self.load.total;
        (total.errors.sum() + total.missed) as f64 / total.due.max(1) as f64
    }

    /// Share of the due exchanges that failed, 0 to 1: errors, requests never sent, unexpected statuses and failed checks.
    pub fn error_share(&self) -> f64 {
        let total = &self.load.total;
        total.failed() as f64 / (total.due.max(1)) as f64
    }

    pub fn role(&self, role: ProcessRole) -> impl Iterator<Item = &Process> {
        self.processes.iter().filter(move |process| process.role == role)
    }

    /// CPU microseconds the target spent for each completed request.
    ///
    /// Samples and requests cover slightly different spans, so the quotient of their rates is taken.
    pub fn target_cpu_us(&self) -> Option<f64> {
        let target = self.role(ProcessRole::Target).next()?;
        let rate = self.throughput();
        (rate > 0.0 && target.span_s() > 0.0).then(|| target.cpu_s() / target.span_s() / rate * 1e6)
    }

    /// The same for the threads of the target that process requests; `None` unless its manifest names them.
    pub fn worker_cpu_us(&self) -> Option<f64> {
        let target = self.role(ProcessRole::Target).next()?;
        let (rate, used_s) = (self.throughput(), target.worker_cpu_s()?);
        (rate > 0.0 && target.span_s() > 0.0).then(|| used_s / target.span_s() / rate * 1e6)
    }

    /// Share of the processors assigned to the processes of this role that they used: 1 is all of them.
    pub fn utilisation(&self, role: ProcessRole) -> Option<f64> {
        let mut cpus: Vec<u32> = Vec::new();
        let mut used = 0.0;
        for process in self.role(role).filter(|process| process.span_s() > 0.0) {
            used += process.cpu_s() / process.span_s();
            cpus.extend(&process.cpus);
        }
        cpus.sort_unstable();
        cpus.dedup();
        (!cpus.is_empty()).then(|| used / cpus.len() as f64)
    }

    /// CPU seconds per second that the generator used.
    pub fn generator_cpus_used(&self) -> f64 {
        let elapsed = (self.load.measured_ns + self.load.drain_ns).max(1) as f64;
        let busy: u64 = self.load.generator.threads.iter().map(|thread| thread.busy_ns()).sum();
        busy as f64 / elapsed
    }

    pub fn rss_peak_bytes(&self) -> Option<u64> {
        self.role(ProcessRole::Target).next().map(Process::rss_peak_bytes)
    }

    /// Connections accepted on this host during the measured part that the generator's clients did not open: with everything on
    /// one host, those of the target to its upstreams.
    pub fn upstream_connects(&self) -> Option<u64> {
        let (first, last) = (self.host.first()?, self.host.last()?);
        let clients = if self.plan.keep_alive { 0 } else { self.load.total.completed };
        Some((last.passive_opens - first.passive_opens).saturating_sub(clients))
    }
}

impl ResultFile {
    /// Reads a result file; a file of another schema version is refused with an error that names that version.
    pub fn read(path: &Path) -> Result<ResultFile, ResultFileError> {
        ResultFile::of_text(&fs::read_to_string(path).map_err(FileError::at(path))?, path)
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// It is not a result that this version reads. `path` is the name in the message.
    pub fn of_text(text: &str, path: &Path) -> Result<ResultFile, ResultFileError> {
        #[derive(Deserialize)]
        struct Probe {
            schema: String,
        }
        let place = || path.to_owned();
        let probe: Probe =
            serde_json::from_str(text).map_err(|source| ResultFileError::NotAResult { path: place(), source })?;
        if probe.schema != SCHEMA {
            return Err(ResultFileError::OtherSchema { path: place(), schema: probe.schema });
        }
        serde_json::from_str(text).map_err(|source| ResultFileError::Syntax { path: place(), source })
    }

    /// Writes the file whole or not at all.
    pub fn write(&self, path: &Path) -> Result<(), FileError> {
        write_json(path, self)
    }

    /// The policies of a row for which a target has a replacement: their names, and the replacements.
    pub fn stand_ins<'a>(&'a self, row: &'a str, target: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        let policies = self.scenario.row(row).into_iter().flat_map(|row| row.policies.keys());
        let record = self.targets.iter().find(|record| record.name == target);
        policies.filter_map(move |policy| Some((policy.as_str(), record?.instead.get(policy)?.as_str())))
    }

    /// The cells of one target in one row, in the order of their levels.
    pub fn series<'a>(&'a self, row: &'a str, target: &'a str) -> impl Iterator<Item = &'a Cell> {
        self.cells.iter().filter(move |cell| cell.row == row && cell.target == target)
    }
}

/// Writes a file of JSON whole or not at all.
pub(crate) fn write_json(path: &Path, content: &impl Serialize) -> Result<(), FileError> {
    let name = FileError::at(path);
    let partial = path.with_extension("json.partial");
    let mut file = fs::File::create(&partial).map_err(&name)?;
    let text = serde_json::to_vec(content).expect("it has string keys and finite numbers");
    file.write_all(&text).map_err(&name)?;
    drop(file);
    fs::rename(&partial, path).map_err(name)
}

/// Why a file is not a result that this version of the lab reads.
#[derive(Debug, thiserror::Error)]
pub enum ResultFileError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{}: not a result of `weir bench run`: {source}", .path.display())]
    NotAResult { path: PathBuf, source: serde_json::Error },
    #[error("{}: its schema is \"{schema}\"; this version of the lab reads \"{SCHEMA}\"", .path.display())]
    OtherSchema { path: PathBuf, schema: String },
    #[error("{}: {source}", .path.display())]
    Syntax { path: PathBuf, source: serde_json::Error },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(name: &str, boot_id: &str, roles: &[MachineRole]) -> MachineRecord {
        let (name, boot_id) = (name.to_owned(), boot_id.to_owned());
        MachineRecord { name, roles: roles.to_vec(), manifest: Manifest::default(), boot_id }
    }

    #[test]
    fn agents_of_one_machine_count_as_one() {
        use MachineRole::{Backend, Gateway, Generator};
        let [one, two, three] = [
            machine("one", "a", &[Generator]),
            machine("two", "a", &[Gateway]),
            machine("three", "b", &[Generator, Backend]),
        ];
        let all = [one.clone(), two.clone(), three.clone()];
        assert!(has_role(&all, "one", Gateway) && has_role(&all, "three", Backend));
        assert!(!has_role(&all, "three", Gateway) && !has_role(&all, "one", Backend));
        assert!(is_one_machine(&[one, two]) && is_one_machine(&[]));
        assert!(!is_one_machine(&all), "one generator is elsewhere");
    }
}
