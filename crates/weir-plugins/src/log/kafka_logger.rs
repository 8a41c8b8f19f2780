use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_client::{ServerVerification, StreamTarget, StreamTls};
use weir_kafka::{BrokerAccess, KafkaMessage, SaslLogin, SaslMechanism, is_topic_name};
use weir_plugin::{AllOf, Build, CollectAll, ConfigError, Definition, HasMetadata, Plugin, Stage};
use weir_records::{Batching, Destination, Outcome, Record, RecordSending, RejectReason, SendOutcome, SinkOptions};

use crate::log::bodies::BodyOptions;
use crate::log::captured::{self, RecordWriter};
use crate::log::logger::{self, ExchangeLogger};
use crate::log::options::{self, BatchOptions, FormatOptions, LoggerMetadata, SinkIdentity};
use crate::options::host;

mod producer;
mod times;

use producer::{ProduceError, Producer, ProducerOptions};
use times::send_in_parts;

/// Sends a record of each exchange to a topic of Kafka (1.0 or newer).
///
/// Requests never wait for the logger. A message is a JSON array with the records of a batch. If `batch_max_size` is 1,
/// a message is one record, with the id of the record in the message header `record_id`. A batch is written to one
/// partition: the partition of the `key`, or without a `key` each partition in turn. With `required_acks: -1` all
/// in-sync replicas must acknowledge a batch, and the producer is idempotent: a batch that is sent again because a
/// broker failed before it answered is stored once. A batch can be stored twice only if the gateway restarts at that
/// moment, or if the leader of its partition fails at that moment and there is no other for a minute: then another
/// partition gets the records. Duplicates have the same `record_id`. A record that the broker refuses for good
/// (`INVALID_RECORD`, `CORRUPT_MESSAGE`, `MESSAGE_TOO_LARGE`) is rejected, and the others of its batch are sent without
/// it. So is a record with a wrong time (`INVALID_TIMESTAMP`), if the broker stores others of its batch; if it stores
/// none, a clock may be wrong, and all wait. After other errors the records wait and are sent again. `/records` and the metric
/// `weir_log_records_total` report the outcome of every record. The values of the fields `Authorization`, `Cookie` and `Set-Cookie` are masked.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct KafkaLogger {
    /// The bootstrap brokers, which are asked for the partitions of the topic. One reachable broker is enough.
    #[serde(default)]
    brokers: Vec<BrokerOptions>,
    /// The bootstrap brokers as `host: port`, in the form of older versions of APISIX.
    #[serde(default)]
    #[schemars(extend("x-weir-reaches" = "server"))]
    broker_list: BTreeMap<String, u16>,
    /// The topic.
    kafka_topic: String,
    /// The key of all messages. Messages with the same key are written to the same partition.
    key: Option<String>,
    /// Which replicas must acknowledge a batch before it counts as delivered: all in-sync replicas (-1), or only the
    /// leader of the partition (1). With 1, records that the leader has just acknowledged are lost if it fails.
    /// APISIX's default is 1.
    #[serde(default = "default_required_acks")]
    #[schemars(range(min = -1, max = 1))]
    required_acks: i16,
    /// Time-out for connecting, and for a batch, in seconds.
    #[serde(default = "options::default_timeout_s")]
    #[schemars(range(min = 1, max = 86_400))]
    #[schemars(extend("x-weir-unit" = "s"))]
    timeout: u64,
    /// The interval at which the metadata of the topic (the leaders of its partitions) is refreshed, in seconds.
    #[serde(default = "default_meta_refresh_interval")]
    #[schemars(range(min = 1, max = 86_400))]
    #[schemars(extend("x-weir-unit" = "s"))]
    meta_refresh_interval: u64,
    /// The format of records. Only `default` (JSON) is supported.
    #[serde(default)]
    meta_format: MetaFormat,
    /// Use TLS for connections to brokers.
    tls: Option<KafkaTlsOptions>,
    /// The maximum number of messages in a batch, if `batch_max_size` is 1.
    #[serde(default = "default_producer_batch_num")]
    #[schemars(extend("x-weir-only-if" = { "batch_max_size": [1] }))]
    #[schemars(range(min = 1))]
    producer_batch_num: usize,
    /// The maximum size of the records in a batch, in bytes of their internal form. As JSON they are about 1.5 times as
    /// large, and brokers accept 1 MiB by default. A batch that a broker refuses as too large is split. APISIX's
    /// default is 1048576.
    #[serde(default = "default_producer_batch_size")]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    producer_batch_size: usize,
    /// How long a message waits for further messages of the batch, in seconds, if `batch_max_size` is 1.
    #[serde(default = "default_producer_time_linger")]
    #[schemars(extend("x-weir-only-if" = { "batch_max_size": [1] }))]
    #[schemars(range(min = 1, max = 86_400))]
    #[schemars(extend("x-weir-unit" = "s"))]
    producer_time_linger: u64,
    /// Has no effect: requests never wait for the logger.
    #[serde(default, rename = "producer_type")]
    #[schemars(extend("deprecated" = true))]
    _producer_type: ProducerType,
    /// Has no effect: the memory for waiting records is limited as for all loggers.
    #[serde(default, rename = "producer_max_buffering")]
    #[schemars(extend("deprecated" = true))]
    _producer_max_buffering: Option<u64>,
    /// Has no effect: each logger has its own producer.
    #[serde(default, rename = "cluster_name")]
    #[schemars(extend("deprecated" = true))]
    _cluster_name: Option<u64>,
    /// Has no effect: the gateway uses protocol versions that all brokers since 1.0 support.
    #[serde(default, rename = "api_version")]
    #[schemars(extend("deprecated" = true))]
    _api_version: Option<u8>,
    #[serde(flatten)]
    format: FormatOptions,
    #[serde(flatten)]
    batch: BatchOptions,
    #[serde(flatten)]
    bodies: BodyOptions,
}

/// A broker.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct BrokerOptions {
    /// The name or address of the broker.
    #[schemars(extend("x-weir-reaches" = "server"))]
    host: String,
    /// The port of the broker.
    #[schemars(range(min = 1))]
    port: u16,
    /// The credentials for the broker (SASL). They must be the same for all brokers of a cluster.
    sasl_config: Option<SaslOptions>,
}

/// Who we are to brokers.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SaslOptions {
    /// The SASL mechanism.
    #[serde(default)]
    mechanism: MechanismOption,
    /// The user.
    user: String,
    /// The user's password.
    password: String,
}

#[derive(Clone, Copy, Default, Deserialize, Serialize, JsonSchema)]
enum MechanismOption {
    #[default]
    #[serde(rename = "PLAIN")]
    Plain,
    #[serde(rename = "SCRAM-SHA-256")]
    ScramSha256,
    #[serde(rename = "SCRAM-SHA-512")]
    ScramSha512,
}

/// TLS with brokers.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct KafkaTlsOptions {
    /// Whether the certificates of brokers are verified. Off by default in APISIX.
    #[serde(default = "options::default_true")]
    verify: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum MetaFormat {
    #[default]
    Default,
    Origin,
}

#[derive(Clone, Copy, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum ProducerType {
    #[default]
    Async,
    Sync,
}

fn default_required_acks() -> i16 {
    -1
}

fn default_producer_time_linger() -> u64 {
    1
}

fn default_meta_refresh_interval() -> u64 {
    30
}

fn default_producer_batch_num() -> usize {
    200
}

fn default_producer_batch_size() -> usize {
    512 << 10
}

impl Definition for KafkaLogger {
    const NAME: &'static str = "kafka-logger";
    const PRIORITY: i32 = 403;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str =
        "kafka-logger: { brokers: [{ host: 127.0.0.1, port: 9092 }], kafka_topic: weir, key: gateway-1 }";

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let metadata = build.metadata::<KafkaLogger>();
        let common = logger::compile_common((&self.bodies, &self.format, &self.batch), &metadata, build);
        let ((bodies, capture, sink), (options, access)) = (common, self.producer(build)).all_of()?;
        let names: Vec<String> = options.bootstrap.iter().map(StreamTarget::name).collect();
        let name = format!("kafka-logger {} {}", names.join(","), self.kafka_topic);
        let identity = SinkIdentity::new(name, &[]);
        let is_single = self.batch.is_single();
        let sink = sink.named(identity);
        let sink = SinkOptions { batching: self.batching(sink.batching), ..sink };
        let topic = KafkaTopic { producer: Producer::new(options, access), is_single, writer: RecordWriter::default() };
        Ok(ExchangeLogger::with_batches::<Self>(build, (capture, bodies), sink, topic))
    }
}

impl KafkaLogger {
    fn producer(&self, build: &mut Build) -> Result<(ProducerOptions, BrokerAccess), ConfigError> {
        if !is_topic_name(&self.kafka_topic) {
            let problem =
                format!("`{}` is not a topic name: 1 to 249 letters, digits, `.`, `_` or `-`", self.kafka_topic);
            build.fault("kafka_topic", problem);
        }
        if ![1, -1].contains(&self.required_acks) {
            build.fault("required_acks", "must be -1 (all replicas in sync) or 1 (the leader)");
        }
        if self.meta_format == MetaFormat::Origin {
            build.fault("meta_format", "`origin` is not supported; records are JSON (`default`)");
        }
        let timeout = Duration::from_secs(self.timeout);
        let refresh = Duration::from_secs(self.meta_refresh_interval);
        let tls = self.tls.as_ref().map(|tls| StreamTls {
            verification: if tls.verify { ServerVerification::Verify } else { ServerVerification::Skip },
            name: None,
        });
        let (bootstrap, login) = (self.bootstrap(&tls), self.login()).all_of()?;
        let key = self.key.clone().filter(|key| !key.is_empty());
        let (topic, is_idempotent) = (self.kafka_topic.clone(), self.required_acks == -1);
        let options = ProducerOptions { bootstrap, tls, topic, key, is_idempotent, refresh };
        Ok((options, BrokerAccess { client: build.http().clone(), login, timeout }))
    }

    fn bootstrap(&self, tls: &Option<StreamTls>) -> Result<Vec<StreamTarget>, ConfigError> {
        let listed = self.brokers.iter().map(|broker| (broker.host.as_str(), broker.port));
        let old = self.broker_list.iter().map(|(host, port)| (host.as_str(), *port));
        let all: Vec<_> = listed.chain(old).collect();
        if all.is_empty() {
            return Err(ConfigError::new("brokers", "is needed: write as `[{ host: 127.0.0.1, port: 9092 }]`"));
        }
        let target = |(index, (host, port)): (usize, (&str, u16))| {
            let place = if index < self.brokers.len() { format!("brokers[{index}]") } else { "broker_list".into() };
            let named = host::check(host, format!("{place}.host")).map(|()| host);
            let problem = "must be from 1 to 65535";
            let port = if port == 0 { Err(ConfigError::new(format!("{place}.port"), problem)) } else { Ok(port) };
            let (host, port) = (named, port).all_of()?;
            Ok(StreamTarget::new(host, port, tls.clone()))
        };
        all.into_iter().enumerate().map(target).collect_all()
    }

    /// All brokers must have the same login, because it is used for brokers that are not listed as well.
    fn login(&self) -> Result<Option<SaslLogin>, ConfigError> {
        let login = |options: &SaslOptions| SaslLogin {
            mechanism: match options.mechanism {
                MechanismOption::Plain => SaslMechanism::Plain,
                MechanismOption::ScramSha256 => SaslMechanism::ScramSha256,
                MechanismOption::ScramSha512 => SaslMechanism::ScramSha512,
            },
            user: options.user.clone(),
            password: options.password.clone(),
        };
        let mut logins = self.brokers.iter().map(|broker| broker.sasl_config.as_ref().map(login));
        let first = logins.next().flatten();
        match logins.position(|other| other != first) {
            Some(index) => {
                let place = format!("brokers[{}].sasl_config", index + 1);
                Err(ConfigError::new(
                    place,
                    "must be the same as that of brokers[0]: all brokers of a cluster have the same credentials",
                ))
            }
            None => Ok(first),
        }
    }

    /// If a message is one record, the batches are sized by the options of APISIX's producer.
    fn batching(&self, batching: Batching) -> Batching {
        let max_bytes = self.producer_batch_size.max(1);
        if !self.batch.is_single() {
            return Batching { max_bytes, ..batching };
        }
        let linger = Duration::from_secs(self.producer_time_linger);
        Batching { max_records: self.producer_batch_num, max_bytes, inactive: linger, oldest: linger }
    }
}

impl HasMetadata for KafkaLogger {
    type Metadata = LoggerMetadata;
}

struct KafkaTopic {
    producer: Producer,
    /// Whether each record is a message of its own.
    is_single: bool,
    writer: RecordWriter,
}

impl KafkaTopic {
    async fn store(&mut self, records: &[&Record]) -> Result<(), ProduceError> {
        let names = records.iter().map(|record| (record.boot, record.sequence)).collect::<HashSet<_>>();
        let time = |record: &Record| captured::end_ms(record) as i64;
        let writer = self.writer.batch();
        if !self.is_single {
            let mut value = vec![b'['];
            for (index, record) in records.iter().enumerate() {
                value.extend((index > 0).then_some(b','));
                writer.json(record, &mut value);
            }
            value.push(b']');
            let time_ms = records.iter().map(|record| time(record)).max().unwrap_or_default();
            let message = KafkaMessage { time_ms, key: None, value: &value, header: None };
            return self.producer.send(&[message], names).await;
        }
        let mut texts = Vec::with_capacity(records.len() * 1024);
        let ends: Vec<usize> = records
            .iter()
            .map(|record| {
                writer.json(record, &mut texts);
                texts.len()
            })
            .collect();
        let ids: Vec<String> = records.iter().map(|record| record.id()).collect();
        let begins = std::iter::once(&0).chain(&ends);
        let messages: Vec<KafkaMessage<'_>> = records
            .iter()
            .zip(begins.zip(&ends))
            .zip(&ids)
            .map(|((record, (begin, end)), id)| {
                let header = Some(("record_id", id.as_bytes()));
                KafkaMessage { time_ms: time(record), key: None, value: &texts[*begin..*end], header }
            })
            .collect();
        self.producer.send(&messages, names).await
    }
}

impl Destination for KafkaTopic {
    fn send<'a>(&'a mut self, batch: &'a [Record]) -> RecordSending<'a> {
        Box::pin(async move {
            if let Err(error) = self.producer.resolve().await {
                return failure(error);
            }
            let mut outcomes = Vec::with_capacity(batch.len());
            let mut rest = Vec::new();
            for record in batch {
                let is_stored = self.producer.take_resolved((record.boot, record.sequence));
                outcomes.push(if is_stored { Outcome::Duplicate } else { Outcome::Delivered });
                rest.extend((!is_stored).then_some(record));
            }
            if !rest.is_empty() {
                match self.store(&rest).await {
                    Ok(()) => {}
                    Err(ProduceError::Time(error)) => {
                        let sent = send_in_parts(&rest, error, async |part: &[&Record]| self.store(part).await).await;
                        return with_duplicates(outcomes, sent);
                    }
                    // The outcomes of the messages stored so far are reported now, so that they are counted without delay.
                    Err(error) if rest.len() < batch.len() => return partly(outcomes, error),
                    Err(error) => return failure(error),
                }
            }
            SendOutcome::Each { outcomes, error: None }
        })
    }
}

/// The outcomes of a batch, of which the records that are not duplicates were sent.
fn with_duplicates(mut outcomes: Vec<Outcome>, sent: (Vec<Outcome>, Option<String>)) -> SendOutcome {
    let (sent, error) = sent;
    let rest = outcomes.iter_mut().filter(|outcome| **outcome != Outcome::Duplicate);
    rest.zip(sent).for_each(|(outcome, sent)| *outcome = sent);
    SendOutcome::Each { outcomes, error }
}

fn failure(error: ProduceError) -> SendOutcome {
    match error {
        ProduceError::TooLarge(error) => SendOutcome::TooLarge(error),
        ProduceError::Invalid(error) => SendOutcome::Invalid { reason: RejectReason::Invalid, error },
        ProduceError::Time(error) | ProduceError::Failed(error) => SendOutcome::Failed { error, after: None },
    }
}

fn partly(outcomes: Vec<Outcome>, error: ProduceError) -> SendOutcome {
    let (ProduceError::TooLarge(error)
    | ProduceError::Invalid(error)
    | ProduceError::Time(error)
    | ProduceError::Failed(error)) = error;
    let outcomes = outcomes.into_iter().map(|outcome| match outcome {
        Outcome::Delivered => Outcome::Retry,
        settled => settled,
    });
    SendOutcome::Each { outcomes: outcomes.collect(), error: Some(error) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::refused;

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        let broker = json!({"host": "a", "port": 9092});
        let login = json!({"host": "b", "port": 9092, "sasl_config": {"user": "u", "password": "p"}});
        for (options, want) in [
            (json!({"kafka_topic": "t"}), "brokers: is needed"),
            (json!({"brokers": [broker], "kafka_topic": "a b"}), "kafka_topic: `a b` is not a topic name"),
            (json!({"brokers": [{"host": "", "port": 1}], "kafka_topic": "t"}), "brokers[0].host: ``"),
            (json!({"broker_list": {"a": 0}, "kafka_topic": "t"}), "broker_list.port: must be"),
            (json!({"brokers": [broker], "kafka_topic": "t", "required_acks": 0}), "required_acks: must be -1"),
            (json!({"brokers": [broker], "kafka_topic": "t", "meta_format": "origin"}), "meta_format: `origin`"),
            (json!({"brokers": [broker, login], "kafka_topic": "t"}), "brokers[1].sasl_config: must be the same"),
        ] {
            let error = refused::<KafkaLogger>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
