//! Traces of connections (qlog), for the question why something does not work or is slow. Each has a file of its own.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Once;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::snapshot::TracedClients;

/// The most files in the directory. With as many, no connection is traced.
const MOST_FILES: usize = 100;
/// The most bytes of a file. What comes after them is left out.
const MOST_BYTES: usize = 4 * 1024 * 1024;

/// The file for a connection of this client, if it is to be traced.
pub(super) fn trace(traced: &TracedClients, client: SocketAddr) -> Option<Box<dyn Write + Send + Sync>> {
    let ip = client.ip().to_canonical();
    if !traced.networks.iter().any(|network| network.contains(&ip)) {
        return None;
    }
    match TraceFile::create(&traced.directory, SocketAddr::new(ip, client.port())) {
        Ok(file) => Some(Box::new(file)),
        Err(error) => {
            // The connection is served in any case.
            static TOLD: Once = Once::new();
            TOLD.call_once(|| tracing::warn!("{}: no trace is written: {error}", traced.directory.display()));
            None
        }
    }
}

/// A file of limited size, of whole records.
struct TraceFile {
    file: BufWriter<File>,
    left: usize,
    /// What has come of a record, which ends with a line feed. One is a few hundred bytes.
    record: Vec<u8>,
}

impl TraceFile {
    fn create(directory: &Path, client: SocketAddr) -> io::Result<TraceFile> {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        if std::fs::read_dir(directory)?.count() >= MOST_FILES {
            return Err(io::Error::other(format!("it has {MOST_FILES} files; remove those that are not needed")));
        }
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let path = directory.join(format!("{time}-{}-{}.sqlog", client.ip(), client.port()));
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        Ok(TraceFile { file: BufWriter::new(file), left: MOST_BYTES, record: Vec::new() })
    }

    fn end_record(&mut self) {
        if self.record.len() > self.left {
            self.left = 0; // shorter records that follow are left out as well: a trace has no gaps
        } else if let Err(error) = self.file.write_all(&self.record) {
            self.left = 0;
            tracing::warn!("a trace ends before its connection does: {error}");
        } else {
            self.left -= self.record.len();
        }
        self.record.clear();
    }
}

impl Write for TraceFile {
    /// Never fails: the writer of records would report that again for each of them.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.left > 0 {
            self.record.extend_from_slice(bytes);
            if bytes.ends_with(b"\n") {
                self.end_record();
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_testkit::TempDir;

    fn files(directory: &TempDir) -> Vec<u64> {
        let files = std::fs::read_dir(directory.join("qlog")).expect("a directory");
        files.map(|file| file.expect("a file").metadata().expect("it is there").len()).collect()
    }

    fn traced(directory: &TempDir, network: &str) -> TracedClients {
        TracedClients { networks: vec![network.parse().expect("a network")], directory: directory.join("qlog") }
    }

    fn client(port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], port))
    }

    #[test]
    fn only_clients_of_the_networks_are_traced() {
        let directory = TempDir::new();
        assert!(trace(&TracedClients::default(), client(1)).is_none());
        assert!(trace(&traced(&directory, "198.51.100.0/24"), client(1)).is_none());
        assert!(trace(&traced(&directory, "192.0.2.0/24"), client(1)).is_some());
        assert_eq!(files(&directory), [0]);
    }

    #[test]
    fn files_and_their_bytes_are_bounded() {
        let directory = TempDir::new();
        let traced = traced(&directory, "0.0.0.0/0");
        let mut first = trace(&traced, client(1)).expect("there is room");
        let long = "x".repeat((1 << 20) - 1);
        for piece in [[long.as_str(), "y", "\n"]; 6].as_flattened() {
            first.write_all(piece.as_bytes()).expect("it is taken or left out");
        }
        first.write_all(b"z\n").expect("it is left out, too");
        drop(first);
        assert_eq!(files(&directory), [3 * ((1 << 20) + 1)], "records are whole");
        let count = (2..200).filter(|port| trace(&traced, client(*port)).is_some()).count();
        assert_eq!((count + 1, files(&directory).len()), (MOST_FILES, MOST_FILES));
    }
}
