//! One file, watched.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::acme::Challenges;
use crate::document::{Document, NameQuery};
use crate::text::diagnostic::Diagnostic;
use crate::text::substitute::process_environment;
use crate::text::tree::TextPosition;
use crate::text::yaml::TextLimits;

mod watch;

use super::beside;
use super::names::FollowedNames;
use super::secrets::Secrets;
use super::seen::SeenFiles;
use super::trusted;

pub use watch::{ConfigWatch, watch};

/// A configuration file.
#[derive(Debug)]
pub struct FileStore {
    path: PathBuf,
    source: Arc<str>,
    limits: TextLimits,
    names: FollowedNames,
    challenges: Arc<Challenges>,
    secrets: Secrets,
    /// Whether the last version that was accepted ended with `#END`.
    marks_its_end: bool,
}

/// A version of the file.
#[derive(Debug)]
pub struct Loaded {
    pub document: Document,
    /// Of the text as it is in the file.
    pub hash: String,
    /// Nodes that get no endpoint for now, and secrets that may be old.
    pub warnings: Vec<Diagnostic>,
    /// Those of secrets.
    old_secrets: Vec<Diagnostic>,
    marks_its_end: bool,
    /// The files it was read from.
    seen: SeenFiles,
}

impl FileStore {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let source = path.to_string_lossy().into();
        let (limits, names) = (TextLimits::default(), FollowedNames::default());
        FileStore {
            path,
            source,
            limits,
            names,
            secrets: Secrets::default(),
            challenges: Arc::default(),
            marks_its_end: false,
        }
    }

    /// What an authority of certificates may be asking for at this moment. All documents of this store share it.
    pub fn challenges(&self) -> &Arc<Challenges> {
        &self.challenges
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The name of the file, as it stands in diagnostics.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Reads and parses the file as it is now, with the files it names. Looks up no hosts and fetches no secrets: that is
    /// what `weir check` does.
    ///
    /// # Errors
    /// Where the file cannot be read or is not YAML.
    pub fn read(&self) -> Result<Loaded, Vec<Diagnostic>> {
        self.read_with(|document| (document, Vec::new()))
    }

    fn read_with(&self, secrets: impl FnOnce(Document) -> (Document, Vec<String>)) -> Result<Loaded, Vec<Diagnostic>> {
        let mut seen = SeenFiles::default();
        seen.add(&self.path);
        let text = self.text().map_err(|fault| vec![fault])?;
        let mut document = Document::parse(&self.source, &text, &process_environment, self.limits)?;
        let mut complaints = Vec::new();
        // What is refused anyway needs none.
        if document.faults.is_empty() {
            (document, complaints) = secrets(document);
        }
        let directory = self.directory();
        let to_come: Vec<String> = document.files_to_come().collect();
        let names = document.file_names().into_iter().chain(to_come.iter().map(String::as_str));
        document.files = beside::read(names, directory, &process_environment, &mut seen);
        document.directory = directory.to_owned();
        document.challenges = Arc::clone(&self.challenges);
        if document.needs_system_roots() {
            document.system_roots = beside::system_roots();
        }
        document.read_nodes(&process_environment, self.limits);
        let hash = hash(text.as_bytes());
        let old_secrets = self.complaints(complaints);
        Ok(Loaded { document, hash, warnings: Vec::new(), old_secrets, marks_its_end: marks_its_end(&text), seen })
    }

    /// Where relative names of files start from.
    fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }

    fn complaints(&self, problems: Vec<String>) -> Vec<Diagnostic> {
        problems.into_iter().map(|problem| Diagnostic::of_source(&self.source, problem)).collect()
    }

    /// Reads and parses the file, fetches the secrets it refers to, and looks up the names of its nodes.
    ///
    /// # Errors
    /// Where the file cannot be read or is not YAML.
    pub fn load(&mut self) -> Result<Loaded, Vec<Diagnostic>> {
        let mut secrets = std::mem::take(&mut self.secrets);
        let loaded = self.read_with(|document| {
            let http = trusted::http_client(&document, self.directory(), &process_environment);
            secrets.put_into(document, http)
        });
        self.secrets = secrets;
        let mut loaded = loaded?;
        self.names.follow(loaded.document.queries(), &loaded.document.settings.dns).map_err(|error| {
            vec![Diagnostic::of_source(&self.source, format!("names cannot be looked up: {error}"))]
        })?;
        self.look_up(&mut loaded);
        Ok(loaded)
    }

    /// What names stand for by now. Says whether any of them has changed its meaning.
    fn look_up(&self, loaded: &mut Loaded) -> bool {
        let (found, missing) = self.names.current(&loaded.document.queries());
        let unresolved = missing.iter().map(|(query, reason)| self.unresolved(&loaded.document, query, reason));
        loaded.warnings = loaded.old_secrets.iter().cloned().chain(unresolved).collect();
        let changed = loaded.document.found != found;
        loaded.document.found = found;
        changed
    }

    fn unresolved(&self, document: &Document, query: &NameQuery, reason: &str) -> Diagnostic {
        let problem = format!("the name `{}` cannot be resolved: {reason}", query.name());
        Diagnostic::at_place(&self.source, document.place_of(query), problem)
            .advise("its nodes get no requests until it can")
    }

    /// Remembers a version that was accepted.
    fn accepted(&mut self, loaded: &Loaded) {
        self.marks_its_end = loaded.marks_its_end;
    }

    /// A version without the `#END` that the last one had is probably still being written.
    fn cut_off(&self, loaded: &Loaded) -> Option<Diagnostic> {
        let fault = Diagnostic::of_source(&self.source, "lacks the `#END` that the last version ended with");
        (self.marks_its_end && !loaded.marks_its_end)
            .then(|| fault.advise("complete the file, or reload with SIGHUP if it is meant to go without"))
    }

    fn text(&self) -> Result<String, Diagnostic> {
        let unreadable = |error: io::Error| Diagnostic::of_source(&self.source, format!("cannot be read: {error}"));
        let file = File::open(&self.path).map_err(unreadable)?;
        if file.metadata().map_err(unreadable)?.is_dir() {
            return Err(Diagnostic::of_source(&self.source, "is a directory").advise("name the file in it"));
        }
        let mut bytes = Vec::new();
        let most = self.limits.bytes as u64;
        file.take(most + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        if bytes.len() as u64 > most {
            let problem = format!("is larger than {most} bytes");
            return Err(Diagnostic::of_source(&self.source, problem).advise("split the configuration"));
        }
        String::from_utf8(bytes).map_err(|error| self.not_utf8(error.as_bytes(), error.utf8_error().valid_up_to()))
    }

    fn not_utf8(&self, bytes: &[u8], valid: usize) -> Diagnostic {
        let valid = String::from_utf8_lossy(&bytes[..valid]);
        let line = valid.matches('\n').count() as u32 + 1;
        let column = valid.rsplit('\n').next().unwrap_or_default().chars().count() as u32 + 1;
        Diagnostic::at_place(&self.source, TextPosition { line, column }, "is not UTF-8")
            .advise("save the file as UTF-8")
    }
}

/// APISIX's mark at the end of a complete file.
fn marks_its_end(text: &str) -> bool {
    text.trim_end().ends_with("#END")
}

/// FNV-1a, 64 bits: the same on every node and for every version of the program.
fn hash(bytes: &[u8]) -> String {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let hash = bytes.iter().fold(BASIS, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME));
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_fnv_1a() {
        assert_eq!(hash(b""), "cbf29ce484222325");
        assert_eq!(hash(b"a"), "af63dc4c8601ec8c");
    }

    #[test]
    fn a_file_that_is_no_text_says_where() {
        let store = FileStore::new("f");
        assert_eq!(
            store.not_utf8(b"a: 1\nb\xc3\xa9: \xff", 10).to_string(),
            "f:2:5: is not UTF-8; save the file as UTF-8"
        );
    }
}
