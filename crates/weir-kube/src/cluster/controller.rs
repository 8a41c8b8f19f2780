//! Follows a cluster, and hands what it means to the node.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{Receiver, Sender, UnboundedReceiver, UnboundedSender, channel, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::sleep_until;

use super::election::{self, ElectionSettings, Leadership, Tenure};
use super::follower::{ScopeFollower, Told};
use super::references::{References, may_quote_secret};
use super::seen::{SeenChange, SeenCluster, SeenObject};
use super::status_writer::{StatusBoard, StatusWriter, WantedChanges, bounded};
use super::{Cluster, ScopeEvent, WatchScope};
use crate::objects::{Kind, ObjectRef};
use crate::translate::Translator;
use crate::translation::{
    DerivedResource, EventKind, KubeOptions, ObjectEvent, ObjectStatus, ResourceList, TranslationReader,
};

/// Changes that arrive within this time are translated together.
const BATCH: Duration = Duration::from_millis(10);
/// How long a translation waits for objects that are watched for the first time, so that it is not made without them.
const WAIT_FOR_LISTS: Duration = Duration::from_secs(1);
/// The most messages of followers that wait; then they wait themselves.
const MOST_TOLD: usize = 1_024;
/// The most translations whose statuses wait apart until they are served. Each may have a status for every object.
const MOST_UNSERVED: usize = 4;

/// What an Event tells of an object with options from Secrets, of which a problem may quote one.
const IN_THE_LOG: &str =
    "the log of the node may say why; the reason may quote a value from a Secret, so it is not told here";

/// The kinds of objects that refer to what is watched by name.
fn refers(kind: Kind) -> bool {
    matches!(kind, Kind::BackendTLSPolicy | Kind::Gateway | Kind::Ingress) || kind.is_of_apisix()
}

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
    /// Takes a resource that may differ from the one with its id.
    fn put(&mut self, resource: DerivedResource);

    /// There is no such resource any more, or there never was.
    fn remove(&mut self, kind: ResourceList, id: &str);

    /// Publishes what was taken since the last time; the first time, that is everything. Returns the revision that has it: the last
    /// one if nothing has changed.
    fn publish(&mut self) -> u64;

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
pub struct Controller {
    served: UnboundedSender<ControllerState>,
    /// `None`: it takes part in no election.
    leadership: Option<Leadership>,
    started: Instant,
}

impl Controller {
    /// Starts the controller on the current runtime.
    pub fn start(cluster: Arc<dyn Cluster>, settings: ControllerSettings, sink: Box<dyn ResourceSink>) -> Controller {
        let (served, from_node) = unbounded_channel();
        let (told, inbox) = channel(MOST_TOLD);
        let translator = Translator::new(settings.options.clone());
        let leadership = settings.election.as_ref().map(|_| Leadership::default());
        let following = Following {
            cluster,
            settings,
            sink,
            told,
            seen: SeenCluster::default(),
            by_name: BTreeMap::new(),
            followers: JoinSet::new(),
            left_out: Vec::new(),
            board: StatusBoard::default(),
            unserved: VecDeque::new(),
            translator,
            state: ControllerState::default(),
            problem: None,
            has_started: false,
            leadership: leadership.clone(),
        };
        tokio::spawn(following.run(inbox, from_node));
        Controller { served, leadership, started: Instant::now() }
    }

    /// Reports what the node serves now.
    pub fn served(&self, state: ControllerState) {
        // It fails if the controller has ended, and with it what the report is for.
        let _ = self.served.send(state);
    }

    /// Whether it has ended although this value exists: a fault of the program, which has been reported.
    pub fn has_ended(&self) -> bool {
        self.served.is_closed()
    }

    /// Since when it writes the statuses, or would write them if the settings did not forbid it; `None` if it does not.
    pub fn tenure(&self) -> Option<Tenure> {
        match &self.leadership {
            Some(leadership) => leadership.tenure(),
            None => Some(Tenure { since: self.started, follows_another: false }),
        }
    }

    /// Takes part in the election no more, before the process ends.
    pub async fn give_up(&self) {
        if let Some(leadership) = &self.leadership {
            leadership.give_up().await;
        }
    }

    /// The name of the process that writes them, as in [`ElectionSettings`]; empty if it is not known.
    pub fn writer(&self) -> String {
        self.leadership.as_ref().map(Leadership::holder).unwrap_or_default()
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
    /// What is told about references for which there is no room.
    left_out: Vec<ObjectEvent>,
    board: StatusBoard,
    /// Translations that are not served yet, with their revisions.
    unserved: VecDeque<(u64, WantedChanges)>,
    translator: Translator,
    state: ControllerState,
    problem: Option<String>,
    /// Whether everything has been listed once: nothing is published before.
    has_started: bool,
    leadership: Option<Leadership>,
}

impl Following {
    async fn run(mut self, mut inbox: Receiver<(WatchScope, Told)>, mut from_node: UnboundedReceiver<ControllerState>) {
        if let Some((election, leadership)) = self.settings.election.clone().zip(self.leadership.clone()) {
            let writer = StatusWriter::new(Arc::clone(&self.cluster), self.board.clone(), leadership.clone());
            self.followers.spawn(writer.run());
            self.followers.spawn(election::elect(Arc::clone(&self.cluster), election, leadership));
        }
        let adopts_apisix = self.settings.options.adopt_apisix;
        for scope in WatchScope::permanent(&self.settings.namespaces, adopts_apisix) {
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
                Some(ended) = self.followers.join_next() => match ended {
                    // An object that is not referred to any more.
                    Err(error) if error.is_cancelled() => {}
                    // They end with this one. A panic has been reported; what its task followed would stay as it is.
                    Ok(()) | Err(_) => return,
                },
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
            if scope.is_by_name() {
                self.by_name.insert(scope, handle);
            }
        }
    }

    /// Takes what a follower tells. Returns whether there is something to translate.
    fn take(&mut self, scope: &WatchScope, told: Told) -> bool {
        let is_state = matches!(told, Told::Problem(_));
        // A Secret that was watched by its type may be made again with another one, and is watched by its name then.
        let may_be_gone = matches!(told, Told::Event(_, ScopeEvent::Gone(..) | ScopeEvent::ListEnds));
        let is_gone_secret = scope.kind == Kind::Secret && may_be_gone && self.settings.options.adopt_apisix;
        let has_changed = match self.seen.take(scope, told) {
            SeenChange::Nothing => false,
            SeenChange::Meaning => true,
            SeenChange::Status(object) => self.take_status(object),
        };
        if is_state && self.seen.problem() != self.problem.as_deref() {
            self.problem = self.seen.problem().map(str::to_owned);
            self.sink.tell(self.problem.as_deref());
        }
        let has_references = match self.has_started {
            true => !scope.is_by_name() && (refers(scope.kind) || is_gone_secret),
            false => !scope.is_by_name() && self.seen.is_complete(),
        };
        if has_changed && has_references {
            self.follow_references();
        }
        has_changed
    }

    /// Takes a change of nothing but the status of an object. Returns whether there is something to translate: mostly it is the write
    /// of this process, which the watch repeats.
    fn take_status(&mut self, object: ObjectRef) -> bool {
        let is_settled = self.seen.objects.get(&object).is_some_and(|seen| self.board.settle(&object, &seen.status));
        // A status that waits to be served was made from an earlier version, and could not be written.
        if is_settled && !self.unserved.iter().any(|(_, wanted)| wanted.has(&object)) {
            return false;
        }
        self.seen.changes.statuses.insert(object);
        true
    }

    /// Follows the objects that are referred to now, and no others by name.
    fn follow_references(&mut self) {
        let mut now = References::of(&self.seen.world, &self.settings.namespaces);
        let gone: Vec<WatchScope> =
            self.by_name.keys().filter(|scope| !now.watched.contains(*scope)).cloned().collect();
        for scope in &gone {
            if let Some(handle) = self.by_name.remove(scope) {
                handle.abort();
            }
            self.seen.forget(scope);
        }
        // A Secret of a type that is watched as a whole may have been known by its name alone.
        if gone.iter().any(|scope| scope.kind == Kind::Secret) {
            now = References::of(&self.seen.world, &self.settings.namespaces);
        }
        let References { watched: wanted, left_out } = now;
        self.left_out = left_out;
        wanted.into_iter().for_each(|scope| self.follow(scope));
    }

    fn translate(&mut self) {
        let is_first = !std::mem::replace(&mut self.has_started, true);
        let changes = std::mem::take(&mut self.seen.changes);
        let objects = &self.seen.objects;
        let mut passing = Passing { sink: &mut *self.sink, wanted: WantedChanges::of(&changes), objects };
        self.translator.translate(&self.seen.world, &changes, &mut passing);
        let mut wanted = passing.wanted;
        wanted.set_others(&self.translator, objects);
        wanted.changed = changes.objects;
        self.unserved.push_back((self.sink.publish(), wanted));
        if self.unserved.len() > MOST_UNSERVED {
            let (Some((_, older)), Some((_, next))) =
                (self.unserved.remove(MOST_UNSERVED / 2), self.unserved.get_mut(MOST_UNSERVED / 2))
            else {
                return;
            };
            let newer = std::mem::replace(next, older);
            next.add(newer);
        }
        match is_first {
            // A node that has started with its copy has reported what it does not serve, and nothing was known of it.
            true => self.take_served(self.state.clone()),
            false => self.write_served(),
        }
    }

    fn take_served(&mut self, state: ControllerState) {
        self.state = state;
        let objects = self.translator.set_refused(&self.state.set_aside);
        match self.has_started && !objects.is_empty() {
            true => {
                self.seen.changes.statuses.extend(objects);
                self.translate();
            }
            false => self.write_served(),
        }
    }

    /// Hands the statuses of the translations that are served to the writer.
    fn write_served(&mut self) {
        let served = self.unserved.iter().take_while(|(revision, _)| *revision <= self.state.revision).count();
        let joined = self.unserved.drain(..served).map(|(_, wanted)| wanted).reduce(|mut all, next| {
            all.add(next);
            all
        });
        let Some(mut wanted) = joined else { return };
        let unserved = self.unserved.iter().map(|(_, later)| &later.changed);
        let later: Vec<&BTreeSet<ObjectRef>> = unserved.chain([&self.seen.changes.objects]).collect();
        let set_aside = self.state.set_aside.iter().filter_map(|(resource, problem)| {
            // A policy says it in its status.
            let object = self.translator.origin(resource).filter(|object| object.kind != Kind::WeirPolicy)?;
            let uid = self.seen.objects.get(&object)?.uid.to_string();
            let problem = if may_quote_secret(&self.seen.world, &object, &later) { IN_THE_LOG } else { &**problem };
            let message = format!("is not served as it is: {problem}");
            let reason = "NotServed".to_owned();
            Some((ObjectEvent { object, kind: EventKind::Warning, reason, message }, uid))
        });
        let left_out = self.left_out.iter().filter_map(|event| {
            let uid = self.seen.objects.get(&event.object)?.uid.to_string();
            Some((event.clone(), uid))
        });
        let unreadable = self.seen.unreadable.iter().filter_map(|(object, why)| {
            let uid = self.seen.objects.get(object)?.uid.to_string();
            let message = format!("cannot be read, so its last state stays in use, if it had one: {why}");
            let reason = "NotRead".to_owned();
            Some((ObjectEvent { object: object.clone(), kind: EventKind::Warning, reason, message }, uid))
        });
        // They come first: they are not left out for lack of room.
        wanted.events = bounded(set_aside.chain(unreadable).chain(left_out).chain(wanted.events));
        self.board.take(wanted);
    }
}

/// Passes a translation on.
struct Passing<'a> {
    sink: &'a mut dyn ResourceSink,
    wanted: WantedChanges,
    objects: &'a BTreeMap<ObjectRef, SeenObject>,
}

impl TranslationReader for Passing<'_> {
    fn put(&mut self, resource: DerivedResource) {
        self.sink.put(resource);
    }

    fn remove(&mut self, kind: ResourceList, id: &str) {
        self.sink.remove(kind, id);
    }

    fn status(&mut self, status: ObjectStatus) {
        self.wanted.status(status, self.objects);
    }

    fn no_status(&mut self, object: &ObjectRef) {
        self.wanted.no_status(object);
    }
}

/// Waits until then; for ever if there is no time.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}
