//! Signals, and the actions they request.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The action requested by a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SignalRequest {
    /// SIGTERM, SIGQUIT: after `shutdown_delay`, accept no new connections, finish the exchanges in flight, exit.
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

/// The signals that request something of a node other than its end. A node that still starts keeps them until it serves: by
/// default they would end it.
pub(super) struct ServiceSignals {
    hangup: Signal,
    user1: Signal,
    user2: Signal,
}

impl ServiceSignals {
    /// Installs handlers, so that these signals no longer end the process by default.
    pub(super) fn take() -> io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            user1: signal(SignalKind::user_defined1())?,
            user2: signal(SignalKind::user_defined2())?,
        })
    }
}

pub(super) struct Signals {
    terminate: Signal,
    quit: Signal,
    interrupt: Signal,
    service: ServiceSignals,
}

impl Signals {
    /// Installs handlers for the other signals as well. Until then, they end a node that starts.
    pub(super) fn take(service: ServiceSignals) -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            quit: signal(SignalKind::quit())?,
            interrupt: signal(SignalKind::interrupt())?,
            service,
        })
    }

    /// The next request. Cancel-safe: no signal is lost when the future is dropped.
    pub(super) async fn next(&mut self) -> SignalRequest {
        tokio::select! {
            biased;
            _ = self.interrupt.recv() => SignalRequest::Stop,
            _ = self.terminate.recv() => SignalRequest::Drain,
            _ = self.quit.recv() => SignalRequest::Drain,
            _ = self.service.hangup.recv() => SignalRequest::Reload,
            _ = self.service.user1.recv() => SignalRequest::ReopenLogs,
            _ = self.service.user2.recv() => SignalRequest::Upgrade,
        }
    }
}
