//! Where a node keeps its files.

use std::path::{Path, PathBuf};

use crate::document::NodeSettings;

/// The default name of the data directory, beside the configuration file.
const DATA: &str = "weir-data";
const STORE: &str = "store.redb";

/// `data_dir`; a relative one is beside the configuration file.
pub(crate) fn configured_directory(settings: &NodeSettings, beside: &Path) -> Option<PathBuf> {
    settings.data_dir.as_deref().map(|directory| beside.join(directory))
}

/// The directory that a node has been given for its files: `data_dir`, or the one of systemd.
pub fn given_directory(settings: &NodeSettings, beside: &Path) -> Option<PathBuf> {
    let by_systemd = || std::env::var_os("STATE_DIRECTORY").map(PathBuf::from);
    configured_directory(settings, beside).or_else(by_systemd)
}

/// The directory for files that a node writes: the one that it was given, or one beside the configuration file.
pub fn data_directory(settings: &NodeSettings, beside: &Path) -> PathBuf {
    given_directory(settings, beside).unwrap_or_else(|| beside.join(DATA))
}

/// The file of an embedded store.
pub fn store_path(settings: &NodeSettings, path: Option<&str>, beside: &Path) -> PathBuf {
    path.map_or_else(|| data_directory(settings, beside).join(STORE), |path| beside.join(path))
}
