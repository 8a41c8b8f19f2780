//! The threads on which requests are answered: for each role one for changes and one for everything that changes nothing. So no
//! request waits for one of another role, and no change for a check.

use std::collections::HashMap;
use std::io;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use http::StatusCode;
use http::header::{HeaderValue, RETRY_AFTER};
use serde_json::json;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use super::answer::{AdminResponse, Refused, json_of};
use super::keys::Caller;
use crate::document::AdminRole;

/// The most checks and reads of a role that wait or are being answered.
const MOST_CHECKS: usize = 512;
/// The most of them that one key or token has.
const MOST_CHECKS_OF_CALLER: usize = 128;
/// The most changes of a role that wait or are being made.
const MOST_CHANGES: usize = 1_024;
/// A request that could not be started for this long is refused.
const MOST_WAIT: Duration = Duration::from_secs(30);
/// That of threads of checks.
const NICENESS: i32 = 10;

/// The lanes of all roles.
pub(super) struct RequestLanes {
    checks: [RequestLane; 3],
    changes: [RequestLane; 2],
}

/// A thread with an async runtime.
pub(super) struct RequestLane {
    runtime: Handle,
    places: Arc<Mutex<LanePlaces>>,
    limits: LaneLimits,
    /// Dropping it ends the thread, after what it does at the moment.
    _stop: oneshot::Sender<()>,
}

#[derive(Clone, Copy)]
struct LaneLimits {
    /// How much other threads are preferred (`nice`).
    niceness: i32,
    most: usize,
    most_of_caller: usize,
    /// Whether requests are answered whose clients have left. Changes are made: who sends one may not wait for the answer.
    answers_nobody: bool,
}

#[derive(Default)]
struct LanePlaces {
    taken: usize,
    of_callers: HashMap<Box<str>, usize>,
}

/// A request's place in a lane.
pub(super) struct LanePlace {
    places: Arc<Mutex<LanePlaces>>,
    caller: Box<str>,
}

/// Whether the client of a request still waits for the answer.
#[derive(Clone, Debug, Default)]
pub struct ClientPresence(Arc<AtomicBool>);

/// Kept as long as the client waits. Dropping it tells that the client has left.
#[derive(Debug)]
pub struct PresentClient(ClientPresence);

impl PresentClient {
    pub fn new() -> (PresentClient, ClientPresence) {
        let presence = ClientPresence::default();
        (PresentClient(presence.clone()), presence)
    }
}

impl Drop for PresentClient {
    fn drop(&mut self) {
        self.0.0.store(true, Relaxed);
    }
}

impl ClientPresence {
    pub(super) fn has_left(&self) -> bool {
        self.0.load(Relaxed)
    }

    /// Refuses to go on for a client that has left.
    pub(super) fn check(&self) -> Refused<()> {
        if self.has_left() { Err(Box::new(left())) } else { Ok(()) }
    }
}

/// The answer to a client that has left. It is written to the audit log only.
fn left() -> AdminResponse {
    let status = StatusCode::from_u16(499).expect("it is a status code");
    json_of(status, &json!({ "error_msg": "the client has left before the request was answered" }))
}

impl RequestLanes {
    /// Starts the threads.
    ///
    /// # Errors
    /// If there is no thread to be had.
    pub(super) fn start() -> io::Result<RequestLanes> {
        let of_checks = LaneLimits {
            niceness: NICENESS,
            most: MOST_CHECKS,
            most_of_caller: MOST_CHECKS_OF_CALLER,
            answers_nobody: false,
        };
        let of_changes =
            LaneLimits { niceness: 0, most: MOST_CHANGES, most_of_caller: MOST_CHANGES, answers_nobody: true };
        let checks = |name| RequestLane::start(name, of_checks);
        let changes = |name| RequestLane::start(name, of_changes);
        Ok(RequestLanes {
            checks: [checks("checks-viewer")?, checks("checks-editor")?, checks("checks-admin")?],
            changes: [changes("changes-editor")?, changes("changes-admin")?],
        })
    }

    pub(super) fn of(&self, role: AdminRole, changes: bool) -> &RequestLane {
        match (role, changes) {
            (AdminRole::Viewer, _) => &self.checks[0],
            (AdminRole::Editor, false) => &self.checks[1],
            (AdminRole::Admin, false) => &self.checks[2],
            (AdminRole::Editor, true) => &self.changes[0],
            (AdminRole::Admin, true) => &self.changes[1],
        }
    }
}

impl RequestLane {
    fn start(name: &str, limits: LaneLimits) -> io::Result<RequestLane> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            if limits.niceness > 0 {
                // Of this thread alone. Without it, checks only take more time from others.
                let _ = rustix::process::nice(limits.niceness);
            }
            // An error means that the lane was dropped, which ends it as well.
            drop(runtime.block_on(stopped));
        })?;
        Ok(RequestLane { runtime: handle, places: Arc::default(), limits, _stop: stop })
    }

    /// Answers a request on the lane's thread.
    pub(super) async fn answer(
        &self,
        place: LanePlace,
        client: ClientPresence,
        answering: impl Future<Output = AdminResponse> + Send + 'static,
    ) -> AdminResponse {
        let (since, answers_nobody) = (Instant::now(), self.limits.answers_nobody);
        let task = self.runtime.spawn(async move {
            let _place = place;
            match client.check() {
                Err(left) if !answers_nobody => *left,
                _ if since.elapsed() > MOST_WAIT => busy(&format!("{} s", MOST_WAIT.as_secs())),
                _ => answering.await,
            }
        });
        match task.await {
            Ok(answer) => answer,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                Err(_) => {
                    let problem = json!({ "error_msg": "this process is shutting down" });
                    json_of(StatusCode::SERVICE_UNAVAILABLE, &problem)
                }
            },
        }
    }

    /// A place for a request of this caller.
    pub(super) fn place(&self, caller: &Caller) -> Refused<LanePlace> {
        let caller = &*caller.name;
        let mut places = lock(&self.places);
        let of_caller = places.of_callers.get(caller).copied().unwrap_or_default();
        if of_caller >= self.limits.most_of_caller {
            let problem = format!(
                "{of_caller} requests of `{caller}` wait for an answer, and more are not accepted; wait for these"
            );
            return Err(Box::new(later(StatusCode::TOO_MANY_REQUESTS, &problem)));
        }
        if places.taken >= self.limits.most {
            return Err(Box::new(busy(&format!("{} others", places.taken))));
        }
        places.taken += 1;
        *places.of_callers.entry(caller.into()).or_default() += 1;
        Ok(LanePlace { places: Arc::clone(&self.places), caller: caller.into() })
    }
}

fn busy(waited: &str) -> AdminResponse {
    let problem =
        format!("too many requests of this role are being answered: this one would wait for {waited} or more");
    later(StatusCode::SERVICE_UNAVAILABLE, &problem)
}

fn later(status: StatusCode, problem: &str) -> AdminResponse {
    let mut answer = json_of(status, &json!({ "error_msg": problem }));
    answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    answer
}

fn lock(places: &Mutex<LanePlaces>) -> MutexGuard<'_, LanePlaces> {
    places.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for LanePlace {
    fn drop(&mut self) {
        let mut places = lock(&self.places);
        places.taken -= 1;
        if let Some(count) = places.of_callers.get_mut(&self.caller) {
            *count -= 1;
            if *count == 0 {
                places.of_callers.remove(&self.caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(name: &str) -> Caller {
        Caller { name: name.into(), role: AdminRole::Viewer, scopes: Arc::default() }
    }

    #[tokio::test]
    async fn a_caller_that_floods_a_lane_leaves_places_to_others() {
        let lanes = RequestLanes::start().expect("threads");
        let lane = lanes.of(AdminRole::Viewer, false);
        let kept: Vec<LanePlace> =
            (0..MOST_CHECKS_OF_CALLER).map(|_| lane.place(&caller("a")).expect("a place")).collect();
        let ok = async || json_of(StatusCode::OK, &json!({}));
        let status = async |name| match lane.place(&caller(name)) {
            Ok(place) => lane.answer(place, ClientPresence::default(), ok()).await.status(),
            Err(refusal) => refusal.status(),
        };
        assert_eq!(status("a").await, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(status("b").await, StatusCode::OK);
        drop(kept);
        assert_eq!(status("a").await, StatusCode::OK);
        let (client, presence) = PresentClient::new();
        drop(client);
        let place = lane.place(&caller("a")).expect("a place");
        assert_eq!(lane.answer(place, presence.clone(), ok()).await.status().as_u16(), 499, "its client has left");
        let changes = lanes.of(AdminRole::Admin, true);
        let place = changes.place(&caller("a")).expect("a place");
        assert_eq!(changes.answer(place, presence, ok()).await.status(), StatusCode::OK, "a change is made");
        assert_eq!(lock(&lane.places).taken, 0);
    }
}
