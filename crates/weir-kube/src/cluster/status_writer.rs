//! Writes the statuses that differ from those in the cluster.

mod difference;
mod events;
mod owned;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::election::Leadership;
use super::seen::SeenObject;
use super::{Cluster, ClusterError};
use crate::objects::ObjectRef;
use crate::objects::meta::JsonText;
use crate::translate::Translator;
use crate::translation::{ObjectEvent, ObjectStatus};
use crate::world::WorldChanges;
use difference::{difference, is_same};
use events::EventWriter;
use owned::{KnownOwned, OwnedWriter};

pub(super) use events::{KnownEvent, bounded};

/// The shortest time between two writes of the same object.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest time until a write is tried again that the API server has refused; it doubles with each refusal. An object may be so large
/// that no status fits.
const MOST_PAUSE: Duration = Duration::from_secs(32);
/// How often what could not be written is tried again.
const RETRY: Duration = Duration::from_millis(500);
/// The most requests at once.
const TOGETHER: usize = 16;

/// The most statuses that are prepared for writing at a time.
const MOST_DUE: usize = 256;

/// A status as it should be, with the state of the object that it was made from.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct WantedStatus {
    pub(super) status: JsonText,
    pub(super) object: SeenObject,
}

/// What is to be written: of statuses, those that objects do not have.
#[derive(Clone, Debug, Default)]
struct Wanted {
    statuses: BTreeMap<ObjectRef, WantedStatus>,
    events: Vec<KnownEvent>,
    owned: Vec<KnownOwned>,
}

/// What a translation changes about what is to be written.
#[derive(Clone, Debug, Default)]
pub(super) struct WantedChanges {
    /// `None`: the object has the status that it should have, or is gone.
    statuses: BTreeMap<ObjectRef, Option<WantedStatus>>,
    pub(super) events: Vec<KnownEvent>,
    owned: Vec<KnownOwned>,
    /// The objects whose meaning may have changed with it.
    pub(super) changed: BTreeSet<ObjectRef>,
}

impl WantedChanges {
    /// Of objects that have changed nothing is known yet.
    pub(super) fn of(changes: &WorldChanges) -> WantedChanges {
        let objects = changes.objects.iter().chain(&changes.statuses);
        WantedChanges { statuses: objects.map(|object| (object.clone(), None)).collect(), ..WantedChanges::default() }
    }

    pub(super) fn status(&mut self, status: ObjectStatus, objects: &BTreeMap<ObjectRef, SeenObject>) {
        let ObjectStatus { object, status, .. } = status;
        let differs = |seen: &&SeenObject| !is_same(&seen.status.value(), &status);
        let seen = objects.get(&object).filter(differs);
        let wanted = seen.map(|seen| WantedStatus { status: JsonText::from(&status), object: seen.clone() });
        self.statuses.insert(object, wanted);
    }

    pub(super) fn no_status(&mut self, object: &ObjectRef) {
        self.statuses.insert(object.clone(), None);
    }

    /// Everything that a translation wants to be written beside statuses.
    pub(super) fn set_others(&mut self, translator: &Translator, objects: &BTreeMap<ObjectRef, SeenObject>) {
        let known = |event: &ObjectEvent| Some((event.clone(), objects.get(&event.object)?.uid.to_string()));
        self.events = bounded(translator.events().filter_map(known));
        let owned = translator.owned().iter().cloned();
        self.owned = owned.filter_map(|owned| KnownOwned::new(owned, objects)).collect();
    }

    /// Whether the status of an object is to be written.
    pub(super) fn has(&self, object: &ObjectRef) -> bool {
        self.statuses.get(object).is_some_and(Option::is_some)
    }

    /// Adds the changes of the next translation.
    pub(super) fn add(&mut self, next: WantedChanges) {
        self.statuses.extend(next.statuses);
        self.changed.extend(next.changed);
        (self.events, self.owned) = (next.events, next.owned);
    }
}

/// Where the controller leaves what is to be written.
#[derive(Clone, Default)]
pub(super) struct StatusBoard(Arc<BoardInner>);

#[derive(Default)]
struct BoardInner {
    wanted: Mutex<Wanted>,
    changed: Notify,
}

impl StatusBoard {
    pub(super) fn take(&self, changes: WantedChanges) {
        let mut wanted = self.wanted();
        for (object, status) in changes.statuses {
            match status {
                Some(status) => drop(wanted.statuses.insert(object, status)),
                None => drop(wanted.statuses.remove(&object)),
            }
        }
        (wanted.events, wanted.owned) = (changes.events, changes.owned);
        drop(wanted);
        self.0.changed.notify_one();
    }

    /// Whether the status that an object has now is the one that was to be written. Then there is nothing to write for it.
    pub(super) fn settle(&self, object: &ObjectRef, status: &JsonText) -> bool {
        let mut wanted = self.wanted();
        let is_done = |wanted: &WantedStatus| is_same(&status.value(), &wanted.status.value());
        let is_done = wanted.statuses.get(object).is_some_and(is_done);
        if is_done {
            wanted.statuses.remove(object);
        }
        is_done
    }

    fn wanted(&self) -> MutexGuard<'_, Wanted> {
        self.0.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes what is on the board, while this process is the leader.
pub(super) struct StatusWriter {
    cluster: Arc<dyn Cluster>,
    board: StatusBoard,
    leadership: Leadership,
    written: BTreeMap<ObjectRef, LastWrite>,
    /// The versions of objects from which a status was written, or could not be: a newer one is on its way.
    used: BTreeMap<ObjectRef, Box<str>>,
    events: EventWriter,
    owned: OwnedWriter,
}

/// When a status was written last, or could not be, and the pause until the next time.
#[derive(Clone, Copy)]
struct LastWrite {
    at: Instant,
    pause: Duration,
}

impl LastWrite {
    fn is_over(&self) -> bool {
        self.at.elapsed() >= self.pause
    }
}

impl StatusWriter {
    pub(super) fn new(cluster: Arc<dyn Cluster>, board: StatusBoard, leadership: Leadership) -> StatusWriter {
        let (written, used, events, owned) = Default::default();
        StatusWriter { cluster, board, leadership, written, used, events, owned }
    }

    pub(super) async fn run(mut self) {
        let mut has_more = false;
        loop {
            if !has_more {
                let _ = timeout(RETRY, self.board.0.changed.notified()).await;
            }
            has_more = false;
            if self.leadership.is_held() {
                let has_more_statuses = self.write_statuses().await;
                let owned = self.board.wanted().owned.clone();
                self.owned.write(&*self.cluster, owned).await;
                let events = self.board.wanted().events.clone();
                has_more = self.events.write(&*self.cluster, events).await || has_more_statuses;
            }
        }
    }

    /// Writes some of the statuses that are due. Returns whether there may be more.
    async fn write_statuses(&mut self) -> bool {
        let due = self.due();
        let has_more = due.len() == MOST_DUE;
        let cluster = &self.cluster;
        let writes = due.into_iter().map(|(object, seen, fields)| async move {
            let written = cluster.write_status(&object, seen.version, &seen.resource_version, fields).await;
            (object, seen.resource_version, written)
        });
        let mut written = futures_util::stream::iter(writes).buffer_unordered(TOGETHER);
        while let Some((object, used, outcome)) = written.next().await {
            let last = self.written.get(&object).map_or(PAUSE, |last| last.pause);
            let is_refused =
                |error: &ClusterError| error.is_of_request() && !error.is_conflict() && !error.is_missing();
            let pause = if outcome.as_ref().is_err_and(is_refused) { (2 * last).min(MOST_PAUSE) } else { PAUSE };
            self.written.insert(object.clone(), LastWrite { at: Instant::now(), pause });
            match outcome {
                Ok(_) => drop(self.used.insert(object, used)),
                // The newer object is translated when the watch has it.
                Err(error) if error.is_conflict() || error.is_missing() => drop(self.used.insert(object, used)),
                Err(error) => report(&object, &error),
            }
        }
        has_more
    }

    /// Statuses to write now, with the fields that differ.
    fn due(&mut self) -> Vec<(ObjectRef, SeenObject, Value)> {
        let wanted = self.board.wanted();
        let of_known = |object: &ObjectRef| wanted.statuses.contains_key(object);
        self.written.retain(|object, last| of_known(object) || !last.is_over());
        self.used.retain(|object, _| of_known(object));
        let now = now();
        let due = wanted.statuses.iter().filter_map(|(object, wanted)| {
            let is_used = self.used.get(object) == Some(&wanted.object.resource_version);
            let is_fresh = self.written.get(object).is_some_and(|last| !last.is_over());
            if is_used || is_fresh {
                return None;
            }
            let fields = difference(&wanted.object.status.value(), &wanted.status.value(), &now)?;
            Some((object.clone(), wanted.object.clone(), fields))
        });
        due.take(MOST_DUE).collect()
    }
}

fn report(object: &ObjectRef, error: &ClusterError) {
    tracing::warn!(%object, %error, "what belongs to a Kubernetes object cannot be written, it is tried again");
}

/// RFC 3339 in whole seconds, as the API has times.
fn now() -> String {
    let seconds = jiff::Timestamp::now().as_second();
    jiff::Timestamp::from_second(seconds).unwrap_or_default().to_string()
}
