//! Quotas for events that clients publish to a hub, and for those that a hub delivers to them.

use std::fmt;

/// Limits the events a client may publish. A plugin adds one to an exchange ([`crate::Exchange::limit_publishing`]); the hub
/// calls it for each event, before the event is stored.
pub trait PublishQuota: Send + Sync {
    /// Counts an event of a topic with `bytes` bytes of content.
    ///
    /// # Errors
    /// The quota is used up, or its state is unknown.
    fn take(&self, topic: &str, bytes: u64) -> Result<(), PublishRefusal>;
}

/// Why an event is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishRefusal {
    /// The status of the response, usually 429.
    pub status: u16,
    pub reason: String,
    /// Seconds until the quota allows events again.
    pub retry_after_s: Option<u64>,
}

/// Limits the deliveries to a subscription that a client makes at a hub. A plugin adds one to an exchange
/// ([`crate::Exchange::limit_deliveries`]); the hub keeps it with the subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryQuota {
    /// Names the counter: what counts together has the same key.
    pub key: Box<str>,
    /// Counts each topic separately.
    pub per_topic: bool,
    /// The most events in a window; `None` is no limit.
    pub count: Option<u64>,
    /// The most bytes in a window; `None` is no limit.
    pub bytes: Option<u64>,
    pub window_s: u64,
    /// The window is the time before each event, not one of a sequence.
    pub slides: bool,
    /// What exceeds the quota is not delivered. Otherwise it waits.
    pub drops: bool,
}

impl fmt::Debug for dyn PublishQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PublishQuota")
    }
}
