//! Measures how long the machine keeps a runnable thread from running.

use std::thread;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_setaffinity};
use serde::{Deserialize, Serialize};

use super::clock::now_ns;
use super::histogram::LatencyHistogram;

/// Shorter gaps between two readings of the clock are the reading itself.
const SHORTEST_NS: u64 = 1_000;

/// The interruptions of a thread that only reads the clock, caused by other programs, interrupts or the hypervisor.
///
/// They limit the precision of an open loop: a request that is due within an interruption is sent at its end, by any engine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interruptions {
    /// The duration of the observation, ns.
    pub watched_ns: u64,
    /// The length of each interruption, ns.
    pub lengths: LatencyHistogram,
}

impl Interruptions {
    /// Reads the clock for `length` on processor `cpu`; if the thread cannot be pinned to it, on any processor.
    pub fn watch(cpu: Option<usize>, length: Duration) -> Self {
        let watch = move || {
            if let Some(cpu) = cpu.filter(|cpu| *cpu < CpuSet::MAX_CPU) {
                let mut set = CpuSet::new();
                set.set(cpu);
                let _ = sched_setaffinity(None, &set);
            }
            let mut lengths = LatencyHistogram::new();
            let start = now_ns();
            let (mut last, end) = (start, start + length.as_nanos() as u64);
            while last < end {
                let now = now_ns();
                if now - last >= SHORTEST_NS {
                    lengths.record(now - last);
                }
                last = now;
            }
            Self { watched_ns: last - start, lengths: lengths.packed() }
        };
        thread::spawn(watch).join().expect("reading the clock does not panic")
    }

    /// The delay in ns within which a thread would have noticed this share (0.0 to 1.0) of all moments.
    pub fn noticed_within(&self, share: f64) -> u64 {
        let allowed = (1.0 - share) * self.watched_ns as f64;
        let hdr = self.lengths.as_hdr();
        let mut lengths: Vec<(f64, f64)> =
            hdr.iter_recorded().map(|step| (step.value_iterated_to() as f64, step.count_at_value() as f64)).collect();
        lengths.reverse();
        let (mut time, mut count) = (0.0, 0.0);
        for (index, (length, times)) in lengths.iter().enumerate() {
            (time, count) = (time + length * times, count + times);
            let shorter = lengths.get(index + 1).map_or(0.0, |(length, _)| *length);
            // All moments of an interruption, except those in its last `shorter`, are noticed later than that.
            if time - count * shorter >= allowed {
                return ((time - allowed) / count) as u64;
            }
        }
        0
    }

    /// The longest interruption, ns.
    pub fn longest(&self) -> u64 {
        self.lengths.max()
    }

    /// Adds the interruptions of another observation.
    pub fn add(&mut self, other: &Self) {
        self.watched_ns += other.watched_ns;
        self.lengths.add(&other.lengths);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_noticed_at_the_end_of_their_interruption() {
        let mut seen = Interruptions { watched_ns: 1_000_000_000, ..Interruptions::default() };
        assert_eq!(seen.noticed_within(0.999), 0);
        seen.lengths.record(10_000_000);
        // 1 ms of the second is allowed to be noticed later: the first of the ten.
        let close = |ns: u64, expected: f64| (ns as f64 / expected - 1.0).abs() < 0.01;
        assert!(close(seen.noticed_within(0.999), 9e6), "{}", seen.noticed_within(0.999));
        assert!(seen.noticed_within(0.99) < 10_000, "{}", seen.noticed_within(0.99));
        seen.lengths.record(3_000_000);
        seen.lengths.record(2_000_000);
        // 9 ms are allowed: 10 + 3 + 2 - 3x.
        assert!(close(seen.noticed_within(0.991), 2e6), "{}", seen.noticed_within(0.991));
        let twice = seen.clone();
        seen.add(&twice);
        assert_eq!(seen.noticed_within(0.991), twice.noticed_within(0.991));
    }

    #[test]
    fn watching_takes_its_time_and_sees_no_more_than_that() {
        let seen = Interruptions::watch(Some(0), Duration::from_millis(20));
        assert!(seen.watched_ns >= 20_000_000);
        assert!(seen.longest() <= seen.watched_ns + seen.watched_ns / 1_000);
        assert!(seen.noticed_within(0.5) <= seen.longest());
    }
}
