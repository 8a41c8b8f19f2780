use std::sync::Arc;
use std::time::Duration;

use http::Response;
use http::header::{AUTHORIZATION, HeaderName};
use hyper::body::Bytes;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use weir_plugin::{AllOf, Build, ConfigError, Definition, HasMetadata, Plugin, Stage};
use weir_records::{Destination, Record, RecordSending, SendOutcome};
use weir_services::http_answer;
use weir_services::receivers::{ReceiverOptions, Receivers, header_value, secret_header_value};

use crate::log::bodies::BodyOptions;
use crate::log::captured::{self, RecordWriter};
use crate::log::json::{JsonObjectWriter, known};
use crate::log::logger::{self, ExchangeLogger};
use crate::log::options::{self, BatchOptions, FormatOptions, LoggerMetadata, SinkIdentity};

/// Sends a record of each exchange to Splunk's HTTP Event Collector.
///
/// Requests never wait for the logger. `/records` and the metric `weir_log_records_total` report the outcome of every
/// record. The values of the fields `Authorization`, `Cookie` and `Set-Cookie` are masked.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SplunkHecLogging {
    /// The collector.
    endpoint: EndpointOptions,
    /// Whether the certificate of an `https` server is verified.
    #[serde(default = "options::default_true")]
    ssl_verify: bool,
    #[serde(flatten)]
    format: FormatOptions,
    #[serde(flatten)]
    batch: BatchOptions,
    #[serde(flatten)]
    bodies: BodyOptions,
}

/// The collector.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct EndpointOptions {
    /// The URL of the collector, such as `https://splunk.example:8088/services/collector`.
    #[schemars(extend("x-weir-reaches" = "server"))]
    uri: String,
    /// The HEC token.
    token: String,
    /// The channel, required if the collector uses indexer acknowledgement.
    channel: Option<String>,
    /// Time-out for a batch, in seconds, including the time to connect.
    #[serde(default = "options::default_slow_timeout_s")]
    #[schemars(range(min = 1, max = 86_400))]
    #[schemars(extend("x-weir-unit" = "s"))]
    timeout: u64,
    /// Has no effect: idle connections are kept for 60 seconds.
    #[serde(default, rename = "keepalive_timeout")]
    #[schemars(extend("x-weir-unit" = "s"))]
    #[schemars(extend("deprecated" = true))]
    _keepalive_timeout: Option<u64>,
}

impl Definition for SplunkHecLogging {
    const NAME: &'static str = "splunk-hec-logging";
    const PRIORITY: i32 = 409;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = r#"splunk-hec-logging: { endpoint: { uri: "http://127.0.0.1:8088/services/collector", token: $env://HEC_TOKEN } }"#;

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let timeout = Duration::from_secs(self.endpoint.timeout);
        let metadata = build.metadata::<SplunkHecLogging>();
        let common = logger::compile_common((&self.bodies, &self.format, &self.batch), &metadata, build);
        let options = ReceiverOptions { option: "endpoint.uri", verify: self.ssl_verify, timeout };
        let uri = self.endpoint.uri;
        let receivers = Receivers::parse(build.http(), std::slice::from_ref(&uri), &options);
        let token = secret_header_value(&format!("Splunk {}", self.endpoint.token), "endpoint.token");
        let channel = self.endpoint.channel.as_deref().map(|channel| header_value(channel, "endpoint.channel"));
        let ((bodies, capture, sink), mut receivers, token, channel) =
            (common, receivers, token, channel.transpose()).all_of()?;
        receivers.headers.insert(AUTHORIZATION, token);
        if let Some(channel) = channel {
            receivers.headers.insert(HeaderName::from_static("x-splunk-request-channel"), channel);
        }
        let name = format!("splunk-hec-logging {}", receivers.name());
        let identity = SinkIdentity::new(name, &[&uri]);
        let options = sink.named(identity);
        let collector = SplunkCollector { receivers, writer: RecordWriter::default() };
        Ok(ExchangeLogger::with_batches::<Self>(build, (capture, bodies), options, collector))
    }
}

impl HasMetadata for SplunkHecLogging {
    type Metadata = LoggerMetadata;
}

struct SplunkCollector {
    receivers: Receivers,
    writer: RecordWriter,
}

impl SplunkCollector {
    /// The body of a request: the events, one after the other.
    fn packed(&self, batch: &[Record]) -> Vec<u8> {
        let (writer, mut body) = (self.writer.batch(), Vec::with_capacity(batch.len() * 1024));
        for record in batch {
            let time = format!("{:.3}", captured::end_ms(record) as f64 / 1e3);
            let mut object = JsonObjectWriter::begin(&mut body);
            object.value(known!("time"), |out| out.extend_from_slice(time.as_bytes()));
            object.text(known!("host"), self.writer.hostname());
            object.text(known!("source"), b"apache-apisix-splunk-hec-logging");
            object.text(known!("sourcetype"), b"_json");
            object.value(known!("event"), |out| writer.json(record, out));
        }
        body
    }
}

impl Destination for SplunkCollector {
    fn send<'a>(&'a mut self, batch: &'a [Record]) -> RecordSending<'a> {
        let body = self.packed(batch);
        let bytes = body.len();
        Box::pin(async move {
            match self.receivers.post("", "application/json", body).await {
                Ok(answer) => judge(&answer),
                Err(error) => http_answer::no_answer(&error, bytes),
            }
        })
    }
}

/// Success is status 200 with the code 0 in the body.
fn judge(answer: &Response<Bytes>) -> SendOutcome {
    if !answer.status().is_success() {
        return http_answer::strict_failure(answer);
    }
    match serde_json::from_slice::<Value>(answer.body()) {
        Ok(report) if report["code"] == 0 => SendOutcome::Taken,
        _ => SendOutcome::Failed { error: http_answer::quoted(answer), after: None },
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;
    use weir_client::HttpClient;

    use super::*;
    use crate::testing::{captured_at, refused};

    #[test]
    fn events_follow_each_other() {
        let options = ReceiverOptions { option: "", verify: true, timeout: Duration::ZERO };
        let receivers = Receivers::parse(&HttpClient::default(), &["http://a".to_owned()], &options).expect("valid");
        let collector = SplunkCollector { receivers, writer: RecordWriter::default() };
        let batch = [captured_at(1500, 1, json!({"n": 1}), &[]), captured_at(2001, 2, json!({"n": 2}), &[])];
        let body = collector.packed(&batch);
        let events: Vec<Value> =
            serde_json::Deserializer::from_slice(&body).into_iter().collect::<Result<_, _>>().expect("JSON");
        assert_eq!((&events[0]["time"], &events[0]["event"]), (&json!(1.5), &json!({"n": 1})));
        assert_eq!((&events[1]["sourcetype"], &events[1]["event"]["n"]), (&json!("_json"), &json!(2)));
    }

    #[test]
    fn only_code_0_is_success() {
        let answer = |status: u16, text: &'static str| {
            Response::builder().status(status).body(Bytes::from_static(text.as_bytes())).expect("valid")
        };
        assert!(matches!(judge(&answer(200, r#"{"text":"Success","code":0}"#)), SendOutcome::Taken));
        assert!(matches!(judge(&answer(200, r#"{"text":"Server is busy","code":9}"#)), SendOutcome::Failed { .. }));
        assert!(matches!(judge(&answer(503, r#"{"text":"Server is busy","code":9}"#)), SendOutcome::Failed { .. }));
        assert!(matches!(
            judge(&answer(400, r#"{"text":"Invalid data format","code":6}"#)),
            SendOutcome::Invalid { .. }
        ));
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({}), "the option `endpoint` is missing"),
            (json!({"endpoint": {"uri": "a", "token": "t"}}), "endpoint.uri[0]: `a` is not a URL"),
            (json!({"endpoint": {"uri": "http://a", "token": "a\nb"}}), "endpoint.token: has a character"),
        ] {
            let error = refused::<SplunkHecLogging>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
