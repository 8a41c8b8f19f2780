//! Follows a cluster, and hands what it means to the node.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{Receiver, Sender, UnboundedReceiver, UnboundedSender, channel, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::sleep_until;

use super::election::{self, ElectionSettings, Leadership};
use super::follower::{ScopeFollower, Told};
use super::references::references;
use super::seen::{SeenChange, SeenCluster};
use super::status_writer::{StatusBoard, StatusWriter, Wanted, bounded};
use super::{Cluster, WatchScope};
use crate::objects::ObjectRef;
use crate::translate::translate;
use crate::translation::{DerivedResource, EventKind, KubeOptions, ObjectEvent};

/// Changes that arrive within this time are translated together.
const BATCH: Duration = Duration::from_millis(20);
/// How long a translation waits for objects that are watched for the first time, so that it is not made without them.
const WAIT_FOR_LISTS: Duration = Duration::from_secs(1);
/// The most messages of followers that wait; then they wait themselves.
const MOST_TOLD: usize = 1_024;
/// The most translations whose statuses wait until they are served. Each may have a status for every object.
const MOST_UNSERVED: usize = 4;

/// How a cluster is followed.
#[derive(Clone, Debug)]
pub struct ControllerSettings {
    /// The namespaces that are watched; empty stands for all.
    pub namespaces: Vec<String>,
    pub options: KubeOptions,
    /// Without it no status is written.
    pub election: Option<ElectionSettings>,
}

/// Where the resources go.
pub trait ResourceSink: Send + 'static {
    /// Takes all resources of a translation. Returns the revision that has them: the last one if nothing has changed.
    fn publish(&mut self, resources: &[DerivedResource]) -> u64;

    /// Called when the connection gets a problem, another one, or (`None`) is without.
    fn tell(&mut self, problem: Option<&str>);
}

/// What the node reports back.
#[derive(Clone, Debug, Default)]
pub struct ControllerState {
    /// The revision that is served.
    pub revision: u64,
    /// The resources of it that are not served as they are, by `LIST/ID`, with the problem.
    pub set_aside: BTreeMap<String, String>,
}

/// A controller that runs. It ends when this value is dropped and its runtime ends.
#[derive(Clone)]
pub struct Controller(UnboundedSender<ControllerState>);

impl Controller {
    /// Starts the controller on the current runtime.
    pub fn start(cluster: Arc<dyn Cluster>, settings: ControllerSettings, sink: Box<dyn ResourceSink>) -> Controller {
        let (served, from_node) = unbounded_channel();
        let (told, inbox) = channel(MOST_TOLD);
        let following = Following {
            cluster,
            settings,
            sink,
            told,
            seen: SeenCluster::default(),
            by_name: BTreeMap::new(),
            followers: JoinSet::new(),
            board: StatusBoard::default(),
            unserved: VecDeque::new(),
            origins: BTreeMap::new(),
            state: ControllerState::default(),
            problem: None,
            has_started: false,
        };
        tokio::spawn(following.run(inbox, from_node));
        Controller(served)
    }

    /// Reports what the node serves now.
    pub fn served(&self, state: ControllerState) {
        // It fails if the controller has ended, and with it what the report is for.
        let _ = self.0.send(state);
    }
}

struct Following {
    cluster: Arc<dyn Cluster>,
    settings: ControllerSettings,
    sink: Box<dyn ResourceSink>,
    told: Sender<(WatchScope, Told)>,
    seen: SeenCluster,
    /// The followers of single objects.
    by_name: BTreeMap<WatchScope, tokio::task::AbortHandle>,
    followers: JoinSet<()>,
    board: StatusBoard,
    /// Translations that are not served yet, with their revisions.
    unserved: VecDeque<(u64, Wanted)>,
    /// The objects that the resources of the last translation come from, by `LIST/ID`.
    origins: BTreeMap<String, ObjectRef>,
    state: ControllerState,
    problem: Option<String>,
    /// Whether everything has been listed once: nothing is published before.
    has_started: bool,
}

impl Following {
    async fn run(mut self, mut inbox: Receiver<(WatchScope, Told)>, mut from_node: UnboundedReceiver<ControllerState>) {
        if let Some(election) = self.settings.election.clone() {
            let leadership = Leadership::default();
            let writer = StatusWriter::new(Arc::clone(&self.cluster), self.board.clone(), leadership.clone());
            self.followers.spawn(writer.run());
            self.followers.spawn(election::elect(Arc::clone(&self.cluster), election, leadership));
        }
        for scope in WatchScope::permanent(&self.settings.namespaces) {
            self.follow(scope);
        }
        // When the oldest change came that has not been translated.
        let mut changed: Option<Instant> = None;
        loop {
            let patience = if self.seen.is_complete() { BATCH } else { WAIT_FOR_LISTS };
            let due = changed.filter(|_| self.has_started || self.seen.is_complete()).map(|at| at + patience);
            tokio::select! {
                biased;
                state = from_node.recv() => match state {
                    Some(state) => self.take_served(state),
                    // The node ends.
                    None => return,
                },
                () = at(due) => {
                    changed = None;
                    self.translate();
                }
                Some((scope, told)) = inbox.recv() => {
                    if self.take(&scope, told) {
                        changed.get_or_insert_with(Instant::now);
                    }
                }
            }
        }
    }

    fn follow(&mut self, scope: WatchScope) {
        if self.seen.expect(&scope) {
            let follower = ScopeFollower::new(Arc::clone(&self.cluster), scope.clone(), self.told.clone());
            let handle = self.followers.spawn(follower.run());
            if scope.name.is_some() {
                self.by_name.insert(scope, handle);
            }
        }
    }

    /// Takes what a follower tells. Returns whether there is something to translate.
    fn take(&mut self, scope: &WatchScope, told: Told) -> bool {
        let is_state = matches!(told, Told::Problem(_));
        let has_changed = match self.seen.take(scope, told) {
            SeenChange::Nothing => false,
            SeenChange::Meaning => true,
            // Mostly the write of this process, which the watch repeats.
            SeenChange::Status(object) => {
                !self.seen.objects.get(&object).is_some_and(|seen| self.board.settle(&object, &seen.status))
            }
        };
        if is_state && self.seen.problem() != self.problem.as_deref() {
            self.problem = self.seen.problem().map(str::to_owned);
            self.sink.tell(self.problem.as_deref());
        }
        if has_changed && scope.name.is_none() && (self.has_started || self.seen.is_complete()) {
            self.follow_references();
        }
        has_changed
    }

    /// Follows the objects that are referred to now, and no others by name.
    fn follow_references(&mut self) {
        let wanted = references(&self.seen.world, &self.settings.namespaces);
        let gone: Vec<WatchScope> = self.by_name.keys().filter(|scope| !wanted.contains(*scope)).cloned().collect();
        for scope in gone {
            if let Some(handle) = self.by_name.remove(&scope) {
                handle.abort();
            }
            self.seen.forget(&scope);
        }
        wanted.into_iter().for_each(|scope| self.follow(scope));
    }

    fn translate(&mut self) {
        self.has_started = true;
        let mut translation = translate(&self.seen.world, &self.settings.options);
        let revision = self.sink.publish(&translation.resources);
        let origin = |resource: DerivedResource| (format!("{}/{}", resource.kind, resource.id), resource.origin);
        self.origins = std::mem::take(&mut translation.resources).into_iter().map(origin).collect();
        self.unserved.push_back((revision, Wanted::new(translation, &self.seen.objects)));
        if self.unserved.len() > MOST_UNSERVED {
            // The statuses of the one after it are as good.
            self.unserved.remove(MOST_UNSERVED / 2);
        }
        self.write_served();
    }

    fn take_served(&mut self, state: ControllerState) {
        self.state = state;
        self.write_served();
    }

    /// Hands the statuses of the newest translation that is served to the writer.
    fn write_served(&mut self) {
        let served = self.unserved.iter().rposition(|(revision, _)| *revision <= self.state.revision);
        let Some(mut wanted) =
            served.and_then(|last| self.unserved.drain(..=last).next_back()).map(|(_, wanted)| wanted)
        else {
            return;
        };
        let set_aside = self.state.set_aside.iter().filter_map(|(resource, problem)| {
            let object = self.origins.get(resource)?;
            let uid = self.seen.objects.get(object)?.uid.clone();
            let message = format!("is not served as it is: {problem}");
            let event = ObjectEvent {
                object: object.clone(),
                kind: EventKind::Warning,
                reason: "NotServed".to_owned(),
                message,
            };
            Some((event, uid))
        });
        // They come first: they are not left out for lack of room.
        wanted.events = bounded(set_aside.chain(wanted.events));
        self.board.set(wanted);
    }
}

/// Waits until then; for ever if there is no time.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}
