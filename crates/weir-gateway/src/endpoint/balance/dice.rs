//! Random numbers that need not be unpredictable, only well spread: Marsaglia's xorshift64*, with a state for each user.

use std::cell::Cell;
use std::hash::BuildHasher;

pub(crate) struct BalancerRandom(Cell<u64>);

impl BalancerRandom {
    /// Starts at a random state, so that workers and upstreams are not correlated.
    pub(crate) fn from_entropy() -> BalancerRandom {
        BalancerRandom::with_seed(foldhash::fast::RandomState::default().hash_one(0))
    }

    pub(crate) fn with_seed(seed: u64) -> BalancerRandom {
        BalancerRandom(Cell::new(seed | 1))
    }

    pub(crate) fn next_u64(&self) -> u64 {
        let mut state = self.0.get();
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        self.0.set(state);
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number from 0 to less than `end`, which is not 0.
    pub(crate) fn below(&self, end: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(end)) >> 64) as u64
    }

    /// `true` with probability `part`.
    pub(crate) fn is_chosen_with_probability(&self, part: f64) -> bool {
        ((self.next_u64() >> 11) as f64) < part * (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_is_chosen_with_a_probability_of_a_quarter() {
        let dice = BalancerRandom::with_seed(1);
        let chosen = |part| (0..10_000).filter(|_| dice.is_chosen_with_probability(part)).count();
        assert_eq!((chosen(0.0), chosen(1.0)), (0, 10_000));
        let quarter = chosen(0.25);
        assert!((2_300..2_700).contains(&quarter), "{quarter}");
    }
}
