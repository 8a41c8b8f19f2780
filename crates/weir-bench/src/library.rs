//! The files of the lab: scenarios, peers and backends. They are embedded in the binary; a directory can replace them.

use std::{env, fs, path::PathBuf, sync::OnceLock};

use rust_embed::RustEmbed;

#[derive(RustEmbed)]
#[folder = "../../bench/"]
#[include = "scenarios/*"]
#[include = "peers/*"]
#[include = "backends/*"]
struct Embedded;

/// The environment variable with a directory that contains `scenarios/`, `peers/` and `backends/`, instead of the embedded files.
pub const DIRECTORY_VARIABLE: &str = "WEIR_BENCH_DIR";

fn directory() -> Option<&'static PathBuf> {
    static DIRECTORY: OnceLock<Option<PathBuf>> = OnceLock::new();
    DIRECTORY.get_or_init(|| env::var_os(DIRECTORY_VARIABLE).map(PathBuf::from)).as_ref()
}

/// The text of a file by its path in the library, such as `peers/nginx/peer.yaml`.
pub fn text(path: &str) -> Option<String> {
    match directory() {
        Some(directory) => fs::read_to_string(directory.join(path)).ok(),
        None => String::from_utf8(Embedded::get(path)?.data.into_owned()).ok(),
    }
}

/// Paths below `prefix`, which ends with a slash, sorted.
pub fn list(prefix: &str) -> Vec<String> {
    let mut paths: Vec<String> = match directory() {
        Some(directory) => {
            let mut found = Vec::new();
            walk(directory, prefix, &mut found);
            found
        }
        None => Embedded::iter().map(|path| path.into_owned()).filter(|path| path.starts_with(prefix)).collect(),
    };
    paths.sort();
    paths
}

fn walk(directory: &std::path::Path, prefix: &str, found: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(directory.join(prefix)) else { return };
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        if entry.path().is_dir() {
            walk(directory, &format!("{prefix}{name}/"), found);
        } else {
            found.push(format!("{prefix}{name}"));
        }
    }
}
