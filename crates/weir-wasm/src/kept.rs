//! Compiled code in files of the node, so that its next start does not compile it again. They are read once, when the node starts, and
//! written by threads of their own: to compile a configuration waits for no disk.
//!
//! What is read is run as it is, so it must be what this node has written: the folder and the file belong to the user of the process, and
//! no other user may write them. What could write as this user could also change the node's configuration. A sum in front shows damage.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
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

/// How many files were begun, so that each thread has its own.
static WRITTEN: AtomicU64 = AtomicU64::new(0);

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
    let entries = fs::read_dir(folder)?.filter(|entry| {
        let name = entry.as_ref().map(|entry| entry.file_name());
        name.is_ok_and(|name| name.to_str().is_some_and(|name| is_kept_name(name) && name.ends_with(&suffix)))
    });
    for entry in entries.take(MOST_FILES + 1) {
        let entry = entry?;
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

/// Whether a file is one that a node has made here, of whatever version: `SUM-HASH.compiled`, or `SUM-HASH.PROCESS-NUMBER.part` before it
/// was finished.
fn is_kept_name(name: &str) -> bool {
    let is_hex = |text: &str, digits: usize| {
        text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let Some((stem, kind)) = name.split_once('.') else { return false };
    let is_stem = stem.split_once('-').is_some_and(|(sum, hash)| is_hex(sum, 64) && is_hex(hash, 16));
    let is_part = || {
        let numbers = kind.strip_suffix(".part").and_then(|numbers| numbers.split_once('-'));
        numbers.is_some_and(|(process, number)| is_number(process) && is_number(number))
    };
    is_stem && (kind == "compiled" || is_part())
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
    let (mut file, unfinished) = begin(&path)?;
    let digest = digest::digest(&digest::SHA256, &code);
    let written = file.write_all(digest.as_ref()).and_then(|()| file.write_all(&code));
    let written = written.and_then(|()| fs::rename(&unfinished, &path));
    if written.is_err() {
        // It is this thread's own. Later ones remove it if this cannot.
        let _ = fs::remove_file(&unfinished);
    }
    written?;
    make_room(folder)
}

/// Makes a file that no other thread has made, beside the one at `path`. A process before this one may have had its number, and have left
/// files unfinished, of which there are only so many.
fn begin(path: &Path) -> io::Result<(File, PathBuf)> {
    for left in (0..=MOST_FILES).rev() {
        let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
        let unfinished = path.with_extension(format!("{}-{number}.part", std::process::id()));
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && left > 0 => {}
            made => return Ok((made?, unfinished)),
        }
    }
    unreachable!("the last attempt returns")
}

/// Removes the files of nodes that were used longest ago, those that were never finished included. Others are left alone.
fn make_room(folder: &Path) -> io::Result<()> {
    let mut files: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if !entry.file_name().to_str().is_some_and(is_kept_name) {
            continue;
        }
        // Another thread may have removed or renamed it.
        let Some(facts) = unless_gone(entry.metadata())? else { continue };
        if facts.is_file() {
            files.push((facts.modified()?, facts.len(), entry.path()));
        }
    }
    files.sort_by(|one, other| other.cmp(one));
    let mut bytes = 0;
    for (index, (_, length, path)) in files.iter().enumerate() {
        bytes += length;
        if index >= MOST_FILES || bytes > MOST_BYTES {
            unless_gone(fs::remove_file(path))?;
        }
    }
    Ok(())
}

fn unless_gone<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_made_among_files_of_nodes_alone() {
        let folder = std::env::temp_dir().join(format!("weir-wasm-room-{}", std::process::id()));
        fs::create_dir(&folder).expect("it can be made");
        let sum = "0123456789abcdef".repeat(4);
        let others = ["notes.txt", "a.compiled", "a.part", &format!("{sum}.compiled"), &format!("{sum}-0123.1-1.part")];
        let own = (0..40).map(|number| match number % 2 {
            0 => format!("{sum}-{number:016x}.compiled"),
            _ => format!("{sum}-{number:016x}.7-{number}.part"),
        });
        let own: Vec<String> = own.collect();
        for name in own.iter().map(String::as_str).chain(others) {
            fs::write(folder.join(name), "").expect("it can be written");
        }
        let made = make_room(&folder);
        let left = |names: &[&str]| names.iter().filter(|name| folder.join(name).exists()).count();
        let counted = (left(&own.iter().map(String::as_str).collect::<Vec<_>>()), left(&others));
        fs::remove_dir_all(&folder).expect("it is ours");
        made.expect("there is room");
        assert_eq!(counted, (MOST_FILES, others.len()));
    }

    #[test]
    fn names_of_kept_files_are_their_sum_and_the_compiler() {
        let folder = Path::new("/");
        let path = path_of(folder, &[0xab; 32]);
        assert!(path.file_name().and_then(|name| name.to_str()).is_some_and(is_kept_name), "{path:?}");
        let part = path.with_extension("12-3.part");
        assert!(part.file_name().and_then(|name| name.to_str()).is_some_and(is_kept_name), "{part:?}");
    }
}
