//! Counters shared by all workers: exact, bounded in memory, and without a lock for a key that is known.
//!
//! A table is an array of 128-bit cells. Each contains a tag from the key, and the counter itself; both are changed
//! together by compare-and-swap. A key can occupy one of 32 cells. A cell whose counter has expired (its window is
//! over) can be reused for another key. Inserting a new key locks its part of the table, so that no key ever occupies two cells.
//! (Two processes of an upgrade do not share the lock; both try the same cell first, and the compare-and-swap decides.)
//!
//! When all 32 cells for a new key are in use, the counter that has been used least is replaced. So a counter of `n` is
//! lost early only if 32 other keys, whose cells clients cannot predict, have all been used `n` times or more.

use std::sync::{Mutex, PoisonError};

use portable_atomic::{AtomicU128, Ordering};

mod memory;
mod recorded;
mod siphash;

use memory::{CellMemory, PassedOnCells};
pub use memory::{hand_over, take_over};
pub(crate) use recorded::StoredCell;
pub(crate) use siphash::SipKey;

/// A key can occupy the cells of this many groups, each of [`GROUP`] neighbours.
const GROUPS: usize = 4;
/// Cells of a group: two cache lines.
const GROUP: usize = 8;
const PARTS: usize = 64;
/// Bits of a cell that a counter may use.
pub(crate) const COUNTER_BITS: u32 = 88;

/// The counter in a cell, in packed form. All bits zero is a counter without effect.
pub(crate) trait PackedCounter: Copy {
    fn from_bits(bits: u128) -> Self;
    /// The packed form, with at most [`COUNTER_BITS`] bits.
    fn bits(self) -> u128;
    /// Whether the counter still has an effect at this time, in the unit that the counter itself uses.
    fn is_live(self, now: u64) -> bool;
    /// How much the counter has been used; the one with the lowest weight is replaced first.
    fn weight(self, now: u64) -> u64;
}

/// A table of counters of one kind.
pub(crate) struct CounterTable<C> {
    memory: CellMemory,
    /// The number of cells. In a recorded table, words behind them have a bit for each cell that has changed.
    len: usize,
    is_recorded: bool,
    /// Each lock guards the insertion into its part of the table.
    parts: Box<[Mutex<()>]>,
    secret: SipKey,
    kind: std::marker::PhantomData<fn() -> C>,
}

/// The number of a name, for use in keys. It needs no secret, since names are part of the configuration, and the next process of an
/// upgrade must find the same number.
pub(crate) fn name(text: &str) -> u64 {
    SipKey::of_bytes(b"names of limits\0").hash(0, text.as_bytes())
}

/// The key of a counter. Hashed with a secret, so that clients cannot choose the cells of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CounterKey(u64);

impl CounterKey {
    /// The key as a number, to be stored in a note of an exchange.
    pub(crate) fn number(self) -> u64 {
        self.0
    }

    pub(crate) fn from_number(number: u64) -> CounterKey {
        CounterKey(number)
    }
}

impl<C: PackedCounter> CounterTable<C> {
    /// A table with at least this many cells. Memory pages are allocated when a key first uses them.
    pub(crate) fn new(cells: usize) -> CounterTable<C> {
        let len = rounded(cells);
        CounterTable::of(CellMemory::own(len), len, SipKey::random(), false)
    }

    /// The same, but with the counters of the previous process, if this one has replaced it. `kind` is a word for this type of counter,
    /// which is another one after a change of its packed form.
    pub(crate) fn passed_on(kind: &'static str, cells: usize) -> CounterTable<C> {
        let len = rounded(cells);
        let PassedOnCells { memory, secret, .. } = CellMemory::passed_on(kind, len, SipKey::random());
        CounterTable::of(memory, len, secret, false)
    }

    fn of(memory: CellMemory, len: usize, secret: SipKey, is_recorded: bool) -> CounterTable<C> {
        let parts = (0..PARTS).map(|_| Mutex::default()).collect();
        CounterTable { memory, len, is_recorded, parts, secret, kind: std::marker::PhantomData }
    }

    /// The key for a value under a name.
    #[inline]
    pub(crate) fn key(&self, name: u64, value: &[u8]) -> CounterKey {
        CounterKey(self.secret.hash(name, value))
    }

    /// Changes the counter of a key atomically. `change` gets the counter, which may be zero or expired, and returns
    /// the new one, or `None` to keep it; it may be called more than once.
    pub(crate) fn update<T>(&self, key: CounterKey, now: u64, change: impl FnMut(C) -> (Option<C>, T)) -> T {
        let mut change = change;
        loop {
            let result = match self.find(key) {
                Some(cell) => self.change(cell, key, &mut change),
                None => self.insert(key, now, &mut change),
            };
            if let Some(result) = result {
                return result;
            }
        }
    }

    /// The counter of a key; zero if there is none.
    pub(crate) fn read(&self, key: CounterKey) -> C {
        self.update(key, 0, |counter| (None, counter))
    }

    fn part(&self, key: CounterKey) -> usize {
        (key.0 as usize) % PARTS
    }

    /// Groups in a part of the table; a power of two.
    fn groups(&self) -> usize {
        self.len / PARTS / GROUP
    }

    /// The cells of a group of a part of the table.
    fn group(&self, part: usize, group: usize) -> impl Iterator<Item = NumberedCell<'_>> {
        let begin = part * (self.len / PARTS) + (group & (self.groups() - 1)) * GROUP;
        (begin..).zip(&self.memory[begin..][..GROUP])
    }

    /// The cells that a key can occupy, all in its part of the table.
    fn cells(&self, key: CounterKey) -> impl Iterator<Item = NumberedCell<'_>> {
        let (part, first) = (self.part(key), (key.0 >> 8) as usize);
        (0..GROUPS).flat_map(move |step| self.group(part, first + step))
    }

    fn find(&self, key: CounterKey) -> Option<NumberedCell<'_>> {
        self.cells(key).find(|(_, cell)| tag_of(cell.load(Ordering::Acquire)) == tag(key))
    }

    /// Returns `None` if the cell has been taken over by another key meanwhile.
    fn change<T>(
        &self,
        (number, cell): NumberedCell<'_>,
        key: CounterKey,
        change: &mut impl FnMut(C) -> (Option<C>, T),
    ) -> Option<T> {
        let mut word = cell.load(Ordering::Acquire);
        loop {
            if tag_of(word) != tag(key) {
                return None;
            }
            let (new, result) = change(C::from_bits(word & COUNTER_MASK));
            let Some(new) = new else { return Some(result) };
            match cell.compare_exchange_weak(word, pack(key, new), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    self.record(number);
                    return Some(result);
                }
                Err(current) => word = current,
            }
        }
    }

    /// Returns `None` if another thread has inserted the key meanwhile.
    #[cold]
    fn insert<T>(&self, key: CounterKey, now: u64, change: &mut impl FnMut(C) -> (Option<C>, T)) -> Option<T> {
        let (new, result) = change(C::from_bits(0));
        let Some(new) = new else { return Some(result) };
        // A poisoned lock is ignored: it guards no data that a panic could leave inconsistent.
        let _taking = self.parts[self.part(key)].lock().unwrap_or_else(PoisonError::into_inner);
        if self.find(key).is_some() {
            return None;
        }
        let cells = self.cells(key).map(|(number, cell)| (number, cell, cell.load(Ordering::Acquire)));
        let least_used = cells.min_by_key(|(.., word)| weight::<C>(*word, now));
        let (number, cell, word) = least_used.expect("every key has cells");
        let taken = cell.compare_exchange(word, pack(key, new), Ordering::AcqRel, Ordering::Acquire);
        taken.ok()?;
        self.record(number);
        Some(result)
    }
}

/// A cell, and its number in the table.
type NumberedCell<'a> = (usize, &'a AtomicU128);

/// How much is lost if this word is replaced; 0 for one without effect.
fn weight<C: PackedCounter>(word: u128, now: u64) -> u64 {
    let counter = C::from_bits(word & COUNTER_MASK);
    if word != 0 && counter.is_live(now) { 1 + counter.weight(now) } else { 0 }
}

fn rounded(cells: usize) -> usize {
    cells.next_power_of_two().max(PARTS * GROUPS * GROUP)
}

const COUNTER_MASK: u128 = (1 << COUNTER_BITS) - 1;

/// The bits of the key that a cell stores; further bits follow from its group. Never zero, because an empty cell is zero.
fn tag(key: CounterKey) -> u128 {
    u128::from((key.0 >> 24) | 1)
}

fn tag_of(word: u128) -> u128 {
    word >> COUNTER_BITS
}

fn pack(key: CounterKey, counter: impl PackedCounter) -> u128 {
    debug_assert_eq!(counter.bits() & !COUNTER_MASK, 0, "a counter has 88 bits");
    tag(key) << COUNTER_BITS | counter.bits()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts until a time.
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Until {
        time: u64,
        count: u64,
    }

    impl PackedCounter for Until {
        fn from_bits(bits: u128) -> Until {
            Until { time: (bits >> 40) as u64, count: bits as u64 & ((1 << 40) - 1) }
        }
        fn bits(self) -> u128 {
            u128::from(self.time) << 40 | u128::from(self.count)
        }
        fn is_live(self, now: u64) -> bool {
            self.time > now
        }
        fn weight(self, _: u64) -> u64 {
            self.count
        }
    }

    fn add(table: &CounterTable<Until>, key: CounterKey, now: u64, time: u64) -> u64 {
        table.update(key, now, |counter| {
            let count = if counter.is_live(now) { counter.count + 1 } else { 1 };
            (Some(Until { time, count }), count)
        })
    }

    #[test]
    fn names_and_values_make_the_key() {
        let table = CounterTable::<Until>::new(0);
        let (a, b) = (name("a"), name("b"));
        assert_eq!(a, name("a"));
        assert_eq!(table.key(a, b"x"), table.key(a, b"x"));
        assert_ne!(table.key(a, b"x"), table.key(b, b"x"));
        assert_ne!(table.key(a, b"x"), table.key(a, b"y"));
    }

    #[test]
    fn the_next_process_goes_on_with_the_counters() {
        let table = CounterTable::<Until>::passed_on("test", 0);
        let key = table.key(name("a"), b"x");
        add(&table, key, 1, 10);
        let passed = hand_over().into_iter().filter(|(kind, _)| *kind == "test");
        let passed: Vec<_> = passed.map(|(kind, file)| (kind.to_owned(), file.try_clone().unwrap().into())).collect();
        assert_eq!(passed.len(), 1);
        take_over(passed);
        let next = CounterTable::<Until>::passed_on("test", 0);
        let in_next = next.key(name("a"), b"x");
        assert_eq!((add(&next, in_next, 1, 10), add(&table, key, 1, 10)), (2, 3), "both count in the same cells");
        assert_eq!(CounterTable::<Until>::passed_on("test", 0).read(key).count, 0, "it is taken over once");
        drop((table, next));
        assert!(hand_over().iter().all(|(kind, _)| *kind != "test"), "dropped tables are not passed on");
    }

    #[test]
    fn the_next_process_gets_all_tables_in_use() {
        let tables = ["several: one", "several: two"].map(|kind| CounterTable::<Until>::passed_on(kind, 0));
        let kinds = hand_over().into_iter().map(|(kind, _)| kind);
        assert_eq!(
            kinds.filter(|kind| kind.starts_with("several")).collect::<Vec<_>>(),
            ["several: one", "several: two"]
        );
        drop(tables);
    }

    #[test]
    fn every_change_counts_whoever_makes_it() {
        const EACH: u64 = 20_000;
        let table = CounterTable::<Until>::new(0);
        let keys: Vec<CounterKey> = (0..50u64).map(|index| table.key(1, &index.to_le_bytes())).collect();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for turn in 0..EACH {
                        add(&table, keys[turn as usize % keys.len()], 1, 10);
                    }
                });
            }
        });
        let total: u64 = keys.iter().map(|&key| table.read(key).count).sum();
        assert_eq!(total, 4 * EACH);
    }

    #[test]
    fn cells_that_say_nothing_any_more_are_used_again() {
        let table = CounterTable::<Until>::new(0);
        let known = table.key(7, b"known");
        add(&table, known, 1, 10_000);
        for round in 0..200u64 {
            for index in 0..100u64 {
                add(&table, table.key(round, &index.to_le_bytes()), 10 * round, 10 * round + 5);
            }
        }
        assert_eq!(table.read(known).count, 1, "nobody had to give way");
    }

    #[test]
    fn least_used_counters_are_replaced_first() {
        let table = CounterTable::<Until>::new(0);
        let busy: Vec<CounterKey> = (0..100u64).map(|index| table.key(1, &index.to_le_bytes())).collect();
        for &key in &busy {
            add(&table, key, 1, 1000);
            add(&table, key, 1, 1000);
        }
        for index in 0..100_000u64 {
            add(&table, table.key(2, &index.to_le_bytes()), 1, 1000);
        }
        assert!(busy.iter().all(|&key| table.read(key).count == 2), "a flood of new keys has no effect on them");
    }
}
