//! The thread that follows an etcd cluster: reads everything, watches changes, keeps the node's own key alive, and keeps a copy
//! on disk.
//!
//! A watch skips nothing: it continues after the last revision seen, and if that has been compacted, everything is read again.
//! Time-outs lose nothing, since a revision counts as seen only after its changes were handed on.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{interval, sleep_until, timeout};
use tonic::Streaming;
use weir_net::backoff::Backoff;

use super::EtcdCommand;
use super::connection::{EtcdAccess, EtcdConnection, EtcdError};
use super::layout::{KeyLayout, end_of};
use super::wire::{
    EtcdOperation, PutRequest, RangeRequest, RequestOp, TxnRequest, WatchAsked, WatchCreateRequest,
    WatchProgressRequest, WatchRequest, WatchResponse,
};
use crate::stores::disk_copy::DiskCopy;
use crate::stores::embedded::EmbeddedStore;
use crate::stores::live::now_ms;
use crate::stores::mailbox::Mailbox;
use crate::stores::resources::{ResourceKey, ResourceSet, StoredResource};
use crate::stores::shared::{NodeReport, OutsideChange, ServedContent};

/// The page size of reads, in resources.
const PAGE: i64 = 1_000;
/// After this silence of a watch, a progress request checks whether it is alive,
const ASK_AFTER: Duration = Duration::from_secs(2);
/// and after this silence, it is given up.
const GIVE_UP_AFTER: Duration = Duration::from_secs(5);
/// The interval of these checks.
const TICK: Duration = Duration::from_millis(250);
/// The lease of a node's key, in seconds: after that, a dead node is no longer listed.
const PRESENCE_S: i64 = 10;
const KEEP_EVERY: Duration = Duration::from_secs(3);
/// How long a node that shuts down waits until its key is removed.
const LEAVE_PATIENCE: Duration = Duration::from_secs(3);
/// The shortest interval between reports of this node: a large fleet would otherwise overload etcd with them.
const TELL_EVERY: Duration = Duration::from_millis(200);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const MOST_PAUSE: Duration = Duration::from_secs(3);

/// The report of this node for the others.
pub(super) struct Presence {
    report: NodeReport,
    /// The content last reported.
    told: Option<ServedContent>,
    told_at: Instant,
    kept_at: Instant,
    lease: Option<i64>,
    /// Whether another process has taken over this node's key, or this process is not a node.
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

    fn lend(&mut self, lent: bool) {
        self.is_lent = lent;
        self.told = None;
    }
}

/// Follows one cluster.
pub(super) struct Follower {
    hosts: Vec<String>,
    access: EtcdAccess,
    layout: KeyLayout,
    mailbox: Arc<Mailbox>,
    presence: Presence,
    copy: DiskCopy,
    /// The index of the member to connect to next.
    next: usize,
    /// The id of the cluster that was read; `None` before that.
    cluster: Option<u64>,
    /// The revision up to which all changes have been handed on.
    seen: u64,
    /// Whether the next session begins by reading everything.
    reads_all: bool,
    /// How many resources it held when changes were handed on last.
    held: usize,
    /// Whether the cluster has lost all resources, and none has been written since.
    is_emptied: bool,
    /// Receives the result of the first attempt.
    first: Option<Sender<Result<ResourceSet, String>>>,
    /// The start waits until etcd answers, since there is no copy to start with: failures are not its result.
    is_awaited: bool,
    failures: usize,
}

/// The reason for the end of a session.
enum SessionEnd {
    /// All users of the follower have dropped it.
    Finished,
    /// The watch cannot be continued; everything has to be read again.
    ReadAgain,
    Lost(EtcdError),
}

/// What a message of the watch says.
enum Taken {
    Changes {
        revision: u64,
        resources: Vec<(ResourceKey, Option<StoredResource>)>,
    },
    /// One revision has deleted all resources that there were, and more than one.
    AllGone {
        revision: u64,
        resources: Vec<(ResourceKey, Option<StoredResource>)>,
    },
    End(SessionEnd),
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
        let copy = DiskCopy::new("etcd", copy, known.revision);
        // A random first member, so that nodes that start together do not all use the same one.
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
            held: known.all.len(),
            is_emptied: false,
            first: None,
            is_awaited: false,
            failures: 0,
        }
    }

    /// Goes on trying before the first result, in place of reporting that no member answered.
    pub(super) fn awaited(self) -> Follower {
        Follower { is_awaited: true, ..self }
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
                SessionEnd::Finished => return self.finish().await,
                SessionEnd::ReadAgain => self.reads_all = true,
                SessionEnd::Lost(EtcdError { problem, .. }) => {
                    let problem = format!("{member}: {problem}");
                    self.mailbox.state(false, &member, Some(problem.clone()));
                    self.presence.lease = None;
                    self.next += 1;
                    self.failures += 1;
                    if self.failures >= self.hosts.len() && !self.is_awaited {
                        self.tell_first(Err(problem.clone()));
                    }
                    if !self.pause(&problem, commands).await {
                        return self.finish().await;
                    }
                }
            }
        }
    }

    async fn finish(&mut self) {
        // A process that has taken over has the copy, too.
        if !self.presence.is_lent {
            self.copy.finish().await;
        }
    }

    fn tell_first(&mut self, outcome: Result<ResourceSet, String>) {
        if let Some(first) = self.first.take() {
            // If the receiver has started without the result, it gets the result as a change.
            if let Err(refused) = first.send(outcome)
                && let Ok(set) = refused.0
            {
                self.mailbox.put(OutsideChange::All { set, is_doubtful: false });
            }
        }
    }

    /// Pauses before the next attempt. The pause grows only after a round of all members. Returns false if all users have gone.
    async fn pause(&mut self, problem: &str, commands: &mut Commands) -> bool {
        let rounds = u32::try_from(self.failures / self.hosts.len()).unwrap_or(u32::MAX);
        let pause = Backoff::new(FIRST_PAUSE, MOST_PAUSE).after(rounds.saturating_add(1));
        let pause = pause.mul_f64(rand::random_range(0.5..1.5));
        let until = tokio::time::Instant::now() + pause;
        loop {
            tokio::select! {
                () = sleep_until(until) => return true,
                command = commands.recv() => match command {
                    Some(command) => self.carry_out_offline(command, problem),
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
        if self.reads_all || is_other || was_set_back {
            let set = self.read_all(&connection).await?;
            self.is_emptied = set.all.is_empty()
                && (is_other
                    || was_set_back
                    || self.is_emptied
                    || self.held > 1 && self.others_emptied(&connection).await?);
            self.held = set.all.len();
            let is_doubtful = is_other || was_set_back || self.is_emptied;
            if !self.is_emptied {
                self.copy.replace(&set);
            }
            self.cluster = Some(header.cluster_id);
            self.seen = set.revision;
            self.reads_all = false;
            match self.first.is_some() && !was_set_back && !self.is_emptied {
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
        self.say_reached(member);
        self.watch(&connection, &asking, watch, commands).await
    }

    /// Reports that a member answers, and whether it has lost the resources.
    fn say_reached(&self, member: &str) {
        let emptied = self.is_emptied.then(|| {
            format!(
                "{member}: all resources are gone; the last known ones stay in use until a resource is written again"
            )
        });
        self.mailbox.state(true, member, emptied);
    }

    /// Whether the resources, all of which are gone, were not deleted by Weir: its last deletion has left some, or is not known any more.
    async fn others_emptied(&self, connection: &EtcdConnection) -> Result<bool, EtcdError> {
        let trace = connection.range(RangeRequest { key: self.layout.deletes(), ..RangeRequest::default() }).await?;
        let Some(deletion) = trace.kvs.first().map(|entry| entry.mod_revision) else { return Ok(true) };
        let key = self.layout.resources().to_vec();
        let range_end = end_of(&key);
        let left = RangeRequest {
            key,
            range_end,
            limit: PAGE,
            revision: deletion,
            keys_only: true,
            ..RangeRequest::default()
        };
        match connection.range(left).await {
            Ok(left) => Ok(left.kvs.iter().any(|entry| self.layout.resource_key(&entry.key).is_some())),
            // etcd has compacted the revision.
            Err(error) if !error.may_be_made => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Reads all resources in pages, all at the revision of the first page.
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
                        return Err(EtcdError::unknown("the watch has ended"));
                    };
                    (heard, asked) = (Instant::now(), false);
                    match self.take(response)? {
                        Taken::Changes { revision, resources } => self.hand_on(revision, resources),
                        Taken::AllGone { revision, resources } => match self.others_emptied(connection).await? {
                            true => self.empty(&connection.member, revision),
                            false => self.hand_on(revision, resources),
                        },
                        Taken::End(end) => return Ok(end),
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
                        return Err(EtcdError::unknown(format!("the watch does not answer within {GIVE_UP_AFTER:?}")));
                    }
                    if !asked && heard.elapsed() > ASK_AFTER {
                        asked = asking.send(WatchRequest { asked: Some(WatchAsked::Progress(WatchProgressRequest {})) }).is_ok();
                    }
                    self.keep(connection).await?;
                    self.tell(connection).await?;
                    if !self.presence.is_lent {
                        self.copy.write().await;
                    }
                }
            }
        }
    }

    /// Reads changes. All changes of one revision are in one message.
    fn take(&mut self, response: WatchResponse) -> Result<Taken, EtcdError> {
        if response.canceled {
            if response.compact_revision > 0 {
                return Ok(Taken::End(SessionEnd::ReadAgain));
            }
            return Err(EtcdError::unknown(format!("the watch was cancelled: {}", response.cancel_reason)));
        }
        let revision = response.header.as_ref().map_or(0, |header| header.revision as u64);
        // Only a progress notification says that no changes up to its revision are still to come: with events, the revision is that
        // of the store, and the next message may have earlier ones.
        let is_progress = response.events.is_empty() && !response.created;
        let mut resources: Vec<(ResourceKey, Option<StoredResource>)> = Vec::new();
        let (mut last, mut deleted_at_once) = (self.seen, 0);
        for event in response.events {
            let is_deleted = event.kind == 1;
            let Some(entry) = event.kv else { continue };
            if entry.mod_revision as u64 > last {
                (last, deleted_at_once) = (entry.mod_revision as u64, 0);
            }
            let Some(key) = self.layout.resource_key(&entry.key) else { continue };
            let is_new = entry.create_revision == entry.mod_revision;
            let resource = if is_deleted { None } else { self.layout.resource(entry).map(|(_, resource)| resource) };
            match is_deleted {
                true => (self.held, deleted_at_once) = (self.held.saturating_sub(1), deleted_at_once + 1),
                false => self.held += usize::from(is_new),
            }
            resources.push((key, resource));
        }
        self.seen = if is_progress { last.max(revision) } else { last };
        if self.is_emptied && resources.iter().any(|(_, resource)| resource.is_some()) {
            // From here on the cluster is believed: what it does not hold is served no longer.
            return Ok(Taken::End(SessionEnd::ReadAgain));
        }
        let revision = last;
        match self.held == 0 && deleted_at_once > 1 {
            true => Ok(Taken::AllGone { revision, resources }),
            false => Ok(Taken::Changes { revision, resources }),
        }
    }

    fn hand_on(&mut self, revision: u64, resources: Vec<(ResourceKey, Option<StoredResource>)>) {
        if !resources.is_empty() {
            self.copy.add(revision, &resources);
            self.mailbox.put(OutsideChange::Some { revision, resources });
        }
    }

    /// The cluster has lost all resources: nodes and copies keep those that they have.
    fn empty(&mut self, member: &str, revision: u64) {
        self.is_emptied = true;
        let set = ResourceSet { revision, ..ResourceSet::default() };
        self.mailbox.put(OutsideChange::All { set, is_doubtful: true });
        self.say_reached(member);
    }

    /// Carries out a command in a task of its own, so that commands do not wait for each other.
    fn carry_out(&mut self, connection: &EtcdConnection, command: EtcdCommand) {
        let connection = connection.clone();
        match command {
            EtcdCommand::Txn(mut request, lifetime, reply) => drop(tokio::spawn(async move {
                if let Some(ttl_s) = lifetime {
                    match connection.lease(ttl_s as i64).await {
                        Ok(lease) => put_under(&mut request, lease),
                        Err(error) => {
                            // A lease alone changes nothing.
                            let error = EtcdError::not_made(error.problem).of(&connection.member);
                            return drop(reply.send(Err(error)));
                        }
                    }
                }
                let _ = reply.send(connection.txn(request).await.map_err(|error| error.of(&connection.member)));
            })),
            EtcdCommand::Range(request, reply) => drop(tokio::spawn(async move {
                let _ = reply.send(connection.range(request).await.map_err(|error| error.of(&connection.member)));
            })),
            EtcdCommand::Serves(served) => self.presence.report.served = served,
            EtcdCommand::Lend(lent) => self.presence.lend(lent),
        }
    }

    /// Carries out a command while there is no connection: what needs one fails with `problem`, and the report of this node is sent
    /// with the next one.
    fn carry_out_offline(&mut self, command: EtcdCommand, problem: &str) {
        match command {
            EtcdCommand::Txn(_, _, reply) => drop(reply.send(Err(EtcdError::not_made(problem)))),
            EtcdCommand::Range(_, reply) => drop(reply.send(Err(EtcdError::not_made(problem)))),
            EtcdCommand::Serves(served) => self.presence.report.served = served,
            EtcdCommand::Lend(lent) => self.presence.lend(lent),
        }
    }

    /// Registers the node before it reads anything: once it serves what it has read, later changes must wait for this node. If
    /// etcd is read-only, it is read anyway; the watch reports the problem.
    async fn register(&mut self, connection: &EtcdConnection) {
        if self.keep(connection).await.is_ok() {
            let _ = self.tell(connection).await;
        }
    }

    /// Refreshes the lease of the node's key, or requests one.
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

    /// Removes the node's key.
    async fn leave(&self, connection: &EtcdConnection) {
        if let Some(lease) = self.presence.lease.filter(|_| !self.presence.is_lent) {
            // The result is ignored: the lease would expire a little later.
            let _ = timeout(LEAVE_PATIENCE, connection.revoke(lease)).await;
        }
    }
}

fn put_under(request: &mut TxnRequest, lease: i64) {
    // The first operation is the resource; the others are not bound to the lease.
    if let Some(EtcdOperation::Put(put)) = request.success.first_mut().and_then(|first| first.operation.as_mut()) {
        put.lease = lease;
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::{KeyValue, ResponseHeader, WatchEvent};
    use super::*;

    fn response(revision: i64, changed: &[(&str, i64)]) -> WatchResponse {
        let event = |(key, at): &(&str, i64)| WatchEvent {
            kv: Some(KeyValue { key: key.as_bytes().to_vec(), mod_revision: *at, ..KeyValue::default() }),
            ..WatchEvent::default()
        };
        WatchResponse {
            header: Some(ResponseHeader { revision, ..ResponseHeader::default() }),
            events: changed.iter().map(event).collect(),
            ..WatchResponse::default()
        }
    }

    #[test]
    fn a_watch_goes_on_after_the_last_change_and_not_after_the_revision_of_the_store() {
        let mailbox = Arc::new(Mailbox::default());
        let mut follower = Follower::new(
            Vec::new(),
            EtcdAccess::default(),
            KeyLayout::new("/apisix"),
            Arc::clone(&mailbox),
            None,
            Presence::new("node"),
            ResourceSet { revision: 5, ..ResourceSet::default() },
        );
        let mut seen = |response| {
            match follower.take(response) {
                Ok(Taken::Changes { revision, resources }) => follower.hand_on(revision, resources),
                _ => panic!("these are changes"),
            }
            follower.seen
        };
        // A watch that lags behind gets its events in several messages, each with the revision that the store has by then. The
        // keys of the first are none of ours: a node of APISIX reports itself in them.
        assert_eq!(seen(response(100, &[("/apisix/data_plane/server_info/a", 10)])), 10);
        assert_eq!(seen(response(100, &[("/apisix/routes/r", 50)])), 50);
        assert_eq!(seen(response(100, &[])), 100, "no change up to here is still to come");
        assert!(matches!(&mailbox.content().changes[..], [OutsideChange::Some { revision: 50, .. }]));
    }
}
