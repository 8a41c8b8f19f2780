//! Measures the processor time of exchanges and their plugins, on a random sample.
//!
//! Each exchange is picked with the same probability, independently of those before it: no periodic pattern in the traffic
//! can be missed or counted twice. An exchange that is not picked runs the same code as without a meter, except for a
//! counter and a branch for each phase.

use std::cell::Cell;
use std::future::poll_fn;
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;

use weir_net::clock::thread_cpu_ns;

/// The meter of one worker.
pub(crate) struct Meter {
    /// Exchanges that pass before the next that is measured.
    left: Cell<u64>,
    /// One in this many exchanges is measured, on average; 0 measures none.
    every: Cell<u32>,
    random: Cell<u64>,
    /// The mean cost of reading the clock amid other work, and the number of readings so far.
    reading_ns: Cell<f64>,
    readings: Cell<u64>,
}

impl Default for Meter {
    fn default() -> Meter {
        Meter {
            left: Cell::new(u64::MAX),
            every: Cell::new(0),
            random: Cell::new(RandomState::new().hash_one("meter")),
            reading_ns: Cell::new(cost_of_reading() as f64),
            readings: Cell::new(0),
        }
    }
}

/// The weight of one sample in the moving mean of the cost of a reading.
const LEARNT: f64 = 1.0 / 64.0;
/// A sample of more than this many times the mean was interrupted, and is cut to it.
const INTERRUPTED: f64 = 4.0;

/// The initial estimate: the least of several tries, since the larger ones contain interruptions.
fn cost_of_reading() -> u64 {
    const READINGS: u64 = 64;
    let per_reading = || {
        let began = thread_cpu_ns();
        (1..READINGS).for_each(|_| {
            thread_cpu_ns();
        });
        (thread_cpu_ns() - began) / READINGS
    };
    (0..8).map(|_| per_reading()).min().unwrap_or_default()
}

impl Meter {
    /// From now on measures one exchange in `every`, on average; 0 measures none.
    pub(crate) fn measure_one_in(&self, every: u32) {
        if self.every.replace(every) != every {
            self.draw();
        }
    }

    /// Whether the exchange that begins now is to be measured. Called once for each exchange.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        let left = self.left.get();
        self.left.set(left.wrapping_sub(1));
        left == 0 && self.draw()
    }

    /// Draws how many exchanges pass before the next that is measured, from a geometric distribution. `false` if none is
    /// ever.
    #[cold]
    fn draw(&self) -> bool {
        let every = self.every.get();
        if every == 0 {
            self.left.set(u64::MAX);
            return false;
        }
        let chance = self.chance();
        self.left.set((chance.ln() / (1.0 - 1.0 / f64::from(every)).ln()) as u64);
        true
    }

    /// A random number above 0 and at most 1. SplitMix64, by Sebastiano Vigna.
    fn chance(&self) -> f64 {
        let state = self.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.random.set(state);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((mixed ^ (mixed >> 31)) >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    fn read(&self) -> u64 {
        self.readings.set(self.readings.get() + 1);
        thread_cpu_ns()
    }

    /// Updates the mean cost of a reading amid the work of an exchange, where it costs more than in a tight loop. Called
    /// once for each measured exchange.
    pub(crate) fn learn(&self) {
        let began_ns = self.read();
        let cost_ns = (self.read() - began_ns) as f64;
        let mean_ns = self.reading_ns.get();
        self.reading_ns.set(mean_ns + LEARNT * (cost_ns.min(INTERRUPTED * mean_ns) - mean_ns));
    }

    /// Runs `work`; returns its result and its processor time, without the cost of measuring it or parts of it.
    pub(crate) fn of<T>(&self, work: impl FnOnce() -> T) -> (T, u64) {
        let before = self.readings.get();
        let began_ns = self.read();
        let result = work();
        let took_ns = self.read() - began_ns;
        // The interval between the two outer readings contains the cost of one of them, and of all readings inside `work`.
        let readings = self.readings.get() - before - 1;
        (result, took_ns.saturating_sub((readings as f64 * self.reading_ns.get()) as u64))
    }

    /// The same for a future: only the time inside its polls counts. Adds to `spent_ns`.
    pub(crate) async fn over<T>(&self, spent_ns: &mut u64, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        poll_fn(|context| {
            let (poll, took_ns) = self.of(|| work.as_mut().poll(context));
            *spent_ns += took_ns;
            poll
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chance_picks_one_in_so_many() {
        let meter = Meter::default();
        assert!((0..10_000).all(|_| !meter.is_due()), "off");
        meter.measure_one_in(1);
        assert!((0..100).all(|_| meter.is_due()));
        meter.measure_one_in(100);
        let picked: Vec<usize> = (0..1_000_000).filter(|_| meter.is_due()).collect();
        // 10,000 on average, with a standard deviation of 100.
        assert!((9_000..11_000).contains(&picked.len()), "{}", picked.len());
        // All residue classes are picked alike, which a fixed step would not do.
        let even = picked.iter().filter(|number| *number % 2 == 0).count();
        assert!((4_000..6_000).contains(&even), "{even}");
        meter.measure_one_in(0);
        assert!((0..10_000).all(|_| !meter.is_due()));
    }

    #[test]
    fn measuring_is_not_measured() {
        let meter = Meter::default();
        let work = || (0..20_000u64).fold(1u64, |sum, n| std::hint::black_box(sum.wrapping_mul(n | 1)));
        let (_, work_ns) = meter.of(work);
        let (inner_ns, outer_ns) = meter.of(|| (0..100).map(|_| meter.of(|| ()).1).sum::<u64>());
        assert!(work_ns > 0);
        meter.learn();
        // A hundred measurements of nothing, each of which reads the clock twice, must amount to next to nothing.
        assert!(inner_ns + outer_ns < 400 * (meter.reading_ns.get() as u64 + 500), "{inner_ns} {outer_ns}");
    }
}
