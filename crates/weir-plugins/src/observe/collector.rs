//! An OpenTelemetry collector: its settings in `plugin_metadata`, and batches for it.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_client::HttpClient;
use weir_otlp::answer::ExportItems;
use weir_otlp::messages;
use weir_otlp::resource::{ResourceSpec, SCOPE, resource};
use weir_otlp::service::{OtlpProtocol, OtlpService, OtlpSignal};
use weir_plugin::{AllOf, ConfigError, PluginMetadata};
use weir_records::{Batching, Destination, Record, RecordSending, Retries, SinkOptions};
use weir_services::receivers::{ReceiverOptions, Receivers, header_fields};

/// Where the spans of this node go, for all routes.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CollectorMetadata {
    /// The trace id of requests without a trace context: `random`, or `x-request-id` (the id of the request, if it is a
    /// UUID).
    pub trace_id_source: TraceIdSource,
    /// Resource attributes of the spans. The default of `service.name` is `APISIX`.
    resource: BTreeMap<String, ResourceSpec>,
    /// The collector.
    collector: CollectorSpec,
    /// How spans are sent in batches.
    batch_span_processor: BatchSpanSpec,
    /// Has no effect: the variables `opentelemetry_context_traceparent`, `opentelemetry_trace_id` and `opentelemetry_span_id`
    /// have values for every sampled request.
    #[serde(rename = "set_ngx_var")]
    #[schemars(extend("deprecated" = true))]
    _set_ngx_var: bool,
}

/// Where the id of a new trace comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TraceIdSource {
    #[default]
    Random,
    XRequestId,
}

/// The collector.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct CollectorSpec {
    /// The address of the collector: `host:port`, or an `http` or `https` URL. Spans are sent to the path `/v1/traces`. With
    /// `protocol: grpc`, the port is usually 4317.
    #[schemars(extend("x-weir-reaches" = "server"))]
    address: String,
    /// `http/protobuf`, or `grpc`. Not in APISIX.
    protocol: OtlpProtocol,
    /// Time-out for a batch, in seconds, including the time to connect.
    #[schemars(range(min = 1, max = 86_400))]
    #[schemars(extend("x-weir-unit" = "s"))]
    request_timeout: u64,
    /// Header fields that are added to the requests.
    request_headers: BTreeMap<String, String>,
}

impl Default for CollectorSpec {
    fn default() -> CollectorSpec {
        let request_headers = BTreeMap::new();
        let protocol = OtlpProtocol::default();
        CollectorSpec { address: "127.0.0.1:4318".to_owned(), protocol, request_timeout: 3, request_headers }
    }
}

/// How spans are sent in batches.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct BatchSpanSpec {
    /// Has no effect: if the queue is full, further spans are dropped and counted.
    #[schemars(extend("deprecated" = true))]
    drop_on_queue_full: bool,
    /// The maximum number of requests whose spans wait for the collector.
    #[schemars(range(min = 1, max = 1048576))]
    max_queue_size: usize,
    /// A batch is sent when it is this many seconds old.
    #[schemars(range(min = 0.1, max = 3600))]
    #[schemars(extend("x-weir-unit" = "s"))]
    batch_timeout: f64,
    /// A batch is sent when no span was added to it for this many seconds.
    #[schemars(range(min = 0.1, max = 3600))]
    #[schemars(extend("x-weir-unit" = "s"))]
    inactive_timeout: f64,
    /// The maximum number of requests in a batch.
    #[schemars(range(min = 1))]
    max_export_batch_size: usize,
}

impl Default for BatchSpanSpec {
    fn default() -> BatchSpanSpec {
        BatchSpanSpec {
            drop_on_queue_full: true,
            max_queue_size: 2048,
            batch_timeout: 5.0,
            inactive_timeout: 2.0,
            max_export_batch_size: 256,
        }
    }
}

impl BatchSpanSpec {
    /// The options of a sink that has no name yet.
    fn compile(&self) -> Result<SinkOptions, ConfigError> {
        if self.max_export_batch_size > self.max_queue_size {
            let place = "batch_span_processor.max_export_batch_size";
            return Err(ConfigError::new(place, "must be from 1 to `max_queue_size`"));
        }
        let batching = Batching {
            max_records: self.max_export_batch_size,
            inactive: Duration::from_secs_f64(self.inactive_timeout),
            oldest: Duration::from_secs_f64(self.batch_timeout),
            ..Batching::default()
        };
        let (name, max_pending) = (String::new(), Some(self.max_queue_size));
        let retries = Retries::Always;
        Ok(SinkOptions { name, batching, retries, max_pending, spool: None, rejected: None, tests: None })
    }
}

impl PluginMetadata for CollectorMetadata {
    fn check(self) -> Result<(), ConfigError> {
        OtlpCollector::parse(&self, &HttpClient::default()).map(drop)
    }
}

/// The collector as the destination of a sink.
pub(crate) struct OtlpCollector {
    service: OtlpService,
    resource: Vec<u8>,
}

impl OtlpCollector {
    /// # Errors
    /// A setting is invalid.
    pub(crate) fn parse(
        metadata: &CollectorMetadata,
        client: &HttpClient,
    ) -> Result<(OtlpCollector, SinkOptions), ConfigError> {
        let CollectorSpec { address, protocol, request_timeout, request_headers } = &metadata.collector;
        let timeout = Duration::from_secs(*request_timeout);
        let url = if address.contains("://") { address.clone() } else { format!("http://{address}") };
        let options = ReceiverOptions { option: "collector.address", verify: true, timeout };
        let how = ("collector.address", timeout);
        let service = Receivers::one(client, &url, &options)
            .and_then(|receivers| OtlpService::new(receivers, *protocol, OtlpSignal::Traces, how));
        let fields = header_fields(request_headers, "collector.request_headers");
        let (service, fields, sink) = (service, fields, metadata.batch_span_processor.compile()).all_of()?;
        let service = service.with_fields(fields);
        let sink = SinkOptions { name: format!("opentelemetry {}", service.name()), ..sink };
        Ok((OtlpCollector { service, resource: resource(&metadata.resource, SERVICE) }, sink))
    }
}

/// The name of the service for spans and log records, as in Apache APISIX.
pub(crate) const SERVICE: &str = "APISIX";

impl Destination for OtlpCollector {
    fn send<'a>(&'a mut self, batch: &'a [Record]) -> RecordSending<'a> {
        let body = messages::request(&self.resource, SCOPE, batch.iter().map(|record| &*record.payload));
        Box::pin(async move { self.service.export(body).await.outcome(batch.len(), ExportItems::Spans) })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn wrong_settings_are_refused_with_their_place() {
        for (settings, want) in [
            (json!({"collector": {"address": "/a"}}), "collector.address: `http:///a` is not a URL"),
            (
                json!({"collector": {"address": "http://a/b", "protocol": "grpc"}}),
                "collector.address: has a path, and a gRPC service has none",
            ),
            (json!({"collector": {"request_headers": {"a b": "c"}}}), "collector.request_headers.a b: is not a"),
            (
                json!({"batch_span_processor": {"max_queue_size": 9, "max_export_batch_size": 10}}),
                "batch_span_processor.max_export_batch_size: must be from 1 to `max_queue_size`",
            ),
        ] {
            let metadata: CollectorMetadata = serde_json::from_value(settings).expect("its form is right");
            let error = metadata.check().expect_err("refused").to_string();
            assert!(error.starts_with(want), "{error}");
        }
        CollectorMetadata::default().check().expect("the defaults are right");
    }
}
