//! The settings of one hub.

use std::time::Duration;

use ipnet::IpNet;
use weir_kafka::SaslLogin;

use crate::rights::{ConsumerGroups, PermittedCallers, TopicRights};
use crate::signature::SignatureMethod;
use crate::topic::{TopicPattern, has_dot_segments};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubSettings {
    /// The public URL of the hub: the `rel=hub` link of every delivery (W3C WebSub §7).
    pub url: Box<str>,
    pub topics: Vec<TopicPattern>,
    /// Further conditions for some of the topics. The first entry that has a topic applies to it.
    pub rights: Vec<TopicRights>,
    /// The consumers of the configuration that the hub is part of.
    pub consumers: ConsumerGroups,
    pub publish: PublishSettings,
    pub subscribe: SubscribeSettings,
    pub listen: ListenSettings,
    pub delivery: DeliverySettings,
    pub retention: RetentionSettings,
    pub log: LogSettings,
}

impl HubSettings {
    /// The rights that apply to a topic, beside those of the whole hub.
    pub fn rights_of(&self, topic: &str) -> Option<&TopicRights> {
        self.rights.iter().find(|rights| rights.topics.iter().any(|pattern| pattern.matches(topic)))
    }

    /// Whether the hub has a topic. A URL with segments `.` or `..` is none, as what it leads to may be outside of the pattern.
    pub fn has_topic(&self, topic: &str) -> bool {
        !has_dot_segments(topic) && self.topics.iter().any(|pattern| pattern.matches(topic))
    }

    /// Whether a consumer may receive the events of a topic, as far as that does not depend on a token. `consumer` is empty if the
    /// caller is none. A consumer that the configuration no longer has has no rights.
    pub fn permits_receiving(&self, consumer: &str, topic: &str) -> bool {
        let group = match consumer {
            "" => "",
            _ => match self.consumers.group_of(consumer) {
                Some(group) => group,
                None => return false,
            },
        };
        self.subscribe.permitted.include(consumer, group)
            && self.rights_of(topic).is_none_or(|rights| rights.subscribe.include(consumer, group))
    }

    /// The settings for one of `count` engines that share the hub: limits are divided by `count` and rounded up.
    pub fn share_of(&self, count: u32) -> HubSettings {
        let (subscribe, delivery) = (self.subscribe.clone(), self.delivery);
        HubSettings {
            subscribe: SubscribeSettings {
                max_per_consumer: subscribe.max_per_consumer.div_ceil(count as usize),
                max_per_address: subscribe.max_per_address.div_ceil(count as usize),
                max_anonymous: subscribe.max_anonymous.div_ceil(count as usize),
                max_unverified_per_client: subscribe.max_unverified_per_client.div_ceil(count as usize),
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

/// Permissions and limits of publishers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishSettings {
    /// Every caller of the endpoint may publish. Otherwise a publisher has to be a consumer, or sign the content.
    pub anonymous: bool,
    /// Callers that may publish.
    pub permitted: PermittedCallers,
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
    /// Callers that may subscribe and listen.
    pub permitted: PermittedCallers,
    pub callbacks: CallbackSettings,
    pub lease: LeaseSettings,
    /// The signature method of deliveries to subscribers with a secret (§7.1).
    pub signature: SignatureMethod,
    /// Deliveries also have the fields of Standard Webhooks.
    pub standard_webhooks: bool,
    /// The most subscriptions of one consumer.
    pub max_per_consumer: usize,
    /// The most subscriptions that were made from one address by callers that are no consumers. Of IPv6, a network of 64 bits is one.
    pub max_per_address: usize,
    /// The most subscriptions of all callers that are no consumers.
    pub max_anonymous: usize,
    /// The most requests of one client that may wait for verification: of one consumer, or of one address if the client is none.
    pub max_unverified_per_client: usize,
    /// Verifications of intent per second and callback host. A host may get a burst of ten seconds' worth.
    pub verifications_per_second: u32,
}

/// Limits of those who listen: event streams, WebSockets, and long polls that wait. They hold on each node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenSettings {
    pub max: usize,
    /// Of one consumer, or of one address if the client is none.
    pub max_per_client: usize,
    /// A listener that takes nothing of what is sent to it for this long is ended.
    pub unread_timeout: Duration,
}

impl Default for ListenSettings {
    fn default() -> Self {
        ListenSettings { max: 20_000, max_per_client: 1_000, unread_timeout: Duration::from_secs(30) }
    }
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
            permitted: PermittedCallers::default(),
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
            permitted: PermittedCallers::default(),
            callbacks: CallbackSettings::default(),
            lease: LeaseSettings::default(),
            signature: SignatureMethod::Sha256,
            standard_webhooks: false,
            max_per_consumer: 100_000,
            max_per_address: 10_000,
            max_anonymous: 1_000_000,
            max_unverified_per_client: 1_000,
            verifications_per_second: 100,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::settings;

    #[test]
    fn urls_that_lead_out_of_a_pattern_are_no_topics() {
        let all = TopicPattern::parse("http://h/orders/*").expect("a pattern");
        let settings = HubSettings { topics: vec![all], ..settings() };
        for (topic, expected) in [
            ("http://h/orders/1", true),
            ("http://h/orders/..a/.b/c..", true),
            ("http://h/orders/1?next=/../a", true),
            ("http://h/orders/../admin", false),
            ("http://h/orders/./1", false),
            ("http://h/orders/..", false),
            ("http://h/orders/..?x=1", false),
            ("http://h/orders/%2e%2E/admin", false),
            ("http://h/orders/.%2e/admin", false),
            ("http://h/orders/a%2F..%2f..%2Fadmin", false),
            ("http://h/orders/a%5c..%5Cadmin", false),
            ("http://h/orders/..;a=b/admin", false),
        ] {
            assert_eq!(settings.has_topic(topic), expected, "{topic}");
        }
    }

    #[test]
    fn a_consumer_has_the_rights_of_its_name_and_group_while_it_exists() {
        let names = |names: &[&str]| names.iter().map(|name| Box::from(*name)).collect::<Vec<_>>();
        let consumers = [("jack", "staff"), ("jill", ""), ("joe", "")].map(|(name, group)| (name.into(), group.into()));
        let mut settings = HubSettings { consumers: consumers.into_iter().collect(), ..settings() };
        let permits = |settings: &HubSettings| {
            ["jack", "jill", "joe", "gone", ""].map(|name| settings.permits_receiving(name, "http://t.example/1"))
        };
        assert_eq!(permits(&settings), [true, true, true, false, true]);
        settings.subscribe.permitted.groups = names(&["staff"]);
        settings.subscribe.permitted.consumers = names(&["jill"]);
        assert_eq!(permits(&settings), [true, true, false, false, false]);
        settings.rights = vec![TopicRights {
            topics: settings.topics.clone(),
            publish: PermittedCallers::default(),
            subscribe: PermittedCallers { consumers: names(&["jill", "joe"]), ..PermittedCallers::default() },
        }];
        assert_eq!(permits(&settings), [false, true, false, false, false]);
        assert!(settings.permits_receiving("jack", "http://t.example.org/"), "another topic");
    }
}
