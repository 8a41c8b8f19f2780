//! Quotas of the events that a client publishes to a hub.

use std::fmt;

/// How many events a client may publish. A plugin makes one for an exchange ([`crate::Exchange::limit_publishing`]); the hub asks it
/// for each event, before the event is stored.
pub trait PublishQuota: Send + Sync {
    /// Counts an event of a topic with so many bytes of content.
    ///
    /// # Errors
    /// Nothing is left, or what is left is not known.
    fn take(&self, topic: &str, bytes: u64) -> Result<(), PublishRefusal>;
}

/// Why an event is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishRefusal {
    /// 429, or what else the client is answered.
    pub status: u16,
    pub reason: String,
    /// When there is something left again.
    pub retry_after_s: Option<u64>,
}

impl fmt::Debug for dyn PublishQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PublishQuota")
    }
}
