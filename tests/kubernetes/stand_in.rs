//! A stand-in for an API server.

mod answers;
mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use weir_testkit::{Origin, Reading, TempDir};

pub(crate) use store::ObjectPath;
use store::ObjectStore;

/// An API server of objects in memory. It ends with this value.
pub(crate) struct StandIn {
    address: SocketAddr,
    origin: Option<Origin>,
    shared: Arc<Shared>,
    directory: TempDir,
}

/// What the connections share.
#[derive(Default)]
pub(crate) struct Shared {
    pub objects: ObjectStore,
    /// The status that every request gets; 0 for none.
    fault: AtomicU16,
    /// How long every answer takes, in milliseconds.
    delay_ms: AtomicU64,
    /// The next event of a watch ends in its middle, with its connection.
    cuts_event: AtomicBool,
    /// The user and the audience of each token.
    tokens: Mutex<BTreeMap<String, (String, String)>>,
    /// The kind that nothing may be done with.
    forbidden: Mutex<Option<String>>,
}

impl StandIn {
    /// An API server without objects.
    pub(crate) fn start() -> StandIn {
        let shared = Arc::new(Shared::default());
        let of_origin = Arc::clone(&shared);
        let origin = Origin::scripted(Reading::Strict, move |connection| answers::answer_all(&of_origin, connection));
        let directory = TempDir::new();
        let address = origin.addr();
        directory.write(
            "kubeconfig",
            json!({
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "test",
                "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "weir", "namespace": "weir-system" } }],
                "clusters": [{ "name": "test", "cluster": { "server": format!("http://{address}") } }],
                "users": [{ "name": "weir", "user": { "token": "a-token" } }],
            })
            .to_string(),
        );
        StandIn { address, origin: Some(origin), shared, directory }
    }

    /// The file of a node that serves the cluster; `more` are further settings of `store.kubernetes`.
    pub(crate) fn node(&self, more: &str) -> String {
        format!("store: {{ kubernetes: {} }}\n", self.settings(more))
    }

    /// The settings by which the cluster is followed, and `more` of them.
    pub(crate) fn settings(&self, more: &str) -> String {
        format!("{{ kubeconfig: {}{more} }}", self.directory.join("kubeconfig").display())
    }

    pub(crate) fn objects(&self) -> &ObjectStore {
        &self.shared.objects
    }

    /// Creates or replaces objects, each with `apiVersion` and `kind`.
    pub(crate) fn apply(&self, objects: impl IntoIterator<Item = Value>) {
        objects.into_iter().for_each(|object| self.shared.objects.apply(object));
    }

    /// How many requests have been made for objects of a kind.
    pub(crate) fn requests(&self, plural: &str) -> usize {
        let targets = self.origin.as_ref().map(Origin::targets).unwrap_or_default();
        targets.iter().filter(|target| target.contains(&format!("/{plural}"))).count()
    }

    /// How many watches have been opened.
    pub(crate) fn watches(&self) -> usize {
        let targets = self.origin.as_ref().map(Origin::targets).unwrap_or_default();
        targets.iter().filter(|target| target.contains("watch=")).count()
    }

    /// Whether something has been listed, and all of it has been watched since.
    pub(crate) fn has_watches_of_all_lists(&self) -> bool {
        let targets = self.origin.as_ref().map(Origin::targets).unwrap_or_default();
        let of = |what: &str| -> BTreeSet<&str> {
            targets
                .iter()
                .filter(|target| target.contains(what))
                .filter_map(|target| target.split('?').next())
                .collect()
        };
        let (listed, watched) = (of("limit="), of("watch="));
        !listed.is_empty() && listed.is_subset(&watched)
    }

    /// Answers all requests with this status, and ends all watches. 0 ends that.
    pub(crate) fn refuse(&self, status: u16) {
        self.shared.fault.store(status, Ordering::Release);
        self.shared.objects.end_watches();
    }

    /// Ends all watches and forgets what they could go on from: each begins anew, with a list.
    pub(crate) fn begin_watches_anew(&self) {
        let metadata = json!({ "name": "latest", "namespace": "shop" });
        // No node watches it, so that no watch has the newest version.
        self.apply([json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata })]);
        self.shared.objects.forget_history();
        self.shared.objects.end_watches();
    }

    /// A token of a user for an audience.
    pub(crate) fn token(&self, user: &str, audience: &str) -> String {
        let mut tokens = self.shared.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        let token = format!("token-{}", tokens.len());
        tokens.insert(token.clone(), (user.to_owned(), audience.to_owned()));
        token
    }

    /// Takes away all rights to a kind; `None` gives them back.
    pub(crate) fn forbid(&self, plural: Option<&str>) {
        *self.shared.forbidden.lock().unwrap_or_else(PoisonError::into_inner) = plural.map(str::to_owned);
    }

    /// Lets every answer, and every event, take this long.
    pub(crate) fn slow_down(&self, delay: Duration) {
        self.shared.delay_ms.store(delay.as_millis() as u64, Ordering::Release);
    }

    /// Cuts the next event of a watch in its middle, with its connection.
    pub(crate) fn cut_next_event(&self) {
        self.shared.cuts_event.store(true, Ordering::Release);
    }

    /// Whether an event has been cut since.
    pub(crate) fn has_cut(&self) -> bool {
        !self.shared.cuts_event.load(Ordering::Acquire)
    }

    /// Ends the process, as far as others see it: nothing listens on its address.
    pub(crate) fn stop(&mut self) {
        drop(self.origin.take());
        self.shared.objects.end_watches();
    }

    /// Starts it again, with the same objects.
    pub(crate) fn resume(&mut self) {
        let shared = Arc::clone(&self.shared);
        self.origin = Some(Origin::scripted_at(self.address, Reading::Strict, move |connection| {
            answers::answer_all(&shared, connection);
        }));
    }
}

impl Shared {
    pub(crate) fn fault(&self) -> Option<u16> {
        Some(self.fault.load(Ordering::Acquire)).filter(|status| *status != 0)
    }

    fn is_forbidden(&self, plural: &str) -> bool {
        self.forbidden.lock().unwrap_or_else(PoisonError::into_inner).as_deref() == Some(plural)
    }

    /// The user of a token, if it is for one of these audiences, and that audience.
    fn user_of(&self, token: &str, audiences: &[Value]) -> Option<(String, String)> {
        let tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.get(token).filter(|(_, audience)| audiences.iter().any(|one| one == audience)).cloned()
    }

    /// Takes as long as an answer takes.
    fn wait(&self) {
        thread::sleep(Duration::from_millis(self.delay_ms.load(Ordering::Acquire)));
    }

    fn takes_cut(&self) -> bool {
        self.cuts_event.swap(false, Ordering::AcqRel)
    }
}
