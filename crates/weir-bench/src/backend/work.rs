//! Work for the processor: a loop of known length.

use std::hint::black_box;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Burns as much processor time as this is when nothing interrupts it. The length of the loop is fixed before it begins, so
/// that time in which another thread ran is not taken for work done, and a twentieth more is a twentieth more.
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

/// The fastest of many short tries is one that nothing interrupted.
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
        // The machine may have become faster since the loop was measured, but not ten times.
        assert!(start.elapsed() > Duration::from_millis(5));
    }
}
