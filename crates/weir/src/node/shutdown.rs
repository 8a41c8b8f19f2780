//! The end of a node: it leaves the rotation of its load balancers, drains, and closes what it has opened.

use std::time::{Duration, Instant};

use tokio::time::{interval, sleep};

use super::signals::SignalRequest;
use super::sockets::Sockets;
use super::state::NodePhase;
use super::{Control, End, systemd};
use crate::say::{say, say_error};

/// How often a draining node checks whether it is done.
const DRAIN_LOOK: Duration = Duration::from_millis(20);

/// How long a node that ends tries to export its metrics once more.
const LAST_METRICS: Duration = Duration::from_secs(3);

/// How long the process that has handed over answers requests to hubs at least: in this time it reads what clients sent before they
/// learned that their connections end.
const HUB_HOLD_LEAST: Duration = Duration::from_millis(500);
/// The longest time for that: the new process lets requests wait, and not for ever.
const HUB_HOLD_MOST: Duration = Duration::from_secs(3);

fn may_release_hubs(held: Duration, are_idle: bool) -> bool {
    held >= HUB_HOLD_MOST || are_idle && held >= HUB_HOLD_LEAST
}

impl Control {
    /// Ends the node, after a drain unless it has to stop at once.
    pub(super) async fn end(&mut self, mut end: End) {
        match end {
            End::HandOver => {
                // The new process serves the same addresses; this one would report that it is not ready, or has no store.
                self.status = None;
                self.admin = None;
                say!("upgrade: the new process serves; process {} drains", std::process::id());
            }
            End::Drain | End::Stop => systemd::stopping(),
        }
        // Readiness is withdrawn first, so that load balancers send no more requests here.
        self.state.enter(NodePhase::Draining);
        if end == End::Drain {
            end = self.leave_rotation().await;
        }
        if end == End::Drain {
            say!("draining, for {} s at most", self.drain_patience().as_secs_f32());
        }
        // A change would begin anew what ends here, and no worker would take it over.
        self.watch.end();
        // After a hand-over, the new process waits for the release of these.
        self.acme.end();
        self.hubs.stop_listening();
        if end != End::Stop {
            self.drain(end).await;
        }
        self.hubs.end();
        self.exporter.finish(LAST_METRICS);
        say!("process {} is ending", std::process::id());
    }

    /// Serves on for `shutdown_delay` while readiness is withdrawn: a load balancer that polls it sends requests here until it
    /// has noticed. A second signal ends the wait.
    async fn leave_rotation(&mut self) -> End {
        let settings = self.snapshots.settings().expect("a node starts with a configuration");
        let delay = settings.shutdown_delay;
        if delay.is_zero() {
            return End::Drain;
        }
        say!("not ready any more; accepting connections for another {} s", delay.as_secs_f32());
        let over = sleep(delay);
        tokio::pin!(over);
        loop {
            tokio::select! {
                () = &mut over => return End::Drain,
                request = self.signals.next() => match request {
                    SignalRequest::Drain => return End::Drain,
                    SignalRequest::Stop => return End::Stop,
                    SignalRequest::ReopenLogs => self.reopen_logs(),
                    SignalRequest::Reload | SignalRequest::Upgrade => say!("already shutting down"),
                },
            }
        }
    }

    fn drain_patience(&self) -> Duration {
        let settings = self.snapshots.settings().expect("a node starts with a configuration");
        settings.worker_shutdown_timeout
    }

    /// After a hand-over, the hubs are released as soon as the requests to them are answered: the new process holds its own until then.
    async fn drain(&mut self, end: End) {
        // The workers have sockets of their own, and close them after accepting what is queued. These copies would keep a queue
        // open that is not served.
        self.sockets = Sockets::default();
        self.listeners.end();
        let patience = self.drain_patience();
        self.gateway.drain(patience);
        let began = Instant::now();
        let deadline = began + patience;
        let mut holds_hubs = end == End::HandOver;
        let mut look = interval(DRAIN_LOOK);
        loop {
            tokio::select! {
                _ = look.tick() => {
                    if self.gateway.wait_drained(Instant::now()) {
                        return;
                    }
                    if holds_hubs && may_release_hubs(began.elapsed(), self.hubs.are_idle()) {
                        self.hubs.end();
                        holds_hubs = false;
                    }
                    if Instant::now() >= deadline {
                        return say_error!("drain time-out: closing {} open connections", self.gateway.connections());
                    }
                }
                request = self.signals.next() => match request {
                    SignalRequest::Stop => return,
                    SignalRequest::ReopenLogs => self.reopen_logs(),
                    SignalRequest::Drain | SignalRequest::Reload | SignalRequest::Upgrade => say!("already draining"),
                },
            }
        }
    }
}
