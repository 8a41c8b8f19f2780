//! Closed loop: the pauses of clients, and when they start.

use crate::engine::plan::Think;
use crate::stats::SeededRandom;

/// Draws the pauses of a thread's clients between an answer and the next request.
#[derive(Clone, Debug)]
pub struct Pauses {
    think: Think,
    random: SeededRandom,
}

impl Pauses {
    pub fn new(think: Think, seed: u64, thread: usize) -> Self {
        // Each thread has a seed of its own, so that the pauses of threads are independent.
        let mut random = SeededRandom::new(seed);
        for _ in 0..=thread {
            random = SeededRandom::new(random.bits());
        }
        Self { think, random }
    }

    /// The next pause, ns.
    #[inline]
    pub fn draw(&mut self) -> u64 {
        self.draw_of(self.think)
    }

    /// The next pause of a request with a think time of its own, ns.
    #[inline]
    pub fn draw_of(&mut self, think: Think) -> u64 {
        let ms = match think {
            Think::None => return 0,
            Think::FixedMs(ms) => ms,
            Think::UniformMs { from, to } => from + (to - from) * self.random.unit(),
            Think::ExponentialMs(mean) => -(1.0 - self.random.unit()).ln() * mean,
        };
        (ms * 1e6) as u64
    }
}

/// When client number `client` of `clients` starts, in ns from the start of the run, when they start evenly over
/// `ramp_up_ms`.
pub fn client_start(client: usize, clients: usize, ramp_up_ms: u64) -> u64 {
    (u128::from(ramp_up_ms) * 1_000_000 * client as u128 / clients.max(1) as u128) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_keep_their_mean_and_their_bounds() {
        let mean = |think| {
            let mut pauses = Pauses::new(think, 3, 1);
            (0..50_000).map(|_| pauses.draw()).sum::<u64>() as f64 / 50_000.0 / 1e6
        };
        assert_eq!(mean(Think::None), 0.0);
        assert_eq!(mean(Think::FixedMs(2.5)), 2.5);
        assert!((mean(Think::UniformMs { from: 1.0, to: 3.0 }) - 2.0).abs() < 0.02);
        assert!((mean(Think::ExponentialMs(4.0)) - 4.0).abs() < 0.1);
    }

    #[test]
    fn clients_start_evenly_over_the_ramp() {
        let starts: Vec<u64> = (0..4).map(|client| client_start(client, 4, 2_000)).collect();
        assert_eq!(starts, [0, 500_000_000, 1_000_000_000, 1_500_000_000]);
    }
}
