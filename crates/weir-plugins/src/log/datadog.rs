use std::fmt::{Display, Write};
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Map;
use weir_plugin::{
    AllOf, Build, CollectAll, ConfigError, Definition, HasMetadata, Plugin, PluginMetadata, Stage, Template,
};
use weir_records::{Destination, Outcome, Record, RecordSending, RejectReason, SendOutcome};

use crate::log::bodies::BodyCaptures;
use crate::log::capture::Capture;
use crate::log::captured;
use crate::log::json::JsonObjectWriter;
use crate::log::logger::ExchangeLogger;
use crate::log::options::{BatchOptions, SinkIdentity};
use crate::log::socket::{MAX_DATAGRAM, SocketAddress, UdpReceiver};

/// Sends metrics of each exchange to an agent of Datadog, by DogStatsD over UDP.
///
/// The metrics of an exchange are `request.counter`, which is 1; `request.latency`, `upstream.latency` and `apisix.latency`, the times of
/// the whole, of the upstream and of the rest, as histograms in milliseconds; `ingress.size` and `egress.size`, the bytes of the request
/// and of the response. Their tags are `route_name`, `service_name`, `consumer`, `balancer_ip`, `response_status`,
/// `response_status_class`, `scheme`, and those that are configured; a tag without a value is left out. The agent is named in the metadata
/// of the plugin.
///
/// Requests never wait for the plugin. UDP has no acknowledgements: the metrics of an exchange count as delivered once the operating
/// system has accepted them for sending. `/records` and the metric `weir_log_records_total` report the outcome.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Datadog {
    /// Tags have the names of routes and services, or their ids if there is no name. If `false`, they have the ids.
    #[serde(default = "default_prefer_name")]
    prefer_name: bool,
    /// Adds the tag `path`: the `uri` of the route that fits the path of the request.
    #[serde(default)]
    include_path: bool,
    /// Adds the tag `method`.
    #[serde(default)]
    include_method: bool,
    /// Tags of all metrics of the route, such as `team:blue`.
    #[serde(default)]
    #[schemars(length(max = MAX_TAGS), inner(length(min = 1, max = 200)))]
    constant_tags: Vec<String>,
    #[serde(flatten)]
    batch: BatchOptions,
}

fn default_prefer_name() -> bool {
    true
}

/// The agent, and what the metrics of all routes have in common.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct DatadogMetadata {
    /// The name or address of the agent.
    #[schemars(extend("x-weir-reaches" = "server"))]
    host: String,
    /// The port of the agent.
    #[schemars(range(min = 1))]
    port: u16,
    /// The beginning of the names of metrics, before a dot. Without a dot if it is empty.
    #[schemars(length(max = 128))]
    namespace: String,
    /// Tags of all metrics, such as `source:apisix`.
    #[schemars(length(max = MAX_TAGS), inner(length(min = 1, max = 200)))]
    constant_tags: Vec<String>,
    /// The maximum number of exchanges whose metrics wait in memory. Further ones are dropped. Without it, only the memory that they take
    /// is limited. APISIX's default is 8192.
    #[schemars(range(min = 1, max = 1048576))]
    max_pending_entries: Option<usize>,
}

/// The most constant tags: with 200 bytes each, a metric fits into a datagram.
const MAX_TAGS: usize = 64;

impl Default for DatadogMetadata {
    fn default() -> DatadogMetadata {
        DatadogMetadata {
            host: "127.0.0.1".to_owned(),
            port: 8125,
            namespace: "apisix".to_owned(),
            constant_tags: vec!["source:apisix".to_owned()],
            max_pending_entries: None,
        }
    }
}

/// Time-out for resolving the name of the agent, and for a datagram.
const TIMEOUT: Duration = Duration::from_secs(3);
/// The most bytes of a datagram with several metrics, as Datadog's clients use it: it fits into a packet of an Ethernet.
const PACKED: usize = 1432;

impl Definition for Datadog {
    const NAME: &'static str = "datadog";
    const PRIORITY: i32 = 495;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = "datadog: { include_method: true, constant_tags: [\"team:blue\"] }";

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let metadata = build.metadata::<Datadog>();
        // All that is sent are the facts.
        let capture = Capture::compile(Some(&Map::new()), None, build);
        let sink = self.batch.compile(metadata.max_pending_entries, build);
        let tags = checked_tags(&self.constant_tags);
        let (capture, sink, (address, prefix), ()) = (capture, sink, metadata.agent(), tags).all_of()?;
        let capture = capture.with_hidden(FACTS.map(Template::compile).into()).with_matched_uri().without_tests();
        let identity = SinkIdentity::new(format!("datadog {}", address.name()), &[&metadata.namespace]);
        let options = sink.showing(shown).named(identity);
        let constant: Vec<&str> =
            metadata.constant_tags.iter().chain(&self.constant_tags).map(String::as_str).collect();
        let statsd = DogStatsd {
            receiver: UdpReceiver::new(address),
            prefix,
            constant_tags: constant.join(","),
            prefers_names: self.prefer_name,
            has_path: self.include_path,
            has_method: self.include_method,
        };
        Ok(ExchangeLogger::with_batches::<Self>(build, (capture, BodyCaptures::none()), options, statsd))
    }
}

impl HasMetadata for Datadog {
    type Metadata = DatadogMetadata;
}

impl PluginMetadata for DatadogMetadata {
    fn check(self) -> Result<(), ConfigError> {
        self.agent().map(drop)
    }
}

impl DatadogMetadata {
    /// The address of the agent, and the beginning of the names of metrics.
    fn agent(&self) -> Result<(SocketAddress, String), ConfigError> {
        let is_part_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let namespace = match self.namespace.bytes().all(is_part_of_name) {
            true => Ok(()),
            false => Err(ConfigError::new("namespace", "must be letters, digits, `.`, `_` and `-`")),
        };
        let address = SocketAddress::new(self.host.clone(), self.port, TIMEOUT);
        let (address, (), ()) = (address, namespace, checked_tags(&self.constant_tags)).all_of()?;
        let dot = if self.namespace.is_empty() { "" } else { "." };
        Ok((address, format!("{}{dot}", self.namespace)))
    }
}

fn checked_tags(tags: &[String]) -> Result<(), ConfigError> {
    let check = |(index, tag): (usize, &String)| {
        let is_tag = tag.starts_with(char::is_alphabetic) && !tag.ends_with(':') && !tag.contains(is_separator);
        let problem =
            "must begin with a letter, not end with `:`, and have no `,`, `|`, `#` or line end: write as `team:blue`";
        is_tag.then_some(()).ok_or_else(|| ConfigError::new(format!("constant_tags[{index}]"), problem))
    };
    tags.iter().enumerate().map(check).collect_all::<Vec<()>>().map(drop)
}

/// Characters that separate tags and metrics.
fn is_separator(char: char) -> bool {
    ",|#".contains(char) || char.is_control()
}

/// What is recorded of an exchange; the pattern of its route follows.
const FACTS: [&str; 13] = [
    "$route_name",
    "$route_id",
    "$service_name",
    "$service_id",
    "$consumer_name",
    "$balancer_ip",
    "$status",
    "$upstream_scheme",
    "$request_time",
    "$upstream_response_time",
    "$request_length",
    "$bytes_sent",
    "$request_method",
];

/// The facts of an exchange, as a JSON object.
fn shown(record: &Record) -> Vec<u8> {
    let mut out = Vec::new();
    let mut object = JsonObjectWriter::begin(&mut out);
    let names = FACTS.iter().map(|template| template.trim_start_matches('$')).chain(["path"]);
    for (name, value) in names.zip(captured::hidden(record)) {
        object.text_bytes(name.as_bytes(), value);
    }
    drop(object);
    out
}

struct DogStatsd {
    receiver: UdpReceiver,
    /// The beginning of all names.
    prefix: String,
    /// Joined.
    constant_tags: String,
    prefers_names: bool,
    has_path: bool,
    has_method: bool,
}

impl DogStatsd {
    /// The metrics of an exchange, each as a line.
    fn lines(&self, record: &Record) -> Vec<String> {
        let hidden = captured::hidden(record);
        let fact = |index: usize| String::from_utf8_lossy(hidden.get(index).copied().unwrap_or_default());
        let named = |name: usize, id: usize| match fact(name) {
            name if self.prefers_names && !name.is_empty() => name,
            _ => fact(id),
        };
        let status = fact(6);
        let class = status.get(..1).map_or_else(String::new, |first| format!("{first}xx"));
        let mut all = self.constant_tags.clone();
        for (name, value) in [
            ("route_name", named(0, 1)),
            ("service_name", named(2, 3)),
            ("consumer", fact(4)),
            ("balancer_ip", fact(5)),
            ("response_status", status),
            ("response_status_class", class.into()),
            ("scheme", fact(7)),
            ("path", if self.has_path { fact(13) } else { "".into() }),
            ("method", if self.has_method { fact(12) } else { "".into() }),
        ] {
            if !value.is_empty() {
                let comma = if all.is_empty() { "" } else { "," };
                let value = value.replace(is_separator, "_");
                write!(all, "{comma}{name}:{value}").expect("a String takes everything");
            }
        }
        let end = if all.is_empty() { String::new() } else { format!("|#{all}") };
        let line = |name: &str, value: &dyn Display, kind: &str| format!("{}{name}:{value}|{kind}{end}", self.prefix);
        let (whole, upstream) = (milliseconds(&fact(8)).unwrap_or_default(), milliseconds(&fact(9)));
        let own = (whole - upstream.unwrap_or_default()).max(0.0);
        let mut lines = vec![line("request.counter", &1, "c"), line("request.latency", &rounded(whole), "h")];
        lines.extend(upstream.map(|upstream| line("upstream.latency", &rounded(upstream), "h")));
        lines.push(line("apisix.latency", &rounded(own), "h"));
        lines.push(line("ingress.size", &fact(10), "ms"));
        lines.push(line("egress.size", &fact(11), "ms"));
        lines
    }
}

/// The sum of times in seconds, one for each attempt at an upstream, in milliseconds. `None` if there is none.
fn milliseconds(seconds: &str) -> Option<f64> {
    let times: Vec<f64> = seconds.split(',').filter_map(|time| time.trim().parse().ok()).collect();
    (!times.is_empty()).then(|| times.iter().sum::<f64>() * 1e3)
}

/// Without what the sum of decimal fractions has too much.
fn rounded(milliseconds: f64) -> f64 {
    (milliseconds * 1e3).round() / 1e3
}

/// Datagrams with as many whole lines as fit.
fn datagrams(lines: Vec<String>) -> Vec<String> {
    let mut packed: Vec<String> = Vec::new();
    for line in lines {
        match packed.last_mut().filter(|last| last.len() + 1 + line.len() <= PACKED) {
            Some(last) => {
                last.push('\n');
                last.push_str(&line);
            }
            None => packed.push(line),
        }
    }
    packed
}

impl Destination for DogStatsd {
    fn send<'a>(&'a mut self, batch: &'a [Record]) -> RecordSending<'a> {
        Box::pin(async move {
            let (mut outcomes, mut error) = (Vec::with_capacity(batch.len()), None);
            // A datagram has metrics of one exchange only, so that after a failure it is known of which they were sent.
            for record in batch {
                let datagrams = datagrams(self.lines(record));
                if datagrams.iter().any(|datagram| datagram.len() > MAX_DATAGRAM) {
                    outcomes.push(Outcome::Rejected(RejectReason::TooLarge));
                    error = Some(format!("a metric is larger than {MAX_DATAGRAM} bytes"));
                    continue;
                }
                let mut sent = 0;
                for datagram in &datagrams {
                    if let Err(failed) = self.receiver.send(datagram.as_bytes()).await {
                        error = Some(failed);
                        break;
                    }
                    sent += 1;
                }
                if sent == 0 {
                    break;
                }
                // What was sent is not sent again: the exchange would be counted twice.
                outcomes.push(Outcome::Delivered);
                if sent < datagrams.len() {
                    break;
                }
            }
            outcomes.resize(batch.len(), Outcome::Retry);
            SendOutcome::Each { outcomes, error }
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{captured_at, refused};

    const ALL: [&[u8]; 14] = [
        b"orders",
        b"1",
        b"the shop|#,",
        b"7",
        b"jack",
        b"10.0.0.1",
        b"200",
        b"http",
        b"0.125",
        b"0.025, 0.050",
        b"70",
        b"310",
        b"GET",
        b"/a/*",
    ];

    #[test]
    fn a_rejected_record_is_shown_by_its_facts() {
        let shown: serde_json::Value =
            serde_json::from_slice(&shown(&captured_at(0, 1, json!({}), &ALL))).expect("JSON");
        assert_eq!(
            (&shown["route_name"], &shown["status"], &shown["path"]),
            (&json!("orders"), &json!("200"), &json!("/a/*"))
        );
        assert_eq!(shown.as_object().map(serde_json::Map::len), Some(14));
    }

    fn lines(metadata: &DatadogMetadata, is_detailed: bool, facts: &[&[u8]]) -> Vec<String> {
        let (address, prefix) = metadata.agent().expect("valid");
        let statsd = DogStatsd {
            receiver: UdpReceiver::new(address),
            prefix,
            constant_tags: metadata.constant_tags.join(","),
            prefers_names: is_detailed,
            has_path: is_detailed,
            has_method: is_detailed,
        };
        statsd.lines(&captured_at(0, 1, json!({}), facts))
    }

    #[test]
    fn metrics_have_the_tags_of_their_exchange() {
        let tags = "|#source:apisix,route_name:orders,service_name:the shop___,consumer:jack,balancer_ip:10.0.0.1,\
                    response_status:200,response_status_class:2xx,scheme:http,path:/a/*,method:GET";
        let expected = [
            "request.counter:1|c",
            "request.latency:125|h",
            "upstream.latency:75|h",
            "apisix.latency:50|h",
            "ingress.size:70|ms",
            "egress.size:310|ms",
        ];
        let expected = expected.map(|metric| format!("apisix.{metric}{tags}"));
        assert_eq!(lines(&DatadogMetadata::default(), true, &ALL), expected);
        let metadata =
            DatadogMetadata { namespace: String::new(), constant_tags: Vec::new(), ..DatadogMetadata::default() };
        let mut facts = ALL;
        for missing in [4, 5, 9] {
            facts[missing] = b"";
        }
        let own = lines(&metadata, false, &facts);
        let tags = "route_name:1,service_name:7,response_status:200,response_status_class:2xx,scheme:http";
        assert_eq!(own[0], format!("request.counter:1|c|#{tags}"));
        assert!(own.len() == 5 && own[2].starts_with("apisix.latency:125|h|"), "{own:?}");
    }

    #[test]
    fn datagrams_have_whole_lines() {
        let lines: Vec<String> = (10..50).map(|number| format!("{number}{}", "x".repeat(100))).collect();
        let packed = datagrams(lines.clone());
        assert!(packed.iter().all(|datagram| datagram.len() <= PACKED), "{packed:?}");
        assert_eq!((packed.len(), packed.join("\n")), (4, lines.join("\n")));
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({"prefer_name": 1}), "prefer_name"),
            (json!({"constant_tags": ["a", "b,c"]}), "constant_tags[1]: must begin with a letter"),
            (json!({"constant_tags": ["team:"]}), "constant_tags[0]: must begin with a letter"),
        ] {
            let error = refused::<Datadog>(options);
            assert!(error.starts_with(want), "{error}");
        }
        let [namespace, host] = ["a b", "c d"].map(str::to_owned);
        let metadata = DatadogMetadata { namespace, host, ..DatadogMetadata::default() };
        let faults: Vec<String> = metadata.check().expect_err("refused").each().map(|fault| fault.path).collect();
        assert_eq!(faults, ["host", "namespace"]);
    }
}
