//! Notifies the service manager, sd_notify(3). Without one, nothing happens.

use std::process::Command;
use std::time::Duration;

use sd_notify::NotifyState;
use tracing::warn;

/// The gateway serves, after start, reload or a rejected reload.
pub(super) fn ready() {
    tell(&[NotifyState::Ready]);
}

/// The configuration is being reloaded; [`ready`] follows.
pub(super) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => warn!("the monotonic clock cannot be read: {error}"),
    }
}

/// The gateway is about to end.
pub(super) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Another process has taken over; `to` is its id.
pub(super) fn handed_over(to: u32) {
    tell(&[NotifyState::MainPid(to)]);
}

/// A watchdog keep-alive.
pub(super) fn alive() {
    tell(&[NotifyState::Watchdog]);
}

/// The interval for [`alive`]: half of the service manager's time limit; `None` if it has no watchdog.
pub(super) fn alive_every() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|limit| limit / 2)
}

/// Sets the environment of a new process so that it can notify the service manager as well.
pub(super) fn pass_on(command: &mut Command) {
    // The variable contains the id of this process, so the new process would not send keep-alives.
    command.env_remove("WATCHDOG_PID");
}

fn tell(states: &[NotifyState]) {
    if let Err(error) = sd_notify::notify(states) {
        warn!("notifying the service manager failed: {error}");
    }
}
