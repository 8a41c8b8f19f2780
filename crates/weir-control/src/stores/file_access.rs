//! File operations that may block for ever: a FIFO without a writer, or a network file system whose server is gone. The kernel
//! has no time-out for them, so they run on a separate thread, and the caller waits for a limited time.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::AcqRel, Ordering::Acquire};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;

/// How long a caller waits; any working file system responds within this time.
const LIMIT: Duration = Duration::from_secs(10);
/// The most operations that may be stuck at a time. Each blocks a thread.
const MAX_STUCK: usize = 8;

/// Runs file operations. Clones share the thread.
#[derive(Clone, Debug)]
pub struct FileAccess(Option<Arc<FileThread>>);

#[derive(Debug)]
struct FileThread {
    limit: Duration,
    /// The channel to the current thread. The thread is started with the first operation, and abandoned if an operation does not
    /// end.
    jobs: Mutex<Option<Sender<FileJob>>>,
    /// The number of operations that have exceeded the limit and not ended.
    stuck: Arc<AtomicUsize>,
}

type FileJob = Box<dyn FnOnce() + Send>;

/// Why an operation has no result.
#[derive(Debug)]
pub enum FileStall {
    TimedOut(Duration),
    /// Too many operations have timed out and not ended, so no further one is started.
    StillStuck,
    NoThread(io::Error),
}

/// Why a file cannot be read.
#[derive(Debug)]
pub(super) enum Unreadable {
    Io(io::Error),
    Directory,
    TooLarge,
}

impl fmt::Display for FileStall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileStall::TimedOut(limit) => write!(f, "the file system did not answer within {} s", limit.as_secs_f32()),
            FileStall::StillStuck => f.write_str("the file system still does not answer"),
            FileStall::NoThread(error) => write!(f, "the thread that reads files failed: {error}"),
        }
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unreadable::Io(error) => error.fmt(f),
            Unreadable::Directory => f.write_str("it is a directory"),
            Unreadable::TooLarge => f.write_str("it is too large"),
        }
    }
}

impl FileAccess {
    /// For a process that serves no traffic: operations run on the calling thread, without a limit.
    pub fn direct() -> FileAccess {
        FileAccess(None)
    }

    /// Runs operations on a separate thread, with the default limit.
    pub fn limited() -> FileAccess {
        Self::limited_to(LIMIT)
    }

    /// The same with another limit.
    pub fn limited_to(limit: Duration) -> FileAccess {
        FileAccess(Some(Arc::new(FileThread { limit, jobs: Mutex::default(), stuck: Arc::default() })))
    }

    /// Whether this is for a process that serves traffic.
    pub(super) fn serves(&self) -> bool {
        self.0.is_some()
    }

    /// The deadline for an operation that can itself wait with a time-out.
    pub(super) fn deadline(&self) -> Option<Instant> {
        // Slightly earlier than the caller gives up, so that the operation can return its own error.
        self.0.as_ref().map(|thread| Instant::now() + thread.limit.mul_f32(0.9))
    }

    /// Runs an operation and waits for its result.
    ///
    /// # Errors
    /// If there is no result within the limit.
    pub(super) fn run<T: Send + 'static>(
        &self,
        operation: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, FileStall> {
        match &self.0 {
            None => Ok(operation()),
            Some(thread) => thread.run(operation),
        }
    }
}

impl FileThread {
    fn run<T: Send + 'static>(&self, operation: impl FnOnce() -> T + Send + 'static) -> Result<T, FileStall> {
        if self.stuck.load(Acquire) >= MAX_STUCK {
            return Err(FileStall::StillStuck);
        }
        let (done, outcome) = sync_channel(1);
        let is_late = Arc::new(AtomicBool::new(false));
        let (stuck, late) = (Arc::clone(&self.stuck), Arc::clone(&is_late));
        let job = move || {
            let result = operation();
            if late.swap(true, AcqRel) {
                stuck.fetch_sub(1, AcqRel);
            }
            // The caller may have stopped waiting.
            let _ = done.send(result);
        };
        self.send(Box::new(job)).map_err(FileStall::NoThread)?;
        match outcome.recv_timeout(self.limit) {
            Ok(outcome) => Ok(outcome),
            Err(RecvTimeoutError::Disconnected) => Err(FileStall::NoThread(io::Error::other("it panicked"))),
            Err(RecvTimeoutError::Timeout) => {
                self.stuck.fetch_add(1, AcqRel);
                if is_late.swap(true, AcqRel) {
                    // The operation has just ended after all.
                    self.stuck.fetch_sub(1, AcqRel);
                    return outcome.recv().map_err(|_| FileStall::TimedOut(self.limit));
                }
                // The next operation gets a new thread: the cause of the delay may not affect it.
                *self.jobs() = None;
                Err(FileStall::TimedOut(self.limit))
            }
        }
    }

    fn jobs(&self) -> MutexGuard<'_, Option<Sender<FileJob>>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, job: FileJob) -> io::Result<()> {
        let mut jobs = self.jobs();
        let job = match &*jobs {
            None => job,
            Some(sender) => match sender.send(job) {
                Ok(()) => return Ok(()),
                // The thread has panicked, which has been logged.
                Err(unsent) => unsent.0,
            },
        };
        let (sender, receiver) = channel::<FileJob>();
        thread::Builder::new().name("weir-files".to_owned()).spawn(move || receiver.iter().for_each(|job| job()))?;
        sender.send(job).expect("the thread has the other end");
        *jobs = Some(sender);
        Ok(())
    }
}

/// The content of a file. Waits for data of a FIFO until the deadline; opening does not wait for a writer.
pub(super) fn read(path: &Path, max_bytes: u64, deadline: Option<Instant>) -> Result<Vec<u8>, Unreadable> {
    content(open(path).map_err(Unreadable::Io)?, max_bytes, deadline)
}

/// Opens a file for reading. Does not wait for the other end of a FIFO.
pub(super) fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)
}

/// The content of an open file.
pub(super) fn content(mut file: File, max_bytes: u64, deadline: Option<Instant>) -> Result<Vec<u8>, Unreadable> {
    let kind = file.metadata().map_err(Unreadable::Io)?.file_type();
    if kind.is_dir() {
        return Err(Unreadable::Directory);
    }
    let mut content = Vec::new();
    let mut piece = [0; 64 << 10];
    let mut waits = kind.is_fifo() || kind.is_char_device() || kind.is_socket();
    loop {
        if waits {
            wait_readable(&file, deadline).map_err(Unreadable::Io)?;
        }
        match file.read(&mut piece) {
            Ok(0) => return Ok(content),
            Ok(length) => content.extend_from_slice(&piece[..length]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => waits = true,
            Err(error) => return Err(Unreadable::Io(error)),
        }
        if content.len() as u64 > max_bytes {
            return Err(Unreadable::TooLarge);
        }
    }
}

/// Waits until the file is readable, or its other end has been closed.
fn wait_readable(file: &File, deadline: Option<Instant>) -> io::Result<()> {
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let left = left.map(|left| Timespec::try_from(left).expect("limits are seconds"));
    match poll(&mut [PollFd::new(file, PollFlags::IN)], left.as_ref()) {
        Ok(0) => Err(io::Error::new(ErrorKind::TimedOut, "no data was written to the pipe in time")),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn an_operation_that_does_not_end_holds_up_nobody_for_longer_than_the_limit() {
        let files = FileAccess::limited_to(Duration::from_millis(50));
        assert_eq!(files.run(|| 1).expect("it ends"), 1);
        let gate = Arc::new(Barrier::new(2));
        let held = Arc::clone(&gate);
        let stalled = files.run(move || held.wait().is_leader()).expect_err("it does not end").to_string();
        assert_eq!(stalled, "the file system did not answer within 0.05 s");
        assert_eq!(files.run(|| 2).expect("it has a thread of its own"), 2);
        let more: Vec<_> = (1..MAX_STUCK).map(|_| Arc::new(Barrier::new(2))).collect();
        for gate in &more {
            let held = Arc::clone(gate);
            files.run(move || held.wait().is_leader()).expect_err("it does not end");
        }
        let stalled = files.run(|| 3).expect_err("too many threads are stuck").to_string();
        assert_eq!(stalled, "the file system still does not answer");
        for gate in &more {
            gate.wait();
        }
        gate.wait();
        weir_testkit::eventually("operations have ended", weir_testkit::DEADLINE, || files.run(|| 4).is_ok());
    }

    #[test]
    fn a_fifo_is_read_to_its_end_and_not_waited_for_beyond_the_deadline() {
        let directory = weir_testkit::TempDir::new();
        let path = directory.join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a FIFO");
        let soon = Some(Instant::now() + Duration::from_millis(50));
        let error = read(&path, 10, soon).expect_err("nothing writes to it").to_string();
        assert_eq!(error, "no data was written to the pipe in time");
        let writer = path.clone();
        let writer = thread::spawn(move || std::fs::write(writer, "content").expect("it is read"));
        assert_eq!(read(&path, 10, None).expect("something writes to it"), b"content");
        writer.join().expect("it has written");
    }

    #[test]
    fn without_a_thread_operations_run_where_they_are_asked_for() {
        let here = thread::current().id();
        assert_eq!(FileAccess::direct().run(|| thread::current().id()).expect("it ends"), here);
    }
}
