//! `otlp_metrics`: the OpenTelemetry collector that the node sends its metrics to.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use serde_json::json;
use weir_client::ServiceUrl;

use super::reference_text::literal_secret;
use crate::keys;
use crate::keys::kinds::{Custom, Flag, Form, Or, Time, Words, custom, flag, form, time, words};
use crate::text::read::{MapReader, NodeReader, shortened};
use crate::text::tree::{MapEntry, NodeKind};

/// Where the metrics of the node go by OTLP, and how often.
#[derive(Clone, PartialEq)]
pub struct OtlpMetricsSettings {
    /// An `http` or `https` URL. For HTTP, `/v1/metrics` is appended to its path; for gRPC it has no path.
    pub endpoint: Box<str>,
    pub protocol: MetricsProtocol,
    /// Header fields of each request.
    pub headers: BTreeMap<String, String>,
    /// From one export to the next.
    pub interval: Duration,
    /// For one request, including the time to connect.
    pub timeout: Duration,
    /// Whether the certificate of the collector is verified.
    pub verify: bool,
    /// Attributes of the resource that the metrics belong to.
    pub resource: BTreeMap<String, ResourceAttribute>,
}

/// Without the headers, which may contain credentials.
impl fmt::Debug for OtlpMetricsSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OtlpMetricsSettings { endpoint, protocol, interval, .. } = self;
        let mut out = f.debug_struct("OtlpMetricsSettings");
        out.field("endpoint", endpoint).field("protocol", protocol).field("interval", interval).finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MetricsProtocol {
    /// OTLP over HTTP, with protobuf.
    #[default]
    Http,
    Grpc,
}

#[derive(Clone, Debug, PartialEq)]
pub enum ResourceAttribute {
    Text(String),
    Flag(bool),
    Number(f64),
}

/// As in the SDKs of OpenTelemetry (`OTEL_METRIC_EXPORT_INTERVAL`, `OTEL_EXPORTER_OTLP_TIMEOUT`).
const DEFAULT_INTERVAL: Duration = Duration::from_secs(60);
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
const INTERVAL: Time = time().between(Duration::from_secs(1), Duration::from_secs(3600));
const TIMEOUT: Time = time().between(Duration::from_millis(100), Duration::from_secs(300));

const PROTOCOLS: &[(&str, MetricsProtocol)] =
    &[("http/protobuf", MetricsProtocol::Http), ("grpc", MetricsProtocol::Grpc)];

keys! {
    /// The OpenTelemetry collector that gets the metrics of the node.
    pub(super) static OTLP_METRICS: OtlpMetricsKeys = "otlp_metrics";

    /// The URL of the collector. With `http/protobuf`, `/v1/metrics` is appended to its path; with `grpc` it has no path.
    endpoint: Form = form("URL", |_| json!({ "type": "string", "pattern": "^https?://", "maxLength": 1024 })), own(),
        required("write `endpoint: \"http://127.0.0.1:4318\"`"), example("\"http://127.0.0.1:4318\"");
    /// The protocol.
    protocol: Or<Words<MetricsProtocol>> = words(PROTOCOLS).or(MetricsProtocol::Http), own();
    /// Header fields of each request.
    headers: Custom<BTreeMap<String, String>> = custom("map: names to text",
        |_| json!({ "type": "object", "additionalProperties": { "type": "string" } }), headers), own(), secret(), absent("none"),
        example("{ x-tenant: edge }");
    /// The time from one export to the next.
    interval: Or<Time> = INTERVAL.or(DEFAULT_INTERVAL), own();
    /// The longest time of one request, including the time to connect.
    timeout: Or<Time> = TIMEOUT.or(DEFAULT_TIMEOUT), own();
    /// Whether the certificate of the collector is verified.
    ssl_verify: Or<Flag> = flag().or(true), own();
    /// Attributes of the resource that the metrics belong to.
    resource: Custom<BTreeMap<String, ResourceAttribute>> = custom("map: names to text, numbers, or `true` and `false`",
        |_| json!({ "type": "object", "additionalProperties": { "type": ["string", "number", "boolean"] } }), resource), own(),
        absent("none"), example("{ deployment.environment: production }");
}

pub(super) fn read(fields: &MapReader) -> Option<OtlpMetricsSettings> {
    let protocol = fields.value(&OTLP_METRICS.protocol);
    let endpoint = fields.get(&OTLP_METRICS.endpoint).and_then(|at| endpoint(&at, protocol));
    Some(OtlpMetricsSettings {
        interval: fields.value(&OTLP_METRICS.interval),
        timeout: fields.value(&OTLP_METRICS.timeout),
        headers: fields.read(&OTLP_METRICS.headers).unwrap_or_default(),
        verify: fields.value(&OTLP_METRICS.ssl_verify),
        resource: fields.read(&OTLP_METRICS.resource).unwrap_or_default(),
        endpoint: endpoint?,
        protocol,
    })
}

fn endpoint(at: &NodeReader, protocol: MetricsProtocol) -> Option<Box<str>> {
    let text = at.text_of(1..=1_024)?;
    let url = match ServiceUrl::parse(text) {
        Ok(url) => url,
        Err(error) => {
            let problem = format!("`{}` is not a URL: {error}", shortened(text));
            at.report_advising(problem, "write as `http://127.0.0.1:4318`");
            return None;
        }
    };
    if protocol == MetricsProtocol::Grpc && url.target().as_str() != "/" {
        at.report_advising("has a path, and a gRPC service has none", "write as `http://127.0.0.1:4317`");
        return None;
    }
    Some(text.into())
}

fn headers(at: &NodeReader) -> Option<BTreeMap<String, String>> {
    let entries = at.entries()?;
    let header = |entry: &MapEntry| {
        let at = at.below(entry);
        let value = literal_secret(&at, at.text()?)?;
        let wrong = match (HeaderName::try_from(&*entry.key), HeaderValue::try_from(value)) {
            (Err(_), _) => "the key is not a header field name",
            // The value may be a credential, so it is not repeated.
            (_, Err(_)) => "is not a header field value",
            _ => return Some((entry.key.to_string(), value.to_owned())),
        };
        at.report(wrong);
        None
    };
    Some(entries.iter().filter_map(header).collect())
}

fn resource(at: &NodeReader) -> Option<BTreeMap<String, ResourceAttribute>> {
    let entries = at.entries()?;
    let attribute = |entry: &MapEntry| {
        let at = at.below(entry);
        let value = match &at.node().kind {
            NodeKind::Text(text) => ResourceAttribute::Text(text.to_string()),
            NodeKind::Bool(flag) => ResourceAttribute::Flag(*flag),
            NodeKind::Number(number) => ResourceAttribute::Number(number.as_f64()?),
            _ => {
                at.report("must be text, a number, `true` or `false`");
                return None;
            }
        };
        Some((entry.key.to_string(), value))
    };
    Some(entries.iter().filter_map(attribute).collect())
}
