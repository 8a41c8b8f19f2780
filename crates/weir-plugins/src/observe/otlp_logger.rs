use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use weir_otlp::answer::ExportItems;
use weir_otlp::messages::{self, LogRecord};
use weir_otlp::resource::{ResourceSpec, SCOPE, resource};
use weir_otlp::service::{OtlpProtocol, OtlpService, OtlpSignal};
use weir_plugin::{AllOf, Build, ConfigError, Definition, HasMetadata, Plugin, Stage, Template};
use weir_records::{Destination, Record, RecordSending};
use weir_services::receivers::{ReceiverOptions, Receivers, header_fields};

use crate::log::bodies::BodyOptions;
use crate::log::captured::{self, RecordWriter};
use crate::log::logger::{self, ExchangeLogger};
use crate::log::options::{self, BatchOptions, FormatOptions, LoggerMetadata, SinkIdentity};
use crate::observe::collector::SERVICE;
use crate::observe::trace::w3c::Traceparent;

/// Sends a record of each exchange to an OpenTelemetry collector, as a log record (OTLP over HTTP or gRPC). Not in APISIX.
///
/// The body of the log record is a map with the members of the record. The severity is `ERROR` for a status of 500 or more,
/// `WARN` for 400 or more, and `INFO` otherwise. If the request has a `traceparent`, from the client or from the plugin
/// `opentelemetry`, the log record belongs to this trace. Requests never wait for the logger. `/records` and the metric
/// `weir_log_records_total` report the outcome of every record. The values of the fields `Authorization`, `Cookie` and
/// `Set-Cookie` are masked.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OtlpLogger {
    /// The collectors, as `http` or `https` URLs such as `http://127.0.0.1:4318`. Log records are sent to the path
    /// `/v1/logs`. Batches are sent to the collectors in turn. A collector that fails is skipped for 30 seconds, as long as
    /// another one works.
    #[schemars(extend("x-weir-reaches" = "server"))]
    endpoint_addrs: Vec<String>,
    /// `http/protobuf`, or `grpc`: then the URLs have no path, and the port is usually 4317.
    #[serde(default)]
    protocol: OtlpProtocol,
    /// Header fields that are added to the requests.
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// Resource attributes of the log records. The default of `service.name` is `APISIX`.
    #[serde(default)]
    resource: BTreeMap<String, ResourceSpec>,
    /// Whether the certificate of an `https` server is verified.
    #[serde(default = "options::default_true")]
    ssl_verify: bool,
    /// Time-out for a batch, in seconds, including the time to connect.
    #[serde(default = "options::default_slow_timeout_s")]
    #[schemars(range(min = 1, max = 86_400))]
    #[schemars(extend("x-weir-unit" = "s"))]
    timeout: u64,
    #[serde(flatten)]
    format: FormatOptions,
    #[serde(flatten)]
    batch: BatchOptions,
    #[serde(flatten)]
    bodies: BodyOptions,
}

impl Definition for OtlpLogger {
    const NAME: &'static str = "otlp-logger";
    const PRIORITY: i32 = 412;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str =
        r#"otlp-logger: { endpoint_addrs: ["http://127.0.0.1:4318"], resource: { service.name: front-gateway } }"#;

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let timeout = Duration::from_secs(self.timeout);
        let metadata = build.metadata::<OtlpLogger>();
        let common = logger::compile_common((&self.bodies, &self.format, &self.batch), &metadata, build);
        let options = ReceiverOptions { option: "endpoint_addrs", verify: self.ssl_verify, timeout };
        let receivers = Receivers::parse(build.http(), &self.endpoint_addrs, &options);
        let how = ("endpoint_addrs", timeout);
        let service = receivers.and_then(|receivers| OtlpService::new(receivers, self.protocol, OtlpSignal::Logs, how));
        let fields = header_fields(&self.headers, "headers");
        let ((bodies, capture, sink), service, fields) = (common, service, fields).all_of()?;
        let service = service.with_fields(fields);
        let capture = capture.with_hidden(HIDDEN.map(Template::compile).into());
        let name = format!("otlp-logger {}", service.name());
        let identity = SinkIdentity::new(name, &[&self.endpoint_addrs.join(" ")]).with_fields(&self.headers);
        let options = sink.named(identity);
        let resource = resource(&self.resource, SERVICE);
        let logs = OtlpLogs { service, resource, writer: RecordWriter::default() };
        Ok(ExchangeLogger::with_batches::<Self>(build, (capture, bodies), options, logs))
    }
}

impl HasMetadata for OtlpLogger {
    type Metadata = LoggerMetadata;
}

/// The hidden texts of each record: the first determines its severity, the others its trace: the gateway's span or, if it makes
/// none, the client's.
const HIDDEN: [&str; 3] = ["$status", "$opentelemetry_context_traceparent", "$http_traceparent"];

struct OtlpLogs {
    service: OtlpService,
    resource: Vec<u8>,
    writer: RecordWriter,
}

impl OtlpLogs {
    fn packed(&self, batch: &[Record]) -> Vec<u8> {
        let (writer, mut records) = (self.writer.batch(), Vec::with_capacity(batch.len() * 1024));
        for record in batch {
            let mut json = Vec::new();
            writer.json(record, &mut json);
            let hidden = captured::hidden(record);
            let status = hidden.first().and_then(|status| std::str::from_utf8(status).ok()?.parse().ok());
            let parent = hidden.iter().skip(1).find_map(|text| Traceparent::read(std::iter::once(*text)));
            let log = LogRecord {
                time_ns: captured::end_ms(record) * 1_000_000,
                severity: messages::severity_of(status.unwrap_or_default()),
                // Cannot fail: `BatchWriter::json` writes valid JSON.
                body: &serde_json::from_slice::<Value>(&json).unwrap_or_default(),
                id: &record.id(),
                context: parent.map(|parent| (parent.trace, parent.span, parent.is_sampled)),
            };
            messages::log_record(&mut records, &log);
        }
        messages::request(&self.resource, SCOPE, std::iter::once(&*records))
    }
}

impl Destination for OtlpLogs {
    fn send<'a>(&'a mut self, batch: &'a [Record]) -> RecordSending<'a> {
        let body = self.packed(batch);
        Box::pin(async move { self.service.export(body).await.outcome(batch.len(), ExportItems::LogRecords) })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::refused;

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({}), "the option `endpoint_addrs` is missing"),
            (json!({"endpoint_addrs": []}), "endpoint_addrs: is needed"),
            (json!({"endpoint_addrs": ["a"]}), "endpoint_addrs[0]: `a` is not a URL"),
            (
                json!({"endpoint_addrs": ["http://a"], "headers": {"a b": ""}}),
                "headers.a b: is not a header field name",
            ),
            (
                json!({"endpoint_addrs": ["http://a/b"], "protocol": "grpc"}),
                "endpoint_addrs: has a path, and a gRPC service has none",
            ),
            (
                json!({"endpoint_addrs": ["http://a"], "protocol": "thrift"}),
                "protocol: `thrift` is not an allowed value",
            ),
        ] {
            let error = refused::<OtlpLogger>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
