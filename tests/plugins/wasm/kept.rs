//! Compiled code that a node keeps in its `data_dir`.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use weir_testkit::{DEADLINE, TempDir, eventually, eventually_some};

use super::{WasmRig, WasmRigOptions};

/// A gateway that keeps its files in this folder.
fn start(data: &Path) -> WasmRig {
    let more = format!("data_dir: {}\n", data.display());
    let rig = WasmRig::with(WasmRigOptions { more: &more, ..WasmRigOptions::default() });
    assert_eq!(rig.get("/own/a").status, 200);
    rig
}

/// The only file with compiled code, once it is written.
fn kept(data: &Path) -> PathBuf {
    eventually_some("the compiled code is kept", DEADLINE, || {
        let entries = fs::read_dir(data.join("wasm")).ok()?;
        let paths: Vec<PathBuf> = entries.map(|entry| entry.expect("it can be read").path()).collect();
        paths.into_iter().find(|path| path.extension().is_some_and(|kind| kind == "compiled"))
    })
}

fn make_old(path: &Path) {
    let old = SystemTime::now() - Duration::from_secs(3600);
    fs::File::options().write(true).open(path).and_then(|file| file.set_modified(old)).expect("it is ours");
}

#[test]
fn compiled_wasm_is_kept_and_used_by_the_next_start() {
    let data = TempDir::new();
    start(data.path());
    let file = kept(data.path());
    let facts = fs::metadata(&file).expect("it is there");
    let folder = fs::metadata(data.path().join("wasm")).expect("it is there");
    assert_eq!((facts.mode() & 0o777, folder.mode() & 0o777), (0o600, 0o700));
    make_old(&file);
    let rig = start(data.path());
    eventually("it is noted that it was used", DEADLINE, || {
        let used = fs::metadata(&file).and_then(|facts| facts.modified()).expect("it is there");
        used > SystemTime::now() - Duration::from_secs(1800)
    });
    // A file that is written again is another one, and just as new.
    let again = fs::metadata(&file).expect("it is there");
    assert_eq!(again.ino(), facts.ino(), "it was not written again");
    assert!(!rig.gateway.stderr().contains("compiled again"), "{}", rig.gateway.stderr());
}

#[test]
fn compiled_wasm_that_is_damaged_or_not_of_the_node_is_not_run() {
    let data = TempDir::new();
    start(data.path());
    let file = kept(data.path());
    let code = fs::read(&file).expect("it can be read");
    let elsewhere = data.path().join("elsewhere");
    let is_replaced = |why: &str| {
        let rig = start(data.path());
        rig.gateway.wait_stderr("it is told", |log| log.contains(why) && log.contains("the plugin is compiled again"));
        eventually("it is written again", DEADLINE, || {
            let facts = fs::symlink_metadata(&file).expect("it is there");
            let is_own = facts.is_file() && facts.mode() & 0o777 == 0o600;
            is_own && fs::read(&file).expect("it can be read") == code
        });
    };
    let mut flipped = code.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    for damaged in [&flipped[..], &code[..middle], &code[..20], b""] {
        fs::write(&file, damaged).expect("it can be written");
        is_replaced("it is damaged");
    }
    fs::set_permissions(&file, fs::Permissions::from_mode(0o620)).expect("it is ours");
    is_replaced("it is not a file that only the user of this process may write");
    fs::rename(&file, &elsewhere).and_then(|()| symlink(&elsewhere, &file)).expect("a link");
    is_replaced("symbolic links");
}

#[test]
fn compiled_wasm_is_not_kept_in_a_folder_that_others_may_write() {
    let data = TempDir::new();
    let folder = data.path().join("wasm");
    fs::create_dir(&folder).expect("it can be made");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).expect("it is ours");
    let rig = start(data.path());
    rig.gateway.wait_stderr("it is told", |log| log.contains("only the user of this process may write"));
    assert_eq!(fs::read_dir(&folder).expect("it is there").count(), 0);
}

#[test]
fn compiled_wasm_that_was_used_longest_ago_is_removed() {
    let data = TempDir::new();
    let folder = data.path().join("wasm");
    fs::create_dir(&folder).expect("it can be made");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).expect("it is ours");
    for number in 0..40 {
        let file = folder.join(format!("{number:064x}-0123456789abcdef.compiled"));
        fs::write(&file, "").expect("it can be written");
        make_old(&file);
    }
    start(data.path());
    let count = || fs::read_dir(&folder).expect("it is there").count();
    eventually("the oldest are removed", DEADLINE, || count() == 32);
    let is_new = |path: &Path| fs::metadata(path).is_ok_and(|facts| facts.len() > 0);
    let mut left = fs::read_dir(&folder).expect("it is there").map(|entry| entry.expect("it can be read").path());
    assert!(left.any(|path| is_new(&path)), "the newest stays");
}
