//! `otlp_metrics`: the OpenTelemetry collector that the node sends its metrics to.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use weir_client::ServiceUrl;

use crate::text::read::{NodeReader, shortened};
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
const INTERVALS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3600)];
const TIMEOUTS: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(300)];

const PROTOCOLS: &[(&str, MetricsProtocol)] =
    &[("http/protobuf", MetricsProtocol::Http), ("grpc", MetricsProtocol::Grpc)];

pub(super) fn read(at: &NodeReader) -> Option<OtlpMetricsSettings> {
    let fields = at.fields(&["endpoint", "protocol", "headers", "interval", "timeout", "ssl_verify", "resource"])?;
    let protocol = fields.get("protocol").and_then(|at| at.choice(PROTOCOLS)).unwrap_or_default();
    let endpoint = match fields.get("endpoint") {
        Some(at) => endpoint(&at, protocol),
        None => {
            at.report_advising("has no `endpoint`", "write `endpoint: \"http://127.0.0.1:4318\"`");
            None
        }
    };
    let time = |key: &str, range: [Duration; 2], default: Duration| match fields.get(key) {
        Some(at) => time(&at, range).unwrap_or(default),
        None => default,
    };
    Some(OtlpMetricsSettings {
        interval: time("interval", INTERVALS, DEFAULT_INTERVAL),
        timeout: time("timeout", TIMEOUTS, DEFAULT_TIMEOUT),
        headers: fields.get("headers").map(|at| headers(&at)).unwrap_or_default(),
        verify: fields.get("ssl_verify").and_then(|at| at.boolean()).unwrap_or(true),
        resource: fields.get("resource").map(|at| resource(&at)).unwrap_or_default(),
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

fn time(at: &NodeReader, [least, most]: [Duration; 2]) -> Option<Duration> {
    let time = at.duration()?;
    if !(least..=most).contains(&time) {
        at.report(format!("must be from {} to {} seconds", least.as_secs_f64(), most.as_secs_f64()));
        return None;
    }
    Some(time)
}

fn headers(at: &NodeReader) -> BTreeMap<String, String> {
    let entries = at.entries().unwrap_or_default();
    let header = |entry: &MapEntry| {
        let at = at.below(entry);
        let value = at.text()?;
        let wrong = match (HeaderName::try_from(&*entry.key), HeaderValue::try_from(value)) {
            (Err(_), _) => "the key is not a header field name",
            // The value may be a credential, so it is not repeated.
            (_, Err(_)) => "is not a header field value",
            _ => return Some((entry.key.to_string(), value.to_owned())),
        };
        at.report(wrong);
        None
    };
    entries.iter().filter_map(header).collect()
}

fn resource(at: &NodeReader) -> BTreeMap<String, ResourceAttribute> {
    let entries = at.entries().unwrap_or_default();
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
    entries.iter().filter_map(attribute).collect()
}
