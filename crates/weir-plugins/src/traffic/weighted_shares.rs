//! Items with weights, of which each gets exactly its share of the turns.

use std::sync::atomic::{AtomicU64, Ordering};

use weir_plugin::Build;

/// The largest sum of weights.
const MAX_WEIGHT: u64 = 1 << 32;

/// The weight of an item that has none.
pub(crate) fn default_weight() -> u32 {
    1
}

/// Items with weights. The weights are kept exactly, over all workers, and the turns of each item are spread evenly.
pub(crate) struct WeightedShares<T> {
    /// Each with the sum of the weights up to and including its own.
    shares: Box<[(u64, T)]>,
    turns: WeightedTurns,
}

impl<T> WeightedShares<T> {
    /// Reports weights at `path` whose sum is too large.
    pub(crate) fn compile(
        items: impl IntoIterator<Item = (u32, T)>,
        path: &str,
        build: &mut Build,
    ) -> WeightedShares<T> {
        let shares = WeightedShares::new(items);
        if shares.sum() > MAX_WEIGHT {
            build.fault(path, format!("has weights whose sum is more than {MAX_WEIGHT}"));
        }
        shares
    }

    fn new(items: impl IntoIterator<Item = (u32, T)>) -> WeightedShares<T> {
        let mut until = 0;
        let add = |(weight, item): (u32, T)| {
            until += u64::from(weight);
            (until, item)
        };
        let shares: Box<[(u64, T)]> = items.into_iter().map(add).collect();
        WeightedShares { shares, turns: WeightedTurns::new(until.max(1)) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.shares.is_empty()
    }

    /// The sum of the weights.
    pub(crate) fn sum(&self) -> u64 {
        self.shares.last().map_or(0, |(until, _)| *until)
    }

    pub(crate) fn items(&self) -> impl Iterator<Item = &T> {
        self.shares.iter().map(|(_, item)| item)
    }

    pub(crate) fn get(&self, number: usize) -> Option<&T> {
        self.shares.get(number).map(|(_, item)| item)
    }

    /// The item whose turn it is, and its number; `None` if there are no items.
    pub(crate) fn pick(&self) -> Option<(usize, &T)> {
        let number = match self.shares.len() {
            0 | 1 => 0,
            _ => {
                let turn = self.turns.next();
                self.shares.partition_point(|(until, _)| *until <= turn)
            }
        };
        Some((number, self.get(number)?))
    }
}

/// A permutation of the numbers below `total`, repeated; consecutive numbers are far apart. So shares are exact, and
/// each item's turns are spread evenly without storing an order.
struct WeightedTurns {
    count: AtomicU64,
    total: u64,
    /// Coprime to `total`, so that its multiples modulo `total` meet every number.
    step: u64,
}

impl WeightedTurns {
    fn new(total: u64) -> WeightedTurns {
        // The golden ratio spreads multiples most evenly.
        let golden = (total as f64 * 0.618_033_988_749_895) as u64;
        let step = (golden.max(1)..).find(|&step| gcd(step, total) == 1).unwrap_or(1);
        WeightedTurns { count: AtomicU64::new(0), total, step }
    }

    fn next(&self) -> u64 {
        let count = self.count.fetch_add(1, Ordering::Relaxed) % self.total;
        // No overflow: neither factor has more than 33 bits.
        count * self.step % self.total
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_meet_every_number_once() {
        for total in 1..200 {
            let turns = WeightedTurns::new(total);
            let mut met: Vec<_> = (0..total).map(|_| turns.next()).collect();
            met.sort_unstable();
            assert!(met.into_iter().eq(0..total), "{total}");
        }
        let most = WeightedTurns::new(MAX_WEIGHT);
        most.count.store(MAX_WEIGHT - 1, Ordering::Relaxed);
        assert_eq!(most.next(), MAX_WEIGHT - most.step);
    }

    #[test]
    fn shares_of_no_items_have_no_turns() {
        let none = WeightedShares::<()>::new([]);
        assert!(none.is_empty() && none.sum() == 0 && none.pick().is_none());
        assert_eq!(WeightedShares::new([(7, 'a')]).pick(), Some((0, &'a')));
    }
}
