//! What the service manager is told, sd_notify(3). Without one, nothing happens.

use std::process::Command;
use std::time::Duration;

use sd_notify::NotifyState;
use tracing::warn;

/// The gateway serves, with what it was last told to serve or with what it served before.
pub fn ready() {
    tell(&[NotifyState::Ready]);
}

/// The configuration is being read again; [`ready`] follows.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => warn!("the monotonic clock cannot be read: {error}"),
    }
}

/// The gateway ends.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Another process carries on.
pub fn handed_over(to: u32) {
    tell(&[NotifyState::MainPid(to)]);
}

/// The gateway is alive.
pub fn alive() {
    tell(&[NotifyState::Watchdog]);
}

/// How often the service manager wants to hear [`alive`]; twice in its time limit.
pub fn alive_every() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|limit| limit / 2)
}

/// Lets a process that will carry on speak to the service manager as this one does.
pub fn pass_on(command: &mut Command) {
    // It names this process, and would silence the next one.
    command.env_remove("WATCHDOG_PID");
}

fn tell(states: &[NotifyState]) {
    if let Err(error) = sd_notify::notify(states) {
        warn!("notifying the service manager failed: {error}");
    }
}
