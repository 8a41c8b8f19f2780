use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{AllOf, Build, ConfigError, Definition, HasMetadata, Plugin, Stage, Template};
use weir_records::{Destination, Record, RecordSending, SendOutcome};

use crate::log::bodies::BodyOptions;
use crate::log::captured::{self, RecordWriter};
use crate::log::logger::{self, ExchangeLogger};
use crate::log::options::{self, BatchOptions, FormatOptions, LoggerMetadata, SinkIdentity};
use crate::log::socket::{SocketAddress, TcpReceiver, stream_tls};
use crate::log::syslog_message::{SyslogHead, structured_data};

/// Sends a record of each exchange to Simple Log Service of Alibaba Cloud, by syslog over TLS.
///
/// Each record is a message of RFC 5424 that ends with a line feed. Its host name is the `$host` of the request, as in APISIX, and not that of
/// the machine. Its structured data name the log store, and have the access key.
/// The protocol has no acknowledgements: a record counts as delivered once the operating system has accepted it for sending, also if the
/// service does not accept the access key. If the connection breaks during a batch, the batch is sent again.
///
/// Requests never wait for the logger. `/records` and the metric `weir_log_records_total` report the outcome of every record. The values
/// of the fields `Authorization`, `Cookie` and `Set-Cookie` are masked.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SlsLogger {
    /// The name or address of the service, such as `my-project.cn-hangzhou-intranet.log.aliyuncs.com`.
    #[schemars(extend("x-weir-reaches" = "server"))]
    host: String,
    /// The port of the service, usually 10009.
    #[schemars(range(min = 1))]
    port: u16,
    /// The project.
    project: String,
    /// The log store in the project.
    logstore: String,
    /// The id of the access key.
    access_key_id: String,
    /// The secret of the access key.
    access_key_secret: String,
    /// Whether the certificate of the service is verified.
    #[serde(default = "options::default_true")]
    ssl_verify: bool,
    /// Time-out for connecting, and for a batch, in milliseconds.
    #[serde(default = "default_timeout")]
    #[schemars(range(min = 1, max = 3_600_000))]
    #[schemars(extend("x-weir-unit" = "ms"))]
    timeout: u64,
    #[serde(flatten)]
    format: FormatOptions,
    #[serde(flatten)]
    batch: BatchOptions,
    #[serde(flatten)]
    bodies: BodyOptions,
}

fn default_timeout() -> u64 {
    5000
}

/// Facility 5 (syslog), severity 6 (informational): RFC 5424 §6.2.1.
const PRIORITY_VALUE: u8 = 5 * 8 + 6;

impl Definition for SlsLogger {
    const NAME: &'static str = "sls-logger";
    const PRIORITY: i32 = 406;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = "sls-logger: { host: 127.0.0.1, port: 10009, project: shop, logstore: gateway, access_key_id: $env://SLS_KEY_ID, access_key_secret: $env://SLS_KEY_SECRET }";

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let parameters = [
            ("project", "project", &self.project),
            ("logstore", "logstore", &self.logstore),
            ("access_key_id", "access-key-id", &self.access_key_id),
            ("access_key_secret", "access-key-secret", &self.access_key_secret),
        ];
        for (option, _, text) in parameters {
            if text.is_empty() || text.contains(char::is_control) {
                build.fault(option, "must be a text without control characters");
            }
        }
        let data = structured_data("logservice", parameters.map(|(_, name, text)| (name, &**text)));
        let tls = stream_tls(self.ssl_verify, None);
        let address = SocketAddress::new(self.host, self.port, Duration::from_millis(self.timeout));
        let metadata = build.metadata::<SlsLogger>();
        let common = logger::compile_common((&self.bodies, &self.format, &self.batch), &metadata, build);
        let ((bodies, capture, sink), tls, address) = (common, tls, address).all_of()?;
        let capture = capture.with_hidden(vec![Template::compile("$host")]);
        let identity = SinkIdentity::new(format!("sls-logger {}", address.name()), &[&self.project, &self.logstore]);
        let options = sink.named(identity);
        let receiver = TcpReceiver::new(build.http().clone(), address, Some(tls));
        let store = SlsStore { receiver, data, writer: RecordWriter::default() };
        Ok(ExchangeLogger::with_batches::<Self>(build, (capture, bodies), options, store))
    }
}

impl HasMetadata for SlsLogger {
    type Metadata = LoggerMetadata;
}

struct SlsStore {
    receiver: TcpReceiver,
    /// The structured data of all messages. They contain the access key.
    data: String,
    writer: RecordWriter,
}

impl SlsStore {
    fn packed(&self, batch: &[Record]) -> Vec<u8> {
        let (writer, mut messages) = (self.writer.batch(), Vec::with_capacity(batch.len() * 1024));
        for record in batch {
            let host = captured::hidden(record).first().copied().unwrap_or_default();
            SyslogHead { priority: PRIORITY_VALUE, host, data: &self.data }.write(record, &writer, &mut messages);
            messages.push(b'\n');
        }
        messages
    }
}

impl Destination for SlsStore {
    fn send<'a>(&'a mut self, batch: &'a [Record]) -> RecordSending<'a> {
        let messages = self.packed(batch);
        Box::pin(async move {
            match self.receiver.send(&messages).await {
                Ok(()) => SendOutcome::Taken,
                Err(error) => SendOutcome::Failed { error, after: None },
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

    #[test]
    fn messages_name_the_log_store_and_the_access_key() {
        let address = SocketAddress::new("a".to_owned(), 1, Duration::ZERO).expect("valid");
        let store = SlsStore {
            receiver: TcpReceiver::new(HttpClient::default(), address, None),
            data: "[logservice project=\"p\"]".to_owned(),
            writer: RecordWriter::default(),
        };
        let records =
            [1, 2].map(|number| captured_at(1_700_000_000_123, number, json!({"n": number}), &[b"h.example"]));
        let head = format!(
            "<46>1 2023-11-14T22:13:20.123Z h.example apisix {} - [logservice project=\"p\"] ",
            std::process::id()
        );
        let expected = format!("{head}{{\"n\":1}}\n{head}{{\"n\":2}}\n");
        assert_eq!(String::from_utf8(store.packed(&records)).expect("text"), expected);
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        let valid = json!({"host": "a", "port": 1, "project": "p", "logstore": "l", "access_key_id": "i", "access_key_secret": "s"});
        for (name, value, want) in [
            ("host", json!("a b"), "host: `a b` is neither"),
            ("port", json!(0), "port"),
            ("project", json!(""), "project: must be a text without control characters"),
            ("access_key_secret", json!("a\nb"), "access_key_secret: must be a text without control characters"),
        ] {
            let mut options = valid.clone();
            options[name] = value;
            let error = refused::<SlsLogger>(options);
            assert!(error.starts_with(want), "{error}");
        }
        assert!(refused::<SlsLogger>(json!({"host": "a", "port": 1})).contains("the option `project` is missing"));
    }
}
