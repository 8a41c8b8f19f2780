use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use weir_plugin::{AllOf, AppendedFile, Build, ConfigError, Definition, HasMetadata, Plugin, PluginMetadata, Stage};
use weir_records::{Batching, Destination, Outcome, Record, RecordSending, Retries, SendOutcome, SinkOptions};
use weir_telemetry::room::{self, PIPE_PIECE};

use crate::log::bodies::{BodyCaptures, BodyOptions};
use crate::log::captured::RecordWriter;
use crate::log::logger::ExchangeLogger;
use crate::log::options::{FormatOptions, LoggerMetadata};

/// Appends a record of each exchange to a file: one JSON object per line.
///
/// Requests never wait for the logger. The file is opened for each batch, so log rotation can move it at any time.
/// While the file cannot be written (for example because the disk is full), records wait in memory. Lines are never
/// written in part. `/records` and the metric `weir_log_records_total` report the outcome of every record. The values
/// of the fields `Authorization`, `Cookie` and `Set-Cookie` are masked.
///
/// In a resource of a store (Admin API, etcd), the file must be in a directory that `resource_log_files` of the node's
/// configuration file lists. A relative path starts at the directory of the configuration file there; otherwise, at the
/// working directory of the process.
///
/// The file is opened without waiting: a FIFO without a reader, and one whose reader takes nothing for a second, is a file that
/// cannot be written.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileLogger {
    /// The path of the file. Required, unless the plugin metadata has a `path`.
    #[schemars(extend("x-weir-reaches" = "file"))]
    path: Option<String>,
    /// An expression, such as `[[status, ">=", 400]]`. Only exchanges for which the expression is true are recorded.
    #[serde(rename = "match")]
    only: Option<Value>,
    #[serde(flatten)]
    format: FormatOptions,
    #[serde(flatten)]
    bodies: BodyOptions,
}

/// What holds for every `file-logger`.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct FileLoggerMetadata {
    /// The path of the file for plugins that do not set `path`.
    #[schemars(extend("x-weir-reaches" = "file"))]
    path: Option<String>,
    /// The `log_format` of plugins that do not set this option.
    log_format: Option<Map<String, Value>>,
    /// The `log_format_extra` of plugins that do not set this option.
    log_format_extra: Option<Map<String, Value>>,
}

impl FileLoggerMetadata {
    fn of_records(&self) -> LoggerMetadata {
        let (log_format, log_format_extra) = (self.log_format.clone(), self.log_format_extra.clone());
        LoggerMetadata { log_format, log_format_extra, max_pending_entries: None }
    }
}

impl Definition for FileLogger {
    const NAME: &'static str = "file-logger";
    const PRIORITY: i32 = 399;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = r#"file-logger: { path: logs/errors.log, match: [[status, ">=", 400]] }"#;

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let bodies = BodyCaptures::compile(&self.bodies, build);
        let metadata = build.metadata::<FileLogger>();
        let records = metadata.of_records();
        let path = self.path.or(metadata.path).filter(|path| !path.is_empty());
        let path = path.ok_or_else(|| ConfigError::new("path", "is needed: the path of the log file"));
        let file = path.and_then(|path| build.appended_file(&path, "path"));
        let capture = self.format.compile(&records, build);
        let only = self.only.as_ref().map(|only| build.condition_of_record(only, "match")).transpose();
        let (bodies, file, capture, only) = (bodies, file, capture, only).all_of()?;
        let name = format!("file-logger {}", file.path().display());
        // With other rules about files it is another sink.
        let identity = format!("{name} {file:?}");
        // Records reach the file within a fifth of a second.
        let batching =
            Batching { inactive: Duration::from_millis(50), oldest: Duration::from_millis(180), ..Batching::default() };
        let options = SinkOptions {
            name,
            batching,
            retries: Retries::Always,
            max_pending: None,
            spool: None,
            rejected: None,
            tests: None,
        };
        let open = Box::new(move || Ok(Box::new(LogLines::new(file)) as Box<dyn Destination>));
        Ok(ExchangeLogger::build(build, (capture, bodies, only), &identity, options, open))
    }
}

impl HasMetadata for FileLogger {
    type Metadata = FileLoggerMetadata;
}

impl PluginMetadata for FileLoggerMetadata {
    fn check(self) -> Result<(), ConfigError> {
        self.of_records().check()
    }
}

/// How long a write waits for room in a FIFO or a device.
const READER_TIMEOUT: Duration = Duration::from_secs(1);

/// A file with one line for each record.
struct LogLines {
    file: AppendedFile,
    writer: RecordWriter,
}

impl LogLines {
    fn new(file: AppendedFile) -> LogLines {
        LogLines { file, writer: RecordWriter::default() }
    }
}

impl Destination for LogLines {
    fn send<'a>(&'a mut self, batch: &'a [Record]) -> RecordSending<'a> {
        let (writer, mut lines) = (self.writer.batch(), Vec::with_capacity(batch.len() * 1024));
        let ends: Vec<usize> = batch
            .iter()
            .map(|record| {
                writer.json(record, &mut lines);
                lines.push(b'\n');
                lines.len()
            })
            .collect();
        let file = self.file.clone();
        Box::pin(async move {
            // On another thread, so that a disk that does not respond cannot delay other sinks.
            let written = tokio::task::spawn_blocking(move || append(&file, &lines, &ends)).await;
            let (count, outcome) = written.unwrap_or_else(|error| (0, Err(io::Error::other(error))));
            let Err(error) = outcome else { return SendOutcome::Taken };
            let outcome = |index| if index < count { Outcome::Delivered } else { Outcome::Retry };
            let outcomes = (0..batch.len()).map(outcome).collect();
            SendOutcome::Each { outcomes, error: Some(error.to_string()) }
        })
    }
}

/// Appends lines, which end at the offsets `ends`; returns how many of them are completely in the file.
fn append(file: &AppendedFile, lines: &[u8], ends: &[usize]) -> (usize, io::Result<()>) {
    match file.open() {
        Ok(mut file) => {
            // Two processes may have the file during an upgrade: what one removes must be its own. Other targets than regular files
            // have no locks, and are not cut. Any reader of the file can lock it, so the lock is not waited for.
            let is_regular = file.metadata().is_ok_and(|metadata| metadata.is_file());
            let may_cut = is_regular && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
            append_whole(&mut OpenedFile { file: &mut file, has_reader: !is_regular, may_cut }, lines, ends)
        }
        Err(error) => (0, Err(error)),
    }
}

/// The target of the lines; tests replace it.
trait LineTarget: Write {
    /// Removes the last bytes that were written.
    fn cut(&mut self, bytes: u64) -> io::Result<()>;
}

/// The file of the lines.
struct OpenedFile<'a> {
    file: &'a mut File,
    /// The file is not a regular one: it is a FIFO, a device or a terminal, which another program reads.
    has_reader: bool,
    /// It is a regular file, and this process has its lock.
    may_cut: bool,
}

impl Write for OpenedFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.has_reader {
            return self.file.write(bytes);
        }
        match room::is_there(&self.file, READER_TIMEOUT)? {
            true => self.file.write(&bytes[..bytes.len().min(PIPE_PIECE)]),
            false => Err(io::Error::new(io::ErrorKind::WouldBlock, "its reader takes nothing")),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl LineTarget for OpenedFile<'_> {
    fn cut(&mut self, bytes: u64) -> io::Result<()> {
        match self.may_cut {
            // A tool that rotates files may have truncated it since.
            true => self.file.set_len(self.file.metadata()?.len().saturating_sub(bytes)),
            // A line break separates the partial line from the next one.
            false => self.file.write_all(b"\n"),
        }
    }
}

/// Appends the lines. If the disk is full, the partial last line is removed again.
fn append_whole(file: &mut impl LineTarget, lines: &[u8], ends: &[usize]) -> (usize, io::Result<()>) {
    let (mut written, mut outcome) = (0, Ok(()));
    while written < lines.len() {
        match file.write(&lines[written..]) {
            Ok(0) => outcome = Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => written += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => outcome = Err(error),
        }
        if outcome.is_err() {
            break;
        }
    }
    let whole = ends.partition_point(|end| *end <= written);
    let torn = written - if whole == 0 { 0 } else { ends[whole - 1] };
    if torn > 0
        && let Err(error) = file.cut(torn as u64)
    {
        tracing::error!("file-logger: an incomplete line could not be removed from the file: {error}");
    }
    (whole, outcome)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rustix::fs::{CWD, Mode, mkfifoat};

    use serde_json::json;
    use weir_testkit::TempDir;

    use super::*;
    use crate::testing::refused;

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({}), "path: is needed"),
            (json!({"path": "logs/"}), "path: names a directory"),
            (json!({"path": "a\nb"}), "path: contains a line break"),
            (json!({"path": "a\0b"}), "path: contains a NUL"),
            (json!({"path": "x".repeat(256)}), "path: has a part with 256 bytes"),
            (json!({"path": "x/".repeat(3000)}), "path: has 6000 bytes"),
            (
                json!({"path": "a", "include_resp_body_expr": [["status", "?", 400]]}),
                "include_resp_body_expr[0][1]: invalid operator",
            ),
            (json!({"path": "a", "match": [["status", "?", 400]]}), "match[0][1]: invalid operator"),
        ] {
            let error = refused::<FileLogger>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }

    /// A disk with room for this many bytes.
    struct SmallDisk {
        content: Vec<u8>,
        room: usize,
    }

    impl Write for SmallDisk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.room - self.content.len());
            self.content.extend_from_slice(&bytes[..count]);
            if count == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(count) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl LineTarget for SmallDisk {
        fn cut(&mut self, bytes: u64) -> io::Result<()> {
            self.content.truncate(self.content.len() - bytes as usize);
            Ok(())
        }
    }

    #[test]
    fn u13_a_full_disk_tears_no_line() {
        let lines = |count: usize| [&[b'x'; 99][..], b"\n"].concat().repeat(count);
        let ends: Vec<usize> = (1..=5).map(|count| 100 * count).collect();
        for room in 0..700 {
            let mut disk = SmallDisk { content: lines(1), room: 100 + room };
            let (count, outcome) = append_whole(&mut disk, &lines(5), &ends);
            assert_eq!((count, outcome.is_ok()), ((room / 100).min(5), room >= 500));
            assert_eq!(disk.content, lines(1 + count), "whole lines, and nothing of the next");
        }
    }

    #[test]
    fn a_fifo_is_never_waited_for() {
        let directory = TempDir::new();
        let path = directory.path().join("fifo");
        mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR).expect("its own directory");
        let file = AppendedFile::new(path.clone(), None);
        let (count, outcome) = append(&file, b"one\n", &[4]);
        assert!(count == 0 && outcome.is_err(), "no program reads");
        // A reader that reads nothing: the room of the FIFO is used, and the rest is an error.
        let mut reader = File::options().read(true).write(true).open(&path).expect("its own FIFO");
        let lines = b"line\n".repeat(100_000);
        let ends: Vec<usize> = (1..=100_000).map(|line| 5 * line).collect();
        let (count, outcome) = append(&file, &lines, &ends);
        assert!(count > 0 && count < 100_000, "{count}");
        assert_eq!(outcome.expect_err("it is full").kind(), io::ErrorKind::WouldBlock);
        let mut first = vec![0; 5 * count];
        std::io::Read::read_exact(&mut reader, &mut first).expect("what was written");
        assert_eq!(first, lines[..5 * count]);
    }

    #[test]
    fn cut_removes_the_end_of_the_file() {
        let directory = TempDir::new();
        let path = directory.path().join("records.log");
        let of = |path: &Path| AppendedFile::new(path.to_owned(), None);
        assert_eq!(append(&of(&path), b"one\ntwo\n", &[4, 8]).0, 2);
        let mut file = of(&path).open().expect("its own file");
        OpenedFile { file: &mut file, has_reader: false, may_cut: true }.cut(4).expect("its own file");
        assert_eq!(std::fs::read(&path).expect("its own file"), b"one\n");
        assert_eq!(append(&of(Path::new("/dev/full")), b"one\n", &[4]).0, 0);
    }
}
