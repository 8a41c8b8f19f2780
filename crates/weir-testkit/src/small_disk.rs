//! A small disk for the process under test, to test what happens when it is full.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::place::TempDir;
use crate::skipped::skipped;

/// A directory with a script `weir` that starts `binary` with a disk of its own of this many MiB, mounted at `directory` in a namespace
/// of its own. `None` if this is not permitted here, with a line that reports the test as skipped.
pub fn on_small_disk(binary: &str, mebibytes: u32, directory: &Path) -> Option<TempDir> {
    let place = TempDir::new();
    let mount = format!("mount -t tmpfs -o size={mebibytes}m tmpfs {}", directory.display());
    let is_allowed = Command::new("unshare").args(["-rm", "sh", "-c", &mount]).stderr(Stdio::null()).status();
    if !is_allowed.is_ok_and(|status| status.success()) {
        skipped("nothing can be mounted here, not even in a namespace of its own");
        return None;
    }
    let script = format!("#!/bin/sh\nexec unshare -rm sh -c '{mount} && exec {binary} \"$@\"' weir \"$@\"\n");
    // Another process writes it: a file that is open for writing cannot be started, and what is open here is for a moment also open in
    // whatever other tests start meanwhile.
    let write = "printf %s \"$0\" > \"$1\" && chmod 755 \"$1\"";
    let status = Command::new("sh").args(["-c", write, &script]).arg(place.join("weir")).status();
    assert!(status.is_ok_and(|status| status.success()), "its own directory");
    Some(place)
}
