//! A configuration file as a source.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};

use super::file_access::{FileAccess, FileStall, Unreadable, read};
use super::include::IncludeReader;
use super::seen::SeenFiles;
use super::source::{Source, SourceDocument, SourceVersion, Wake};
use super::trial::ChangeTrial;
use crate::document::WrittenDocument;
use crate::text::diagnostic::Diagnostic;
use crate::text::substitute::process_environment;
use crate::text::tree::{TextPosition, TreeNode};
use crate::text::yaml::{self, TextLimits};

/// The names and texts of files, and faults.
type NamedTexts = (Vec<(Arc<str>, String)>, Vec<Diagnostic>);

/// A configuration file; its variables are replaced from the environment of this process.
pub struct FileSource {
    path: PathBuf,
    /// The directory that relative file names in it start from.
    directory: PathBuf,
    name: Arc<str>,
    limits: TextLimits,
    files: FileAccess,
    /// Whether the last version read, and the last one accepted, ended with `#END`.
    read_ends: bool,
    accepted_ends: bool,
    watcher: Option<RecommendedWatcher>,
}

impl FileSource {
    pub fn new(path: impl Into<PathBuf>, files: FileAccess) -> FileSource {
        let path = path.into();
        let name = path.to_string_lossy().into();
        let directory = path.parent().unwrap_or(Path::new("")).to_owned();
        let limits = TextLimits::default();
        FileSource { path, directory, name, limits, files, read_ends: false, accepted_ends: false, watcher: None }
    }

    /// Standard input, which can be read only once. Relative file names start from the current directory.
    pub fn standard_input(files: FileAccess) -> FileSource {
        let name = "standard input".into();
        FileSource { directory: PathBuf::new(), name, ..FileSource::new("/dev/stdin", files) }
    }

    /// The names and texts of all files, the main one first, and the faults that keep others from being found.
    pub(super) fn texts(&self) -> Result<NamedTexts, Vec<Diagnostic>> {
        let text = self.text().map_err(|fault| vec![fault])?;
        let mut reader = IncludeReader::new(&self.path, text.len(), &self.files, self.limits);
        let parsed = yaml::parse(&self.name, &text, &process_environment, self.limits);
        let mut texts = vec![(Arc::clone(&self.name), text)];
        let faults = match parsed {
            Ok(parsed) => {
                let include = parsed.tree.entry("include").map(|entry| &entry.value);
                include.map(|include| reader.read(&self.name, &self.directory, include).faults).unwrap_or_default()
            }
            Err(faults) => faults,
        };
        // What is no text has a fault.
        let included = reader.names.into_iter().zip(reader.contents);
        texts.extend(included.filter_map(|(name, bytes)| Some((name, String::from_utf8(bytes).ok()?))));
        Ok((texts, faults))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn text(&self) -> Result<String, Diagnostic> {
        let (path, max_bytes, deadline) = (self.path.clone(), self.limits.bytes as u64, self.files.deadline());
        let bytes = self.files.run(move || read(&path, max_bytes, deadline)).map_err(|stall| self.stalled(&stall))?;
        let bytes = bytes.map_err(|unreadable| match unreadable {
            Unreadable::Io(error) => {
                let fault = Diagnostic::of_source(&self.name, format!("cannot be read: {error}"));
                // Another program that writes the file is late: a later start may succeed.
                if error.kind() == ErrorKind::TimedOut { fault.away() } else { fault }
            }
            Unreadable::Directory => {
                Diagnostic::of_source(&self.name, "is a directory").advise("give the path of a file")
            }
            Unreadable::TooLarge => Diagnostic::of_source(&self.name, format!("is larger than {max_bytes} bytes"))
                .advise("split the configuration"),
        })?;
        String::from_utf8(bytes).map_err(|error| self.not_utf8(error.as_bytes(), error.utf8_error().valid_up_to()))
    }

    /// The text of the file as a tree, with variables replaced.
    pub(super) fn tree(&self) -> Result<TreeNode, Vec<Diagnostic>> {
        let text = self.text().map_err(|fault| vec![fault])?;
        yaml::parse(&self.name, &text, &process_environment, self.limits).map(|parsed| parsed.tree)
    }

    fn stalled(&self, stall: &FileStall) -> Diagnostic {
        Diagnostic::of_source(&self.name, format!("cannot be read: {stall}"))
            .advise("use a file on a reachable file system")
            .away()
    }

    fn not_utf8(&self, bytes: &[u8], valid: usize) -> Diagnostic {
        let valid = String::from_utf8_lossy(&bytes[..valid]);
        let line = valid.matches('\n').count() as u32 + 1;
        let column = valid.rsplit('\n').next().unwrap_or_default().chars().count() as u32 + 1;
        Diagnostic::at_place(&self.name, TextPosition { line, column }, "is not UTF-8").advise("save the file as UTF-8")
    }
}

impl Source for FileSource {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn directory(&self) -> &Path {
        &self.directory
    }

    fn version(&mut self) -> Result<SourceVersion, Diagnostic> {
        let path = self.path.clone();
        let seen = self.files.run(move || SeenFiles::of([&*path]));
        seen.map(|seen| SourceVersion::of(&seen)).map_err(|stall| self.stalled(&stall))
    }

    fn read(&mut self, _: Option<&mut ChangeTrial>) -> Result<SourceDocument, Vec<Diagnostic>> {
        let version = self.version().map_err(|fault| vec![fault])?;
        let text = self.text().map_err(|fault| vec![fault])?;
        let variables = RefCell::new(BTreeSet::new());
        let lookup = |name: &str| {
            variables.borrow_mut().insert(Box::from(name));
            process_environment(name)
        };
        let mut reader = IncludeReader::new(&self.path, text.len(), &self.files, self.limits);
        let mut read = |include: &TreeNode| reader.read(&self.name, &self.directory, include);
        let document = WrittenDocument::parse_including(&self.name, &text, &lookup, self.limits, &mut read)?;
        let (included, contents) = (reader.seen, reader.contents);
        self.read_ends = marks_its_end(&text);
        let incomplete = (self.accepted_ends && !self.read_ends).then(|| {
            Diagnostic::of_source(&self.name, "has no `#END` line at its end, as the last version had")
                .advise("complete the file, or reload with SIGHUP if the `#END` line was removed on purpose")
        });
        let revision = hash(std::iter::once(text.as_bytes()).chain(contents.iter().map(Vec::as_slice)));
        Ok(SourceDocument { document, version, included, revision, incomplete, variables: variables.into_inner() })
    }

    /// Subscribes to changes of the directory, since the file itself may be replaced. If that fails (no inotify instance left),
    /// the check every second has to do.
    fn notify(&mut self, wake: Wake) {
        let Some(name) = self.path.file_name().map(OsStr::to_owned) else { return };
        let handler = move |event: notify::Result<notify::Event>| {
            if event.is_ok_and(|event| event.need_rescan() || event.paths.iter().any(|path| concerns(path, &name))) {
                wake();
            }
        };
        let directory = match self.directory() {
            nothing if nothing.as_os_str().is_empty() => PathBuf::from("."),
            directory => directory.to_owned(),
        };
        let watcher = self.files.run(move || {
            let mut watcher = notify::recommended_watcher(handler).ok()?;
            watcher.watch(&directory, RecursiveMode::NonRecursive).ok()?;
            Some(watcher)
        });
        self.watcher = watcher.ok().flatten();
    }

    fn accepted(&mut self) {
        self.accepted_ends = self.read_ends;
    }
}

/// Filters events: other files of the directory, such as logs, change often. `..data` is the link that Kubernetes replaces.
fn concerns(path: &Path, name: &OsString) -> bool {
    path.file_name().is_some_and(|changed| changed == name || changed.as_encoded_bytes().starts_with(b".."))
}

/// APISIX's marker for the end of a complete file.
fn marks_its_end(text: &str) -> bool {
    text.trim_end().ends_with("#END")
}

/// FNV-1a, 64 bits: equal on all nodes and in all versions of the program.
pub(super) fn hash<'t>(texts: impl Iterator<Item = &'t [u8]>) -> String {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let hash = texts.flatten().fold(BASIS, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME));
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_fnv_1a() {
        assert_eq!(hash([].into_iter()), "cbf29ce484222325");
        assert_eq!(hash([&b"a"[..]].into_iter()), "af63dc4c8601ec8c");
    }

    #[test]
    fn a_file_that_is_no_text_says_where() {
        let source = FileSource::new("f", FileAccess::direct());
        assert_eq!(
            source.not_utf8(b"a: 1\nb\xc3\xa9: \xff", 10).to_string(),
            "f:2:5: is not UTF-8; save the file as UTF-8"
        );
    }
}
