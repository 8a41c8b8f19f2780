//! A cluster that is followed: its API server is watched, each change is translated, and the statuses are written back.
//!
//! ```text
//! API server ──watches──> World ──translate──> resources ──> the node
//!      ^                              |                        |
//!      └──── statuses, events <── statuses <── served revision ┘
//! ```
//!
//! A status is written when the node serves the resources that it speaks of, not before. All that is asked of the API server is the
//! trait [`Cluster`]; [`ApiServer`] is the one over the network.

mod api_server;
mod controller;
mod election;
mod follower;
mod references;
mod scope;
mod seen;
mod status_writer;

use std::fmt;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use serde_json::Value;

use crate::objects::{Kind, ObjectRef};
use crate::translation::ObjectEvent;

pub use api_server::{ApiServer, ClusterAccess, ReviewedToken, StoredEntries};
pub use controller::{Controller, ControllerSettings, ControllerState, ResourceSink};
pub use election::{ElectionSettings, Tenure};
pub use scope::{ScopePart, WatchScope};

/// What is asked of an API server.
pub trait Cluster: Send + Sync + 'static {
    /// The version of a kind to use: the first of those that are read that the server has. `None` if it has none, since the
    /// definition of the kind is not installed.
    fn version(&self, kind: Kind) -> BoxFuture<'_, Result<Option<&'static str>, ClusterError>>;

    /// Lists the objects of a scope, and follows their changes from there. After an error the stream goes on: with the changes since
    /// the last one, or with a list if the server does not know them any more.
    fn watch(&self, scope: &WatchScope, version: &'static str) -> BoxStream<'static, Result<ScopeEvent, ClusterError>>;

    /// Writes these fields of the status of an object, if the object has this `resourceVersion`. Returns the object's new
    /// `resourceVersion`.
    fn write_status<'a>(
        &'a self,
        object: &'a ObjectRef,
        version: &'static str,
        resource_version: &'a str,
        status: Value,
    ) -> BoxFuture<'a, Result<String, ClusterError>>;

    /// Creates an object that another one owns, or writes the fields of `value` where they differ. Fields of others stay.
    fn apply<'a>(
        &'a self,
        object: &'a ObjectRef,
        version: &'static str,
        value: &'a Value,
    ) -> BoxFuture<'a, Result<(), ClusterError>>;

    /// Writes an Event about an object with this `uid`.
    fn write_event<'a>(&'a self, event: &'a ObjectEvent, uid: &'a str) -> BoxFuture<'a, Result<(), ClusterError>>;

    /// Takes or renews a Lease for `lease.holder`. From another holder it is taken only if its last renewal is `stale`.
    fn hold_lease<'a>(
        &'a self,
        lease: &'a LeaseRequest,
        stale: Option<&'a str>,
    ) -> BoxFuture<'a, Result<LeaseAnswer, ClusterError>>;

    /// Gives a Lease up if `lease.holder` has it, so that another process need not wait until it is over.
    fn release_lease<'a>(&'a self, lease: &'a LeaseRequest) -> BoxFuture<'a, Result<(), ClusterError>>;
}

/// A Lease, and who wants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRequest {
    /// Empty stands for the namespace of the credentials.
    pub namespace: String,
    pub name: String,
    pub holder: String,
    /// How long it is held after the last renewal.
    pub duration: Duration,
}

/// Who has a Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseAnswer {
    /// This process. `before` had it until now, or has given it up if it is empty; `None`: the Lease is new.
    Held { before: Option<String> },
    /// `mark` changes with each renewal. `holder` is empty if it is not known.
    HeldByOther { holder: String, mark: String },
}

/// What a watch yields.
#[derive(Clone, Debug, PartialEq)]
pub enum ScopeEvent {
    /// A list of all objects begins.
    ListBegins,
    /// The object as it is now, in a list or after a change.
    Is(Value),
    /// The list is complete: objects of the scope that it did not have are gone.
    ListEnds,
    /// The object with this namespace and name is gone.
    Gone(String, String),
}

/// Why the API server did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterError {
    /// The HTTP status of the answer; 0 if there was none.
    pub status: u16,
    pub problem: String,
}

impl ClusterError {
    /// The object has another `resourceVersion`, or exists already.
    pub fn is_conflict(&self) -> bool {
        self.status == 409
    }

    /// The API server refuses this request, which says nothing about others: not for lack of credentials or time.
    pub fn is_of_request(&self) -> bool {
        matches!(self.status, 400..=500) && !matches!(self.status, 401 | 408 | 429)
    }

    /// The API server knows who asks, who has no right to this.
    pub fn is_forbidden(&self) -> bool {
        self.status == 403
    }

    /// There is no such object, or no such kind.
    pub fn is_missing(&self) -> bool {
        self.status == 404
    }
}

impl fmt::Display for ClusterError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.problem)
    }
}

impl std::error::Error for ClusterError {}
