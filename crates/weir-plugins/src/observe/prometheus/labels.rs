//! The labels of APISIX's metrics: what each of them is for an exchange, and which of them a metric shows.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::sync::{Mutex, PoisonError};

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{Build, ConfigError, Exchange, PluginMetadata, RouteFacts, Template};

/// A label whose value depends on the exchange, in the order in which metrics show them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Label {
    Route,
    MatchedUri,
    MatchedHost,
    Service,
    Consumer,
    Node,
    RequestType,
    ResponseSource,
}

impl Label {
    pub(crate) const ALL: [Label; 8] = [
        Label::Route,
        Label::MatchedUri,
        Label::MatchedHost,
        Label::Service,
        Label::Consumer,
        Label::Node,
        Label::RequestType,
        Label::ResponseSource,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Label::Route => "route",
            Label::MatchedUri => "matched_uri",
            Label::MatchedHost => "matched_host",
            Label::Service => "service",
            Label::Consumer => "consumer",
            Label::Node => "node",
            Label::RequestType => "request_type",
            Label::ResponseSource => "response_source",
        }
    }

    /// Whether the metric has this label in APISIX.
    fn is_of(self, metric: LabelledMetric) -> bool {
        let is_of_status = matches!(self, Label::MatchedUri | Label::MatchedHost | Label::ResponseSource);
        metric == LabelledMetric::HttpStatus || !is_of_status
    }

    /// Writes its value for an exchange.
    fn write(self, exchange: &Exchange, prefer_name: bool, out: &mut Vec<u8>) {
        let route = exchange.route.as_deref();
        let of_route = match self {
            Label::Route => route.map(|route| preferred(prefer_name, &route.route_name, &route.route_id)),
            Label::Service => route.map(|route| preferred(prefer_name, &route.service_name, &route.service_id)),
            Label::MatchedUri => route.map(|route| route.matched_uri(exchange.request.path())),
            Label::MatchedHost => route.map(|route| matched_host(route, exchange)),
            Label::Consumer => exchange.identity.as_ref().map(|identity| &*identity.consumer.username),
            Label::Node => {
                if let Some(addr) = exchange.upstream.addr {
                    // Writing to a `Vec` does not fail.
                    let _ = write!(out, "{}", addr.ip());
                }
                None
            }
            Label::RequestType => Some("traditional_http"),
            Label::ResponseSource => Some(if exchange.is_answered_here() { "apisix" } else { "upstream" }),
        };
        out.extend_from_slice(of_route.unwrap_or_default().as_bytes());
    }
}

fn preferred<'a>(prefer_name: bool, name: &'a str, id: &'a str) -> &'a str {
    if prefer_name && !name.is_empty() { name } else { id }
}

/// The one of the route's `hosts` that fits the client's best: the name itself, or the longest wildcard.
fn matched_host<'a>(route: &'a RouteFacts, exchange: &Exchange) -> &'a str {
    if let [host] = &*route.hosts {
        return host;
    }
    let host = exchange.request.host().to_ascii_lowercase();
    let is_fitting = |entry: &&str| match entry.strip_prefix('*') {
        Some(suffix) => host.ends_with(suffix.to_ascii_lowercase().as_bytes()),
        None => entry.as_bytes().eq_ignore_ascii_case(&host),
    };
    let fitting = route.hosts.iter().map(|host| &**host).filter(is_fitting);
    fitting.max_by_key(|entry| (!entry.starts_with('*'), entry.len())).unwrap_or("")
}

/// The metrics whose labels can be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LabelledMetric {
    HttpStatus,
    HttpLatency,
    Bandwidth,
}

macro_rules! per_metric {
    ($(#[$meta:meta])* $name:ident: $kind:ty) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields, default)]
        pub(super) struct $name {
            /// For `apisix_http_status`.
            http_status: $kind,
            /// For `apisix_http_latency`.
            http_latency: $kind,
            /// For `apisix_bandwidth`.
            bandwidth: $kind,
        }

        impl $name {
            fn of(&self, metric: LabelledMetric) -> &$kind {
                match metric {
                    LabelledMetric::HttpStatus => &self.http_status,
                    LabelledMetric::HttpLatency => &self.http_latency,
                    LabelledMetric::Bandwidth => &self.bandwidth,
                }
            }
        }
    };
}

per_metric! {
    /// Labels that are left out.
    DisabledLabels: BTreeSet<Label>
}

per_metric! {
    /// Labels by name, each a text with variables.
    ExtraLabels: Vec<BTreeMap<String, String>>
}

impl LabelledMetric {
    const ALL: [LabelledMetric; 3] =
        [LabelledMetric::HttpStatus, LabelledMetric::HttpLatency, LabelledMetric::Bandwidth];

    /// Its name in options.
    fn name(self) -> &'static str {
        match self {
            LabelledMetric::HttpStatus => "http_status",
            LabelledMetric::HttpLatency => "http_latency",
            LabelledMetric::Bandwidth => "bandwidth",
        }
    }
}

/// The labels of metrics, for all uses of `prometheus`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PrometheusMetadata {
    /// Labels that a metric does not have. Fewer labels make fewer series.
    disabled_labels: DisabledLabels,
    /// More labels of a metric: maps of names to texts with variables, such as `[{ upstream_addr: $upstream_addr }]`. Values are cut
    /// at 256 bytes.
    extra_labels: ExtraLabels,
}

/// The longest value of an extra label, in bytes.
const MOST_VALUE: usize = 256;
/// The most names of extra labels that a process ever has.
const MOST_NAMES: usize = 64;

/// What each metric shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ShownLabels {
    metrics: PrometheusMetadata,
    /// The extra labels of all metrics.
    names: Vec<&'static str>,
}

/// What is recorded of an exchange.
pub(crate) struct RecordedLabels {
    prefer_name: bool,
    is_recorded: [bool; Label::ALL.len()],
    extra: Vec<Template>,
    pub shown: ShownLabels,
}

/// The values of all labels of a series; those that no metric shows are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SeriesLabels {
    values: [String; Label::ALL.len()],
    extra: Vec<(&'static str, String)>,
}

impl PluginMetadata for PrometheusMetadata {
    fn check(self) -> Result<(), ConfigError> {
        for metric in LabelledMetric::ALL {
            let mut seen = BTreeSet::new();
            for name in self.extra_labels.of(metric).iter().flat_map(BTreeMap::keys) {
                let is_name = !name.is_empty()
                    && !name.starts_with("__")
                    && !name.starts_with(|first: char| first.is_ascii_digit())
                    && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
                let is_taken =
                    Label::ALL.iter().any(|label| label.name() == name) || ["code", "type", "le"].contains(&&**name);
                let problem = match (is_name, is_taken || !seen.insert(name)) {
                    (false, _) => format!("`{name}` is not the name of a label: letters, digits and `_`"),
                    (true, true) => format!("the metric has a label `{name}` already"),
                    (true, false) => continue,
                };
                return Err(ConfigError::new(format!("extra_labels.{}", metric.name()), problem));
            }
        }
        Ok(())
    }
}

impl PrometheusMetadata {
    /// # Errors
    /// There have been too many names.
    pub(crate) fn compile(self, prefer_name: bool, build: &mut Build) -> Result<RecordedLabels, ConfigError> {
        let mut extra = BTreeMap::new();
        for metric in LabelledMetric::ALL {
            let place = format!("plugin_metadata.extra_labels.{}", metric.name());
            for (name, text) in self.extra_labels.of(metric).iter().flatten() {
                let name = permanent_name(name).ok_or_else(|| {
                    ConfigError::new(
                        &*place,
                        format!("has more than {MOST_NAMES} names since the start of the process"),
                    )
                })?;
                extra.entry(name).or_insert_with(|| build.template_of_record(text, &place));
            }
        }
        let (names, extra) = extra.into_iter().unzip();
        let shown = ShownLabels { metrics: self, names };
        let is_shown = |label: Label| LabelledMetric::ALL.iter().any(|metric| shown.shows(label, *metric));
        Ok(RecordedLabels { prefer_name, is_recorded: Label::ALL.map(is_shown), extra, shown })
    }
}

/// The name for as long as the process lives, as metrics need it. `None` if there are too many.
fn permanent_name(name: &str) -> Option<&'static str> {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.get(name) {
        return Some(*known);
    }
    (names.len() < MOST_NAMES).then(|| {
        let name: &'static str = Box::leak(Box::<str>::from(name));
        names.insert(name);
        name
    })
}

impl ShownLabels {
    fn shows(&self, label: Label, metric: LabelledMetric) -> bool {
        label.is_of(metric) && !self.metrics.disabled_labels.of(metric).contains(&label)
    }

    /// The labels of a metric, of those of a series.
    pub(crate) fn of<'a>(&self, metric: LabelledMetric, series: &'a SeriesLabels) -> Vec<(&'static str, &'a str)> {
        let usual = Label::ALL.iter().zip(&series.values).filter(|(label, _)| self.shows(**label, metric));
        let is_extra = |name: &str| self.metrics.extra_labels.of(metric).iter().any(|map| map.contains_key(name));
        let extra = series.extra.iter().filter(|(name, _)| is_extra(name));
        let usual = usual.map(|(label, value)| (label.name(), &**value));
        usual.chain(extra.map(|(name, value)| (*name, &**value))).collect()
    }
}

impl RecordedLabels {
    /// Writes the values for an exchange, each with a NUL behind it.
    pub(crate) fn write(&self, exchange: &Exchange, out: &mut Vec<u8>) {
        for (label, is_recorded) in Label::ALL.iter().zip(self.is_recorded) {
            if is_recorded {
                label.write(exchange, self.prefer_name, out);
            }
            out.push(0);
        }
        for template in &self.extra {
            let begin = out.len();
            template.render(exchange, out);
            out.truncate(out.len().min(begin + MOST_VALUE));
            out[begin..].iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = b'?');
            out.push(0);
        }
    }

    /// The labels that [`RecordedLabels::write`] has written.
    pub(crate) fn read(&self, written: &[u8]) -> SeriesLabels {
        let mut values = written.split(|byte| *byte == 0).map(|value| String::from_utf8_lossy(value).into_owned());
        SeriesLabels {
            values: std::array::from_fn(|_| values.next().unwrap_or_default()),
            extra: self.shown.names.iter().copied().zip(values).collect(),
        }
    }
}

impl SeriesLabels {
    /// The series of all exchanges that there is no room for.
    pub(crate) fn other() -> SeriesLabels {
        SeriesLabels::with(Label::Route, "(other)")
    }

    /// A series with one label.
    pub(crate) fn with(label: Label, value: &str) -> SeriesLabels {
        let mut labels = SeriesLabels::default();
        labels.values[label as usize] = value.to_owned();
        labels
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::exchange;

    #[test]
    fn the_pattern_that_fits_best_is_the_matched_one() {
        let patterns = |all: &[&str]| all.iter().map(|text| (*text).into()).collect();
        let facts = RouteFacts {
            uris: patterns(&["/*", "/a/*", "/a/b", "/user/:id/name"]),
            hosts: patterns(&["*.example.com", "*.b.example.com", "a.example.com"]),
            ..RouteFacts::default()
        };
        for (target, want) in [
            ("/a/b?x=1", "/a/b"),
            ("/a/c", "/a/*"),
            ("/user/7/name", "/user/:id/name"),
            ("/user//name", "/*"),
            ("/user/7", "/*"),
        ] {
            let exchange = exchange(&format!("GET {target} HTTP/1.1\nHost: h"));
            assert_eq!(facts.matched_uri(exchange.request.path()), want, "{target}");
        }
        for (host, want) in [
            ("a.example.com", "a.example.com"),
            ("A.B.example.com", "*.b.example.com"),
            ("c.example.com:8080", "*.example.com"),
            ("example.org", ""),
        ] {
            let exchange = exchange(&format!("GET / HTTP/1.1\nHost: {host}"));
            assert_eq!(matched_host(&facts, &exchange), want, "{host}");
        }
    }

    #[test]
    fn each_metric_shows_its_own_labels() {
        let options = json!({
            "disabled_labels": {"http_status": ["node", "consumer"], "http_latency": ["route"]},
            "extra_labels": {"http_status": [{"agent": "$http_user_agent"}]},
        });
        let metadata = || serde_json::from_value::<PrometheusMetadata>(options.clone()).expect("valid");
        metadata().check().expect("valid");
        let labels = metadata().compile(false, &mut Build::default()).expect("few names");
        let mut written = Vec::new();
        labels.write(&exchange("GET / HTTP/1.1\nHost: h\nUser-Agent: curl"), &mut written);
        let series = labels.read(&written);
        let names = |metric| labels.shown.of(metric, &series).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        let status = labels.shown.of(LabelledMetric::HttpStatus, &series);
        assert_eq!(status.last(), Some(&("agent", "curl")));
        assert_eq!(
            names(LabelledMetric::HttpStatus),
            ["route", "matched_uri", "matched_host", "service", "request_type", "response_source", "agent"]
        );
        assert_eq!(names(LabelledMetric::HttpLatency), ["service", "consumer", "node", "request_type"]);
        assert_eq!(names(LabelledMetric::Bandwidth), ["route", "service", "consumer", "node", "request_type"]);
    }

    #[test]
    fn wrong_names_are_refused_with_their_place() {
        for (name, want) in [("a-b", "`a-b` is not the name"), ("route", "has a label `route` already"), ("7a", "`7a`")]
        {
            let metadata = json!({"extra_labels": {"bandwidth": [{name: "$host"}]}});
            let metadata: PrometheusMetadata = serde_json::from_value(metadata).expect("of its form");
            let error = metadata.check().expect_err("refused");
            assert_eq!(error.path, "extra_labels.bandwidth");
            assert!(error.to_string().contains(want), "{error}");
        }
    }
}
