//! Reads and writes one partition.

use std::fmt;
use std::time::Duration;

use weir_client::{StreamTarget, StreamTls};

use crate::broker::{BrokerAccess, BrokerConnection};
use crate::codes::{ProduceVerdict, describe};
use crate::metadata::{Metadata, read_metadata};
use crate::stored::stored_messages;
use crate::wire::{AnswerBytes, AnswerCutShort, Read, RequestBytes};

const PRODUCE: (i16, i16) = (0, 3);
const FETCH: (i16, i16) = (1, 4);
const LIST_OFFSETS: (i16, i16) = (2, 1);
const METADATA: (i16, i16) = (3, 4);
const CREATE_TOPICS: (i16, i16) = (19, 4);
const DELETE_RECORDS: (i16, i16) = (21, 1);
/// `acks`: all in-sync replicas.
const ALL: i16 = -1;
const UNKNOWN_TOPIC: i16 = 3;
const TOPIC_EXISTS: i16 = 36;

/// The addresses and settings of a cluster.
pub struct KafkaCluster {
    /// The brokers for bootstrapping, which are asked for the metadata.
    pub bootstrap: Vec<StreamTarget>,
    pub tls: Option<StreamTls>,
    pub access: BrokerAccess,
}

/// The reason of a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KafkaError {
    /// The broker's error code; `None` if it did not answer.
    pub code: Option<i16>,
    pub reason: String,
}

/// The settings of a topic to create.
pub struct NewTopic<'a> {
    pub partitions: i32,
    /// -1 selects the default of the cluster.
    pub replication_factor: i16,
    /// Names and values.
    pub settings: &'a [(&'a str, &'a str)],
}

/// Offset, time in milliseconds, and value of a message.
pub type FetchedMessage = (i64, i64, Vec<u8>);

/// The result of a fetch.
pub struct Fetched {
    pub messages: Vec<FetchedMessage>,
    /// The offset to fetch next.
    pub next: i64,
    /// The high watermark: all in-sync replicas have the messages before it.
    pub end: i64,
}

/// One of the ends of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartitionEnd {
    /// The offset of the oldest message.
    First,
    /// The offset after the newest message.
    Last,
}

impl KafkaError {
    fn of(code: i16, what: impl fmt::Display) -> KafkaError {
        KafkaError { code: Some(code), reason: format!("{what}: {}", describe(code)) }
    }

    pub fn is_too_large(&self) -> bool {
        self.verdict() == ProduceVerdict::TooLarge
    }

    /// Whether the broker will never accept this batch.
    pub fn is_refused_for_good(&self) -> bool {
        matches!(self.verdict(), ProduceVerdict::TooLarge | ProduceVerdict::Message)
    }

    fn verdict(&self) -> ProduceVerdict {
        self.code.map_or(ProduceVerdict::Unknown, ProduceVerdict::of)
    }

    /// Whether the requested offset was removed.
    pub fn is_out_of_range(&self) -> bool {
        self.code == Some(1)
    }
}

impl From<String> for KafkaError {
    fn from(reason: String) -> KafkaError {
        KafkaError { code: None, reason }
    }
}

impl fmt::Display for KafkaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl KafkaCluster {
    /// The number of partitions of a topic, which is created if it does not exist.
    ///
    /// # Errors
    /// No broker answers, or the topic cannot be created.
    pub async fn topic(&self, name: &str, new: &NewTopic<'_>) -> Result<usize, KafkaError> {
        let metadata = self.metadata(name).await?;
        match metadata.error {
            0 => return Ok(metadata.partitions.len()),
            UNKNOWN_TOPIC => {}
            error => return Err(KafkaError::of(error, format_args!("topic {name}"))),
        }
        let unreachable = || KafkaError::from("the cluster has no controller".to_owned());
        let controller = metadata.broker(metadata.controller, &self.tls).ok_or_else(unreachable)?;
        let mut connection = BrokerConnection::open(&controller, &self.access).await?;
        let timeout_ms = self.access.timeout.as_millis() as i32;
        let answer = connection.ask(CREATE_TOPICS, |request| put_topic(request, name, new, timeout_ms)).await?;
        let created = read_created(&mut AnswerBytes(&answer)).map_err(|_| connection.truncated_answer_error())?;
        match created {
            (0, _) => Ok(new.partitions as usize),
            // Another node has created it meanwhile, perhaps with another number of partitions.
            (TOPIC_EXISTS, _) => match self.metadata(name).await? {
                Metadata { error: 0, partitions, .. } => Ok(partitions.len()),
                Metadata { error, .. } => Err(KafkaError::of(error, format_args!("topic {name}"))),
            },
            (error, said) => Err(KafkaError::of(error, format_args!("topic {name} cannot be made: {said}"))),
        }
    }

    async fn metadata(&self, topic: &str) -> Result<Metadata, KafkaError> {
        let mut failure = "there are no brokers".to_owned();
        for broker in &self.bootstrap {
            let asked = async {
                let mut connection = BrokerConnection::open(broker, &self.access).await?;
                let write = |request: &mut RequestBytes| {
                    request.i32(1);
                    request.text(Some(topic));
                    // Brokers would create it automatically with their own settings.
                    request.bool(false);
                };
                let answer = connection.ask(METADATA, write).await?;
                read_metadata(&mut AnswerBytes(&answer)).map_err(|_| connection.truncated_answer_error())
            };
            match asked.await {
                Ok(metadata) => return Ok(metadata),
                Err(error) => failure = error,
            }
        }
        Err(failure.into())
    }
}

fn put_topic(request: &mut RequestBytes, name: &str, new: &NewTopic<'_>, timeout_ms: i32) {
    request.i32(1);
    request.text(Some(name));
    request.i32(new.partitions);
    request.i16(new.replication_factor);
    // No assignment: the cluster chooses the brokers.
    request.i32(0);
    request.i32(new.settings.len() as i32);
    for (name, value) in new.settings {
        request.text(Some(name));
        request.text(Some(value));
    }
    request.i32(timeout_ms);
    request.bool(false);
}

fn read_created(answer: &mut AnswerBytes<'_>) -> Result<(i16, String), AnswerCutShort> {
    let _throttled_ms = answer.i32()?;
    let mut topics = answer.list(|topic| {
        let _name = topic.text()?;
        Ok((topic.i16()?, topic.text()?))
    })?;
    topics.pop().ok_or(AnswerCutShort)
}

/// Accesses one partition through its leader; one request at a time.
pub struct PartitionClient<'a> {
    cluster: &'a KafkaCluster,
    topic: &'a str,
    partition: i32,
    connection: Option<BrokerConnection>,
}

impl<'a> PartitionClient<'a> {
    pub fn new(cluster: &'a KafkaCluster, topic: &'a str, partition: i32) -> PartitionClient<'a> {
        PartitionClient { cluster, topic, partition, connection: None }
    }

    /// Appends a batch; returns the offset of its first message once all in-sync replicas have it.
    ///
    /// # Errors
    /// The batch was refused, or its outcome is unknown.
    pub async fn produce(&mut self, batch: &[u8]) -> Result<i64, KafkaError> {
        let timeout_ms = self.cluster.access.timeout.as_millis() as i32;
        let write = |request: &mut RequestBytes, topic: &str, partition: i32| {
            request.text(None);
            request.i16(ALL);
            request.i32(timeout_ms);
            put_partition(request, topic, partition);
            request.bytes(batch);
        };
        let read = |answer: &mut AnswerBytes<'_>| {
            only(answer, |partition| {
                let (_number, error, offset) = (partition.i32()?, partition.i16()?, partition.i64()?);
                let _appended_ms = partition.i64()?;
                Ok((error, offset))
            })
        };
        self.ask(PRODUCE, write, read).await
    }

    /// Fetches messages from this offset on; waits up to `wait` if there are none.
    ///
    /// # Errors
    /// The offset was removed, or no broker answers.
    pub async fn fetch(&mut self, offset: i64, max_bytes: i32, wait: Duration) -> Result<Fetched, KafkaError> {
        let wait_ms = wait.as_millis() as i32;
        let write = |request: &mut RequestBytes, topic: &str, partition: i32| {
            // The replica id: -1, since this is a consumer.
            request.i32(-1);
            request.i32(wait_ms);
            request.i32(1);
            request.i32(max_bytes);
            request.i8(0);
            put_partition(request, topic, partition);
            request.i64(offset);
            request.i32(max_bytes);
        };
        let read = |answer: &mut AnswerBytes<'_>| {
            let _throttled_ms = answer.i32()?;
            only(answer, |partition| {
                let (_number, error, end) = (partition.i32()?, partition.i16()?, partition.i64()?);
                let _last_stable = partition.i64()?;
                let _aborted = partition.list(|aborted| Ok((aborted.i64()?, aborted.i64()?)))?;
                Ok((error, (end, partition.bytes()?.to_vec())))
            })
        };
        let (end, bytes) = self.ask(FETCH, write, read).await?;
        let (messages, next) =
            stored_messages(&bytes, offset).map_err(|error| format!("topic {}: {error}", self.topic))?;
        let messages = messages.into_iter().map(|it| (it.offset, it.time_ms, it.value.to_vec())).collect();
        Ok(Fetched { messages, next: next.unwrap_or(offset).max(offset), end })
    }

    /// # Errors
    /// No broker answers.
    pub async fn end(&mut self, end: PartitionEnd) -> Result<i64, KafkaError> {
        let write = |request: &mut RequestBytes, topic: &str, partition: i32| {
            request.i32(-1);
            put_partition(request, topic, partition);
            request.i64(if end == PartitionEnd::First { -2 } else { -1 });
        };
        let read = |answer: &mut AnswerBytes<'_>| {
            only(answer, |partition| {
                let (_number, error, _time) = (partition.i32()?, partition.i16()?, partition.i64()?);
                Ok((error, partition.i64()?))
            })
        };
        self.ask(LIST_OFFSETS, write, read).await
    }

    /// Removes all messages before this offset.
    ///
    /// # Errors
    /// The request was refused, or no broker answers.
    pub async fn delete_before(&mut self, offset: i64) -> Result<(), KafkaError> {
        let timeout_ms = self.cluster.access.timeout.as_millis() as i32;
        let write = |request: &mut RequestBytes, topic: &str, partition: i32| {
            put_partition(request, topic, partition);
            request.i64(offset);
            request.i32(timeout_ms);
        };
        let read = |answer: &mut AnswerBytes<'_>| {
            let _throttled_ms = answer.i32()?;
            only(answer, |partition| {
                let (_number, _first) = (partition.i32()?, partition.i64()?);
                Ok((partition.i16()?, ()))
            })
        };
        self.ask(DELETE_RECORDS, write, read).await
    }

    /// Sends a request to the leader; after an error the leader is looked up again for the next one.
    async fn ask<T>(
        &mut self,
        request: (i16, i16),
        write: impl FnOnce(&mut RequestBytes, &str, i32),
        read: impl FnOnce(&mut AnswerBytes<'_>) -> Read<(i16, T)>,
    ) -> Result<T, KafkaError> {
        let (topic, partition) = (self.topic, self.partition);
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let answer = connection.ask(request, |request| write(request, topic, partition)).await?;
        match read(&mut AnswerBytes(&answer)).map_err(|_| connection.truncated_answer_error())? {
            (0, answer) => {
                self.connection = Some(connection);
                Ok(answer)
            }
            (error, _) => Err(KafkaError::of(error, format_args!("partition {partition} of topic {topic}"))),
        }
    }

    async fn connect(&self) -> Result<BrokerConnection, KafkaError> {
        let metadata = self.cluster.metadata(self.topic).await?;
        if metadata.error != 0 {
            return Err(KafkaError::of(metadata.error, format_args!("topic {}", self.topic)));
        }
        let leader = metadata.partitions.iter().find(|(number, _)| *number == self.partition);
        let leader = leader.and_then(|(_, leader)| metadata.broker(*leader, &self.cluster.tls));
        let leader =
            leader.ok_or_else(|| format!("partition {} of topic {} has no leader", self.partition, self.topic))?;
        Ok(BrokerConnection::open(&leader, &self.cluster.access).await?)
    }
}

/// Writes an array of one topic with one partition; the caller adds the partition's own fields.
fn put_partition(request: &mut RequestBytes, topic: &str, partition: i32) {
    request.i32(1);
    request.text(Some(topic));
    request.i32(1);
    request.i32(partition);
}

/// Reads an answer for the only partition of the only topic.
fn only<T>(answer: &mut AnswerBytes<'_>, read: impl Fn(&mut AnswerBytes<'_>) -> Read<T>) -> Read<T> {
    let topics = answer.list(|topic| {
        let _name = topic.text()?;
        topic.list(&read)
    })?;
    topics.into_iter().flatten().next().ok_or(AnswerCutShort)
}
