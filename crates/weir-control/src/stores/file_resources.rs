//! The resources of a configuration file for the Admin API, which shows them and cannot change them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use super::failure::{CommitFailure, StoreFailure};
use super::live::LiveResources;
use super::resource_source::AcceptedSettings;
use super::resources::{ResourceKey, ResourceSet, RevisionRecord, StoredResource};
use super::store::ResourceStore;
use crate::document::resource_access::{NodeOwned, ResourceAccess};
use crate::document::{AllowedAddresses, Document, NameRule, ResourceRights, SvidRight, WrittenResource};
use crate::text::tree::TextPosition;

/// The resources of the document in use, each with its place.
pub struct FileResources {
    live: Arc<LiveResources>,
    places: Mutex<Arc<BTreeMap<ResourceKey, ResourcePlace>>>,
    accepted: AcceptedSettings,
    /// The revision of the texts that are served.
    served: Mutex<String>,
}

/// Where a resource stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourcePlace {
    pub source: Arc<str>,
    /// In lines and characters, from 1.
    pub place: TextPosition,
    /// The texts that contain values of variables of the environment, as JSON pointers (RFC 6901).
    pub variables: Arc<[String]>,
}

impl FileResources {
    /// None yet. The settings are those that changes are checked with.
    pub(super) fn new(accepted: AcceptedSettings) -> Result<FileResources, StoreFailure> {
        let live = Arc::new(LiveResources::of_store(Box::new(FileStore))?);
        Ok(FileResources { live, places: Mutex::default(), accepted, served: Mutex::default() })
    }

    /// The resources. Their revisions are those of the running configuration.
    pub fn live(&self) -> &Arc<LiveResources> {
        &self.live
    }

    pub fn place(&self, key: &ResourceKey) -> Option<ResourcePlace> {
        self.places().get(key).cloned()
    }

    /// Whether the texts with this revision are served.
    pub fn serves(&self, revision: &str) -> bool {
        *self.served.lock().unwrap_or_else(PoisonError::into_inner) == revision
    }

    /// All places, as they are now.
    pub fn places(&self) -> Arc<BTreeMap<ResourceKey, ResourcePlace>> {
        Arc::clone(&self.places.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes the resources of a document that was published as this revision. `hash` is that of its text.
    pub(super) fn take(&self, document: &Document, revision: u64, hash: &str, file: &Path) {
        let before = self.live.committed();
        let (mut all, mut places) = (BTreeMap::new(), BTreeMap::new());
        let written = document.written_resources();
        let access = access_of(document, &written, file);
        for WrittenResource { list, id, value, variables, source, place } in written {
            let key = ResourceKey::new(list, &id);
            let json: Arc<str> = value.to_string().into();
            let known = before.all.get(&key);
            let resource = match known {
                Some(known) if known.json == json => known.clone(),
                _ => StoredResource {
                    json,
                    created: known.map_or(revision, |known| known.created),
                    modified: revision,
                    expires_ms: None,
                },
            };
            places.insert(key.clone(), ResourcePlace { source, place, variables: variables.into() });
            all.insert(key, resource);
        }
        if let Some(settings) = document.written_settings() {
            self.accepted.take_file(settings, hash, access);
        }
        *self.places.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(places);
        self.live.replace(ResourceSet { revision, all });
        *self.served.lock().unwrap_or_else(PoisonError::into_inner) = hash.to_owned();
    }
}

/// What the resources of a change that is checked may use: what those of the file use already. Who may ask for a check is not always
/// who may read the environment and the files of the node.
fn access_of(document: &Document, written: &[WrittenResource], file: &Path) -> ResourceAccess {
    let (mut variables, mut secrets) = (Vec::new(), Vec::new());
    written.iter().for_each(|one| references(&one.value, &mut variables, &mut secrets));
    let rights = ResourceRights {
        variables,
        secrets,
        files: document.files_of_resources().into_iter().map(Box::from).collect(),
        // A check opens no file to write to.
        log_files: vec!["/".into()],
        // Nor does it listen on anything.
        listeners: vec![AllowedAddresses::ALL],
        // Nor does it connect to anything.
        svid: SvidRight::ToAny,
    };
    let directory = file.parent().map(PathBuf::from).unwrap_or_default();
    ResourceAccess::new(rights, NodeOwned::default(), file, &directory)
}

/// The names in the references to the environment and to secrets.
fn references(value: &Value, variables: &mut Vec<NameRule>, secrets: &mut Vec<NameRule>) {
    match value {
        Value::String(text) => {
            if let Some(name) = text.strip_prefix("$env://").or_else(|| text.strip_prefix("$ENV://")) {
                variables.push(NameRule::of_all(name));
            }
            if let Some(name) = text.strip_prefix("$secret://") {
                secrets.push(NameRule::of_all(name));
            }
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, variables, secrets)),
        Value::Object(members) => members.values().for_each(|item| references(item, variables, secrets)),
        _ => {}
    }
}

/// The store of what is written in a file: it has no history, and takes no change.
struct FileStore;

impl ResourceStore for FileStore {
    fn name(&self) -> String {
        "file".to_owned()
    }

    fn load(&self) -> Result<ResourceSet, StoreFailure> {
        Ok(ResourceSet::default())
    }

    fn commit(&self, _: &[RevisionRecord]) -> Result<u64, CommitFailure> {
        Err(StoreFailure::new("the resources stand in files", "change the files").into())
    }

    fn history(&self, _: u64, _: usize) -> Result<Vec<RevisionRecord>, StoreFailure> {
        Ok(Vec::new())
    }
}
