//! A scenario: what is measured, on which targets, how often, and what others published for the same. Values only.

mod ablation;
mod load;
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
pub use load::{names, parse, read};
pub use workload::{LoadSettings, RequestSpec, Speak};

/// What is measured, on which targets, how often, and what others published for the same.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// What its results are called.
    pub name: String,
    /// What the report is headed.
    pub title: String,
    /// What the scenario repeats and what it does differently, for the report.
    pub about: String,
    /// The publication whose figures stand beside ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<PublishedIn>,
    /// Peers by the names of their folders, in the order of the tables.
    pub targets: Vec<String>,
    /// Targets by names of their own: a peer with settings that others of its kind do not have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub variants: BTreeMap<String, Variant>,
    /// The target that the others are compared with.
    pub baseline: String,
    /// Workers of the targets: a sweep when there are several.
    #[serde(default = "default_workers")]
    pub workers: Vec<u32>,
    /// Clients, ascending: the axis of the plots.
    pub connections: Vec<u32>,
    /// What stands behind the targets.
    #[serde(default)]
    pub backend: BackendSettings,
    /// How load is made, unless a row says otherwise.
    #[serde(default)]
    pub load: LoadSettings,
    /// How it is measured.
    #[serde(default)]
    pub method: MeasuringMethod,
    /// Look for the highest rate that keeps this, after the levels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub searches: Vec<Objective>,
    /// The lines of the table.
    pub rows: Vec<ScenarioRow>,
    /// Pairs of rows whose difference is the cost of a policy; `--ablation` adds them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ablations: Vec<Ablation>,
    /// What the table shows besides what every table shows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<TableColumn>,
    /// What changes for a run of a few minutes.
    #[serde(default)]
    pub quick: Quick,
}

/// A peer configured in a way of its own.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// The peer by the name of its folder.
    pub peer: String,
    /// More settings of the upstream, by Weir's names; only peers that support `upstream-settings` take them.
    #[serde(default)]
    pub upstream: BTreeMap<String, Value>,
    /// More settings of the node, by Weir's names; only peers that support `upstream-settings` take them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node: BTreeMap<String, Value>,
    /// More policies on every route, by Weir's plugin names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub policies: BTreeMap<String, Value>,
    /// What it is asked for instead of the row's path: a difference that is put there on purpose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// A figure not every scenario is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Column")]
pub enum TableColumn {
    /// The target's instructions per request, where counters can be read, and against the baseline.
    Instructions,
    /// Answers with an expected status per second, of those that came while the load went on.
    Goodput,
    /// How long answers with an unexpected status took from when the request was sent: 99th percentile.
    Refusals,
    /// Within which time of when they were due 99.9 % of the requests were sent, and what the machine allowed: within which
    /// time a thread that only reads the clock notices 99.9 % of all moments.
    Schedule,
    /// The longest that any request took.
    Longest,
    /// How many changes of a route were made, and the time from a change to the first request that shows it.
    RouteChanges,
    /// After the backend changed its speed, the time until throughput was nine tenths of what the best target reaches
    /// at that speed: the longest of all changes.
    Recovery,
    /// Events and messages that came in time, of those that were due.
    Delivered,
    /// The target's memory for each client: what it grew by since it had none, divided by the connections.
    PerClient,
    /// Throughput against that of the row named by `compare_with`.
    Kept,
    /// The 99th percentile of latency against that of the row named by `compare_with`.
    P99Compared,
    /// How much longer events and answers took than without a gateway: the 99th percentile of latency, less that of the target
    /// `none` in the same row, level and repeat. There generator and backend have the same processors.
    P99Added,
    /// What a hub delivered beside the load of a row with `fan_out`: deliveries, failed ones, and the longest time from when an
    /// event was due until it had been delivered.
    FanOut,
    /// The time from a change of a route until all workers of the target serve it, for targets that say so; and how many changes failed.
    ServedByAll,
    /// The target's memory at the beginning and at the end of the load.
    Memory,
    /// Records of a target that says what became of them: how many it accepted, delivered and dropped, how many are where they were
    /// sent, and whether these numbers and the number of requests agree.
    Account,
}

/// Where published figures come from.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Source")]
pub struct PublishedIn {
    /// What it is called.
    pub title: String,
    /// Where it stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// When it was published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub date: Option<String>,
    /// Machine and tools the published figures come from: they are not comparable across machines, only in shape.
    pub setup: String,
}

/// What stands behind the targets.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Backend")]
pub struct BackendSettings {
    /// What it is.
    pub kind: BackendKind,
    /// It has processors that the generator does not use, also where the generator then shares the target's: for loads that
    /// the backend limits.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub alone: bool,
    /// Servers, each on its own port.
    pub instances: u32,
    /// Bytes of the response body; what fits the kind when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_bytes: Option<u64>,
    /// Exact response body, instead of `body_bytes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// How long answers are held back, as `weir backend --delay` takes it: `1s`, `bimodal:1ms,500ms@0.5`,
    /// `alternate:5ms,50ms/10s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<String>,
    /// HTTPS between the target and the backend.
    pub tls: bool,
    /// HTTP/2 between the target and the backend, by prior knowledge.
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

/// What a backend is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum BackendKind {
    /// The lab's own: a fixed answer; WebSocket and SSE where the row speaks them.
    Builtin,
    /// nginx with `return 200`, as two of the publications used.
    Nginx,
    /// Netty with a fixed answer, as the publication of the GW-LB used.
    Netty,
    /// Tornado: messages reversed over WebSocket, as the publication of WSO2's streaming APIs used; a fixed answer; SSE.
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

/// How it is measured.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Method")]
pub struct MeasuringMethod {
    /// Seconds before measuring starts, in each repeat.
    pub warmup_s: f64,
    /// Seconds measured in each repeat.
    pub measured_s: f64,
    /// Above 1: the targets of a row are up together and take turns within a repeat, so many each, every second round
    /// backwards. Each turn has its share of `warmup_s` and `measured_s`.
    #[serde(skip_serializing_if = "is_one")]
    pub slices: u32,
    /// Interleaved: each repeat runs every cell once, in an order of its own.
    pub repeats: u32,
    /// Of intervals and tests.
    pub confidence: f64,
}

impl Default for MeasuringMethod {
    fn default() -> Self {
        MeasuringMethod { warmup_s: 5.0, measured_s: 30.0, slices: 1, repeats: 5, confidence: 0.95 }
    }
}

/// The highest rate at which this still holds, and the rate is carried.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Objective {
    /// How the table calls it.
    pub name: String,
    /// The mean latency is at most this, counted from when requests were due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_ms: Option<f64>,
    /// The 99th percentile is at most this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_ms: Option<f64>,
    /// 99.9 % of the requests are sent within this time of when they were due: an objective for the load engine itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_within_us: Option<f64>,
}

/// One line of the scenario's table: one configuration of the targets under one workload.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Row")]
pub struct ScenarioRow {
    /// How tables and `--row` call it.
    pub name: String,
    /// Features a target must have; `peer.yaml` names them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<String>,
    /// Routes of the target; four of them are asked for.
    #[serde(default = "default_routes")]
    pub routes: u32,
    /// Endpoints of each route, which has an upstream of its own then. Routes that are asked for have the backends; those of the
    /// others are addresses on which nothing listens. 0: all routes share one upstream, the backends.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub endpoints: u32,
    /// Consumers the target knows, with credentials for the row's policies.
    #[serde(default)]
    pub consumers: u32,
    /// Policies on every route, by their Apache APISIX plugin names. In their options `{dir}` is the directory of the run and
    /// `{backend}` the address of the first backend. Where `{store}` or `{syslog_port}` stands, the lab starts an OpenSearch, which
    /// has the index `{index}` for the target, or receives syslog messages.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub policies: BTreeMap<String, Value>,
    /// The row without these policies: what its cost is counted from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compare_with: Option<String>,
    /// What clients speak.
    #[serde(default)]
    pub speak: Speak,
    /// What they ask.
    #[serde(default)]
    pub request: RequestSpec,
    /// Several kinds of requests, instead of `request`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requests: Vec<RequestSpec>,
    /// How one of several is chosen.
    #[serde(default, skip_serializing_if = "is_usual")]
    pub selection: Selection,
    /// When requests are due, instead of what the scenario's `load` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pacing: Option<Pacing>,
    /// Levels of this row, instead of the scenario's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<Vec<u32>>,
    /// Requests per second over all clients, instead of what the scenario's `load` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// Instead of `rate`: relative to the throughput of another row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_of: Option<RateOf>,
    /// HTTPS between the clients and the target, instead of what the scenario's `load` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<bool>,
    /// Whether clients keep their connections, instead of what the scenario's `load` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_alive: Option<bool>,
    /// What happens while the row is measured, by the time since the measured part began. A row with events has one level.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<RowEvent>,
    /// One of the routes is changed so many times per second while the row is measured, or as often as the target serves the
    /// changes. A row with changes has one level.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route_changes_per_s: Option<f64>,
    /// A hub of the target delivers events meanwhile. They are no part of the row's figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fan_out: Option<FanOut>,
    /// What stands behind the targets, instead of the scenario's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<BackendSettings>,
    /// The row is about a backend that can do no more, or that changes its speed: neither makes a figure invalid.
    #[serde(default)]
    pub backend_limits: bool,
    /// What was published for this row.
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

/// Something that happens while a row is measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RowEvent {
    /// Seconds since the measured part began.
    pub at_s: f64,
    /// What happens.
    pub action: EventAction,
}

/// What can happen to a process while a row is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventAction {
    /// The first backend gets SIGKILL: its connections are reset, and its port refuses new ones.
    KillBackend,
    /// The first backend gets SIGSTOP: its port still accepts, and nothing is answered.
    FreezeBackend,
    /// The first backend is there again, on the same port: started anew after a kill, continued after a freeze.
    RestoreBackend,
    /// The target gets SIGTERM.
    DrainTarget,
    /// The target's configuration is written anew, with another time-out for the upstream of one route, and the target is
    /// told to take it.
    ReloadOneRoute,
    /// The same, with another time-out for the upstreams of all routes.
    ReloadAllRoutes,
}

/// A rate known only once another row has been measured: the same for all targets, so many times what the baseline
/// reached there at its highest level in the repeat.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RateOf {
    /// The name of the other row.
    pub row: String,
    /// How many times as much.
    pub times: f64,
}

/// Published figures for a row.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PublishedFigures {
    /// Whose.
    pub system: String,
    /// The level they are for; absent when the publication does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<u32>,
    /// Requests per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rps: Option<f64>,
    /// Mean latency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_ms: Option<f64>,
    /// 95th percentile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p95_ms: Option<f64>,
    /// 99th percentile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_ms: Option<f64>,
    /// Share that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_percent: Option<f64>,
    /// What to know about the figure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Replacements for a run of a few minutes. What is absent stays.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Quick {
    /// These targets only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub targets: Option<Vec<String>>,
    /// These clients; a row with its own keeps its first and its last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<Vec<u32>>,
    /// Names of the rows to keep.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows: Option<Vec<String>>,
    /// These numbers of workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<Vec<u32>>,
    /// End after this many requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// How it is measured, as a whole.
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
            self.load.count = quick.count;
        }
        self
    }

    pub fn levels<'a>(&'a self, row: &'a ScenarioRow) -> &'a [u32] {
        row.connections.as_deref().unwrap_or(&self.connections)
    }

    pub fn backend<'a>(&'a self, row: &'a ScenarioRow) -> &'a BackendSettings {
        row.backend.as_ref().unwrap_or(&self.backend)
    }

    /// Sets this kind of backend for every row.
    pub fn with_backend(mut self, kind: BackendKind) -> Result<Scenario, String> {
        self.backend.kind = kind;
        self.rows.iter_mut().filter_map(|row| row.backend.as_mut()).for_each(|backend| backend.kind = kind);
        match self.backend_problems() {
            problems if problems.is_empty() => Ok(self),
            problems => Err(problems.join("\n")),
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
                Err(problem) => problems.push(problem),
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
