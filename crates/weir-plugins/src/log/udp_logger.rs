use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{AllOf, Build, ConfigError, Definition, HasMetadata, Plugin, Stage};
use weir_records::{Destination, Outcome, Record, RecordSending, RejectReason, SendOutcome};

use crate::log::bodies::BodyOptions;
use crate::log::captured::RecordWriter;
use crate::log::logger::{self, ExchangeLogger};
use crate::log::options::{self, BatchOptions, FormatOptions, LoggerMetadata, SinkIdentity};
use crate::log::socket::{MAX_DATAGRAM, SocketAddress, UdpReceiver};

/// Sends a record of each exchange over UDP: each datagram is a JSON array with as many records as fit, or one JSON
/// object if `batch_max_size` is 1.
///
/// Requests never wait for the logger. UDP has no acknowledgements: a record counts as delivered once the operating
/// system has accepted it for sending. A record that does not fit into a datagram is rejected. `/records` and the
/// metric `weir_log_records_total` report the outcome of every record. The values of the fields `Authorization`,
/// `Cookie` and `Set-Cookie` are masked.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UdpLogger {
    /// The name or address of the receiver.
    #[schemars(extend("x-weir-reaches" = "server"))]
    host: String,
    /// The port of the receiver.
    #[schemars(range(min = 1))]
    port: u16,
    /// Time-out for resolving the name, and for a batch, in seconds.
    #[serde(default = "options::default_timeout_s")]
    #[schemars(range(min = 1, max = 3600))]
    #[schemars(extend("x-weir-unit" = "s"))]
    timeout: u64,
    #[serde(flatten)]
    format: FormatOptions,
    #[serde(flatten)]
    batch: BatchOptions,
    #[serde(flatten)]
    bodies: BodyOptions,
}

impl Definition for UdpLogger {
    const NAME: &'static str = "udp-logger";
    const PRIORITY: i32 = 400;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = "udp-logger: { host: 127.0.0.1, port: 5045, batch_max_size: 1 }";

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let address = SocketAddress::new(self.host, self.port, Duration::from_secs(self.timeout));
        let metadata = build.metadata::<UdpLogger>();
        let common = logger::compile_common((&self.bodies, &self.format, &self.batch), &metadata, build);
        let ((bodies, capture, sink), address) = (common, address).all_of()?;
        let identity = SinkIdentity::new(format!("udp-logger {}", address.name()), &[]);
        let is_single = self.batch.is_single();
        let options = sink.named(identity);
        let datagrams = Datagrams { receiver: UdpReceiver::new(address), is_single, writer: RecordWriter::default() };
        Ok(ExchangeLogger::with_batches::<Self>(build, (capture, bodies), options, datagrams))
    }
}

impl HasMetadata for UdpLogger {
    type Metadata = LoggerMetadata;
}

struct Datagrams {
    receiver: UdpReceiver,
    is_single: bool,
    writer: RecordWriter,
}

impl Datagrams {
    /// The number of records that fit into one datagram, and the datagram. The number is 0 if the first record is too large.
    fn first(&self, batch: &[Record]) -> (usize, Vec<u8>) {
        let mut count = batch.len();
        loop {
            let text = self.writer.list(&batch[..count], self.is_single);
            match (text.len() <= MAX_DATAGRAM, count) {
                (true, _) => return (count, text),
                (false, 1) => return (0, Vec::new()),
                (false, _) => count = (count * MAX_DATAGRAM / text.len()).clamp(1, count - 1),
            }
        }
    }
}

impl Destination for Datagrams {
    fn send<'a>(&'a mut self, batch: &'a [Record]) -> RecordSending<'a> {
        Box::pin(async move {
            let mut outcomes = Vec::with_capacity(batch.len());
            let mut error = None;
            while outcomes.len() < batch.len() {
                let (count, datagram) = self.first(&batch[outcomes.len()..]);
                if count == 0 {
                    outcomes.push(Outcome::Rejected(RejectReason::TooLarge));
                    error = Some(format!("a record is larger than {MAX_DATAGRAM} bytes"));
                    continue;
                }
                if let Err(failed) = self.receiver.send(&datagram).await {
                    error = Some(failed);
                    outcomes.resize(batch.len(), Outcome::Retry);
                    break;
                }
                outcomes.resize(outcomes.len() + count, Outcome::Delivered);
            }
            SendOutcome::Each { outcomes, error }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{captured, refused};

    #[test]
    fn a_datagram_has_as_many_records_as_fit() {
        let address = SocketAddress::new("a".to_owned(), 1, Duration::from_secs(1)).expect("valid");
        let datagrams =
            Datagrams { receiver: UdpReceiver::new(address), is_single: false, writer: RecordWriter::default() };
        let batch: Vec<Record> = (0..30).map(|number| captured(number, json!({"text": "x".repeat(5000)}))).collect();
        let (count, datagram) = datagrams.first(&batch);
        assert_eq!(count, 13);
        assert_eq!(serde_json::from_slice::<Vec<Value>>(&datagram).expect("JSON").len(), 13);
        let large = [captured(1, json!({"text": "x".repeat(70_000)}))];
        assert_eq!(datagrams.first(&large).0, 0);
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({"host": "a"}), "the option `port` is missing"),
            (json!({"host": "a b", "port": 1}), "host: `a b` is neither"),
        ] {
            let error = refused::<UdpLogger>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
