//! The file that a target's `file-logger` writes during a run.

use std::{
    fs::{self, File},
    io::{Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use crate::{engine::LoadResult, result::AccessRecords};

/// The policy that writes it, and the option that names it.
const POLICY: &str = "file-logger";
/// How long records may take to reach the file: Envoy writes at least every ten seconds.
const PATIENCE: Duration = Duration::from_secs(12);
const POLL: Duration = Duration::from_millis(50);

/// Where the file is, if a row's policies have one.
pub fn file(policies: &std::collections::BTreeMap<String, serde_json::Value>) -> Option<PathBuf> {
    Some(PathBuf::from(policies.get(POLICY)?.get("path")?.as_str()?))
}

/// Counts the records of a run, once they are all there or are not coming. The file is empty afterwards: over hours, what
/// targets write would fill a disk.
pub fn count(path: &Path, load: &LoadResult) -> AccessRecords {
    // Warm-up and drain are recorded as well.
    let answered = load.intervals.iter().map(|interval| interval.tally.completed).sum();
    let deadline = Instant::now() + PATIENCE;
    let (mut written, mut at) = (0, 0);
    loop {
        written += lines_from(path, &mut at).unwrap_or(0);
        if written >= answered || Instant::now() > deadline {
            break;
        }
        thread::sleep(POLL);
    }
    // Targets append, so they go on at the new end.
    let _ = fs::OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(0));
    AccessRecords { answered, written }
}

/// How many lines end after `at`, which moves to the end.
fn lines_from(path: &Path, at: &mut u64) -> std::io::Result<u64> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(*at))?;
    let (mut buffer, mut lines) = (vec![0; 1 << 16], 0);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(lines),
            read => {
                lines += memchr::memchr_iter(b'\n', &buffer[..read]).count() as u64;
                *at += read as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn lines_are_counted_as_they_come() {
        let path = std::env::temp_dir().join(format!("weir-bench-records-{}", std::process::id()));
        let mut at = 0;
        assert!(lines_from(&path, &mut at).is_err(), "nothing was written yet");
        let mut file = File::create(&path).unwrap();
        file.write_all(b"{}\n{}\n{\"half").unwrap();
        assert_eq!(lines_from(&path, &mut at).unwrap(), 2);
        file.write_all(b"\":1}\n").unwrap();
        assert_eq!(lines_from(&path, &mut at).unwrap(), 1);
        assert_eq!(lines_from(&path, &mut at).unwrap(), 0);
        fs::remove_file(path).unwrap();
    }
}
