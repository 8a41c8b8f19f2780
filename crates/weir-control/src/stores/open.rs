//! Opens a loader for a configuration file, with the store that it configures.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use weir_plugin::Registry;

use super::embedded::EmbeddedStore;
use super::encrypted::EncryptedStore;
use super::etcd::EtcdStore;
use super::file::FileSource;
use super::file_access::FileAccess;
use super::file_resources::FileResources;
#[cfg(feature = "kubernetes")]
use super::kubernetes::{NodePlugins, follow, pull};
use super::live::LiveResources;
use super::loader::{DocumentLoader, LoadedDocument};
use super::memory::MemoryStore;
use super::resource_source::{AcceptedSettings, ResourceSource};
use super::secret_cipher::{CipherForm, SecretCipher};
use super::store::{ResourceStore, StoreFailure};
use crate::data_directory::{data_directory, store_path};
use crate::document::{KubernetesSettings, NodeSettings, PullSettings, StoreKind, StoreSettings};
use crate::text::diagnostic::Diagnostic;

const NODE_NAME: &str = "node-name";

impl DocumentLoader {
    /// A loader for a process that serves traffic, with the resources of the configured store, if there is one. Policies of a cluster
    /// can name no plugins.
    ///
    /// # Errors
    /// If the file cannot be parsed, or the store cannot be used.
    pub fn open(path: &Path) -> Result<(DocumentLoader, LoadedDocument), Vec<Diagnostic>> {
        DocumentLoader::open_telling(path, Registry::new(&[]), &|_| ())
    }

    /// Like [`DocumentLoader::open`], with the plugins that policies of a cluster may name; `told` is called with what the start waits
    /// for, if it takes long.
    ///
    /// # Errors
    /// As [`DocumentLoader::open`].
    pub fn open_telling(
        path: &Path,
        registry: Registry,
        told: &dyn Fn(&str),
    ) -> Result<(DocumentLoader, LoadedDocument), Vec<Diagnostic>> {
        let mut loader = DocumentLoader::of_file(path);
        let loaded = loader.load_first(told)?;
        let Some(mut loader) = with_store(path, FileAccess::limited(), &loaded, (registry, told))? else {
            if loaded.document.settings.admin.as_ref().is_some_and(|admin| admin.shows_file) {
                let accepted = AcceptedSettings::default();
                let shown = FileResources::new(accepted.clone());
                let shown =
                    shown.map_err(|failure| vec![Diagnostic::of_source(loader.source_name(), failure.problem)])?;
                loader = loader.showing(shown, accepted);
            }
            return Ok((loader, loaded));
        };
        let loaded = loader.load()?;
        Ok((loader, loaded))
    }
}

/// A loader of the same settings with the resources of the configured store; `None` if no store is configured.
pub(super) fn with_store(
    path: &Path,
    files: FileAccess,
    loaded: &LoadedDocument,
    (registry, told): (Registry, &dyn Fn(&str)),
) -> Result<Option<DocumentLoader>, Vec<Diagnostic>> {
    let document = &loaded.document;
    let Some(store) = &document.settings.store else { return Ok(None) };
    if !document.faults.is_empty() {
        return Err(document.faults.iter().map(|fault| document.located(fault.clone())).collect());
    }
    let failed = |failure: StoreFailure| {
        let fault = Diagnostic::of_source(&document.source, failure.problem).advise(failure.advice);
        vec![if failure.is_away { fault.away() } else { fault.outside() }]
    };
    let beside = path.parent().unwrap_or(Path::new(""));
    let opening = StoreOpening { registry, enabled: document.enabled_plugins.as_ref(), told };
    let store = open_store(&document.settings, store, beside, files.serves(), &opening).map_err(failed)?;
    let live = Arc::new(LiveResources::of_store(store).map_err(failed)?);
    let accepted = AcceptedSettings::default();
    let source = ResourceSource::new(FileSource::new(path, files.clone()), Arc::clone(&live), accepted.clone());
    Ok(Some(DocumentLoader::new(source, files).with_live(live, accepted)))
}

/// What opening a store needs besides the settings.
#[cfg_attr(not(feature = "kubernetes"), expect(dead_code, reason = "this build has no client for Kubernetes"))]
struct StoreOpening<'a> {
    /// The plugins that policies of a cluster may name.
    registry: Registry,
    /// Those that the file enables, if not all.
    enabled: Option<&'a HashSet<Box<str>>>,
    told: &'a dyn Fn(&str),
}

/// Where the objects of a cluster are read.
#[cfg_attr(not(feature = "kubernetes"), expect(dead_code, reason = "this build has no client for Kubernetes"))]
enum ClusterSource<'a> {
    ApiServer(&'a KubernetesSettings),
    Controller(&'a PullSettings),
}

fn open_store(
    settings: &NodeSettings,
    store: &StoreSettings,
    beside: &Path,
    serves: bool,
    opening: &StoreOpening,
) -> Result<Box<dyn ResourceStore>, StoreFailure> {
    let told = opening.told;
    let encryption = settings.data_encryption.as_ref();
    let zone = store.zone.as_deref();
    Ok(match &store.kind {
        StoreKind::Embedded { path } => {
            let mut embedded = EmbeddedStore::open(&store_path(settings, path.as_deref(), beside), store.history)?;
            embedded.limit_history(store.history_bytes);
            if serves {
                embedded.keep_copies()?;
            }
            // Needed without keys as well: encrypted texts must not be used as secrets.
            Box::new(EncryptedStore::new(embedded, SecretCipher::new(CipherForm::Weir, encryption)))
        }
        StoreKind::Standalone => Box::new(MemoryStore::new(store.history as usize, store.history_bytes)),
        StoreKind::Kubernetes(cluster) => {
            open_cluster(settings, (ClusterSource::ApiServer(cluster), zone), beside, serves, opening)?
        }
        StoreKind::Controller(controller) => {
            open_cluster(settings, (ClusterSource::Controller(controller), zone), beside, serves, opening)?
        }
        StoreKind::Etcd(etcd) => {
            let directory = data_directory(settings, beside);
            let mut etcd = match serves {
                true => EtcdStore::open(etcd, store.history, &node_name(&directory)?, beside, Some(&directory), told)?,
                // A command is not a node of the group, so it has no name and no copy.
                false => EtcdStore::open(etcd, store.history, "", beside, None, told)?,
            };
            etcd.limit_history(store.history_bytes);
            match encryption {
                // Other nodes read the same keys, and Apache APISIX only knows its own form.
                Some(_) => Box::new(EncryptedStore::new(etcd, SecretCipher::new(CipherForm::Apisix, encryption))),
                None => Box::new(etcd),
            }
        }
    })
}

/// The resources of a cluster, which this node follows itself or pulls from a controller, with the zone of the node.
#[cfg(feature = "kubernetes")]
fn open_cluster(
    settings: &NodeSettings,
    (cluster, zone): (ClusterSource, Option<&str>),
    beside: &Path,
    serves: bool,
    opening: &StoreOpening,
) -> Result<Box<dyn ResourceStore>, StoreFailure> {
    let directory = data_directory(settings, beside);
    // A command is not a node: it has no copy, and writes no statuses.
    let node = serves.then(|| Ok((node_name(&directory)?, directory))).transpose()?;
    Ok(Box::new(match cluster {
        ClusterSource::ApiServer(cluster) => {
            let plugins = NodePlugins::new(opening.registry, opening.enabled.cloned());
            follow(cluster, zone, node, beside, (plugins, opening.told))?
        }
        ClusterSource::Controller(controller) => pull((controller, zone), &settings.dns, node, beside, opening.told)?,
    }))
}

#[cfg(not(feature = "kubernetes"))]
fn open_cluster(
    _settings: &NodeSettings,
    _cluster: (ClusterSource, Option<&str>),
    _beside: &Path,
    _serves: bool,
    _opening: &StoreOpening,
) -> Result<Box<dyn ResourceStore>, StoreFailure> {
    Err(StoreFailure::new("this build has no client for Kubernetes", "build with the Cargo feature `kubernetes`"))
}

/// The name of a controller that starts: unlike all others, also on the same machine.
pub fn controller_name() -> String {
    new_name()
}

/// The name of this node in its group: the machine's host name and a random suffix, kept in a file so that it stays the same.
fn node_name(directory: &Path) -> Result<String, StoreFailure> {
    let path = directory.join(NODE_NAME);
    let unusable = |error: std::io::Error| {
        let problem = format!("{} cannot be used: {error}", path.display());
        StoreFailure::new(problem, "check the permissions of the data directory (`data_dir`)")
    };
    match fs::read_to_string(&path) {
        Ok(name) if !name.trim().is_empty() => return Ok(name.trim().to_owned()),
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(unusable(error)),
        _ => {}
    }
    let name = new_name();
    fs::create_dir_all(directory).and_then(|()| fs::write(&path, format!("{name}\n"))).map_err(unusable)?;
    Ok(name)
}

/// The host name of the machine, and a random suffix.
fn new_name() -> String {
    let machine = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let machine: String =
        machine.trim().chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.')).collect();
    format!("{machine}-{:08x}", rand::random::<u32>())
}
