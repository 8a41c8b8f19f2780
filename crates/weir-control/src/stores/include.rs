//! Finding and reading the files that a configuration includes.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use super::file_access::{self, FileAccess, Unreadable};
use super::seen::SeenFiles;
use crate::document::{IncludedFile, IncludedFiles};
use crate::text::diagnostic::Diagnostic;
use crate::text::read::shortened;
use crate::text::substitute::process_environment;
use crate::text::tree::{NodeKind, TextPosition, TreeNode};
use crate::text::yaml::{SourceText, TextLimits};

/// The most levels of directories, where a link may form a cycle, and of files that include files.
const MAX_DEPTH: usize = 16;

/// The most entries of directories that are looked at: links may form cycles with more ways than a computer can go.
const MAX_ENTRIES: usize = 100_000;

/// Reads included files, and the files that these include.
pub(super) struct IncludeReader<'a> {
    access: &'a FileAccess,
    limits: TextLimits,
    /// The bytes that all further files together may have.
    bytes_left: usize,
    /// The entries of directories that may still be looked at.
    entries_left: usize,
    /// The real paths of the files that lead to the one being read, the main file first.
    stack: Vec<PathBuf>,
    /// The place where each file was included, by its real path.
    included: HashMap<PathBuf, String>,
    found: IncludedFiles,
    /// The state of all files and directories from before they were read.
    pub(super) seen: SeenFiles,
    /// The contents of the files, in the order of reading.
    pub(super) contents: Vec<Vec<u8>>,
    /// The names of the files, in the same order.
    pub(super) names: Vec<Arc<str>>,
}

/// A file that includes others, and the position of the entry.
struct IncludingFile<'a> {
    name: &'a Arc<str>,
    directory: &'a Path,
    place: TextPosition,
}

/// The files of one entry of `include`.
#[derive(Default)]
struct FoundFiles {
    /// The path of each file as shown in diagnostics, and its real path.
    files: Vec<(PathBuf, PathBuf)>,
    seen: SeenFiles,
    /// The entries of directories that may still be looked at.
    entries_left: usize,
}

impl<'a> IncludeReader<'a> {
    pub(super) fn new(main: &Path, main_bytes: usize, access: &'a FileAccess, limits: TextLimits) -> IncludeReader<'a> {
        let main = main.to_owned();
        let real = access.run(move || fs::canonicalize(&main).unwrap_or(main));
        IncludeReader {
            access,
            limits,
            bytes_left: limits.bytes.saturating_sub(main_bytes),
            entries_left: MAX_ENTRIES,
            stack: real.into_iter().collect(),
            included: HashMap::new(),
            found: IncludedFiles::default(),
            seen: SeenFiles::default(),
            contents: Vec::new(),
            names: Vec::new(),
        }
    }

    /// Reads all files that the main file includes.
    pub(super) fn read(&mut self, name: &Arc<str>, directory: &Path, include: &TreeNode) -> IncludedFiles {
        self.read_list(name, directory, include);
        std::mem::take(&mut self.found)
    }

    fn read_list(&mut self, name: &Arc<str>, directory: &Path, include: &TreeNode) {
        let entries = match &include.kind {
            NodeKind::List(items) => items.as_slice(),
            _ => std::slice::from_ref(include),
        };
        for entry in entries {
            let from = IncludingFile { name, directory, place: entry.place };
            match &entry.kind {
                NodeKind::Text(text) if !text.is_empty() => self.read_entry(&from, text),
                NodeKind::Null if entries.len() == 1 => {}
                _ => {
                    self.report(
                        &from,
                        "expected the name of a file or a directory",
                        "write as `include: [routes/*.yaml]`",
                    );
                }
            }
        }
    }

    fn read_entry(&mut self, from: &IncludingFile, written: &str) {
        let path = from.directory.join(written);
        let shown = shortened(written);
        let left = self.entries_left;
        let found = match self.access.run(move || FoundFiles::of(&path, left)) {
            Ok(Ok(found)) => found,
            Ok(Err((seen, error))) => {
                self.seen.append(seen);
                return self.report(from, &format!("`{shown}` cannot be read: {error}"), "correct the path");
            }
            Err(stall) => return self.report(from, &format!("`{shown}` cannot be read: {stall}"), "use a local file"),
        };
        self.seen.append(found.seen);
        self.entries_left = found.entries_left;
        if found.files.is_empty() {
            let problem = format!("no file is at `{shown}`; names that begin with a dot do not count");
            let fault = Diagnostic::at_place(from.name, from.place, problem).advise("correct the path, or remove it");
            self.found.warnings.push(Diagnostic { path: "include".to_owned(), ..fault });
        }
        found.files.into_iter().for_each(|(path, real)| self.read_file(from, &path, real));
    }

    fn read_file(&mut self, from: &IncludingFile, path: &Path, real: PathBuf) {
        let shown = path.display();
        if self.stack.contains(&real) {
            let problem = format!("`{shown}` includes itself, directly or by way of others");
            return self.report(from, &problem, "keep included files in a directory of their own");
        }
        if let Some(elsewhere) = self.included.get(&real) {
            let problem = format!("`{shown}` is already included at {elsewhere}");
            return self.report(from, &problem, "include it once");
        }
        if self.stack.len() > MAX_DEPTH {
            let problem = format!("`{shown}` is included by way of more than {MAX_DEPTH} files");
            return self.report(from, &problem, "include it directly");
        }
        let IncludingFile { name, place, .. } = from;
        self.included.insert(real.clone(), format!("{name}:{}:{}", place.line, place.column));
        let Some(bytes) = self.content(from, path) else { return };
        let name: Arc<str> = path.to_string_lossy().into();
        let Ok(text) = std::str::from_utf8(&bytes) else {
            return self.report(from, &format!("`{shown}` is not UTF-8"), "save the file as UTF-8");
        };
        let parsed = SourceText::new(&name, text, &process_environment, self.limits)
            .and_then(|text| IncludedFile::parse(Arc::clone(&name), text));
        self.contents.push(bytes);
        self.names.push(Arc::clone(&name));
        match parsed {
            Err(faults) => self.found.faults.extend(faults),
            Ok(file) => {
                let further = file.tree.entry("include").map(|entry| entry.value.clone());
                self.found.files.push(file);
                if let Some(further) = further {
                    self.stack.push(real);
                    self.read_list(&name, path.parent().unwrap_or(Path::new("")), &further);
                    self.stack.pop();
                }
            }
        }
    }

    /// The content of a file; `None` if a fault has been reported.
    fn content(&mut self, from: &IncludingFile, path: &Path) -> Option<Vec<u8>> {
        let (own, limit, deadline) = (path.to_owned(), self.bytes_left as u64, self.access.deadline());
        let (problem, advice) = match self.access.run(move || file_access::read(&own, limit, deadline)) {
            Ok(Ok(bytes)) => {
                self.bytes_left = self.bytes_left.saturating_sub(bytes.len());
                return Some(bytes);
            }
            Ok(Err(Unreadable::TooLarge)) => {
                ("it is too large".to_owned(), format!("all files together may have {} bytes", self.limits.bytes))
            }
            Ok(Err(unreadable)) => (unreadable.to_string(), "correct the path, or the permissions".to_owned()),
            Err(stall) => (stall.to_string(), "use a file on a reachable file system".to_owned()),
        };
        self.report(from, &format!("`{}` cannot be read: {problem}", path.display()), &advice);
        None
    }

    fn report(&mut self, from: &IncludingFile, problem: &str, advice: &str) {
        let fault = Diagnostic::at_place(from.name, from.place, problem).advise(advice);
        self.found.faults.push(Diagnostic { path: "include".to_owned(), ..fault });
    }
}

impl FoundFiles {
    /// The files of a path: the file itself, those in a directory and below it, or those of a directory whose names match a
    /// pattern.
    fn of(path: &Path, entries_left: usize) -> Result<FoundFiles, (SeenFiles, io::Error)> {
        let mut found = FoundFiles { entries_left, ..FoundFiles::default() };
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let outcome = if name.contains(['*', '?']) {
            let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
            found.add_directory(directory, 0, &|entry| !entry.is_dir() && fits(&name_of(entry), &name))
        } else if path.is_dir() {
            found.add_directory(path, MAX_DEPTH, &is_configuration)
        } else {
            found.add_file(path)
        };
        match outcome {
            Ok(()) => Ok(found),
            Err(error) => Err((found.seen, error)),
        }
    }

    fn add_file(&mut self, path: &Path) -> io::Result<()> {
        self.seen.add(path);
        self.files.push((path.to_owned(), fs::canonicalize(path)?));
        Ok(())
    }

    /// Adds files in the order of their names, without hidden ones. Subdirectories are searched down to `depth` levels.
    fn add_directory(&mut self, directory: &Path, depth: usize, wanted: &dyn Fn(&Path) -> bool) -> io::Result<()> {
        self.seen.add(directory);
        let mut entries = Vec::new();
        for entry in fs::read_dir(directory)? {
            let left = self.entries_left.checked_sub(1);
            let too_many = || io::Error::other(format!("there are more than {MAX_ENTRIES} entries in directories"));
            self.entries_left = left.ok_or_else(too_many)?;
            entries.push(entry?.path());
        }
        entries.retain(|entry| !name_of(entry).starts_with('.'));
        entries.sort();
        for entry in entries {
            if wanted(&entry) {
                let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", entry.display()));
                self.add_file(&entry).map_err(named)?;
            } else if depth > 0 && entry.is_dir() {
                self.add_directory(&entry, depth - 1, wanted)?;
            }
        }
        Ok(())
    }
}

fn name_of(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

fn is_configuration(path: &Path) -> bool {
    path.extension().is_some_and(|kind| ["yaml", "yml", "json"].iter().any(|known| kind == *known)) && !path.is_dir()
}

/// Whether a name matches a pattern, in which `*` is any text and `?` is any one character.
fn fits(name: &str, pattern: &str) -> bool {
    let (name, pattern): (Vec<char>, Vec<char>) = (name.chars().collect(), pattern.chars().collect());
    // Where to resume if the text after the last `*` does not match: the `*` then takes one more character.
    let mut again: Option<(usize, usize)> = None;
    let (mut at, mut asked) = (0, 0);
    while at < name.len() {
        match pattern.get(asked) {
            Some('*') => {
                again = Some((at, asked));
                asked += 1;
            }
            Some(wanted) if *wanted == '?' || *wanted == name[at] => (at, asked) = (at + 1, asked + 1),
            _ => match &mut again {
                None => return false,
                Some((taken, star)) => {
                    *taken += 1;
                    (at, asked) = (*taken, *star + 1);
                }
            },
        }
    }
    pattern[asked..].iter().all(|rest| *rest == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_over_directories_is_bounded() {
        let directory = weir_testkit::TempDir::new();
        // Each level has two ways to the next one.
        for link in ["a", "b"] {
            std::os::unix::fs::symlink(directory.join("."), directory.join(link)).expect("a link");
        }
        fs::write(directory.join("r.yaml"), "routes: []").expect("it is written");
        let (_, error) = FoundFiles::of(&directory.join("."), 1_000).err().expect("it does not end");
        assert!(error.to_string().contains("entries in directories"), "{error}");
        fs::remove_file(directory.join("b")).expect("it is removed");
        let found = FoundFiles::of(&directory.join("."), 1_000).expect("one way is walked to its end");
        assert_eq!((found.entries_left, found.files.len()), (1_000 - 2 * 17, 17));
    }

    #[test]
    fn patterns_fit_names() {
        for (pattern, name) in
            [("*", ""), ("*.yaml", "a.yaml"), ("a*b*c", "a1b2b3c"), ("a?.json", "ab.json"), ("**", "x")]
        {
            assert!(fits(name, pattern), "{pattern} {name}");
        }
        for (pattern, name) in [("*.yaml", "a.yml"), ("a?", "a"), ("a*b", "a1c"), ("?", "")] {
            assert!(!fits(name, pattern), "{pattern} {name}");
        }
    }
}
