//! The hub's topic: one partition for events, one for heartbeats, and one for each share of the subscriptions.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use weir_client::{HttpClient, HttpClientSettings, ServerVerification, StreamTarget, StreamTls};
use weir_kafka::{BrokerAccess, KafkaCluster, KafkaError, NewTopic, PartitionClient, PartitionEnd};

use super::frame::batch;
use crate::clock::unix_ms;
use crate::settings::KafkaLogSettings;

pub(super) const EVENTS: i32 = 0;
pub(super) const NODES: i32 = 1;
/// The partition of the first share.
const FIRST_SHARE: i32 = 2;
/// Time-out for connecting, and for each request.
const TIMEOUT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(200);
/// How long after the last failure the trouble counts as over.
const CALM: Duration = Duration::from_secs(3);
/// How long a fetch waits for new messages.
pub(super) const READ_WAIT: Duration = Duration::from_millis(500);
pub(super) const READ_BYTES: i32 = 1 << 20;
/// More than the largest event with its frame and batch header.
const MAX_MESSAGE_BYTES: &str = "37748736";

/// The latest failure; `None` once requests succeed again.
pub(super) struct LatestFailure {
    last: Mutex<Option<(String, Instant)>>,
    tell: Arc<dyn Fn(&str) + Send + Sync>,
}

impl LatestFailure {
    pub(super) fn new(tell: Arc<dyn Fn(&str) + Send + Sync>) -> LatestFailure {
        LatestFailure { last: Mutex::default(), tell }
    }

    pub(super) fn last(&self) -> Option<String> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|(error, _)| error.clone())
    }

    /// Records a failure, and reports it to the operator if it is the first one.
    pub(super) fn report(&self, error: &KafkaError) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none() {
            (self.tell)(&format!("Kafka: {error}"));
        }
        *last = Some((error.to_string(), Instant::now()));
    }

    /// Called after a success. Ends the trouble if the last failure is some time ago: other partitions may have other brokers.
    pub(super) fn end(&self) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_ref().is_some_and(|(_, at)| at.elapsed() > CALM) {
            *last = None;
            (self.tell)("Kafka answers again");
        }
    }
}

pub(super) struct HubTopic {
    cluster: KafkaCluster,
    name: Box<str>,
    pub shares: u32,
    /// The id of this process, unique among all users of the topic.
    pub node: u64,
    pub trouble: Arc<LatestFailure>,
}

impl HubTopic {
    /// Finds the topic, or creates it.
    ///
    /// # Errors
    /// No broker answers, or the topic is not suitable.
    pub(super) async fn open(
        log: &KafkaLogSettings,
        base: &HttpClientSettings,
        node: u64,
        trouble: Arc<LatestFailure>,
    ) -> Result<HubTopic, KafkaError> {
        let verification = |verify| if verify { ServerVerification::Verify } else { ServerVerification::Skip };
        let tls = log.tls.map(|tls| StreamTls { verification: verification(tls.verify), name: None });
        let bootstrap = log.brokers.iter().map(|(host, port)| StreamTarget::new(host, *port, tls.clone())).collect();
        let access = BrokerAccess { client: HttpClient::new(base.clone()), login: log.login.clone(), timeout: TIMEOUT };
        let cluster = KafkaCluster { bootstrap, tls, access };
        // The hub itself removes records that are no longer needed.
        let mut settings = vec![
            ("cleanup.policy", "delete"),
            ("retention.ms", "-1"),
            ("retention.bytes", "-1"),
            ("segment.bytes", "67108864"),
            ("compression.type", "producer"),
            ("max.message.bytes", MAX_MESSAGE_BYTES),
        ];
        let partitions = log.partitions as i32 + FIRST_SHARE;
        let replication_factor = log.replication_factor.unwrap_or(-1);
        // What is acknowledged must survive the loss of a broker.
        if replication_factor >= 3 {
            settings.push(("min.insync.replicas", "2"));
        }
        let new = NewTopic { partitions, replication_factor, settings: &settings };
        let partitions = cluster.topic(&log.topic, &new).await?;
        let Some(shares) = partitions.checked_sub(FIRST_SHARE as usize).filter(|shares| *shares > 0) else {
            let problem = format!("topic {}: has {partitions} partitions, and a hub needs at least 3", log.topic);
            return Err(problem.into());
        };
        Ok(HubTopic { cluster, name: log.topic.clone(), shares: shares as u32, node, trouble })
    }

    pub(super) fn partition(&self, partition: i32) -> PartitionClient<'_> {
        PartitionClient::new(&self.cluster, &self.name, partition)
    }

    pub(super) fn share(&self, share: u32) -> PartitionClient<'_> {
        self.partition(FIRST_SHARE + share as i32)
    }

    /// The first and the last offset of a partition. Retries for a time, since a new topic has no leaders at first.
    ///
    /// # Errors
    /// No broker answers.
    pub(super) async fn ends(&self, partition: i32) -> Result<(i64, i64), KafkaError> {
        let give_up = Instant::now() + TIMEOUT;
        loop {
            let mut client = self.partition(partition);
            let ends = async { Ok((client.end(PartitionEnd::First).await?, client.end(PartitionEnd::Last).await?)) };
            match ends.await {
                Err(_) if Instant::now() < give_up => sleep(PAUSE).await,
                ends => return ends,
            }
        }
    }

    /// Appends frames; retries until they are stored, or until `give_up`. Returns the offset of the first one.
    ///
    /// # Errors
    /// The broker refuses the frames for good, or `give_up` has passed: then they may or may not be stored.
    pub(super) async fn append(
        &self,
        client: &mut PartitionClient<'_>,
        frames: &[Vec<u8>],
        give_up: Option<Instant>,
    ) -> Result<i64, KafkaError> {
        loop {
            // With the time of the attempt: brokers may refuse messages that are too old.
            match client.produce(&batch(frames, unix_ms())).await {
                Ok(offset) => {
                    self.trouble.end();
                    return Ok(offset);
                }
                Err(error) if error.is_refused_for_good() => return Err(error),
                Err(error) => {
                    self.trouble.report(&error);
                    if give_up.is_some_and(|at| Instant::now() >= at) {
                        return Err(error);
                    }
                }
            }
            sleep(PAUSE).await;
        }
    }

    /// Reports an error of a read, and waits before the next attempt.
    pub(super) async fn pause(&self, error: &KafkaError) {
        self.trouble.report(error);
        sleep(PAUSE).await;
    }
}
