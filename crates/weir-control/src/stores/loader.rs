//! Completes a source's document with secrets, files and the results of name lookups, so that compiling needs no I/O.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use weir_client::HttpClient;
use weir_plugin::AllowedFolders;

use super::beside;
use super::file::FileSource;
use super::file_access::{FileAccess, FileStall};
use super::file_resources::FileResources;
use super::live::LiveResources;
use super::names::{FollowedNames, NameLookups};
use super::resource_source::AcceptedSettings;
use super::secrets::Secrets;
use super::seen::SeenFiles;
use super::source::{Source, SourceVersion, Wake};
use super::trial::{ChangeTrial, ResourceNames};
use super::trusted;
use crate::document::{
    BesideDocument, CompleteDocument, Document, Files, NameQuery, NamedFiles, WorkloadIdentity, WrittenDocument,
};
use crate::spiffe::{FollowedWorkload, WorkloadHandle};
use crate::text::diagnostic::Diagnostic;
use crate::text::substitute::process_environment;
use crate::text::yaml::TextLimits;

/// How long a node that starts without a secret waits for its manager.
const FIRST_START_PATIENCE: Duration = Duration::from_secs(20);
/// The pause between two tries of a node that starts.
const PAUSE: Duration = Duration::from_millis(500);

/// Loads documents of one source.
pub struct DocumentLoader {
    pub(super) source: Box<dyn Source>,
    files: FileAccess,
    pub(super) limits: TextLimits,
    pub(super) names: FollowedNames,
    pub(super) workload: FollowedWorkload,
    pub(super) secrets: Secrets,
    /// The client for requests to registries, with the settings of the last document.
    http: HttpClient,
    /// The resources of its store; `None` if they come from the file.
    live: Option<Arc<LiveResources>>,
    /// The resources of the file for the Admin API, if it shows them.
    shown: Option<Arc<FileResources>>,
    /// The settings of the document that is served, if there is a store, or an Admin API.
    pub(super) accepted: AcceptedSettings,
    /// The files of the document loaded last.
    files_read: SeenFiles,
    /// The contents of the files of the document loaded last, and of the one that is served.
    contents_read: NamedFiles,
    pub(super) contents_served: ServedFiles,
}

/// The contents of the files of the document that is served. A change of resources goes on with them if a file cannot be read at
/// the moment: it is not the change's fault.
#[derive(Clone, Debug, Default)]
pub(super) struct ServedFiles(Arc<Mutex<NamedFiles>>);

impl ServedFiles {
    /// Puts the content that is served in place of each that could not be read. Returns the names of these.
    pub(super) fn complete(&self, files: &mut NamedFiles) -> Vec<Box<str>> {
        let served = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut completed = complete(&mut files.of_settings, &served.of_settings);
        completed.append(&mut complete(&mut files.of_resources, &served.of_resources));
        completed
    }
}

fn complete(files: &mut Files, served: &Files) -> Vec<Box<str>> {
    let mut completed = Vec::new();
    for (name, content) in files.iter_mut() {
        // What may not be read is not completed.
        if content.as_ref().map_or_else(|reason| AllowedFolders::is_refusal(reason), |_| true) {
            continue;
        }
        if let Some(Ok(known)) = served.get(name) {
            *content = Ok(Arc::clone(known));
            completed.push(name.clone());
        }
    }
    completed
}

/// The setting that names the Workload API.
const SOCKET: &str = "spiffe.socket";

/// A document with everything that is needed to compile it.
#[derive(Debug)]
pub struct LoadedDocument {
    pub document: CompleteDocument,
    /// The revision that the source gives it.
    pub revision: String,
    /// Nodes without an endpoint for now, and secrets that may be out of date.
    pub warnings: Vec<Diagnostic>,
    /// The resources that it was made of; `None` if they come from the file, or are those of a change.
    pub(super) trial: Option<ChangeTrial>,
    /// The warnings about secrets.
    pub(super) old_secrets: Vec<Diagnostic>,
    pub(super) incomplete: Option<Diagnostic>,
    pub(super) inputs: DocumentInputs,
    /// The resources of a store that its paths stand for; `None` if the resources come from the file.
    pub(super) names: Option<ResourceNames>,
}

impl LoadedDocument {
    /// A finding about this document as operators see it: a resource of a store has no place in the file, so its key is named.
    pub(super) fn named(&self, finding: Diagnostic) -> Diagnostic {
        match &self.names {
            Some(names) => names.name(finding),
            None => finding,
        }
    }
}

/// The inputs of a document, to detect changes: the version of the source, and the files read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DocumentInputs {
    version: SourceVersion,
    files: SeenFiles,
}

impl DocumentInputs {
    /// Takes the inputs of a document with changed resources. If the file is refused at the moment, its version stays, so that it is
    /// not read again before it changes.
    pub(super) fn take(&mut self, of_trial: &DocumentInputs) {
        if self.version == of_trial.version {
            self.clone_from(of_trial);
        } else {
            self.files.add_missing(&of_trial.files);
        }
    }
}

impl DocumentLoader {
    pub fn new(source: impl Source + 'static, files: FileAccess) -> DocumentLoader {
        DocumentLoader {
            source: Box::new(source),
            files,
            limits: TextLimits::default(),
            names: FollowedNames::default(),
            workload: FollowedWorkload::default(),
            secrets: Secrets::default(),
            http: HttpClient::default(),
            live: None,
            shown: None,
            accepted: AcceptedSettings::default(),
            files_read: SeenFiles::default(),
            contents_read: NamedFiles::default(),
            contents_served: ServedFiles::default(),
        }
    }

    pub(super) fn with_live(self, live: Arc<LiveResources>, accepted: AcceptedSettings) -> DocumentLoader {
        DocumentLoader { live: Some(live), accepted, ..self }
    }

    /// The resources of its store; `None` if they come from the file.
    pub fn live(&self) -> Option<&Arc<LiveResources>> {
        self.live.as_ref()
    }

    pub(super) fn showing(self, shown: FileResources, accepted: AcceptedSettings) -> DocumentLoader {
        DocumentLoader { shown: Some(Arc::new(shown)), accepted, ..self }
    }

    /// The resources of the file for the Admin API; `None` if it does not show them.
    pub fn shown(&self) -> Option<&Arc<FileResources>> {
        self.shown.as_ref()
    }

    /// The resources for the Admin API: those of the store, or of the file.
    pub fn resources(&self) -> Option<&Arc<LiveResources>> {
        self.live.as_ref().or_else(|| self.shown.as_ref().map(|shown| shown.live()))
    }

    /// A handle to the state of name lookups.
    pub fn lookups(&self) -> NameLookups {
        self.names.lookups()
    }

    /// A handle to the state of the SPIFFE Workload API.
    pub fn workload(&self) -> WorkloadHandle {
        self.workload.handle()
    }

    /// A loader for a process that serves traffic: file operations have a time limit.
    pub fn of_file(path: impl Into<PathBuf>) -> DocumentLoader {
        let files = FileAccess::limited();
        Self::new(FileSource::new(path, files.clone()), files)
    }

    /// A loader for a process that serves no traffic; it starts no thread.
    pub fn of_file_directly(path: impl Into<PathBuf>) -> DocumentLoader {
        let files = FileAccess::direct();
        Self::new(FileSource::new(path, files.clone()), files)
    }

    /// Like [`DocumentLoader::of_file_directly`], for standard input.
    pub fn of_standard_input() -> DocumentLoader {
        let files = FileAccess::direct();
        Self::new(FileSource::standard_input(files.clone()), files)
    }

    /// The name of the source in diagnostics.
    pub fn source_name(&self) -> &Arc<str> {
        self.source.name()
    }

    /// Called when the document loaded last is served.
    pub(super) fn accepted(&mut self) {
        self.source.accepted();
        self.names.accept();
        self.workload.accept();
        let contents = std::mem::take(&mut self.contents_read);
        *self.contents_served.0.lock().unwrap_or_else(PoisonError::into_inner) = contents;
    }

    /// Called when the document loaded last may have been refused: the names of the served one are kept up to date.
    pub(super) fn return_to_served(&mut self) {
        self.names.return_to_served();
        self.workload.return_to_served();
    }

    /// Reads the current document with the files it refers to. Does not resolve host names or fetch secrets: for `weir check`.
    ///
    /// # Errors
    /// If there is no document that can be parsed.
    pub fn read(&mut self) -> Result<LoadedDocument, Vec<Diagnostic>> {
        let mut trial = self.live.as_ref().map(LiveResources::begin);
        self.read_trial(trial.as_mut())
    }

    /// Like [`DocumentLoader::read`], with the resources of a trial.
    pub(super) fn read_trial(&mut self, trial: Option<&mut ChangeTrial>) -> Result<LoadedDocument, Vec<Diagnostic>> {
        self.read_with(trial, |_, document| Ok((document.without_secrets(), Vec::new())))
    }

    /// Reads the document, fetches the secrets it refers to, and resolves the names of its nodes.
    ///
    /// # Errors
    /// As [`DocumentLoader::read`].
    pub fn load(&mut self) -> Result<LoadedDocument, Vec<Diagnostic>> {
        let mut trial = self.live.as_ref().map(LiveResources::begin);
        let loaded = self.load_trial(trial.as_mut())?;
        Ok(LoadedDocument { trial, ..loaded })
    }

    /// Like [`DocumentLoader::load`], for a node that starts: managers of secrets that do not answer are asked again for
    /// [`FIRST_START_PATIENCE`]. `told` is called with what it waits for.
    ///
    /// # Errors
    /// As [`DocumentLoader::read`].
    pub(super) fn load_first(&mut self, told: &dyn Fn(&str)) -> Result<LoadedDocument, Vec<Diagnostic>> {
        let deadline = Instant::now() + FIRST_START_PATIENCE;
        let mut has_told = false;
        loop {
            let loaded = self.load()?;
            let Some(problem) = self.secrets.away().filter(|_| Instant::now() < deadline) else { return Ok(loaded) };
            if !has_told {
                let limit = FIRST_START_PATIENCE.as_secs();
                told(&format!("secrets cannot be read yet, trying for {limit} seconds: {problem}"));
                has_told = true;
            }
            std::thread::sleep(PAUSE);
            self.secrets.forget_failed();
        }
    }

    /// Like [`DocumentLoader::load`], with the resources of a trial.
    pub(super) fn load_trial(&mut self, trial: Option<&mut ChangeTrial>) -> Result<LoadedDocument, Vec<Diagnostic>> {
        let is_change = trial.as_ref().is_some_and(|trial| trial.is_change());
        let has_set_aside = trial.as_ref().is_some_and(|trial| !trial.set_aside().is_empty());
        let mut loaded = self.read_with(trial, |loader, document| {
            let directory = loader.source.directory();
            match trusted::http_client(&document.settings, directory, &loader.files) {
                Ok(http) => loader.http = http,
                // The one in use stays.
                Err(_) if is_change => {}
                Err(stall) => return Err(stall),
            }
            Ok(loader.secrets.put_into(document, loader.http.clone(), has_set_aside))
        })?;
        let queries = loaded.document.queries().clone();
        self.names.follow(queries, &loaded.document.settings, self.http.clone()).map_err(|error| {
            vec![Diagnostic::of_source(self.source.name(), format!("host names cannot be looked up: {error}"))]
        })?;
        let endpoint = loaded.document.settings.spiffe.as_ref().map(|spiffe| &spiffe.endpoint);
        if let Err(problem) = self.workload.follow(endpoint) {
            let told = Diagnostic::at_place(self.source.name(), loaded.document.place_at(SOCKET), problem);
            let told =
                Diagnostic { path: SOCKET.to_owned(), ..told.advise("correct the address, or reload when it answers") };
            return Err(vec![loaded.document.located(told)]);
        }
        self.update_outside(&mut loaded);
        Ok(loaded)
    }

    fn read_with(
        &mut self,
        mut trial: Option<&mut ChangeTrial>,
        fetch: impl FnOnce(&mut Self, WrittenDocument) -> Result<(Document, Vec<String>), FileStall>,
    ) -> Result<LoadedDocument, Vec<Diagnostic>> {
        let read = self.source.read(trial.as_deref_mut())?;
        // A document with faults is refused, so its secrets are not needed.
        let (document, problems) = match read.document.faults.is_empty() {
            true => fetch(self, read.document).map_err(|stall| vec![self.stalled(&stall)])?,
            false => (read.document.without_secrets(), Vec::new()),
        };
        let is_change = trial.as_ref().is_some_and(|trial| trial.is_change());
        let (beside, mut files) = self.beside(&document, is_change).map_err(|stall| vec![self.stalled(&stall)])?;
        files.append(read.included);
        if trial.as_ref().is_some_and(|trial| !trial.set_aside().is_empty()) {
            // The files of resources that are set aside may be the reason, so they are watched, too.
            files.add_missing(&self.files_read);
        }
        self.files_read.clone_from(&files);
        self.contents_read.clone_from(&beside.files);
        Ok(LoadedDocument {
            document: document.complete(beside, &process_environment, self.limits),
            revision: read.revision,
            warnings: Vec::new(),
            trial: None,
            old_secrets: self.complaints(problems),
            incomplete: read.incomplete,
            inputs: DocumentInputs { version: read.version, files },
            names: trial.map(|trial| trial.names()),
        })
    }

    /// What the document needs from files. In a change, what cannot be read stays as it is served.
    fn beside(&self, document: &Document, is_change: bool) -> Result<(BesideDocument, SeenFiles), FileStall> {
        let directory = self.source.directory();
        let (mut files, mut seen) = beside::of_document(document, directory, &self.files, is_change)?;
        if is_change {
            let completed = self.contents_served.complete(&mut files);
            // So that the watch finds out that they have changed.
            seen.keep(&self.files_read, &completed.iter().map(|name| directory.join(&**name)).collect());
        }
        let system_roots = beside::system_roots(document, &self.files)?;
        Ok((BesideDocument { directory: directory.to_owned(), files, system_roots }, seen))
    }

    fn stalled(&self, stall: &FileStall) -> Diagnostic {
        Diagnostic::of_source(
            self.source.name(),
            format!("the files named in the configuration cannot be read: {stall}"),
        )
        .advise("use regular files on a reachable file system")
        .away()
    }

    fn complaints(&self, problems: Vec<String>) -> Vec<Diagnostic> {
        problems.into_iter().map(|problem| Diagnostic::of_source(self.source.name(), problem)).collect()
    }

    /// The current state of the source and of these files.
    pub(super) fn inputs_now(&mut self, before: &DocumentInputs) -> Result<DocumentInputs, Diagnostic> {
        let version = self.source.version()?;
        let files = before.files.clone();
        let files = self.files.run(move || files.now()).map_err(|stall| self.stalled(&stall))?;
        Ok(DocumentInputs { version, files })
    }

    /// Updates the results of name lookups, and what the Workload API has given. Returns whether any of it has changed.
    pub(super) fn update_outside(&self, loaded: &mut LoadedDocument) -> bool {
        let (found, missing) = self.names.current(loaded.document.queries());
        let unresolved = missing.iter().map(|(query, reason)| self.unresolved(&loaded.document, query, reason));
        let left_out = self.names.left_out(loaded.document.queries());
        let left_out = left_out.iter().map(|(query, targets)| self.left_out(&loaded.document, query, targets));
        let without_identity = self.workload.absence().map(|problem| self.without_identity(&loaded.document, problem));
        let told_before = loaded.warnings.iter().find(|warning| warning.path == SOCKET);
        let is_told = told_before == without_identity.as_ref();
        let warnings = loaded.old_secrets.iter().cloned().chain(unresolved).chain(left_out).chain(without_identity);
        loaded.warnings = warnings.collect();
        let workload = self.workload.identity();
        let digest = |workload: &Option<Arc<WorkloadIdentity>>| workload.as_ref().map(|identity| identity.digest);
        let changed =
            loaded.document.found != found || digest(&loaded.document.workload) != digest(&workload) || !is_told;
        loaded.document.found = found;
        loaded.document.workload = workload;
        changed
    }

    fn without_identity(&self, document: &CompleteDocument, problem: String) -> Diagnostic {
        let told = Diagnostic::at_place(self.source.name(), document.place_at(SOCKET), problem);
        let advice = "handshakes and connections that need it fail until then; Weir goes on asking";
        document.located(Diagnostic { path: SOCKET.to_owned(), ..told.advise(advice) })
    }

    fn unresolved(&self, document: &CompleteDocument, query: &NameQuery, reason: &str) -> Diagnostic {
        let name = query.name();
        let (problem, advice) = match query {
            NameQuery::Host(_) | NameQuery::Service(_) => (
                format!("the name `{name}` cannot be resolved: {reason}"),
                "its nodes get no requests until the name can be resolved",
            ),
            NameQuery::Registered { .. } => (
                format!("the service `{name}` has no instances: {reason}"),
                "its requests are answered with 503 until it has instances; Weir goes on asking",
            ),
        };
        document.located(Diagnostic::at_place(self.source.name(), document.place_of(query), problem).advise(advice))
    }

    fn left_out(&self, document: &CompleteDocument, query: &NameQuery, targets: &str) -> Diagnostic {
        let problem =
            format!("targets of the service `{}` are left out, since they have no address: {targets}", query.name());
        let advice = "they get no requests until they have one";
        document.located(Diagnostic::at_place(self.source.name(), document.place_of(query), problem).advise(advice))
    }

    /// Fetches the secrets again whose time to live is over. Returns whether any has changed, and the failures.
    pub(super) fn refresh_secrets(&mut self) -> (bool, Vec<Diagnostic>) {
        let (changed, problems) = self.secrets.refresh();
        (changed, self.complaints(problems))
    }

    /// Makes the next load ask again for secrets that could not be read.
    pub(super) fn retry_secrets(&mut self) {
        self.secrets.retry();
    }

    /// Makes the next load fetch all secrets again.
    pub(super) fn distrust_secrets(&mut self) {
        self.secrets.distrust();
    }

    /// Registers `wake`, which is called when the source may have changed, a name resolves differently, or the Workload API gives
    /// something new.
    pub(super) fn notify(&mut self, wake: &Wake) {
        self.source.notify(Arc::clone(wake));
        let of_names = Arc::clone(wake);
        self.names.listen(move || of_names());
        let wake = Arc::clone(wake);
        self.workload.listen(move || wake());
    }
}
