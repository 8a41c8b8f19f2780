//! The newest blocks of a stream, as many as the limits allow.

use std::collections::VecDeque;
use std::sync::Arc;

use super::blocks::EventBlock;

/// The limits of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WindowLimits {
    pub events: usize,
    pub bytes: usize,
}

/// The newest blocks of a stream. The position of a block is the number of blocks that the stream has sent before it.
#[derive(Clone, Debug)]
pub(super) struct EventWindow {
    limits: WindowLimits,
    blocks: VecDeque<Arc<EventBlock>>,
    /// Of the events, as `limits` counts them.
    bytes: usize,
    /// Of the memory for them.
    held: usize,
    /// The position of the oldest block in the window.
    first: u64,
}

/// The result of looking up a position.
#[derive(Debug, PartialEq)]
pub(super) enum At<'a> {
    Block(&'a Arc<EventBlock>),
    /// The block has not been received yet.
    End,
    /// The block has been removed. The oldest block in the window has this position.
    Gone(u64),
}

impl EventWindow {
    pub(super) fn new(limits: WindowLimits) -> EventWindow {
        EventWindow { limits, blocks: VecDeque::new(), bytes: 0, held: 0, first: 0 }
    }

    /// Adds blocks that were received together. The limits are enforced only with the next ones, so that every client
    /// can read these first.
    pub(super) fn extend(&mut self, blocks: impl IntoIterator<Item = Arc<EventBlock>>) {
        self.trim();
        for block in blocks {
            self.bytes += block.bytes.len();
            self.held += block.held_bytes();
            self.blocks.push_back(block);
        }
    }

    /// Enforces the limits.
    pub(super) fn trim(&mut self) {
        while self.blocks.len() > self.limits.events || self.bytes > self.limits.bytes && self.blocks.len() > 1 {
            self.remove_oldest();
        }
    }

    /// Removes the oldest blocks until the memory of the others is at most this.
    pub(super) fn shrink_to(&mut self, held_bytes: usize) {
        while self.held > held_bytes && !self.blocks.is_empty() {
            self.remove_oldest();
        }
        if self.blocks.is_empty() {
            self.blocks.shrink_to_fit();
        }
    }

    fn remove_oldest(&mut self) {
        if let Some(gone) = self.blocks.pop_front() {
            self.bytes -= gone.bytes.len();
            self.held -= gone.held_bytes();
            self.first += 1;
        }
    }

    /// The bytes of memory that the blocks take.
    pub(super) fn held_bytes(&self) -> usize {
        self.held
    }

    /// The position after the newest block.
    pub(super) fn end(&self) -> u64 {
        self.first + self.blocks.len() as u64
    }

    pub(super) fn at(&self, position: u64) -> At<'_> {
        let Some(index) = position.checked_sub(self.first) else { return At::Gone(self.first) };
        match usize::try_from(index).ok().and_then(|index| self.blocks.get(index)) {
            Some(block) => At::Block(block),
            None => At::End,
        }
    }

    /// Whether no block has been removed: the window contains all that the stream has sent.
    pub(super) fn is_complete(&self) -> bool {
        self.first == 0
    }

    /// The position after the newest block with this id.
    pub(super) fn after_id(&self, id: &[u8]) -> Option<u64> {
        let from_end = self.blocks.iter().rev().position(|block| block.id.as_deref() == Some(id))?;
        Some(self.end() - from_end as u64)
    }

    /// The position of the oldest of the newest `count` blocks.
    pub(super) fn newest(&self, count: usize) -> u64 {
        self.end().saturating_sub(count as u64).max(self.first)
    }

    /// Adds the blocks that another window of the same stream has after the end of this one, and removes those that it has given
    /// up.
    pub(super) fn catch_up(&mut self, other: &EventWindow) {
        if self.end() < other.first {
            *self = EventWindow { first: other.first, ..EventWindow::new(self.limits) };
        }
        let from = (self.end() - other.first) as usize;
        self.extend(other.blocks.iter().skip(from).cloned());
        while self.first < other.first {
            self.remove_oldest();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(id: u64) -> Arc<EventBlock> {
        Arc::new(EventBlock {
            received: std::time::Instant::now(),
            bytes: [b'x'; 10].into(),
            id: Some(id.to_string().into_bytes().into()),
        })
    }

    fn filled(limits: WindowLimits, ids: std::ops::Range<u64>) -> EventWindow {
        let mut window = EventWindow::new(limits);
        ids.for_each(|id| window.extend([block(id)]));
        window
    }

    const WIDE: WindowLimits = WindowLimits { events: 100, bytes: 1000 };

    #[test]
    fn it_is_bounded_in_events_and_in_bytes() {
        for limits in [WindowLimits { events: 3, ..WIDE }, WindowLimits { bytes: 35, ..WIDE }] {
            let window = filled(limits, 0..10);
            assert_eq!((window.at(5), window.at(10), window.end()), (At::Gone(6), At::End, 10));
            assert_eq!(window.at(6), At::Block(&block(6)));
        }
        let tight = filled(WindowLimits { events: 1, bytes: 1 }, 0..3);
        assert_eq!(tight.at(2), At::Block(&block(2)), "the newest is there in any case");
    }

    #[test]
    fn window_keeps_a_burst_until_the_next_event() {
        let mut window = filled(WindowLimits { events: 3, ..WIDE }, 0..3);
        window.extend((3..20).map(block));
        assert_eq!((window.at(0), window.end()), (At::Block(&block(0)), 20));
        window.extend([block(20)]);
        assert_eq!(window.at(0), At::Gone(17));
    }

    #[test]
    fn it_gives_up_no_more_than_it_has_to() {
        let mut window = filled(WIDE, 0..5);
        let one = block(3).held_bytes();
        window.shrink_to(3 * one - 1);
        assert_eq!((window.at(2), window.at(3), window.end()), (At::Gone(3), At::Block(&block(3)), 5));
        assert_eq!(window.held_bytes(), 2 * one);
        window.shrink_to(2 * one);
        assert_eq!(window.held_bytes(), 2 * one);
        window.shrink_to(0);
        assert_eq!((window.held_bytes(), window.end()), (0, 5));
        window.extend([block(5)]);
        assert_eq!(window.at(5), At::Block(&block(5)));
    }

    #[test]
    fn an_id_is_found_where_it_stood_last() {
        let mut window = filled(WIDE, 0..5);
        window.extend([block(1)]);
        assert_eq!((window.after_id(b"1"), window.after_id(b"4"), window.after_id(b"9")), (Some(6), Some(5), None));
    }

    #[test]
    fn new_clients_begin_with_the_newest() {
        let window = filled(WindowLimits { events: 3, ..WIDE }, 0..10);
        assert_eq!((window.newest(0), window.newest(2), window.newest(50)), (10, 8, 6));
    }

    #[test]
    fn one_window_catches_up_with_another() {
        let mut local = filled(WIDE, 0..2);
        local.catch_up(&filled(WIDE, 0..5));
        assert_eq!((local.end(), local.at(0)), (5, At::Block(&block(0))));
        let mut halved = filled(WIDE, 0..5);
        halved.shrink_to(2 * block(3).held_bytes());
        local.catch_up(&halved);
        assert_eq!((local.at(2), local.at(3)), (At::Gone(3), At::Block(&block(3))), "it keeps no more than the other");
        assert_eq!(local.held_bytes(), halved.held_bytes());
        let far = filled(WindowLimits { events: 2, ..WIDE }, 0..20);
        local.catch_up(&far);
        assert_eq!((local.end(), local.at(16), local.is_complete()), (20, At::Gone(17), false));
        assert_eq!(local.at(17), At::Block(&block(17)));
    }
}
