//! What one hub is told to do.

use std::time::Duration;

use ipnet::IpNet;
use weir_kafka::SaslLogin;

use crate::signature::SignatureMethod;
use crate::topic::TopicPattern;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubSettings {
    /// Where subscribers find the hub: the `rel=hub` of every delivery (W3C WebSub §7).
    pub url: Box<str>,
    pub topics: Vec<TopicPattern>,
    pub publish: PublishSettings,
    pub subscribe: SubscribeSettings,
    pub delivery: DeliverySettings,
    pub retention: RetentionSettings,
    pub log: LogSettings,
}

impl HubSettings {
    /// What holds for one of so many engines that share the hub, so that together they keep to the limits, rounded up.
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
    /// Hosts and ports of brokers that are asked where the others are.
    pub brokers: Vec<(Box<str>, u16)>,
    pub tls: Option<KafkaTlsSettings>,
    pub login: Option<SaslLogin>,
    pub topic: Box<str>,
    /// In how many partitions the subscriptions are, if the topic is to be made.
    pub partitions: u32,
    /// How many brokers have each partition, if the topic is to be made; nothing is the default of the cluster.
    pub replication_factor: Option<i16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KafkaTlsSettings {
    /// Brokers have to have certificates that an authority of the node has signed.
    pub verify: bool,
}

/// Who may publish, and what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishSettings {
    /// Whoever reaches the endpoint may publish. Without it a publisher is a consumer, or signs.
    pub anonymous: bool,
    /// Consumers that may publish; empty is every consumer.
    pub consumers: Vec<Box<str>>,
    /// Content signed with this secret may be published by anyone.
    pub secret: Option<Box<str>>,
    /// The header field with the publisher's signature, in lower case.
    pub signature_header: Box<str>,
    pub max_bytes: usize,
    /// Origins (`https://example.com:443`) that a thin ping makes the hub fetch from. Their addresses may be private.
    pub fetch: Vec<Box<str>>,
}

/// What subscribers may ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscribeSettings {
    /// Consumers that may subscribe and listen; empty is whoever reaches the endpoint.
    pub consumers: Vec<Box<str>>,
    pub callbacks: CallbackSettings,
    pub lease: LeaseSettings,
    /// How deliveries to subscribers with a secret are signed (§7.1).
    pub signature: SignatureMethod,
    /// Deliveries have the fields of Standard Webhooks besides.
    pub standard_webhooks: bool,
    /// Subscriptions of one consumer; those of callers without one count together.
    pub max_per_consumer: usize,
    /// Verifications of intent per second and host of callbacks. A host may take ten seconds' worth at once.
    pub verifications_per_second: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallbackSettings {
    /// Networks that callbacks may be in although the public internet does not route to them.
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
    /// Of one attempt, connecting included.
    pub timeout: Duration,
    /// A notification is given up when it could not be delivered for so long.
    pub retry_for: Duration,
    /// The wait after the first failure; each further one is twice as long.
    pub retry_first: Duration,
    /// The longest wait.
    pub retry_max: Duration,
    /// Deliveries begun per second; 0 is as many as possible.
    pub per_second: u32,
    /// Deliveries under way at a time.
    pub in_flight: usize,
    /// The same for one host of callbacks.
    pub in_flight_per_host: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionSettings {
    /// The oldest events go when all together are larger.
    pub bytes: u64,
    /// Events older than this go.
    pub age: Duration,
}

impl Default for PublishSettings {
    fn default() -> Self {
        PublishSettings {
            anonymous: false,
            consumers: Vec::new(),
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
            consumers: Vec::new(),
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
    /// What a subscriber gets who asks for this.
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
