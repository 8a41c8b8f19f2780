//! The leaders of a topic's partitions.

use weir_client::{StreamTarget, StreamTls};

use crate::wire::{AnswerBytes, AnswerCutShort};

/// An answer to Metadata (key 3, version 4) for one topic.
#[derive(Debug, PartialEq, Eq)]
pub struct Metadata {
    /// The id, host and port of each broker.
    brokers: Vec<(i32, String, i32)>,
    /// The id of the broker that creates topics.
    pub controller: i32,
    /// The error code for the topic; 0 if none.
    pub error: i16,
    /// The number and the leader's id of each partition.
    pub partitions: Vec<(i32, i32)>,
}

impl Metadata {
    /// The address of a broker.
    pub fn broker(&self, id: i32, tls: &Option<StreamTls>) -> Option<StreamTarget> {
        let (_, host, port) = self.brokers.iter().find(|(broker, ..)| *broker == id)?;
        Some(StreamTarget::new(host, *port as u16, tls.clone()))
    }
}

/// # Errors
/// The answer is truncated.
pub fn read_metadata(answer: &mut AnswerBytes<'_>) -> Result<Metadata, AnswerCutShort> {
    let _throttled_ms = answer.i32()?;
    let brokers = answer.list(|broker| {
        let known = (broker.i32()?, broker.text()?, broker.i32()?);
        let _rack = broker.text()?;
        Ok(known)
    })?;
    let (_cluster, controller) = (answer.text()?, answer.i32()?);
    let mut topics = answer.list(|topic| {
        let error = topic.i16()?;
        let (_name, _is_internal) = (topic.text()?, topic.bool()?);
        let partitions = topic.list(|partition| {
            let (_error, number, leader) = (partition.i16()?, partition.i32()?, partition.i32()?);
            let (_replicas, _in_sync) = (partition.list(AnswerBytes::i32)?, partition.list(AnswerBytes::i32)?);
            Ok((number, leader))
        })?;
        Ok((error, partitions))
    })?;
    let (error, partitions) = topics.pop().ok_or(AnswerCutShort)?;
    Ok(Metadata { brokers, controller, error, partitions })
}

/// Whether a text is a valid topic name: 1 to 249 letters, digits, `.`, `_` or `-`.
pub fn is_topic_name(name: &str) -> bool {
    let is_fit = |char: char| char.is_ascii_alphanumeric() || "._-".contains(char);
    (1..=249).contains(&name.len()) && name != "." && name != ".." && name.chars().all(is_fit)
}
