//! Signals, and the actions they request.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The action requested by a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignalRequest {
    /// SIGTERM, SIGQUIT: accept no new connections, finish the exchanges in flight, exit.
    Drain,
    /// SIGINT: exit at once.
    Stop,
    /// SIGHUP: reload the configuration.
    Reload,
    /// SIGUSR1: reopen log files.
    ReopenLogs,
    /// SIGUSR2: upgrade to a new binary.
    Upgrade,
}

pub struct Signals {
    terminate: Signal,
    quit: Signal,
    interrupt: Signal,
    hangup: Signal,
    user1: Signal,
    user2: Signal,
}

impl Signals {
    /// Installs handlers, so that these signals no longer end the process by default.
    pub fn take() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            quit: signal(SignalKind::quit())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            user1: signal(SignalKind::user_defined1())?,
            user2: signal(SignalKind::user_defined2())?,
        })
    }

    /// The next request. Cancel-safe: no signal is lost when the future is dropped.
    pub async fn next(&mut self) -> SignalRequest {
        tokio::select! {
            biased;
            _ = self.interrupt.recv() => SignalRequest::Stop,
            _ = self.terminate.recv() => SignalRequest::Drain,
            _ = self.quit.recv() => SignalRequest::Drain,
            _ = self.hangup.recv() => SignalRequest::Reload,
            _ = self.user1.recv() => SignalRequest::ReopenLogs,
            _ = self.user2.recv() => SignalRequest::Upgrade,
        }
    }
}
