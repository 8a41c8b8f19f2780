//! CPU work: a calibrated loop.

use std::hint::black_box;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Uses this much CPU time. The number of iterations is fixed in advance, so time in which another thread runs does not
/// count as work, and small differences between two durations are exact.
pub(super) fn work(time: Duration) {
    static STEPS_PER_NS: OnceLock<f64> = OnceLock::new();
    let steps_per_ns = STEPS_PER_NS.get_or_init(steps_per_ns);
    run((time.as_nanos() as f64 * steps_per_ns) as u64);
}

fn run(steps: u64) {
    for step in 0..steps {
        black_box(step);
    }
}

/// Takes the fastest of many short measurements, because it was not interrupted.
fn steps_per_ns() -> f64 {
    const STEPS: u64 = 20_000;
    let tries = (0..100).map(|_| {
        let start = Instant::now();
        run(STEPS);
        start.elapsed().as_nanos().max(1)
    });
    STEPS as f64 / tries.min().expect("there are tries") as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_takes_its_time() {
        let start = Instant::now();
        work(Duration::from_millis(50));
        // The machine may have become faster since the calibration, but not ten times.
        assert!(start.elapsed() > Duration::from_millis(5));
    }
}
