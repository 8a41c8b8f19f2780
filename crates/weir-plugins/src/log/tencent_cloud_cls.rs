use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::{digest, hmac};
use http::Response;
use http::header::{AUTHORIZATION, HeaderValue};
use hyper::body::Bytes;
use prost::Message;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use weir_plugin::{AllOf, Build, ConfigError, Definition, HasMetadata, Plugin, Stage, form};
use weir_records::{Destination, Record, RecordSending, SendOutcome};
use weir_services::http_answer;
use weir_services::receivers::{ReceiverOptions, Receivers};

use crate::log::bodies::BodyOptions;
use crate::log::captured::{self, RecordWriter};
use crate::log::logger::{self, ExchangeLogger};
use crate::log::options::{self, BatchOptions, FormatOptions, LoggerMetadata, SinkIdentity};

/// Sends a record of each exchange to Cloud Log Service (CLS) of Tencent Cloud, in signed requests over HTTP.
///
/// A record becomes a log whose fields are the outermost members of the record: texts as they are, other values as JSON. A value is cut
/// at 1 MiB, and a batch of more than 5 MiB is divided, by the limits of CLS. The source of a log is the host name of the
/// machine; in APISIX it is an address that the name has. Requests never wait for the logger. `/records` and the metric
/// `weir_log_records_total` report the outcome of every record. The values of the fields `Authorization`, `Cookie` and `Set-Cookie` are
/// masked.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TencentCloudCls {
    /// The host of CLS, with or without a port, such as `ap-guangzhou.cls.tencentyun.com`.
    #[schemars(extend("x-weir-reaches" = "server"))]
    cls_host: String,
    /// The id of the topic.
    #[schemars(length(min = 1))]
    cls_topic: String,
    /// The scheme of the requests.
    #[serde(default)]
    scheme: ClsScheme,
    /// The id of the key of the API.
    secret_id: String,
    /// The key of the API.
    secret_key: String,
    /// The share of the exchanges that is recorded, chosen at random.
    #[serde(default = "default_sample_ratio")]
    #[schemars(range(min = 0.00001, max = 1))]
    sample_ratio: f64,
    /// Fields of every log, in place of those that the record has under the same names.
    #[serde(default)]
    global_tag: BTreeMap<String, Value>,
    /// Whether the certificate of CLS is verified, with `https`.
    #[serde(default = "options::default_true")]
    ssl_verify: bool,
    #[serde(flatten)]
    format: FormatOptions,
    #[serde(flatten)]
    batch: BatchOptions,
    #[serde(flatten)]
    bodies: BodyOptions,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, serde::Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum ClsScheme {
    Http,
    #[default]
    Https,
}

fn default_sample_ratio() -> f64 {
    1.0
}

/// Time-out for a batch, including the time to connect.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The path of the API for logs with fields.
const PATH: &str = "/structuredlog";
/// The most bytes of a value, by the limit of CLS.
const MOST_VALUE: usize = 1 << 20;
/// The most bytes of a batch, likewise.
const MOST_BATCH: usize = 5 << 20;
/// The clock of the gateway may be this much ahead of that of CLS, in seconds.
const AHEAD_S: u64 = 60;
/// How long a signature is valid, in seconds.
const VALID_S: u64 = 300;

impl Definition for TencentCloudCls {
    const NAME: &'static str = "tencent-cloud-cls";
    const PRIORITY: i32 = 397;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = "tencent-cloud-cls: { cls_host: ap-guangzhou.cls.tencentyun.com, cls_topic: a-topic, secret_id: $env://CLS_SECRET_ID, secret_key: $env://CLS_SECRET_KEY }";

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let metadata = build.metadata::<TencentCloudCls>();
        let common = logger::compile_common((&self.bodies, &self.format, &self.batch), &metadata, build);
        if self.secret_id.is_empty() || !self.secret_id.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'&') {
            build.fault("secret_id", "must be the id of a key: printable ASCII without spaces and `&`");
        }
        let scheme = if self.scheme == ClsScheme::Http { "http" } else { "https" };
        let options = ReceiverOptions { option: "cls_host", verify: self.ssl_verify, timeout: TIMEOUT };
        let receivers = Receivers::one(build.http(), &format!("{scheme}://{}", self.cls_host), &options);
        let ((bodies, capture, sink), receivers) = (common, receivers).all_of()?;
        if receivers.have_paths() {
            return Err(ConfigError::new("cls_host", "must be a host, with or without a port, and no path"));
        }
        let name = format!("tencent-cloud-cls {}", receivers.name());
        let options = sink.named(SinkIdentity::new(name, &[&self.cls_topic]));
        let topic = ClsTopic {
            receivers,
            target: form::with_pairs(PATH, &[("topic_id", &self.cls_topic)]),
            signer: ClsSigner { id: self.secret_id, key: self.secret_key },
            tags: self.global_tag,
            writer: RecordWriter::default(),
        };
        Ok(ExchangeLogger::sampled::<Self>(build, (capture, bodies, self.sample_ratio), options, topic))
    }
}

impl HasMetadata for TencentCloudCls {
    type Metadata = LoggerMetadata;
}

/// `LogGroupList` of the protocol.
#[derive(Clone, PartialEq, Message)]
struct ClsLogGroups {
    #[prost(message, repeated, tag = "1")]
    groups: Vec<ClsLogGroup>,
}

/// `LogGroup`.
#[derive(Clone, PartialEq, Message)]
struct ClsLogGroup {
    #[prost(message, repeated, tag = "1")]
    logs: Vec<ClsLog>,
    /// The machine.
    #[prost(string, optional, tag = "4")]
    source: Option<String>,
}

/// `Log`.
#[derive(Clone, PartialEq, Message)]
struct ClsLog {
    /// In milliseconds since 1970.
    #[prost(int64, required, tag = "1")]
    time: i64,
    #[prost(message, repeated, tag = "2")]
    contents: Vec<ClsContent>,
}

/// `Log.Content`.
#[derive(Clone, PartialEq, Message)]
struct ClsContent {
    #[prost(string, required, tag = "1")]
    key: String,
    #[prost(string, required, tag = "2")]
    value: String,
}

/// Signs requests, in the field `Authorization`.
struct ClsSigner {
    id: String,
    key: String,
}

impl ClsSigner {
    /// The value of the field at this time. Neither fields nor parameters are signed, as in APISIX.
    fn sign(&self, unix_s: u64) -> String {
        let time = format!("{};{}", unix_s.saturating_sub(AHEAD_S), unix_s + VALID_S);
        let request = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, format!("post\n{PATH}\n\n\n").as_bytes());
        let to_sign = format!("sha1\n{time}\n{}\n", hex::encode(request));
        let signature = hmac_sha1(&hmac_sha1(&self.key, &time), &to_sign);
        format!(
            "q-sign-algorithm=sha1&q-ak={}&q-sign-time={time}&q-key-time={time}&q-header-list=&q-url-param-list=&q-signature={signature}",
            self.id
        )
    }
}

/// In hexadecimal.
fn hmac_sha1(key: &str, text: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, key.as_bytes());
    hex::encode(hmac::sign(&key, text.as_bytes()))
}

struct ClsTopic {
    receivers: Receivers,
    /// Path and query.
    target: String,
    signer: ClsSigner,
    tags: BTreeMap<String, Value>,
    writer: RecordWriter,
}

impl ClsTopic {
    fn packed(&self, batch: &[Record]) -> Vec<u8> {
        let (writer, mut json) = (self.writer.batch(), Vec::new());
        let log = |record: &Record| {
            json.clear();
            writer.json(record, &mut json);
            let mut members: Map<String, Value> = serde_json::from_slice(&json).unwrap_or_default();
            members.extend(self.tags.clone());
            let contents = members.into_iter().map(|(key, value)| ClsContent { key, value: content(value) }).collect();
            ClsLog { time: captured::end_ms(record) as i64, contents }
        };
        let logs = batch.iter().map(log).collect();
        let source = Some(String::from_utf8_lossy(self.writer.hostname()).into_owned());
        ClsLogGroups { groups: vec![ClsLogGroup { logs, source }] }.encode_to_vec()
    }
}

/// The value of a field, cut to the limit.
fn content(value: Value) -> String {
    let mut text = match value {
        Value::String(text) => text,
        value => value.to_string(),
    };
    text.truncate(text.floor_char_boundary(MOST_VALUE));
    text
}

/// CLS answers with 400 also if the topic is closed, or the signature is wrong: records are at fault only by these codes.
fn judge(answer: &Response<Bytes>) -> SendOutcome {
    if answer.status().is_success() {
        return SendOutcome::Taken;
    }
    let report: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
    match report["errorcode"].as_str() {
        Some("InvalidContent" | "InvalidParam") => http_answer::strict_failure(answer),
        _ => http_answer::failure(answer),
    }
}

impl Destination for ClsTopic {
    fn send<'a>(&'a mut self, batch: &'a [Record]) -> RecordSending<'a> {
        Box::pin(async move {
            let body = self.packed(batch);
            let bytes = body.len();
            if bytes > MOST_BATCH {
                return SendOutcome::TooLarge(format!("the records have {bytes} bytes; CLS accepts {MOST_BATCH}"));
            }
            let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            let mut signature = HeaderValue::try_from(self.signer.sign(now_s)).expect("the id was checked");
            signature.set_sensitive(true);
            self.receivers.headers.insert(AUTHORIZATION, signature);
            match self.receivers.post(&self.target, "application/x-protobuf", body).await {
                Ok(answer) => judge(&answer),
                Err(error) => http_answer::no_answer(&error, bytes),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use weir_client::HttpClient;

    use super::*;
    use crate::testing::{captured_at, refused};

    fn topic(tags: Value) -> ClsTopic {
        let options = ReceiverOptions { option: "", verify: true, timeout: TIMEOUT };
        ClsTopic {
            receivers: Receivers::one(&HttpClient::default(), "http://a", &options).expect("valid"),
            target: PATH.to_owned(),
            signer: ClsSigner { id: "AKID".to_owned(), key: "the-secret".to_owned() },
            tags: serde_json::from_value(tags).expect("a map"),
            writer: RecordWriter::default(),
        }
    }

    /// By `hmac` and `hashlib` of Python.
    #[test]
    fn signatures_are_those_of_cls() {
        let time = "1699999940;1700000300";
        let expected = format!(
            "q-sign-algorithm=sha1&q-ak=AKID&q-sign-time={time}&q-key-time={time}&q-header-list=&q-url-param-list=&q-signature=6c94b0699a9f486121ba64033e9be95e573ed425"
        );
        assert_eq!(topic(json!({})).signer.sign(1_700_000_000), expected);
    }

    #[test]
    fn logs_have_the_members_of_records_as_fields() {
        let topic = topic(json!({"env": "test", "b": 7}));
        let members = json!({"a": "x", "b": "replaced", "c": {"d": [1]}, "e": ""});
        let bytes = topic.packed(&[captured_at(1_700_000_000_123, 1, members, &[])]);
        let ClsLogGroups { groups } = ClsLogGroups::decode(&*bytes).expect("protobuf");
        let source = String::from_utf8_lossy(topic.writer.hostname()).into_owned();
        assert_eq!((groups.len(), groups[0].source.as_ref()), (1, Some(&source)));
        let log = &groups[0].logs[0];
        let contents: BTreeMap<&str, &str> =
            log.contents.iter().map(|content| (&*content.key, &*content.value)).collect();
        let expected = [("a", "x"), ("b", "7"), ("c", "{\"d\":[1]}"), ("e", ""), ("env", "test")];
        assert_eq!((log.time, contents), (1_700_000_000_123, expected.into()));
        // Fields that are required are sent even if they are empty.
        assert!(bytes.windows(5).any(|window| window == b"\x0a\x01e\x12\x00"), "{bytes:?}");
    }

    #[test]
    fn records_are_refused_only_for_their_content() {
        let answer = |status: u16, code: &str| {
            let body = json!({"errorcode": code, "errormessage": "m"}).to_string();
            Response::builder().status(status).body(Bytes::from(body)).expect("valid")
        };
        assert!(matches!(judge(&answer(200, "")), SendOutcome::Taken));
        assert!(matches!(judge(&answer(400, "InvalidContent")), SendOutcome::Invalid { .. }));
        assert!(matches!(judge(&answer(400, "TopicClosed")), SendOutcome::Failed { .. }));
        assert!(matches!(judge(&answer(403, "InvalidContent")), SendOutcome::Failed { .. }));
        assert!(matches!(judge(&answer(413, "LogSizeExceed")), SendOutcome::TooLarge(_)));
    }

    #[test]
    fn values_are_cut_to_the_limit_of_cls() {
        let long = "é".repeat(MOST_VALUE / 2 + 7);
        assert_eq!(content(json!(long)).len(), MOST_VALUE);
        assert_eq!(content(json!(format!("a{long}"))).len(), MOST_VALUE - 1);
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        let valid = json!({"cls_host": "a", "cls_topic": "t", "secret_id": "i", "secret_key": "k"});
        for (name, value, want) in [
            ("cls_host", json!("a b"), "cls_host: `https://a b` is not a URL"),
            ("cls_host", json!("a/b"), "cls_host: must be a host"),
            ("secret_id", json!("a&b"), "secret_id: must be the id of a key"),
            ("scheme", json!("ftp"), "scheme: `ftp` is not an allowed value"),
            ("sample_ratio", json!(2), "sample_ratio"),
        ] {
            let mut options = valid.clone();
            options[name] = value;
            let error = refused::<TencentCloudCls>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
