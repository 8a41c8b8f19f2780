//! Watches a source: each change is published, or refused and reported. Changes of a store's resources are made on the same
//! thread, so that all publications have one order.

mod changes;
mod expiry;
mod queue;

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::AcqRel, Ordering::Release};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::checker::ResourceChecker;
use super::live::LiveResources;
use super::loader::{DocumentInputs, DocumentLoader, LoadedDocument};
use super::settle::SettlePolicy;
use super::source::Wake;
use super::store::StoreFailure;
use super::writes::{QueuedWrite, ResourceWriter};
use crate::publish::Publisher;
use crate::store_state::StoreState;

pub use changes::publish_first;
use changes::publish_loaded;
use expiry::{ExpiryReminders, SvidReminders};
use queue::WriteQueue;

/// The interval of checks: notifications can get lost (network file systems, links to other directories).
const LOOK: Duration = Duration::from_secs(1);

/// A file that was just written may be incomplete: it is read when it has not changed for this time.
const QUIET: Duration = Duration::from_millis(100);

/// How long a process that ends waits for the thread, which may be blocked by a file system.
const END_LIMIT: Duration = Duration::from_secs(5);

/// How long closing or opening a store may take: checking a large file takes seconds.
const LEND_LIMIT: Duration = Duration::from_secs(30);

/// A watched source. Dropping it ends the watch.
pub struct ConfigWatch {
    commands: Sender<WatchCommand>,
    checker: Option<Arc<ResourceChecker>>,
    /// Disconnected when the thread has ended.
    ended: Receiver<()>,
}

enum WatchCommand {
    /// Check whether the source has changed.
    Look,
    /// Load the source now, changed or not.
    Reload,
    Write(QueuedWrite),
    /// Release the store for another process, or take it back.
    Lend(bool, Sender<Result<(), StoreFailure>>),
    End,
}

impl ConfigWatch {
    /// A handle for changes of the store's resources.
    pub fn writer(&self) -> ResourceWriter {
        let commands = self.commands.clone();
        ResourceWriter::new(move |write| commands.send(WatchCommand::Write(write)).is_ok())
    }

    /// Checks changes of resources; `None` if they are in a file and there is no Admin API that shows them.
    pub fn checker(&self) -> Option<Arc<ResourceChecker>> {
        self.checker.clone()
    }

    /// Releases the store for another process, or takes it back. While it is released, nothing can be written.
    ///
    /// # Errors
    /// If it cannot be taken back.
    pub fn lend_store(&self, lent: bool) -> Result<(), StoreFailure> {
        let (reply, outcome) = channel();
        let _ = self.commands.send(WatchCommand::Lend(lent, reply));
        outcome.recv_timeout(LEND_LIMIT).unwrap_or_else(|_| {
            Err(StoreFailure::new("the store does not answer", "check that the file systems of this machine respond"))
        })
    }

    /// Loads the document now, changed or not (SIGHUP). Returns at once; the result goes to the subscriber and to the status.
    pub fn reload(&self) {
        // Cannot fail: only dropping the watch ends the thread.
        let _ = self.commands.send(WatchCommand::Reload);
    }
}

impl ConfigWatch {
    /// Ends the watch: what changes from now on is not published. A file system that does not respond is waited for only for a second.
    pub fn end(&self) {
        self.end_within(Duration::from_secs(1));
    }

    fn end_within(&self, limit: Duration) {
        let _ = self.commands.send(WatchCommand::End);
        let _ = self.ended.recv_timeout(limit);
    }
}

impl Drop for ConfigWatch {
    fn drop(&mut self) {
        // The copy of a shared store is written to its end then.
        self.end_within(END_LIMIT);
    }
}

/// Watches a source. `loaded` is the version that has been published already.
///
/// # Errors
/// If no thread can be started.
pub fn watch(
    mut loader: DocumentLoader,
    loaded: LoadedDocument,
    publisher: Arc<Publisher>,
) -> std::io::Result<ConfigWatch> {
    let (commands, receiver) = channel();
    let looks = Arc::new(AtomicBool::new(false));
    loader.notify(&wake(commands.clone(), Arc::clone(&looks)));
    loader.accepted();
    if let Some(live) = loader.live() {
        live.served();
    }
    show(&loader, &loaded, &publisher);
    let checker = ResourceChecker::beside(&loader, &publisher).map(Arc::new);
    let inputs = loaded.inputs.clone();
    let serving = that_may_change(loaded);
    let (alive, ended) = channel();
    let watching = Watching {
        loader,
        publisher,
        inputs,
        serving,
        commands: receiver,
        queue: WriteQueue::default(),
        held: VecDeque::new(),
        was_change: false,
        looks,
        is_stalled: false,
        expiry_failed_at: None,
        store: StoreState::default(),
        reminders: ExpiryReminders::default(),
        svid_reminders: SvidReminders::default(),
    };
    thread::Builder::new().name("weir-config".to_owned()).spawn(move || {
        let _alive = alive;
        watching.run();
    })?;
    Ok(ConfigWatch { commands, checker, ended })
}

/// Queues a command to look, unless one is queued already.
fn wake(commands: Sender<WatchCommand>, looks: Arc<AtomicBool>) -> Wake {
    Arc::new(move || {
        if !looks.swap(true, AcqRel) {
            let _ = commands.send(WatchCommand::Look);
        }
    })
}

struct Watching {
    loader: DocumentLoader,
    publisher: Arc<Publisher>,
    /// The inputs of the document loaded last, whether it was accepted or not.
    inputs: DocumentInputs,
    /// The published document, if it has names whose lookups may change, or an identity from outside.
    serving: Option<LoadedDocument>,
    commands: Receiver<WatchCommand>,
    /// Changes that were received.
    queue: WriteQueue,
    /// Other commands that were received.
    held: VecDeque<WatchCommand>,
    /// The last command was to make changes.
    was_change: bool,
    /// Whether a command to look is queued.
    looks: Arc<AtomicBool>,
    /// The source did not respond to the last check, which has been reported.
    is_stalled: bool,
    /// When expired resources could not be deleted; `None` if the last attempt was successful.
    expiry_failed_at: Option<Instant>,
    /// The state of a shared store that was reported last.
    store: StoreState,
    reminders: ExpiryReminders,
    svid_reminders: SvidReminders,
}

/// The result of waiting for a command.
enum Woken {
    Look,
    Reload,
    /// Changes are queued.
    Change,
    End,
}

impl Watching {
    fn run(mut self) {
        loop {
            match self.wait(LOOK) {
                Woken::End => return,
                Woken::Reload => self.load(true),
                Woken::Change => self.change(),
                Woken::Look => {
                    self.follow_others();
                    if self.has_changed() && !self.settle() {
                        return;
                    }
                }
            }
            self.report_store();
            self.remove_expired();
            self.fetch_again();
            self.look_up_again();
            let status = self.publisher.status();
            self.reminders.follow(status.revision, &status.certificates);
            self.svid_reminders.follow(self.loader.workload.identity());
        }
    }

    /// Takes over the commands that were sent. Changes sent after the end, or after the store was to be released, are left.
    fn receive(&mut self) {
        while !matches!(self.held.back(), Some(WatchCommand::Lend(..) | WatchCommand::End)) {
            match self.commands.try_recv() {
                Ok(WatchCommand::Write(write)) => self.queue.push(write),
                Ok(command) => self.held.push_back(command),
                Err(_) => return,
            }
        }
    }

    fn wait(&mut self, limit: Duration) -> Woken {
        self.receive();
        let is_held_due = match self.held.front() {
            None => false,
            // After all changes that were sent before.
            Some(WatchCommand::Lend(..) | WatchCommand::End) => self.queue.is_empty(),
            // In turns with changes, of which there may be more and more.
            Some(_) => self.queue.is_empty() || self.was_change,
        };
        self.was_change = !is_held_due && !self.queue.is_empty();
        if self.was_change {
            return Woken::Change;
        }
        match self.held.pop_front().map_or_else(|| self.commands.recv_timeout(limit), Ok) {
            Ok(WatchCommand::End) | Err(RecvTimeoutError::Disconnected) => Woken::End,
            Ok(WatchCommand::Reload) => Woken::Reload,
            Ok(WatchCommand::Write(write)) => {
                self.queue.push(write);
                self.was_change = true;
                Woken::Change
            }
            Ok(WatchCommand::Lend(lent, reply)) => {
                let lent = self.loader.live().map_or(Ok(()), |live| live.store().lend(lent));
                // The caller may have stopped waiting.
                let _ = reply.send(lent);
                Woken::Look
            }
            Ok(WatchCommand::Look) => {
                // Cleared before looking, so that a change from here on queues another command.
                self.looks.store(false, Release);
                Woken::Look
            }
            Err(RecvTimeoutError::Timeout) => Woken::Look,
        }
    }

    /// The current state of the inputs. A source that does not respond is reported once, and checked again each time.
    fn inputs_now(&mut self) -> Option<DocumentInputs> {
        match self.loader.inputs_now(&self.inputs) {
            Ok(inputs) => {
                self.is_stalled = false;
                Some(inputs)
            }
            Err(diagnostic) => {
                if !std::mem::replace(&mut self.is_stalled, true) {
                    self.publisher.report_unavailable(vec![diagnostic]);
                }
                None
            }
        }
    }

    fn has_changed(&mut self) -> bool {
        self.inputs_now().is_some_and(|now| now != self.inputs)
    }

    /// Loads the document again if secrets it refers to have changed.
    fn fetch_again(&mut self) {
        let (changed, problems) = self.loader.refresh_secrets();
        if !problems.is_empty() {
            self.publisher.report_unavailable(problems);
        }
        if changed {
            self.load(false);
        }
    }

    /// Waits until the source has stopped changing, then loads it. Returns false if the watch is to end.
    fn settle(&mut self) -> bool {
        let Some(mut last) = self.inputs_now() else { return true };
        let mut since = Instant::now();
        while since.elapsed() < QUIET {
            match self.wait(QUIET.saturating_sub(since.elapsed())) {
                Woken::End => return false,
                Woken::Reload => {
                    self.load(true);
                    return true;
                }
                Woken::Change => self.change(),
                Woken::Look => {}
            }
            let Some(now) = self.inputs_now() else { return true };
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        if last != self.inputs {
            self.load(false);
        }
        true
    }

    /// Loads the document. Resources that are set aside are tried again: what they lacked (a secret, a file) may be there now.
    fn load(&mut self, asked_for: bool) {
        let before = self.loader.inputs_now(&self.inputs);
        if asked_for {
            self.loader.distrust_secrets();
        }
        let mut trial = self.loader.live().map(LiveResources::begin);
        let policy = trial.as_ref().map_or(SettlePolicy::Any, SettlePolicy::of_reload);
        if let Some(trial) = &mut trial {
            trial.retry_set_aside();
        }
        let loaded = match self.loader.load_trial(trial.as_mut()) {
            Ok(loaded) => LoadedDocument { trial, ..loaded },
            Err(diagnostics) => {
                // It is loaded again when it changes, or when a source that did not respond responds again.
                if let Ok(before) = before {
                    self.inputs = before;
                }
                self.publisher.refuse(diagnostics);
                return;
            }
        };
        self.inputs.clone_from(&loaded.inputs);
        if let Some(incomplete) = &loaded.incomplete
            && !asked_for
        {
            self.publisher.refuse(vec![incomplete.clone()]);
            return;
        }
        if let Ok((loaded, _)) = publish_loaded(&mut self.loader, loaded, &self.publisher, &policy) {
            self.inputs.clone_from(&loaded.inputs);
            self.accept(loaded);
        }
    }

    /// Accepts a document with changed resources.
    fn accept_trial(&mut self, loaded: LoadedDocument) {
        self.inputs.take(&loaded.inputs);
        self.accept(loaded);
    }

    fn accept(&mut self, loaded: LoadedDocument) {
        self.loader.accepted();
        if let Some(live) = self.loader.live() {
            live.served();
        }
        show(&self.loader, &loaded, &self.publisher);
        self.serving = that_may_change(loaded);
    }

    /// Publishes the current document again if a lookup of a name has another result, or the Workload API has given something new.
    fn look_up_again(&mut self) {
        self.loader.return_to_served();
        let Some(loaded) = &mut self.serving else { return };
        if self.loader.update_outside(loaded) {
            // The document has compiled before, and neither addresses nor an identity can cause faults.
            let named = |warning| loaded.named(warning);
            let warnings = loaded.warnings.clone();
            let _ = self.publisher.try_publish(&loaded.document, loaded.revision.clone(), (warnings, &named), None);
        }
    }
}

/// Shows the resources of a published file, if the Admin API is to.
fn show(loader: &DocumentLoader, loaded: &LoadedDocument, publisher: &Publisher) {
    if let Some(shown) = loader.shown() {
        shown.take(&loaded.document, publisher.status().revision, &loaded.revision, Path::new(&**loader.source_name()));
    }
}

fn that_may_change(loaded: LoadedDocument) -> Option<LoadedDocument> {
    (!loaded.document.queries().is_empty() || loaded.document.settings.spiffe.is_some()).then_some(loaded)
}
