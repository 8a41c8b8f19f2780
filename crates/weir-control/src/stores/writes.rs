//! Changes of resources: requested on any thread, made on the thread that watches the configuration.

use std::fmt;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::live::ResourceEdit;
use super::resources::{Author, ResourceKey, ResourceView, RevisionRecord};
use super::store::StoreFailure;
use crate::explain::ComparedRequest;
use crate::text::diagnostic::Diagnostic;

/// Computes the edits of a change from the current resources. Called again if another node has changed them meanwhile.
pub type Plan = dyn Fn(&ResourceView) -> Result<Vec<ResourceEdit>, PlanRefusal> + Send + Sync;

/// A requested change.
pub struct WriteRequest {
    pub plan: Box<Plan>,
    pub author: Author,
    /// The author has the role `admin`: it takes turns with authors of other roles.
    pub of_admin: bool,
    /// Resources that refer to deleted ones are set aside.
    pub forced: bool,
    /// The most bytes of compiled patterns.
    pub pattern_bytes: usize,
}

/// Why a plan is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanRefusal {
    /// The resource to change does not exist.
    Missing,
    /// The consumer of a credential does not exist.
    NoConsumer,
    /// The resource is not at a revision that the author named (`If-Match`); its current revision, if it exists.
    MovedOn(Option<u64>),
    /// The store is not at the revision of `if_revision`; its revision.
    StoreMovedOn(u64),
    /// The resource must not exist (`If-None-Match: *`); its current revision.
    Exists(u64),
    Wrong(String),
    /// It would take too long to plan; what to do instead.
    TooMuchWork(String),
    /// The author's scopes do not include this resource.
    OutOfScope(ResourceKey),
    /// A server name of this entry of `ssls` meets one of an entry outside of the author's scopes.
    NameOutOfScope(ResourceKey, String),
    /// A plugin would join, or change, a group of plugins that share counters and is used outside of the scopes.
    GroupOutOfScope(ResourceKey, String),
    /// The author's role may not change resources of this kind: the name of the role, and the resource.
    NotOfRole(&'static str, ResourceKey),
}

/// The outcome of a change.
#[derive(Debug)]
pub enum WriteOutcome {
    Applied(WriteReceipt),
    Refused(PlanRefusal),
    /// The resulting configuration cannot be served.
    Invalid(Vec<Diagnostic>),
    /// The patterns in it take more than this many bytes when they are compiled.
    TooCostly(usize),
    /// Nothing was changed.
    Failed(StoreFailure),
}

/// The result of a change that was made.
#[derive(Clone, Debug)]
pub struct WriteReceipt {
    pub record: RevisionRecord,
    /// The revision of the first snapshot that contains it.
    pub publication: u64,
    /// The resources of the change that are set aside, since they lack something outside of the configuration; of a forced change
    /// all that are.
    pub set_aside: Vec<Diagnostic>,
    /// What is accepted in the resources of the change and probably not intended, or does not work at the moment.
    pub warnings: Vec<Diagnostic>,
    /// How the requests of a check are handled without and with the change, in their order.
    pub compared: Vec<ComparedRequest>,
}

/// A request, with the channel for its outcome.
pub(super) struct QueuedWrite {
    pub(super) request: WriteRequest,
    reply: oneshot::Sender<WriteOutcome>,
    was_rejected: bool,
}

impl QueuedWrite {
    pub(super) fn new(request: WriteRequest, reply: oneshot::Sender<WriteOutcome>) -> QueuedWrite {
        QueuedWrite { request, reply, was_rejected: false }
    }

    /// Whether it must not be made together with other changes: they must not get its right to break resources, or were rejected
    /// together with it.
    pub(super) fn is_alone(&self) -> bool {
        self.request.forced || self.was_rejected
    }

    /// The same, after it was rejected together with others.
    pub(super) fn alone(self) -> QueuedWrite {
        QueuedWrite { was_rejected: true, ..self }
    }

    pub(super) fn answer(self, outcome: WriteOutcome) {
        // The client may have disconnected.
        let _ = self.reply.send(outcome);
    }
}

/// Sends requests to the thread that makes changes. Clones use the same thread.
#[derive(Clone)]
pub struct ResourceWriter(Arc<dyn Fn(QueuedWrite) -> bool + Send + Sync>);

impl ResourceWriter {
    pub(super) fn new(send: impl Fn(QueuedWrite) -> bool + Send + Sync + 'static) -> ResourceWriter {
        ResourceWriter(Arc::new(send))
    }

    /// Makes a change, and waits until it is durable and published to every worker.
    pub async fn write(&self, request: WriteRequest) -> WriteOutcome {
        let (reply, outcome) = oneshot::channel();
        let gone = || {
            WriteOutcome::Failed(StoreFailure::new(
                "this process is shutting down",
                "send the request to its successor",
            ))
        };
        if !(self.0)(QueuedWrite::new(request, reply)) {
            return gone();
        }
        outcome.await.unwrap_or_else(|_| gone())
    }
}

impl fmt::Debug for ResourceWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResourceWriter")
    }
}
