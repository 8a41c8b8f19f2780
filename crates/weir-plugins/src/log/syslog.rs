use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_plugin::{AllOf, Build, ConfigError, Definition, HasMetadata, Plugin, Stage, Template};
use weir_records::{Destination, Record, RecordSending, SendOutcome};

use crate::log::bodies::BodyOptions;
use crate::log::captured::{self, BatchWriter, RecordWriter};
use crate::log::logger::{self, ExchangeLogger};
use crate::log::options::{self, BatchOptions, FormatOptions, LoggerMetadata, SinkIdentity};
use crate::log::socket::{SocketAddress, TcpReceiver, UdpReceiver, stream_tls};
use crate::log::syslog_message::{NO_DATA, SyslogHead};

/// Sends a record of each exchange to a syslog server: one message of RFC 5424 per record, with the record as JSON.
///
/// Requests never wait for the logger. Syslog has no acknowledgements: a record counts as delivered once the operating
/// system has accepted it for sending. If the connection breaks during a batch, the batch is sent again. Over TCP, a
/// message ends in a line feed (RFC 6587 §3.4.2); over TLS, it is preceded by its length (RFC 5425); over UDP, a
/// message is one datagram (RFC 5426). `/records` and the metric `weir_log_records_total` report the outcome of every
/// record. The values of the fields `Authorization`, `Cookie` and `Set-Cookie` are masked.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Syslog {
    /// The name or address of the server.
    #[schemars(extend("x-weir-reaches" = "server"))]
    host: String,
    /// The port of the server.
    #[schemars(range(min = 1))]
    port: u16,
    /// The transport protocol.
    #[serde(default)]
    sock_type: SocketType,
    /// Use TLS over TCP (RFC 5425).
    #[serde(default)]
    tls: bool,
    /// Whether the certificate of the server is verified. APISIX never verifies it.
    #[serde(default = "options::default_true")]
    ssl_verify: bool,
    /// Time-out for connecting, and for a batch, in milliseconds.
    #[serde(default = "options::default_timeout_ms")]
    #[schemars(range(min = 1, max = 3_600_000))]
    #[schemars(extend("x-weir-unit" = "ms"))]
    timeout: u64,
    /// Has no effect: there is one connection.
    #[serde(default, rename = "pool_size")]
    #[schemars(extend("deprecated" = true))]
    _pool_size: Option<u64>,
    /// Has no effect: `batch_max_size` limits the size of batches.
    #[serde(default, rename = "flush_limit")]
    #[schemars(extend("deprecated" = true))]
    _flush_limit: Option<u64>,
    /// Has no effect: the memory for waiting records is limited as for all loggers.
    #[serde(default, rename = "drop_limit")]
    #[schemars(extend("deprecated" = true))]
    _drop_limit: Option<u64>,
    #[serde(flatten)]
    format: FormatOptions,
    #[serde(flatten)]
    batch: BatchOptions,
    #[serde(flatten)]
    bodies: BodyOptions,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum SocketType {
    #[default]
    Tcp,
    Udp,
}

/// Facility 5 (syslog), severity 6 (informational): RFC 5424 §6.2.1.
const PRIORITY_VALUE: u8 = 5 * 8 + 6;

impl Definition for Syslog {
    const NAME: &'static str = "syslog";
    const PRIORITY: i32 = 401;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = "syslog: { host: 127.0.0.1, port: 5140, sock_type: udp }";

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        if self.tls && self.sock_type == SocketType::Udp {
            build.fault("tls", "can be used with `sock_type: tcp` only");
        }
        let tls = self.tls.then(|| stream_tls(self.ssl_verify, None)).transpose();
        let address = SocketAddress::new(self.host, self.port, Duration::from_millis(self.timeout));
        let metadata = build.metadata::<Syslog>();
        let common = logger::compile_common((&self.bodies, &self.format, &self.batch), &metadata, build);
        let ((bodies, capture, sink), tls, address) = (common, tls, address).all_of()?;
        let capture = capture.with_hidden(vec![Template::compile("$host")]);
        let identity = SinkIdentity::new(format!("syslog {}", address.name()), &[]);
        let options = sink.named(identity);
        let carrier = match self.sock_type {
            SocketType::Tcp => {
                let framing = if tls.is_some() { SyslogFraming::Counted } else { SyslogFraming::LineFeed };
                SyslogTransport::Tcp(TcpReceiver::new(build.http().clone(), address, tls), framing)
            }
            SocketType::Udp => SyslogTransport::Udp(UdpReceiver::new(address)),
        };
        let server = SyslogServer { carrier, writer: RecordWriter::default() };
        Ok(ExchangeLogger::with_batches::<Self>(build, (capture, bodies), options, server))
    }
}

impl HasMetadata for Syslog {
    type Metadata = LoggerMetadata;
}

enum SyslogTransport {
    Tcp(TcpReceiver, SyslogFraming),
    Udp(UdpReceiver),
}

/// How messages in a stream are delimited.
#[derive(Clone, Copy)]
enum SyslogFraming {
    /// Each ends with a line feed (RFC 6587 §3.4.2), the usual form without TLS.
    LineFeed,
    /// Each is preceded by its length (RFC 5425 §4.3).
    Counted,
}

impl SyslogFraming {
    fn push(self, message: &[u8], out: &mut Vec<u8>) {
        if matches!(self, SyslogFraming::Counted) {
            out.extend_from_slice(itoa::Buffer::new().format(message.len()).as_bytes());
            out.push(b' ');
        }
        out.extend_from_slice(message);
        if matches!(self, SyslogFraming::LineFeed) {
            out.push(b'\n');
        }
    }
}

struct SyslogServer {
    carrier: SyslogTransport,
    writer: RecordWriter,
}

/// Appends a message as in RFC 5424 §6, without structured data.
fn write_message(record: &Record, writer: &BatchWriter<'_>, out: &mut Vec<u8>) {
    let host = captured::hidden(record).first().copied().unwrap_or_default();
    SyslogHead { priority: PRIORITY_VALUE, host, data: NO_DATA }.write(record, writer, out);
}

impl Destination for SyslogServer {
    fn send<'a>(&'a mut self, batch: &'a [Record]) -> RecordSending<'a> {
        let writer = self.writer.batch();
        match &mut self.carrier {
            SyslogTransport::Tcp(receiver, framing) => {
                let (mut messages, mut message) = (Vec::with_capacity(batch.len() * 1024), Vec::new());
                for record in batch {
                    message.clear();
                    write_message(record, &writer, &mut message);
                    framing.push(&message, &mut messages);
                }
                Box::pin(async move {
                    match receiver.send(&messages).await {
                        Ok(()) => SendOutcome::Taken,
                        Err(error) => SendOutcome::Failed { error, after: None },
                    }
                })
            }
            SyslogTransport::Udp(receiver) => Box::pin(async move {
                receiver.send_each(batch, |record, message| write_message(record, &writer, message)).await
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::refused;

    #[test]
    fn messages_of_a_stream_are_told_apart() {
        let framed = |framing: SyslogFraming| {
            let mut out = Vec::new();
            [&b"one"[..], b"two2"].iter().for_each(|message| framing.push(message, &mut out));
            String::from_utf8(out).expect("text")
        };
        assert_eq!(framed(SyslogFraming::LineFeed), "one\ntwo2\n");
        assert_eq!(framed(SyslogFraming::Counted), "3 one4 two2");
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({"host": "a"}), "the option `port` is missing"),
            (json!({"host": "a", "port": 1, "sock_type": "pigeon"}), "sock_type: `pigeon` is not an allowed value"),
            (json!({"host": "a", "port": 1, "tls": true, "sock_type": "udp"}), "tls: can be used with"),
        ] {
            let error = refused::<Syslog>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
