//! The hub's topic: one partition for events, one for what nodes say of themselves, and one for each share of the subscriptions.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use weir_client::{HttpClient, HttpClientSettings, ServerVerification, StreamTarget, StreamTls};
use weir_kafka::{BrokerAccess, KafkaCluster, KafkaError, NewTopic, PartitionClient, PartitionEnd};

use super::frame::batch;
use crate::driver::unix_ms;
use crate::settings::KafkaLogSettings;

pub const EVENTS: i32 = 0;
pub const NODES: i32 = 1;
/// The partition of the first share.
const FIRST_SHARE: i32 = 2;
/// For connecting, and for each request.
const TIMEOUT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(200);
/// How long nothing must have failed for trouble to be over.
const CALM: Duration = Duration::from_secs(3);
/// How long a request waits for something to read.
pub const READ_WAIT: Duration = Duration::from_millis(500);
pub const READ_BYTES: i32 = 1 << 20;
/// More than an event of the largest size with what stands around it.
const MAX_MESSAGE_BYTES: &str = "37748736";

/// The last thing that did not work; nothing once it does again.
pub struct Trouble {
    last: Mutex<Option<(String, Instant)>>,
    tell: Arc<dyn Fn(&str) + Send + Sync>,
}

impl Trouble {
    pub fn new(tell: Arc<dyn Fn(&str) + Send + Sync>) -> Trouble {
        Trouble { last: Mutex::default(), tell }
    }

    pub fn last(&self) -> Option<String> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|(error, _)| error.clone())
    }

    /// Tells the operator what is new.
    pub fn report(&self, error: &KafkaError) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none() {
            (self.tell)(&format!("Kafka: {error}"));
        }
        *last = Some((error.to_string(), Instant::now()));
    }

    /// Something works. That ends the trouble if nothing has failed meanwhile: other partitions may have other brokers.
    pub fn end(&self) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_ref().is_some_and(|(_, at)| at.elapsed() > CALM) {
            *last = None;
            (self.tell)("Kafka answers again");
        }
    }
}

pub struct HubTopic {
    cluster: KafkaCluster,
    name: Box<str>,
    pub shares: u32,
    /// This process, among all that use the topic.
    pub node: u64,
    pub trouble: Arc<Trouble>,
}

impl HubTopic {
    /// Finds the topic, or makes it.
    ///
    /// # Errors
    /// No broker answers, or the topic is not fit.
    pub async fn open(
        log: &KafkaLogSettings,
        base: &HttpClientSettings,
        node: u64,
        trouble: Arc<Trouble>,
    ) -> Result<HubTopic, KafkaError> {
        let verification = |verify| if verify { ServerVerification::Verify } else { ServerVerification::Skip };
        let tls = log.tls.map(|tls| StreamTls { verification: verification(tls.verify), name: None });
        let bootstrap = log.brokers.iter().map(|(host, port)| StreamTarget::new(host, *port, tls.clone())).collect();
        let access = BrokerAccess { client: HttpClient::new(base.clone()), login: log.login.clone(), timeout: TIMEOUT };
        let cluster = KafkaCluster { bootstrap, tls, access };
        // The hub itself removes what is not needed any more.
        let settings = [
            ("cleanup.policy", "delete"),
            ("retention.ms", "-1"),
            ("retention.bytes", "-1"),
            ("segment.bytes", "67108864"),
            ("compression.type", "producer"),
            ("max.message.bytes", MAX_MESSAGE_BYTES),
        ];
        let partitions = log.partitions as i32 + FIRST_SHARE;
        let replication_factor = log.replication_factor.unwrap_or(-1);
        let new = NewTopic { partitions, replication_factor, settings: &settings };
        let partitions = cluster.topic(&log.topic, &new).await?;
        let Some(shares) = partitions.checked_sub(FIRST_SHARE as usize).filter(|shares| *shares > 0) else {
            let problem = format!("topic {}: has {partitions} partitions, and a hub needs at least 3", log.topic);
            return Err(problem.into());
        };
        Ok(HubTopic { cluster, name: log.topic.clone(), shares: shares as u32, node, trouble })
    }

    pub fn partition(&self, partition: i32) -> PartitionClient<'_> {
        PartitionClient::new(&self.cluster, &self.name, partition)
    }

    pub fn share(&self, share: u32) -> PartitionClient<'_> {
        self.partition(FIRST_SHARE + share as i32)
    }

    /// Both ends of a partition. A topic that was just made has leaders a moment later.
    ///
    /// # Errors
    /// No broker answers.
    pub async fn ends(&self, partition: i32) -> Result<(i64, i64), KafkaError> {
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

    /// Appends frames; tries again until they are stored, or until `give_up`. Returns the offset of the first one.
    ///
    /// # Errors
    /// They are too large, or it is time to give up: then nothing is known of them.
    pub async fn append(
        &self,
        client: &mut PartitionClient<'_>,
        frames: &[Vec<u8>],
        give_up: Option<Instant>,
    ) -> Result<i64, KafkaError> {
        let batch = batch(frames, unix_ms());
        loop {
            match client.produce(&batch).await {
                Ok(offset) => {
                    self.trouble.end();
                    return Ok(offset);
                }
                Err(error) if error.is_too_large() => return Err(error),
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

    /// After something could not be read.
    pub async fn pause(&self, error: &KafkaError) {
        self.trouble.report(error);
        sleep(PAUSE).await;
    }
}
