//! Stores that other nodes change as well.

use serde::{Deserialize, Serialize};

use super::failure::StoreFailure;
use super::resources::{ResourceKey, ResourceSet, StoredResource};
use super::source::Wake;

/// What others have changed.
#[derive(Clone, Debug, PartialEq)]
pub enum OutsideChange {
    /// These resources, in the order of their revisions; nothing for those that are gone. `revision` is the last one.
    Some { revision: u64, resources: Vec<(ResourceKey, Option<StoredResource>)> },
    /// Everything has been read anew. `is_doubtful` where the store is another one than before, or was set back: then it is not
    /// believed that there is nothing.
    All { set: ResourceSet, is_doubtful: bool },
}

/// What a store that other nodes change can do besides.
pub trait SharedStore: Send + Sync {
    /// From now on `wake` is called when there may be something to take.
    fn notify(&self, wake: Wake);

    /// What others have changed since this was asked last.
    fn take_changes(&self) -> Vec<OutsideChange>;

    /// Waits until everything that was written by now can be taken, within a limit. Says whether there is something to take.
    fn catch_up(&self) -> bool;

    /// This node serves a revision with this content.
    fn serves(&self, served: ServedContent);

    /// All nodes that live.
    ///
    /// # Errors
    /// Where the store does not answer.
    fn nodes(&self) -> Result<Vec<NodeReport>, StoreFailure>;

    /// How it is doing.
    fn state(&self) -> StoreState;
}

/// What a node serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedContent {
    /// Of the store.
    pub revision: u64,
    /// Equal on nodes that serve the same resources.
    pub content: u64,
    /// Resources that are kept and not served as they are.
    pub set_aside: usize,
}

/// What a node tells the others of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReport {
    pub id: String,
    pub version: String,
    /// Milliseconds since 1970.
    pub started_ms: u64,
    /// When it has told this.
    pub told_ms: u64,
    #[serde(flatten)]
    pub served: ServedContent,
}

/// How a shared store is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StoreState {
    pub connected: bool,
    /// The member that is asked, or was last.
    pub member: String,
    /// Since when it is as it is, in milliseconds since 1970.
    pub since_ms: u64,
    /// What is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}
