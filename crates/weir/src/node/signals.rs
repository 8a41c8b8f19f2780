//! Signals, by what they ask for.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a signal asks a node to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignalRequest {
    /// SIGTERM, SIGQUIT: take nothing new, finish what was begun, end.
    Drain,
    /// SIGINT: end now.
    Stop,
    /// SIGHUP: read the configuration again.
    Reload,
    /// SIGUSR1: open log files again.
    ReopenLogs,
    /// SIGUSR2: let another binary carry on.
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
    /// From here on these signals no longer end the process by themselves.
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

    /// The next request. Nothing is lost when the future is dropped.
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
