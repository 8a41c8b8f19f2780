//! What a target writes to its log.

use std::{
    fs::{self, File},
    io::{self, Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
};

use crate::target::{Child, PeerDefinition};

/// Lines of a target's log that a run keeps.
const KEPT_ERRORS: usize = 20;
/// The most bytes of a file that are looked through for the errors of a run on an agent.
const LOOKED_THROUGH: u64 = 1 << 20;

/// The log so far: the output of the process, and the file that the peer's definition names.
pub(super) fn text(child: &Child, peer: &PeerDefinition, dir: &Path) -> String {
    let mut text = child.output();
    if let Some(name) = &peer.log {
        text.push_str(&fs::read_to_string(dir.join(name)).unwrap_or_default());
    }
    text
}

/// The first errors in a log from byte `start` on.
pub(super) fn errors(log: &str, start: usize, peer: &PeerDefinition) -> Vec<String> {
    of_lines(log.get(start..).unwrap_or_default(), peer).collect()
}

fn of_lines<'a>(text: &'a str, peer: &'a PeerDefinition) -> impl Iterator<Item = String> + 'a {
    let errors = text.lines().filter(|line| peer.log_errors.iter().any(|word| line.contains(word.as_str())));
    errors.take(KEPT_ERRORS).map(str::to_owned)
}

/// The files of a log, each with the part that has been read: memory is taken for a part of a file only.
pub(super) struct LogFiles(Vec<(PathBuf, u64)>);

impl LogFiles {
    pub(super) fn new(child: &Child, peer: &PeerDefinition, dir: &Path) -> LogFiles {
        let files = [Some(child.output_file().to_owned()), peer.log.as_ref().map(|name| dir.join(name))];
        LogFiles(files.into_iter().flatten().map(|file| (file, 0)).collect())
    }

    /// The first errors since the last call.
    pub(super) fn new_errors(&mut self, peer: &PeerDefinition) -> Vec<String> {
        let mut errors = Vec::new();
        for (file, read) in &mut self.0 {
            // A file that is not there has no errors.
            let text = next_part(file, read).unwrap_or_default();
            errors.extend(of_lines(&text, peer));
        }
        errors.truncate(KEPT_ERRORS);
        errors
    }
}

/// The beginning of what a file has more than `read`, which is then its length.
fn next_part(file: &Path, read: &mut u64) -> io::Result<String> {
    let mut file = File::open(file)?;
    let length = file.metadata()?.len();
    // It has been shortened.
    let start = if *read > length { 0 } else { *read };
    *read = length;
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take((length - start).min(LOOKED_THROUGH)).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target;

    #[test]
    fn each_error_is_told_once_though_both_files_grow() {
        let dir = std::env::temp_dir().join(format!("weir-bench-logs-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let files = [dir.join("one"), dir.join("two")];
        let peer = target::read("nginx").unwrap();
        let word = peer.log_errors[0].clone();
        let add = |file: usize, number: u32| {
            use std::io::Write as _;
            let mut file = File::options().append(true).create(true).open(&files[file]).unwrap();
            writeln!(file, "\u{e4} {word} {number}").unwrap();
        };
        let mut log = LogFiles(files.iter().map(|file| (file.clone(), 0)).collect());
        assert!(log.new_errors(&peer).is_empty());
        let numbers = |log: &mut LogFiles| -> Vec<String> {
            log.new_errors(&peer).iter().map(|line| line.rsplit(' ').next().unwrap().to_owned()).collect()
        };
        add(0, 1);
        add(1, 2);
        assert_eq!(numbers(&mut log), ["1", "2"]);
        add(0, 3);
        assert_eq!(numbers(&mut log), ["3"]);
        add(1, 4);
        assert_eq!(numbers(&mut log), ["4"]);
        fs::remove_dir_all(dir).unwrap();
    }
}
