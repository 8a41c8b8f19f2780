//! The retry budget: retries are limited to a percentage of the requests, so that they cannot multiply an overload.

use std::cell::Cell;

/// The cost of a retry. A request earns as much as the configured percentage says.
const RETRY: u64 = 100;
/// The initial budget, for upstreams with few requests,
const FIRST: u64 = 20 * RETRY;
/// and the most that can accumulate.
const MOST: u64 = 1_000 * RETRY;

/// One worker's budget for one upstream.
#[derive(Clone)]
pub(crate) struct RetryBudget {
    left: Cell<u64>,
}

impl Default for RetryBudget {
    fn default() -> RetryBudget {
        RetryBudget { left: Cell::new(FIRST) }
    }
}

impl RetryBudget {
    /// Called for each request: `percent` of the requests may be retried.
    pub(crate) fn earn(&self, percent: u32) {
        self.left.set((self.left.get() + u64::from(percent)).min(MOST));
    }

    /// Whether the budget allows a retry.
    pub(crate) fn allows(&self) -> bool {
        self.left.get() >= RETRY
    }

    /// Pays for one retry; `false` if the budget does not allow it.
    pub(crate) fn spend(&self) -> bool {
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
