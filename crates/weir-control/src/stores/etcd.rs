//! Resources in etcd, with the keys and values of Apache APISIX, shared with other nodes and with APISIX itself.
//!
//! A thread follows the cluster (`follower.rs`). The resources last read stay in memory, and in a copy on disk that a node starts
//! with while etcd cannot be reached.

mod confirm;
mod connection;
mod follower;
mod layout;
mod wire;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::embedded::EmbeddedStore;
use super::live::now_ms;
use super::mailbox::Mailbox;
use super::resources::{ResourceChange, ResourceKey, ResourceSet, RevisionRecord};
use super::shared::{KnownNodes, OutsideChange, ServedContent, SharedStore};
use super::source::Wake;
use super::store::{CommitFailure, MOST_READ, ResourceStore, StoreFailure};
use crate::document::EtcdSettings;
use crate::store_state::StoreState;
use crate::text::diagnostic::Diagnostic;
use confirm::CommitAnswer;
use connection::{EtcdAccess, EtcdError, EtcdTls};
use follower::{Follower, Presence};
use layout::{KeyLayout, end_of};
use wire::{
    Compare, CompareResult, CompareTarget, DeleteRangeRequest, EtcdOperation, EtcdOutcome, PutRequest, RangeRequest,
    RequestOp, SortOrder, SortTarget, TxnRequest, TxnResponse,
};

/// How long a start waits for etcd before it uses the copy.
const START_PATIENCE: Duration = Duration::from_secs(10);
/// How long a node without a copy tries to reach etcd: nodes and etcd may be started together.
const FIRST_START_PATIENCE: Duration = Duration::from_secs(20);
/// After this time, such a node says that it waits.
const TELL_AFTER: Duration = Duration::from_secs(1);
/// How long a response is awaited; after that, the outcome of the request is reported as unknown.
const ANSWER_PATIENCE: Duration = Duration::from_secs(15);
/// How long to wait for changes of other nodes that are known to exist.
const CATCH_UP: Duration = Duration::from_secs(2);
/// How long to wait for changes of writers such as APISIX, which do not write `puts` and `deletes`.
const TRACELESS_PAUSE: Duration = Duration::from_millis(20);
/// etcd's own limit (`--max-txn-ops`) is 128 comparisons and 128 operations; three of each are for the keys written with every
/// change.
const MOST_CHANGES: usize = 125;
/// etcd's own limit (`--max-request-bytes`) is 1.5 MiB.
const MOST_BYTES: usize = 3 << 19;
/// The most entries of the history that are asked for at once: etcd accepts values of 1.5 MiB each.
const MOST_AT_ONCE: usize = 16;
/// The history is trimmed when this node has added so many entries, or so many bytes of them.
const TRIM_EVERY: u64 = 50;
const TRIM_EVERY_BYTES: u64 = 16 << 20;

/// A cluster of etcd.
pub struct EtcdStore {
    name: String,
    layout: KeyLayout,
    node: Box<str>,
    kept: u64,
    /// The most bytes of them.
    kept_bytes: u64,
    mailbox: Arc<Mailbox>,
    commands: Option<UnboundedSender<EtcdCommand>>,
    copy: Option<Arc<EmbeddedStore>>,
    start: Mutex<ResourceSet>,
    untrimmed: Mutex<UntrimmedHistory>,
    thread: Option<JoinHandle<()>>,
}

/// What this node has added to the history since it was trimmed.
#[derive(Debug, Default)]
struct UntrimmedHistory {
    /// Trimmed at least once, since other nodes may have left a surplus.
    was_trimmed: bool,
    entries: u64,
    bytes: u64,
}

impl UntrimmedHistory {
    /// Adds an entry. Whether the history is to be trimmed now.
    fn add(&mut self, bytes: u64) -> bool {
        (self.entries, self.bytes) = (self.entries + 1, self.bytes + bytes);
        let is_due = !self.was_trimmed || self.entries >= TRIM_EVERY || self.bytes >= TRIM_EVERY_BYTES;
        if is_due {
            *self = UntrimmedHistory { was_trimmed: true, ..UntrimmedHistory::default() };
        }
        is_due
    }
}

/// A request to the thread, with the channel for its response.
enum EtcdCommand {
    Txn(TxnRequest, Option<u64>, SyncSender<Result<TxnResponse, EtcdError>>),
    Range(RangeRequest, SyncSender<Result<wire::RangeResponse, EtcdError>>),
    Serves(ServedContent),
    /// Another process acts as this node from now on, or (`false`) no more.
    Lend(bool),
}

impl EtcdStore {
    /// Reads the resources of the cluster, or of the copy in `directory` if the cluster cannot be reached. Keeps the last `kept`
    /// revisions that nodes of Weir have written. Without a directory there is no copy.
    ///
    /// # Errors
    /// If neither the cluster nor a copy can be read.
    pub fn open(
        settings: &EtcdSettings,
        kept: u64,
        node: &str,
        beside: &Path,
        directory: Option<&Path>,
        told: &dyn Fn(&str),
    ) -> Result<EtcdStore, StoreFailure> {
        let copy =
            directory.map(|directory| EmbeddedStore::open_copy(&directory.join("etcd-copy.redb"))).transpose()?;
        let copy = copy.map(Arc::new);
        let known = copy.as_ref().map(|copy| copy.load()).transpose()?.unwrap_or_default();
        let (commands, inbox) = unbounded_channel();
        let (first, outcome) = channel();
        let mailbox = Arc::new(Mailbox::default());
        let presence = Presence::new(node);
        let layout = KeyLayout::new(&settings.prefix);
        let follower = Follower::new(
            settings.hosts.iter().map(|host| host.to_string()).collect(),
            access(settings, beside)?,
            layout.clone(),
            Arc::clone(&mailbox),
            copy.clone(),
            presence,
            known.clone(),
        );
        let is_first_start = directory.is_some() && known.revision == 0;
        let follower = if is_first_start { follower.awaited() } else { follower };
        let thread = thread::Builder::new().name("weir-etcd".to_owned()).spawn(move || follower.run(inbox, first));
        let thread = thread.map_err(|error| StoreFailure::new(format!("a thread cannot be started: {error}"), ""))?;
        let mut store = EtcdStore {
            name: format!("etcd {}", settings.hosts.join(",")),
            layout,
            node: node.into(),
            kept: kept.max(1),
            kept_bytes: u64::MAX,
            mailbox,
            commands: Some(commands),
            copy,
            start: Mutex::default(),
            untrimmed: Mutex::default(),
            thread: Some(thread),
        };
        let set = match store.first(&outcome, is_first_start, told) {
            Some(Ok(set)) => set,
            _ if known.revision > 0 => known,
            Some(Err(problem)) => return Err(store.away(&problem)),
            None if is_first_start => return Err(store.never_reached()),
            None => return Err(store.away("it does not answer")),
        };
        *store.start.get_mut().unwrap_or_else(PoisonError::into_inner) = set;
        Ok(store)
    }

    /// Keeps about so many bytes of history from the next change on.
    pub fn limit_history(&mut self, bytes: u64) {
        self.kept_bytes = bytes;
    }

    fn away(&self, problem: &str) -> StoreFailure {
        StoreFailure::away(
            format!("{} cannot be used: {problem}", self.name),
            "check `store.etcd.hosts` and that etcd runs",
        )
    }

    /// Waits for the result of the first attempt; `None` if there is none in time. A node that has nothing to start with says what
    /// it waits for.
    fn first(
        &self,
        outcome: &Receiver<Result<ResourceSet, String>>,
        is_first_start: bool,
        told: &dyn Fn(&str),
    ) -> Option<Result<ResourceSet, String>> {
        if !is_first_start {
            return outcome.recv_timeout(START_PATIENCE).ok();
        }
        let deadline = Instant::now() + FIRST_START_PATIENCE;
        let mut has_told = false;
        while let Some(left) = deadline.checked_duration_since(Instant::now()) {
            match outcome.recv_timeout(left.min(TELL_AFTER)) {
                Ok(first) => return Some(first),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {}
            }
            let problem = self.mailbox.content().state.problem.clone();
            if let Some(problem) = problem.filter(|_| !has_told) {
                let limit = FIRST_START_PATIENCE.as_secs();
                told(&format!("{} cannot be used yet, trying for {limit} seconds: {problem}", self.name));
                has_told = true;
            }
        }
        None
    }

    fn never_reached(&self) -> StoreFailure {
        let problem = self.mailbox.content().state.problem.clone();
        let problem = problem.unwrap_or_else(|| "it does not answer".to_owned());
        StoreFailure::away(
            format!("{} cannot be used, tried for {FIRST_START_PATIENCE:?}: {problem}", self.name),
            "check `store.etcd.hosts` and that etcd runs, then start the node again; a node that has read the resources once \
             starts without etcd, from the copy in its data directory (`data_dir`)",
        )
    }

    /// Sends a request to the thread, and waits for its response for at most `patience`.
    fn ask_within<T>(
        &self,
        patience: Duration,
        command: impl FnOnce(SyncSender<Result<T, EtcdError>>) -> EtcdCommand,
    ) -> Result<T, EtcdError> {
        let (reply, answer) = sync_channel(1);
        let sent = self.commands.as_ref().is_some_and(|commands| commands.send(command(reply)).is_ok());
        if !sent {
            return Err(EtcdError::not_made("this process is shutting down"));
        }
        match answer.recv_timeout(patience) {
            Ok(answered) => answered,
            Err(RecvTimeoutError::Timeout) => Err(EtcdError::unknown(format!("no answer within {patience:?}"))),
            Err(RecvTimeoutError::Disconnected) => Err(EtcdError::unknown("the connection was lost")),
        }
    }

    /// Sends a request that changes nothing.
    fn ask<T>(&self, command: impl FnOnce(SyncSender<Result<T, EtcdError>>) -> EtcdCommand) -> Result<T, StoreFailure> {
        self.ask_within(ANSWER_PATIENCE, command).map_err(|error| self.away(&error.problem))
    }

    /// A transaction that fails if a resource differs from what its author has seen, if a resource that it refers to may have
    /// been deleted, or if its history entry `entry` exists (see [`EtcdStore::settle`]).
    fn transaction(&self, record: &RevisionRecord, entry: &[u8], text: Vec<u8>) -> TxnRequest {
        let (mut compare, mut success, mut touched) = (Vec::new(), Vec::new(), Vec::new());
        let seen = record.revision - 1;
        for ResourceChange { key, before, after } in &record.changes {
            let key = self.layout.key(key);
            compare.push(changed_last(&key, CompareResult::Equal, before.as_ref().map_or(0, |it| it.modified)));
            touched.push(range(&key));
            success.push(match after {
                Some(after) => put(&key, after.json.as_bytes().to_vec()),
                None => delete(&key, Vec::new()),
            });
        }
        let (puts, deletes) = (self.layout.puts(), self.layout.deletes());
        // A new resource may refer to one that another node deletes at the same time, and a deleted one may be referred to by one
        // that another node writes.
        compare.push(changed_last(&deletes, CompareResult::Less, seen + 1));
        if record.changes.iter().any(|change| change.after.is_some()) {
            success.push(put(&puts, self.node.as_bytes().to_vec()));
        }
        if record.changes.iter().any(|change| change.after.is_none()) {
            compare.push(changed_last(&puts, CompareResult::Less, seen + 1));
            success.push(put(&deletes, self.node.as_bytes().to_vec()));
        }
        touched.extend([range(&puts), range(&deletes)]);
        compare.push(changed_last(entry, CompareResult::Equal, 0));
        success.push(put(entry, text));
        TxnRequest { compare, success, failure: touched }
    }

    /// The transaction for a change, and the key of its history entry.
    fn fitting(&self, record: &RevisionRecord) -> Result<(TxnRequest, Vec<u8>), StoreFailure> {
        let count = record.changes.len();
        if count > MOST_CHANGES {
            let problem = format!("etcd accepts {MOST_CHANGES} changes per transaction, and these are {count}");
            return Err(StoreFailure::new(problem, "split the changes into several transactions"));
        }
        let text = serde_json::to_vec(record).expect("it has text keys alone");
        let entry = self.layout.history_entry(record.at_ms, &self.node, text.len() as u64);
        let request = self.transaction(record, &entry, text);
        let size = prost::Message::encoded_len(&request);
        if size > MOST_BYTES {
            let problem = format!("etcd accepts {MOST_BYTES} bytes per transaction, and these changes have {size}");
            let advice = match count {
                1 => "make the resource smaller: the history keeps its value before and after the change, too",
                _ => "split the changes into several transactions",
            };
            return Err(StoreFailure::new(problem, advice));
        }
        Ok((request, entry))
    }

    /// Deletes the history entries in excess of the number and of the bytes kept.
    fn trim(&self) -> Result<(), StoreFailure> {
        let history = self.layout.history();
        let all = RangeRequest {
            range_end: end_of(&history),
            key: history.clone(),
            sort_order: SortOrder::Ascend as i32,
            sort_target: SortTarget::Key as i32,
            keys_only: true,
            ..RangeRequest::default()
        };
        let found = self.ask(|reply| EtcdCommand::Range(all, reply))?.kvs;
        let surplus = layout::surplus(&found, self.kept, self.kept_bytes);
        let Some(until) = surplus.checked_sub(1).map(|last| found[last].key.clone()) else { return Ok(()) };
        let request =
            TxnRequest { success: vec![delete(&history, [until, vec![0]].concat())], ..TxnRequest::default() };
        self.ask(|reply| EtcdCommand::Txn(request, None, reply)).map(drop)
    }
}

/// Refuses a change that only deletes what an emptied cluster has lost: it would change nothing there, and no other node would learn
/// of it.
fn refuse_deletion_of_lost(record: &RevisionRecord) -> Result<(), StoreFailure> {
    let is_of_lost = |change: &ResourceChange| {
        change.after.is_none() && change.before.as_ref().is_some_and(|before| before.modified == 0)
    };
    if record.changes.is_empty() || !record.changes.iter().all(is_of_lost) {
        return Ok(());
    }
    let problem = "etcd has lost all resources, so there is nothing to delete; nodes still serve what they read before";
    let advice = "import a back-up, or write a resource: from then on nodes serve what etcd holds and nothing else";
    Err(StoreFailure::new(problem, advice))
}

/// The last revision that changed any of the keys in a response.
fn last_change(answer: TxnResponse) -> u64 {
    let revisions = answer.responses.into_iter().filter_map(|response| match response.outcome {
        Some(EtcdOutcome::Range(found)) => found.kvs.iter().map(|entry| entry.mod_revision as u64).max(),
        _ => None,
    });
    revisions.max().unwrap_or(0)
}

/// The lifetime of a change in seconds, for its lease; etcd deletes the resource when the lease ends.
fn lifetime(record: &RevisionRecord) -> Option<u64> {
    let until = record.changes.iter().filter_map(|change| change.after.as_ref()?.expires_ms).min()?;
    Some(until.saturating_sub(now_ms()).div_ceil(1_000).max(1))
}

fn changed_last(key: &[u8], result: CompareResult, revision: u64) -> Compare {
    let target = CompareTarget::Mod as i32;
    Compare { result: result as i32, target, key: key.to_vec(), mod_revision: Some(revision as i64) }
}

fn operation(operation: EtcdOperation) -> RequestOp {
    RequestOp { operation: Some(operation) }
}

fn put(key: &[u8], value: Vec<u8>) -> RequestOp {
    operation(EtcdOperation::Put(PutRequest { key: key.to_vec(), value, lease: 0 }))
}

fn delete(key: &[u8], range_end: Vec<u8>) -> RequestOp {
    operation(EtcdOperation::Delete(DeleteRangeRequest { key: key.to_vec(), range_end }))
}

fn range(key: &[u8]) -> RequestOp {
    range_of(key, true)
}

fn range_of(key: &[u8], keys_only: bool) -> RequestOp {
    operation(EtcdOperation::Range(RangeRequest { key: key.to_vec(), keys_only, ..RangeRequest::default() }))
}

fn access(settings: &EtcdSettings, beside: &Path) -> Result<EtcdAccess, StoreFailure> {
    let read = |name: &str| {
        let path = beside.join(name);
        std::fs::read(&path).map_err(|error| {
            StoreFailure::new(format!("store.etcd.tls: {} cannot be read: {error}", path.display()), "")
        })
    };
    let tls = settings.tls.as_ref().map(|tls| {
        let identity = tls.identity.as_ref().map(|(cert, key)| Ok((read(cert)?, read(key)?))).transpose()?;
        let authorities = tls.authorities.as_ref().map(|name| read(name)).transpose()?;
        Ok(EtcdTls { authorities, identity, server_name: tls.server_name.clone() })
    });
    Ok(EtcdAccess { user: settings.user.clone(), tls: tls.transpose()?, timeout: settings.timeout })
}

impl ResourceStore for EtcdStore {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn load(&self) -> Result<ResourceSet, StoreFailure> {
        Ok(std::mem::take(&mut self.start.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    fn commit(&self, revisions: &[RevisionRecord]) -> Result<u64, CommitFailure> {
        // Changes to a shared store are committed one at a time.
        let [record] = revisions else { unreachable!("changes of a shared store are made one by one") };
        refuse_deletion_of_lost(record).map_err(CommitFailure::Failed)?;
        let (request, entry) = self.fitting(record)?;
        let answer = match self.ask_to_change(request, lifetime(record), &entry)? {
            CommitAnswer::Answered(answer) => answer,
            CommitAnswer::Made(revision) => return Ok(revision),
        };
        let revision = answer.header.as_ref().map_or(0, |header| header.revision as u64);
        if !answer.succeeded {
            let known = last_change(answer);
            let mut content = self.mailbox.content();
            content.known = content.known.max(known);
            return Err(CommitFailure::MovedOn);
        }
        let mut untrimmed = self.untrimmed.lock().unwrap_or_else(PoisonError::into_inner);
        if untrimmed.add(layout::entry_bytes(&entry)) {
            // If it fails, the surplus stays until the next time.
            let _ = self.trim();
        }
        Ok(revision)
    }

    fn history(&self, before: u64, count: usize) -> Result<Vec<RevisionRecord>, StoreFailure> {
        // For etcd, 0 is no limit.
        if before <= 1 || count == 0 {
            return Ok(Vec::new());
        }
        let history = self.layout.history();
        let (mut all, mut before, mut bytes) = (Vec::new(), before, 0);
        loop {
            let missing = (count - all.len()).min(MOST_AT_ONCE);
            let request = RangeRequest {
                range_end: end_of(&history),
                key: history.clone(),
                limit: i64::try_from(missing).unwrap_or(0),
                sort_order: SortOrder::Descend as i32,
                sort_target: SortTarget::Create as i32,
                max_create_revision: i64::try_from(before.saturating_sub(1)).unwrap_or(0),
                ..RangeRequest::default()
            };
            let found = self.ask(|reply| EtcdCommand::Range(request, reply))?;
            bytes += found.kvs.iter().map(|entry| entry.value.len() as u64).sum::<u64>();
            all.extend(found.kvs.iter().filter_map(layout::record));
            if bytes >= MOST_READ && !all.is_empty() {
                return Ok(all);
            }
            match found.kvs.last() {
                // Entries of changes that were given up are empty.
                Some(last) if found.kvs.len() == missing && all.len() < count && last.create_revision > 1 => {
                    before = last.create_revision as u64;
                }
                _ => return Ok(all),
            }
        }
    }

    fn lend(&self, lent: bool) -> Result<(), StoreFailure> {
        if let Some(commands) = &self.commands {
            let _ = commands.send(EtcdCommand::Lend(lent));
        }
        self.copy.as_ref().map_or(Ok(()), |copy| copy.lend(lent))
    }

    fn shared(&self) -> Option<&dyn SharedStore> {
        Some(self)
    }
}

impl SharedStore for EtcdStore {
    fn notify(&self, wake: Wake) {
        self.mailbox.notify(wake);
    }

    fn take_changes(&self) -> Vec<OutsideChange> {
        std::mem::take(&mut self.mailbox.content().changes)
    }

    fn catch_up(&self) -> bool {
        let traces = [range(&self.layout.puts()), range(&self.layout.deletes())];
        let request = TxnRequest { success: traces.to_vec(), ..TxnRequest::default() };
        let Ok(found) = self.ask(|reply| EtcdCommand::Txn(request, None, reply)) else { return false };
        let written = last_change(found);
        let deadline = Instant::now() + CATCH_UP;
        let mut content = self.mailbox.content();
        content.known = content.known.max(written);
        while content.seen < content.known {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { break };
            content = self.mailbox.changed.wait_timeout(content, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        if content.changes.is_empty() {
            content =
                self.mailbox.changed.wait_timeout(content, TRACELESS_PAUSE).unwrap_or_else(PoisonError::into_inner).0;
        }
        !content.changes.is_empty()
    }

    fn fits(&self, record: &RevisionRecord) -> Result<(), StoreFailure> {
        self.fitting(record).map(drop)
    }

    fn serves(&self, served: ServedContent, _set_aside: &BTreeMap<ResourceKey, Diagnostic>) {
        if let Some(commands) = &self.commands {
            let _ = commands.send(EtcdCommand::Serves(served));
        }
    }

    fn nodes(&self) -> Result<KnownNodes, StoreFailure> {
        let nodes = self.layout.nodes();
        let request = RangeRequest { range_end: end_of(&nodes), key: nodes, ..RangeRequest::default() };
        let found = self.ask(|reply| EtcdCommand::Range(request, reply))?;
        let list = found.kvs.iter().filter_map(|entry| serde_json::from_slice(&entry.value).ok()).collect();
        Ok(KnownNodes { told_by: format!("the store {}", self.name()), newest: None, list })
    }

    fn state(&self) -> StoreState {
        self.mailbox.content().state.clone()
    }
}

impl Drop for EtcdStore {
    fn drop(&mut self) {
        // When the channel is closed, the thread ends and deletes the key of this node.
        drop(self.commands.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
