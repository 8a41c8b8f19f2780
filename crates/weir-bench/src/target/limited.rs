//! Runs a command that has to end within a time.

use std::{
    io::{self, Read},
    process::{Command, Output, Stdio},
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

/// Runs a command in a process group of its own, without input, and returns what it prints. If it has not ended within `limit`,
/// its group is killed, and that is an error. `started` is called with the process.
pub fn output_within(mut command: Command, limit: Duration, started: &dyn Fn(u32)) -> io::Result<Output> {
    use std::os::unix::process::CommandExt as _;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn()?;
    started(child.id());
    let outputs = [child.stdout.take().map(reading), child.stderr.take().map(reading)];
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
    let [stdout, stderr] =
        outputs.map(|output| output.and_then(|output| output.recv_timeout(REST_LIMIT).ok()).unwrap_or_default());
    Ok(Output { status, stdout, stderr })
}

/// Reads an output on a thread; the rest of a long one is not kept.
fn reading(mut output: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (send, receive) = channel();
    thread::spawn(move || {
        let mut kept = Vec::new();
        // What could be read until an error is the output.
        let _ = output.by_ref().take(LONGEST_OUTPUT).read_to_end(&mut kept);
        let _ = io::copy(&mut output, &mut io::sink());
        let _ = send.send(kept);
    });
    receive
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
}
