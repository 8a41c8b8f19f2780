//! The files of the access log and the audit log, written by a thread of their own.
//!
//! Workers format lines of the access log. A worker collects lines in a chunk of its own and passes full chunks on through a
//! bounded queue. If the disk is too slow, or full, lines are dropped and counted; no request waits for a log.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{
    AtomicBool, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::room::{self, PIPE_PIECE};

/// A chunk is passed to the writer when it has this size,
const CHUNK_BYTES: usize = 64 * 1024;
/// or when its first line is this old.
const FLUSH_AFTER_NS: u64 = 200_000_000;
/// Limit of queued chunks. With `CHUNK_BYTES` this bounds the memory of a stalled log to 8 MiB.
const QUEUE_CHUNKS: usize = 128;
/// How often errors of a file are logged.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);

/// How long a log that is being closed may stall before its remaining lines are dropped.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// How often a writer that waits for a reader checks for urgent commands.
const LOOK: Duration = Duration::from_millis(50);

/// Called on the log's thread with the result of reopening the path.
type ReopenReport = Box<dyn FnOnce(io::Result<()>) + Send>;

/// Counters of one log.
#[derive(Debug, Default)]
pub struct LogCounters {
    pub written: AtomicU64,
    /// Lines lost because the disk was too slow or failed.
    pub dropped: AtomicU64,
    pub write_errors: AtomicU64,
}

enum LogCommand {
    Chunk {
        text: Vec<u8>,
        lines: u64,
    },
    /// Takes effect after the chunks queued before; the report is in [`UrgentCommands`].
    Reopen,
    Stop,
}

/// Commands that bypass the queue, which is full when the log stalls.
#[derive(Default)]
struct UrgentCommands {
    reopen: Mutex<Option<ReopenReport>>,
    /// The queue had no room for [`LogCommand::Reopen`].
    unqueued: AtomicBool,
    stop: AtomicBool,
}

/// An open log. Dropping it writes the lines queued before, unless the log stalls, and ends its thread.
pub struct LogWriter {
    queue: SyncSender<LogCommand>,
    urgent: Arc<UrgentCommands>,
    counters: Arc<LogCounters>,
    /// Disconnected once the thread has ended.
    ended: Receiver<()>,
    path: Box<Path>,
}

impl LogWriter {
    /// Opens `path` for appending, and creates the file if it does not exist. `/dev/stdout` and `/dev/stderr` mean the process's
    /// own streams, also if these are sockets, as under systemd. `name` is the log's name in messages: `access log`.
    pub fn open(name: &'static str, path: &Path, counters: Arc<LogCounters>) -> io::Result<Self> {
        let target = LogFile::open(path)?;
        let (queue, messages) = sync_channel(QUEUE_CHUNKS);
        let (alive, ended) = sync_channel(0);
        let urgent = Arc::new(UrgentCommands::default());
        let mut thread = WriterThread {
            name,
            target,
            urgent: Arc::clone(&urgent),
            counters: Arc::clone(&counters),
            next_error_report: None,
            give_up: None,
        };
        std::thread::Builder::new().name(name.replace(' ', "-")).spawn(move || {
            let _alive = alive;
            thread.run(&messages);
        })?;
        Ok(Self { queue, urgent, counters, ended, path: path.into() })
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A sink for one worker.
    pub fn sink(&self) -> LogSink {
        LogSink {
            queue: self.queue.clone(),
            counters: Arc::clone(&self.counters),
            chunk: Vec::new(),
            lines: 0,
            due_ns: None,
        }
    }

    /// A sender for occasional lines, from any thread.
    pub fn lines(&self) -> LineSender {
        LineSender { queue: self.queue.clone(), counters: Arc::clone(&self.counters) }
    }

    /// Opens the path again, after the file was renamed. Does not block: `report` is called with the result. Lines queued before
    /// go to the old file, unless it stalls. On an error the old file stays in use.
    pub fn reopen(&self, report: impl FnOnce(io::Result<()>) + Send + 'static) {
        *self.urgent.reopen() = Some(Box::new(report));
        match self.queue.try_send(LogCommand::Reopen) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => self.urgent.unqueued.store(true, Release),
            Err(TrySendError::Disconnected(_)) => {
                if let Some(report) = self.urgent.reopen().take() {
                    report(Err(io::Error::other("the log's thread has ended")));
                }
            }
        }
    }
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        self.urgent.stop.store(true, Release);
        // If the queue is full, its chunks wake the thread.
        let _ = self.queue.try_send(LogCommand::Stop);
        // A file system that does not respond delays the thread's end, but not the process's.
        let _ = self.ended.recv_timeout(CLOSE_TIMEOUT * 2);
    }
}

impl UrgentCommands {
    fn reopen(&self) -> MutexGuard<'_, Option<ReopenReport>> {
        self.reopen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Queues each line at once.
pub struct LineSender {
    queue: SyncSender<LogCommand>,
    counters: Arc<LogCounters>,
}

impl LineSender {
    /// Queues one line, given without a line break. If the queue is full, the line is dropped and counted.
    pub fn line(&self, line: String) {
        let mut text = line.into_bytes();
        text.push(b'\n');
        if self.queue.try_send(LogCommand::Chunk { text, lines: 1 }).is_err() {
            self.counters.dropped.fetch_add(1, Relaxed);
        }
    }
}

/// One worker's buffer in front of the queue. Dropping it queues its lines.
pub struct LogSink {
    queue: SyncSender<LogCommand>,
    counters: Arc<LogCounters>,
    chunk: Vec<u8>,
    lines: u64,
    /// When the oldest line must be queued, on the worker's clock.
    due_ns: Option<u64>,
}

impl LogSink {
    /// Adds one line; `format` appends its text, without the line break. `now_ns` is the time on the worker's clock.
    pub fn line(&mut self, now_ns: u64, format: impl FnOnce(&mut Vec<u8>)) {
        if self.chunk.capacity() == 0 {
            // With this slack for the last line, a chunk is rarely reallocated.
            self.chunk.reserve_exact(CHUNK_BYTES + CHUNK_BYTES / 8);
        }
        format(&mut self.chunk);
        self.chunk.push(b'\n');
        self.lines += 1;
        if self.chunk.len() >= CHUNK_BYTES {
            self.flush();
        } else if self.due_ns.is_none() {
            self.due_ns = Some(now_ns + FLUSH_AFTER_NS);
        }
    }

    /// When [`LogSink::flush_if_due`] must be called, on the worker's clock; `None` if the chunk is empty.
    pub fn due_ns(&self) -> Option<u64> {
        self.due_ns
    }

    /// Queues lines that are old enough. To be called regularly, even without traffic.
    pub fn flush_if_due(&mut self, now_ns: u64) {
        if self.due_ns.is_some_and(|due_ns| due_ns <= now_ns) {
            self.flush();
        }
    }

    /// Queues the chunk. If the queue is full, its lines are dropped and counted.
    pub fn flush(&mut self) {
        self.due_ns = None;
        if self.lines == 0 {
            return;
        }
        let lines = std::mem::take(&mut self.lines);
        match self.queue.try_send(LogCommand::Chunk { text: std::mem::take(&mut self.chunk), lines }) {
            Ok(()) => {}
            Err(TrySendError::Full(message) | TrySendError::Disconnected(message)) => {
                self.counters.dropped.fetch_add(lines, Relaxed);
                if let LogCommand::Chunk { mut text, .. } = message {
                    text.clear();
                    self.chunk = text;
                }
            }
        }
    }
}

impl Drop for LogSink {
    fn drop(&mut self) {
        self.flush();
    }
}

/// The state of the log's thread.
struct WriterThread {
    name: &'static str,
    target: LogFile,
    urgent: Arc<UrgentCommands>,
    counters: Arc<LogCounters>,
    next_error_report: Option<Instant>,
    /// Set while the log is being closed: when to give up on a stalled log.
    give_up: Option<Instant>,
}

impl WriterThread {
    fn run(&mut self, commands: &Receiver<LogCommand>) {
        loop {
            let command = match self.urgent.stop.load(Acquire) {
                false => commands.recv().ok(),
                // Drain the queue, then end. The stop command itself may not have fitted into the queue.
                true => commands.try_recv().ok(),
            };
            match command {
                Some(LogCommand::Chunk { text, lines }) => self.write(&text, lines),
                Some(LogCommand::Reopen) => self.reopen(),
                Some(LogCommand::Stop) | None => return,
            }
            if self.urgent.unqueued.swap(false, AcqRel) {
                self.reopen();
            }
        }
    }

    fn write(&mut self, text: &[u8], lines: u64) {
        if self.give_up.is_some_and(|at| at <= Instant::now()) {
            self.counters.dropped.fetch_add(lines, Relaxed);
            return;
        }
        let (mut written, mut rest) = (0, text);
        let outcome = loop {
            let (count, bytes, outcome) = self.target.append(rest);
            written += count;
            rest = &rest[bytes..];
            match outcome {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if let Err(stalled) = self.run_urgent_commands() {
                        break Err(stalled);
                    }
                }
                outcome => break outcome,
            }
        };
        self.counters.written.fetch_add(written, Relaxed);
        let Err(error) = outcome else { return };
        self.counters.write_errors.fetch_add(1, Relaxed);
        self.counters.dropped.fetch_add(lines.saturating_sub(written), Relaxed);
        let now = Instant::now();
        if self.next_error_report.is_none_or(|after| after <= now) {
            self.next_error_report = Some(now + COMPLAIN_EVERY);
            tracing::error!("{} {}: {error}; lines are lost", self.name, self.target.path.display());
        }
    }

    /// Called while the log stalls: executes urgent commands. An error gives up the current chunk.
    fn run_urgent_commands(&mut self) -> io::Result<()> {
        self.reopen();
        if !self.urgent.stop.load(Acquire) {
            return Ok(());
        }
        let give_up = *self.give_up.get_or_insert_with(|| Instant::now() + CLOSE_TIMEOUT);
        match Instant::now() < give_up {
            true => Ok(()),
            false => Err(io::Error::new(ErrorKind::TimedOut, "the program that reads the log has stopped reading")),
        }
    }

    /// Reopens the file if a request is pending.
    fn reopen(&mut self) {
        let Some(report) = self.urgent.reopen().take() else { return };
        let opened = LogFile::open(&self.target.path);
        self.next_error_report = None;
        report(opened.map(|opened| self.target = opened));
    }
}

/// The file lines are appended to.
struct LogFile {
    path: PathBuf,
    file: File,
    /// A pipe, a socket or a terminal, which depends on a reader at the other end.
    has_reader: bool,
    /// The last write ended within a line.
    torn: bool,
}

impl LogFile {
    fn open(path: &Path) -> io::Result<Self> {
        let own_stream = match path.to_str() {
            Some("/dev/stdout") => Some(io::stdout().as_fd().try_clone_to_owned()?),
            Some("/dev/stderr") => Some(io::stderr().as_fd().try_clone_to_owned()?),
            _ => None,
        };
        let mut options = OpenOptions::new();
        let file = match own_stream {
            Some(stream) => File::from(stream),
            // A pipe opened only for writing would block until there is a reader.
            None if fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_fifo()) => {
                options.read(true).write(true).open(path)?
            }
            None => options.append(true).create(true).open(path)?,
        };
        let has_reader = !file.metadata()?.is_file();
        Ok(Self { path: path.to_owned(), file, has_reader, torn: false })
    }

    /// Writes whole lines. Returns the number of lines and bytes written, also on an error. A reader without room is the error
    /// [`ErrorKind::WouldBlock`], after a short wait. A line cut off by another error is terminated before the next one, so that
    /// two lines are never joined.
    fn append(&mut self, lines: &[u8]) -> (u64, usize, io::Result<()>) {
        if self.torn {
            match self.write(b"\n") {
                Ok(_) => self.torn = false,
                Err(error) => return (0, 0, Err(error)),
            }
        }
        let mut written = 0;
        let outcome = loop {
            if written == lines.len() {
                break Ok(());
            }
            match self.write(&lines[written..]) {
                Ok(0) => break Err(ErrorKind::WriteZero.into()),
                Ok(count) => written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        let stalled = outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        let arrived = &lines[..written];
        self.torn = !stalled && arrived.last().is_some_and(|&byte| byte != b'\n');
        (arrived.iter().filter(|&&byte| byte == b'\n').count() as u64, written, outcome)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.has_reader {
            return self.file.write(bytes);
        }
        if !room::is_there(&self.file, LOOK)? {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.file.write(&bytes[..bytes.len().min(PIPE_PIECE)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Read;
    use weir_testkit::{DEADLINE, TempDir, eventually};

    fn open(path: &Path) -> (LogWriter, Arc<LogCounters>) {
        let counters = Arc::new(LogCounters::default());
        (LogWriter::open("access log", path, Arc::clone(&counters)).expect("a directory of our own"), counters)
    }

    #[test]
    fn logged_lines_are_in_the_file_after_shutdown() {
        let directory = TempDir::new();
        let path = directory.path().join("access.log");
        fs::write(&path, "before\n").expect("a directory of our own");
        let (writer, counters) = open(&path);
        let mut sinks = [writer.sink(), writer.sink()];
        for number in 0..5_000 {
            sinks[number % 2].line(1, |line| write!(line, "{number}").expect("a Vec takes everything"));
        }
        drop(sinks);
        drop(writer);
        let text = fs::read_to_string(&path).expect("it was written");
        let mut lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.remove(0), "before");
        lines.sort_by_key(|line| line.parse::<u32>().expect("each line is whole"));
        assert!(lines.into_iter().eq((0..5_000).map(|number| number.to_string())));
        assert_eq!(counters.written.load(Relaxed), 5_000);
        assert_eq!(counters.dropped.load(Relaxed), 0);
    }

    #[test]
    fn a_line_waits_a_moment_and_no_longer() {
        let directory = TempDir::new();
        let path = directory.path().join("access.log");
        let (writer, _) = open(&path);
        let mut sink = writer.sink();
        sink.line(1, |line| line.extend_from_slice(b"one"));
        sink.flush_if_due(FLUSH_AFTER_NS);
        assert_eq!(sink.due_ns(), Some(1 + FLUSH_AFTER_NS));
        sink.flush_if_due(1 + FLUSH_AFTER_NS);
        assert_eq!(sink.due_ns(), None);
        eventually("the line is written", DEADLINE, || fs::read(&path).is_ok_and(|text| text == b"one\n"));
    }

    #[test]
    fn reopening_continues_in_a_new_file() {
        let directory = TempDir::new();
        let (path, moved) = (directory.path().join("access.log"), directory.path().join("access.log.1"));
        let (writer, _) = open(&path);
        let mut sink = writer.sink();
        sink.line(1, |line| line.extend_from_slice(b"old"));
        sink.flush();
        fs::rename(&path, &moved).expect("a directory of our own");
        let (report, outcome) = sync_channel(1);
        writer.reopen(move |reopened| report.send(reopened).expect("the test waits"));
        outcome.recv().expect("it is reported").expect("the directory is still there");
        sink.line(1, |line| line.extend_from_slice(b"new"));
        drop(sink);
        drop(writer);
        assert_eq!(fs::read(&moved).expect("the old file"), b"old\n");
        assert_eq!(fs::read(&path).expect("the new file"), b"new\n");
    }

    #[test]
    fn f11_a_full_disk_loses_lines_and_counts_them() {
        let (writer, counters) = open(Path::new("/dev/full"));
        let mut sink = writer.sink();
        for _ in 0..10 {
            sink.line(1, |line| line.extend_from_slice(b"lost"));
        }
        drop(sink);
        drop(writer);
        assert_eq!(counters.written.load(Relaxed), 0);
        assert_eq!(counters.dropped.load(Relaxed), 10);
        assert_eq!(counters.write_errors.load(Relaxed), 1);
    }

    #[test]
    fn a_line_cut_off_by_an_error_does_not_swallow_the_next() {
        let directory = TempDir::new();
        let path = directory.join("access.log");
        let mut target = LogFile::open(&path).expect("a directory of our own");
        target.file.write_all(b"whole\ncut of").expect("there is room");
        target.torn = true;
        let (written, _, outcome) = target.append(b"next\n");
        assert_eq!((written, outcome.is_ok(), target.torn), (1, true, false));
        assert_eq!(fs::read(&path).expect("it was written"), b"whole\ncut of\nnext\n");
    }

    fn fifo(directory: &TempDir) -> PathBuf {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let path = directory.join("pipe");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a directory of our own");
        path
    }

    fn stall(writer: &LogWriter) -> LogSink {
        let mut sink = writer.sink();
        for _ in 0..QUEUE_CHUNKS + 10 {
            sink.line(1, |line| line.resize(CHUNK_BYTES, b'x'));
        }
        sink
    }

    #[test]
    fn p12_a_log_that_stalls_keeps_no_process_from_ending() {
        let directory = TempDir::new();
        let (writer, counters) = open(&fifo(&directory));
        let sink = stall(&writer);
        drop((writer, sink));
        // The thread has given up by itself, and has not only been left behind.
        eventually("each line is accounted for", DEADLINE, || {
            counters.dropped.load(Relaxed) + counters.written.load(Relaxed) == QUEUE_CHUNKS as u64 + 10
        });
    }

    #[test]
    fn p12_a_log_that_stalls_is_opened_again_at_once() {
        let directory = TempDir::new();
        let path = fifo(&directory);
        let (writer, counters) = open(&path);
        let _sink = stall(&writer);
        fs::rename(&path, directory.join("moved")).expect("a directory of our own");
        let (report, outcome) = sync_channel(1);
        writer.reopen(move |reopened| report.send(reopened).expect("the test waits"));
        outcome.recv_timeout(DEADLINE).expect("it is reported").expect("a new file");
        eventually("what waited is in the new file", DEADLINE, || {
            counters.written.load(Relaxed) + counters.dropped.load(Relaxed) >= QUEUE_CHUNKS as u64 + 10
        });
        assert!(fs::metadata(&path).expect("it is there").len() > CHUNK_BYTES as u64);
    }

    #[test]
    fn a_log_that_stalls_drops_lines_and_blocks_nobody() {
        let directory = TempDir::new();
        let path = directory.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .expect("a directory of our own");
        // Opened in both directions so that opening does not block; nothing reads, so the pipe fills up.
        let mut reader = OpenOptions::new().read(true).write(true).open(&path).expect("it was just made");
        let (writer, counters) = open(&path);
        let mut sink = writer.sink();
        let chunks = QUEUE_CHUNKS + 10;
        for _ in 0..chunks {
            sink.line(1, |line| line.resize(CHUNK_BYTES, b'x'));
        }
        let dropped = counters.dropped.load(Relaxed);
        let rest = (chunks - dropped as usize) * (CHUNK_BYTES + 1);
        let mut text = vec![0; rest];
        reader.read_exact(&mut text).expect("the writer goes on as soon as somebody reads");
        drop(sink);
        drop(writer);
        assert_eq!(counters.written.load(Relaxed), chunks as u64 - dropped);
        // Asserted last: before the pipe is read, dropping the writer would wait for its time-out.
        assert!((1..=10).contains(&dropped), "the queue held some, and the writer one if it ran: {dropped} dropped");
    }
}
