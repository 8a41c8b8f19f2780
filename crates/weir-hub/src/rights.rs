//! Who may publish under a topic, and who may receive its events.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::topic::TopicPattern;

/// The callers that have a right. Each condition that is set has to hold; without any, all have the right.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PermittedCallers {
    /// Consumers, by name. A consumer needs to be among these, or in one of `groups`.
    pub consumers: Vec<Box<str>>,
    pub groups: Vec<Box<str>>,
    /// The caller's verified token needs one of these scopes (RFC 8693 §4.2, RFC 9068 §2.2.3).
    pub scopes: Vec<Box<str>>,
    /// The claim of the caller's verified token that lists the topics it has the right for: its name, or a JSON Pointer (RFC 6901),
    /// which begins with `/`.
    pub topic_claim: Option<Box<str>>,
}

impl PermittedCallers {
    /// Whether only some consumers have the right.
    pub fn name_consumers(&self) -> bool {
        !self.consumers.is_empty() || !self.groups.is_empty()
    }

    /// Whether the right depends on claims of a token.
    pub fn ask_for_claims(&self) -> bool {
        !self.scopes.is_empty() || self.topic_claim.is_some()
    }

    /// Whether a consumer has the right, as far as that does not depend on a token. Both names are empty if there is none.
    pub fn include(&self, consumer: &str, group: &str) -> bool {
        let has = |names: &[Box<str>], wanted: &str| names.iter().any(|name| **name == *wanted);
        !self.name_consumers() || has(&self.consumers, consumer) || has(&self.groups, group)
    }
}

/// Conditions for publishing under some topics, and for receiving their events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicRights {
    pub topics: Vec<TopicPattern>,
    pub publish: PermittedCallers,
    pub subscribe: PermittedCallers,
}

/// The consumers of the configuration: the group of each by its name; empty if it has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsumerGroups(Arc<BTreeMap<Box<str>, Box<str>>>);

impl ConsumerGroups {
    /// The group of a consumer; `None` if there is no such consumer.
    pub fn group_of(&self, consumer: &str) -> Option<&str> {
        self.0.get(consumer).map(|group| &**group)
    }
}

impl FromIterator<(Box<str>, Box<str>)> for ConsumerGroups {
    fn from_iter<I: IntoIterator<Item = (Box<str>, Box<str>)>>(consumers: I) -> ConsumerGroups {
        ConsumerGroups(Arc::new(consumers.into_iter().collect()))
    }
}
