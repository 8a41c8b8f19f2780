//! What operators see of a store that several nodes use.

use serde::Serialize;

/// The state of the connection to a shared store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StoreState {
    pub connected: bool,
    /// The member that is used, or was used last.
    pub member: String,
    /// When `connected` last changed, in milliseconds since 1970.
    pub since_ms: u64,
    /// The problem, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}
