//! Files that a configuration refers to: certificates, keys, lists of nodes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use weir_net::tls::CertificateDer;

use super::file_access::{self, FileAccess, FileStall};
use super::seen::SeenFiles;
use crate::document::Files;
use crate::text::substitute::process_environment;

/// The most bytes of a file.
const MAX_BYTES: u64 = 1 << 20;

/// The content of the files.
#[derive(Debug, Default)]
pub(super) struct FilesBeside {
    pub(super) content: Files,
    /// The state of the files from before they were read, so that a write meanwhile counts as a change.
    pub(super) seen: SeenFiles,
}

impl FilesBeside {
    /// Files that cannot be read, all for the same reason.
    pub(super) fn unread<'n>(names: impl Iterator<Item = &'n str>, reason: &FileStall) -> FilesBeside {
        let content = names.map(|name| (name.into(), Err(reason.to_string()))).collect();
        FilesBeside { content, seen: SeenFiles::default() }
    }
}

/// Reads each of `names`: files, relative to `directory`, and `$env://NAME`.
pub(super) fn read<'n>(
    names: impl Iterator<Item = &'n str>,
    directory: &Path,
    access: &FileAccess,
) -> Result<FilesBeside, FileStall> {
    let mut all = FilesBeside::default();
    let mut paths: Vec<(Box<str>, PathBuf)> = Vec::new();
    for name in names {
        match name.strip_prefix("$env://") {
            None => paths.push((name.into(), directory.join(name))),
            Some(variable) => {
                let value = process_environment(variable).map(|text| Arc::from(text.as_bytes()));
                all.content.insert(name.into(), value.ok_or_else(|| "the variable is not set".to_owned()));
            }
        }
    }
    if paths.is_empty() {
        return Ok(all);
    }
    let deadline = access.deadline();
    access.run(move || {
        for (name, path) in paths {
            all.seen.add(&path);
            let content = file_access::read(&path, MAX_BYTES, deadline);
            all.content.insert(name, content.map(Arc::from).map_err(|unreadable| unreadable.to_string()));
        }
        all
    })
}

/// The authorities that the system trusts. Those that cannot be read are left out: they are not part of the configuration.
pub(super) fn system_roots() -> Vec<CertificateDer<'static>> {
    rustls_native_certs::load_native_certs().certs
}
