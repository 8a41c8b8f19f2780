use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::header::HeaderName;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};
use weir_client::ServiceUrl;
use weir_plugin::{
    AllOf, Build, CollectAll, ConfigError, Definition, HasMetadata, Plugin, PluginMetadata, Stage, Template,
};
use weir_records::{Destination, Record, RecordSending, SendOutcome};
use weir_services::http_answer;
use weir_services::receivers::{ReceiverOptions, Receivers, header_value};

use crate::log::bodies::BodyOptions;
use crate::log::captured::{self, BatchWriter, RecordWriter};
use crate::log::logger::{self, ExchangeLogger};
use crate::log::options::{self, BatchOptions, FormatOptions, LoggerMetadata, SinkIdentity};
use crate::log::socket::{SocketAddress, UdpReceiver};
use crate::log::syslog_message::{SyslogHead, structured_data};

/// Sends a record of each exchange to SolarWinds Loggly.
///
/// The metadata of the plugin says how: `syslog`, the default, sends a message of RFC 5424 over UDP for each record; `http` and `https`
/// send batches with one JSON object per line to the bulk endpoint. UDP is not encrypted and has no acknowledgements: a record counts as
/// delivered once the operating system has accepted it for sending, and the token can be read on the way. Use `https`.
///
/// Requests never wait for the logger. `/records` and the metric `weir_log_records_total` report the outcome of every record. The values
/// of the fields `Authorization`, `Cookie` and `Set-Cookie` are masked.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Loggly {
    /// The customer token of the account.
    customer_token: String,
    /// The severity of messages, in upper or lower case. For `syslog` only.
    #[serde(default)]
    severity: LogglySeverity,
    /// The severity by the status of the response, such as `{"503": "err"}`. For `syslog` only.
    #[serde(default)]
    severity_map: BTreeMap<String, LogglySeverity>,
    /// The tags of the records: printable ASCII, without `tag=` before them.
    #[serde(default = "default_tags")]
    #[schemars(length(min = 1))]
    tags: Vec<String>,
    /// Whether the certificate of the server is verified. For `https` only.
    #[serde(default = "options::default_true")]
    ssl_verify: bool,
    #[serde(flatten)]
    format: FormatOptions,
    #[serde(flatten)]
    batch: BatchOptions,
    #[serde(flatten)]
    bodies: BodyOptions,
}

/// A severity of syslog (RFC 5424 §6.2.1), as its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
struct LogglySeverity(u8);

/// The names of the severities from 0 to 7, as APISIX writes them.
const SEVERITIES: [&str; 8] = ["EMEGR", "ALERT", "CRIT", "ERR", "WARNING", "NOTICE", "INFO", "DEBUG"];

impl Default for LogglySeverity {
    fn default() -> LogglySeverity {
        LogglySeverity(6)
    }
}

impl Serialize for LogglySeverity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(SEVERITIES[usize::from(self.0)])
    }
}

impl TryFrom<String> for LogglySeverity {
    type Error = String;

    fn try_from(text: String) -> Result<LogglySeverity, String> {
        let is_it = |name: &&str| **name == *text || name.to_ascii_lowercase() == text;
        let found = SEVERITIES.iter().position(is_it);
        found.map(|number| LogglySeverity(number as u8)).ok_or_else(|| format!("expected {}", SEVERITIES.join(", ")))
    }
}

impl JsonSchema for LogglySeverity {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "LogglySeverity".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let names = SEVERITIES.iter().flat_map(|name| [(*name).to_owned(), name.to_ascii_lowercase()]);
        json_schema!({"type": "string", "enum": names.collect::<Vec<_>>()})
    }
}

fn default_tags() -> Vec<String> {
    vec!["apisix".to_owned()]
}

/// The server that all `loggly` plugins send records to.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LogglyMetadata {
    /// The name or address of the server. For `http` and `https` it may have a port.
    #[schemars(extend("x-weir-reaches" = "server"))]
    host: String,
    /// The port for `syslog`.
    #[schemars(range(min = 1))]
    port: u16,
    /// How records are sent.
    protocol: LogglyProtocol,
    /// Time-out for a batch, in milliseconds, including the time to resolve the name and to connect.
    #[schemars(range(min = 1, max = 3_600_000))]
    #[schemars(extend("x-weir-unit" = "ms"))]
    timeout: u64,
    /// The `log_format` of plugins that do not set this option.
    log_format: Option<Map<String, Value>>,
    /// The `log_format_extra` of plugins that do not set this option.
    log_format_extra: Option<Map<String, Value>>,
    /// The maximum number of records that wait in memory for a destination. Further records are dropped, or go to the
    /// disk if the plugin has a `spool`. Without it, only the memory that the records take is limited. APISIX's default
    /// is 8192.
    #[schemars(range(min = 1, max = 1048576))]
    max_pending_entries: Option<usize>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum LogglyProtocol {
    #[default]
    Syslog,
    Http,
    Https,
}

impl Default for LogglyMetadata {
    fn default() -> LogglyMetadata {
        LogglyMetadata {
            host: "logs-01.loggly.com".to_owned(),
            port: 514,
            protocol: LogglyProtocol::Syslog,
            timeout: 5000,
            log_format: None,
            log_format_extra: None,
            max_pending_entries: None,
        }
    }
}

impl LogglyMetadata {
    fn of_records(&self) -> LoggerMetadata {
        let LogglyMetadata { log_format, log_format_extra, max_pending_entries, .. } = self.clone();
        LoggerMetadata { log_format, log_format_extra, max_pending_entries }
    }

    fn address(&self) -> Result<SocketAddress, ConfigError> {
        SocketAddress::new(self.host.clone(), self.port, Duration::from_millis(self.timeout))
    }

    /// The URL of the server, without a path; `None` for syslog.
    fn origin(&self) -> Option<String> {
        match self.protocol {
            LogglyProtocol::Syslog => None,
            LogglyProtocol::Http => Some(format!("http://{}", self.host)),
            LogglyProtocol::Https => Some(format!("https://{}", self.host)),
        }
    }
}

impl PluginMetadata for LogglyMetadata {
    fn check(self) -> Result<(), ConfigError> {
        let is_host = |url: &String| ServiceUrl::parse(url).is_ok_and(|url| url.target().as_str() == "/");
        // Where the server has a URL, the port of the option `port` is that of syslog.
        let host = match self.origin() {
            None => self.address().map(drop),
            Some(url) if is_host(&url) => Ok(()),
            Some(_) => Err(ConfigError::new("host", "must be a host, with or without a port: `logs-01.loggly.com`")),
        };
        (host, self.of_records().check()).all_of().map(drop)
    }
}

impl Definition for Loggly {
    const NAME: &'static str = "loggly";
    const PRIORITY: i32 = 411;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str =
        r#"loggly: { customer_token: $env://LOGGLY_TOKEN, tags: [shop], severity_map: { "503": err } }"#;

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let metadata = build.metadata::<Loggly>();
        let common = logger::compile_common((&self.bodies, &self.format, &self.batch), &metadata.of_records(), build);
        let checks = (checked_token(&self.customer_token), checked_tags(&self.tags), severities(&self.severity_map));
        let server = self.server(&metadata, build);
        let ((bodies, capture, sink), ((), (), severities), server) = (common, checks.all_of(), server).all_of()?;
        let capture = capture.with_hidden(["$host", "$status"].map(Template::compile).into());
        let name = format!("loggly {}", metadata.host);
        // The token decides whose records they are.
        let options = sink.named(SinkIdentity::new(name, &[&self.tags.join(","), &self.customer_token]));
        let tags = self.tags.iter().map(|tag| ("tag", &**tag));
        let data = structured_data(&format!("{}@{ENTERPRISE}", self.customer_token), tags);
        let message = LogglyMessage { severity: self.severity, severities, data };
        let token = self.customer_token;
        let account = LogglyAccount { server, message, token, writer: RecordWriter::default() };
        Ok(ExchangeLogger::with_batches::<Self>(build, (capture, bodies), options, account))
    }
}

impl HasMetadata for Loggly {
    type Metadata = LogglyMetadata;
}

/// The private enterprise number of Loggly, in the id of the structured data.
const ENTERPRISE: u32 = 41_058;
/// What is encoded in a token in a path: a token of Loggly has nothing of it.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-');
/// Facility 1, user-level messages (RFC 5424 §6.2.1).
const FACILITY: u8 = 8;

impl Loggly {
    fn server(&self, metadata: &LogglyMetadata, build: &Build) -> Result<LogglyServer, ConfigError> {
        let Some(origin) = metadata.origin() else {
            return metadata.address().map(|address| LogglyServer::Syslog(UdpReceiver::new(address)));
        };
        let timeout = Duration::from_millis(metadata.timeout);
        let options = ReceiverOptions { option: "", verify: self.ssl_verify, timeout };
        let mut receivers = Receivers::one(build.http(), &origin, &options)?;
        // Invalid tags are reported by their own check.
        if let Ok(tags) = header_value(&self.tags.join(","), "tags") {
            receivers.headers.insert(HeaderName::from_static("x-loggly-tag"), tags);
        }
        let token = utf8_percent_encode(&self.customer_token, ENCODED).to_string();
        Ok(LogglyServer::Bulk { receivers, path: format!("/bulk/{token}/tag/bulk") })
    }
}

/// The token is a part of the id of structured data (RFC 5424 §6.3.2). It is a secret, and not quoted.
fn checked_token(token: &str) -> Result<(), ConfigError> {
    match !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic() && !b"=]\"".contains(&byte)) {
        true => Ok(()),
        false => Err(ConfigError::new("customer_token", "must be a customer token of Loggly: letters, digits and `-`")),
    }
}

fn checked_tags(tags: &[String]) -> Result<(), ConfigError> {
    let check = |(index, tag): (usize, &String)| {
        let is_tag = !tag.is_empty() && tag.bytes().all(|byte| matches!(byte, b' '..=b'~')) && !tag.starts_with("tag=");
        let fault = || ConfigError::new(format!("tags[{index}]"), "must be printable ASCII, without `tag=` before it");
        is_tag.then_some(()).ok_or_else(fault)
    };
    tags.iter().enumerate().map(check).collect_all::<Vec<()>>().map(drop)
}

fn severities(map: &BTreeMap<String, LogglySeverity>) -> Result<BTreeMap<u16, LogglySeverity>, ConfigError> {
    let entry = |(status, severity): (&String, &LogglySeverity)| match status.parse() {
        Ok(number @ 100..600) => Ok((number, *severity)),
        _ => Err(ConfigError::new(format!("severity_map.{status}"), "is not a status: write one from 100 to 599")),
    };
    map.iter().map(entry).collect_all::<Vec<_>>().map(BTreeMap::from_iter)
}

enum LogglyServer {
    Syslog(UdpReceiver),
    Bulk { receivers: Receivers, path: String },
}

/// What messages of syslog have beside the record.
struct LogglyMessage {
    severity: LogglySeverity,
    severities: BTreeMap<u16, LogglySeverity>,
    /// The structured data.
    data: String,
}

impl LogglyMessage {
    fn write(&self, record: &Record, writer: &BatchWriter<'_>, out: &mut Vec<u8>) {
        let hidden = captured::hidden(record);
        let [host, status] = [0, 1].map(|index| hidden.get(index).copied().unwrap_or_default());
        let status = str::from_utf8(status).ok().and_then(|status| status.parse::<u16>().ok());
        let severity = status.and_then(|status| self.severities.get(&status)).unwrap_or(&self.severity);
        SyslogHead { priority: FACILITY + severity.0, host, data: &self.data }.write(record, writer, out);
    }
}

struct LogglyAccount {
    server: LogglyServer,
    message: LogglyMessage,
    token: String,
    writer: RecordWriter,
}

impl Destination for LogglyAccount {
    fn send<'a>(&'a mut self, batch: &'a [Record]) -> RecordSending<'a> {
        let LogglyAccount { server, message, token, writer } = self;
        match server {
            LogglyServer::Syslog(receiver) => {
                let writer = writer.batch();
                Box::pin(
                    async move { receiver.send_each(batch, |record, out| message.write(record, &writer, out)).await },
                )
            }
            LogglyServer::Bulk { receivers, path } => {
                let lines = writer.lines(batch);
                let bytes = lines.len();
                Box::pin(async move {
                    match receivers.post(path, "application/json", lines).await {
                        Ok(answer) if answer.status().is_success() => SendOutcome::Taken,
                        Ok(answer) => without_token(http_answer::strict_failure(&answer), token),
                        Err(error) => http_answer::no_answer(&error, bytes),
                    }
                })
            }
        }
    }
}

/// Answers may repeat the path of the request, in which the token is.
fn without_token(outcome: SendOutcome, token: &str) -> SendOutcome {
    let hidden = |error: String| error.replace(token, "***");
    match outcome {
        SendOutcome::Taken => SendOutcome::Taken,
        SendOutcome::Each { outcomes, error } => SendOutcome::Each { outcomes, error: error.map(hidden) },
        SendOutcome::TooLarge(error) => SendOutcome::TooLarge(hidden(error)),
        SendOutcome::Busy { error, after } => SendOutcome::Busy { error: hidden(error), after },
        SendOutcome::Failed { error, after } => SendOutcome::Failed { error: hidden(error), after },
        SendOutcome::Invalid { reason, error } => SendOutcome::Invalid { reason, error: hidden(error) },
        SendOutcome::Refused { reason, error } => SendOutcome::Refused { reason, error: hidden(error) },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{captured_at, refused};

    #[test]
    fn the_severity_of_a_message_follows_from_the_status() {
        let severities = BTreeMap::from([(503, LogglySeverity(3)), (410, LogglySeverity(1))]);
        let data = "[a-token@41058 tag=\"a\"]".to_owned();
        let message = LogglyMessage { severity: LogglySeverity(6), severities, data };
        for (status, priority) in [(&b"200"[..], "<14>1 "), (b"503", "<11>1 "), (b"410", "<9>1 "), (b"", "<14>1 ")] {
            let record = captured_at(1_700_000_000_123, 1, json!({"n": 1}), &[b"h.example", status]);
            let mut out = Vec::new();
            message.write(&record, &RecordWriter::default().batch(), &mut out);
            let rest = format!("h.example apisix {} - [a-token@41058 tag=\"a\"] {{\"n\":1}}", std::process::id());
            let expected = format!("{priority}2023-11-14T22:13:20.123Z {rest}");
            assert_eq!(String::from_utf8(out).expect("text"), expected);
        }
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({}), "the option `customer_token` is missing"),
            (json!({"customer_token": "a]"}), "customer_token: must be a customer token of Loggly"),
            (json!({"customer_token": "a", "severity": "LOUD"}), "severity: `LOUD` is not an allowed value"),
            (json!({"customer_token": "a", "severity_map": {"99": "err"}}), "severity_map.99: is not a status"),
            (json!({"customer_token": "a", "tags": ["a", "tag=b"]}), "tags[1]: must be printable ASCII"),
        ] {
            let error = refused::<Loggly>(options);
            assert!(error.starts_with(want), "{error}");
        }
        for (host, protocol) in [("a b", LogglyProtocol::Syslog), ("a?b", LogglyProtocol::Https)] {
            let metadata = LogglyMetadata { host: host.to_owned(), protocol, ..LogglyMetadata::default() };
            assert!(metadata.check().expect_err("refused").to_string().starts_with("host: "), "{host}");
        }
    }
}
