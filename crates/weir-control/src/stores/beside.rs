//! Files that a configuration refers to: certificates, keys, lists of nodes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use weir_net::tls::CertificateDer;
use weir_plugin::AllowedFolders;

use super::file_access::{self, FileAccess, FileStall, Unreadable};
use super::seen::SeenFiles;
use crate::document::{Document, Files, NamedFiles};
use crate::text::substitute::process_environment;

/// The most bytes of a file.
const MAX_BYTES: u64 = 1 << 20;
/// The most bytes of a file with the code of a plugin: those that contain the runtime of a language have a few megabytes.
const MAX_PLUGIN_BYTES: u64 = 32 << 20;

/// The content of the files.
#[derive(Debug, Default)]
pub(super) struct FilesBeside {
    pub(super) content: Files,
    /// The state of the files from before they were read, so that a write meanwhile counts as a change.
    pub(super) seen: SeenFiles,
}

/// Reads the files that a document names; those that resources of a store name, in the folders that they may use. In a change, a
/// file system that does not answer makes its files unreadable, and is no error.
pub(super) fn of_document(
    document: &Document,
    directory: &Path,
    access: &FileAccess,
    is_change: bool,
) -> Result<(NamedFiles, SeenFiles), FileStall> {
    let to_come: Vec<String> = document.files_to_come().collect();
    let mut own = document.files_of_settings();
    own.extend(to_come.iter().map(String::as_str));
    let folders = document.access().map(|access| Arc::clone(&access.readable));
    let code: BTreeSet<&str> = document.plugin_files().collect();
    own.retain(|name| !code.contains(name));
    let read = |names: &BTreeSet<&str>, folders, most| match read_up_to(
        most,
        names.iter().copied(),
        directory,
        access,
        folders,
    ) {
        Err(stall) if is_change => Ok(unread(names, &stall.to_string())),
        read => read,
    };
    let FilesBeside { content: mut of_settings, mut seen } = read(&own, None, MAX_BYTES)?;
    let code = read(&code, None, MAX_PLUGIN_BYTES)?;
    of_settings.extend(code.content);
    seen.append(code.seen);
    let of_resources = read(&document.files_of_resources(), folders, MAX_BYTES)?;
    seen.append(of_resources.seen);
    Ok((NamedFiles { of_settings, of_resources: of_resources.content }, seen))
}

/// Files that are not read, all for the same reason.
fn unread(names: &BTreeSet<&str>, reason: &str) -> FilesBeside {
    let content = names.iter().map(|name| ((*name).into(), Err(reason.to_owned()))).collect();
    FilesBeside { content, seen: SeenFiles::default() }
}

/// The files that a document names, none of which is opened, for this reason.
pub(super) fn unopened(document: &Document, reason: &str) -> NamedFiles {
    let to_come: Vec<String> = document.files_to_come().collect();
    let mut own = document.files_of_settings();
    own.extend(to_come.iter().map(String::as_str));
    NamedFiles {
        of_settings: unread(&own, reason).content,
        of_resources: unread(&document.files_of_resources(), reason).content,
    }
}

/// Reads each of `names`: files, relative to `directory`, and `$env://NAME`. With `folders`, files are read only there.
pub(super) fn read<'n>(
    names: impl Iterator<Item = &'n str>,
    directory: &Path,
    access: &FileAccess,
    folders: Option<Arc<AllowedFolders>>,
) -> Result<FilesBeside, FileStall> {
    read_up_to(MAX_BYTES, names, directory, access, folders)
}

/// The same with another limit for the bytes of a file.
fn read_up_to<'n>(
    most_bytes: u64,
    names: impl Iterator<Item = &'n str>,
    directory: &Path,
    access: &FileAccess,
    folders: Option<Arc<AllowedFolders>>,
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
            let opened =
                folders.as_ref().map_or_else(|| file_access::open(&path), |folders| folders.open_to_read(&path));
            let content = opened.map_err(Unreadable::Io);
            let content = content.and_then(|file| file_access::content(file, most_bytes, deadline));
            all.content.insert(name, content.map(Arc::from).map_err(|unreadable| unreadable.to_string()));
        }
        all
    })
}

/// The authorities that the system trusts, if the document needs them. Those that cannot be read are left out: they are not part of
/// the configuration.
pub(super) fn system_roots(
    document: &Document,
    access: &FileAccess,
) -> Result<Vec<CertificateDer<'static>>, FileStall> {
    match document.needs_system_roots() {
        true => access.run(|| rustls_native_certs::load_native_certs().certs),
        false => Ok(Vec::new()),
    }
}
