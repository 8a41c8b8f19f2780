//! A producer for one topic, which sends one batch to one partition at a time.
//!
//! With `acks=all` it is idempotent: the broker knows the producer's id and the sequence numbers of each partition, so
//! a batch that is sent again is stored only once. If a broker dies, the outcome of a batch may be unknown. Such a
//! batch is kept unchanged and sent again before all others, until a broker reports its outcome. If none does for a time,
//! and the topic has other partitions, the producer takes another id and goes on without the outcome.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use weir_client::{StreamTarget, StreamTls};

use weir_kafka::{
    AnswerBytes, AnswerCutShort, BrokerAccess, BrokerConnection, KafkaMessage, ProduceVerdict, ProducerIdentity,
    RequestBytes, describe_code, message_batch, partition_of, read_metadata,
};

const PRODUCE: (i16, i16) = (0, 3);
const METADATA: (i16, i16) = (3, 4);
const INIT_PRODUCER_ID: (i16, i16) = (22, 0);
/// The most records whose late success is remembered. The sink may never send them again, because they are too old by then.
const MAX_RESOLVED: usize = 1 << 16;
/// How long the outcome of a batch may be unknown while other partitions could take its records.
const UNRESOLVED_FOR: Duration = Duration::from_secs(60);
/// How long a partition that did not take a batch is left out, if there are others.
const AVOIDED_FOR: Duration = Duration::from_secs(30);

/// The destination of messages, and the conditions for success.
pub(super) struct ProducerOptions {
    /// The brokers that are asked for the metadata of the topic.
    pub bootstrap: Vec<StreamTarget>,
    pub tls: Option<StreamTls>,
    pub topic: String,
    /// Selects the partition of all messages; without a key, batches are sent to all partitions in turn.
    pub key: Option<String>,
    /// Whether all replicas must store a batch, and duplicates are suppressed by the broker.
    pub is_idempotent: bool,
    /// The age in seconds at which the metadata of the topic is refreshed.
    pub refresh: Duration,
}

pub(super) struct Producer {
    options: ProducerOptions,
    access: BrokerAccess,
    /// The connections to brokers, by host and port.
    connections: HashMap<String, BrokerConnection>,
    topic: Option<KnownTopic>,
    identity: Option<ProducerIdentity>,
    /// The next sequence number of each partition.
    sequences: HashMap<i32, i32>,
    /// The number of batches so far, for the choice of a partition.
    turn: usize,
    unresolved: Option<UnresolvedBatch>,
    /// Partitions that did not take a batch, and when.
    avoided: HashMap<i32, Instant>,
    /// Records of batches that were unresolved and have been stored since. The sink still regards them as not delivered.
    resolved: HashSet<RecordName>,
}

/// Identifies a record: the process that wrote it, and its sequence number.
pub(super) type RecordName = (u64, u64);

struct KnownTopic {
    /// The partitions that have a leader, and the leader's address.
    leaders: Vec<(i32, StreamTarget)>,
    /// The number of all partitions: a key keeps its partition even while that has no leader.
    count: usize,
    since: Instant,
}

/// A batch whose outcome is unknown.
struct UnresolvedBatch {
    partition: i32,
    bytes: Vec<u8>,
    messages: i32,
    records: HashSet<RecordName>,
    /// When it was sent first.
    since: Instant,
}

/// Why a batch was not stored.
#[derive(Debug)]
pub(super) enum ProduceError {
    TooLarge(String),
    /// The broker refuses a message of the batch for good.
    Invalid(String),
    /// The broker refuses the time of a message, or of all.
    Time(String),
    /// The batch may be stored later, or its outcome is unknown.
    Failed(String),
}

impl From<String> for ProduceError {
    fn from(error: String) -> Self {
        ProduceError::Failed(error)
    }
}

impl Producer {
    pub(super) fn new(options: ProducerOptions, access: BrokerAccess) -> Producer {
        Producer {
            options,
            access,
            connections: HashMap::new(),
            topic: None,
            identity: None,
            sequences: HashMap::new(),
            turn: 0,
            unresolved: None,
            avoided: HashMap::new(),
            resolved: HashSet::new(),
        }
    }

    /// Whether a record was in a batch that has been stored since. Removes the record; called once, after
    /// [`Producer::resolve`].
    pub(super) fn take_resolved(&mut self, record: RecordName) -> bool {
        self.resolved.remove(&record)
    }

    /// Sends the unresolved batch again, if there is one.
    ///
    /// # Errors
    /// The outcome is still unknown.
    pub(super) async fn resolve(&mut self) -> Result<(), ProduceError> {
        let Some(UnresolvedBatch { partition, since, .. }) = self.unresolved else { return Ok(()) };
        if since.elapsed() >= UNRESOLVED_FOR && self.has_another(partition).await? {
            // Its records are sent to another partition, and may be stored twice.
            self.forget();
        }
        let Some(batch) = self.unresolved.take() else { return Ok(()) };
        self.deliver(batch, true).await
    }

    /// Whether records may go to another partition than this one.
    async fn has_another(&mut self, partition: i32) -> Result<bool, String> {
        Ok(self.options.key.is_none() && self.topic().await?.leaders.iter().any(|(other, _)| *other != partition))
    }

    /// Begins anew with another producer id.
    fn forget(&mut self) {
        (self.unresolved, self.identity) = (None, None);
        self.sequences.clear();
    }

    /// # Errors
    /// The batch was not stored, or its outcome is unknown and must be resolved first.
    pub(super) async fn send(
        &mut self,
        messages: &[KafkaMessage<'_>],
        records: HashSet<RecordName>,
    ) -> Result<(), ProduceError> {
        let partition = self.choose().await?;
        let sender = match self.options.is_idempotent {
            true => Some((self.identity().await?, self.sequences.get(&partition).copied().unwrap_or_default())),
            false => None,
        };
        let keyed: Vec<KafkaMessage<'_>> = messages
            .iter()
            .map(|message| KafkaMessage { key: self.options.key.as_deref().map(str::as_bytes), ..*message })
            .collect();
        let bytes = message_batch(&keyed, sender);
        let (messages, since) = (messages.len() as i32, Instant::now());
        self.deliver(UnresolvedBatch { partition, bytes, messages, records, since }, false).await
    }

    async fn deliver(&mut self, batch: UnresolvedBatch, is_again: bool) -> Result<(), ProduceError> {
        let (partition, messages) = (batch.partition, batch.messages);
        let bytes = batch.bytes.clone();
        // Set before the batch is sent: if this future is dropped, the outcome is unknown as well.
        self.unresolved = self.options.is_idempotent.then_some(batch);
        let (verdict, error) = self.produce(partition, &bytes).await;
        match verdict {
            ProduceVerdict::Stored => self.stored(partition, messages, is_again),
            ProduceVerdict::TooLarge | ProduceVerdict::Message | ProduceVerdict::Time => {
                self.unresolved = None;
                return match verdict {
                    // The error concerns the batch that was sent again, not the current one.
                    _ if is_again => Ok(()),
                    ProduceVerdict::TooLarge => Err(ProduceError::TooLarge(error)),
                    ProduceVerdict::Time => Err(ProduceError::Time(error)),
                    _ => Err(ProduceError::Invalid(error)),
                };
            }
            // An unresolved batch will be sent with new sequence numbers, and may be stored twice.
            ProduceVerdict::Producer => self.forget(),
            ProduceVerdict::Topic | ProduceVerdict::Later | ProduceVerdict::Unknown => {
                // A batch that was sent before may have been stored then.
                self.unresolved.take_if(|_| !is_again && verdict != ProduceVerdict::Unknown);
                self.avoided.insert(partition, Instant::now());
                self.topic = None;
            }
        }
        if verdict == ProduceVerdict::Stored { Ok(()) } else { Err(ProduceError::Failed(error)) }
    }

    /// Called when a batch is stored.
    fn stored(&mut self, partition: i32, messages: i32, is_again: bool) {
        let stored = self.unresolved.take();
        if let Some(batch) = stored.filter(|_| is_again) {
            if self.resolved.len() > MAX_RESOLVED {
                self.resolved.clear();
            }
            self.resolved.extend(batch.records);
        }
        let next = self.sequences.entry(partition).or_default();
        *next = ((i64::from(*next) + i64::from(messages)) % (1 << 31)) as i32;
        self.avoided.remove(&partition);
    }

    /// What the answer to a batch means, and an error if it is not stored.
    async fn produce(&mut self, partition: i32, batch: &[u8]) -> (ProduceVerdict, String) {
        let leader = match self.leader(partition).await {
            Ok(leader) => leader,
            Err(error) => return (ProduceVerdict::Later, error),
        };
        if let Err(error) = self.connect(&leader).await {
            return (ProduceVerdict::Later, error);
        }
        let (topic, timeout) = (self.options.topic.clone(), self.access.timeout);
        let acks = if self.options.is_idempotent { -1 } else { 1 };
        let asked = self.ask(&leader, PRODUCE, |request| {
            request.text(None);
            request.i16(acks);
            request.i32(timeout.as_millis() as i32);
            request.i32(1);
            request.text(Some(&topic));
            request.i32(1);
            request.i32(partition);
            request.bytes(batch);
        });
        let answer = match asked.await {
            Ok(answer) => answer,
            Err(error) => return (ProduceVerdict::Unknown, error),
        };
        match read_produced(&mut AnswerBytes(&answer)) {
            Ok(code) => {
                let error =
                    format!("{}: partition {partition} of topic {topic}: {}", leader.name(), describe_code(code));
                (ProduceVerdict::of(code), error)
            }
            Err(AnswerCutShort) => (ProduceVerdict::Unknown, cut_short(&leader)),
        }
    }

    /// Chooses the partition of a batch.
    async fn choose(&mut self) -> Result<i32, String> {
        let key = self.options.key.clone();
        self.turn = self.turn.wrapping_add(1);
        let turn = self.turn;
        self.avoided.retain(|_, since| since.elapsed() < AVOIDED_FOR);
        let avoided = self.avoided.clone();
        let topic = self.topic().await?;
        if let Some(key) = key {
            return Ok(partition_of(key.as_bytes(), topic.count) as i32);
        }
        let all: Vec<i32> = topic.leaders.iter().map(|(partition, _)| *partition).collect();
        let rest: Vec<i32> = all.iter().copied().filter(|partition| !avoided.contains_key(partition)).collect();
        let from = if rest.is_empty() { all } else { rest };
        Ok(from[turn % from.len()])
    }

    async fn leader(&mut self, partition: i32) -> Result<StreamTarget, String> {
        let name = self.options.topic.clone();
        let topic = self.topic().await?;
        let leader = topic.leaders.iter().find(|(number, _)| *number == partition).map(|(_, target)| target.clone());
        let leaderless = || format!("partition {partition} of topic {name} has no leader");
        if leader.is_none() {
            self.topic = None;
        }
        leader.ok_or_else(leaderless)
    }

    /// The metadata of the topic; refreshed from time to time, and after each failure.
    async fn topic(&mut self) -> Result<&KnownTopic, String> {
        if self.topic.as_ref().is_none_or(|topic| topic.since.elapsed() >= self.options.refresh) {
            self.topic = Some(self.look_up().await?);
        }
        Ok(self.topic.as_ref().expect("it was looked up"))
    }

    async fn look_up(&mut self) -> Result<KnownTopic, String> {
        let mut failure = String::new();
        for broker in self.options.bootstrap.clone() {
            let name = self.options.topic.clone();
            let asked = self.ask(&broker, METADATA, |request| {
                request.i32(1);
                request.text(Some(&name));
                // Allows brokers to create the topic, if they are configured to.
                request.bool(true);
            });
            let answer = match asked.await {
                Ok(answer) => answer,
                Err(error) => {
                    failure = error;
                    continue;
                }
            };
            let Ok(metadata) = read_metadata(&mut AnswerBytes(&answer)) else {
                failure = cut_short(&broker);
                continue;
            };
            let target = |leader: &i32| metadata.broker(*leader, &self.options.tls);
            let partitions = &metadata.partitions;
            let leaders: Vec<_> =
                partitions.iter().filter_map(|(partition, leader)| Some((*partition, target(leader)?))).collect();
            if leaders.is_empty() {
                let why = match metadata.error {
                    0 => "none of its partitions has a leader".to_owned(),
                    code => describe_code(code),
                };
                failure = format!("{}: topic {name} cannot be written to: {why}", broker.name());
                continue;
            }
            return Ok(KnownTopic { leaders, count: partitions.len(), since: Instant::now() });
        }
        Err(failure)
    }

    /// The producer id, which any broker of the cluster can assign: the leaders are asked, then the bootstrap brokers.
    async fn identity(&mut self) -> Result<ProducerIdentity, String> {
        if let Some(identity) = self.identity {
            return Ok(identity);
        }
        let mut brokers: Vec<_> = self.topic().await?.leaders.iter().map(|(_, leader)| leader.clone()).collect();
        brokers.extend(self.options.bootstrap.iter().cloned());
        let (mut asked, mut failure) = (HashSet::new(), String::new());
        for broker in brokers {
            if !asked.insert(broker.name()) {
                continue;
            }
            match self.identity_from(&broker).await {
                Ok(identity) => {
                    self.identity = Some(identity);
                    return Ok(identity);
                }
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    async fn identity_from(&mut self, broker: &StreamTarget) -> Result<ProducerIdentity, String> {
        let answer = self
            .ask(broker, INIT_PRODUCER_ID, |request| {
                request.text(None);
                request.i32(0);
            })
            .await?;
        match read_identity(&mut AnswerBytes(&answer)).map_err(|_| cut_short(broker))? {
            (0, identity) => Ok(identity),
            (error, _) => Err(format!("{}: did not assign a producer id: {}", broker.name(), describe_code(error))),
        }
    }

    /// Sends a request on the connection to a broker, which is kept only if that succeeds.
    async fn ask(
        &mut self,
        broker: &StreamTarget,
        request: (i16, i16),
        write: impl FnOnce(&mut RequestBytes),
    ) -> Result<Vec<u8>, String> {
        self.connect(broker).await?;
        let name = broker.name();
        let mut connection = self.connections.remove(&name).expect("there is a connection to this broker");
        let answer = connection.ask(request, write).await?;
        self.connections.insert(name, connection);
        Ok(answer)
    }

    /// Opens a connection to a broker, if there is none.
    async fn connect(&mut self, broker: &StreamTarget) -> Result<(), String> {
        let name = broker.name();
        if !self.connections.contains_key(&name) {
            let connection = BrokerConnection::open(broker, &self.access).await?;
            self.connections.insert(name, connection);
        }
        Ok(())
    }
}

fn cut_short(broker: &StreamTarget) -> String {
    format!("{}: an answer was cut short", broker.name())
}

/// The error code of the only partition in an answer.
fn read_produced(answer: &mut AnswerBytes<'_>) -> Result<i16, AnswerCutShort> {
    let topics = answer.list(|topic| {
        topic.text()?;
        topic.list(|partition| {
            let (_number, error) = (partition.i32()?, partition.i16()?);
            let (_offset, _appended_ms) = (partition.i64()?, partition.i64()?);
            Ok(error)
        })
    })?;
    topics.into_iter().flatten().next().ok_or(AnswerCutShort)
}

fn read_identity(answer: &mut AnswerBytes<'_>) -> Result<(i16, ProducerIdentity), AnswerCutShort> {
    let (_throttled_ms, error) = (answer.i32()?, answer.i16()?);
    Ok((error, ProducerIdentity { id: answer.i64()?, epoch: answer.i16()? }))
}
