//! The subset of Kafka's protocol that Weir needs, over the node's own client with its resolver and certificate authorities.
//!
//! [`BrokerConnection`] is one connection, with SASL if it is configured.
//! [`PartitionClient`] reads and writes one partition of a topic, at its current leader.
//! [`message_batch`] and [`stored_messages`] write and read the format of stored messages.

#![forbid(unsafe_code)]

mod broker;
mod codes;
mod metadata;
mod partition;
mod stored;
mod wire;

pub use broker::{BrokerAccess, BrokerConnection, SaslLogin, SaslMechanism};
pub use codes::{ProduceVerdict, describe as describe_code};
pub use metadata::{Metadata, is_topic_name, read_metadata};
pub use partition::{Fetched, FetchedMessage, KafkaCluster, KafkaError, NewTopic, PartitionClient, PartitionEnd};
pub use stored::{StoredMessage, stored_messages};
pub use wire::{
    AnswerBytes, AnswerCutShort, KafkaMessage, ProducerIdentity, RequestBytes, message_batch, partition_of,
};
