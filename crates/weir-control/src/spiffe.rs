//! Keeps the node's identity up to date: its X.509-SVIDs and the trust bundles, as the SPIFFE Workload API gives them.
//!
//! A thread has one stream open to the Workload API, which sends all of them at once and again after each change. What it gave last stays
//! in use while it does not answer. Keys are in memory alone.

mod answer;
mod report;
mod session;

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::oneshot;

use crate::document::{WorkloadEndpoint, WorkloadIdentity, X509Svid};

pub use report::{SpiffeReport, SvidReport, WorkloadHandle};

/// How long a load waits for the first answer of a Workload API that was not asked before. A later answer is used when it arrives.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is called when the Workload API gives something new.
type NewsListener = Box<dyn Fn() + Send>;

/// The Workload API of the document that is served, and of a candidate that names another one. Dropping it ends the threads.
#[derive(Default)]
pub(crate) struct FollowedWorkload {
    served: Option<WorkloadFollower>,
    candidate: CandidateEndpoint,
    listener: Arc<Mutex<Option<NewsListener>>>,
    handle: WorkloadHandle,
}

#[derive(Default)]
enum CandidateEndpoint {
    /// It has the same as the document that is served.
    #[default]
    Same,
    Other(Option<WorkloadFollower>),
}

impl FollowedWorkload {
    /// Registers `listener`, which is called when there is something new.
    pub(crate) fn listen(&self, listener: impl Fn() + Send + 'static) {
        *self.listener.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(listener));
    }

    /// A handle to the state, for those who show it.
    pub(crate) fn handle(&self) -> WorkloadHandle {
        self.handle.clone()
    }

    /// Follows the Workload API of a candidate, and waits for its first answer. That of the document that is served is followed until the
    /// candidate is accepted.
    ///
    /// # Errors
    /// The candidate would replace an identity by none: another Workload API gives none. Or there is no thread.
    pub(crate) fn follow(&mut self, endpoint: Option<&WorkloadEndpoint>) -> Result<(), String> {
        let is_same = self.served.as_ref().map(|served| &served.endpoint) == endpoint;
        let is_candidate = matches!(&self.candidate, CandidateEndpoint::Other(other)
            if other.as_ref().map(|other| &other.endpoint) == endpoint);
        if is_same {
            self.candidate = CandidateEndpoint::Same;
        } else if !is_candidate {
            let follower = endpoint.map(|endpoint| WorkloadFollower::start(endpoint, &self.listener)).transpose();
            let follower = follower.map_err(|error| format!("the SPIFFE Workload API cannot be followed: {error}"))?;
            self.candidate = CandidateEndpoint::Other(follower);
        }
        if let Some(follower) = self.current() {
            follower.wait();
        }
        if self.served.as_ref().is_some_and(WorkloadFollower::has_identity)
            && let Some(problem) = self.absence()
        {
            return Err(format!("{problem}; the node keeps the identity that it has"));
        }
        // A node that starts shows what it waits for.
        if self.served.is_none() {
            self.handle.show(self.current().map(|follower| &follower.shared));
        }
        Ok(())
    }

    /// The candidate is served from now on.
    pub(crate) fn accept(&mut self) {
        if let CandidateEndpoint::Other(follower) = std::mem::take(&mut self.candidate) {
            self.served = follower;
            self.handle.show(self.served.as_ref().map(|follower| &follower.shared));
        }
    }

    /// The candidate was not accepted, if there is one.
    pub(crate) fn return_to_served(&mut self) {
        if let CandidateEndpoint::Other(_) = std::mem::take(&mut self.candidate) {
            self.handle.show(self.served.as_ref().map(|follower| &follower.shared));
        }
    }

    fn current(&self) -> Option<&WorkloadFollower> {
        match &self.candidate {
            CandidateEndpoint::Same => self.served.as_ref(),
            CandidateEndpoint::Other(other) => other.as_ref(),
        }
    }

    /// What the Workload API has given last; `None` if it has given nothing yet, or there is none.
    pub(crate) fn identity(&self) -> Option<Arc<WorkloadIdentity>> {
        self.current()?.shared.state().identity.clone()
    }

    /// Why there is no identity.
    pub(crate) fn absence(&self) -> Option<String> {
        self.current()?.shared.absence()
    }
}

impl fmt::Debug for FollowedWorkload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FollowedWorkload").field(&self.served.as_ref().map(|served| &served.endpoint)).finish()
    }
}

/// The thread that follows a Workload API.
struct WorkloadFollower {
    endpoint: WorkloadEndpoint,
    started: Instant,
    shared: Arc<SharedWorkload>,
    /// Dropping it ends the thread.
    running: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What is known of a Workload API.
pub(crate) struct SharedWorkload {
    endpoint: WorkloadEndpoint,
    state: Mutex<WorkloadState>,
    learnt: Condvar,
    listener: Arc<Mutex<Option<NewsListener>>>,
}

#[derive(Default)]
struct WorkloadState {
    identity: Option<Arc<WorkloadIdentity>>,
    /// Why it does not answer at present.
    failure: Option<String>,
    /// It says so definitely, and not only for the moment.
    is_refused: bool,
    /// Answers that had something new.
    updates: u64,
    received_at: Option<SystemTime>,
}

/// What a failure means.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FailureKind {
    Passing,
    /// Another try is of no use before something is repaired.
    Lasting,
    /// As above, and what was given before is not to be used any more.
    Denied,
}

impl WorkloadFollower {
    fn start(
        endpoint: &WorkloadEndpoint,
        listener: &Arc<Mutex<Option<NewsListener>>>,
    ) -> std::io::Result<WorkloadFollower> {
        let shared = Arc::new(SharedWorkload {
            endpoint: endpoint.clone(),
            state: Mutex::default(),
            learnt: Condvar::new(),
            listener: Arc::clone(listener),
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (running, ended) = oneshot::channel::<()>();
        let following = Arc::clone(&shared);
        let work = move || {
            runtime.block_on(async {
                tokio::select! {
                    () = session::follow(&following) => {}
                    _ = ended => {}
                }
            });
        };
        let thread = thread::Builder::new().name("spiffe".to_owned()).spawn(work)?;
        let (endpoint, started) = (endpoint.clone(), Instant::now());
        Ok(WorkloadFollower { endpoint, started, shared, running: Some(running), thread: Some(thread) })
    }

    fn has_identity(&self) -> bool {
        self.shared.state().has_identity()
    }

    /// Waits for the first answer or a definite refusal, at most for [`PATIENCE`] since the thread was started.
    fn wait(&self) {
        let deadline = self.started + PATIENCE;
        let mut state = self.shared.state();
        while state.identity.is_none() && !state.is_refused {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { return };
            state = self.shared.learnt.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Logs what an answer has that was not known.
fn tell_news(known: Option<&WorkloadIdentity>, identity: &WorkloadIdentity) {
    let is_known = |svid: &&X509Svid| {
        known.is_some_and(|known| known.svids.iter().any(|known| known.fingerprint == svid.fingerprint))
    };
    let (old, new): (Vec<&X509Svid>, _) = identity.svids.iter().partition(is_known);
    for svid in &new {
        tracing::info!(spiffe_id = %svid.id, until = svid.until, "the node has a new X.509-SVID");
    }
    if !old.is_empty() && new.is_empty() {
        tracing::info!("the SPIFFE Workload API has given other trust bundles");
    }
    for complaint in &identity.complaints {
        if known.is_none_or(|known| !known.complaints.contains(complaint)) {
            tracing::warn!("the SPIFFE Workload API: {complaint}");
        }
    }
}

impl Drop for WorkloadFollower {
    fn drop(&mut self) {
        drop(self.running.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been logged already.
            let _ = thread.join();
        }
    }
}

impl WorkloadState {
    fn has_identity(&self) -> bool {
        self.identity.as_ref().is_some_and(|identity| !identity.svids.is_empty())
    }
}

impl SharedWorkload {
    fn state(&self) -> MutexGuard<'_, WorkloadState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why there is no identity.
    fn absence(&self) -> Option<String> {
        let state = self.state();
        let why = state.failure.as_deref().unwrap_or("it has not answered yet");
        (!state.has_identity())
            .then(|| format!("the SPIFFE Workload API at {} gives the node no identity: {why}", self.endpoint))
    }

    /// Takes an answer over.
    fn learn(&self, identity: WorkloadIdentity) {
        let mut state = self.state();
        if state.failure.take().is_some() && state.identity.is_some() {
            tracing::warn!(endpoint = %self.endpoint, "the SPIFFE Workload API answers again");
        }
        state.is_refused = false;
        state.received_at = Some(SystemTime::now());
        let is_new = state.identity.as_ref().is_none_or(|known| known.digest != identity.digest);
        if is_new {
            tell_news(state.identity.as_deref(), &identity);
            state.updates += 1;
            state.identity = Some(Arc::new(identity));
        }
        drop(state);
        self.tell(is_new);
    }

    /// Notes why there is no answer.
    fn fail(&self, problem: String, kind: FailureKind) {
        let mut state = self.state();
        let (had_one, ends_identity) = (state.has_identity(), kind == FailureKind::Denied);
        let is_news = state.failure.as_ref() != Some(&problem);
        match (ends_identity && had_one, is_news) {
            (true, _) => tracing::error!(
                endpoint = %self.endpoint,
                "the SPIFFE Workload API has taken the identity of the node back, which is not used any more: {problem}"
            ),
            (false, true) if had_one => tracing::warn!(
                endpoint = %self.endpoint,
                "the SPIFFE Workload API does not answer, what it gave last stays in use: {problem}"
            ),
            (false, true) => tracing::error!(
                endpoint = %self.endpoint, "the SPIFFE Workload API gives the node no identity: {problem}"
            ),
            (false, false) => {}
        }
        state.failure = Some(problem);
        state.is_refused = kind != FailureKind::Passing;
        if ends_identity && had_one {
            state.identity = Some(Arc::default());
        }
        drop(state);
        self.tell(ends_identity && had_one);
    }

    fn tell(&self, is_new: bool) {
        self.learnt.notify_all();
        if is_new && let Some(listener) = &*self.listener.lock().unwrap_or_else(PoisonError::into_inner) {
            listener();
        }
    }
}
