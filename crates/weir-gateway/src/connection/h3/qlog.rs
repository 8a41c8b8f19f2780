//! Traces of connections (qlog), for the question why something does not work or is slow. Each has a file of its own. A thread of its own
//! writes them, so that a slow disk holds no worker up.

use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::snapshot::TracedClients;

/// The most files in the directory. With as many, no connection is traced. Two processes, during an upgrade, may make one more.
const MOST_FILES: usize = 100;
/// The most bytes of a file. What comes after them is left out.
const MOST_BYTES: usize = 4 * 1024 * 1024;
/// A trace is written in pieces of at least so many bytes, of whole records.
const PIECE_BYTES: usize = 8 * 1024;
/// The most pieces that wait for the disk, 4 MiB. A trace whose piece finds no place ends.
const MOST_PIECES: usize = 512;
/// The log says once in this time that traces are not written.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// Traces that ended because the disk was too slow, since the log has said so.
static CUT: AtomicU64 = AtomicU64::new(0);

/// Whether the connections of this client are to be traced.
pub(super) fn is_named(traced: &TracedClients, client: SocketAddr) -> bool {
    let ip = client.ip().to_canonical();
    traced.networks.iter().any(|network| network.contains(&ip))
}

/// The trace of a connection of this client, if it is to be traced. Its address must be proved.
pub(super) fn trace(traced: &TracedClients, client: SocketAddr) -> Option<Box<dyn Write + Send + Sync>> {
    if !is_named(traced, client) {
        return None;
    }
    Some(Box::new(Trace::new(&traced.directory, client, pieces()?)))
}

/// The way to the thread that writes, which begins with the first trace.
fn pieces() -> Option<SyncSender<TracePiece>> {
    static PIECES: OnceLock<Option<SyncSender<TracePiece>>> = OnceLock::new();
    let begin = || {
        let (sender, receiver) = sync_channel(MOST_PIECES);
        let thread = std::thread::Builder::new().name("qlog".into()).spawn(move || write_pieces(&receiver));
        thread.inspect_err(|error| tracing::warn!("no trace is written: no thread could be started: {error}")).ok()?;
        Some(sender)
    };
    PIECES.get_or_init(begin).clone()
}

/// Whole records of a trace.
struct TracePiece {
    path: Arc<Path>,
    is_first: bool,
    bytes: Vec<u8>,
}

/// Splits what QUIC writes into pieces.
struct Trace {
    path: Arc<Path>,
    pieces: SyncSender<TracePiece>,
    is_begun: bool,
    /// What was not handed on yet: whole records, and what has come of the next one, which is a few hundred bytes.
    bytes: Vec<u8>,
    whole: usize,
    /// The records that have come, with the head of the file.
    records: u64,
    left: usize,
}

impl Trace {
    fn new(directory: &Path, client: SocketAddr, pieces: SyncSender<TracePiece>) -> Trace {
        /// Two connections may begin in the same millisecond.
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let (ip, port, number) = (client.ip().to_canonical(), client.port(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let path = directory.join(format!("{time}-{number}-{ip}-{port}.sqlog")).into();
        Trace { path, pieces, is_begun: false, bytes: Vec::new(), whole: 0, records: 0, left: MOST_BYTES }
    }

    fn end_record(&mut self) {
        self.records += 1;
        if self.bytes.len() > self.left {
            self.hand_on();
            self.left = 0; // shorter records that follow are left out as well: a trace has no gaps
            return;
        }
        self.whole = self.bytes.len();
        if self.whole >= PIECE_BYTES {
            self.hand_on();
        }
    }

    /// Hands the whole records on to the thread. A trace ends if that has too much to do.
    fn hand_on(&mut self) {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.truncate(std::mem::take(&mut self.whole));
        self.left -= bytes.len();
        if bytes.is_empty() {
            return;
        }
        let is_first = !std::mem::replace(&mut self.is_begun, true);
        if self.pieces.try_send(TracePiece { path: Arc::clone(&self.path), is_first, bytes }).is_err() {
            self.left = 0;
            CUT.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Write for Trace {
    /// Never fails: the writer of records would report that again for each of them.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.left > 0 {
            self.bytes.extend_from_slice(bytes);
            if bytes.ends_with(b"\n") {
                self.end_record();
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        // A connection that was not accepted has the head only.
        if self.left > 0 && self.records > 1 {
            self.hand_on();
        }
    }
}

/// The thread.
fn write_pieces(pieces: &Receiver<TracePiece>) {
    let mut warned: Option<Instant> = None;
    while let Ok(piece) = pieces.recv() {
        let failed = write_piece(&piece);
        let is_due = warned.is_none_or(|at| at.elapsed() >= WARNING_INTERVAL);
        if is_due && let Err(error) = &failed {
            tracing::warn!("{}: the trace is not written: {error}", piece.path.display());
        }
        let cut = if is_due { CUT.swap(0, Ordering::Relaxed) } else { 0 };
        if cut > 0 {
            tracing::warn!("{cut} traces end before their connections do: the disk is too slow");
        }
        if is_due && (failed.is_err() || cut > 0) {
            warned = Some(Instant::now());
        }
    }
}

/// Writes a piece. The file is opened for each, so that none is held open. If it is gone, or was not made, nothing is written.
fn write_piece(piece: &TracePiece) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.append(true);
    if piece.is_first {
        let directory = piece.path.parent().unwrap_or(Path::new("."));
        prepare(directory)?;
        if std::fs::read_dir(directory)?.count() >= MOST_FILES {
            let problem = format!("the directory has {MOST_FILES} files; remove those that are not needed");
            return Err(io::Error::other(problem));
        }
        options.create_new(true).mode(0o600);
    }
    match options.open(&piece.path) {
        Err(error) if !piece.is_first && error.kind() == io::ErrorKind::NotFound => Ok(()),
        opened => opened?.write_all(&piece.bytes),
    }
}

/// Makes the directory, for the user of the node only. Its parent is made as other files make it.
fn prepare(directory: &Path) -> io::Result<()> {
    directory.parent().map_or(Ok(()), std::fs::create_dir_all)?;
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => return made,
    }
    if std::fs::metadata(directory)?.permissions().mode() & 0o077 != 0 {
        std::fs::set_permissions(directory, Permissions::from_mode(0o700))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_testkit::TempDir;

    fn files(directory: &TempDir) -> Vec<u64> {
        let files = std::fs::read_dir(directory.join("qlog")).expect("a directory");
        files.map(|file| file.expect("a file").metadata().expect("it is there").len()).collect()
    }

    fn client(port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], port))
    }

    /// A trace with a place for so many pieces, and the pieces.
    fn begin(directory: &TempDir, port: u16, places: usize) -> (Trace, Receiver<TracePiece>) {
        let (sender, receiver) = sync_channel(places);
        (Trace::new(&directory.join("qlog"), client(port), sender), receiver)
    }

    fn write_all(trace: &mut Trace, records: &[&str]) {
        records.iter().for_each(|record| trace.write_all(record.as_bytes()).expect("it is taken or left out"));
    }

    #[test]
    fn only_clients_of_the_networks_are_traced() {
        let named = |networks: &[&str]| {
            let networks = networks.iter().map(|network| network.parse().expect("a network")).collect();
            is_named(&TracedClients { networks, ..TracedClients::default() }, client(1))
        };
        assert!(!named(&[]) && !named(&["198.51.100.0/24"]));
        assert!(named(&["198.51.100.0/24", "192.0.2.0/24"]));
    }

    #[test]
    fn a_file_has_whole_records_and_a_bound() {
        let directory = TempDir::new();
        let (mut trace, pieces) = begin(&directory, 1, 10);
        let long = "x".repeat((1 << 20) - 1);
        write_all(&mut trace, [[long.as_str(), "y", "\n"]; 6].as_flattened());
        write_all(&mut trace, &["z\n"]);
        drop(trace);
        pieces.iter().for_each(|piece| write_piece(&piece).expect("it is written"));
        assert_eq!(files(&directory), [3 * ((1 << 20) + 1)]);
    }

    #[test]
    fn files_are_bounded_and_only_the_user_of_the_node_reads_them() {
        let directory = TempDir::new();
        std::fs::create_dir(directory.join("qlog")).expect("it is made");
        std::fs::set_permissions(directory.join("qlog"), Permissions::from_mode(0o755)).expect("it is set");
        let is_written = |port| {
            let (mut trace, pieces) = begin(&directory, port, 10);
            write_all(&mut trace, &["head\n", "record\n"]);
            drop(trace);
            pieces.iter().all(|piece| write_piece(&piece).is_ok())
        };
        assert_eq!((1..200).filter(|port| is_written(*port)).count(), MOST_FILES);
        assert_eq!(files(&directory), [12; MOST_FILES]);
        let mode = std::fs::metadata(directory.join("qlog")).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    #[test]
    fn a_connection_that_was_not_accepted_leaves_no_file() {
        let (mut trace, pieces) = begin(&TempDir::new(), 1, 10);
        write_all(&mut trace, &["head\n"]);
        drop(trace);
        assert!(pieces.recv().is_err(), "there is no piece");
    }

    #[test]
    fn a_trace_ends_where_the_disk_is_too_slow() {
        let (mut trace, pieces) = begin(&TempDir::new(), 1, 1);
        let record = "x".repeat(PIECE_BYTES) + "\n";
        let cut = CUT.load(Ordering::Relaxed);
        write_all(&mut trace, &[&record, &record]);
        let first = pieces.recv().expect("the first piece");
        write_all(&mut trace, &[&record]);
        drop(trace);
        assert!(pieces.recv().is_err(), "the third does not follow: there are no gaps");
        assert_eq!((first.bytes.len(), CUT.load(Ordering::Relaxed) - cut), (record.len(), 1));
    }

    #[test]
    fn a_file_that_is_gone_is_not_made_again() {
        let directory = TempDir::new();
        let (mut trace, pieces) = begin(&directory, 1, 2);
        let record = "x".repeat(PIECE_BYTES) + "\n";
        write_all(&mut trace, &[&record, &record]);
        write_piece(&pieces.recv().expect("the first")).expect("it is written");
        std::fs::remove_file(&trace.path).expect("it was there");
        write_piece(&pieces.recv().expect("the second")).expect("nothing is to be done");
        assert!(files(&directory).is_empty());
    }
}
