//! Limits of the deliveries to subscriptions.

/// Limits how many events, or bytes of events, are delivered in a time window. Subscriptions with equal limits count together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeliveryLimit {
    /// Names the counter: what counts together has the same key.
    pub key: Box<str>,
    /// The most events in a window; `None` is no limit.
    pub count: Option<u64>,
    /// The most bytes of content in a window. An event is delivered as long as any bytes are left.
    pub bytes: Option<u64>,
    pub window_s: u64,
    pub window: LimitWindow,
    pub excess: ExcessDelivery,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LimitWindow {
    /// A window begins with the first event after the one before.
    Fixed,
    /// The limit applies to the last window at any time. Of the previous window, as much counts as lies within it.
    Sliding,
}

/// What happens to an event when the limit is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExcessDelivery {
    /// It is delivered later.
    Wait,
    /// It is not delivered, and counts as throttled.
    Drop,
}
