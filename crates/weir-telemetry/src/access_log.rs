//! The access log: lines are formatted by workers and written by a thread of their own.
//!
//! A worker collects lines in a chunk of its own and passes full chunks on through a bounded queue. When the disk does
//! not keep up, or is full, lines are dropped and counted; no request waits for a log.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::metrics::Metrics;

/// nginx's `combined` format.
pub const COMBINED: &str = r#"$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent""#;

/// One JSON object a line.
pub const JSON: &str = r#"{"time":"$time_iso8601","remote_addr":"$remote_addr","request_method":"$request_method","request_uri":"$request_uri","server_protocol":"$server_protocol","host":"$http_host","status":$status,"body_bytes_sent":$body_bytes_sent,"request_length":$request_length,"request_time":$request_time,"upstream_addr":"$upstream_addr","upstream_status":"$upstream_status","upstream_response_time":"$upstream_response_time","error_cause":"$error_cause","route_id":"$route_id","http_referer":"$http_referer","http_user_agent":"$http_user_agent"}"#;

/// A chunk goes to the writer when it has this size,
const CHUNK_BYTES: usize = 64 * 1024;
/// or when its first line is this old.
const FLUSH_AFTER_NS: u64 = 200_000_000;
/// Chunks that may wait for the disk. With `CHUNK_BYTES` this bounds the memory of a log that stalls: 8 MiB.
const QUEUE_CHUNKS: usize = 128;
/// How often a file that cannot be written is complained about.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);

enum LogCommand {
    Chunk { text: Vec<u8>, lines: u64 },
    Reopen(SyncSender<io::Result<()>>),
    Stop,
}

/// An open access log. Dropping it writes what was handed over before, and ends its thread.
pub struct LogWriter {
    queue: SyncSender<LogCommand>,
    metrics: Arc<Metrics>,
    thread: Option<JoinHandle<()>>,
}

impl LogWriter {
    /// Opens `path` for appending, and creates it where it does not exist. `/dev/stdout` and `/dev/stderr` mean the
    /// process's own streams, also where these are sockets, as under systemd.
    pub fn open(path: &Path, metrics: Arc<Metrics>) -> io::Result<Self> {
        let target = LogFile::open(path)?;
        let (queue, messages) = sync_channel(QUEUE_CHUNKS);
        let thread_metrics = Arc::clone(&metrics);
        let thread = std::thread::Builder::new()
            .name("access-log".into())
            .spawn(move || write_all(target, &messages, &thread_metrics))?;
        Ok(Self { queue, metrics, thread: Some(thread) })
    }

    /// A worker's end of the log.
    pub fn sink(&self) -> LogSink {
        LogSink {
            queue: self.queue.clone(),
            metrics: Arc::clone(&self.metrics),
            chunk: Vec::new(),
            lines: 0,
            due_ns: None,
        }
    }

    /// Opens the path again, after the file was moved away, and waits until that has happened. What was handed over
    /// before goes to the old file. On an error the old file stays in use.
    pub fn reopen(&self) -> io::Result<()> {
        let (done, outcome) = sync_channel(1);
        let ended = || io::Error::other("the log's thread has ended");
        self.queue.send(LogCommand::Reopen(done)).map_err(|_| ended())?;
        outcome.recv().map_err(|_| ended())?
    }
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        if self.queue.send(LogCommand::Stop).is_ok()
            && let Some(thread) = self.thread.take()
        {
            // A thread that panicked has reported that itself.
            let _ = thread.join();
        }
    }
}

/// One worker's end of the log: a buffer, and the queue it goes to. Dropping it hands over what it holds.
pub struct LogSink {
    queue: SyncSender<LogCommand>,
    metrics: Arc<Metrics>,
    chunk: Vec<u8>,
    lines: u64,
    /// When the oldest line here must go, on the worker's clock.
    due_ns: Option<u64>,
}

impl LogSink {
    /// Adds one line; `format` appends its text, without the line break. `now_ns` is the time on
    /// the worker's clock.
    pub fn line(&mut self, now_ns: u64, format: impl FnOnce(&mut Vec<u8>)) {
        if self.chunk.capacity() == 0 {
            // A line is rarely longer than the slack, so a chunk is allocated once.
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

    /// When [`LogSink::flush_if_due`] has something to do, on the worker's clock; `None` while nothing waits.
    pub fn due_ns(&self) -> Option<u64> {
        self.due_ns
    }

    /// Hands lines over that have waited long enough. To be called now and then, also when there is no traffic.
    pub fn flush_if_due(&mut self, now_ns: u64) {
        if self.due_ns.is_some_and(|due_ns| due_ns <= now_ns) {
            self.flush();
        }
    }

    /// Hands over what is there. When the queue is full the lines are dropped and counted.
    pub fn flush(&mut self) {
        self.due_ns = None;
        if self.lines == 0 {
            return;
        }
        let lines = std::mem::take(&mut self.lines);
        match self.queue.try_send(LogCommand::Chunk { text: std::mem::take(&mut self.chunk), lines }) {
            Ok(()) => {}
            Err(TrySendError::Full(message) | TrySendError::Disconnected(message)) => {
                self.metrics.log_lines_dropped.fetch_add(lines, Relaxed);
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

/// The writer's thread.
fn write_all(mut target: LogFile, messages: &Receiver<LogCommand>, metrics: &Metrics) {
    let mut complain_after: Option<Instant> = None;
    while let Ok(message) = messages.recv() {
        match message {
            LogCommand::Chunk { text, lines } => {
                let (written, outcome) = target.append(&text);
                metrics.log_lines.fetch_add(written, Relaxed);
                if let Err(error) = outcome {
                    metrics.log_write_errors.fetch_add(1, Relaxed);
                    metrics.log_lines_dropped.fetch_add(lines - written, Relaxed);
                    let now = Instant::now();
                    if complain_after.is_none_or(|after| after <= now) {
                        complain_after = Some(now + COMPLAIN_EVERY);
                        tracing::error!("access log {}: {error}; lines are lost", target.path.display());
                    }
                }
            }
            LogCommand::Reopen(done) => {
                let outcome = LogFile::open(&target.path).map(|opened| target = opened);
                complain_after = None;
                // Whoever asked may have stopped waiting.
                let _ = done.send(outcome);
            }
            LogCommand::Stop => break,
        }
    }
}

/// The file that lines are appended to.
struct LogFile {
    path: PathBuf,
    file: File,
    /// The last write broke off within a line.
    torn: bool,
}

impl LogFile {
    fn open(path: &Path) -> io::Result<Self> {
        let own_stream = match path.to_str() {
            Some("/dev/stdout") => Some(io::stdout().as_fd().try_clone_to_owned()?),
            Some("/dev/stderr") => Some(io::stderr().as_fd().try_clone_to_owned()?),
            _ => None,
        };
        let file = match own_stream {
            Some(stream) => File::from(stream),
            None => OpenOptions::new().append(true).create(true).open(path)?,
        };
        Ok(Self { path: path.to_owned(), file, torn: false })
    }

    /// Writes whole lines and returns how many of them arrived, also when an error came in between. A line that was
    /// cut off is ended before the next one begins, so that two never become one.
    fn append(&mut self, lines: &[u8]) -> (u64, io::Result<()>) {
        if self.torn {
            match self.file.write_all(b"\n") {
                Ok(()) => self.torn = false,
                Err(error) => return (0, Err(error)),
            }
        }
        let mut written = 0;
        let outcome = loop {
            if written == lines.len() {
                break Ok(());
            }
            match self.file.write(&lines[written..]) {
                Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        let written = &lines[..written];
        self.torn = written.last().is_some_and(|&byte| byte != b'\n');
        (written.iter().filter(|&&byte| byte == b'\n').count() as u64, outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Read;
    use weir_testkit::{DEADLINE, TempDir, eventually};

    fn open(path: &Path) -> (LogWriter, Arc<Metrics>) {
        let metrics = Arc::new(Metrics::new(1));
        (LogWriter::open(path, Arc::clone(&metrics)).expect("a directory of our own"), metrics)
    }

    #[test]
    fn what_was_logged_is_in_the_file_after_shutdown() {
        let directory = TempDir::new();
        let path = directory.path().join("access.log");
        fs::write(&path, "before\n").expect("a directory of our own");
        let (writer, metrics) = open(&path);
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
        assert_eq!(metrics.log_lines.load(Relaxed), 5_000);
        assert_eq!(metrics.log_lines_dropped.load(Relaxed), 0);
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
        writer.reopen().expect("the directory is still there");
        sink.line(1, |line| line.extend_from_slice(b"new"));
        drop(sink);
        drop(writer);
        assert_eq!(fs::read(&moved).expect("the old file"), b"old\n");
        assert_eq!(fs::read(&path).expect("the new file"), b"new\n");
    }

    #[test]
    fn f11_a_full_disk_loses_lines_and_counts_them() {
        let (writer, metrics) = open(Path::new("/dev/full"));
        let mut sink = writer.sink();
        for _ in 0..10 {
            sink.line(1, |line| line.extend_from_slice(b"lost"));
        }
        drop(sink);
        drop(writer);
        assert_eq!(metrics.log_lines.load(Relaxed), 0);
        assert_eq!(metrics.log_lines_dropped.load(Relaxed), 10);
        assert_eq!(metrics.log_write_errors.load(Relaxed), 1);
    }

    #[test]
    fn a_line_cut_off_by_an_error_does_not_swallow_the_next() {
        let directory = TempDir::new();
        let path = directory.join("access.log");
        let mut target = LogFile::open(&path).expect("a directory of our own");
        target.file.write_all(b"whole\ncut of").expect("there is room");
        target.torn = true;
        let (written, outcome) = target.append(b"next\n");
        assert_eq!((written, outcome.is_ok(), target.torn), (1, true, false));
        assert_eq!(fs::read(&path).expect("it was written"), b"whole\ncut of\nnext\n");
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
        // Opened for both directions so that it opens at once; nobody reads, so the pipe fills.
        let mut reader = OpenOptions::new().read(true).write(true).open(&path).expect("it was just made");
        let (writer, metrics) = open(&path);
        let mut sink = writer.sink();
        let chunks = QUEUE_CHUNKS + 10;
        for _ in 0..chunks {
            sink.line(1, |line| line.resize(CHUNK_BYTES, b'x'));
        }
        let dropped = metrics.log_lines_dropped.load(Relaxed);
        let rest = (chunks - dropped as usize) * (CHUNK_BYTES + 1);
        let mut text = vec![0; rest];
        reader.read_exact(&mut text).expect("the writer goes on as soon as somebody reads");
        drop(sink);
        drop(writer);
        assert_eq!(metrics.log_lines.load(Relaxed), chunks as u64 - dropped);
        // Said last: before the pipe is read, the writer would wait for ever for its end.
        assert!((1..=10).contains(&dropped), "the queue held some, and the writer one if it ran: {dropped} dropped");
    }
}
