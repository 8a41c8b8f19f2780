//! What happens while a row is measured: backends that are killed or frozen and come back, targets that drain.

use std::{
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use super::backend::RunningBackends;
use crate::scenario::{EventAction, RowEvent};

/// Plays the events of a row from when its load starts, which is `warm_up` before its measured part begins. The load plan is
/// connecting while this waits: events come that much earlier, a few milliseconds with some hundred clients.
pub fn play(events: &[RowEvent], warm_up: Duration, backend: &mut RunningBackends, target: Option<u32>) {
    let start = Instant::now() + warm_up;
    let mut events = events.to_vec();
    events.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    for event in events {
        let due = start + Duration::from_secs_f64(event.at_s);
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let outcome = match event.action {
            EventAction::KillBackend => backend.signal_first(Signal::KILL),
            EventAction::FreezeBackend => backend.signal_first(Signal::STOP),
            EventAction::RestoreBackend => backend.restore_first(),
            EventAction::DrainTarget => target.map_or(Ok(()), |pid| send(pid, Signal::TERM)),
        };
        if let Err(error) = outcome {
            eprintln!("weir bench: {:?} at {} s: {error}", event.action, event.at_s);
        }
    }
}

/// Sends a signal to one process.
pub fn send(pid: u32, signal: Signal) -> Result<(), String> {
    let pid = Pid::from_raw(pid as i32).ok_or("there is no such process")?;
    kill_process(pid, signal).map_err(|error| error.to_string())
}
