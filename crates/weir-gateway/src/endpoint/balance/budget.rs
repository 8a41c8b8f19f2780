//! How much may be tried again: a part of what is asked, so that retries cannot multiply a load that is too much already.

use std::cell::Cell;

/// A retry costs this much; a request brings as much as the percentage says.
const RETRY: u64 = 100;
/// There is so much to begin with, for upstreams that are seldom asked,
const FIRST: u64 = 20 * RETRY;
/// and what quiet times bring adds up to no more than this.
const MOST: u64 = 1_000 * RETRY;

/// One worker's budget for one upstream.
pub struct RetryBudget {
    left: Cell<u64>,
}

impl Default for RetryBudget {
    fn default() -> RetryBudget {
        RetryBudget { left: Cell::new(FIRST) }
    }
}

impl RetryBudget {
    /// A request, of which `percent` may be tried again.
    pub fn earn(&self, percent: u32) {
        self.left.set((self.left.get() + u64::from(percent)).min(MOST));
    }

    /// Whether there is enough left for one more retry, which is then paid for.
    pub fn spend(&self) -> bool {
        let left = self.left.get().checked_sub(RETRY);
        self.left.set(left.unwrap_or(self.left.get()));
        left.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f24_retries_are_a_part_of_requests() {
        let budget = RetryBudget::default();
        let mut retries = 0;
        for _ in 0..10_000 {
            budget.earn(20);
            retries += usize::from(budget.spend());
        }
        assert_eq!(retries, 2_000 + 20);
        (0..1_000_000).for_each(|_| budget.earn(20));
        let mut burst = 0;
        while budget.spend() {
            burst += 1;
        }
        assert_eq!(burst, 1_000, "quiet times do not add up for ever");
    }
}
