//! A queue whose owners take turns: in each round, each owner has one item.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::Hash;

/// Items of several owners. Before an item come at most the earlier items of its own owner, and of each other owner one item for each
/// of these and two more.
pub(super) struct TurnQueue<K, T> {
    /// By round. Of one round, the least item comes first.
    waiting: BinaryHeap<Reverse<(u64, T)>>,
    /// The round of the last item of an owner.
    last_rounds: HashMap<K, u64>,
    /// The round of the item that was taken last.
    round: u64,
}

/// Owners without items are forgotten once they are that many more than the items.
const OWNERS_KEPT: usize = 16;

impl<K, T: Ord> Default for TurnQueue<K, T> {
    fn default() -> Self {
        TurnQueue { waiting: BinaryHeap::new(), last_rounds: HashMap::new(), round: 0 }
    }
}

impl<K: Eq + Hash, T: Ord> TurnQueue<K, T> {
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn push(&mut self, owner: K, item: T) {
        let now = self.round;
        let last = self.last_rounds.entry(owner).and_modify(|last| *last = now.max(*last + 1)).or_insert(now);
        self.waiting.push(Reverse((*last, item)));
    }

    /// The item whose turn it is.
    pub(super) fn peek(&self) -> Option<&T> {
        self.waiting.peek().map(|Reverse((_, item))| item)
    }

    pub(super) fn pop(&mut self) -> Option<T> {
        let Reverse((round, item)) = self.waiting.pop()?;
        self.round = round;
        if self.last_rounds.len() > 2 * self.waiting.len() + OWNERS_KEPT {
            self.last_rounds.retain(|_, last| *last >= round);
        }
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(queue: &mut TurnQueue<u32, &'static str>) -> Vec<&'static str> {
        std::iter::from_fn(|| queue.pop()).collect()
    }

    #[test]
    fn turns_go_round_the_owners_whoever_has_more() {
        let mut queue = TurnQueue::default();
        for item in ["a1", "a2", "a3", "a4"] {
            queue.push(1, item);
        }
        assert_eq!((queue.pop(), queue.pop()), (Some("a1"), Some("a2")));
        queue.push(2, "b1");
        queue.push(2, "b2");
        queue.push(3, "c1");
        assert_eq!(all(&mut queue), ["b1", "c1", "a3", "b2", "a4"]);
        queue.push(1, "a5");
        queue.push(2, "b3");
        assert_eq!(all(&mut queue).len(), 2, "an empty queue goes on");
    }

    #[test]
    fn turns_of_owners_that_have_gone_need_no_memory() {
        let mut queue = TurnQueue::default();
        for owner in 0..10_000_u32 {
            queue.push(owner, owner);
            queue.push(owner, owner);
            assert!(queue.pop().is_some() && (owner < 2 || queue.pop().is_some()));
        }
        assert!(queue.last_rounds.len() <= 2 * queue.len() + OWNERS_KEPT + 1, "{}", queue.last_rounds.len());
    }
}
