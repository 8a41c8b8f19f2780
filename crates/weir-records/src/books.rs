//! The books of a sink: the number of records at each place and with each outcome.

use serde::Serialize;

/// Records, and the bytes that workers copied for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RecordTally {
    pub records: u64,
    pub bytes: u64,
}

impl RecordTally {
    pub fn one(bytes: u64) -> RecordTally {
        RecordTally { records: 1, bytes }
    }

    pub fn is_zero(self) -> bool {
        self == RecordTally::default()
    }

    pub fn add(&mut self, other: RecordTally) {
        self.records += other.records;
        self.bytes += other.bytes;
    }

    pub fn subtract(&mut self, other: RecordTally) {
        self.records -= other.records;
        self.bytes -= other.bytes;
    }

    /// The difference, or 0 where it would be negative: after a loss of power the numbers may be inconsistent.
    pub fn without(self, other: RecordTally) -> RecordTally {
        RecordTally {
            records: self.records.saturating_sub(other.records),
            bytes: self.bytes.saturating_sub(other.bytes),
        }
    }
}

impl std::iter::Sum for RecordTally {
    fn sum<I: Iterator<Item = RecordTally>>(tallies: I) -> RecordTally {
        tallies.fold(RecordTally::default(), |mut sum, tally| {
            sum.add(tally);
            sum
        })
    }
}

macro_rules! reasons {
    ($(#[doc = $about:literal])* $name:ident { $($(#[doc = $doc:literal])+ $variant:ident = $text:literal,)+ }) => {
        $(#[doc = $about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl $name {
            pub const ALL: &[$name] = &[$($name::$variant,)+];

            pub fn name(self) -> &'static str {
                match self {
                    $($name::$variant => $text,)+
                }
            }
        }
    };
}

reasons! {
    /// Why a record was dropped.
    DropReason {
        /// The memory limit for records was reached.
        MemoryFull = "memory_full",
        /// The spool has reached its maximum size.
        SpoolFull = "spool_full",
        /// It waited longer than `max_age`.
        Expired = "expired",
        /// It is larger than the destination, or the spool, can ever accept.
        Oversize = "oversize",
        /// All allowed tries have failed.
        Retries = "retries",
        /// It could not be read back from the spool.
        Corrupt = "corrupt",
        /// The process ended before it could be delivered.
        Shutdown = "shutdown",
        /// The sink was removed from the configuration before it could be delivered.
        Abandoned = "abandoned",
        /// It was in memory when the process died.
        Crash = "crash",
    }
}

reasons! {
    /// Why a destination rejected a record permanently.
    RejectReason {
        /// Its members do not fit the types of the store's fields.
        Mapping = "mapping",
        /// Its time is too far in the past.
        TooOld = "too_old",
        /// It is larger than the destination accepts.
        TooLarge = "too_large",
        /// Another reason.
        Invalid = "invalid",
    }
}

/// The numbers of one sink. Moving a record from one place to another changes two of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Books {
    /// All records taken out of rings.
    pub drained: RecordTally,
    /// Of those drained: records moved to another account.
    pub moved: RecordTally,
    /// In the queue in memory.
    pub queued: RecordTally,
    /// On disk.
    pub spooled: RecordTally,
    /// In a batch that is being sent.
    pub inflight: RecordTally,
    pub delivered: RecordTally,
    /// Of those delivered: records that the store had already.
    pub duplicates: RecordTally,
    pub rejected: [RecordTally; RejectReason::ALL.len()],
    pub dropped: [RecordTally; DropReason::ALL.len()],
    /// All records in the spool up to this number are settled.
    pub spool_done: u64,
}

/// The size of serialised books, in 64-bit words.
pub(crate) const WORDS: usize = 64;

impl Books {
    pub fn drop_from(&mut self, place: fn(&mut Books) -> &mut RecordTally, reason: DropReason, tally: RecordTally) {
        place(self).subtract(tally);
        self.dropped[reason as usize].add(tally);
    }

    pub fn dropped(&self) -> RecordTally {
        self.dropped.iter().copied().sum()
    }

    pub fn rejected(&self) -> RecordTally {
        self.rejected.iter().copied().sum()
    }

    fn tallies(&mut self) -> impl Iterator<Item = &mut RecordTally> {
        let Books { drained, moved, queued, spooled, inflight, delivered, duplicates, rejected, dropped, .. } = self;
        [drained, moved, queued, spooled, inflight, delivered, duplicates].into_iter().chain(rejected).chain(dropped)
    }

    pub fn to_words(&self) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        words[0] = self.spool_done;
        for (tally, words) in self.clone().tallies().zip(words[2..].chunks_exact_mut(2)) {
            (words[0], words[1]) = (tally.records, tally.bytes);
        }
        words
    }

    pub fn from_words(words: &[u64; WORDS]) -> Books {
        let mut books = Books { spool_done: words[0], ..Books::default() };
        for (tally, words) in books.tallies().zip(words[2..].chunks_exact(2)) {
            *tally = RecordTally { records: words[0], bytes: words[1] };
        }
        books
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn books_survive_being_written_down() {
        let mut books = Books { spool_done: 7, ..Books::default() };
        for (number, tally) in (1..).zip(books.tallies()) {
            *tally = RecordTally { records: number, bytes: 100 * number };
        }
        let words = books.to_words();
        assert_eq!(Books::from_words(&words), books);
        assert!(2 + 2 * books.tallies().count() <= WORDS);
    }
}
