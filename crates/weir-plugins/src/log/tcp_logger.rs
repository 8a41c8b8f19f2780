use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{AllOf, Build, ConfigError, Definition, HasMetadata, Plugin, Stage};
use weir_records::{Destination, Record, RecordSending, SendOutcome};

use crate::log::bodies::BodyOptions;
use crate::log::captured::RecordWriter;
use crate::log::logger::{self, ExchangeLogger};
use crate::log::options::{self, BatchOptions, FormatOptions, LoggerMetadata, SinkIdentity};
use crate::log::socket::{SocketAddress, TcpReceiver, stream_tls};

/// Sends a record of each exchange over TCP, in batches of JSON: one array per line, or one object per line if
/// `batch_max_size` is 1.
///
/// Requests never wait for the logger. The protocol has no acknowledgements: a record counts as delivered once the
/// operating system has accepted it for sending. If the connection breaks during a batch, the batch is sent again.
/// `/records` and the metric `weir_log_records_total` report the outcome of every record. The values of the fields
/// `Authorization`, `Cookie` and `Set-Cookie` are masked.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TcpLogger {
    /// The name or address of the receiver.
    #[schemars(extend("x-weir-reaches" = "server"))]
    host: String,
    /// The port of the receiver.
    #[schemars(range(min = 1))]
    port: u16,
    /// Time-out for connecting, and for a batch, in milliseconds.
    #[serde(default = "default_timeout")]
    #[schemars(range(min = 1, max = 3_600_000))]
    #[schemars(extend("x-weir-unit" = "ms"))]
    timeout: u64,
    /// Use TLS.
    #[serde(default)]
    tls: bool,
    /// The name in the certificate of the receiver, if it differs from `host`.
    tls_options: Option<String>,
    /// Whether the certificate of the receiver is verified. APISIX never verifies it.
    #[serde(default = "options::default_true")]
    ssl_verify: bool,
    #[serde(flatten)]
    format: FormatOptions,
    #[serde(flatten)]
    batch: BatchOptions,
    #[serde(flatten)]
    bodies: BodyOptions,
}

fn default_timeout() -> u64 {
    1000
}

impl Definition for TcpLogger {
    const NAME: &'static str = "tcp-logger";
    const PRIORITY: i32 = 405;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = "tcp-logger: { host: 127.0.0.1, port: 5044 }";

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let tls = self.tls.then(|| stream_tls(self.ssl_verify, self.tls_options)).transpose();
        let address = SocketAddress::new(self.host, self.port, Duration::from_millis(self.timeout));
        let metadata = build.metadata::<TcpLogger>();
        let common = logger::compile_common((&self.bodies, &self.format, &self.batch), &metadata, build);
        let ((bodies, capture, sink), tls, address) = (common, tls, address).all_of()?;
        let identity = SinkIdentity::new(format!("tcp-logger {}", address.name()), &[]);
        let is_single = self.batch.is_single();
        let options = sink.named(identity);
        let lines = ListLines {
            receiver: TcpReceiver::new(build.http().clone(), address, tls),
            is_single,
            writer: RecordWriter::default(),
        };
        Ok(ExchangeLogger::with_batches::<Self>(build, (capture, bodies), options, lines))
    }
}

impl HasMetadata for TcpLogger {
    type Metadata = LoggerMetadata;
}

struct ListLines {
    receiver: TcpReceiver,
    is_single: bool,
    writer: RecordWriter,
}

impl Destination for ListLines {
    fn send<'a>(&'a mut self, batch: &'a [Record]) -> RecordSending<'a> {
        let mut text = self.writer.list(batch, self.is_single);
        text.push(b'\n');
        Box::pin(async move {
            match self.receiver.send(&text).await {
                Ok(()) => SendOutcome::Taken,
                Err(error) => SendOutcome::Failed { error, after: None },
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::refused;

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({"port": 1}), "the option `host` is missing"),
            (json!({"host": "", "port": 1}), "host: `` is neither"),
            (json!({"host": "http://a", "port": 1}), "host: `http://a` is neither"),
            (json!({"host": "a", "port": 1, "tls": true, "tls_options": "a:1"}), "tls_options: must be the name"),
        ] {
            let error = refused::<TcpLogger>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
