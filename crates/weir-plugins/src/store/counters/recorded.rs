//! A table that records which cells have changed, so that its counters can be kept elsewhere as well.
//!
//! The record is a bit for each cell, in words behind the cells. It is passed on with them, so that in an upgrade one of the two
//! processes can keep what both of them count.

use std::sync::PoisonError;

use portable_atomic::Ordering;

use super::memory::{CellMemory, PassedOnCells};
use super::siphash::SipKey;
use super::{
    COUNTER_BITS, COUNTER_MASK, CounterTable, GROUP, GROUPS, NumberedCell, PARTS, PackedCounter, rounded, tag_of,
    weight,
};

/// Cells that one word of the record is for.
const CELLS_OF_WORD: usize = 128;

/// A cell as it is kept: its number in the table, and its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredCell {
    pub number: u32,
    pub word: u128,
}

impl StoredCell {
    pub(crate) fn counter<C: PackedCounter>(self) -> C {
        C::from_bits(self.word & COUNTER_MASK)
    }
}

impl<C: PackedCounter> CounterTable<C> {
    /// A table whose changes are recorded. `true` if it has the counters of the previous process, and not `secret`.
    pub(crate) fn recorded(kind: &'static str, cells: usize, secret: SipKey) -> (CounterTable<C>, bool) {
        let len = rounded(cells);
        let PassedOnCells { memory, secret, is_inherited } =
            CellMemory::passed_on(kind, len + len / CELLS_OF_WORD, secret);
        (CounterTable::of(memory, len, secret, true), is_inherited)
    }

    pub(crate) fn secret(&self) -> SipKey {
        self.secret
    }

    /// The number of cells.
    pub(crate) fn cell_count(&self) -> usize {
        self.len
    }

    /// Notes that a cell has changed. The change is visible to the thread that takes the note, since both are read-modify-writes of
    /// one word; a plain load to see whether the note is there already would not be enough.
    #[inline]
    pub(super) fn record(&self, number: usize) {
        if self.is_recorded {
            self.memory[self.len + number / CELLS_OF_WORD].fetch_or(1 << (number % CELLS_OF_WORD), Ordering::AcqRel);
        }
    }

    /// The cells that have changed since the last call.
    pub(crate) fn take_changes(&self) -> Vec<StoredCell> {
        let mut changes = Vec::new();
        for (word, begin) in self.memory[self.len..].iter().zip((0..).step_by(CELLS_OF_WORD)) {
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = word.swap(0, Ordering::AcqRel);
            while bits != 0 {
                changes.push(self.stored(begin + bits.trailing_zeros() as usize));
                bits &= bits - 1;
            }
        }
        changes
    }

    /// Notes cells as changed that could not be kept.
    pub(crate) fn put_back(&self, changes: &[StoredCell]) {
        changes.iter().for_each(|change| self.record(change.number as usize));
    }

    /// How many cells have changed since the last `take_changes`.
    pub(crate) fn changed(&self) -> u64 {
        self.memory[self.len..].iter().map(|word| u64::from(word.load(Ordering::Acquire).count_ones())).sum()
    }

    /// All cells with a counter that has an effect.
    pub(crate) fn live(&self, now: u64) -> Vec<StoredCell> {
        let all = (0..self.len).map(|number| self.stored(number));
        all.filter(|cell| weight::<C>(cell.word, now) > 0).collect()
    }

    fn stored(&self, number: usize) -> StoredCell {
        StoredCell { number: number as u32, word: self.memory[number].load(Ordering::Acquire) }
    }

    /// Takes in a counter that was kept. If its key has been counted meanwhile, `add` joins both counters. `false` if all places of
    /// the key have counters of more weight.
    pub(crate) fn restore(&self, kept: StoredCell, now: u64, add: impl Fn(C, C) -> C) -> bool {
        let number = kept.number as usize;
        if number >= self.len || weight::<C>(kept.word, now) == 0 {
            return false;
        }
        let part = number / (self.len / PARTS);
        let _taking = self.parts[part].lock().unwrap_or_else(PoisonError::into_inner);
        let counter = C::from_bits(kept.word & COUNTER_MASK);
        loop {
            let (at, word) =
                match self.near(kept).find(|(_, cell)| tag_of(cell.load(Ordering::Acquire)) == tag_of(kept.word)) {
                    Some((at, cell)) => (at, cell.load(Ordering::Acquire)),
                    None => (number, self.memory[number].load(Ordering::Acquire)),
                };
            let joined = if tag_of(word) == tag_of(kept.word) {
                add(C::from_bits(word & COUNTER_MASK), counter)
            } else if weight::<C>(word, now) < weight::<C>(kept.word, now) {
                counter
            } else {
                return false;
            };
            let new = tag_of(kept.word) << COUNTER_BITS | joined.bits();
            if self.memory[at].compare_exchange(word, new, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                self.record(at);
                return true;
            }
        }
    }

    /// All cells that the key of a kept cell may occupy. Its first group is not known, only that this cell is in one of its groups.
    fn near(&self, kept: StoredCell) -> impl Iterator<Item = NumberedCell<'_>> {
        let number = kept.number as usize;
        let part_len = self.len / PARTS;
        let (part, group) = (number / part_len, number % part_len / GROUP);
        let first = group + self.groups() + 1 - GROUPS;
        (0..2 * GROUPS - 1).flat_map(move |step| self.group(part, first + step))
    }
}
