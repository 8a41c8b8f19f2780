//! The account of a sink: the outcome of every record.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::books::{Books, DropReason, RecordTally, RejectReason};
use crate::cells::{Cells, MAX_SLOTS, Slot};

/// The account of a sink. Each worker counts the records it hands over, in a slot of its own; the sink counts the rest.
pub struct RecordAccount {
    name: String,
    cells: Cells,
    state: Mutex<AccountState>,
}

struct AccountState {
    books: Books,
    /// Slots that were given back.
    free: Vec<usize>,
    used: usize,
    last_error: Option<String>,
    next_attempt: Option<SystemTime>,
}

/// An account at one moment. It always balances: `accepted = delivered + rejected + dropped + pending`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AccountReading {
    pub name: String,
    pub plugin: String,
    pub accepted: RecordTally,
    pub delivered: RecordTally,
    /// Of the delivered records, those that the store had already.
    pub duplicates: RecordTally,
    pub rejected: Settled,
    pub dropped: Settled,
    pub pending: Pending,
    pub last_error: Option<String>,
    /// Records wait on disk, and no sink of the process sends them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_orphaned: bool,
    /// Whether [`crate::SinkRegister::send_test`] can send a test record.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub takes_tests: bool,
    /// When a batch that was not delivered is sent again, in milliseconds since 1970; `None` if none waits.
    pub next_attempt_ms: Option<u64>,
}

/// Tallies by reason.
pub type Settled = BTreeMap<&'static str, RecordTally>;

/// Pending records, by where they wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pending {
    pub memory: RecordTally,
    pub spool: RecordTally,
    pub inflight: RecordTally,
}

impl AccountReading {
    pub fn dropped_records(&self, reason: &str) -> u64 {
        self.dropped.get(reason).map_or(0, |tally| tally.records)
    }

    pub fn balances(&self) -> bool {
        let settled = self.rejected.values().chain(self.dropped.values()).copied();
        let Pending { memory, spool, inflight } = self.pending;
        self.accepted == settled.chain([self.delivered, memory, spool, inflight]).sum()
    }

    /// The sum with another account of the same name.
    pub fn add(&mut self, other: AccountReading) {
        self.accepted.add(other.accepted);
        self.delivered.add(other.delivered);
        self.duplicates.add(other.duplicates);
        for (mine, others) in [(&mut self.rejected, other.rejected), (&mut self.dropped, other.dropped)] {
            for (reason, tally) in others {
                mine.entry(reason).or_default().add(tally);
            }
        }
        self.pending.memory.add(other.pending.memory);
        self.pending.spool.add(other.pending.spool);
        self.pending.inflight.add(other.pending.inflight);
        self.last_error = other.last_error.or(self.last_error.take());
        self.next_attempt_ms = self.next_attempt_ms.into_iter().chain(other.next_attempt_ms).min();
    }
}

impl RecordAccount {
    pub fn in_memory(name: &str) -> RecordAccount {
        RecordAccount::of(name, Cells::in_memory())
    }

    /// Continues an account from the numbers in `cells`. Records that were in memory when the previous process ended are lost,
    /// and booked as dropped with this reason; `spooled` are those found on disk.
    pub fn of_cells(name: &str, cells: Cells, spooled: RecordTally, reason: DropReason) -> RecordAccount {
        let account = RecordAccount::of(name, cells);
        let reserve = account.slot(MAX_SLOTS - 1);
        account.change(|books, (accepted, refused)| {
            let settled = [books.delivered, books.rejected(), books.dropped(), books.moved, spooled].into_iter().sum();
            let handed_over = accepted.without(refused);
            let lost = handed_over.without(settled);
            // After a loss of power, workers' counts may be older than the books and the records on disk, or be missing.
            let uncounted = settled.without(handed_over);
            reserve.accept_all(uncounted);
            books.drained = handed_over;
            books.drained.add(uncounted);
            (books.queued, books.inflight, books.spooled) = (RecordTally::default(), RecordTally::default(), spooled);
            books.dropped[reason as usize].add(lost);
        });
        account
    }

    pub(crate) fn of(name: &str, cells: Cells) -> RecordAccount {
        let books = cells.books();
        let state = AccountState { books, free: Vec::new(), used: 0, last_error: None, next_attempt: None };
        RecordAccount { name: name.to_owned(), cells, state: Mutex::new(state) }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    fn lock(&self) -> MutexGuard<'_, AccountState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Assigns a slot to the calling thread; `None` if all are used.
    pub(crate) fn take_slot(&self) -> Option<usize> {
        let mut state = self.lock();
        let fresh = (state.used < MAX_SLOTS - 1).then_some(state.used);
        state.free.pop().or_else(|| {
            state.used += usize::from(fresh.is_some());
            fresh
        })
    }

    /// Counts a dropped record of a thread without a slot; its bytes are not known.
    pub(crate) fn count_lost(&self) {
        self.book(|_| {
            let slot = self.slot(MAX_SLOTS - 1);
            slot.accept(0);
            slot.refuse(0);
        });
    }

    /// Moves records that were counted in another account to this one.
    pub(crate) fn take_over(&self, other: &RecordAccount, tally: RecordTally) {
        self.book(|_| self.slot(MAX_SLOTS - 1).accept_all(tally));
        other.book(|books| {
            books.drained.add(tally);
            books.moved.add(tally);
        });
    }

    /// Frees a slot. Its counts remain.
    pub(crate) fn give_back_slot(&self, slot: usize) {
        self.lock().free.push(slot);
    }

    #[inline]
    pub(crate) fn slot(&self, number: usize) -> Slot<'_> {
        self.cells.slot(number)
    }

    /// Changes the books under the lock, so that readers never see half a change.
    pub(crate) fn book<T>(&self, change: impl FnOnce(&mut Books) -> T) -> T {
        let mut state = self.lock();
        let result = change(&mut state.books);
        self.cells.write_books(&state.books);
        result
    }

    fn change(&self, change: impl FnOnce(&mut Books, (RecordTally, RecordTally))) {
        let counted = self.cells.counted();
        self.book(|books| change(books, counted));
    }

    /// Sets the last error; `None` after a success.
    pub(crate) fn set_error(&self, error: Option<&str>) {
        let mut state = self.lock();
        if state.last_error.as_deref() != error {
            state.last_error = error.map(str::to_owned);
        }
    }

    pub(crate) fn last_error(&self) -> Option<String> {
        self.lock().last_error.clone()
    }

    /// Sets when a batch is sent again; `None` when it is.
    pub(crate) fn set_next_attempt(&self, at: Option<SystemTime>) {
        self.lock().next_attempt = at;
    }

    /// Reads the account at this moment.
    pub fn read(&self) -> AccountReading {
        let state = self.lock();
        let books = &state.books;
        let (counted, refused) = self.cells.counted();
        let accepted = counted.without(books.moved);
        let by_reason = |names: Vec<&'static str>, tallies: &[RecordTally]| -> Settled {
            names.into_iter().zip(tallies.iter().copied()).filter(|(_, tally)| !tally.is_zero()).collect()
        };
        let mut dropped = by_reason(DropReason::ALL.iter().map(|reason| reason.name()).collect(), &books.dropped);
        if !refused.is_zero() {
            dropped.entry(DropReason::MemoryFull.name()).or_default().add(refused);
        }
        // Records that workers have handed over and the sink has not drained yet.
        let mut memory = counted.without(refused).without(books.drained);
        memory.add(books.queued);
        AccountReading {
            name: self.name.clone(),
            plugin: self.name.split(' ').next().unwrap_or_default().to_owned(),
            accepted,
            delivered: books.delivered,
            duplicates: books.duplicates,
            rejected: by_reason(RejectReason::ALL.iter().map(|reason| reason.name()).collect(), &books.rejected),
            dropped,
            pending: Pending { memory, spool: books.spooled, inflight: books.inflight },
            last_error: state.last_error.clone(),
            is_orphaned: false,
            takes_tests: false,
            next_attempt_ms: state.next_attempt.map(|at| {
                let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
                u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_lost_in_a_crash_are_booked() {
        let cells = Cells::in_memory();
        (0..10).for_each(|_| cells.slot(0).accept(5));
        cells.slot(0).refuse(5);
        let tally = |records| RecordTally { records, bytes: 5 * records };
        let books = Books {
            drained: tally(8),
            queued: tally(1),
            inflight: tally(2),
            spooled: tally(3),
            delivered: tally(2),
            ..Books::default()
        };
        cells.write_books(&books);
        let reading = RecordAccount::of("a", cells).read();
        assert!(reading.balances(), "{reading:?}");
        let cells = Cells::in_memory();
        (0..10).for_each(|_| cells.slot(0).accept(5));
        cells.slot(0).refuse(5);
        cells.write_books(&books);
        let reading = RecordAccount::of_cells("a", cells, tally(4), DropReason::Crash).read();
        assert!(reading.balances(), "{reading:?}");
        assert_eq!((reading.dropped_records("crash"), reading.pending.spool.records), (3, 4));
    }

    #[test]
    fn an_account_whose_counts_are_lost_balances() {
        let tally = |records| RecordTally { records, bytes: 5 * records };
        let cells = Cells::in_memory();
        (0..3).for_each(|_| cells.slot(0).accept(5));
        cells.write_books(&Books { delivered: tally(4), ..Books::default() });
        let reading = RecordAccount::of_cells("a", cells, tally(7), DropReason::Crash).read();
        assert!(reading.balances(), "{reading:?}");
        assert_eq!((reading.accepted.records, reading.dropped.len()), (11, 0));
    }
}
