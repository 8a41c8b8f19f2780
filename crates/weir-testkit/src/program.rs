//! Third-party servers as processes of a test.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::{env, fs};

use rustix::process::{Pid, Signal, WaitOptions, waitpid};

use crate::place::TempDir;
use crate::skipped::skipped_without;
use crate::wait::{DEADLINE, eventually};

/// A running server. Dropping it ends its process.
pub struct Program {
    child: Child,
    directory: TempDir,
}

impl Program {
    /// A command for a server that `scripts/setup` has unpacked, or that is installed. Otherwise `None`, with a line
    /// that reports the test as skipped.
    pub fn find(name: &str) -> Option<Command> {
        let cache = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache");
        let root = cache.join("debian");
        let unpacked = ["usr/bin", "usr/sbin", "usr/lib/postgresql/15/bin"].map(|folder| root.join(folder).join(name));
        let Some(path) = unpacked.into_iter().find(|path| path.exists()) else {
            let folders = env::var_os("PATH").unwrap_or_default();
            let others = [PathBuf::from("/usr/sbin"), cache.join("bin")];
            let mut installed = env::split_paths(&folders).chain(others);
            if let Some(folder) = installed.find(|folder| folder.join(name).exists()) {
                return Some(Command::new(folder.join(name)));
            }
            skipped_without(name);
            return None;
        };
        let mut command = Command::new(path);
        let folders = fs::read_dir(root.join("usr/lib")).into_iter().flatten().flatten().map(|entry| entry.path());
        let libraries = env::join_paths(folders.filter(|path| path.is_dir())).expect("no colons in Debian's names");
        command.env("LD_LIBRARY_PATH", libraries);
        Some(command)
    }

    /// Java of a JDK, since most of what is run are source files. What a program compiles for its own later speed takes more processor
    /// time than a test needs.
    pub fn java() -> Option<Command> {
        Program::find("javac")?;
        let mut command = Program::find("java")?;
        command.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]);
        Some(command)
    }

    /// Starts a command that serves until it is killed. It runs in `directory`, which is removed with it.
    #[track_caller]
    pub fn start(mut command: Command, directory: TempDir) -> Program {
        command.current_dir(directory.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        Program { child, directory }
    }

    pub fn directory(&self) -> &TempDir {
        &self.directory
    }

    /// The [`anonymous_memory`] of the process in bytes.
    #[track_caller]
    pub fn rss(&self) -> u64 {
        anonymous_memory(self.child.id())
    }

    /// Stops the process (SIGSTOP), and waits until all its threads have stopped.
    #[track_caller]
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
        waitpid(Some(Pid::from_child(&self.child)), WaitOptions::UNTRACED).expect("it is a child of ours");
    }

    /// Continues the process (SIGCONT).
    #[track_caller]
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills the process (SIGKILL), as in a crash.
    #[track_caller]
    pub fn crash(&mut self) {
        self.signal(Signal::KILL);
        self.child.wait().expect("it is a child of ours");
    }

    /// Ends the process as a service manager does (SIGTERM), and waits for it.
    #[track_caller]
    pub fn end(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        let mut ended = None;
        eventually("the process ends", DEADLINE, || {
            ended = self.child.try_wait().expect("it is a child of ours");
            ended.is_some()
        });
        ended.expect("it has ended")
    }

    #[track_caller]
    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap_or_else(|error| panic!("cannot signal {pid:?}: {error}"));
    }
}

/// The anonymous memory of a process in bytes: without the pages of its program, which grow with each code path that runs for the first
/// time. Counted page by page, because the counters of proc(5) lag by some hundred KiB.
#[track_caller]
pub(crate) fn anonymous_memory(pid: u32) -> u64 {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("cannot read {path}: {error}"));
    let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:")).expect("a live process has some");
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("it is a number of kB");
    kib * 1024
}

impl Drop for Program {
    fn drop(&mut self) {
        // Fails if the process has ended by itself, which is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
