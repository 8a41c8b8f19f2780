//! A source that joins node settings from a file with resources from a store.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use super::file::FileSource;
use super::live::{DocumentLists, LiveResources};
use super::open::data_directory;
use super::seen::SeenFiles;
use super::source::{Source, SourceDocument, SourceVersion, Wake};
use crate::document::resource_access::{NodeOwned, ResourceAccess};
use crate::document::{Document, RESOURCE_LISTS};
use crate::text::diagnostic::Diagnostic;
use crate::text::substitute::process_environment;
use crate::text::tree::{NodeKind, TreeNode};

/// A file with settings, and a store with resources.
pub(super) struct ResourceSource {
    settings: FileSource,
    live: Arc<LiveResources>,
    /// The file as last read, and as it was in the last accepted document.
    read: Option<SettingsFile>,
    accepted: Option<SettingsFile>,
}

#[derive(Clone)]
struct SettingsFile {
    tree: TreeNode,
    version: SourceVersion,
    revision: String,
    incomplete: Option<Diagnostic>,
    /// What resources may use, by this version of the file.
    access: Arc<ResourceAccess>,
}

impl ResourceSource {
    pub(super) fn new(settings: FileSource, live: Arc<LiveResources>) -> ResourceSource {
        ResourceSource { settings, live, read: None, accepted: None }
    }

    /// While a change of resources is compiled, the last accepted version of the file is used: a half-written file must not block
    /// changes of resources.
    fn settings_file(&mut self) -> Result<SettingsFile, Vec<Diagnostic>> {
        if self.live.is_trying()
            && let Some(accepted) = &self.accepted
        {
            return Ok(accepted.clone());
        }
        let SourceDocument { document, version, revision, incomplete, variables, .. } = self.settings.read()?;
        if !document.faults.is_empty() {
            return Err(document.faults);
        }
        let access = Arc::new(self.access_by(&document, variables));
        let file = SettingsFile { tree: self.settings.tree()?, version, revision, incomplete, access };
        self.read = Some(file.clone());
        Ok(file)
    }

    /// What resources may use, by a version of the file that uses these variables.
    fn access_by(&self, document: &Document, mut variables: BTreeSet<Box<str>>) -> ResourceAccess {
        let directory = self.settings.directory();
        let of_settings = document.files_of_settings();
        variables.extend(of_settings.iter().filter_map(|name| name.strip_prefix("$env://")).map(Box::from));
        let settings = &document.settings;
        // Some start at the directory of the process.
        let files = settings.own_files().into_iter().flat_map(|file| [directory.join(&file), file]).collect();
        let certificates = document.acme.iter().map(|acme| directory.join(&*acme.storage));
        let folders = certificates.chain([data_directory(settings, directory)]).collect();
        let owned = NodeOwned { variables, files, folders };
        ResourceAccess::new(settings.resources.clone(), owned, self.settings.path(), directory)
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

    fn read(&mut self) -> Result<SourceDocument, Vec<Diagnostic>> {
        let SettingsFile { tree, version, revision, incomplete, access } = self.settings_file()?;
        let mut entries = match tree.kind {
            NodeKind::Map(entries) => entries,
            _ => Vec::new(),
        };
        let name = Arc::clone(self.settings.name());
        let DocumentLists { short, long } = self.live.lists(&name, &access);
        // The file may contain these lists, if they are empty.
        entries.retain(|entry| !RESOURCE_LISTS.contains(&&*entry.key));
        entries.extend(short);
        let tree = TreeNode::unplaced(NodeKind::Map(entries));
        let mut document = Document::of_resources(name, tree, long, &process_environment, access);
        document.store_revision = Some(self.live.revision());
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
            self.accepted.clone_from(&self.read);
        }
    }
}
