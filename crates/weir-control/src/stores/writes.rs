//! Changes of resources: asked for on any thread, made on the one that follows the configuration.

use std::fmt;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::live::ResourceEdit;
use super::resources::{Author, ResourceKey, ResourceView, RevisionRecord};
use super::store::StoreFailure;
use crate::text::diagnostic::Diagnostic;

/// From the resources as they are to what is to change. It is asked again where others were faster.
pub type Plan = dyn Fn(&ResourceView) -> Result<Vec<ResourceEdit>, PlanRefusal> + Send + Sync;

/// A change that somebody asks for.
pub struct WriteRequest {
    pub plan: Box<Plan>,
    pub author: Author,
    /// Others that refer to what is deleted are set aside.
    pub forced: bool,
    /// Nothing is changed; only what would become of it is told.
    pub dry_run: bool,
}

/// Why a plan is not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanRefusal {
    /// What is to be changed is not there.
    Missing,
    /// The consumer of a credential is not there.
    NoConsumer,
    /// It is not what the author has seen; the revision it is at, if it is there.
    MovedOn(Option<u64>),
    Wrong(String),
    /// Its author is not good for this resource.
    OutOfScope(ResourceKey),
}

/// What became of a change.
#[derive(Debug)]
pub enum WriteOutcome {
    Applied(WriteReceipt),
    Refused(PlanRefusal),
    /// The configuration that would come of it cannot be served.
    Invalid(Vec<Diagnostic>),
    /// Nothing was changed.
    Failed(StoreFailure),
}

/// A change that has been made.
#[derive(Clone, Debug)]
pub struct WriteReceipt {
    pub record: RevisionRecord,
    /// The revision of the snapshot that it is in.
    pub publication: u64,
    /// Resources that are not served now, because of what was forced.
    pub set_aside: Vec<Diagnostic>,
}

/// A request, and where its outcome is waited for.
pub(super) struct QueuedWrite {
    pub(super) request: WriteRequest,
    pub(super) reply: oneshot::Sender<WriteOutcome>,
}

impl QueuedWrite {
    /// It is not made together with others.
    pub(super) fn is_alone(&self) -> bool {
        self.request.dry_run || self.request.forced
    }

    pub(super) fn answer(self, outcome: WriteOutcome) {
        // Whoever asked may have gone.
        let _ = self.reply.send(outcome);
    }
}

/// Hands requests to the thread that makes changes. Clones lead to the same.
#[derive(Clone)]
pub struct ResourceWriter(Arc<dyn Fn(QueuedWrite) -> bool + Send + Sync>);

impl ResourceWriter {
    pub(super) fn new(send: impl Fn(QueuedWrite) -> bool + Send + Sync + 'static) -> ResourceWriter {
        ResourceWriter(Arc::new(send))
    }

    /// Makes a change, and waits until it is durable and every worker has been told.
    pub async fn write(&self, request: WriteRequest) -> WriteOutcome {
        let (reply, outcome) = oneshot::channel();
        let gone = || {
            WriteOutcome::Failed(StoreFailure::new(
                "this process is shutting down",
                "send the request to its successor",
            ))
        };
        if !(self.0)(QueuedWrite { request, reply }) {
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
