mod account;

use std::collections::BTreeMap;
use std::sync::Arc;

use http::header::AUTHORIZATION;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use weir_plugin::{AllOf, Build, ConfigError, Definition, HasMetadata, Plugin, Stage, Template};
use weir_records::{Destination, Record, RecordSending, SendOutcome};
use weir_services::http_answer;

use self::account::{FileReading, GoogleAuthConfig, GoogleCredentials, GoogleTokens};
use crate::log::bodies::BodyCaptures;
use crate::log::captured::{self, RecordWriter};
use crate::log::logger::ExchangeLogger;
use crate::log::options::{self, BatchOptions, FormatOptions, LoggerMetadata, SinkIdentity};

/// Writes an entry for each exchange to Google Cloud Logging.
///
/// Without a `log_format`, an entry has an `httpRequest`, and the ids of the route and the service, the consumer and the cause of an error
/// in its `jsonPayload`; with one, its `jsonPayload` is the record. The gateway gets an access token for the key of the service account,
/// keeps it, and renews it before it expires.
///
/// Requests never wait for the logger. `/records` and the metric `weir_log_records_total` report the outcome of every record. The values
/// of the fields `Authorization`, `Cookie` and `Set-Cookie` are masked.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GoogleCloudLogging {
    /// The key of the service account, with the members of the file that Google offers for download. Either this or `auth_file` is
    /// required.
    auth_config: Option<GoogleAuthConfig>,
    /// The path of a file with the key of the service account, in JSON as Google offers it for download. It is read again for each access
    /// token, within 10 seconds. In a resource of a store (Admin API, etcd), it must be in a directory that `resource_files` of the node's configuration file
    /// lists, and a relative path starts at the directory of the configuration file; otherwise, at the working directory of the process.
    #[schemars(extend("x-weir-reaches" = "file"))]
    auth_file: Option<String>,
    /// Whether the certificates of Google's servers are verified.
    #[serde(default = "options::default_true")]
    ssl_verify: bool,
    /// The monitored resource of the entries.
    #[serde(default)]
    resource: GoogleResource,
    /// The id of the log, percent-encoded.
    #[serde(default = "default_log_id")]
    log_id: String,
    #[serde(flatten)]
    format: FormatOptions,
    #[serde(flatten)]
    batch: BatchOptions,
}

/// A monitored resource.
#[derive(Clone, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct GoogleResource {
    /// The type of the resource.
    #[serde(rename = "type")]
    kind: String,
    /// The labels of the resource.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
}

impl Default for GoogleResource {
    fn default() -> GoogleResource {
        GoogleResource { kind: "global".to_owned(), labels: BTreeMap::new() }
    }
}

fn default_log_id() -> String {
    "apisix.apache.org%2Flogs".to_owned()
}

impl Definition for GoogleCloudLogging {
    const NAME: &'static str = "google-cloud-logging";
    const PRIORITY: i32 = 407;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = "google-cloud-logging: { auth_file: /etc/weir/google.json, log_id: gateway }";

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let metadata = build.metadata::<GoogleCloudLogging>();
        let capture = self.format.compile(&metadata, build);
        let sink = self.batch.compile(metadata.max_pending_entries, build);
        let is_part_of_id = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.%".contains(&byte);
        if self.log_id.is_empty() || !self.log_id.bytes().all(is_part_of_id) {
            build.fault(
                "log_id",
                "must be letters, digits, `-`, `_` and `.`, and what is percent-encoded: write `a%2Fb`",
            );
        }
        let (http, verify) = (build.http().clone(), self.ssl_verify);
        let credentials = match (self.auth_config, &self.auth_file) {
            (Some(config), None) => {
                let account = config.account(&http, verify, "auth_config");
                account.map(|account| (account.place(), GoogleCredentials::Account(Box::new(account))))
            }
            (None, Some(path)) => build.read_file(path, "auth_file").map(|file| {
                (
                    file.path().display().to_string(),
                    GoogleCredentials::File { file, http, verify, read: None, reading: FileReading::default() },
                )
            }),
            _ => Err(ConfigError::new(
                "",
                "needs either `auth_config` or `auth_file`, with the key of a service account",
            )),
        };
        let (capture, sink, (place, credentials)) = (capture, sink, credentials).all_of()?;
        let capture = capture.with_hidden(vec![Template::compile("$request_id")]);
        let identity = SinkIdentity::new(format!("google-cloud-logging {}", self.log_id), &[&place]);
        let options = sink.named(identity);
        let log = GoogleLog {
            tokens: GoogleTokens::new(credentials),
            format: EntryFormat {
                log_id: self.log_id,
                resource: json!(self.resource),
                writer: RecordWriter::default(),
            },
        };
        Ok(ExchangeLogger::with_batches::<Self>(build, (capture, BodyCaptures::none()), options, log))
    }
}

impl HasMetadata for GoogleCloudLogging {
    type Metadata = LoggerMetadata;
}

struct GoogleLog {
    tokens: GoogleTokens,
    format: EntryFormat,
}

/// What entries are made with.
struct EntryFormat {
    log_id: String,
    resource: Value,
    writer: RecordWriter,
}

/// The label of all entries, as in Apache APISIX, so that existing queries still find them.
const SOURCE: &str = "apache-apisix-google-cloud-logging";
/// The members of an ordinary record that an entry has elsewhere, or not at all.
const ELSEWHERE: [&str; 9] = [
    "request",
    "response",
    "server",
    "upstream",
    "client_ip",
    "start_time",
    "latency",
    "upstream_latency",
    "apisix_latency",
];

impl EntryFormat {
    /// The body of a request: either all of its entries are written, or none.
    fn packed(&self, project: &str, batch: &[Record]) -> Vec<u8> {
        let (writer, mut json) = (self.writer.batch(), Vec::new());
        let log_name = format!("projects/{project}/logs/{}", self.log_id);
        let entry = |record: &Record| {
            json.clear();
            writer.json(record, &mut json);
            let mut payload: Map<String, Value> = serde_json::from_slice(&json).unwrap_or_default();
            let mut entry = Map::new();
            if captured::has_everything(record) {
                entry.insert("httpRequest".to_owned(), http_request(&payload));
                payload.retain(|name, _| !ELSEWHERE.contains(&&**name));
            }
            let time = Timestamp::from_millisecond(captured::end_ms(record) as i64).unwrap_or_default();
            entry.insert("jsonPayload".to_owned(), payload.into());
            entry.insert("labels".to_owned(), json!({ "source": SOURCE }));
            entry.insert("timestamp".to_owned(), format!("{time:.3}").into());
            entry.insert("resource".to_owned(), self.resource.clone());
            entry.insert("insertId".to_owned(), insert_id(record).into());
            entry.insert("logName".to_owned(), log_name.clone().into());
            Value::Object(entry)
        };
        let entries: Vec<Value> = batch.iter().map(entry).collect();
        json!({ "entries": entries, "partialSuccess": false }).to_string().into_bytes()
    }
}

/// The id of the request: Google keeps one of several entries with the same id and time.
fn insert_id(record: &Record) -> String {
    let hidden = captured::hidden(record);
    let mut id = hidden.first().copied().unwrap_or_default().to_vec();
    if id.is_empty() {
        record.write_id(&mut id);
    }
    String::from_utf8_lossy(&id).into_owned()
}

/// The `httpRequest` of an entry, from the members of an ordinary record.
fn http_request(record: &Map<String, Value>) -> Value {
    let member = |path: &[&str]| {
        let (first, rest) = path.split_first()?;
        rest.iter().try_fold(record.get(*first)?, |value, name| value.get(*name)).filter(|value| !value.is_null())
    };
    let mut request = Map::new();
    for (name, path) in [
        ("requestMethod", &["request", "method"][..]),
        ("requestUrl", &["request", "url"]),
        ("requestSize", &["request", "size"]),
        ("status", &["response", "status"]),
        ("responseSize", &["response", "size"]),
        ("userAgent", &["request", "headers", "user-agent"]),
        ("remoteIp", &["client_ip"]),
        ("serverIp", &["upstream"]),
    ] {
        if let Some(value) = member(path) {
            // Several fields of one name are a list.
            let first = value.as_array().and_then(|values| values.first());
            request.insert(name.to_owned(), first.unwrap_or(value).clone());
        }
    }
    if let Some(latency_ms) = member(&["latency"]).and_then(Value::as_f64) {
        request.insert("latency".to_owned(), format!("{:.3}s", latency_ms / 1e3).into());
    }
    request.into()
}

impl GoogleLog {
    /// Sends a batch. A token that is not accepted any more is replaced once.
    async fn write(&mut self, batch: &[Record]) -> SendOutcome {
        loop {
            let (account, token, is_new) = match self.tokens.token().await {
                Ok(found) => found,
                Err(error) => return SendOutcome::Failed { error, after: None },
            };
            let body = self.format.packed(&account.project, batch);
            let bytes = body.len();
            account.entries.headers.insert(AUTHORIZATION, token);
            let answer = match account.entries.post("", "application/json", body).await {
                Ok(answer) if answer.status().is_success() => return SendOutcome::Taken,
                Ok(answer) => answer,
                Err(error) => return http_answer::no_answer(&error, bytes),
            };
            if answer.status().as_u16() == 401 {
                self.tokens.forget();
                if !is_new {
                    continue;
                }
            }
            return http_answer::strict_failure(&answer);
        }
    }
}

impl Destination for GoogleLog {
    fn send<'a>(&'a mut self, batch: &'a [Record]) -> RecordSending<'a> {
        Box::pin(self.write(batch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{captured_at, refused};

    #[test]
    fn entries_of_a_format_have_it_as_their_payload() {
        let resource = json!({"type": "global"});
        let format = EntryFormat { log_id: "a%2Fb".to_owned(), resource, writer: RecordWriter::default() };
        let batch = [
            captured_at(1_700_000_000_123, 1, json!({"n": 1}), &[b"id-1"]),
            captured_at(1_700_000_001_000, 2, json!({"n": 2}), &[b""]),
        ];
        let body: Value = serde_json::from_slice(&format.packed("shop", &batch)).expect("JSON");
        let entry = |number: u64, time: &str, id: &str| {
            json!({"jsonPayload": {"n": number}, "labels": {"source": SOURCE}, "timestamp": time,
                "resource": {"type": "global"}, "insertId": id, "logName": "projects/shop/logs/a%2Fb"})
        };
        let entries = [
            entry(1, "2023-11-14T22:13:20.123Z", "id-1"),
            entry(2, "2023-11-14T22:13:21.000Z", "0000000000000001-000000000002"),
        ];
        assert_eq!(body, json!({"entries": entries, "partialSuccess": false}));
    }

    #[test]
    fn the_request_of_an_entry_is_made_of_a_record() {
        let record = json!({"request": {"method": "GET", "url": "http://h:80/a", "size": 59, "headers": {"user-agent": "u"}},
            "response": {"status": 200, "size": 118}, "client_ip": "127.0.0.1", "upstream": "127.0.0.1:1980", "latency": 103.4});
        let Value::Object(record) = record else { panic!("a map") };
        let expected = json!({"requestMethod": "GET", "requestUrl": "http://h:80/a", "requestSize": 59, "status": 200,
            "responseSize": 118, "userAgent": "u", "remoteIp": "127.0.0.1", "serverIp": "127.0.0.1:1980", "latency": "0.103s"});
        assert_eq!(http_request(&record), expected);
        let mut twice = record;
        twice["request"]["headers"]["user-agent"] = json!(["u", "v"]);
        assert_eq!(http_request(&twice), expected);
        assert_eq!(http_request(&Map::new()), json!({}));
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        let config = json!({"client_email": "a@b", "private_key": "no key", "project_id": "p", "token_uri": "no"});
        let with = |name: &str, value: &str| {
            let mut config = config.clone();
            config[name] = json!(value);
            config
        };
        for (options, want) in [
            (json!({}), "needs either `auth_config` or `auth_file`"),
            (json!({"auth_config": config, "auth_file": "a"}), "needs either `auth_config` or `auth_file`"),
            (json!({"auth_config": with("type", "service_account")}), "auth_config.private_key: is not a private"),
            (json!({"auth_config": with("private_key_id", "1")}), "auth_config.private_key: is not a private"),
            (json!({"auth_config": with("key", "1")}), "auth_config.key: the option `key` is not known"),
            (json!({"auth_config": config}), "auth_config.private_key: is not a private RSA key in PEM"),
            (json!({"auth_file": "a", "resource": {}}), "resource: the option `type` is missing"),
            (json!({"auth_file": ""}), "auth_file"),
            (json!({"auth_file": "a", "log_id": "a/b"}), "log_id: must be letters"),
        ] {
            let error = refused::<GoogleCloudLogging>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
