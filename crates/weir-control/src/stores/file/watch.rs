//! Watching: what happens to the file is published, or refused and reported.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use notify::{RecommendedWatcher, RecursiveMode, Watcher};

use super::{FileStore, Loaded, SeenFiles};
use crate::publish::Publisher;

/// Notifications can get lost (network file systems, links to elsewhere), so the file is looked at anyway.
const LOOK: Duration = Duration::from_secs(1);

/// A file that was just written to may be only half written: it is read when nothing has happened to it for so long.
const QUIET: Duration = Duration::from_millis(100);

/// A watched file. Dropping it ends the watch.
pub struct ConfigWatch {
    wishes: SyncSender<WatchCommand>,
    thread: Option<JoinHandle<()>>,
}

enum WatchCommand {
    /// Something has happened near the file.
    Look,
    /// Load it now, changed or not.
    Reload,
    End,
}

impl ConfigWatch {
    /// Loads the file at once, changed or not (SIGHUP). What became of it is told to the subscriber and in the status.
    pub fn reload(&self) {
        // Only fails when the thread is gone, which nothing but dropping the watch brings about.
        let _ = self.wishes.send(WatchCommand::Reload);
    }
}

impl Drop for ConfigWatch {
    fn drop(&mut self) {
        let _ = self.wishes.send(WatchCommand::End);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Watches a file from the version on that has been published from `loaded`.
///
/// # Errors
/// Where no thread can be started.
pub fn watch(mut store: FileStore, loaded: Loaded, publisher: Arc<Publisher>) -> std::io::Result<ConfigWatch> {
    let (wishes, receiver) = sync_channel(8);
    let watcher = notifications(store.path(), wishes.clone());
    store.accepted(&loaded);
    let wake = wishes.clone();
    // A full channel already holds a wish that will wake the watch.
    store.names.listen(move || drop(wake.try_send(WatchCommand::Look)));
    let seen = loaded.seen.clone();
    let serving = with_names(loaded);
    let watching = Watching { store, publisher, seen, serving, wishes: receiver, _watcher: watcher };
    let thread = thread::Builder::new().name("weir-config".to_owned()).spawn(move || watching.run())?;
    Ok(ConfigWatch { wishes, thread: Some(thread) })
}

/// Notifications about the directory of the file: the file itself may be replaced at any time. Without them (no inotify
/// left) a look every second has to do.
fn notifications(path: &Path, wishes: SyncSender<WatchCommand>) -> Option<RecommendedWatcher> {
    let name = path.file_name().map(OsStr::to_owned)?;
    let handler = move |event: notify::Result<notify::Event>| {
        if event.is_ok_and(|event| event.need_rescan() || event.paths.iter().any(|path| concerns(path, &name))) {
            // A full channel already holds a wish to look.
            let _ = wishes.try_send(WatchCommand::Look);
        }
    };
    let mut watcher = notify::recommended_watcher(handler).ok()?;
    watcher.watch(&directory(path), RecursiveMode::NonRecursive).ok()?;
    Some(watcher)
}

/// Other files of the directory, such as a log, change often. `..data` is the link Kubernetes turns.
fn concerns(path: &Path, name: &OsString) -> bool {
    path.file_name().is_some_and(|changed| changed == name || changed.as_encoded_bytes().starts_with(b".."))
}

fn directory(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

struct Watching {
    store: FileStore,
    publisher: Arc<Publisher>,
    /// The files that were loaded last, whether they were accepted or not.
    seen: SeenFiles,
    /// The version that serves, if it has names that may come to mean something else.
    serving: Option<Loaded>,
    wishes: Receiver<WatchCommand>,
    _watcher: Option<RecommendedWatcher>,
}

impl Watching {
    fn run(mut self) {
        loop {
            match self.wishes.recv_timeout(LOOK) {
                Ok(WatchCommand::End) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(WatchCommand::Reload) => self.load(true),
                Ok(WatchCommand::Look) | Err(RecvTimeoutError::Timeout) => {
                    if self.seen.now() != self.seen && !self.settle() {
                        return;
                    }
                }
            }
            self.fetch_again();
            self.look_up_again();
        }
    }

    /// Loads the file once more if secrets it refers to have changed.
    fn fetch_again(&mut self) {
        let (changed, problems) = self.store.secrets.refresh();
        if !problems.is_empty() {
            self.publisher.refuse(self.store.complaints(problems));
        }
        if changed {
            self.load(false);
        }
    }

    /// Waits until the file rests, then loads it. False when the watch is to end.
    fn settle(&mut self) -> bool {
        let mut last = self.seen.now();
        let mut since = Instant::now();
        while since.elapsed() < QUIET {
            match self.wishes.recv_timeout(QUIET - since.elapsed().min(QUIET)) {
                Ok(WatchCommand::End) | Err(RecvTimeoutError::Disconnected) => return false,
                Ok(WatchCommand::Reload) => {
                    self.load(true);
                    return true;
                }
                Ok(WatchCommand::Look) | Err(RecvTimeoutError::Timeout) => {}
            }
            let now = self.seen.now();
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        if last != self.seen {
            self.load(false);
        }
        true
    }

    fn load(&mut self, asked_for: bool) {
        let before = self.seen.now();
        if asked_for {
            self.store.secrets.distrust();
        }
        let loaded = match self.store.load() {
            Ok(loaded) => loaded,
            Err(diagnostics) => {
                self.seen = before;
                self.publisher.refuse(diagnostics);
                return;
            }
        };
        self.seen.clone_from(&loaded.seen);
        if let Some(cut_off) = self.store.cut_off(&loaded)
            && !asked_for
        {
            self.publisher.refuse(vec![cut_off]);
            return;
        }
        if self.publisher.publish(&loaded.document, loaded.hash.clone(), loaded.warnings.clone()).is_ok() {
            self.store.accepted(&loaded);
            self.serving = with_names(loaded);
        }
    }

    /// Publishes what serves once more if a name has come to mean something else.
    fn look_up_again(&mut self) {
        let Some(loaded) = &mut self.serving else { return };
        if self.store.look_up(loaded) {
            // It has compiled before, and addresses cannot make it wrong.
            let _ = self.publisher.publish(&loaded.document, loaded.hash.clone(), loaded.warnings.clone());
        }
    }
}

fn with_names(loaded: Loaded) -> Option<Loaded> {
    (!loaded.document.queries().is_empty()).then_some(loaded)
}
