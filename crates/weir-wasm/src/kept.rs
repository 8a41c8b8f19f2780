//! Compiled code in files of the node, so that its next start does not compile it again. They are read once, when the node starts, and
//! written by threads of their own: to compile a configuration waits for no disk.
//!
//! What is read is run as it is, so it must be what this node has written: the folder and the file belong to the user of the process, and
//! no other user may write them. Whoever could write as this user could also change the node's configuration. A sum in front shows damage.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::SystemTime;

use aws_lc_rs::digest;
use rustix::fs::OFlags;
use wasmtime::Module;

use crate::engine::engine;

/// The most files, and the most bytes of one, and of all. Those that were used last stay.
const MOST_FILES: usize = 32;
const MOST_FILE_BYTES: u64 = 64 << 20;
const MOST_BYTES: u64 = 256 << 20;

static KEPT: Mutex<Option<KeptCode>> = Mutex::new(None);

struct KeptCode {
    folder: PathBuf,
    /// What was found there when the node started, until it serves.
    found: HashMap<PathBuf, Module>,
}

fn kept() -> MutexGuard<'static, Option<KeptCode>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on, this process keeps compiled code in this folder, which it makes, and uses what is there now.
pub fn keep_compiled(folder: PathBuf) {
    let found = find_all(&folder).unwrap_or_else(|error| {
        tracing::warn!("{}: {error}; plugins are compiled again", folder.display());
        HashMap::new()
    });
    *kept() = Some(KeptCode { folder, found });
}

/// Forgets the compiled code that was found and that no plugin has needed.
pub fn forget_unused_code() {
    if let Some(kept) = &mut *kept() {
        kept.found.clear();
    }
}

fn find_all(folder: &Path) -> io::Result<HashMap<PathBuf, Module>> {
    let mut found = HashMap::new();
    if !check_folder(folder)? {
        return Ok(found);
    }
    let suffix = suffix();
    for entry in fs::read_dir(folder)?.take(MOST_FILES + 1) {
        let entry = entry?;
        if !entry.file_name().to_string_lossy().ends_with(&suffix) {
            continue;
        }
        match read(&entry.path()) {
            Ok(module) => _ = found.insert(entry.path(), module),
            Err(problem) => tracing::warn!("{}: {problem}; the plugin is compiled again", entry.path().display()),
        }
    }
    Ok(found)
}

/// Which processor, settings and version of the compiler code is for.
fn suffix() -> String {
    let mut hasher = DefaultHasher::new();
    engine().precompile_compatibility_hash().hash(&mut hasher);
    format!("-{:016x}.compiled", hasher.finish())
}

fn path_of(folder: &Path, sum: &[u8]) -> PathBuf {
    let sum: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
    folder.join(format!("{sum}{}", suffix()))
}

/// The compiled code of the file with this SHA-256, if it is kept.
pub(crate) fn find(sum: &[u8]) -> Option<Module> {
    let mut kept = kept();
    let kept = kept.as_mut()?;
    let path = path_of(&kept.folder, sum);
    let module = kept.found.remove(&path)?;
    // It is one of those that were used last. If that cannot be noted, it is removed earlier.
    beside(move || _ = File::open(path).and_then(|file| file.set_modified(SystemTime::now())));
    Some(module)
}

/// Keeps the compiled code of the file with this SHA-256.
pub(crate) fn keep(sum: &[u8], module: &Module) {
    let Some(folder) = kept().as_ref().map(|kept| kept.folder.clone()) else { return };
    let (sum, module) = (sum.to_vec(), module.clone());
    beside(move || {
        if let Err(error) = write(&folder, &sum, &module) {
            tracing::warn!("{}: {error}; the next start compiles the plugin again", folder.display());
        }
    });
}

fn beside(work: impl FnOnce() + Send + 'static) {
    if let Err(error) = thread::Builder::new().name("weir-wasm-kept".to_owned()).spawn(work) {
        tracing::warn!("compiled plugins cannot be kept: {error}");
    }
}

fn is_own(facts: &Metadata) -> bool {
    facts.uid() == rustix::process::geteuid().as_raw() && facts.mode() & 0o022 == 0
}

/// Whether the folder is there.
///
/// # Errors
/// Others may write it, or it cannot be looked at.
fn check_folder(folder: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(folder) {
        Ok(facts) if facts.is_dir() && is_own(&facts) => Ok(true),
        Ok(_) => Err(io::Error::other("the folder is not one that only the user of this process may write")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn read(path: &Path) -> Result<Module, String> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path);
    let file = file.map_err(|error| error.to_string())?;
    let facts = file.metadata().map_err(|error| error.to_string())?;
    if !facts.is_file() || !is_own(&facts) {
        return Err("it is not a file that only the user of this process may write".to_owned());
    }
    let mut content = Vec::new();
    (&file).take(MOST_FILE_BYTES).read_to_end(&mut content).map_err(|error| error.to_string())?;
    let Some((sum, code)) = content.split_at_checked(digest::SHA256_OUTPUT_LEN) else { return Err(damaged()) };
    if digest::digest(&digest::SHA256, code).as_ref() != sum {
        return Err(damaged());
    }
    #[expect(unsafe_code, reason = "compiled code cannot be checked, only where it comes from")]
    // SAFETY: the code was made by `Module::serialize` in a process of this user, since no other may write the file or its folder, and
    // it is whole, as its sum says.
    let module = unsafe { Module::deserialize(engine(), code) };
    module.map_err(|error| format!("it cannot be used: {}", error.root_cause()))
}

fn damaged() -> String {
    "it is damaged".to_owned()
}

fn write(folder: &Path, sum: &[u8], module: &Module) -> io::Result<()> {
    let code = module.serialize().map_err(|error| io::Error::other(error.root_cause().to_string()))?;
    if (code.len() + digest::SHA256_OUTPUT_LEN) as u64 > MOST_FILE_BYTES {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    check_folder(folder)?;
    let path = path_of(folder, sum);
    let unfinished = path.with_extension(format!("{}.part", std::process::id()));
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished);
    let written = made.and_then(|mut file: File| {
        file.write_all(digest::digest(&digest::SHA256, &code).as_ref())?;
        file.write_all(&code)?;
        fs::rename(&unfinished, &path)
    });
    if written.is_err() {
        // It may not have been made.
        let _ = fs::remove_file(&unfinished);
    }
    written?;
    make_room(folder)
}

/// Removes the files that were used longest ago, those that were never finished included.
fn make_room(folder: &Path) -> io::Result<()> {
    let mut files: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let facts = entry.metadata()?;
        if facts.is_file() {
            files.push((facts.modified()?, facts.len(), entry.path()));
        }
    }
    files.sort_by(|one, other| other.cmp(one));
    let mut bytes = 0;
    for (index, (_, length, path)) in files.iter().enumerate() {
        bytes += length;
        if index >= MOST_FILES || bytes > MOST_BYTES {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}
