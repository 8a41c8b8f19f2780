//! Packages of the binary that the tests use: looked into, installed into empty roots, and started from there.

mod contents;
mod install;
mod isolation;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use weir_testkit::{Program, skipped};

/// What a test holds while it has hundreds of megabytes on the disk: a binary that is not optimised is large, and disks are small.
struct DiskSpace {
    _held: MutexGuard<'static, ()>,
}

impl DiskSpace {
    /// Waits for other tests that hold it.
    fn wait() -> DiskSpace {
        static SPACE: Mutex<()> = Mutex::new(());
        DiskSpace { _held: SPACE.lock().unwrap_or_else(PoisonError::into_inner) }
    }
}

/// Runs a command that must succeed, and returns what it prints.
#[track_caller]
fn said(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?}: {}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout) + &text(&output.stderr)
}

/// The binary beside this test, if the tests of the whole workspace are run, and all that packages are made with.
fn weir() -> Option<PathBuf> {
    let binary = Path::new(env!("CARGO_BIN_EXE_xtask")).with_file_name("weir");
    if !binary.exists() {
        skipped("`weir` is not built");
        return None;
    }
    Program::find("rpmbuild").map(|_| binary)
}

#[track_caller]
fn package(binary: &Path, out: &Path) {
    fs::create_dir_all(out).expect("its own directory");
    said(Command::new(env!("CARGO_BIN_EXE_xtask")).args(["package", "--quick", "--binary"]).arg(binary).arg(out));
}

/// The folder with the packages, which are made once for all tests.
fn packages() -> Option<&'static Path> {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let binary = weir()?;
    let folder = FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("packages");
        // Those of an earlier run, if there was one.
        let _ = fs::remove_dir_all(&folder);
        package(&binary, &folder);
        folder
    });
    Some(folder)
}

/// The file whose name ends so.
#[track_caller]
fn one(folder: &Path, ending: &str) -> PathBuf {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("readable").path());
    let mut found: Vec<PathBuf> = entries.filter(|path| path.to_string_lossy().ends_with(ending)).collect();
    assert_eq!(found.len(), 1, "{ending}: {found:?}");
    found.remove(0)
}
