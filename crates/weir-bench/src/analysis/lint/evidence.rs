use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::result::PacingKind;

/// What can be known of a result. Absent means not stated.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Evidence {
    /// What the publication is called.
    pub title: String,
    /// Where it was measured.
    pub machine: Machine,
    /// What the publication says about where the generator, the gateway and the backend ran: `one machine`,
    /// `separate machines`.
    pub topology: Vec<String>,
    /// How often each figure was measured.
    pub repeats: Option<u32>,
    /// Whether a spread stands beside the figures: deviation, interval, range.
    pub spread: Option<bool>,
    /// Tool that made the load.
    pub tool: Option<String>,
    /// What the tool's latencies are accurate to, milliseconds.
    pub resolution_ms: Option<f64>,
    /// The figures.
    pub rows: Vec<RowEvidence>,
    /// Throughput at several sizes, the smallest first.
    pub scaling: Vec<ScalingEvidence>,
    /// Why scaling is as it is, shown by a measurement.
    pub scaling_cause: Option<String>,
    /// What it says in words that its table should show.
    pub claims: Vec<Claim>,
    /// What was measured, of `p99.9`, `cpu per request`, `memory after load`, `errors by cause`, `generator saturation`,
    /// `cost per policy`, `behaviour during a configuration change`, `log loss` and `TLS handshakes/s`.
    pub measured: Vec<String>,
}

/// What results of gateways should hold, by the names used in `measured`: first what every measurement can tell, then
/// what needs rows of its own.
pub const EXPECTED: [&str; 9] = [
    "p99.9",
    "cpu per request",
    "memory after load",
    "errors by cause",
    "generator saturation",
    "cost per policy",
    "behaviour during a configuration change",
    "log loss",
    "TLS handshakes/s",
];
/// How many of them every measurement can tell.
pub const ALWAYS: usize = 5;

/// Where a publication measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Machine {
    /// The provider's name for the machine.
    pub instance: Option<String>,
    /// What its processors are.
    pub cpu_model: Option<String>,
    /// Processors that the target shares with the generator or the backend.
    pub shared_cpus: Vec<u32>,
    /// Hardware threads of each core.
    pub threads_per_core: Option<u32>,
}

/// A figure, or one run behind it.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RowEvidence {
    /// Row, target and level, as verdicts shall call them.
    pub name: String,
    /// No gateway in between: the backend is what is measured.
    pub direct: bool,
    /// Who sets the pace.
    pub pacing: Option<PacingKind>,
    /// Clients, or connections.
    pub connections: Option<u32>,
    /// Requests that one connection may have in flight.
    pub streams: Option<u32>,
    /// Open loop: requests per second asked for.
    pub target_rps: Option<f64>,
    /// Requests per second that were carried.
    pub rps: Option<f64>,
    /// Where latencies begin.
    pub latency_from: Option<LatencyFrom>,
    /// Latencies: their mean,
    pub mean_ms: Option<f64>,
    /// their median,
    pub p50_ms: Option<f64>,
    /// their 95th percentile,
    pub p95_ms: Option<f64>,
    /// and their 99th.
    pub p99_ms: Option<f64>,
    /// Closed loop: the 99th percentile with the requests added that were not sent during stalls.
    pub corrected_p99_ms: Option<f64>,
    /// How long was measured.
    pub duration_s: Option<f64>,
    /// From the end of the measured part to the last answer to what was sent in it.
    pub drain_s: Option<f64>,
    /// Requests that were announced.
    pub asked_count: Option<u64>,
    /// Requests that were sent.
    pub sent: Option<u64>,
    /// Requests that were answered.
    pub completed: Option<u64>,
    /// Share of exchanges that failed, 0 to 1.
    pub error_share: Option<f64>,
    /// Connections that could not be opened.
    pub failed_connections: Option<u64>,
    /// Idle connections: how many were open to the end.
    pub held: Option<u64>,
    /// Streams that were open when the clock started, where all are opened before.
    pub open_at_start: Option<u64>,
    /// Those that the target closed before.
    pub closed_idle: Option<u64>,
    /// Open files that one process of the target may have,
    pub target_files_limit: Option<u64>,
    /// the most that one had,
    pub target_files: Option<u64>,
    /// and whether that was still growing at the end.
    pub target_files_grew: bool,
    /// Answers that were not what was expected: 2xx unless something else was.
    pub not_2xx: Option<u64>,
    /// Connections the target opened to its upstreams while measured.
    pub upstream_connects: Option<u64>,
    /// Settings of the target that matter here, as found in its configuration.
    pub upstream_keepalive: Option<bool>,
    /// What the target's own checker said about its configuration when it failed.
    pub configuration_error: Option<String>,
    /// Whether the target loaded the configuration that was shown.
    pub configuration_loaded: Option<bool>,
    /// Workers of the target,
    pub workers: Option<u32>,
    /// and the processors they were given.
    pub target_cpus: Option<u32>,
    /// Share of its processors that the target used, 0 to 1,
    pub target_cpu: Option<f64>,
    /// the backend,
    pub backend_cpu: Option<f64>,
    /// and the generator.
    pub generator_cpu: Option<f64>,
    /// Generator and backend on the same processors: their shares add up.
    pub generator_with_backend: bool,
    /// The publication itself says that the backend was the limit.
    pub backend_was_limit: Option<bool>,
    /// That is what the row is about: how a target treats a backend that can do no more, or that changes.
    pub backend_limits: bool,
    /// Something was made to fail on purpose: what was lost is the figure.
    pub events: bool,
    /// Mean of the exchanges in flight, counted.
    pub in_flight: Option<f64>,
    /// Share of sends that left within 1 ms of being due.
    pub on_time_share: Option<f64>,
    /// Requests that were due and never left.
    pub missed: Option<u64>,
    /// Requests per second in consecutive slices of the measured part.
    pub slices_rps: Vec<f64>,
    /// Share of processor time that processes outside the measurement used.
    pub others_cpu: Option<f64>,
    /// Share of processor time the hypervisor gave to others.
    pub steal_share: Option<f64>,
    /// Connections the generator could not open for want of ports or descriptors.
    pub out_of_ports: Option<u64>,
    /// Connections that were dropped because a listen queue was full.
    pub listen_overflows: Option<u64>,
    /// What the target logged as errors.
    pub target_errors: Vec<String>,
    /// What the target has in place of what the row is about, in words.
    pub stand_ins: Vec<String>,
    /// Share of the requests that a target which records them left out, 0 to 1.
    pub records_lost: Option<f64>,
    /// What does not agree in the target's account of its records, in words.
    pub account_disagrees: Option<String>,
}

/// Where a latency begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LatencyFrom {
    /// When the request was due.
    Due,
    /// When the request was sent.
    Sent,
}

/// Throughput at one size.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Scaling")]
pub struct ScalingEvidence {
    /// What was measured at several sizes, where there is more than one such thing.
    #[serde(default)]
    pub name: Option<String>,
    /// The size.
    pub cores: f64,
    /// What it carried.
    pub rps: f64,
}

/// Something a publication says in words that its table should show.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Claim {
    /// The words.
    pub words: String,
    /// The row it is about.
    pub row: String,
    /// How many are claimed.
    pub connections: Option<u32>,
}
