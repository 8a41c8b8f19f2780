use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::result::PacingKind;

/// The facts that are known about a published result. An absent key means that the publication does not state it.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Evidence {
    /// The title of the publication.
    pub title: String,
    /// The machine.
    pub machine: Machine,
    /// Where the generator, the gateway and the backend ran: `one machine` or `separate machines`.
    pub topology: Vec<String>,
    /// The number of measurements of each figure.
    pub repeats: Option<u32>,
    /// Whether the publication states the spread of the figures, as a deviation, an interval or a range.
    pub spread: Option<bool>,
    /// The load generator.
    pub tool: Option<String>,
    /// The resolution of the load generator's latencies, in milliseconds.
    pub resolution_ms: Option<f64>,
    /// The figures.
    pub rows: Vec<RowEvidence>,
    /// Throughput with different numbers of cores, in ascending order.
    pub scaling: Vec<ScalingEvidence>,
    /// The cause of the scaling, if the publication shows it by a measurement.
    pub scaling_cause: Option<String>,
    /// Statements of the publication that its table should show.
    pub claims: Vec<Claim>,
    /// Which of these were measured: `p99.9`, `cpu per request`, `memory after load`, `errors by cause`, `generator
    /// saturation`, `cost per policy`, `behaviour during a configuration change`, `log loss`, `TLS handshakes/s`.
    pub measured: Vec<String>,
}

/// What results of gateways should hold, by the names used in `measured`: first what every measurement can tell, then
/// what needs rows of its own.
pub(super) const EXPECTED: [&str; 9] = [
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
pub(super) const ALWAYS: usize = 5;

/// The machine of the publication.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Machine {
    /// The cloud provider's name of the instance type.
    pub instance: Option<String>,
    /// The model of the processors.
    pub cpu_model: Option<String>,
    /// The numbers of the processors that the target shares with the generator or the backend.
    pub shared_cpus: Vec<u32>,
    /// Hardware threads per core.
    pub threads_per_core: Option<u32>,
}

/// A published figure, or one run of it.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RowEvidence {
    /// The name of the figure in the verdict: row, target and number of clients.
    pub name: String,
    /// The backend was measured directly, without a gateway.
    pub direct: bool,
    /// Whether the load was a closed or an open loop.
    pub pacing: Option<PacingKind>,
    /// The number of clients or connections.
    pub connections: Option<u32>,
    /// The maximum number of requests in flight on one connection.
    pub streams: Option<u32>,
    /// Open loop: the intended number of requests per second.
    pub target_rps: Option<f64>,
    /// The measured number of requests per second.
    pub rps: Option<f64>,
    /// From when latencies are measured.
    pub latency_from: Option<LatencyFrom>,
    /// The mean latency, in milliseconds.
    pub mean_ms: Option<f64>,
    /// The median latency, in milliseconds.
    pub p50_ms: Option<f64>,
    /// The 95th percentile of latency, in milliseconds.
    pub p95_ms: Option<f64>,
    /// The 99th percentile of latency, in milliseconds.
    pub p99_ms: Option<f64>,
    /// Closed loop: the 99th percentile of latency, corrected for the requests that were not sent during stalls (coordinated
    /// omission), in milliseconds.
    pub corrected_p99_ms: Option<f64>,
    /// The duration of the measurement, in seconds.
    pub duration_s: Option<f64>,
    /// The number of separate parts that this duration consists of, if the load had pauses.
    pub turns: Option<u32>,
    /// How far the first and the last interval of the measurement move its throughput, as a fraction of that of the others.
    pub edges_move: Option<f64>,
    /// The time from the end of the measurement to the last response to a request that was sent in it, in seconds.
    pub drain_s: Option<f64>,
    /// The number of requests that the publication announces.
    pub asked_count: Option<u64>,
    /// The number of requests that were sent.
    pub sent: Option<u64>,
    /// The number of requests that were answered.
    pub completed: Option<u64>,
    /// The fraction of requests that failed, 0 to 1.
    pub error_share: Option<f64>,
    /// The fraction of requests that were not answered in time, or that no connection was free for. A part of `error_share`.
    pub unanswered_share: Option<f64>,
    /// The number of connections that could not be opened.
    pub failed_connections: Option<u64>,
    /// Idle connections: the number of connections that stayed open to the end.
    pub held: Option<u64>,
    /// The number of streams that were open when the measurement started, if all were opened before.
    pub open_at_start: Option<u64>,
    /// Idle connections: the number of connections that the target closed.
    pub closed_idle: Option<u64>,
    /// The maximum number of open files of one process of the target.
    pub target_files_limit: Option<u64>,
    /// The largest number of open files that one process of the target had.
    pub target_files: Option<u64>,
    /// Whether this number was still growing at the end.
    pub target_files_grew: bool,
    /// The number of responses with an unexpected status: other than 2xx, unless other statuses were expected.
    pub not_2xx: Option<u64>,
    /// The number of responses with an expected status that failed a check of their content.
    pub failed_checks: Option<u64>,
    /// The number of connections that the target opened to its upstreams during the measurement.
    pub upstream_connects: Option<u64>,
    /// Whether the target's configuration keeps upstream connections alive.
    pub upstream_keepalive: Option<bool>,
    /// The message of the target's own configuration check, if it failed.
    pub configuration_error: Option<String>,
    /// Whether the target loaded the configuration that was shown.
    pub configuration_loaded: Option<bool>,
    /// The number of workers of the target.
    pub workers: Option<u32>,
    /// The number of processors of the target.
    pub target_cpus: Option<u32>,
    /// The fraction of its processors' time that the target used, 0 to 1.
    pub target_cpu: Option<f64>,
    /// The fraction of its processors' time that the backend used, 0 to 1.
    pub backend_cpu: Option<f64>,
    /// The fraction of its processors' time that the generator used, 0 to 1.
    pub generator_cpu: Option<f64>,
    /// The generator and the backend share processors, so their fractions add up.
    pub generator_with_backend: bool,
    /// The publication states that the backend was the bottleneck.
    pub backend_was_limit: Option<bool>,
    /// The row tests an overloaded or changing backend, so a backend at its limit is no fault.
    pub backend_limits: bool,
    /// Something was made to fail on purpose, so failed requests are part of the figure.
    pub events: bool,
    /// The mean number of requests in flight, as counted.
    pub in_flight: Option<f64>,
    /// The fraction of requests that were sent within 1 ms after they were due, 0 to 1.
    pub on_time_share: Option<f64>,
    /// The number of requests that were due and never sent.
    pub missed: Option<u64>,
    /// The requests per second in consecutive parts of the measurement.
    pub slices_rps: Vec<f64>,
    /// The fraction of processor time that other processes used, 0 to 1.
    pub others_cpu: Option<f64>,
    /// The fraction of processor time that the hypervisor gave to other virtual machines (steal), 0 to 1.
    pub steal_share: Option<f64>,
    /// The number of connections that the generator could not open because ports or file descriptors were used up.
    pub out_of_ports: Option<u64>,
    /// The number of connections that were dropped because a listen queue was full.
    pub listen_overflows: Option<u64>,
    /// Processes of the target that ended during the measurement, though the target as a whole went on.
    pub processes_ended: u64,
    /// Processes that the kernel killed during the measurement because there was no memory left.
    pub oom_kills: u64,
    /// Lines that the target logged as errors.
    pub target_errors: Vec<String>,
    /// Substitutes: what the target uses in place of a feature that the row tests, in words.
    pub stand_ins: Vec<String>,
    /// The fraction of requests that are missing in the records of a target that logs them, 0 to 1.
    pub records_lost: Option<f64>,
    /// Records that the target still held when the lab stopped waiting.
    pub records_pending: u64,
    /// What does not agree in the target's account of its log records, in words.
    pub account_disagrees: Option<String>,
}

/// From when a latency is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LatencyFrom {
    /// From when the request was due.
    Due,
    /// From when the request was sent.
    Sent,
}

/// Throughput with one number of cores.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Scaling")]
pub struct ScalingEvidence {
    /// The name of the series, if the publication has several.
    #[serde(default)]
    pub name: Option<String>,
    /// The number of cores.
    pub cores: f64,
    /// Requests per second.
    pub rps: f64,
}

/// A statement of the publication that its table should show.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Claim {
    /// The statement, as published.
    pub words: String,
    /// The row that the statement is about.
    pub row: String,
    /// The number of connections in the statement.
    pub connections: Option<u32>,
}
