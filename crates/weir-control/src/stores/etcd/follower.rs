//! The thread that follows a cluster of etcd: reads everything, watches what changes, keeps the node's own key alive, and keeps a
//! copy on the disk.
//!
//! A watch never skips: it goes on after the last revision that was seen, and what has been compacted away is read anew. Time-outs
//! lose nothing, since a revision counts as seen only when its changes have been handed on.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinHandle;
use tokio::time::{interval, sleep_until, timeout};
use tonic::Streaming;

use super::connection::{EtcdAccess, EtcdConnection, EtcdError};
use super::layout::{KeyLayout, end_of};
use super::wire::{
    EtcdOperation, PutRequest, RangeRequest, RequestOp, TxnRequest, WatchAsked, WatchCreateRequest,
    WatchProgressRequest, WatchRequest, WatchResponse,
};
use super::{EtcdCommand, Mailbox};
use crate::stores::embedded::EmbeddedStore;
use crate::stores::live::now_ms;
use crate::stores::resources::{Author, ResourceChange, ResourceKey, ResourceSet, RevisionRecord, StoredResource};
use crate::stores::shared::{NodeReport, OutsideChange, ServedContent};
use crate::stores::store::ResourceStore;

/// Resources that are read at a time.
const PAGE: i64 = 1_000;
/// A watch that has said nothing for so long is asked whether it is alive,
const ASK_AFTER: Duration = Duration::from_secs(2);
/// and given up when it does not answer for so long.
const GIVE_UP_AFTER: Duration = Duration::from_secs(5);
/// How often all this is looked at.
const TICK: Duration = Duration::from_millis(250);
/// A node that has gone is not listed any more after so long.
const PRESENCE_S: i64 = 10;
const KEEP_EVERY: Duration = Duration::from_secs(3);
/// So long a node that ends waits until it is off the list.
const LEAVE_PATIENCE: Duration = Duration::from_secs(3);
/// A node tells what it serves no more often: a fleet of many would keep etcd busy with it.
const TELL_EVERY: Duration = Duration::from_millis(200);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const MOST_PAUSE: Duration = Duration::from_secs(3);

/// What this node tells the others.
pub(super) struct Presence {
    report: NodeReport,
    /// What it has told last.
    told: Option<ServedContent>,
    told_at: Instant,
    kept_at: Instant,
    lease: Option<i64>,
    /// Another process is this node, or this one is none.
    is_lent: bool,
}

impl Presence {
    pub(super) fn new(node: &str) -> Presence {
        let report = NodeReport {
            id: node.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_ms: now_ms(),
            told_ms: 0,
            served: ServedContent::default(),
        };
        let (told_at, kept_at) = (Instant::now(), Instant::now());
        Presence { report, told: None, told_at, kept_at, lease: None, is_lent: node.is_empty() }
    }
}

/// Follows one cluster.
pub(super) struct Follower {
    hosts: Vec<String>,
    access: EtcdAccess,
    layout: KeyLayout,
    mailbox: Arc<Mailbox>,
    presence: Presence,
    copy: CopyOnDisk,
    /// The member that is asked next.
    next: usize,
    /// The cluster that was read; nothing before that.
    cluster: Option<u64>,
    /// Up to here everything has been handed on.
    seen: u64,
    /// Everything is read when the next session begins.
    reads_all: bool,
    /// Told when the first attempt has come to something.
    first: Option<Sender<Result<ResourceSet, String>>>,
    failures: usize,
}

/// The copy, and what it lacks.
struct CopyOnDisk {
    store: Option<Arc<EmbeddedStore>>,
    /// The keys that are in it, when everything has been read anew.
    lacks: Vec<ResourceChange>,
    revision: u64,
    writing: Option<JoinHandle<()>>,
}

/// Why a session is over.
enum SessionEnd {
    /// Nobody wants anything any more.
    Finished,
    /// The watch cannot go on where it was.
    ReadAgain,
    Lost(EtcdError),
}

type Commands = UnboundedReceiver<EtcdCommand>;

impl Follower {
    pub(super) fn new(
        hosts: Vec<String>,
        access: EtcdAccess,
        layout: KeyLayout,
        mailbox: Arc<Mailbox>,
        copy: Option<Arc<EmbeddedStore>>,
        presence: Presence,
        known: ResourceSet,
    ) -> Follower {
        let copy = CopyOnDisk { store: copy, lacks: Vec::new(), revision: known.revision, writing: None };
        // Nodes that start together do not all ask the same member.
        let next = rand::random_range(0..hosts.len().max(1));
        Follower {
            hosts,
            access,
            layout,
            mailbox,
            presence,
            copy,
            next,
            cluster: None,
            seen: known.revision,
            reads_all: true,
            first: None,
            failures: 0,
        }
    }

    pub(super) fn run(mut self, mut commands: Commands, first: Sender<Result<ResourceSet, String>>) {
        self.first = Some(first);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = match runtime {
            Ok(runtime) => runtime,
            Err(error) => return self.tell_first(Err(format!("the async runtime cannot be started: {error}"))),
        };
        runtime.block_on(self.follow(&mut commands));
    }

    async fn follow(&mut self, commands: &mut Commands) {
        loop {
            let member = self.hosts[self.next % self.hosts.len()].clone();
            match self.session(&member, commands).await {
                SessionEnd::Finished => return self.copy.finish().await,
                SessionEnd::ReadAgain => self.reads_all = true,
                SessionEnd::Lost(EtcdError(problem)) => {
                    let problem = format!("{member}: {problem}");
                    self.mailbox.state(false, &member, Some(problem.clone()));
                    self.presence.lease = None;
                    self.next += 1;
                    self.failures += 1;
                    if self.failures >= self.hosts.len() {
                        self.tell_first(Err(problem.clone()));
                    }
                    if !self.pause(&problem, commands).await {
                        return self.copy.finish().await;
                    }
                }
            }
        }
    }

    fn tell_first(&mut self, outcome: Result<ResourceSet, String>) {
        if let Some(first) = self.first.take() {
            // Who has started without it gets it as a change.
            if let Err(refused) = first.send(outcome)
                && let Ok(set) = refused.0
            {
                self.mailbox.put(OutsideChange::All { set, is_doubtful: false });
            }
        }
    }

    /// Before the next attempt. Each member is tried at once, and all of them ever more seldom. False when nobody wants more.
    async fn pause(&self, problem: &str, commands: &mut Commands) -> bool {
        let rounds = self.failures / self.hosts.len();
        let pause =
            (FIRST_PAUSE * 2_u32.pow(rounds.min(8) as u32)).min(MOST_PAUSE).mul_f64(rand::random_range(0.5..1.5));
        let until = tokio::time::Instant::now() + pause;
        loop {
            tokio::select! {
                () = sleep_until(until) => return true,
                command = commands.recv() => match command {
                    Some(command) => refuse(command, problem),
                    None => return false,
                }
            }
        }
    }

    async fn session(&mut self, member: &str, commands: &mut Commands) -> SessionEnd {
        match self.try_session(member, commands).await {
            Ok(end) => end,
            Err(error) => SessionEnd::Lost(error),
        }
    }

    async fn try_session(&mut self, member: &str, commands: &mut Commands) -> Result<SessionEnd, EtcdError> {
        let connection = EtcdConnection::open(member, &self.access).await?;
        let header =
            connection.range(RangeRequest { key: self.layout.puts(), ..RangeRequest::default() }).await?.header;
        let header = header.unwrap_or_default();
        self.register(&connection).await;
        let is_other = self.cluster.is_some_and(|cluster| cluster != header.cluster_id);
        let was_set_back = (header.revision as u64) < self.seen;
        let mut emptied = None;
        if self.reads_all || is_other || was_set_back {
            let set = self.read_all(&connection).await?;
            let is_doubtful = is_other || was_set_back;
            if set.all.is_empty() && is_doubtful {
                emptied = Some(format!(
                    "{member}: all resources are gone; the last known ones stay in use until a resource is written again"
                ));
            } else {
                self.copy.replace(&set);
            }
            self.cluster = Some(header.cluster_id);
            self.seen = set.revision;
            self.reads_all = false;
            match self.first.is_some() && !was_set_back {
                true => self.tell_first(Ok(set)),
                false => {
                    self.first = None;
                    self.mailbox.put(OutsideChange::All { set, is_doubtful });
                }
            }
        }
        let key = self.layout.resources().to_vec();
        let (range_end, start_revision) = (end_of(&key), self.seen as i64 + 1);
        let create = WatchCreateRequest { key, range_end, start_revision, progress_notify: true };
        let (asking, watch) = connection.watch(WatchRequest { asked: Some(WatchAsked::Create(create)) }).await?;
        self.failures = 0;
        self.mailbox.state(true, member, emptied);
        self.watch(&connection, &asking, watch, commands).await
    }

    /// In pages, all at the revision of the first.
    async fn read_all(&self, connection: &EtcdConnection) -> Result<ResourceSet, EtcdError> {
        let range_end = end_of(self.layout.resources());
        let (mut key, mut set) = (self.layout.resources().to_vec(), ResourceSet::default());
        loop {
            let revision = set.revision as i64;
            let request =
                RangeRequest { key, range_end: range_end.clone(), limit: PAGE, revision, ..RangeRequest::default() };
            let page = connection.range(request).await?;
            if set.revision == 0 {
                set.revision = page.header.unwrap_or_default().revision as u64;
            }
            let last = page.kvs.last().map(|entry| entry.key.clone());
            set.all.extend(page.kvs.into_iter().filter_map(|entry| self.layout.resource(entry)));
            match last {
                Some(last) if page.more => key = [last, vec![0]].concat(),
                _ => return Ok(set),
            }
        }
    }

    async fn watch(
        &mut self,
        connection: &EtcdConnection,
        asking: &tokio::sync::mpsc::UnboundedSender<WatchRequest>,
        mut watch: Streaming<WatchResponse>,
        commands: &mut Commands,
    ) -> Result<SessionEnd, EtcdError> {
        let mut tick = interval(TICK);
        let (mut heard, mut asked) = (Instant::now(), false);
        loop {
            tokio::select! {
                response = watch.message() => {
                    let Some(response) = response? else {
                        return Err(EtcdError("the watch has ended".to_owned()));
                    };
                    (heard, asked) = (Instant::now(), false);
                    if let Some(end) = self.take(response)? {
                        return Ok(end);
                    }
                }
                command = commands.recv() => {
                    let Some(command) = command else {
                        self.leave(connection).await;
                        return Ok(SessionEnd::Finished);
                    };
                    self.carry_out(connection, command);
                    self.tell(connection).await?;
                }
                _ = tick.tick() => {
                    if heard.elapsed() > GIVE_UP_AFTER {
                        return Err(EtcdError(format!("the watch does not answer within {GIVE_UP_AFTER:?}")));
                    }
                    if !asked && heard.elapsed() > ASK_AFTER {
                        asked = asking.send(WatchRequest { asked: Some(WatchAsked::Progress(WatchProgressRequest {})) }).is_ok();
                    }
                    self.keep(connection).await?;
                    self.tell(connection).await?;
                    self.copy.write();
                }
            }
        }
    }

    /// Hands on what has changed. The changes of one revision come together.
    fn take(&mut self, response: WatchResponse) -> Result<Option<SessionEnd>, EtcdError> {
        if response.canceled {
            if response.compact_revision > 0 {
                return Ok(Some(SessionEnd::ReadAgain));
            }
            return Err(EtcdError(format!("the watch was cancelled: {}", response.cancel_reason)));
        }
        let revision = response.header.as_ref().map_or(0, |header| header.revision as u64);
        let mut resources: Vec<(ResourceKey, Option<StoredResource>)> = Vec::new();
        let mut last = self.seen;
        for event in response.events {
            let is_deleted = event.kind == 1;
            let Some(entry) = event.kv else { continue };
            last = last.max(entry.mod_revision as u64);
            let key = self.layout.resource_key(&entry.key);
            let resource = if is_deleted { None } else { self.layout.resource(entry).map(|(_, resource)| resource) };
            resources.extend(key.map(|key| (key, resource)));
        }
        // Nothing below what is told in this way is still to come.
        self.seen = if resources.is_empty() && !response.created { last.max(revision) } else { last };
        if !resources.is_empty() {
            self.copy.add(last, &resources);
            self.mailbox.put(OutsideChange::Some { revision: last, resources });
        }
        Ok(None)
    }

    /// Requests do not wait for each other.
    fn carry_out(&mut self, connection: &EtcdConnection, command: EtcdCommand) {
        let connection = connection.clone();
        match command {
            EtcdCommand::Txn(mut request, lifetime, reply) => drop(tokio::spawn(async move {
                if let Some(ttl_s) = lifetime {
                    match connection.lease(ttl_s as i64).await {
                        Ok(lease) => put_under(&mut request, lease),
                        Err(EtcdError(problem)) => return drop(reply.send(Err(problem))),
                    }
                }
                let _ = reply.send(connection.txn(request).await.map_err(|EtcdError(problem)| problem));
            })),
            EtcdCommand::Range(request, reply) => drop(tokio::spawn(async move {
                let _ = reply.send(connection.range(request).await.map_err(|EtcdError(problem)| problem));
            })),
            EtcdCommand::Serves(served) => self.presence.report.served = served,
            EtcdCommand::Lend(lent) => {
                self.presence.is_lent = lent;
                self.presence.told = None;
            }
        }
    }

    /// Puts the node on the list before it reads anything: what is read may be served, and changes after that must wait for this
    /// node. An etcd that can only be read is no reason not to read it; the watch reports the problem.
    async fn register(&mut self, connection: &EtcdConnection) {
        if self.keep(connection).await.is_ok() {
            let _ = self.tell(connection).await;
        }
    }

    /// Keeps the lease of the node's key, or gets one.
    async fn keep(&mut self, connection: &EtcdConnection) -> Result<(), EtcdError> {
        let presence = &mut self.presence;
        if presence.is_lent || presence.lease.is_some() && presence.kept_at.elapsed() < KEEP_EVERY {
            return Ok(());
        }
        let goes_on = match presence.lease {
            Some(lease) => connection.keep_lease(lease).await?,
            None => false,
        };
        if !goes_on {
            presence.lease = Some(connection.lease(PRESENCE_S).await?);
            presence.told = None;
        }
        presence.kept_at = Instant::now();
        Ok(())
    }

    async fn tell(&mut self, connection: &EtcdConnection) -> Result<(), EtcdError> {
        let presence = &mut self.presence;
        let Some(lease) = presence.lease.filter(|_| !presence.is_lent) else { return Ok(()) };
        let is_new = presence.told != Some(presence.report.served);
        if !is_new || presence.told.is_some() && presence.told_at.elapsed() < TELL_EVERY {
            return Ok(());
        }
        presence.report.told_ms = now_ms();
        let value = serde_json::to_vec(&presence.report).expect("it has text keys alone");
        let key = self.layout.node(&presence.report.id);
        let put = RequestOp { operation: Some(EtcdOperation::Put(PutRequest { key, value, lease })) };
        connection.txn(TxnRequest { success: vec![put], ..TxnRequest::default() }).await?;
        presence.told = Some(presence.report.served);
        presence.told_at = Instant::now();
        Ok(())
    }

    /// Takes the node off the list.
    async fn leave(&self, connection: &EtcdConnection) {
        if let Some(lease) = self.presence.lease.filter(|_| !self.presence.is_lent) {
            // It would go by itself a little later.
            let _ = timeout(LEAVE_PATIENCE, connection.revoke(lease)).await;
        }
    }
}

fn put_under(request: &mut TxnRequest, lease: i64) {
    // The first operations are the resources; what goes with them stays.
    if let Some(EtcdOperation::Put(put)) = request.success.first_mut().and_then(|first| first.operation.as_mut()) {
        put.lease = lease;
    }
}

fn refuse(command: EtcdCommand, problem: &str) {
    match command {
        EtcdCommand::Txn(_, _, reply) => drop(reply.send(Err(problem.to_owned()))),
        EtcdCommand::Range(_, reply) => drop(reply.send(Err(problem.to_owned()))),
        // It is told when there is a connection again.
        EtcdCommand::Serves(_) | EtcdCommand::Lend(_) => {}
    }
}

impl CopyOnDisk {
    /// Everything has been read.
    fn replace(&mut self, set: &ResourceSet) {
        let Some(store) = &self.store else { return };
        let known = store.load().unwrap_or_default();
        let gone = known.all.keys().filter(|key| !set.all.contains_key(*key)).map(|key| (key.clone(), None));
        let is_new = |(key, resource): &(&ResourceKey, &StoredResource)| known.all.get(*key) != Some(*resource);
        let new = set.all.iter().filter(is_new).map(|(key, resource)| (key.clone(), Some(resource.clone())));
        let changes: Vec<_> = gone.chain(new).collect();
        self.lacks.clear();
        self.add(set.revision, &changes);
    }

    fn add(&mut self, revision: u64, resources: &[(ResourceKey, Option<StoredResource>)]) {
        if self.store.is_none() {
            return;
        }
        self.revision = revision;
        let change = |(key, after): &(ResourceKey, Option<StoredResource>)| ResourceChange {
            key: key.clone(),
            before: None,
            after: after.clone(),
        };
        self.lacks.extend(resources.iter().map(change));
    }

    /// Writes what is lacking, off this thread, unless something is being written.
    fn write(&mut self) {
        let Some(store) = &self.store else { return };
        if self.lacks.is_empty() || self.writing.as_ref().is_some_and(|writing| !writing.is_finished()) {
            return;
        }
        let changes = std::mem::take(&mut self.lacks);
        let author = Author { name: "etcd".to_owned(), ..Author::default() };
        let record = RevisionRecord { revision: self.revision, at_ms: now_ms(), author, changes };
        let store = Arc::clone(store);
        self.writing = Some(tokio::task::spawn_blocking(move || {
            // A disk that is full costs the copy and nothing else: the next start needs etcd.
            let _ = store.commit(&[record]);
        }));
    }

    async fn finish(&mut self) {
        for _ in 0..2 {
            if let Some(writing) = self.writing.take() {
                let _ = writing.await;
            }
            self.write();
        }
        if let Some(writing) = self.writing.take() {
            let _ = writing.await;
        }
    }
}
