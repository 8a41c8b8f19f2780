//! Quotas for events that clients publish to a hub.

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

impl fmt::Debug for dyn PublishQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PublishQuota")
    }
}
