//! SIGUSR2: a new binary takes over the listening sockets.
//!
//! The new process inherits the open sockets, and reports through a pipe when it serves. Only after it has served for a while
//! does this process stop accepting. If the new process fails, exits, or does not report in time, this one continues as before.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};
use tokio::time::Instant;
use weir_net::inherit::{self, HandOverPipes, ListenerKey, READY_BYTE};
use weir_net::listener::ListeningSocket;
use weir_net::quic::QuicHandOver;
use weir_net::tls::TicketKeys;

use super::systemd;

/// The command line of this process, to start the new one with.
#[derive(Debug, Clone)]
pub(super) struct Invocation {
    program: PathBuf,
    arguments: Vec<OsString>,
}

impl Invocation {
    pub(super) fn of_this_process() -> Self {
        let mut arguments = std::env::args_os();
        Self { program: arguments.next().unwrap_or_default().into(), arguments: arguments.collect() }
    }
}

/// Refuses a file that is no program of this machine, such as a text, or a binary for other processors: the C library would run it as a
/// script of the shell.
fn runnable(program: &Path) -> io::Result<()> {
    let found = match program.components().count() {
        1 => {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let all = std::env::split_paths(&path).map(|folder| folder.join(program));
            all.into_iter().find(|file| file.is_file())
        }
        _ => Some(program.to_owned()),
    };
    // What is not found is reported by the start.
    let Some(found) = found.filter(|file| file.is_file()) else { return Ok(()) };
    // A program may be executable and not readable.
    let Ok(new) = beginning_of(&found) else { return Ok(()) };
    let own = beginning_of(Path::new("/proc/self/exe"))?;
    // The magic number, the width, the byte order, and the processor (ELF, `e_ident` and `e_machine`).
    let is_same_kind = [0..6, 18..20].into_iter().all(|part| new[part.clone()] == own[part]);
    if is_same_kind || new.starts_with(b"#!") {
        return Ok(());
    }
    Err(io::Error::other("it is no program for this machine: it begins neither as the running binary nor with `#!`"))
}

/// The first bytes of a file; zeros where it has none.
fn beginning_of(file: &Path) -> io::Result<[u8; 20]> {
    let mut beginning = [0; 20];
    let mut file = File::open(file)?.take(20);
    let mut length = 0;
    while length < beginning.len() {
        match file.read(&mut beginning[length..])? {
            0 => break,
            count => length += count,
        }
    }
    Ok(beginning)
}

/// Why an upgrade has failed.
#[derive(Debug)]
pub(super) enum Failed {
    Start(PathBuf, io::Error),
    Ended(ExitStatus),
    /// The process became ready, and exited soon after.
    Short(ExitStatus),
    Silent(Duration),
    System(io::Error),
    /// The resources are in memory only, and are not handed over.
    Volatile,
}

impl fmt::Display for Failed {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Failed::Start(program, error) => {
                write!(out, "the new process {} cannot be started: {error}", program.display())
            }
            Failed::Ended(status) => {
                write!(out, "the new process ended before it was ready ({status}); its lines in the error log say why")
            }
            Failed::Short(status) => {
                write!(out, "the new process ended within {} s after it was ready ({status})", PROBATION.as_secs_f32())
            }
            Failed::Silent(patience) => {
                write!(out, "the new process was not ready after {} s and was ended", patience.as_secs_f32())
            }
            Failed::System(error) => write!(out, "waiting for the new process failed: {error}"),
            Failed::Volatile => out.write_str(
                "the resources of this node are in memory only (`store: standalone`), and a new process would serve \
                 none of them; restart the node, and let its controller send them again",
            ),
        }
    }
}

/// How long the new process must serve before this one drains. Immediate failures, such as lack of memory or a supervisor that
/// kills it, happen within this time. Both processes accept meanwhile.
const PROBATION: Duration = Duration::from_secs(1);

/// A new process that has not taken over yet.
#[derive(Debug)]
pub(super) struct UpgradeAttempt {
    child: Child,
    ready: pipe::Receiver,
    patience: Duration,
    deadline: Instant,
    /// When the process reported that it is ready.
    ready_at: Option<Instant>,
    /// Closed when the attempt is over: the new process has taken over then, or has ended.
    _certain: io::PipeWriter,
}

impl UpgradeAttempt {
    /// Starts the binary. Its path is resolved again, since the file there is usually a new version.
    pub(super) fn start<'s>(
        invocation: &Invocation,
        sockets: impl Iterator<Item = (ListenerKey, &'s [ListeningSocket])>,
        (http3, has_identity): (&QuicHandOver, bool),
        patience: Duration,
    ) -> Result<Self, Failed> {
        let program = || invocation.program.clone();
        runnable(&invocation.program).map_err(|error| Failed::Start(program(), error))?;
        let (report, ready) = pipe::pipe().map_err(Failed::System)?;
        let (certain, kept) = io::pipe().map_err(Failed::System)?;
        let report = report.into_blocking_fd().map_err(Failed::System)?;
        let pipes = HandOverPipes { ready: report, certain: certain.into() };
        let mut command = std::process::Command::new(&invocation.program);
        command.args(&invocation.arguments);
        // Passing on the ticket keys lets clients resume their TLS sessions.
        let secrets = inherit::held(&TicketKeys::hand_over()).map_err(Failed::System)?;
        // Both processes count in the same memory while this one drains.
        let memory = weir_plugins::hand_over_counters();
        inherit::pass_on(&mut command, sockets, &pipes, &secrets, &memory);
        match has_identity {
            true => command.env(inherit::IDENTITY, "1"),
            false => command.env_remove(inherit::IDENTITY),
        };
        http3.pass_on(&mut command);
        systemd::pass_on(&mut command);
        let child = Command::from(command).spawn();
        // Only the new process has the write end then, so the pipe closes when that process ends.
        drop(pipes);
        let child = child.map_err(|error| Failed::Start(invocation.program.clone(), error))?;
        Ok(Self { child, ready, patience, deadline: Instant::now() + patience, ready_at: None, _certain: kept })
    }

    /// The new process's id; `None` after it has ended.
    pub(super) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits until the new process has served for a while. Cancel-safe: may be dropped and called again. After an outcome the
    /// attempt is over.
    pub(super) async fn outcome(&mut self) -> Result<(), Failed> {
        if self.ready_at.is_none() {
            self.readiness().await?;
        }
        let until = self.ready_at.unwrap_or_else(Instant::now) + PROBATION;
        // Checked explicitly, since a timer that is created in each call might never fire if the caller's other events are
        // frequent.
        if Instant::now() >= until {
            return match self.child.try_wait() {
                Ok(None) => Ok(()),
                Ok(Some(status)) => Err(Failed::Short(status)),
                Err(error) => Err(Failed::System(error)),
            };
        }
        match tokio::time::timeout_at(until, self.child.wait()).await {
            Err(_) => Ok(()),
            Ok(outcome) => Err(outcome.map_or_else(Failed::System, Failed::Short)),
        }
    }

    /// Waits until the new process reports that it is ready.
    async fn readiness(&mut self) -> Result<(), Failed> {
        let mut said = [0; READY_BYTE.len()];
        match tokio::time::timeout_at(self.deadline, self.ready.read(&mut said)).await {
            Ok(Ok(_)) if said == READY_BYTE => {
                self.ready_at = Some(Instant::now());
                Ok(())
            }
            // The pipe was closed, usually because the process has ended.
            Ok(_) => match tokio::time::timeout_at(self.deadline, self.child.wait()).await {
                Ok(outcome) => Err(outcome.map_or_else(Failed::System, Failed::Ended)),
                Err(_) => Err(self.silent().await),
            },
            Err(_) => Err(self.silent().await),
        }
    }

    /// Kills the new process.
    pub(super) async fn abandon(mut self) {
        // The process may have ended already.
        let _ = self.child.kill().await;
    }

    async fn silent(&mut self) -> Failed {
        match self.child.kill().await {
            Ok(()) => Failed::Silent(self.patience),
            Err(error) => Failed::System(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use weir_net::quic::QuicSecrets;

    use super::*;

    /// The outcome of an upgrade to a shell that runs `script`.
    fn upgrade_to(script: &str, patience: Duration) -> Result<(), Failed> {
        let invocation = Invocation { program: "sh".into(), arguments: vec!["-c".into(), script.into()] };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let mut attempt = UpgradeAttempt::start(&invocation, std::iter::empty(), (&no_http3(), false), patience)?;
            let outcome = attempt.outcome().await;
            // A child that outlives the test would keep its output open, and the test run waits for that.
            attempt.abandon().await;
            outcome
        })
    }

    fn no_http3() -> QuicHandOver {
        QuicHandOver::new(std::iter::empty(), Vec::new(), &[], &QuicSecrets::new()).expect("a pipe")
    }

    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn f15_a_process_that_says_it_is_ready_carries_on() {
        upgrade_to("printf 1 > /proc/self/fd/$WEIR_READY_FD; exec sleep 1000", LONG).expect("it said so, and runs");
    }

    #[test]
    fn u15_a_process_that_ends_right_after_it_was_ready_does_not() {
        // The word comes from another process, which waits for the end of the first one: between two commands of a shell any time can
        // pass.
        let script = "kill -9 $$ | { cat; printf 1 > /proc/self/fd/$WEIR_READY_FD; }";
        let failed = upgrade_to(script, LONG).expect_err("it is gone");
        assert!(matches!(failed, Failed::Short(_)), "{failed}");
        assert!(failed.to_string().starts_with("the new process ended within 1 s after it was ready"), "{failed}");
    }

    #[test]
    fn f15_a_process_that_ends_first_does_not() {
        let failed = upgrade_to("exit 3", LONG).expect_err("it said nothing");
        assert!(matches!(failed, Failed::Ended(status) if status.code() == Some(3)), "{failed}");
    }

    #[test]
    fn f15_a_process_that_says_something_else_does_not() {
        let failed =
            upgrade_to("printf 0 > /proc/self/fd/$WEIR_READY_FD; exit 0", LONG).expect_err("that is not the word");
        assert!(matches!(failed, Failed::Ended(_)), "{failed}");
    }

    #[test]
    fn f15_a_process_that_hangs_is_ended() {
        let failed = upgrade_to("exec sleep 1000", Duration::from_millis(50)).expect_err("it said nothing");
        assert!(matches!(failed, Failed::Silent(_)), "{failed}");
        assert_eq!(failed.to_string(), "the new process was not ready after 0.05 s and was ended");
    }

    #[test]
    fn f15_a_file_that_is_no_program_of_this_machine_is_not_run_as_a_script() {
        let place = weir_testkit::TempDir::new();
        let own = beginning_of(Path::new("/proc/self/exe")).expect("it is readable");
        let mut other = own;
        other[18] ^= 0xff;
        for (content, is_refused) in
            [(&b"exit 0\n"[..], true), (&[0; 4096], true), (&other, true), (b"#!/bin/sh\n", false), (&own, false)]
        {
            let program = place.join("new");
            std::fs::write(&program, content).expect("its own directory");
            let told = runnable(&program).err().map(|error| error.to_string());
            assert_eq!(told.is_some(), is_refused, "{told:?}");
            assert!(told.is_none_or(|told| told.starts_with("it is no program for this machine")));
        }
        runnable(Path::new("sh")).expect("it is found in PATH");
    }

    #[test]
    fn f15_a_binary_that_is_not_there_fails_at_once() {
        let invocation = Invocation { program: "/nowhere/weir".into(), arguments: Vec::new() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let _guard = runtime.enter();
        let failed = UpgradeAttempt::start(&invocation, std::iter::empty(), (&no_http3(), false), LONG)
            .expect_err("there is no such file");
        assert!(failed.to_string().contains("/nowhere/weir cannot be started: "), "{failed}");
    }
}
