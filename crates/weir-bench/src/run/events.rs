//! Events while a row is measured: backends are killed or frozen and return, targets drain or load another
//! configuration.

use std::{
    error::Error,
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;

use super::{backend::RunningBackends, reload::Reload};
use crate::{
    scenario::{EventAction, RowEvent},
    target::send_signal,
};

/// Plays the events of a row, with times relative to the begin of the measured part.
pub(super) fn play(
    events: &[RowEvent],
    begin: Instant,
    backend: &mut RunningBackends,
    target: Option<u32>,
    reload: Option<&Reload>,
) {
    let mut events = events.to_vec();
    events.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    for event in events {
        let due = begin + Duration::from_secs_f64(event.at_s);
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if let Err(error) = act(&event, backend, target, reload) {
            eprintln!("weir bench: {:?} at {} s: {error}", event.action, event.at_s);
        }
    }
}

fn act(
    event: &RowEvent,
    backend: &mut RunningBackends,
    target: Option<u32>,
    reload: Option<&Reload>,
) -> Result<(), Box<dyn Error>> {
    match event.action {
        EventAction::KillBackend => backend.signal_first(Signal::KILL)?,
        EventAction::FreezeBackend => backend.signal_first(Signal::STOP)?,
        EventAction::RestoreBackend => backend.restore_first()?,
        EventAction::DrainTarget => target.map_or(Ok(()), |pid| send_signal(pid, Signal::TERM))?,
        EventAction::ReloadOneRoute => {
            reload.zip(target).map_or(Ok(()), |(reload, pid)| reload.one_route(event.at_s, pid))?;
        }
        EventAction::ReloadAllRoutes => {
            reload.zip(target).map_or(Ok(()), |(reload, pid)| reload.all_routes(event.at_s, pid))?;
        }
    }
    Ok(())
}
