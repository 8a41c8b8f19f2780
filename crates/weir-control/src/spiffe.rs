//! Keeps the node's identity up to date: its X.509-SVIDs and the trust bundles, as the SPIFFE Workload API gives them.
//!
//! A thread has one stream open to the Workload API, which sends all of them at once and again after each change. What it gave last stays
//! in use while it does not answer. Keys are in memory alone.

mod answer;
mod report;
mod session;

use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::oneshot;

use crate::document::{WorkloadEndpoint, WorkloadIdentity};

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
    pub(crate) fn follow(&mut self, endpoint: Option<&WorkloadEndpoint>) -> io::Result<()> {
        let is_same = self.served.as_ref().map(|served| &served.endpoint) == endpoint;
        let is_candidate = matches!(&self.candidate, CandidateEndpoint::Other(other)
            if other.as_ref().map(|other| &other.endpoint) == endpoint);
        if is_same {
            self.candidate = CandidateEndpoint::Same;
        } else if !is_candidate {
            let follower = endpoint.map(|endpoint| WorkloadFollower::start(endpoint, &self.listener)).transpose()?;
            self.candidate = CandidateEndpoint::Other(follower);
        }
        if let Some(follower) = self.current() {
            follower.wait();
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
        self.candidate = CandidateEndpoint::Same;
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
        let follower = self.current()?;
        let state = follower.shared.state();
        let has_one = state.identity.as_ref().is_some_and(|identity| !identity.svids.is_empty());
        let why = || state.failure.clone().unwrap_or_else(|| "it has not answered yet".to_owned());
        (!has_one)
            .then(|| format!("the SPIFFE Workload API at {} gives the node no identity: {}", follower.endpoint, why()))
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
    /// Answers that had something new.
    updates: u64,
    received_at: Option<SystemTime>,
}

impl WorkloadFollower {
    fn start(endpoint: &WorkloadEndpoint, listener: &Arc<Mutex<Option<NewsListener>>>) -> io::Result<WorkloadFollower> {
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

    /// Waits for the first answer, at most for [`PATIENCE`] since the thread was started.
    fn wait(&self) {
        let deadline = self.started + PATIENCE;
        let mut state = self.shared.state();
        while state.identity.is_none() {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { return };
            state = self.shared.learnt.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
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

impl SharedWorkload {
    fn state(&self) -> MutexGuard<'_, WorkloadState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an answer over.
    fn learn(&self, identity: WorkloadIdentity) {
        let mut state = self.state();
        if state.failure.take().is_some() && state.identity.is_some() {
            tracing::warn!(endpoint = %self.endpoint, "the SPIFFE Workload API answers again");
        }
        state.received_at = Some(SystemTime::now());
        let is_new = state.identity.as_ref().is_none_or(|known| known.digest != identity.digest);
        if is_new {
            for svid in &identity.svids {
                tracing::info!(spiffe_id = %svid.id, until = svid.until, "the node has a new X.509-SVID");
            }
            state.updates += 1;
            state.identity = Some(Arc::new(identity));
        }
        drop(state);
        self.tell(is_new);
    }

    /// Notes why there is no answer. With `ends_identity`, what was given before is not used any more.
    fn fail(&self, problem: String, ends_identity: bool) {
        let mut state = self.state();
        let had_one = state.identity.as_ref().is_some_and(|identity| !identity.svids.is_empty());
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
