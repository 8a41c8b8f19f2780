//! How soon a target adapts to a backend that changes its speed. Pure.

use std::time::Duration;

use crate::{
    backend::BackendDelay,
    engine::{LoadInterval, LoadPhase},
    result::{Cell, MeasuredRun, ResultFile},
    stats::median,
};

/// The part of the reachable throughput that counts as adapted.
const ENOUGH: f64 = 0.9;

/// Seconds until throughput reached nine tenths of what the best target reaches at the new speed, for the change with
/// the longest time. A change without recovery before the next one counts with the whole time between.
///
/// `None` if the backend does not change, or did not change during the measurement.
pub fn longest_s(result: &ResultFile, cell: &Cell, run: &MeasuredRun) -> Option<f64> {
    let every = every(result, cell)?;
    let reachable = [0, 1].map(|speed| reachable(result, cell, every, speed));
    let pieces = pieces(run, every);
    let whole = pieces.chunk_by(|one, next| one.stretch == next.stretch).filter(|stretch| {
        // The stretch must have begun and ended within the measurement.
        stretch[0].from_s < 0.5 && stretch[stretch.len() - 1].to_s > every.as_secs_f64() - 0.5
    });
    let after = whole.filter_map(|stretch| {
        let enough = reachable[(stretch[0].stretch % 2) as usize]? * ENOUGH;
        let kept = stretch.iter().find(|piece| piece.rate >= enough);
        Some(kept.map_or(every.as_secs_f64(), |piece| piece.to_s))
    });
    after.reduce(f64::max)
}

fn every(result: &ResultFile, cell: &Cell) -> Option<Duration> {
    let row = result.scenario.row(&cell.row)?;
    match result.scenario.backend(row).delay.as_deref()?.parse() {
        Ok(BackendDelay::Alternate { every, .. }) => Some(every),
        _ => None,
    }
}

/// The throughput of the best target at this speed, in the second half of the stretches.
fn reachable(result: &ResultFile, cell: &Cell, every: Duration, speed: u128) -> Option<f64> {
    let alike = result.cells.iter().filter(|other| other.row == cell.row && other.level == cell.level);
    let steady = alike.filter_map(|cell| {
        let pieces = cell.runs().iter().flat_map(|run| pieces(run, every));
        let late = pieces.filter(|piece| piece.stretch % 2 == speed && piece.from_s > every.as_secs_f64() / 2.0);
        median(&late.map(|piece| piece.rate).collect::<Vec<f64>>())
    });
    steady.reduce(f64::max)
}

/// An interval, with its time since the last change of the backend.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Piece {
    /// The number of changes since the Unix epoch.
    stretch: u128,
    from_s: f64,
    to_s: f64,
    /// Answers per second.
    rate: f64,
}

fn pieces(run: &MeasuredRun, every: Duration) -> Vec<Piece> {
    let measured = run.load.intervals.iter().filter(|interval| interval.phase == LoadPhase::Measured);
    measured.map(|interval| piece(run.load.started_unix_ns, interval, every)).collect()
}

fn piece(started_unix_ns: u64, interval: &LoadInterval, every: Duration) -> Piece {
    let from_ns = u128::from(started_unix_ns) + u128::from(interval.start_ns);
    let since_s = (from_ns % every.as_nanos()) as f64 / 1e9;
    let length_s = interval.length_ns as f64 / 1e9;
    Piece {
        stretch: from_ns / every.as_nanos(),
        from_s: since_s,
        to_s: since_s + length_s,
        rate: interval.tally.completed as f64 / length_s.max(1e-9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{CpuTime, LoadTally};

    #[test]
    fn an_interval_belongs_to_the_stretch_it_begins_in() {
        let every = Duration::from_secs(10);
        let at = |start_ms: u64| LoadInterval {
            phase: LoadPhase::Measured,
            start_ns: start_ms * 1_000_000,
            length_ns: 100_000_000,
            tally: LoadTally { completed: 50, ..LoadTally::default() },
            cpu: CpuTime::default(),
        };
        // The run began three seconds before a change.
        let started = 107_000_000_000;
        let before = piece(started, &at(2_900), every);
        assert_eq!((before.stretch, before.from_s), (10, 9.9));
        let after = piece(started, &at(3_000), every);
        assert_eq!(after, Piece { stretch: 11, from_s: 0.0, to_s: 0.1, rate: 500.0 });
    }
}
