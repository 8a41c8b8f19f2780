//! Stores that several nodes read and write.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::failure::StoreFailure;
use super::resources::{ResourceKey, ResourceSet, RevisionRecord, StoredResource};
use super::wake::Wake;
use crate::store_state::StoreState;
use crate::text::diagnostic::Diagnostic;

/// A change that another node has made.
#[derive(Clone, Debug, PartialEq)]
pub enum OutsideChange {
    /// These resources, in the order of their revisions; `None` if deleted. `revision` is the last one.
    Some { revision: u64, resources: Vec<(ResourceKey, Option<StoredResource>)> },
    /// The whole store has been read again. `is_doubtful` if it is another store than before, or was set back: an empty one is
    /// then not believed.
    All { set: ResourceSet, is_doubtful: bool },
}

/// The additional operations of a store that several nodes use.
pub trait SharedStore: Send + Sync {
    /// Registers `wake`, which is called when there may be changes to take.
    fn notify(&self, wake: Wake);

    /// The changes of other nodes since the last call.
    fn take_changes(&self) -> Vec<OutsideChange>;

    /// Waits, up to a limit, until everything written so far can be taken. Returns whether there is something to take.
    fn catch_up(&self) -> bool;

    /// Whether the store accepts this many changes, of this size, in one transaction.
    ///
    /// # Errors
    /// The limit that is exceeded.
    fn fits(&self, record: &RevisionRecord) -> Result<(), StoreFailure>;

    /// Reports the revision and content that this node serves, and the resources that are set aside, with their faults.
    fn serves(&self, served: ServedContent, set_aside: &BTreeMap<ResourceKey, Diagnostic>);

    /// All nodes that are alive, as far as the store knows them.
    ///
    /// # Errors
    /// If the store does not respond.
    fn nodes(&self) -> Result<KnownNodes, StoreFailure>;

    /// The state of the connection to the store.
    fn state(&self) -> StoreState;
}

/// Nodes, and who says what they serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownNodes {
    /// Such as `the controller https://…`.
    pub told_by: String,
    /// The revision that nodes should serve; `None` if their content is compared, since they share a store.
    pub newest: Option<u64>,
    pub list: Vec<NodeReport>,
}

/// The content that a node serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedContent {
    /// The store revision.
    pub revision: u64,
    /// A hash that is equal on nodes with the same resources.
    pub content: u64,
    /// The number of resources that are set aside.
    pub set_aside: usize,
}

/// What a node publishes about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReport {
    pub id: String,
    pub version: String,
    /// Milliseconds since 1970.
    pub started_ms: u64,
    /// When the report was written, in milliseconds since 1970.
    pub told_ms: u64,
    #[serde(flatten)]
    pub served: ServedContent,
}
