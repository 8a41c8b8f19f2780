//! The files of a node whose resources stand in files: read as texts, and written.

mod replace;

use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use aws_lc_rs::hmac;

use super::file::{FileSource, hash};
use super::file_access::FileAccess;
use crate::text::diagnostic::Diagnostic;

pub(crate) use replace::Unwritten;
use replace::{FileReplacement, replace};

/// A file of the configuration, with its text as it is or as it would be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraftFile {
    /// As in diagnostics: a path.
    pub name: Box<str>,
    pub text: Box<str>,
}

/// All files, the main one first, and then in the order in which they are included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadDraft {
    pub files: Vec<DraftFile>,
    /// Why not all files can be read, or some are not understood.
    pub faults: Vec<Diagnostic>,
}

impl ReadDraft {
    /// Another one as soon as a file has another text or another name, or there are others.
    pub fn revision(&self) -> String {
        revision_of(&self.files)
    }
}

/// A hash of the names and texts, each after its length: no two lists of files are the same row of bytes. It has a key of this process,
/// since the texts have secrets that an admin does not see, and could guess by a hash alone.
pub(crate) fn revision_of(files: &[DraftFile]) -> String {
    static KEY: LazyLock<hmac::Key> = LazyLock::new(|| {
        let mut key = [0; 32];
        aws_lc_rs::rand::fill(&mut key).expect("a process that serves TLS gets random numbers");
        hmac::Key::new(hmac::HMAC_SHA256, &key)
    });
    let mut context = hmac::Context::with_key(&KEY);
    for part in files.iter().flat_map(|file| [&file.name, &file.text]) {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part.as_bytes());
    }
    context.sign().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The hash by which a running node knows these texts.
pub(crate) fn served_hash(files: &[DraftFile]) -> String {
    hash(files.iter().map(|file| file.text.as_bytes()))
}

/// The files that a node was started with.
pub struct DraftFiles {
    path: PathBuf,
    access: FileAccess,
    /// Whether the node may write them. Held while it does.
    writing: Option<Mutex<()>>,
}

impl DraftFiles {
    /// `writes`: whether the node may write them.
    pub fn new(path: &Path, writes: bool) -> DraftFiles {
        DraftFiles { path: path.to_owned(), access: FileAccess::limited(), writing: writes.then(Mutex::default) }
    }

    pub fn may_write(&self) -> bool {
        self.writing.is_some()
    }

    /// The texts as they are now.
    ///
    /// # Errors
    /// If the main file cannot be read.
    pub fn read(&self) -> Result<ReadDraft, Vec<Diagnostic>> {
        let (texts, faults) = FileSource::new(&self.path, self.access.clone()).texts()?;
        let files = texts.into_iter().map(|(name, text)| DraftFile { name: (&*name).into(), text: text.into() });
        Ok(ReadDraft { files: files.collect(), faults })
    }

    /// The right to write the files, which one request has at a time, with what they are now; `None` if the node may not write them.
    ///
    /// # Errors
    /// If the main file cannot be read.
    pub fn turn(&self) -> Result<Option<DraftTurn<'_>>, Vec<Diagnostic>> {
        let Some(writing) = &self.writing else { return Ok(None) };
        let guard = writing.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Some(DraftTurn { access: &self.access, before: self.read()?, _guard: guard }))
    }
}

/// The right to write the files.
pub struct DraftTurn<'d> {
    access: &'d FileAccess,
    /// The files as they were read when the turn began.
    pub before: ReadDraft,
    _guard: MutexGuard<'d, ()>,
}

impl DraftTurn<'_> {
    /// Writes all files, or none: those of the turn, in their order, with new texts. Returns the names of those that have another text
    /// now.
    ///
    /// # Errors
    /// Why not, with the names of those that have been replaced nevertheless.
    pub fn write(self, files: &[DraftFile]) -> Result<Vec<Box<str>>, Unwritten> {
        let pairs = self.before.files.iter().zip(files);
        let changed = pairs.filter(|(before, now)| before.text != now.text);
        let changed: Vec<FileReplacement> = changed
            .map(|(before, now)| FileReplacement {
                name: before.name.clone(),
                old: before.text.clone(),
                new: now.text.clone(),
            })
            .collect();
        let names: Vec<Box<str>> = changed.iter().map(|one| one.name.clone()).collect();
        let outcome = self.access.run(move || replace(&changed));
        outcome.map_err(|stall| Unwritten::unknown(&names, &stall))?.map(|()| names)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;
    use std::time::Duration;

    use weir_testkit::TempDir;

    use super::*;

    fn file(name: &str, text: &str) -> DraftFile {
        DraftFile { name: name.into(), text: text.into() }
    }

    /// Such a file has no end, so that to read it would never end.
    #[test]
    fn a_file_that_has_become_a_pipe_is_left_as_it_is() {
        let directory = TempDir::new();
        let path = directory.join("weir.yaml");
        fs::write(&path, "listen: []\n").expect("it is written");
        let access = FileAccess::limited_to(Duration::from_millis(200));
        let draft = DraftFiles { path: path.clone(), access, writing: Some(Mutex::default()) };
        let turn = draft.turn().expect("it is read").expect("it may be written");
        let name = turn.before.files[0].name.clone();
        fs::remove_file(&path).expect("it is removed");
        assert!(Command::new("mkfifo").arg(&path).status().expect("there is mkfifo").success());
        let unwritten = turn.write(&[file(&name, "listen: [80]\n")]).expect_err("it is no file");
        assert_eq!((unwritten.renamed, unwritten.left, unwritten.unknown), (vec![], vec![name], vec![]));
    }

    #[test]
    fn revisions_have_names_and_lengths() {
        let lists = [
            vec![file("a", "bc"), file("d", "")],
            vec![file("a", "bc")],
            vec![file("a", "b"), file("d", "c")],
            vec![file("ab", "c"), file("d", "")],
            vec![file("a", ""), file("d", "bc")],
            vec![file("d", ""), file("a", "bc")],
        ];
        let all: std::collections::BTreeSet<String> = lists.iter().map(|list| revision_of(list)).collect();
        assert_eq!(all.len(), lists.len());
    }

    #[test]
    fn files_are_read_in_the_order_in_which_they_are_included() {
        let directory = TempDir::new();
        let named = |name: &str| directory.join(name);
        fs::write(named("weir.yaml"), "include: [b.yaml, a.yaml]\n").expect("it is written");
        fs::write(named("a.yaml"), "routes: []\n").expect("it is written");
        fs::write(named("b.yaml"), "include: c.yaml\n").expect("it is written");
        fs::write(named("c.yaml"), "upstreams: []\n").expect("it is written");
        let draft = DraftFiles::new(&named("weir.yaml"), false);
        let read = draft.read().expect("it is read");
        let names: Vec<String> =
            read.files.iter().map(|file| file.name.rsplit('/').next().unwrap_or_default().to_owned()).collect();
        assert_eq!(
            (names, read.faults),
            (["weir.yaml", "b.yaml", "c.yaml", "a.yaml"].map(str::to_owned).into(), vec![])
        );
        assert!(draft.turn().expect("it is read").is_none(), "it may not be written");
    }
}
