//! A journal with its own thread and group commit.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::log::{AppendError, JournalShared, Log, Removal, Status};
use crate::options::{Options, Sync};
use crate::reader::Reader;
use crate::recovery::Recovery;
use crate::storage::Storage;
use crate::{Disk, Seq};

/// Payload bytes written at once; a batch may exceed the segment size by as much.
const BATCH_BYTES: usize = 1 << 20;
/// Bytes a [`Reader`] reads at a time.
const READ_BYTES: usize = 64 << 10;

/// Called on the journal's thread: with the record's number once it is committed, or with an error.
pub type OnCommit = Box<dyn FnOnce(Result<Seq, AppendError>) + Send>;

/// A journal. Any thread may append; dropping it writes and syncs all records accepted so far.
pub struct Journal {
    shared: Arc<JournalShared>,
    inbox: Arc<Inbox>,
    max_record_bytes: u32,
    max_pending_bytes: usize,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Inbox {
    state: Mutex<PendingAppends>,
    /// Wakes the journal's thread.
    wake: Condvar,
    /// Wakes threads in [`Journal::wait_for_more`].
    committed: Condvar,
}

#[derive(Default)]
struct PendingAppends {
    appends: VecDeque<(Vec<u8>, OnCommit)>,
    bytes: usize,
    release: Option<Seq>,
    expire_before_ms: Option<u64>,
    options: Option<Options>,
    is_closed: bool,
    /// One of `appends` must be synced before it counts as committed.
    sync_now: bool,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, PendingAppends> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Journal {
    /// Opens the journal in a directory, which is created if missing, and starts its thread.
    ///
    /// # Errors
    /// The directory or a file in it cannot be read, or the thread cannot be started. Damaged contents are not an error; they
    /// are reported in [`Recovery`].
    pub fn open(directory: impl Into<std::path::PathBuf>, options: Options) -> io::Result<(Journal, Recovery)> {
        Journal::open_in(Arc::new(Disk::open(directory)?), options)
    }

    /// The same over any [`Storage`].
    ///
    /// # Errors
    /// As for [`Journal::open`].
    pub fn open_in(storage: Arc<dyn Storage>, options: Options) -> io::Result<(Journal, Recovery)> {
        let (max_record_bytes, max_pending_bytes, sync) =
            (options.max_record_bytes, options.max_pending_bytes, options.sync);
        let (log, recovery) = Log::open(storage, options)?;
        let shared = Arc::clone(log.shared());
        let inbox = Arc::new(Inbox::default());
        let committer = Committer { log, inbox: Arc::clone(&inbox), sync, next_sync: None };
        let thread = std::thread::Builder::new().name("journal".into()).spawn(move || committer.run())?;
        Ok((Journal { shared, inbox, max_record_bytes, max_pending_bytes, thread: Some(thread) }, recovery))
    }

    /// Queues a record. `on_commit` is called once, on the journal's thread, unless an error is returned.
    ///
    /// # Errors
    /// The record is too large, or too many bytes are queued; it was not accepted.
    pub fn append(&self, payload: Vec<u8>, on_commit: OnCommit) -> Result<(), AppendError> {
        self.hand_over(payload, on_commit, false)
    }

    /// Like [`Journal::append`]; with [`Sync::Every`] the record is synced before it counts as committed.
    ///
    /// # Errors
    /// As for [`Journal::append`].
    pub fn append_synced(&self, payload: Vec<u8>, on_commit: OnCommit) -> Result<(), AppendError> {
        self.hand_over(payload, on_commit, true)
    }

    fn hand_over(&self, payload: Vec<u8>, on_commit: OnCommit, sync_now: bool) -> Result<(), AppendError> {
        let bytes = payload.len();
        if bytes > self.max_record_bytes as usize {
            return Err(AppendError::TooLarge { bytes, limit: self.max_record_bytes });
        }
        let mut pending = self.inbox.lock();
        // An empty queue accepts any record, or one larger than the limit could never be appended.
        if pending.bytes > 0 && pending.bytes + bytes > self.max_pending_bytes {
            return Err(AppendError::Busy);
        }
        pending.bytes += bytes;
        pending.appends.push_back((payload, on_commit));
        pending.sync_now |= sync_now;
        drop(pending);
        self.inbox.wake.notify_one();
        Ok(())
    }

    /// Appends a record and waits until it is committed.
    ///
    /// # Errors
    /// The record was not written.
    pub fn append_and_wait(&self, payload: Vec<u8>) -> Result<Seq, AppendError> {
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        self.append(payload, Box::new(move |result| drop(sender.send(result))))?;
        receiver.recv().unwrap_or(Err(AppendError::Closed))
    }

    /// A reader of the records after `after`; 0 starts with the oldest.
    pub fn reader(&self, after: Seq) -> Reader {
        Reader::new(Arc::clone(&self.shared), after, READ_BYTES)
    }

    /// The newest committed record; 0 before the first.
    pub fn committed(&self) -> Seq {
        self.shared.committed.load(Ordering::Acquire)
    }

    /// Waits until a record after this one is committed; `false` on a time-out.
    pub fn wait_for_more(&self, after: Seq, patience: Duration) -> bool {
        let pending = self.inbox.lock();
        let is_waiting = |_: &mut PendingAppends| self.committed() <= after;
        let waited = self.inbox.committed.wait_timeout_while(pending, patience, is_waiting);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Declares records up to and including `seq` as processed. Segments without any other records are removed soon.
    pub fn release(&self, seq: Seq) {
        let mut pending = self.inbox.lock();
        pending.release = pending.release.max(Some(seq));
        drop(pending);
        self.inbox.wake.notify_one();
    }

    /// Removes segments without a record younger than this, soon. [`Journal::take_removals`] reports them.
    pub fn expire(&self, max_age: Duration) {
        let before_ms = now_ms().saturating_sub(max_age.as_millis() as u64);
        let mut pending = self.inbox.lock();
        pending.expire_before_ms = pending.expire_before_ms.max(Some(before_ms));
        drop(pending);
        self.inbox.wake.notify_one();
    }

    /// Applies other limits and another durability to records that are appended from now on; [`Options::min_next_seq`] and the
    /// limits of one record and of queued bytes stay.
    pub fn set_options(&self, options: Options) {
        self.inbox.lock().options = Some(options);
        self.inbox.wake.notify_one();
    }

    /// The records removed before they were released, since the last call. A removal is here before a [`Reader`] returns its
    /// records as [`crate::Item::Gone`].
    pub fn take_removals(&self) -> Vec<Removal> {
        self.shared.take_removals()
    }

    pub fn status(&self) -> Status {
        self.shared.status()
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.inbox.lock().is_closed = true;
        self.inbox.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic has been reported already.
            let _ = thread.join();
        }
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// The state of the journal's thread.
struct Committer {
    log: Log,
    inbox: Arc<Inbox>,
    sync: Sync,
    /// With [`Sync::Every`]: when written records are to be synced next.
    next_sync: Option<Instant>,
}

impl Committer {
    fn run(mut self) {
        loop {
            let mut pending = self.wait();
            let appends = mem::take(&mut pending.appends);
            pending.bytes = 0;
            let (release, expire) = (pending.release.take(), pending.expire_before_ms.take());
            let options = pending.options.take();
            let is_closed = pending.is_closed;
            let sync_now = mem::take(&mut pending.sync_now);
            drop(pending);
            let is_idle = appends.is_empty();
            if let Some(options) = options {
                self.sync = options.sync;
                self.log.set_options(options);
            }
            // Removals first, since they make room. One that fails is tried again with the next request.
            if let Some(seq) = release {
                let _ = self.log.release(seq);
            }
            if let Some(before_ms) = expire {
                let _ = self.log.expire(before_ms);
            }
            self.commit(appends, sync_now);
            self.sync_if_due(is_closed);
            if is_closed && is_idle {
                return;
            }
        }
    }

    /// Waits until there is work.
    fn wait(&self) -> MutexGuard<'_, PendingAppends> {
        let mut pending = self.inbox.lock();
        loop {
            let is_wanted = !pending.appends.is_empty()
                || pending.release.is_some()
                || pending.expire_before_ms.is_some()
                || pending.options.is_some()
                || pending.is_closed;
            if is_wanted {
                return pending;
            }
            pending = match self.next_sync {
                None => self.inbox.wake.wait(pending).unwrap_or_else(PoisonError::into_inner),
                Some(at) => match at.checked_duration_since(Instant::now()) {
                    None => return pending,
                    Some(left) => self.inbox.wake.wait_timeout(pending, left).unwrap_or_else(PoisonError::into_inner).0,
                },
            };
        }
    }

    /// Writes records in batches, and calls their callbacks.
    fn commit(&mut self, mut appends: VecDeque<(Vec<u8>, OnCommit)>, sync_now: bool) {
        while !appends.is_empty() {
            let mut bytes = 0;
            let count = appends.iter().take_while(|(payload, _)| {
                let fits = bytes == 0 || bytes + payload.len() <= BATCH_BYTES;
                bytes += payload.len();
                fits
            });
            let count = count.count();
            let (payloads, callbacks): (Vec<_>, Vec<_>) = appends.drain(..count).unzip();
            let mut result = self.log.append(&payloads, now_ms());
            if sync_now && result.is_ok() {
                result = self.log.sync().map_err(|error| AppendError::Io(Arc::new(error))).and(result);
            }
            if result.is_ok() {
                // The lock is taken so that a thread between its check and its wait does not miss the notification.
                drop(self.inbox.lock());
                self.inbox.committed.notify_all();
            }
            for (index, on_commit) in callbacks.into_iter().enumerate() {
                on_commit(result.clone().map(|first| first + index as u64));
            }
        }
    }

    fn sync_if_due(&mut self, is_closed: bool) {
        let Sync::Every(period) = self.sync else { return };
        let now = Instant::now();
        if is_closed || self.next_sync.is_some_and(|at| at <= now) {
            // A failure is reported in the status, and closes the segment.
            let _ = self.log.sync();
            self.next_sync = None;
        } else if self.next_sync.is_none() && self.log.is_dirty() {
            self.next_sync = Some(now + period);
        }
    }
}

#[cfg(test)]
mod tests;
