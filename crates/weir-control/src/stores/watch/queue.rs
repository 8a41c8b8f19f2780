//! Changes that wait to be made. Admins and other authors take turns, and so do the authors of either: many or large changes of one
//! author delay a change of another by what is made together at most.

use std::collections::VecDeque;

use super::super::writes::QueuedWrite;

/// The changes that were received and not made yet.
#[derive(Default)]
pub(super) struct WriteQueue {
    of_admins: AuthorQueues,
    of_others: AuthorQueues,
    /// The last turn was that of admins.
    was_of_admins: bool,
    /// Its first change must not be made together with others.
    is_alone: bool,
}

/// The changes of each author in their order; the first author is next.
#[derive(Default)]
struct AuthorQueues(VecDeque<(String, VecDeque<QueuedWrite>)>);

impl WriteQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.of_admins.0.is_empty() && self.of_others.0.is_empty()
    }

    pub(super) fn push(&mut self, write: QueuedWrite) {
        self.queues_of(write.request.of_admin).push(write);
    }

    /// Puts changes back that cannot be made together: each is the next one of its author, alone.
    pub(super) fn put_back(&mut self, writes: impl DoubleEndedIterator<Item = QueuedWrite>) {
        for write in writes.rev() {
            self.queues_of(write.request.of_admin).put_back(write.alone());
        }
    }

    /// Begins the next turn, with its first change.
    pub(super) fn begin_turn(&mut self) -> Option<QueuedWrite> {
        self.was_of_admins = !self.of_admins.0.is_empty() && (!self.was_of_admins || self.of_others.0.is_empty());
        let first = self.queues_of(self.was_of_admins).next()?;
        self.is_alone = first.is_alone();
        Some(first)
    }

    /// A further change of this turn that may be made together with its first one.
    pub(super) fn next_of_turn(&mut self) -> Option<QueuedWrite> {
        let is_alone = self.is_alone;
        let queues = self.queues_of(self.was_of_admins);
        if is_alone || queues.is_next_alone() { None } else { queues.next() }
    }

    fn queues_of(&mut self, admins: bool) -> &mut AuthorQueues {
        if admins { &mut self.of_admins } else { &mut self.of_others }
    }
}

impl AuthorQueues {
    fn push(&mut self, write: QueuedWrite) {
        let author = &write.request.author.name;
        match self.0.iter_mut().find(|(name, _)| name == author) {
            Some((_, writes)) => writes.push_back(write),
            None => self.0.push_back((author.clone(), VecDeque::from([write]))),
        }
    }

    fn put_back(&mut self, write: QueuedWrite) {
        let author = &write.request.author.name;
        match self.0.iter_mut().find(|(name, _)| name == author) {
            Some((_, writes)) => writes.push_front(write),
            None => self.0.push_front((author.clone(), VecDeque::from([write]))),
        }
    }

    fn is_next_alone(&self) -> bool {
        self.0.front().and_then(|(_, writes)| writes.front()).is_some_and(QueuedWrite::is_alone)
    }

    fn next(&mut self) -> Option<QueuedWrite> {
        let (author, mut writes) = self.0.pop_front()?;
        let next = writes.pop_front();
        if !writes.is_empty() {
            self.0.push_back((author, writes));
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::stores::resources::{Author, ResourceView};
    use crate::stores::writes::WriteRequest;

    /// The message says which one of its author it is.
    fn write(author: &str, number: usize) -> QueuedWrite {
        let of_admin = author.starts_with("admin");
        let author = Author { name: author.to_owned(), message: number.to_string(), ..Author::default() };
        let plan = Box::new(|_: &ResourceView<'_>| Ok(Vec::new()));
        QueuedWrite::new(WriteRequest { plan, author, of_admin, forced: false, pattern_bytes: 0 }, oneshot::channel().0)
    }

    fn name(write: &QueuedWrite) -> String {
        format!("{} {}", write.request.author.name, write.request.author.message)
    }

    fn queued(writes: &[(&str, usize)]) -> WriteQueue {
        let mut queue = WriteQueue::default();
        writes.iter().for_each(|(author, number)| queue.push(write(author, *number)));
        queue
    }

    /// The changes of the next turn, at most this many.
    fn turn(queue: &mut WriteQueue, most: usize) -> Vec<String> {
        let first = queue.begin_turn();
        let further = std::iter::from_fn(|| queue.next_of_turn()).take(most - 1);
        let turn: Vec<QueuedWrite> = first.into_iter().chain(further).collect();
        turn.iter().map(name).collect()
    }

    #[test]
    fn admins_and_others_take_turns_beginning_with_admins() {
        let mut queue = queued(&[("ed", 1), ("ed", 2), ("ed", 3), ("admin", 1), ("admin", 2), ("admin", 3)]);
        let turns: Vec<_> = (0..4).map(|_| turn(&mut queue, 2)).collect();
        assert_eq!(turns, [vec!["admin 1", "admin 2"], vec!["ed 1", "ed 2"], vec!["admin 3"], vec!["ed 3"]]);
        assert!(queue.is_empty() && queue.begin_turn().is_none());
        queue.push(write("admin", 4));
        assert_eq!(turn(&mut queue, 2), ["admin 4"], "no other change waits");
        queue.push(write("admin", 5));
        assert_eq!(turn(&mut queue, 2), ["admin 5"]);
    }

    #[test]
    fn authors_take_turns_and_keep_the_order_of_their_own() {
        let mut queue = queued(&[("a", 1), ("a", 2), ("a", 3), ("b", 1), ("c", 1), ("c", 2)]);
        let turns: Vec<_> = (0..3).map(|_| turn(&mut queue, 2)).collect();
        assert_eq!(turns, [["a 1", "b 1"], ["c 1", "a 2"], ["c 2", "a 3"]]);
    }

    #[test]
    fn changes_that_were_put_back_are_next_and_alone() {
        let mut queue = queued(&[("a", 1), ("a", 2), ("b", 1), ("a", 3)]);
        let first = queue.begin_turn();
        let rejected: Vec<QueuedWrite> = first.into_iter().chain(std::iter::from_fn(|| queue.next_of_turn())).collect();
        assert_eq!(rejected.iter().map(name).collect::<Vec<_>>(), ["a 1", "b 1", "a 2", "a 3"]);
        queue.push(write("a", 4));
        queue.push(write("admin", 1));
        queue.put_back(rejected.into_iter());
        let turns: Vec<_> = (0..6).map(|_| turn(&mut queue, 9)).collect();
        assert_eq!(turns, [vec!["admin 1"], vec!["b 1"], vec!["a 1"], vec!["a 2"], vec!["a 3"], vec!["a 4"]]);
    }
}
