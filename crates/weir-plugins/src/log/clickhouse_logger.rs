use std::sync::Arc;
use std::time::Duration;

use http::Response;
use http::header::HeaderName;
use hyper::body::Bytes;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{AllOf, Build, CollectAll, ConfigError, Definition, HasMetadata, Plugin, Stage};
use weir_records::{Destination, Record, RecordSending, RejectReason, SendOutcome};
use weir_services::http_answer;
use weir_services::receivers::{ReceiverOptions, Receivers, secret_header_value};

use crate::log::bodies::BodyOptions;
use crate::log::captured::RecordWriter;
use crate::log::logger::{self, ExchangeLogger};
use crate::log::options::{self, BatchOptions, FormatOptions, LoggerMetadata, SinkIdentity};

/// Inserts a record of each exchange into a table of ClickHouse, as `JSONEachRow`.
///
/// Requests never wait for the logger. The names in `log_format` are the columns of the table. A batch that is sent
/// again because the response was lost is stored twice, since its blocks may differ. `record_id` identifies
/// duplicates: a `ReplacingMergeTree` that is ordered by it removes them. `/records` and the metric `weir_log_records_total` report the outcome of every record.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClickhouseLogger {
    /// The servers, as `http` or `https` URLs. Batches are sent to the servers in turn. A server that fails is skipped
    /// for 30 seconds, as long as another server works.
    #[serde(default)]
    #[schemars(extend("x-weir-reaches" = "server"))]
    endpoint_addrs: Vec<String>,
    /// One server, instead of `endpoint_addrs`.
    #[schemars(extend("x-weir-reaches" = "server"))]
    endpoint_addr: Option<String>,
    /// The user.
    #[serde(default)]
    user: String,
    /// The user's password.
    #[serde(default)]
    password: String,
    /// The database.
    #[serde(default)]
    database: String,
    /// The table.
    #[serde(default)]
    logtable: String,
    /// Time-out for a batch, in seconds, including the time to connect.
    #[serde(default = "options::default_timeout_s")]
    #[schemars(range(min = 1, max = 86_400))]
    #[schemars(extend("x-weir-unit" = "s"))]
    timeout: u64,
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

impl Definition for ClickhouseLogger {
    const NAME: &'static str = "clickhouse-logger";
    const PRIORITY: i32 = 398;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = r#"clickhouse-logger: { endpoint_addrs: ["http://127.0.0.1:8123"], database: logs, logtable: weir, log_format: { host: $host, status: $status } }"#;

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let timeout = Duration::from_secs(self.timeout);
        let is_name = |char: char| char.is_alphanumeric() || "_.`-".contains(char);
        if self.logtable.is_empty() || !self.logtable.chars().all(is_name) {
            build.fault("logtable", "must name a table: letters, digits, `_`, `-` and `.`");
        }
        let metadata = build.metadata::<ClickhouseLogger>();
        let common = logger::compile_common((&self.bodies, &self.format, &self.batch), &metadata, build);
        let (addrs, option) = match self.endpoint_addr {
            Some(addr) => (vec![addr], "endpoint_addr"),
            None => (self.endpoint_addrs, "endpoint_addrs"),
        };
        let options = ReceiverOptions { option, verify: self.ssl_verify, timeout };
        let receivers = Receivers::parse(build.http(), &addrs, &options);
        let fields = [
            ("x-clickhouse-user", &self.user, "user"),
            ("x-clickhouse-key", &self.password, "password"),
            ("x-clickhouse-database", &self.database, "database"),
        ];
        let field = |(name, value, option): (&'static str, &String, &str)| {
            Ok((HeaderName::from_static(name), secret_header_value(value, option)?))
        };
        let fields = fields.into_iter().map(field).collect_all();
        let ((bodies, capture, sink), mut receivers, fields) = (common, receivers, fields).all_of()?;
        receivers.headers = fields;
        let name = format!("clickhouse-logger {}", receivers.name());
        let identity = SinkIdentity::new(name, &[&self.database, &self.logtable]);
        let options = sink.named(identity);
        let table = Table { receivers, name: self.logtable, writer: RecordWriter::default() };
        Ok(ExchangeLogger::with_batches::<Self>(build, (capture, bodies), options, table))
    }
}

impl HasMetadata for ClickhouseLogger {
    type Metadata = LoggerMetadata;
}

struct Table {
    receivers: Receivers,
    name: String,
    writer: RecordWriter,
}

impl Table {
    fn packed(&self, batch: &[Record]) -> Vec<u8> {
        let mut body = format!("INSERT INTO {} FORMAT JSONEachRow ", self.name).into_bytes();
        let writer = self.writer.batch();
        for record in batch {
            writer.json(record, &mut body);
            body.push(b'\n');
        }
        body
    }
}

impl Destination for Table {
    fn send<'a>(&'a mut self, batch: &'a [Record]) -> RecordSending<'a> {
        let body = self.packed(batch);
        let bytes = body.len();
        Box::pin(async move {
            match self.receivers.post("/", "text/plain", body).await {
                Ok(answer) => judge(&answer),
                Err(error) => http_answer::no_answer(&error, bytes),
            }
        })
    }
}

/// Temporary errors of the server: too many parts, too little memory, read-only, missing table or database, time-outs.
const PASSING: [u32; 9] = [60, 81, 159, 164, 202, 209, 241, 242, 252];

/// An exception may come with status 200, if it occurs after the head of the answer was sent.
fn judge(answer: &Response<Bytes>) -> SendOutcome {
    let code = answer.headers().get("x-clickhouse-exception-code").and_then(|code| code.to_str().ok()?.parse().ok());
    let status = answer.status().as_u16();
    match code {
        None if answer.status().is_success() => SendOutcome::Taken,
        Some(code) if status < 500 && !PASSING.contains(&code) && status != 401 && status != 403 => {
            SendOutcome::Invalid { reason: RejectReason::Invalid, error: http_answer::quoted(answer) }
        }
        // Old versions answer with 500 if rows do not fit the table (error codes of the parsers and of conversions).
        Some(6 | 26 | 27 | 41 | 53 | 72 | 117) => {
            SendOutcome::Invalid { reason: RejectReason::Mapping, error: http_answer::quoted(answer) }
        }
        _ if status == 413 || status == 429 => http_answer::failure(answer),
        _ => SendOutcome::Failed { error: http_answer::quoted(answer), after: http_answer::retry_after(answer) },
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;
    use weir_client::HttpClient;

    use super::*;
    use crate::testing::{captured, refused};

    #[test]
    fn a_batch_is_an_insert() {
        let options = ReceiverOptions { option: "", verify: true, timeout: Duration::ZERO };
        let receivers = Receivers::parse(&HttpClient::default(), &["http://a".to_owned()], &options).expect("valid");
        let table = Table { receivers, name: "logs.weir".to_owned(), writer: RecordWriter::default() };
        let batch = [captured(1, json!({"n": 1})), captured(2, json!({"n": 2}))];
        assert_eq!(table.packed(&batch), b"INSERT INTO logs.weir FORMAT JSONEachRow {\"n\":1}\n{\"n\":2}\n");
    }

    #[test]
    fn exceptions_count_whatever_the_status_is() {
        let answer = |status: u16, code: Option<u32>| {
            let mut answer = Response::builder().status(status);
            if let Some(code) = code {
                answer = answer.header("x-clickhouse-exception-code", code);
            }
            answer.body(Bytes::new()).expect("valid")
        };
        for (status, code, want) in [
            (200, None, "Taken"),
            (200, Some(117), "Invalid"),
            (400, Some(62), "Invalid"),
            (500, Some(27), "Invalid"),
            (500, Some(252), "Failed"),
            (500, Some(241), "Failed"),
            (503, None, "Failed"),
            (403, Some(516), "Failed"),
        ] {
            let sent = format!("{:?}", judge(&answer(status, code)));
            assert!(sent.starts_with(want), "{status} {code:?}: {sent}");
        }
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({"logtable": "a"}), "endpoint_addrs: is needed"),
            (json!({"endpoint_addr": "http://a"}), "logtable: must name a table"),
            (json!({"endpoint_addr": "http://a", "logtable": "a; DROP"}), "logtable: must name a table"),
        ] {
            let error = refused::<ClickhouseLogger>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
