//! A source that joins node settings from a file with resources from a store.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::file::FileSource;
use super::live::LiveResources;
use super::seen::SeenFiles;
use super::source::{Source, SourceDocument, SourceVersion, Wake};
use super::trial::{ChangeTrial, DocumentLists};
use crate::data_directory::data_directory;
use crate::document::resource_access::{NodeOwned, OwnFiles, ResourceAccess};
use crate::document::{Document, RESOURCE_LISTS, StoreOrigin, WrittenDocument};
use crate::text::diagnostic::Diagnostic;
use crate::text::substitute::process_environment;
use crate::text::tree::{NodeKind, TreeNode};

/// A file with settings, and a store with resources.
pub(super) struct ResourceSource {
    settings: FileSource,
    live: Arc<LiveResources>,
    /// The file as last read, and as it was in the last accepted document.
    read: Option<SettingsFile>,
    accepted: AcceptedSettings,
}

/// The node's file as it was in the last accepted document.
#[derive(Clone, Default)]
pub(super) struct AcceptedSettings(Arc<Mutex<Option<SettingsFile>>>);

#[derive(Clone)]
pub(super) struct SettingsFile {
    tree: Arc<TreeNode>,
    version: SourceVersion,
    revision: String,
    incomplete: Option<Diagnostic>,
    /// What resources may use, by this version of the file.
    access: Arc<ResourceAccess>,
}

impl ResourceSource {
    pub(super) fn new(settings: FileSource, live: Arc<LiveResources>, accepted: AcceptedSettings) -> ResourceSource {
        ResourceSource { settings, live, read: None, accepted }
    }

    /// While a change of resources is compiled, the last accepted version of the file is used: a half-written file must not block
    /// changes of resources.
    fn settings_file(&mut self, is_change: bool) -> Result<SettingsFile, Vec<Diagnostic>> {
        if let Some(accepted) = self.accepted.get().filter(|_| is_change) {
            return Ok(accepted);
        }
        let SourceDocument { document, version, revision, incomplete, variables, .. } = self.settings.read(None)?;
        if !document.faults.is_empty() {
            return Err(document.without_secrets().faults);
        }
        let access = Arc::new(self.access_by(&document, variables));
        let file = SettingsFile { tree: Arc::new(self.settings.tree()?), version, revision, incomplete, access };
        self.read = Some(file.clone());
        Ok(file)
    }

    /// What resources may use, by a version of the file that uses these variables.
    fn access_by(&self, document: &Document, mut variables: BTreeSet<Box<str>>) -> ResourceAccess {
        let directory = self.settings.directory();
        let of_settings = document.files_of_settings();
        variables.extend(of_settings.iter().filter_map(|name| name.strip_prefix("$env://")).map(Box::from));
        let settings = &document.settings;
        let OwnFiles { mut public, private } = settings.own_files();
        let authorities = document.acme.iter().filter_map(|acme| acme.authorities.as_ref()?.elsewhere());
        public.extend(authorities.map(PathBuf::from));
        // Some start at the directory of the process.
        let paths = |files: Vec<PathBuf>| files.into_iter().flat_map(|file| [directory.join(&file), file]).collect();
        let files = OwnFiles { public: paths(public), private: paths(private) };
        let certificates = document.acme.iter().map(|acme| directory.join(&*acme.storage));
        let folders = certificates.chain([data_directory(settings, directory)]).collect();
        let owned = NodeOwned { variables, files, folders };
        ResourceAccess::new(settings.resources.clone(), owned, self.settings.path(), directory)
    }
}

impl AcceptedSettings {
    pub(super) fn get(&self) -> Option<SettingsFile> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes the settings of a file that has resources as well.
    pub(super) fn take_file(&self, tree: TreeNode, revision: &str, access: ResourceAccess) {
        self.set(Some(SettingsFile {
            tree: Arc::new(tree),
            version: SourceVersion::default(),
            revision: revision.to_owned(),
            incomplete: None,
            access: Arc::new(access),
        }));
    }

    fn set(&self, file: Option<SettingsFile>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = file;
    }
}

impl SettingsFile {
    /// The document of these settings with the resources of a trial.
    pub(super) fn document(&self, name: &Arc<str>, trial: &mut ChangeTrial) -> WrittenDocument {
        let mut entries = match &self.tree.kind {
            NodeKind::Map(entries) => entries.clone(),
            _ => Vec::new(),
        };
        let DocumentLists { short, long } = trial.lists(name, &self.access);
        // The file may contain these lists, if they are empty.
        entries.retain(|entry| !RESOURCE_LISTS.contains(&&*entry.key));
        entries.extend(short);
        let tree = TreeNode::unplaced(NodeKind::Map(entries));
        let store = StoreOrigin { revision: trial.revision(), access: Arc::clone(&self.access) };
        WrittenDocument::of_resources(Arc::clone(name), tree, long, &process_environment, store)
    }

    pub(super) fn tree(&self) -> &TreeNode {
        &self.tree
    }

    pub(super) fn revision(&self) -> &str {
        &self.revision
    }
}

impl Source for ResourceSource {
    fn name(&self) -> &Arc<str> {
        self.settings.name()
    }

    fn directory(&self) -> &Path {
        self.settings.directory()
    }

    fn version(&mut self) -> Result<SourceVersion, Diagnostic> {
        // Changes of the store are published by the thread that makes them, so they do not count here.
        self.settings.version()
    }

    fn read(&mut self, trial: Option<&mut ChangeTrial>) -> Result<SourceDocument, Vec<Diagnostic>> {
        let mut own = None;
        let trial = trial.unwrap_or_else(|| own.insert(self.live.begin()));
        let settings = self.settings_file(trial.is_change())?;
        let document = settings.document(self.settings.name(), trial);
        let SettingsFile { version, revision, incomplete, .. } = settings;
        let included = SeenFiles::default();
        Ok(SourceDocument { document, version, included, revision, incomplete, variables: BTreeSet::new() })
    }

    fn notify(&mut self, wake: Wake) {
        if let Some(shared) = self.live.store().shared() {
            shared.notify(Arc::clone(&wake));
        }
        self.settings.notify(wake);
    }

    fn accepted(&mut self) {
        self.settings.accepted();
        if self.read.is_some() {
            self.accepted.set(self.read.clone());
        }
    }
}
