use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    process::{Pid, Signal, kill_process, kill_process_group},
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};

use super::{
    CommandError, ProcessEnded, ProcessError,
    limited::{COMMAND_LIMIT, output_within},
};
use crate::{errors::FileError, process_tree::process_tree};

/// A process that the lab has started, in a process group of its own. Dropping it kills the group.
pub struct Child {
    child: std::process::Child,
    output: PathBuf,
    /// The command that stops what the start command has left in the background.
    stop: Vec<String>,
}

/// The time limit for a target to listen.
const START_LIMIT: Duration = Duration::from_secs(20);
/// The time limit for a target to end after SIGTERM, before SIGKILL.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// Bytes; the last words of a process are in these.
const LAST_BYTES: u64 = 64 << 10;

impl Child {
    /// Starts `command` in `dir`, pinned to `cpus` unless empty; its output is written to `dir/output.log`.
    pub fn start(
        command: &[String],
        environment: &BTreeMap<String, String>,
        stop: Vec<String>,
        dir: &Path,
        cpus: &[u32],
    ) -> Result<Child, ProcessError> {
        use std::os::unix::process::CommandExt as _;
        let (program, arguments) = command.split_first().ok_or(ProcessError::NoCommand)?;
        let output = dir.join("output.log");
        let log = File::create(&output).map_err(FileError::at(&output))?;
        let log_too = log.try_clone().map_err(FileError::at(&output))?;
        let mut builder = Command::new(program);
        builder
            .args(arguments)
            .envs(environment)
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(log_too)
            .process_group(0);
        let child = pinned(cpus, || builder.spawn()).map_err(CommandError::start(program))?;
        Ok(Child { child, output, stop })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The process and its descendants.
    pub fn tree(&self) -> Vec<u32> {
        process_tree(self.pid())
    }

    /// Why the process has ended; `None` if it is running.
    pub fn ended(&mut self) -> Option<ProcessEnded> {
        match self.child.try_wait() {
            Ok(Some(status)) if self.stop.is_empty() || !status.success() => {
                Some(ProcessEnded { status, out_of_memory: false, said: self.last_words() })
            }
            _ => None,
        }
    }

    /// The last lines of its output.
    pub fn last_words(&self) -> String {
        let text = end_of(&self.output).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(5)..].join(" | ")
    }

    /// Sends SIGTERM, waits for the end for at most `limit`, and returns the whole output.
    pub fn end(mut self, limit: Duration) -> String {
        if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let deadline = Instant::now() + limit;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
        self.output()
    }

    pub fn output_file(&self) -> &Path {
        &self.output
    }

    /// The whole output of the process so far.
    pub fn output(&self) -> String {
        fs::read_to_string(&self.output).unwrap_or_default()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if let Some((program, arguments)) = self.stop.split_first() {
            // If this fails, the next start on its port reports the problem.
            let mut command = Command::new(program);
            command.args(arguments);
            let _ = output_within(command, COMMAND_LIMIT, &|_| {});
        }
        let Some(pid) = Pid::from_raw(self.child.id() as i32) else { return };
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill_process(pid, Signal::TERM);
            let deadline = Instant::now() + STOP_LIMIT;
            while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(5));
            }
        }
        // Kills the rest of its group, such as the workers of a master that was killed.
        let _ = kill_process_group(pid, Signal::KILL);
        let _ = self.child.wait();
    }
}

/// The last part of a file.
fn end_of(file: &Path) -> io::Result<String> {
    let mut file = File::open(file)?;
    let start = file.metadata()?.len().saturating_sub(LAST_BYTES);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(LAST_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Runs `action` with this thread on `cpus`, so that processes it starts inherit that. All processors if `cpus` is empty.
fn pinned<T>(cpus: &[u32], action: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    if cpus.is_empty() {
        return action();
    }
    let before = sched_getaffinity(None)?;
    let mut set = CpuSet::new();
    for cpu in cpus {
        set.set(*cpu as usize);
    }
    sched_setaffinity(None, &set)?;
    let result = action();
    sched_setaffinity(None, &before)?;
    result
}

/// The result of `wait_until_listening`.
#[derive(Debug, PartialEq, Eq)]
pub enum Readiness {
    Ready,
    Ended(ProcessEnded),
    TimedOut,
}

/// Waits until `address` accepts connections, or `child` has ended.
pub fn wait_until_listening(child: &mut Child, address: SocketAddr) -> Readiness {
    let deadline = Instant::now() + START_LIMIT;
    while Instant::now() < deadline {
        if let Some(reason) = child.ended() {
            return Readiness::Ended(reason);
        }
        if let Ok(mut stream) = TcpStream::connect_timeout(&address, Duration::from_millis(500)) {
            // A complete request, so that the target does not wait for the rest of it.
            let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
            return Readiness::Ready;
        }
        thread::sleep(Duration::from_millis(10));
    }
    Readiness::TimedOut
}

/// Sends a signal to one process.
pub fn send_signal(pid: u32, signal: Signal) -> Result<(), ProcessError> {
    let process = Pid::from_raw(pid as i32).ok_or(Errno::SRCH);
    let sent = process.and_then(|process| kill_process(process, signal));
    sent.map_err(|error| ProcessError::Signal { pid, source: error.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    fn directory(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("weir-bench-process-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn a_process_that_dies_at_once_says_why() {
        let dir = directory("dies");
        let command = vec!["sh".to_owned(), "-c".to_owned(), "echo no such setting; exit 3".to_owned()];
        let mut child = Child::start(&command, &BTreeMap::new(), Vec::new(), &dir, &[]).unwrap();
        let address = "127.0.0.1:9".parse().unwrap();
        match wait_until_listening(&mut child, address) {
            Readiness::Ended(ended) => assert!(ended.said.contains("no such setting"), "{ended}"),
            other => panic!("{other:?}"),
        }
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn dropping_ends_it_and_pinning_is_inherited() {
        let dir = directory("drops");
        let child = Child::start(&words("sleep 1000"), &BTreeMap::new(), Vec::new(), &dir, &[0]).unwrap();
        let pid = child.pid();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        assert!(status.contains("Cpus_allowed_list:\t0\n"), "{status}");
        drop(child);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let dir = directory("absent");
        let error = Child::start(&words("/no/such/gateway"), &BTreeMap::new(), Vec::new(), &dir, &[])
            .err()
            .unwrap()
            .to_string();
        assert!(error.starts_with("/no/such/gateway: "), "{error}");
        fs::remove_dir_all(dir).unwrap();
    }
}
