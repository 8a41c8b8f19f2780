//! The state shared by the handlers of the Admin API.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use http::{HeaderValue, StatusCode};
use serde_json::{Value, json};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use weir_plugin::Registry;

use super::answer::{self, AdminResponse, Refused, refuse};
use super::audit::audit_change;
use super::dry_run;
use super::query::Query;
use super::request::AdminRequest;
use super::told::told_to;
use crate::document::AdminRole;
use crate::explain::RequestDescription;
use crate::stores::checker::{ChangeCheck, ResourceChecker};
use crate::stores::draft::DraftFiles;
use crate::stores::file_resources::FileResources;
use crate::stores::live::LiveResources;
use crate::stores::resources::Author;
use crate::stores::shared::KnownNodes;
use crate::stores::store::StoreFailure;
use crate::stores::writes::{Plan, ResourceWriter, WriteOutcome, WriteReceipt, WriteRequest};
use crate::text::diagnostic::Diagnostic;

/// Returns the revision of the snapshot that each worker serves.
pub type ServedRevisions = Box<dyn Fn() -> Vec<u64> + Send + Sync>;

pub(super) struct AdminContext {
    pub(super) live: Arc<LiveResources>,
    /// The resources with their places, if they stand in files.
    pub(super) files: Option<Arc<FileResources>>,
    /// The files themselves, if the resources stand in them.
    pub(super) draft: Option<DraftFiles>,
    pub(super) writer: ResourceWriter,
    pub(super) checker: Arc<ResourceChecker>,
    pub(super) served: ServedRevisions,
    /// The configuration of the last `PUT /apisix/admin/configs`; `None` if resources are changed individually.
    pub(super) standalone: Option<StandaloneResources>,
    /// The right to wait, of which there are [`MOST_WAITS`].
    pub(super) waits: Semaphore,
}

/// The configuration of API-driven standalone mode, which is replaced as a whole.
#[derive(Default)]
pub(super) struct StandaloneResources {
    current: RwLock<Arc<StandaloneState>>,
    /// Held while the configuration is being replaced.
    pub(super) replacing: Mutex<()>,
}

impl StandaloneResources {
    pub(super) fn current(&self) -> Arc<StandaloneState> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn replace(&self, state: Arc<StandaloneState>) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = state;
    }
}

/// The whole configuration, with the versions that its author gives it (API-driven standalone mode).
#[derive(Clone, Debug, Default)]
pub(super) struct StandaloneState {
    pub(super) digest: Option<String>,
    pub(super) last_modified: u64,
    pub(super) versions: BTreeMap<&'static str, u64>,
    /// The lists as they were sent.
    pub(super) lists: BTreeMap<&'static str, Value>,
    /// The length of all resources as texts.
    pub(super) bytes: usize,
}

/// How often workers are polled while a request waits for their revision.
const LOOK: Duration = Duration::from_millis(2);
/// How often nodes are polled, which takes a request to the store.
const LOOK_AT_NODES: Duration = Duration::from_millis(20);
const MOST_WAIT: Duration = Duration::from_secs(60);
/// The most requests that wait at a time. Each of them has a connection meanwhile, of which there are to be enough for others.
pub const MOST_WAITS: usize = 32;

/// A change as an author wants it.
pub(super) struct WantedChange {
    pub(super) plan: Box<Plan>,
    pub(super) author: Author,
    pub(super) forced: bool,
    /// The requests that a dry run compares.
    pub(super) requests: Vec<RequestDescription>,
}

impl AdminContext {
    /// The plugins that the configuration in use may use.
    pub(super) fn registry(&self) -> Registry {
        self.checker.publisher().registry()
    }

    /// Makes a change and answers with `changed`; in a dry run, answers what it would do.
    pub(super) async fn change(
        &self,
        request: &AdminRequest,
        wanted: WantedChange,
        changed: impl AsyncFnOnce(WriteReceipt) -> AdminResponse,
    ) -> AdminResponse {
        let WantedChange { plan, author, forced, requests } = wanted;
        let pattern_bytes = request.pattern_bytes();
        let dry_run = request.query.is_true("dry_run");
        let outcome = match dry_run {
            true => {
                self.checker.check(&ChangeCheck { plan, author, forced, requests, looks_outside: true, pattern_bytes })
            }
            false => {
                let of_admin = request.caller.role == AdminRole::Admin;
                self.writer.write(WriteRequest { plan, author, of_admin, forced, pattern_bytes }).await
            }
        };
        match outcome {
            WriteOutcome::Applied(receipt) if dry_run => dry_run::tried(&receipt),
            WriteOutcome::Applied(receipt) => changed(receipt).await,
            WriteOutcome::Refused(refusal) => answer::refused(&refusal),
            WriteOutcome::Invalid(diagnostics) => answer::invalid(&told_to(&request.caller, &self.live, diagnostics)),
            WriteOutcome::TooCostly(bytes) => answer::too_costly(bytes),
            WriteOutcome::Failed(failure) => answer::failed(&failure),
        }
    }

    /// The response to a change, once every worker serves it, or after the time-out of `?wait=`: the status is then 202, and the
    /// body lists the workers or nodes that are behind.
    pub(super) async fn after_wait(
        &self,
        request: &AdminRequest,
        receipt: &WriteReceipt,
        mut answer: AdminResponse,
    ) -> AdminResponse {
        audit_change(&mut answer, &receipt.record, false);
        if !receipt.set_aside.is_empty() {
            let key = |fault: &Diagnostic| fault.path.split_once(": ").map_or(&*fault.path, |(key, _)| key).to_owned();
            let keys: Vec<String> = receipt.set_aside.iter().map(key).collect();
            if let Ok(value) = HeaderValue::from_str(&keys.join(", ")) {
                answer.headers_mut().insert("x-weir-set-aside", value);
            }
        }
        let Some(wait) = request.query.get("wait").and_then(wait_of) else { return answer };
        // The change has been made, so that a request that may not wait is answered like one that has waited in vain.
        let permit = self.waits.try_acquire();
        let deadline = Instant::now() + if permit.is_ok() { wait } else { Duration::ZERO };
        loop {
            let served = (self.served)();
            let mut behind: Vec<Value> = served
                .iter()
                .enumerate()
                .filter(|(_, revision)| **revision < receipt.publication)
                .map(|(worker, revision)| json!({ "worker": worker, "revision": revision }))
                .collect();
            if behind.is_empty() {
                behind = self.nodes_behind(receipt.record.revision).await;
            }
            if behind.is_empty() {
                return answer;
            }
            if Instant::now() >= deadline {
                let body = json!({ "revision": receipt.record.revision, "not_serving": behind });
                let mut late = answer::json_of(StatusCode::ACCEPTED, &body);
                answer::at_revision(&mut late, receipt.record.revision);
                audit_change(&mut late, &receipt.record, false);
                return late;
            }
            sleep(if self.live.store().shared().is_some() { LOOK_AT_NODES } else { LOOK }).await;
        }
    }

    /// All nodes that are alive; `None` if the store is not shared.
    pub(super) async fn nodes(&self) -> Option<Result<KnownNodes, StoreFailure>> {
        self.live.store().shared()?;
        let live = Arc::clone(&self.live);
        // The query blocks, and must not delay other requests.
        let asked = spawn_blocking(move || live.store().shared().map(|shared| shared.nodes())).await;
        asked.unwrap_or_else(|_| Some(Err(StoreFailure::new("the query of the store failed", ""))))
    }

    /// The nodes that do not serve a revision yet, if the store is shared.
    async fn nodes_behind(&self, revision: u64) -> Vec<Value> {
        match self.nodes().await {
            None => Vec::new(),
            Some(Ok(nodes)) => {
                let behind = nodes.list.iter().filter(|node| node.served.revision < revision);
                behind.map(|node| json!({ "node": node.id, "revision": node.served.revision })).collect()
            }
            Some(Err(failure)) => vec![json!({ "store": failure.to_string() })],
        }
    }
}

/// Checks `?wait=`, before anything is changed.
pub(super) fn check_wait(query: &Query) -> Refused<()> {
    match query.get("wait").is_none_or(|text| wait_of(text).is_some()) {
        true => Ok(()),
        false => refuse("invalid argument wait: write a time such as 5s or 500ms"),
    }
}

/// Parses `5s`, `500ms`, or a number of seconds.
fn wait_of(text: &str) -> Option<Duration> {
    let seconds = match text.strip_suffix("ms") {
        Some(ms) => ms.parse::<f64>().ok()? / 1_000.0,
        None => text.strip_suffix('s').unwrap_or(text).parse::<f64>().ok()?,
    };
    Duration::try_from_secs_f64(seconds).ok().map(|wait| wait.min(MOST_WAIT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_bounded() {
        assert_eq!(wait_of("5s"), Some(Duration::from_secs(5)));
        assert_eq!(wait_of("500ms"), Some(Duration::from_millis(500)));
        assert_eq!(wait_of("1h"), None);
        assert_eq!(wait_of("1000"), Some(MOST_WAIT));
    }
}
