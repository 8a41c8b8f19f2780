//! Where a node keeps its files.

use std::path::{Path, PathBuf};

use crate::document::NodeSettings;

/// The default name of the data directory, beside the configuration file.
const DATA: &str = "weir-data";
const STORE: &str = "store.redb";

/// The directory for files that a node writes: `data_dir`, the directory given by systemd, or one beside the configuration file.
pub fn data_directory(settings: &NodeSettings, beside: &Path) -> PathBuf {
    match &settings.data_dir {
        Some(directory) => beside.join(&**directory),
        None => std::env::var_os("STATE_DIRECTORY").map_or_else(|| beside.join(DATA), PathBuf::from),
    }
}

/// The file of an embedded store.
pub fn store_path(settings: &NodeSettings, path: Option<&str>, beside: &Path) -> PathBuf {
    path.map_or_else(|| data_directory(settings, beside).join(STORE), |path| beside.join(path))
}
