//! SIGUSR2: another binary carries on with the same listening sockets.
//!
//! The new process opens nothing that is open already, and says through a pipe when it serves. Only when it has served for a
//! while does this one stop accepting. When the new one fails, ends, or says nothing in time, this one goes on as if nothing had
//! been.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};
use tokio::time::Instant;
use weir_net::inherit::{self, READY_BYTE};
use weir_net::tls::TicketKeys;

use super::sockets::Sockets;
use super::systemd;

/// How this process was started, so that another can be started in the same way.
#[derive(Debug, Clone)]
pub struct Invocation {
    program: PathBuf,
    arguments: Vec<OsString>,
}

impl Invocation {
    pub fn of_this_process() -> Self {
        let mut arguments = std::env::args_os();
        Self { program: arguments.next().unwrap_or_default().into(), arguments: arguments.collect() }
    }
}

/// Why no other process carries on.
#[derive(Debug)]
pub enum Failed {
    Start(PathBuf, io::Error),
    Ended(ExitStatus),
    /// It served, and then it ended.
    Short(ExitStatus),
    Silent(Duration),
    System(io::Error),
}

impl fmt::Display for Failed {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Failed::Start(program, error) => {
                write!(out, "the new process {} cannot be started: {error}", program.display())
            }
            Failed::Ended(status) => write!(out, "the new process ended before it was ready ({status})"),
            Failed::Short(status) => {
                write!(out, "the new process ended within {} s after it was ready ({status})", PROBATION.as_secs_f32())
            }
            Failed::Silent(patience) => {
                write!(out, "the new process was not ready after {} s and was ended", patience.as_secs_f32())
            }
            Failed::System(error) => write!(out, "waiting for the new process failed: {error}"),
        }
    }
}

/// How long the new process has to serve before this one leaves: what is going to fail at once, as by lack of memory or by a
/// supervisor that does not know it, has failed by then. Both accept meanwhile.
const PROBATION: Duration = Duration::from_secs(1);

/// A new process that is not relied on yet.
#[derive(Debug)]
pub struct UpgradeAttempt {
    child: Child,
    ready: pipe::Receiver,
    patience: Duration,
    deadline: Instant,
    /// When it said that it serves.
    ready_at: Option<Instant>,
}

impl UpgradeAttempt {
    /// Starts the binary again. Its path is looked up anew: the file there is expected to be another one.
    pub fn start(invocation: &Invocation, sockets: &Sockets, patience: Duration) -> Result<Self, Failed> {
        let (report, ready) = pipe::pipe().map_err(Failed::System)?;
        let report: OwnedFd = report.into_blocking_fd().map_err(Failed::System)?;
        let mut command = std::process::Command::new(&invocation.program);
        command.args(&invocation.arguments);
        // So that clients need not prove themselves anew: their tickets stay good.
        let secrets = inherit::held(&TicketKeys::hand_over()).map_err(Failed::System)?;
        inherit::pass_on(&mut command, sockets.all(), &report, &secrets);
        systemd::pass_on(&mut command);
        let child = Command::from(command).spawn();
        // Held by the new process alone, the pipe ends when that does.
        drop(report);
        let child = child.map_err(|error| Failed::Start(invocation.program.clone(), error))?;
        Ok(Self { child, ready, patience, deadline: Instant::now() + patience, ready_at: None })
    }

    /// The new process's id; `None` after it has ended.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits until the new process has served for a while. May be dropped and called again; after an outcome the attempt is
    /// over.
    pub async fn outcome(&mut self) -> Result<(), Failed> {
        if self.ready_at.is_none() {
            self.readiness().await?;
        }
        let until = self.ready_at.unwrap_or_else(Instant::now) + PROBATION;
        // A timer that is new each time, since others are waited for besides, might never come to fire.
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

    /// Waits until the new process says that it serves.
    async fn readiness(&mut self) -> Result<(), Failed> {
        let mut said = [0; READY_BYTE.len()];
        match tokio::time::timeout_at(self.deadline, self.ready.read(&mut said)).await {
            Ok(Ok(_)) if said == READY_BYTE => {
                self.ready_at = Some(Instant::now());
                Ok(())
            }
            // It closed the pipe, in all likelihood by ending.
            Ok(_) => match tokio::time::timeout_at(self.deadline, self.child.wait()).await {
                Ok(outcome) => Err(outcome.map_or_else(Failed::System, Failed::Ended)),
                Err(_) => Err(self.silent().await),
            },
            Err(_) => Err(self.silent().await),
        }
    }

    /// Ends the new process: nobody will carry on.
    pub async fn abandon(mut self) {
        // It may have ended by itself, which is as good.
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
    use super::*;

    /// What becomes of an upgrade to a shell that runs `script`.
    fn upgrade_to(script: &str, patience: Duration) -> Result<(), Failed> {
        let invocation = Invocation { program: "sh".into(), arguments: vec!["-c".into(), script.into()] };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let mut attempt = UpgradeAttempt::start(&invocation, &Sockets::default(), patience)?;
            let outcome = attempt.outcome().await;
            // A process that outlives the test keeps the test's output open, and the test run waits for its end.
            attempt.abandon().await;
            outcome
        })
    }

    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn f15_a_process_that_says_it_is_ready_carries_on() {
        upgrade_to("printf 1 > /proc/self/fd/$WEIR_READY_FD; exec sleep 1000", LONG).expect("it said so, and runs");
    }

    #[test]
    fn u15_a_process_that_ends_right_after_it_was_ready_does_not() {
        let script = "printf 1 > /proc/self/fd/$WEIR_READY_FD; kill -9 $$";
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
    fn f15_a_binary_that_is_not_there_fails_at_once() {
        let invocation = Invocation { program: "/nowhere/weir".into(), arguments: Vec::new() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let _guard = runtime.enter();
        let failed = UpgradeAttempt::start(&invocation, &Sockets::default(), LONG).expect_err("there is no such file");
        assert!(failed.to_string().contains("/nowhere/weir cannot be started: "), "{failed}");
    }
}
