mod index_template;

use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::AUTHORIZATION;
use http::{Method, Response};
use hyper::body::Bytes;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use schemars::JsonSchema;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer as _, Serialize};
use serde_json::{Deserializer, Value};
use weir_plugin::{AllOf, Build, ConfigError, Definition, HasMetadata, Plugin, Stage, Template, escape};
use weir_records::{Destination, Outcome, Record, RecordSending, RejectReason, SendOutcome};
use weir_services::http_answer;
use weir_services::receivers::{ReceiverOptions, ReceiverRequest, Receivers, header_fields, secret_header_value};

use crate::log::bodies::BodyOptions;
use crate::log::captured::{self, RecordWriter};
use crate::log::logger::{self, ExchangeLogger};
use crate::log::options::{self, BatchOptions, FormatOptions, LoggerMetadata, SinkIdentity};
use index_template::{IndexTemplate, TemplateOptions};

/// Stores a record of each exchange in Elasticsearch (7 to 9) or OpenSearch.
///
/// Requests never wait for the logger. Every record has an id, and the name of its index is computed from the time of
/// the record, so a record that is sent twice is stored once. The response is evaluated for each record: records that
/// the store refuses permanently count as `rejected`, all others are retried. `/records` and the metric
/// `weir_log_records_total` report the outcome of every record. The values of the fields `Authorization`, `Cookie` and
/// `Set-Cookie` are masked.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ElasticsearchLogger {
    /// The servers, as `http` or `https` URLs. Batches are sent to the servers in turn. A server that fails is skipped
    /// for 30 seconds, as long as another server works.
    #[serde(default)]
    #[schemars(extend("x-weir-reaches" = "server"))]
    endpoint_addrs: Vec<String>,
    /// One server, instead of `endpoint_addrs`.
    #[schemars(extend("x-weir-reaches" = "server"))]
    endpoint_addr: Option<String>,
    /// Where records are stored.
    field: IndexFieldOptions,
    /// The credentials for the servers (Basic authentication).
    auth: Option<AuthOptions>,
    /// Header fields that are added to the requests.
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// Whether the certificate of an `https` server is verified.
    #[serde(default = "options::default_true")]
    ssl_verify: bool,
    /// Time-out for a batch, in seconds, including the time to connect.
    #[serde(default = "options::default_slow_timeout_s")]
    #[schemars(range(min = 1, max = 86_400))]
    #[schemars(extend("x-weir-unit" = "s"))]
    timeout: u64,
    /// How batches are compressed. `gzip` reduces their size to about a fifth, at a cost of about 10 µs of CPU time per
    /// record on the logger's thread.
    #[serde(default)]
    compression: BulkCompression,
    /// Whether `field.index` is a data stream. Delivery is then at least once: a record that is sent again after a
    /// rollover is stored twice, because an id is unique only within one index. Not in APISIX.
    #[serde(default)]
    data_stream: bool,
    /// Creates an index template for `field.index`, so that new indices have the right types for records (Elasticsearch
    /// 7.8 or newer, or OpenSearch). Records wait until the store has accepted it. Not in APISIX.
    template: Option<TemplateOptions>,
    #[serde(flatten)]
    format: FormatOptions,
    #[serde(flatten)]
    batch: BatchOptions,
    #[serde(flatten)]
    bodies: BodyOptions,
}

/// Where records are stored.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct IndexFieldOptions {
    /// The index. `{%Y.%m.%d}` is replaced by the time of the record (UTC, in whole seconds), and `$name` by a variable of the exchange.
    index: String,
}

/// The credentials for the servers (Basic authentication).
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct AuthOptions {
    /// The user.
    username: String,
    /// The user's password.
    password: String,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum BulkCompression {
    #[default]
    None,
    Gzip,
}

/// Everything else in the answer is left out: a few bytes for each record, instead of hundreds.
const BULK: &str =
    "/_bulk?filter_path=errors,items.*.status,items.*.failure_store,items.*.error.type,items.*.error.reason";
/// A record that was stored in the failure store instead of the index, although its status is 201 (Elasticsearch 8.19
/// and later, in data streams).
const FAILURE_STORE: &[u8] = b"\"failure_store\":\"used\"";
const NDJSON: &str = "application/x-ndjson";

impl Definition for ElasticsearchLogger {
    const NAME: &'static str = "elasticsearch-logger";
    const PRIORITY: i32 = 413;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str =
        r#"elasticsearch-logger: { endpoint_addrs: ["http://127.0.0.1:9200"], field: { index: "weir-{%Y.%m.%d}" } }"#;

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let timeout = Duration::from_secs(self.timeout);
        let metadata = build.metadata::<ElasticsearchLogger>();
        let index = self.index(build);
        let common = logger::compile_common((&self.bodies, &self.format, &self.batch), &metadata, build);
        let (addrs, option) = match self.endpoint_addr {
            Some(addr) => (vec![addr], "endpoint_addr"),
            None => (self.endpoint_addrs, "endpoint_addrs"),
        };
        let options = ReceiverOptions { option, verify: self.ssl_verify, timeout };
        let receivers = Receivers::parse(build.http(), &addrs, &options);
        let fields = header_fields(&self.headers, "headers");
        let template = match (self.template, &common) {
            (Some(template), Ok((_, capture, _))) => {
                template.compile(&pattern(&self.field.index), self.data_stream, capture).map(Some)
            }
            _ => Ok(None),
        };
        let ((bodies, capture, sink), (index, hidden), mut receivers, fields, template) =
            (common, index, receivers, fields, template).all_of()?;
        receivers.headers = fields;
        if let Some(AuthOptions { username, password }) = &self.auth {
            let pair = BASE64_STANDARD.encode(format!("{username}:{password}"));
            receivers.headers.insert(AUTHORIZATION, secret_header_value(&format!("Basic {pair}"), "auth")?);
        }
        let is_compressed = self.compression == BulkCompression::Gzip;
        let name = format!("elasticsearch-logger {}", receivers.name());
        let identity = SinkIdentity::new(name, &[&addrs.join(" "), &self.field.index]).with_fields(&self.headers);
        let options = sink.named(identity);
        let store = BulkStore { receivers, index, template, is_compressed, writer: RecordWriter::default() };
        Ok(ExchangeLogger::with_batches::<Self>(build, (capture.with_hidden(hidden), bodies), options, store))
    }
}

impl HasMetadata for ElasticsearchLogger {
    type Metadata = LoggerMetadata;
}

/// The template of an index name: constant texts, times and variables. Workers render the variables with the record.
struct IndexName(Vec<IndexPart>);

enum IndexPart {
    /// The next of the record's hidden texts.
    Hidden,
    /// A pattern for the time of the record.
    Time(String),
}

impl ElasticsearchLogger {
    /// The name of the index, and the texts in it that are rendered for each record.
    fn index(&self, build: &mut Build) -> Result<(IndexName, Vec<Template>), ConfigError> {
        let (index, hidden) = IndexName::compile(&self.field.index, build)?;
        if self.data_stream && index.has_time() {
            let problem =
                "a data stream has no time in its name: write as `logs-weir-default`, or remove `data_stream`";
            return Err(ConfigError::new("field.index", problem));
        }
        Ok((index, hidden))
    }
}

impl IndexName {
    fn compile(text: &str, build: &mut Build) -> Result<(IndexName, Vec<Template>), ConfigError> {
        let wrong = |problem: String| ConfigError::new("field.index", problem);
        let (mut parts, mut hidden, mut rest) = (Vec::new(), Vec::new(), text);
        let mut push = |text: &str, parts: &mut Vec<IndexPart>, build: &mut Build| {
            if !text.is_empty() {
                hidden.push(build.template_of_record(text, "field.index"));
                parts.push(IndexPart::Hidden);
            }
        };
        while let Some((before, after)) = rest.split_once("{%") {
            let Some((pattern, after)) = after.split_once('}') else {
                return Err(wrong(format!("`{text}` has a `{{` without a matching `}}`")));
            };
            push(before, &mut parts, build);
            let pattern = format!("%{pattern}");
            jiff::fmt::strtime::format(&pattern, &Timestamp::UNIX_EPOCH.to_zoned(TimeZone::UTC))
                .map_err(|error| wrong(format!("`{{{pattern}}}` is not a time pattern: {error}")))?;
            parts.push(IndexPart::Time(pattern));
            rest = after;
        }
        push(rest, &mut parts, build);
        let index = IndexName(parts);
        // The constant parts can be checked now; variables are replaced by an example.
        let example: Vec<&[u8]> = hidden.iter().map(|hidden| hidden.constant().unwrap_or(b"x")).collect();
        if let Some(problem) = name_problem(&index.name(0, &example)) {
            return Err(wrong(format!("`{text}` {problem}")));
        }
        Ok((index, hidden))
    }

    fn has_time(&self) -> bool {
        self.0.iter().any(|part| matches!(part, IndexPart::Time(_)))
    }

    /// The name of the index for records of this second since 1970.
    fn name(&self, second: u64, hidden: &[&[u8]]) -> String {
        let mut hidden = hidden.iter();
        let time = || Timestamp::from_second(second as i64).unwrap_or_default().to_zoned(TimeZone::UTC);
        let mut name = String::new();
        for part in &self.0 {
            match part {
                IndexPart::Hidden => {
                    name.push_str(&String::from_utf8_lossy(hidden.next().copied().unwrap_or_default()))
                }
                // Does not fail: the pattern was checked when it was compiled.
                IndexPart::Time(pattern) => {
                    name.push_str(&jiff::fmt::strtime::format(pattern, &time()).unwrap_or_default());
                }
            }
        }
        name
    }
}

/// The wildcard pattern of all names from `field.index`: the part before its first time or variable.
fn pattern(index: &str) -> String {
    match index.find(['{', '$', '\\']) {
        None => index.to_owned(),
        Some(end) => format!("{}*", &index[..end]),
    }
}

/// Why the store would refuse an index with this name.
fn name_problem(name: &str) -> Option<&'static str> {
    if name.is_empty() || name.len() > 255 {
        return Some("is not an index name: an index name has from 1 to 255 bytes");
    }
    if name.starts_with(['-', '_', '+']) || name == "." || name == ".." {
        return Some("is not an index name: it starts with `-`, `_` or `+`, or is `.` or `..`");
    }
    if name.chars().any(char::is_uppercase) {
        return Some("is not an index name: it has an upper-case letter");
    }
    let is_bad = |char: char| char.is_whitespace() || char.is_control() || "\\/*?\"<>|,#:".contains(char);
    name.contains(is_bad).then_some("is not an index name: it has one of \\ / * ? \" < > | , # : or white space")
}

struct BulkStore {
    receivers: Receivers,
    index: IndexName,
    /// `Some` until the template has been created.
    template: Option<IndexTemplate>,
    is_compressed: bool,
    writer: RecordWriter,
}

impl BulkStore {
    /// The body of a bulk request: two lines for each record, one with index and id, and the record.
    fn packed(&self, batch: &[Record]) -> Vec<u8> {
        let (writer, mut body) = (self.writer.batch(), Vec::with_capacity(batch.len() * 1024));
        // Most records of a batch have the index of the record before them. It is escaped already.
        let (mut named, mut index) = (None, Vec::new());
        for record in batch {
            let (second, hidden) = (captured::end_ms(record) / 1000, captured::hidden_bytes(record));
            if named != Some((second, hidden)) {
                index.clear();
                escape::json(&mut index, self.index.name(second, &captured::hidden(record)).as_bytes());
                named = Some((second, hidden));
            }
            body.extend_from_slice(b"{\"create\":{\"_index\":\"");
            body.extend_from_slice(&index);
            body.extend_from_slice(b"\",\"_id\":\"");
            record.write_id(&mut body);
            body.extend_from_slice(b"\"}}\n");
            writer.json_with_timestamp(record, &mut body);
            body.push(b'\n');
        }
        body
    }
}

impl Destination for BulkStore {
    fn send<'a>(&'a mut self, batch: &'a [Record]) -> RecordSending<'a> {
        let packed = self.packed(batch);
        let body = if self.is_compressed { compressed(&packed) } else { packed };
        let bytes = body.len();
        Box::pin(async move {
            if let Some(template) = &self.template {
                if let Err(error) = template.create(&mut self.receivers).await {
                    return SendOutcome::Failed { error, after: None };
                }
                self.template = None;
            }
            let is_gzip = self.is_compressed;
            let request = ReceiverRequest { method: Method::POST, path: BULK, content_type: NDJSON, is_gzip, body };
            match self.receivers.ask(request).await {
                Ok(answer) => judge(&answer, batch.len()),
                Err(error) => http_answer::no_answer(&error, bytes),
            }
        })
    }
}

/// With the fast level: records are similar, so even that compresses them well.
fn compressed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(bytes.len() / 4), Compression::fast());
    encoder.write_all(bytes).and_then(|()| encoder.finish()).expect("a Vec takes everything")
}

/// Whether an answer says, as a whole, that all records were stored: then its items, of which there is one for each record, are
/// not read.
fn all_stored(answer: &[u8]) -> bool {
    struct UpToErrors(Option<bool>);

    impl<'de> Visitor<'de> for &mut UpToErrors {
        type Value = ();

        fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
            out.write_str("an answer of the store")
        }

        /// Ends with the member that is looked for, so that the deserializer reports that the rest was not read.
        fn visit_map<M: MapAccess<'de>>(self, mut members: M) -> Result<(), M::Error> {
            while let Some(name) = members.next_key::<&str>()? {
                if name == "errors" {
                    self.0 = Some(members.next_value()?);
                    break;
                }
                members.next_value::<IgnoredAny>()?;
            }
            Ok(())
        }
    }

    let mut errors = UpToErrors(None);
    // Fails in the ordinary case, see above; and where the answer is no JSON, `errors` is not found.
    let _ = Deserializer::from_slice(answer).deserialize_map(&mut errors);
    // A text with a brace would make an answer look cut short that is not, and then the items decide.
    let braces = |kind: u8| memchr::memchr_iter(kind, answer).count();
    errors.0 == Some(false) && braces(b'{') == braces(b'}') && memchr::memmem::find(answer, FAILURE_STORE).is_none()
}

/// The outcome of each record, from the answer.
pub(crate) fn judge(answer: &Response<Bytes>, count: usize) -> SendOutcome {
    match answer.status().as_u16() {
        200 => {}
        400 => return http_answer::strict_failure(answer),
        413 | 429 => return http_answer::failure(answer),
        _ => {
            return SendOutcome::Failed { error: http_answer::quoted(answer), after: http_answer::retry_after(answer) };
        }
    }
    if all_stored(answer.body()) {
        return SendOutcome::Taken;
    }
    let Ok(report) = serde_json::from_slice::<Value>(answer.body()) else {
        return SendOutcome::Failed { error: "the answer is not JSON, or was cut short".into(), after: None };
    };
    let items = report["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    if items.len() != count {
        let error = format!("the answer has results for {} records, but {count} were sent", items.len());
        return SendOutcome::Failed { error, after: None };
    }
    let results =
        || items.iter().map(|item| item.as_object().and_then(|item| item.values().next()).unwrap_or(&Value::Null));
    let outcomes: Vec<Outcome> = results().map(outcome).collect();
    let is_trouble = |outcome: &Outcome| !matches!(outcome, Outcome::Delivered | Outcome::Duplicate);
    let error = results().zip(&outcomes).find(|(_, outcome)| is_trouble(outcome)).map(|(result, _)| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (status, error) = (&result["status"], &result["error"]);
        format!("a record was answered with {status} {}: {}", text(&error["type"]), text(&error["reason"]))
    });
    SendOutcome::Each { outcomes, error }
}

/// Decided by the status, because the names of errors differ between the stores. What may succeed later is retried,
/// whatever the reason (a full disk, a block, an index that is missing or closed).
fn outcome(result: &Value) -> Outcome {
    let kind = result["error"]["type"].as_str().unwrap_or_default();
    match result["status"].as_u64() {
        Some(200..300) if result["failure_store"] == "used" => Outcome::Rejected(RejectReason::Mapping),
        Some(200..300) => Outcome::Delivered,
        // The id exists: the record was stored by an earlier attempt.
        Some(409) => Outcome::Duplicate,
        Some(400) if kind == "index_closed_exception" => Outcome::Retry,
        Some(400) if kind.contains("parsing") || kind.contains("mapping") => Outcome::Rejected(RejectReason::Mapping),
        Some(413) => Outcome::Rejected(RejectReason::TooLarge),
        Some(400) => Outcome::Rejected(RejectReason::Invalid),
        _ => Outcome::Retry,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;
    use weir_client::HttpClient;

    use super::*;
    use crate::testing::{captured_at, refused};

    fn index(text: &str) -> Result<String, String> {
        let (index, hidden) = IndexName::compile(text, &mut Build::default()).map_err(|error| error.to_string())?;
        // The hidden texts as a worker would render `-$host-`.
        let texts: Vec<&[u8]> = hidden.iter().map(|hidden| hidden.constant().unwrap_or(b"-v-")).collect();
        Ok(index.name(1_700_000_000, &texts))
    }

    #[test]
    fn an_index_is_named_from_the_records_time() {
        assert_eq!(index("weir-{%Y.%m.%d}").as_deref(), Ok("weir-2023.11.14"));
        assert_eq!(index("a-{%Y}-$host-{%m}").as_deref(), Ok("a-2023-v-11"));
        assert_eq!(index("plain").as_deref(), Ok("plain"));
        for wrong in ["", "Upper", "a b", "_a", "a/b", "a:{%Y}", "{%Y", "a*"] {
            let error = index(wrong).expect_err(wrong);
            assert!(error.starts_with("field.index: "), "{error}");
        }
    }

    #[test]
    fn a_pattern_fits_all_names() {
        for (index, want) in
            [("weir", "weir"), ("weir-{%Y.%m.%d}", "weir-*"), ("weir-$host-{%Y}", "weir-*"), ("$host", "*")]
        {
            assert_eq!(pattern(index), want);
        }
    }

    #[test]
    fn a_batch_is_two_lines_for_each_record_and_the_same_at_each_try() {
        let urls = ["http://a".to_owned()];
        let options = ReceiverOptions { option: "", verify: true, timeout: Duration::ZERO };
        let store = BulkStore {
            receivers: Receivers::parse(&HttpClient::default(), &urls, &options).expect("valid"),
            index: IndexName::compile("weir-{%Y}", &mut Build::default()).expect("valid").0,
            template: None,
            is_compressed: false,
            writer: RecordWriter::default(),
        };
        let hidden = [b"weir-".as_slice()];
        let batch = [
            captured_at(1_700_000_000_000, 1, json!({"a": 1}), &hidden),
            captured_at(1_700_000_000_001, 2, json!({"@timestamp": "x"}), &hidden),
            captured_at(1_700_000_000_002, 3, json!({}), &hidden),
        ];
        let text = String::from_utf8(store.packed(&batch)).expect("text");
        let expected = "{\"create\":{\"_index\":\"weir-2023\",\"_id\":\"0000000000000001-000000000001\"}}\n\
            {\"@timestamp\":\"2023-11-14T22:13:20.000Z\",\"a\":1}\n\
            {\"create\":{\"_index\":\"weir-2023\",\"_id\":\"0000000000000001-000000000002\"}}\n\
            {\"@timestamp\":\"x\"}\n\
            {\"create\":{\"_index\":\"weir-2023\",\"_id\":\"0000000000000001-000000000003\"}}\n\
            {\"@timestamp\":\"2023-11-14T22:13:20.002Z\"}\n";
        assert_eq!(text, expected);
        assert_eq!(store.packed(&batch), text.as_bytes());
    }

    #[test]
    fn every_items_status_counts() {
        let answer = |status: u16, body: Value| {
            Response::builder().status(status).body(Bytes::from(body.to_string())).expect("valid")
        };
        assert!(matches!(judge(&answer(200, json!({"errors": false})), 7), SendOutcome::Taken));
        let item =
            |status: u16, kind: &str| json!({"create": {"status": status, "error": {"type": kind, "reason": "r"}}});
        let items = [
            item(201, ""),
            item(409, "version_conflict_engine_exception"),
            item(429, "cluster_block_exception"),
            item(503, "unavailable_shards_exception"),
            item(403, "cluster_block_exception"),
            item(404, "index_not_found_exception"),
            item(400, "mapper_parsing_exception"),
            item(400, "document_parsing_exception"),
            item(400, "illegal_argument_exception"),
            item(400, "index_closed_exception"),
            json!({"create": {"status": 201, "failure_store": "used"}}),
        ];
        let count = items.len();
        let SendOutcome::Each { outcomes, error } = judge(&answer(200, json!({"errors": true, "items": items})), count)
        else {
            panic!("each fares for itself")
        };
        use Outcome::{Delivered, Duplicate, Rejected, Retry};
        let (mapping, invalid) = (Rejected(RejectReason::Mapping), Rejected(RejectReason::Invalid));
        assert_eq!(
            outcomes,
            [Delivered, Duplicate, Retry, Retry, Retry, Retry, mapping, mapping, invalid, Retry, mapping]
        );
        let one = json!({"errors": false, "items": [{"create": {"status": 201, "failure_store": "used"}}]});
        let SendOutcome::Each { outcomes, .. } = judge(&answer(200, one), 1) else { panic!("it is told") };
        assert_eq!(outcomes, [mapping], "it is not in the stream");
        assert_eq!(error.as_deref(), Some("a record was answered with 429 cluster_block_exception: r"));
        for (status, body, count, want) in [
            (200, json!({"errors": true, "items": []}), 1, "Failed"),
            (413, json!(null), 5, "TooLarge"),
            (429, json!(null), 5, "Busy"),
            (400, json!({"error": "poison"}), 5, "Invalid"),
            (400, json!({"error": "poison"}), 1, "Invalid"),
            (401, json!({"error": "who"}), 5, "Failed"),
            (503, json!(null), 5, "Failed"),
        ] {
            let sent = format!("{:?}", judge(&answer(status, body), count));
            assert!(sent.starts_with(want), "{status}: {sent}");
        }
    }

    #[test]
    fn an_answer_that_was_cut_short_says_nothing() {
        let item = json!({"create": {"status": 201}});
        for whole in [
            json!({"errors": false, "items": [item, item]}).to_string(),
            json!({"took": 3, "a": {"b": ["errors"]}, "errors": false, "items": [item]}).to_string(),
            format!(r#" {{ "items": [{item}], "errors": false }} "#),
        ] {
            assert!(all_stored(whole.as_bytes()), "{whole}");
            for length in 0..whole.trim_end().len() {
                assert!(!all_stored(&whole.as_bytes()[..length]), "{}", &whole[..length]);
            }
        }
        for other in [
            json!({"errors": true, "items": []}),
            json!({"items": [{"errors": false}]}),
            json!({"errors": 0}),
            json!([{"errors": false}]),
        ] {
            assert!(!all_stored(other.to_string().as_bytes()), "{other}");
        }
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({"field": {"index": "a"}}), "endpoint_addrs: is needed"),
            (json!({"endpoint_addr": "http://a"}), "the option `field` is missing"),
            (json!({"endpoint_addr": "a", "field": {"index": "a"}}), "endpoint_addr[0]: `a` is not a URL"),
            (json!({"endpoint_addr": "http://a", "field": {"index": "A"}}), "field.index: `A` is not an index name"),
            (
                json!({"endpoint_addr": "http://a", "field": {"index": "a"}, "spool": {}}),
                "spool: needs the node's `data_dir`",
            ),
            (
                json!({"endpoint_addr": "http://a", "field": {"index": "a"}, "headers": {"a b": "c"}}),
                "headers.a b: is not a header field name",
            ),
            (
                json!({"endpoint_addr": "http://a", "field": {"index": "a-{%Y}"}, "data_stream": true}),
                "field.index: a data stream has no time in its name",
            ),
            (
                json!({"endpoint_addr": "http://a", "field": {"index": "$host-a"}, "template": {"name": "a"}}),
                "template: the template would apply to all indices",
            ),
        ] {
            let error = refused::<ElasticsearchLogger>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
