//! The settings of one hub.

use std::time::Duration;

use ipnet::IpNet;
use weir_kafka::SaslLogin;

use crate::signature::SignatureMethod;
use crate::topic::TopicPattern;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubSettings {
    /// The public URL of the hub: the `rel=hub` link of every delivery (W3C WebSub §7).
    pub url: Box<str>,
    pub topics: Vec<TopicPattern>,
    /// Further conditions for some of the topics. The first entry that has a topic applies to it.
    pub rights: Vec<TopicRights>,
    pub publish: PublishSettings,
    pub subscribe: SubscribeSettings,
    pub delivery: DeliverySettings,
    pub retention: RetentionSettings,
    pub log: LogSettings,
}

impl HubSettings {
    /// The settings for one of `count` engines that share the hub: limits are divided by `count` and rounded up.
    pub fn share_of(&self, count: u32) -> HubSettings {
        let (subscribe, delivery) = (self.subscribe.clone(), self.delivery);
        HubSettings {
            subscribe: SubscribeSettings {
                max_per_consumer: subscribe.max_per_consumer.div_ceil(count as usize),
                verifications_per_second: subscribe.verifications_per_second.div_ceil(count),
                ..subscribe
            },
            delivery: DeliverySettings {
                per_second: delivery.per_second.div_ceil(count),
                in_flight: delivery.in_flight.div_ceil(count as usize),
                in_flight_per_host: delivery.in_flight_per_host.div_ceil(count),
                ..delivery
            },
            ..self.clone()
        }
    }
}

/// Where events, subscriptions and the progress of each are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LogSettings {
    /// In journals of this node.
    #[default]
    Local,
    /// In a topic of Kafka, by which several nodes share the hub.
    Kafka(KafkaLogSettings),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KafkaLogSettings {
    /// Hosts and ports of the brokers for bootstrapping.
    pub brokers: Vec<(Box<str>, u16)>,
    pub tls: Option<KafkaTlsSettings>,
    pub login: Option<SaslLogin>,
    pub topic: Box<str>,
    /// The number of partitions for subscriptions, if the topic has to be created.
    pub partitions: u32,
    /// Replicas of each partition, if the topic has to be created; `None` is the cluster's default.
    pub replication_factor: Option<i16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KafkaTlsSettings {
    /// Verify the certificates of brokers against the node's authorities.
    pub verify: bool,
}

/// Consumers that have a right, by name or by group. Without any, all have it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PermittedConsumers {
    pub consumers: Vec<Box<str>>,
    pub groups: Vec<Box<str>>,
}

impl PermittedConsumers {
    pub fn are_all(&self) -> bool {
        self.consumers.is_empty() && self.groups.is_empty()
    }

    /// Whether a consumer has the right; `group` is empty if it has none.
    pub fn include(&self, consumer: &str, group: &str) -> bool {
        let has = |names: &[Box<str>], wanted: &str| names.iter().any(|name| **name == *wanted);
        self.are_all() || has(&self.consumers, consumer) || has(&self.groups, group)
    }
}

/// Who may publish under some topics, and who may subscribe to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicRights {
    pub topics: Vec<TopicPattern>,
    pub publish: PermittedConsumers,
    pub subscribe: PermittedConsumers,
}

/// Permissions and limits of publishers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishSettings {
    /// Every caller of the endpoint may publish. Otherwise a publisher has to be a consumer, or sign the content.
    pub anonymous: bool,
    /// Consumers that may publish.
    pub permitted: PermittedConsumers,
    /// Content with a valid signature by this secret is accepted from any sender.
    pub secret: Option<Box<str>>,
    /// The header field with the publisher's signature, in lower case.
    pub signature_header: Box<str>,
    pub max_bytes: usize,
    /// Origins (`https://example.com:443`) that the hub may fetch content from after a thin ping. Their addresses may be private.
    pub fetch: Vec<Box<str>>,
}

/// Permissions and limits of subscribers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscribeSettings {
    /// Consumers that may subscribe and listen. If all may, so may callers without a consumer.
    pub permitted: PermittedConsumers,
    pub callbacks: CallbackSettings,
    pub lease: LeaseSettings,
    /// The signature method of deliveries to subscribers with a secret (§7.1).
    pub signature: SignatureMethod,
    /// Deliveries also have the fields of Standard Webhooks.
    pub standard_webhooks: bool,
    /// The most subscriptions of one consumer; all callers without a consumer count as one.
    pub max_per_consumer: usize,
    /// Verifications of intent per second and callback host. A host may get a burst of ten seconds' worth.
    pub verifications_per_second: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallbackSettings {
    /// Networks that callbacks may be in even if they are not publicly routed.
    pub allow: Vec<IpNet>,
    pub require_https: bool,
}

/// Bounds of leases, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseSettings {
    pub default_s: u64,
    pub min_s: u64,
    pub max_s: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliverySettings {
    /// Time-out of one attempt, connecting included.
    pub timeout: Duration,
    /// How long a notification is tried; after that it is given up.
    pub retry_for: Duration,
    /// The pause after the first failure; it doubles with each further one.
    pub retry_first: Duration,
    /// The longest pause.
    pub retry_max: Duration,
    /// Deliveries started per second; 0 is no limit.
    pub per_second: u32,
    /// The most deliveries in flight.
    pub in_flight: usize,
    /// The most deliveries in flight to one callback host.
    pub in_flight_per_host: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionSettings {
    /// The most bytes of kept events; the oldest are removed first.
    pub bytes: u64,
    /// Events older than this are removed.
    pub age: Duration,
}

impl Default for PublishSettings {
    fn default() -> Self {
        PublishSettings {
            anonymous: false,
            permitted: PermittedConsumers::default(),
            secret: None,
            signature_header: "x-hub-signature".into(),
            max_bytes: 1 << 20,
            fetch: Vec::new(),
        }
    }
}

impl Default for SubscribeSettings {
    fn default() -> Self {
        SubscribeSettings {
            permitted: PermittedConsumers::default(),
            callbacks: CallbackSettings::default(),
            lease: LeaseSettings::default(),
            signature: SignatureMethod::Sha256,
            standard_webhooks: false,
            max_per_consumer: 100_000,
            verifications_per_second: 10,
        }
    }
}

impl Default for LeaseSettings {
    fn default() -> Self {
        const DAY_S: u64 = 86_400;
        LeaseSettings { default_s: 10 * DAY_S, min_s: 300, max_s: 30 * DAY_S }
    }
}

impl LeaseSettings {
    /// The lease granted for a requested lease.
    pub fn granted_s(&self, asked_s: Option<u64>) -> u64 {
        asked_s.unwrap_or(self.default_s).clamp(self.min_s, self.max_s)
    }
}

impl Default for DeliverySettings {
    fn default() -> Self {
        DeliverySettings {
            timeout: Duration::from_secs(30),
            retry_for: Duration::from_secs(24 * 3600),
            retry_first: Duration::from_secs(1),
            retry_max: Duration::from_secs(3600),
            per_second: 0,
            in_flight: 1_024,
            in_flight_per_host: 32,
        }
    }
}

impl Default for RetentionSettings {
    fn default() -> Self {
        RetentionSettings { bytes: 1 << 30, age: Duration::from_secs(7 * 86_400) }
    }
}
