//! Changes one route of a target repeatedly while the target is under load.

use std::{
    thread,
    time::{Duration, Instant},
};

use super::{ReloadError, reload::Reload};
use crate::result::RouteChanges;

/// How long a change may take until a request shows it.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pause between requests that check for the change. The first one is sent at once.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Makes changes from `begin` to the end of the measured part, at most `per_s` per second: a change begins only
/// after the one before it is visible.
pub(super) fn make(reload: &Reload, pid: u32, per_s: f64, begin: Instant, measured: Duration) -> RouteChanges {
    let mut due = begin;
    let end = due + measured;
    let mut changes = RouteChanges::default();
    for number in 1.. {
        let now = Instant::now();
        due = due.max(now);
        if due >= end {
            break;
        }
        thread::sleep(due - now);
        due += Duration::from_secs_f64(1.0 / per_s);
        match one(reload, number, pid) {
            Ok(times) => {
                changes.visible_after_ms.push(times.visible.as_secs_f64() * 1e3);
                changes.served_after_ms.extend(times.served.map(|served| served.as_secs_f64() * 1e3));
            }
            Err(problem) => {
                eprintln!("weir bench: change {number} of a route: {problem}");
                changes.failed += 1;
            }
        }
    }
    changes
}

/// Times from the beginning of a change.
struct ChangeTimes {
    /// Until a request showed it.
    visible: Duration,
    /// Until the target said that all its workers serve it.
    served: Option<Duration>,
}

fn one(reload: &Reload, number: u64, pid: u32) -> Result<ChangeTimes, ReloadError> {
    let began = Instant::now();
    reload.change_route(number, pid)?;
    let served = reload.waits_for_all_workers().then(|| began.elapsed());
    while !reload.shows(number)? {
        if began.elapsed() > PATIENCE {
            return Err(ReloadError::NotVisible { patience: PATIENCE });
        }
        thread::sleep(LOOK_AGAIN);
    }
    Ok(ChangeTimes { visible: began.elapsed(), served })
}
