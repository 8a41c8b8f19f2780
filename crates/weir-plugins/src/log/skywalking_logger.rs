use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{AllOf, Build, ConfigError, Definition, HasMetadata, Plugin, Stage, Template};
use weir_records::{Destination, Record, RecordSending, SendOutcome};
use weir_services::http_answer;
use weir_services::receivers::{ReceiverOptions, Receivers};

use crate::log::bodies::BodyOptions;
use crate::log::captured::{self, RecordWriter};
use crate::log::json::{JsonObjectWriter, known};
use crate::log::logger::{self, ExchangeLogger};
use crate::log::options::{self, BatchOptions, FormatOptions, LoggerMetadata, SinkIdentity};

/// Sends a record of each exchange to the OAP server of Apache SkyWalking, over HTTP.
///
/// A record belongs to the trace and the segment that the field `sw8` of the request names. Requests never wait for the logger.
/// `/records` and the metric `weir_log_records_total` report the outcome of every record. The values of the fields `Authorization`,
/// `Cookie` and `Set-Cookie` are masked.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SkywalkingLogger {
    /// The URL of the OAP server, such as `http://127.0.0.1:12800`. Records are sent to the path `/v3/logs` there.
    #[schemars(extend("x-weir-reaches" = "server"))]
    endpoint_addr: String,
    /// The name of the service that the records belong to.
    #[serde(default = "default_service_name")]
    service_name: String,
    /// The name of the instance of the service. `$hostname` is the host name of the machine.
    #[serde(default = "default_service_instance_name")]
    service_instance_name: String,
    /// Time-out for a batch, in seconds, including the time to connect.
    #[serde(default = "options::default_timeout_s")]
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

fn default_service_name() -> String {
    "APISIX".to_owned()
}

fn default_service_instance_name() -> String {
    "APISIX Instance Name".to_owned()
}

impl Definition for SkywalkingLogger {
    const NAME: &'static str = "skywalking-logger";
    const PRIORITY: i32 = 408;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = r#"skywalking-logger: { endpoint_addr: "http://127.0.0.1:12800", service_name: shop, service_instance_name: $hostname }"#;

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let metadata = build.metadata::<SkywalkingLogger>();
        let common = logger::compile_common((&self.bodies, &self.format, &self.batch), &metadata, build);
        let timeout = Duration::from_secs(self.timeout);
        let options = ReceiverOptions { option: "endpoint_addr", verify: true, timeout };
        let receivers = Receivers::one(build.http(), &self.endpoint_addr, &options);
        let ((bodies, capture, sink), receivers) = (common, receivers).all_of()?;
        let capture = capture.with_hidden(["$uri", "$http_sw8"].map(Template::compile).into());
        let writer = RecordWriter::default();
        let instance = match &*self.service_instance_name {
            "$hostname" => String::from_utf8_lossy(writer.hostname()).into_owned(),
            _ => self.service_instance_name,
        };
        let name = format!("skywalking-logger {}", receivers.name());
        let options = sink.named(SinkIdentity::new(name, &[&self.endpoint_addr, &self.service_name, &instance]));
        let server = SkywalkingServer { receivers, service: self.service_name, instance, writer };
        Ok(ExchangeLogger::with_batches::<Self>(build, (capture, bodies), options, server))
    }
}

impl HasMetadata for SkywalkingLogger {
    type Metadata = LoggerMetadata;
}

struct SkywalkingServer {
    receivers: Receivers,
    service: String,
    instance: String,
    writer: RecordWriter,
}

/// The segment of a trace that a request belongs to.
#[derive(Debug, PartialEq, Eq)]
struct SkywalkingSegment {
    trace: String,
    segment: String,
    span: u32,
}

impl SkywalkingSegment {
    /// From the field `sw8` of SkyWalking's cross-process propagation, version 3: eight parts between dashes, texts among them in base64.
    fn parse(field: &[u8]) -> Option<SkywalkingSegment> {
        let parts: Vec<&str> = str::from_utf8(field).ok()?.split('-').collect();
        let [_, trace, segment, span, _, _, _, _] = parts[..] else { return None };
        Some(SkywalkingSegment { trace: decoded(trace)?, segment: decoded(segment)?, span: span.parse().ok()? })
    }
}

fn decoded(text: &str) -> Option<String> {
    let engines = [STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD];
    engines.iter().find_map(|engine| String::from_utf8(engine.decode(text).ok()?).ok())
}

impl SkywalkingServer {
    /// The body of a request: a list of `LogData`, each with the record as a text.
    fn packed(&self, batch: &[Record]) -> Vec<u8> {
        let (writer, mut body, mut json) = (self.writer.batch(), Vec::with_capacity(batch.len() * 1024), Vec::new());
        body.push(b'[');
        for (index, record) in batch.iter().enumerate() {
            body.extend((index > 0).then_some(b','));
            json.clear();
            writer.json(record, &mut json);
            let hidden = captured::hidden(record);
            let [path, segment] = [0, 1].map(|index| hidden.get(index).copied().unwrap_or_default());
            let mut log = JsonObjectWriter::begin(&mut body);
            log.number(known!("timestamp"), captured::end_ms(record));
            log.text(known!("service"), self.service.as_bytes());
            log.text(known!("serviceInstance"), self.instance.as_bytes());
            log.text(known!("endpoint"), path);
            if let Some(segment) = SkywalkingSegment::parse(segment) {
                let mut context = log.object(known!("traceContext"));
                context.text(known!("traceId"), segment.trace.as_bytes());
                context.text(known!("traceSegmentId"), segment.segment.as_bytes());
                context.number(known!("spanId"), segment.span.into());
            }
            log.object(known!("body")).object(known!("json")).text(known!("json"), &json);
        }
        body.push(b']');
        body
    }
}

impl Destination for SkywalkingServer {
    fn send<'a>(&'a mut self, batch: &'a [Record]) -> RecordSending<'a> {
        let body = self.packed(batch);
        let bytes = body.len();
        Box::pin(async move {
            match self.receivers.post("/v3/logs", "application/json", body).await {
                Ok(answer) if answer.status().is_success() => SendOutcome::Taken,
                Ok(answer) => http_answer::strict_failure(&answer),
                Err(error) => http_answer::no_answer(&error, bytes),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use weir_client::HttpClient;

    use super::*;
    use crate::testing::{captured_at, refused};

    const SW8: &[u8] = b"1-dGhlLXRyYWNl-dGhlLXNlZ21lbnQ=-3-c2hvcA==-aW5z-L2E=-MTI3LjAuMC4x";

    #[test]
    fn records_are_texts_with_the_trace_of_their_request() {
        let options = ReceiverOptions { option: "", verify: true, timeout: Duration::ZERO };
        let receivers = Receivers::one(&HttpClient::default(), "http://a", &options).expect("valid");
        let [service, instance] = ["shop", "one"].map(str::to_owned);
        let server = SkywalkingServer { receivers, service, instance, writer: RecordWriter::default() };
        let batch = [
            captured_at(1500, 1, json!({"n": 1}), &[b"/a", SW8]),
            captured_at(2000, 2, json!({"n": 2}), &[b"/b", b""]),
        ];
        let body: Value = serde_json::from_slice(&server.packed(&batch)).expect("JSON");
        let expected = json!([
            {"timestamp": 1500, "service": "shop", "serviceInstance": "one", "endpoint": "/a",
             "traceContext": {"traceId": "the-trace", "traceSegmentId": "the-segment", "spanId": 3},
             "body": {"json": {"json": "{\"n\":1}"}}},
            {"timestamp": 2000, "service": "shop", "serviceInstance": "one", "endpoint": "/b",
             "body": {"json": {"json": "{\"n\":2}"}}},
        ]);
        assert_eq!(body, expected);
    }

    #[test]
    fn a_segment_is_read_from_eight_parts() {
        assert_eq!(SkywalkingSegment::parse(SW8).map(|segment| segment.span), Some(3));
        for wrong in [&b""[..], b"1-2", b"1-dGhl-dGhl-x-a-b-c-d", b"1-!-dGhl-3-a-b-c-d", b"1-dGhl-dGhl-3-a-b-c-d-e"] {
            assert_eq!(SkywalkingSegment::parse(wrong), None, "{}", String::from_utf8_lossy(wrong));
        }
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({}), "the option `endpoint_addr` is missing"),
            (json!({"endpoint_addr": "a:1"}), "endpoint_addr: `a:1` is not a URL"),
            (json!({"endpoint_addr": "http://a", "timeout": 0}), "timeout"),
        ] {
            let error = refused::<SkywalkingLogger>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
