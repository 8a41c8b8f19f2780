//! Runs a command that has to end within a time.

use std::{
    io::{self, Read},
    process::{ChildStdout, Command, ExitStatus, Output, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process_group};

/// How long the check of a configuration, or the question for a version, may take.
pub const COMMAND_LIMIT: Duration = Duration::from_secs(30);
/// The most bytes that are kept of each output.
const LONGEST_OUTPUT: u64 = 1 << 20;
/// How long outputs may remain open after the end: a process that the command has left may hold them.
const REST_LIMIT: Duration = Duration::from_millis(500);
/// How often the end is looked for.
const LOOK: Duration = Duration::from_millis(5);

/// How a command has ended whose output was read while it ran.
pub struct ReadCommand<T> {
    pub status: ExitStatus,
    /// What was made of its output.
    pub read: T,
    pub stderr: Vec<u8>,
}

/// Runs a command in a process group of its own, without input, and returns what it prints. If it has not ended within `limit`,
/// its group is killed, and that is an error. `started` is called with the process.
pub fn output_within(command: Command, limit: Duration, started: &dyn Fn(u32)) -> io::Result<Output> {
    let ReadCommand { status, read, stderr } = read_within(command, limit, started, kept)?;
    Ok(Output { status, stdout: read, stderr })
}

/// The same for an output of any length: `read` reads it while the command runs.
pub fn read_within<T: Default + Send + 'static>(
    mut command: Command,
    limit: Duration,
    started: &dyn Fn(u32),
    read: fn(&mut ChildStdout) -> T,
) -> io::Result<ReadCommand<T>> {
    use std::os::unix::process::CommandExt as _;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn()?;
    started(child.id());
    let stdout = child.stdout.take().map(|output| reading(output, read));
    let stderr = child.stderr.take().map(|output| reading(output, kept));
    let deadline = Instant::now() + limit;
    let status = loop {
        match child.try_wait()? {
            Some(status) => break Some(status),
            None if Instant::now() > deadline => break None,
            None => thread::sleep(LOOK),
        }
    };
    let Some(status) = status else {
        if let Some(leader) = Pid::from_raw(child.id() as i32) {
            let _ = kill_process_group(leader, Signal::KILL);
        }
        child.wait()?;
        return Err(io::Error::new(io::ErrorKind::TimedOut, format!("it did not end within {} s", limit.as_secs())));
    };
    Ok(ReadCommand { status, read: rest(stdout), stderr: rest(stderr) })
}

/// Reads an output on a thread; what `read` leaves of it is not kept.
fn reading<R: Read + Send + 'static, T: Send + 'static>(mut output: R, read: fn(&mut R) -> T) -> Receiver<T> {
    let (send, receive) = channel();
    thread::spawn(move || {
        let made = read(&mut output);
        let _ = io::copy(&mut output, &mut io::sink());
        let _ = send.send(made);
    });
    receive
}

/// The beginning of an output. What could be read until an error is the output.
fn kept(output: &mut impl Read) -> Vec<u8> {
    let mut kept = Vec::new();
    let _ = output.take(LONGEST_OUTPUT).read_to_end(&mut kept);
    kept
}

/// What was made of the output of a process that has ended.
fn rest<T: Default>(output: Option<Receiver<T>>) -> T {
    output.and_then(|output| output.recv_timeout(REST_LIMIT).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_command_that_does_not_end_is_killed_with_its_children() {
        let error = output_within(shell("sleep 1000; true"), Duration::from_millis(100), &|_| {}).unwrap_err();
        assert!(error.to_string().contains("did not end"), "{error}");
    }

    #[test]
    fn both_outputs_are_kept_up_to_a_length() {
        let script = "echo wrong >&2; head -c 3000000 /dev/zero; exit 3";
        let output = output_within(shell(script), COMMAND_LIMIT, &|_| {}).unwrap();
        assert_eq!(output.status.code(), Some(3));
        assert_eq!((output.stdout.len() as u64, output.stderr.as_slice()), (LONGEST_OUTPUT, "wrong\n".as_bytes()));
    }

    #[test]
    fn an_output_of_any_length_is_read_while_the_command_runs() {
        let length = |output: &mut ChildStdout| io::copy(output, &mut io::sink()).unwrap_or_default();
        let script = "head -c 3000000 /dev/zero; echo wrong >&2; exit 3";
        let ended = read_within(shell(script), COMMAND_LIMIT, &|_| {}, length).unwrap();
        assert_eq!((ended.status.code(), ended.read, ended.stderr), (Some(3), 3_000_000, b"wrong\n".to_vec()));
    }
}
