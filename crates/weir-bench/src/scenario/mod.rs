//! A scenario: what is measured, on which targets, how often, and what others published for the same. Values only.

mod ablation;
mod error;
mod keys;
mod load;
mod network;
mod workload;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    engine::{Pacing, Selection},
    target,
};

pub use ablation::{Ablation, NO_POLICY};
pub use error::ScenarioError;
pub use load::{check_settings, names, parse, read};
pub use network::NetworkSettings;
pub use workload::{LoadSettings, RequestSpec, Speak};

/// What is measured, on which targets and how often, and which figures others have published for it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The name of the scenario. The names of its result files begin with it.
    pub name: String,
    /// The title of the report.
    pub title: String,
    /// A description for the report: which published procedure the scenario repeats, and what it does differently.
    pub about: String,
    /// The publication whose figures are shown next to the measured ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<PublishedIn>,
    /// The targets, by the names of their folders in `bench/peers` or of `variants`, in the order of the tables. `weir@old` is
    /// another version of the program of `weir`, which `--program weir@old=PATH` gives.
    pub targets: Vec<String>,
    /// Additional targets: a peer with other settings, under a new name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub variants: BTreeMap<String, Variant>,
    /// The target that all others are compared with.
    pub baseline: String,
    /// Numbers of worker threads or processes of the targets. With several numbers, everything is measured with each of them.
    #[serde(default = "default_workers")]
    pub workers: Vec<u32>,
    /// Numbers of clients (the levels), in ascending order. They are the horizontal axis of the plots.
    pub connections: Vec<u32>,
    /// The backend behind the targets.
    #[serde(default)]
    pub backend: BackendSettings,
    /// The load, unless a row sets its own.
    #[serde(default)]
    pub load: LoadSettings,
    /// A network with delays and losses between the clients and the targets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkSettings>,
    /// Durations and repeats of the measurement.
    #[serde(default)]
    pub method: MeasuringMethod,
    /// After the levels, search for the highest rate at which each of these objectives is met.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub searches: Vec<Objective>,
    /// The rows of the table.
    pub rows: Vec<ScenarioRow>,
    /// Pairs of rows whose difference is the cost of a plugin. `--ablation` adds them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ablations: Vec<Ablation>,
    /// Columns of the table, in addition to those that every table has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<TableColumn>,
    /// Changes to the scenario for a run of a few minutes (`--quick`).
    #[serde(default)]
    pub quick: Quick,
}

/// A peer with other settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// The peer, by the name of its folder in `bench/peers`, or a version of its program such as `weir@old`.
    pub peer: String,
    /// Additional settings of the upstream, in Weir's format. Only for peers that support `upstream-settings`.
    #[serde(default)]
    pub upstream: BTreeMap<String, Value>,
    /// Additional settings of the node, in Weir's format. Only for peers that support `upstream-settings`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node: BTreeMap<String, Value>,
    /// Additional plugins on every route, in Weir's format.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub policies: BTreeMap<String, Value>,
    /// The path of the requests, instead of the row's: a deliberate difference between two targets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// A column that only some scenarios need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Column")]
pub enum TableColumn {
    /// Instructions of the target per request, and their ratio to the baseline. Needs a machine whose hardware counters can
    /// be read.
    Instructions,
    /// The mean latency, which many publications have instead of percentiles. The report has a plot of it.
    Mean,
    /// Responses per second with an expected status, among those received before the load ended.
    Goodput,
    /// The 99th percentile of the time from sending a request to a response with an unexpected status.
    Refusals,
    /// The delay after the due time within which 99.9 % of the requests were sent, and the limit set by the machine: the
    /// delay within which a thread that only reads the clock notices 99.9 % of all moments.
    Schedule,
    /// The longest time that any request took.
    Longest,
    /// The number of route changes, and the time from a change to the first request that is affected by it.
    RouteChanges,
    /// The longest time from a change of the backend's speed until the throughput is 90 % of the best target's throughput at
    /// that speed.
    Recovery,
    /// Events and messages that were received while the row was measured, in percent of those that were due.
    Delivered,
    /// Memory of the target per client: its growth since it had no client, divided by the number of connections.
    PerClient,
    /// The throughput, relative to the row that `compare_with` names.
    Kept,
    /// The 99th percentile of latency, relative to the row that `compare_with` names.
    P99Compared,
    /// What the target adds to the 99th percentile of latency: its value less that of the target `none` in the same row,
    /// level and repeat. Generator and backend have the same processors in both.
    P99Added,
    /// What a hub delivered during a row with `fan_out`: deliveries, failed deliveries, and the longest time from when an
    /// event was due until it was delivered.
    FanOut,
    /// What became of the clients of `new_clients`: answered and failed requests, and the longest time from when all connect
    /// until the last of them has its answer.
    NewClients,
    /// The time from a route change until all workers of the target serve it, for targets that report this, and the number of
    /// failed changes.
    ServedByAll,
    /// Memory of the target at the beginning and at the end of the load.
    Memory,
    /// CPU time per request of the threads that process requests, without threads that send log records, and its ratio to that
    /// of the row that `compare_with` names. Its inverse is the throughput that a processor with nothing else to do would have.
    /// For targets whose manifest names these threads.
    WorkerCpu,
    /// Log records of a target that reports their outcomes: the numbers of accepted, delivered, dropped and pending records, the
    /// number found at the destination, and whether these numbers agree with the number of requests.
    Account,
}

/// The publication whose figures the report shows next to the measured ones.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Source")]
pub struct PublishedIn {
    /// The title of the publication.
    pub title: String,
    /// The URL of the publication.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The date of the publication.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub date: Option<String>,
    /// The machine and the tools that the figures were measured with. Figures from different machines cannot be compared
    /// directly; only the shapes of their curves can.
    pub setup: String,
}

/// The backend behind the targets.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Backend")]
pub struct BackendSettings {
    /// The kind of backend.
    pub kind: BackendKind,
    /// The backend has processors for itself, even if the generator then has to share those of the target. For scenarios in
    /// which the backend is meant to be the bottleneck.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub alone: bool,
    /// The number of servers, each on a separate port.
    pub instances: u32,
    /// The size of the response body, in bytes. The default depends on the kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_bytes: Option<u64>,
    /// The content of the response body, instead of `body_bytes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The delay of responses, as for `weir backend --delay`: `1s`, `bimodal:1ms,500ms@0.5`, `alternate:5ms,50ms/10s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<String>,
    /// Use HTTPS between the target and the backend.
    pub tls: bool,
    /// Use HTTP/2 between the target and the backend (prior knowledge).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub http2: bool,
}

impl Default for BackendSettings {
    fn default() -> Self {
        BackendSettings {
            kind: BackendKind::Builtin,
            alone: false,
            instances: 1,
            body_bytes: None,
            body: None,
            delay: None,
            tls: false,
            http2: false,
        }
    }
}

/// The kind of backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum BackendKind {
    /// The built-in backend of the lab: a fixed response, and WebSocket and server-sent events for rows that use them.
    Builtin,
    /// nginx with `return 200`, as in two of the publications.
    Nginx,
    /// Netty with a fixed response, as in WSO2's publication of GW-LB.
    Netty,
    /// Tornado, as in WSO2's publication of streaming APIs: WebSocket messages are returned reversed; also a fixed response
    /// and server-sent events.
    Tornado,
}

impl BackendKind {
    /// The name of its folder; the lab's own has none.
    pub fn folder(self) -> Option<&'static str> {
        match self {
            BackendKind::Builtin => None,
            BackendKind::Nginx => Some("nginx"),
            BackendKind::Netty => Some("netty"),
            BackendKind::Tornado => Some("tornado"),
        }
    }
}

/// Durations and repeats of the measurement.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Method")]
pub struct MeasuringMethod {
    /// The warm-up of each repeat, in seconds: load that is not measured.
    pub warmup_s: f64,
    /// The measured part of each repeat, in seconds.
    pub measured_s: f64,
    /// The number of turns that each target has within a repeat. With more than 1, all targets of a row run at the same time
    /// and are loaded in turns, in reverse order in every second round; `warmup_s` and `measured_s` are divided by this
    /// number.
    #[serde(skip_serializing_if = "is_one")]
    pub slices: u32,
    /// The number of repeats. Each repeat measures every cell once, in a different order.
    pub repeats: u32,
    /// The confidence level of intervals and tests.
    pub confidence: f64,
}

impl MeasuringMethod {
    /// The confidence level in percent, such as 95 or 99.95.
    pub fn confidence_percent(&self) -> f64 {
        (self.confidence * 1e4).round() / 1e2
    }
}

impl Default for MeasuringMethod {
    fn default() -> Self {
        MeasuringMethod { warmup_s: 5.0, measured_s: 30.0, slices: 1, repeats: 5, confidence: 0.95 }
    }
}

/// An objective of a search: the highest rate that the target carries while all conditions hold.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Objective {
    /// The name of the objective in the table.
    pub name: String,
    /// The maximum mean latency, measured from when requests were due, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_ms: Option<f64>,
    /// The maximum of the 99th percentile of latency, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_ms: Option<f64>,
    /// 99.9 % of the requests must be sent within this time after they were due, in microseconds. This is an objective for
    /// the load engine, not for the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_within_us: Option<f64>,
}

/// A row of the table: one configuration of the targets under one kind of load.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Row")]
pub struct ScenarioRow {
    /// The name of the row, in tables and for `--row`.
    pub name: String,
    /// Features that a target must have, as listed in its `peer.yaml`. Other targets are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<String>,
    /// The number of routes of the target. Requests go to four of them.
    #[serde(default = "default_routes")]
    pub routes: u32,
    /// The number of endpoints of each route. With 0, all routes share one upstream with the backends. Otherwise each route
    /// has its own upstream: that of a requested route has the backends, the others have addresses on which nothing listens.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub endpoints: u32,
    /// The number of consumers, each with credentials for the auth plugins of the row.
    #[serde(default)]
    pub consumers: u32,
    /// Plugins on every route, by name, with their options. In options, `{dir}` is replaced by the directory of the run, and
    /// `{backend}` by the address of the first backend. With `{store}`, the lab starts an OpenSearch and inserts its address;
    /// `{index}` is the name of the target's index there. With `{syslog_port}`, the lab receives syslog messages on the
    /// inserted port. With `{service:NAME}`, it starts the program of this name in `bench/backends`, and inserts its address.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub policies: BTreeMap<String, Value>,
    /// The row without these plugins. The cost of the plugins is the difference to this row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compare_with: Option<String>,
    /// The protocol of the clients.
    #[serde(default)]
    pub speak: Speak,
    /// The request.
    #[serde(default)]
    pub request: RequestSpec,
    /// Several kinds of requests, instead of `request`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requests: Vec<RequestSpec>,
    /// How one of several requests is selected.
    #[serde(default, skip_serializing_if = "is_usual")]
    pub selection: Selection,
    /// When requests are due, instead of the setting in `load`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pacing: Option<Pacing>,
    /// Numbers of clients of this row, instead of those of the scenario.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<Vec<u32>>,
    /// Requests per second of all clients together, instead of the setting in `load`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// A rate relative to the throughput of another row, instead of `rate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_of: Option<RateOf>,
    /// Use HTTPS between the clients and the target, instead of the setting in `load`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<bool>,
    /// Whether clients keep their connections open, instead of the setting in `load`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_alive: Option<bool>,
    /// Events while the row is measured, such as the failure of a backend. A row with events has one level.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<RowEvent>,
    /// How often one of the routes is changed while the row is measured, in changes per second; less often if the target does
    /// not serve the changes so fast. A row with changes has one level.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route_changes_per_s: Option<f64>,
    /// Events that a hub of the target delivers while the row is measured. They are not part of the row's figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fan_out: Option<FanOut>,
    /// Clients that connect all at once while the row is measured. They are not part of the row's figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_clients: Option<NewClients>,
    /// The backend of this row, instead of the scenario's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<BackendSettings>,
    /// The row tests a backend that is overloaded or changes its speed. Neither makes a figure invalid then.
    #[serde(default)]
    pub backend_limits: bool,
    /// Published figures for this row.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub published: Vec<PublishedFigures>,
}

/// Events that a hub (WebSub) delivers to all subscribers of one topic, beside the load of a row. The subscribers are ready before
/// the load begins, and verify every delivery and its signature.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FanOut {
    /// Subscribers, each with a callback of its own.
    pub subscribers: u32,
    /// Length of an event.
    pub payload_bytes: usize,
    /// Events per second.
    pub per_second: f64,
    /// More settings of the hub, by Weir's names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub hub: BTreeMap<String, Value>,
}

/// Clients that connect all at once beside the load of a row, as after a failover of a balancer: each opens a connection, sends one
/// request of the row, and closes it. Their threads have a lower priority than those of the row's clients.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewClients {
    /// How many they are.
    pub count: u32,
    /// How often, in seconds. The first time is after half of this.
    pub every_s: f64,
}

impl NewClients {
    /// The times at which they connect within a measured part of this length, in seconds from its begin.
    pub fn times_s(self, measured_s: f64) -> impl Iterator<Item = f64> {
        let time = move |number: u32| (f64::from(number) + 0.5) * self.every_s;
        (0..).map(time).take_while(move |at_s| *at_s < measured_s)
    }
}

/// An event while a row is measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RowEvent {
    /// The time of the event, in seconds since the start of the measured part.
    pub at_s: f64,
    /// The action.
    pub action: EventAction,
}

/// The action of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventAction {
    /// The first backend gets SIGKILL: its connections are reset, and its port refuses new ones.
    KillBackend,
    /// The first backend gets SIGSTOP: its port still accepts connections, but no request is answered.
    FreezeBackend,
    /// The first backend is available again on the same port: restarted after a kill, continued (SIGCONT) after a freeze.
    RestoreBackend,
    /// The target gets SIGTERM.
    DrainTarget,
    /// The target reloads its configuration, with a changed time-out of the upstream of one route.
    ReloadOneRoute,
    /// The target reloads its configuration, with changed time-outs of the upstreams of all routes.
    ReloadAllRoutes,
}

/// A rate relative to another row: a multiple of the throughput that the baseline reached there, at its highest level in the
/// same repeat. It is the same rate for all targets.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RateOf {
    /// The name of the other row.
    pub row: String,
    /// The factor.
    pub times: f64,
}

/// Published figures for a row.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PublishedFigures {
    /// The name of the measured system.
    pub system: String,
    /// The number of clients, if the publication states it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<u32>,
    /// Requests per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rps: Option<f64>,
    /// The mean latency, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_ms: Option<f64>,
    /// The 95th percentile of latency, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p95_ms: Option<f64>,
    /// The 99th percentile of latency, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_ms: Option<f64>,
    /// Failed requests, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_percent: Option<f64>,
    /// A note on the figure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Replacements for a run of a few minutes. What is absent stays.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Quick {
    /// The targets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub targets: Option<Vec<String>>,
    /// The numbers of clients. A row with its own numbers keeps the first and the last of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<Vec<u32>>,
    /// The names of the rows. The other rows are left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows: Option<Vec<String>>,
    /// The worker counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<Vec<u32>>,
    /// The run ends after this number of requests; 0: after its time alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Durations and repeats. Replaces `method` as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<MeasuringMethod>,
}

impl Scenario {
    /// The scenario with its `quick` part applied, levels of rows included.
    pub fn quickened(mut self) -> Scenario {
        let quick = self.quick.clone();
        if let Some(targets) = quick.targets {
            self.targets = targets;
        }
        if let Some(rows) = quick.rows {
            self.rows.retain(|row| rows.contains(&row.name));
        }
        if let Some(connections) = quick.connections {
            for row in self.rows.iter_mut() {
                if let Some(own) = &mut row.connections {
                    // A row with levels of its own keeps its first and its last.
                    *own = [own.first(), own.last()].into_iter().flatten().copied().collect();
                    own.dedup();
                }
            }
            self.connections = connections;
        }
        self.workers = quick.workers.unwrap_or(self.workers);
        self.method = quick.method.unwrap_or(self.method);
        if quick.count.is_some() {
            self.load.count = quick.count.filter(|count| *count > 0);
        }
        self
    }

    pub fn levels<'a>(&'a self, row: &'a ScenarioRow) -> &'a [u32] {
        row.connections.as_deref().unwrap_or(&self.connections)
    }

    pub fn backend<'a>(&'a self, row: &'a ScenarioRow) -> &'a BackendSettings {
        row.backend.as_ref().unwrap_or(&self.backend)
    }

    /// Sets this kind of backend for every row, as the option `--backend` asks.
    pub fn with_backend(mut self, kind: BackendKind) -> Result<Scenario, ScenarioError> {
        self.backend.kind = kind;
        self.rows.iter_mut().filter_map(|row| row.backend.as_mut()).for_each(|backend| backend.kind = kind);
        match self.backend_problems() {
            problems if problems.is_empty() => Ok(self),
            problems => Err(ScenarioError::Problems { place: "--backend".to_owned(), problems }),
        }
    }

    /// Errors for rows that need something their backend does not support.
    fn backend_problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (index, row) in self.rows.iter().enumerate() {
            let backend = self.backend(row);
            let Some(name) = backend.kind.folder() else { continue };
            let needs = [
                ("tls", backend.tls),
                ("http2", backend.http2),
                ("delay", backend.delay.is_some()),
                ("websocket", matches!(row.speak, Speak::WebSocket { .. })),
                ("sse", matches!(row.speak, Speak::Sse { .. })),
            ];
            let needs: Vec<&str> = needs.iter().filter(|(_, needed)| *needed).map(|(name, _)| *name).collect();
            match target::read_backend(name, Path::new("")) {
                Err(error) => problems.push(error.to_string()),
                Ok(peer) => {
                    problems.extend(peer.lacks_feature(&needs).map(|lacks| {
                        format!("rows[{index}], \"{}\": {lacks}, which the builtin backend has", row.name)
                    }))
                }
            }
        }
        problems
    }

    /// The peer of a target, and the settings in which it differs from a plain peer.
    pub fn variant(&self, target: &str) -> Variant {
        let plain = || Variant {
            peer: target.to_owned(),
            upstream: BTreeMap::new(),
            node: BTreeMap::new(),
            policies: BTreeMap::new(),
            path: None,
        };
        self.variants.get(target).cloned().unwrap_or_else(plain)
    }

    /// A row as this target runs it: with the variant's path and policies.
    pub fn row_for<'a>(&self, target: &str, row: &'a ScenarioRow) -> Cow<'a, ScenarioRow> {
        let Variant { path, policies, .. } = self.variant(target);
        if path.is_none() && policies.is_empty() {
            return Cow::Borrowed(row);
        }
        let mut row = row.clone();
        row.policies.extend(policies);
        if let Some(path) = path {
            row.requests.iter_mut().for_each(|request| request.path.clone_from(&path));
            row.request.path = path;
        }
        Cow::Owned(row)
    }

    /// Whether a row's clients speak TLS.
    pub fn tls(&self, row: &ScenarioRow) -> bool {
        row.tls.unwrap_or(self.load.tls)
    }

    pub fn row(&self, name: &str) -> Option<&ScenarioRow> {
        self.rows.iter().find(|row| row.name == name)
    }
}

impl Variant {
    /// Whether it has settings that not every peer supports.
    pub fn has_settings(&self) -> bool {
        !self.upstream.is_empty() || !self.node.is_empty()
    }
}

impl ScenarioRow {
    /// Whether processes or configurations change while it is measured, which may affect requests.
    pub fn disturbs(&self) -> bool {
        !self.events.is_empty() || self.route_changes_per_s.is_some()
    }

    /// The policies with placeholders in their options replaced. An option that is exactly one placeholder gets the value itself,
    /// which may be a number.
    pub fn policies_with(&self, placeholders: &[(&str, Value)]) -> BTreeMap<String, Value> {
        fn fill(option: &mut Value, placeholders: &[(&str, Value)]) {
            match option {
                Value::String(text) => match placeholders.iter().find(|(name, _)| name == text) {
                    Some((_, value)) => *option = value.clone(),
                    None => {
                        for (name, value) in placeholders {
                            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                            *text = text.replace(name, &value);
                        }
                    }
                },
                Value::Array(options) => options.iter_mut().for_each(|option| fill(option, placeholders)),
                Value::Object(members) => members.values_mut().for_each(|option| fill(option, placeholders)),
                _ => {}
            }
        }
        let mut policies = self.policies.clone();
        policies.values_mut().for_each(|options| fill(options, placeholders));
        policies
    }

    /// Whether an option of its policies contains a placeholder.
    pub fn names(&self, placeholder: &str) -> bool {
        self.policies.values().any(|options| options.to_string().contains(placeholder))
    }
}

fn default_workers() -> Vec<u32> {
    vec![1]
}

fn default_routes() -> u32 {
    1
}

fn is_usual(selection: &Selection) -> bool {
    *selection == Selection::default()
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

fn is_one(count: &u32) -> bool {
    *count == 1
}
