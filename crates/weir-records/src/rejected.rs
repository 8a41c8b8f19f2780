//! Keeps records that their destination rejected, for inspection: the newest ones, in two files of limited size.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use weir_journal::create_private_directory;

use crate::books::RejectReason;
use crate::queue::Record;

/// A file of this size replaces the older file, and a new one is begun.
const MOST_BYTES: u64 = 8 << 20;
/// The most writes at a time; further records are not kept: a stalled disk must not fill the memory.
const MOST_WRITES: usize = 4;

const NAME: &str = "rejected.jsonl";
const OLDER: &str = "rejected.1.jsonl";

/// Formats a record as a JSON object.
pub type RecordView = Arc<dyn Fn(&Record) -> Vec<u8> + Send + Sync>;

/// Where rejected records are kept, and how they are shown.
#[derive(Clone)]
pub struct RejectedRecords {
    /// The directory shared by all sinks.
    pub directory: PathBuf,
    pub show: RecordView,
}

impl fmt::Debug for RejectedRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RejectedRecords").field("directory", &self.directory).finish_non_exhaustive()
    }
}

/// Held while a file is written, by any sink of the process.
static WRITING: Mutex<()> = Mutex::new(());
static WRITES: AtomicUsize = AtomicUsize::new(0);

impl RejectedRecords {
    /// Keeps records of a sink, each with its reason and the destination's error. Has to be called within a runtime; another
    /// thread writes to the disk.
    pub(crate) fn keep<'r>(&self, sink: &str, error: &str, records: impl Iterator<Item = (RejectReason, &'r Record)>) {
        if WRITES.fetch_add(1, Ordering::AcqRel) >= MOST_WRITES {
            WRITES.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        let time_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let (sink, error) = (serde_json::Value::from(sink), serde_json::Value::from(error));
        let mut lines = Vec::new();
        for (reason, record) in records {
            let reason = reason.name();
            let about = format!(r#"{{"time_ms":{time_ms},"sink":{sink},"reason":"{reason}","error":{error},"record":"#);
            lines.extend_from_slice(about.as_bytes());
            lines.extend_from_slice(&(self.show)(record));
            lines.extend_from_slice(b"}\n");
        }
        let directory = self.directory.clone();
        tokio::task::spawn_blocking(move || {
            if let Err(error) = append(&directory, &lines) {
                tracing::error!("rejected records cannot be kept in {}: {error}", directory.display());
            }
            WRITES.fetch_sub(1, Ordering::AcqRel);
        });
    }
}

fn append(directory: &Path, lines: &[u8]) -> io::Result<()> {
    let _writing = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    create_private_directory(directory)?;
    let path = directory.join(NAME);
    if fs::metadata(&path).is_ok_and(|file| file.len() >= MOST_BYTES) {
        fs::rename(&path, directory.join(OLDER))?;
    }
    OpenOptions::new().create(true).append(true).mode(0o600).open(&path)?.write_all(lines)
}

/// Writes the rejected records of a directory to `out`, a line of JSON each, the oldest first.
///
/// # Errors
/// The directory cannot be read, or writing to `out` fails.
pub fn copy_rejected(directory: &Path, out: &mut impl Write) -> io::Result<()> {
    fs::metadata(directory)?;
    for name in [OLDER, NAME] {
        match File::open(directory.join(name)) {
            Ok(mut file) => drop(io::copy(&mut file, out)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
