use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::Response;
use http::header::HeaderName;
use hyper::body::Bytes;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{AllOf, Build, ConfigError, Definition, HasMetadata, Plugin, Stage};
use weir_records::{Destination, Outcome, Record, RecordSending, RejectReason, SendOutcome};
use weir_services::http_answer;
use weir_services::receivers::{ReceiverOptions, Receivers, header_fields, header_value};

use crate::log::bodies::BodyOptions;
use crate::log::captured::{self, RecordWriter};
use crate::log::json::JsonObjectWriter;
use crate::log::logger::{self, ExchangeLogger};
use crate::log::options::{self, BatchOptions, FormatOptions, LoggerMetadata, SinkIdentity};

/// Sends a record of each exchange to Grafana Loki, as a line of JSON in the stream that the labels identify.
///
/// Requests never wait for the logger. Records are sent oldest first, because Loki refuses entries that are much older
/// than the newest entry of their stream. `/records` and the metric `weir_log_records_total` report the outcome of
/// every record. The values of the fields `Authorization`, `Cookie` and `Set-Cookie` are masked.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LokiLogger {
    /// The servers, as `http` or `https` URLs. Batches are sent to the servers in turn. A server that fails is skipped
    /// for 30 seconds, as long as another server works.
    #[schemars(extend("x-weir-reaches" = "server"))]
    endpoint_addrs: Vec<String>,
    /// The path of the push API.
    #[serde(default = "default_endpoint_uri")]
    endpoint_uri: String,
    /// The tenant (`X-Scope-OrgID`).
    #[serde(default = "default_tenant_id")]
    tenant_id: String,
    /// Header fields that are added to the requests.
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// The labels of the stream: names, and values with `$variables`. Each combination of values is a separate stream.
    #[serde(default = "default_log_labels")]
    #[schemars(extend("minProperties" = 1, "maxProperties" = MAX_LABELS))]
    log_labels: BTreeMap<String, String>,
    /// Whether the certificate of an `https` server is verified. Off by default in APISIX.
    #[serde(default = "options::default_true")]
    ssl_verify: bool,
    /// Time-out for a batch, in milliseconds, including the time to connect.
    #[serde(default = "options::default_timeout_ms")]
    #[schemars(range(min = 1, max = 60000))]
    #[schemars(extend("x-weir-unit" = "ms"))]
    timeout: u64,
    /// Has no effect: connections are always kept for the next batch.
    #[serde(default, rename = "keepalive")]
    #[schemars(extend("deprecated" = true))]
    _keepalive: Option<bool>,
    /// Has no effect.
    #[serde(default, rename = "keepalive_timeout")]
    #[schemars(extend("deprecated" = true))]
    _keepalive_timeout: Option<u64>,
    /// Has no effect: there is one connection for each server.
    #[serde(default, rename = "keepalive_pool")]
    #[schemars(extend("deprecated" = true))]
    _keepalive_pool: Option<u64>,
    #[serde(flatten)]
    format: FormatOptions,
    #[serde(flatten)]
    batch: BatchOptions,
    #[serde(flatten)]
    bodies: BodyOptions,
}

fn default_endpoint_uri() -> String {
    "/loki/api/v1/push".to_owned()
}

fn default_tenant_id() -> String {
    "fake".to_owned()
}

fn default_log_labels() -> BTreeMap<String, String> {
    BTreeMap::from([("job".to_owned(), "apisix".to_owned())])
}

impl Definition for LokiLogger {
    const NAME: &'static str = "loki-logger";
    const PRIORITY: i32 = 414;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str =
        r#"loki-logger: { endpoint_addrs: ["http://127.0.0.1:3100"], log_labels: { job: weir, route: $route_id } }"#;

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let metadata = build.metadata::<LokiLogger>();
        let hidden = self.log_labels.iter();
        let hidden = hidden.map(|(name, text)| build.template_of_record(text, &format!("log_labels.{name}"))).collect();
        let common = logger::compile_common((&self.bodies, &self.format, &self.batch), &metadata, build);
        let timeout = Duration::from_millis(self.timeout);
        let options = ReceiverOptions { option: "endpoint_addrs", verify: self.ssl_verify, timeout };
        let receivers = Receivers::parse(build.http(), &self.endpoint_addrs, &options);
        let (fields, tenant) = (header_fields(&self.headers, "headers"), header_value(&self.tenant_id, "tenant_id"));
        let ((bodies, capture, sink), mut receivers, fields, tenant) = (common, receivers, fields, tenant).all_of()?;
        let capture = capture.with_hidden(hidden);
        receivers.headers = fields;
        receivers.headers.insert(HeaderName::from_static("x-scope-orgid"), tenant);
        let labels: Vec<&str> = self.log_labels.keys().map(String::as_str).collect();
        let place = [&*self.endpoint_uri, &self.tenant_id, &labels.join(",")];
        let name = format!("loki-logger {}", receivers.name());
        let identity = SinkIdentity::new(name, &place).with_fields(&self.headers);
        let options = sink.named(identity);
        let names = self.log_labels.into_keys().collect();
        let loki = Loki { receivers, path: self.endpoint_uri, names, writer: RecordWriter::default() };
        Ok(ExchangeLogger::with_batches::<Self>(build, (capture, bodies), options, loki))
    }
}

/// Loki accepts at most 15 labels by default.
const MAX_LABELS: usize = 15;

impl HasMetadata for LokiLogger {
    type Metadata = LoggerMetadata;
}

struct Loki {
    receivers: Receivers,
    path: String,
    /// The names of the labels. Their values are in the records.
    names: Vec<String>,
    writer: RecordWriter,
}

impl Loki {
    fn packed(&self, batch: &[Record]) -> Vec<u8> {
        let mut streams: BTreeMap<Vec<&[u8]>, Vec<(u64, &Record)>> = BTreeMap::new();
        for record in batch {
            streams.entry(captured::hidden(record)).or_default().push((captured::end_ms(record), record));
        }
        let (writer, mut body) = (self.writer.batch(), b"{\"streams\":[".to_vec());
        for (index, (values, mut lines)) in streams.into_iter().enumerate() {
            body.extend_from_slice(if index == 0 { b"{\"stream\":" } else { b",{\"stream\":" });
            {
                let mut labels = JsonObjectWriter::begin(&mut body);
                self.names.iter().zip(values).for_each(|(name, value)| labels.text_bytes(name.as_bytes(), value));
            }
            body.extend_from_slice(b",\"values\":[");
            // Oldest first.
            lines.sort_by_key(|(end_ms, record)| (*end_ms, record.sequence));
            for (index, (end_ms, record)) in lines.into_iter().enumerate() {
                let mut line = Vec::new();
                writer.json(record, &mut line);
                // Loki drops entries with the same time and text as duplicates, so the sequence number provides the
                // digits below a millisecond.
                let time = format!("{}{:06}", end_ms, record.sequence % 1_000_000);
                let value = (time, String::from_utf8_lossy(&line));
                body.extend((index > 0).then_some(b','));
                serde_json::to_writer(&mut body, &value).expect("a Vec takes everything");
            }
            body.extend_from_slice(b"]}");
        }
        body.extend_from_slice(b"]}");
        body
    }
}

impl Destination for Loki {
    fn send<'a>(&'a mut self, batch: &'a [Record]) -> RecordSending<'a> {
        let body = self.packed(batch);
        let bytes = body.len();
        Box::pin(async move {
            match self.receivers.post(&self.path, "application/json", body).await {
                Ok(answer) => judge(&answer, batch.len()),
                Err(error) => http_answer::no_answer(&error, bytes),
            }
        })
    }
}

/// Loki stores a refused batch in part: `total ignored: 1 out of 2 for stream`. The answer does not identify the
/// ignored records; they are taken to be the oldest.
fn judge(answer: &Response<Bytes>, count: usize) -> SendOutcome {
    if answer.status().is_success() {
        return SendOutcome::Taken;
    }
    if answer.status().as_u16() != 400 {
        return http_answer::failure(answer);
    }
    let text = String::from_utf8_lossy(answer.body());
    let Some(ignored) = ignored(&text) else { return http_answer::strict_failure(answer) };
    let outcome = |index| match index < ignored {
        true => Outcome::Rejected(RejectReason::TooOld),
        false => Outcome::Delivered,
    };
    SendOutcome::Each { outcomes: (0..count).map(outcome).collect(), error: Some(http_answer::quoted(answer)) }
}

/// The sum of ignored records over all streams in an answer.
fn ignored(text: &str) -> Option<usize> {
    let numbers: Vec<usize> =
        text.split("total ignored: ").skip(1).filter_map(|rest| rest.split(' ').next()?.parse().ok()).collect();
    (!numbers.is_empty()).then(|| numbers.iter().sum())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use weir_client::HttpClient;

    use super::*;
    use crate::testing::{captured_at, refused};

    #[test]
    fn records_of_one_stream_stand_together_oldest_first() {
        let options = ReceiverOptions { option: "", verify: true, timeout: Duration::ZERO };
        let receivers = Receivers::parse(&HttpClient::default(), &["http://a".to_owned()], &options).expect("valid");
        let names = vec!["job".to_owned(), "route".to_owned()];
        let loki = Loki { receivers, path: String::new(), names, writer: RecordWriter::default() };
        let batch = [
            captured_at(7, 1, json!({"n": 1}), &[b"weir", b"a"]),
            captured_at(9, 2, json!({"n": 2}), &[b"weir", b"b"]),
            captured_at(5, 3, json!({"n": 3}), &[b"weir", b"a"]),
        ];
        let body: Value = serde_json::from_slice(&loki.packed(&batch)).expect("JSON");
        let expected = json!({"streams": [
            {"stream": {"job": "weir", "route": "a"}, "values": [["5000003", "{\"n\":3}"], ["7000001", "{\"n\":1}"]]},
            {"stream": {"job": "weir", "route": "b"}, "values": [["9000002", "{\"n\":2}"]]},
        ]});
        assert_eq!(body, expected);
    }

    #[test]
    fn entries_too_far_behind_are_rejected_and_the_others_delivered() {
        let answer = |status: u16, text: &'static str| {
            Response::builder().status(status).body(Bytes::from_static(text.as_bytes())).expect("valid")
        };
        assert!(matches!(judge(&answer(204, ""), 3), SendOutcome::Taken));
        let text = "entry with timestamp 2024 ignored, reason: 'entry too far behind', total ignored: 1 out of 3 for stream: {}";
        let SendOutcome::Each { outcomes, .. } = judge(&answer(400, text), 3) else { panic!("each fares for itself") };
        assert_eq!(outcomes, [Outcome::Rejected(RejectReason::TooOld), Outcome::Delivered, Outcome::Delivered]);
        assert!(matches!(judge(&answer(400, "labels"), 3), SendOutcome::Invalid { .. }));
        assert!(matches!(judge(&answer(429, ""), 3), SendOutcome::Busy { .. }));
        assert!(matches!(judge(&answer(500, ""), 3), SendOutcome::Failed { .. }));
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({}), "the option `endpoint_addrs` is missing"),
            (json!({"endpoint_addrs": []}), "endpoint_addrs: is needed"),
            (json!({"endpoint_addrs": ["http://a"], "tenant_id": "a\nb"}), "tenant_id: has a character"),
        ] {
            let error = refused::<LokiLogger>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
