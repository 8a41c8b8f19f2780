//! The numbers of a sink in memory that several threads, and the next process, can read.
//!
//! Workers count in slots of their own with plain stores. The books are written to two copies in turn, and one number selects the
//! valid copy, so that the books stay consistent even if the process dies at any instruction. In a memory-mapped file, the
//! numbers outlive the process; a loss of power may lose the latest changes.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use weir_net::atomic_memory::AtomicMemory;

use crate::books::{Books, RecordTally, WORDS};

/// The first number of a file: its type and version.
const MAGIC: u64 = 0x5745_4952_4143_0001;
const COPIES: usize = 8;
const SLOTS: usize = COPIES + 2 * WORDS;
/// The most threads that write records to one sink at a time.
pub(crate) const MAX_SLOTS: usize = 512;
/// A slot fills a cache line, so that workers do not share one.
const SLOT_WORDS: usize = 8;
const LENGTH: usize = SLOTS + MAX_SLOTS * SLOT_WORDS;

pub struct Cells(AtomicMemory<AtomicU64>);

impl Deref for Cells {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        &self.0
    }
}

impl Cells {
    pub fn in_memory() -> Cells {
        Cells(AtomicMemory::zeroed(LENGTH))
    }

    /// Maps a file, with its numbers. A file with another length or beginning is initialised.
    ///
    /// # Errors
    /// The file cannot be mapped.
    pub fn mapped(file: &File) -> io::Result<Cells> {
        let bytes = (LENGTH * size_of::<u64>()) as u64;
        if file.metadata()?.len() != bytes {
            file.set_len(0)?;
            // Written instead of only extended: storing to a page for which the disk has no room would kill the process (SIGBUS).
            file.write_all_at(&vec![0; bytes as usize], 0)?;
        }
        let cells = Cells(AtomicMemory::mapped(file, 0, LENGTH)?);
        if cells[0].load(Ordering::Relaxed) != MAGIC {
            cells.iter().for_each(|word| word.store(0, Ordering::Relaxed));
            cells[0].store(MAGIC, Ordering::Relaxed);
        }
        Ok(cells)
    }

    /// Maps the file of another process, read-only. `None` if it is not such a file.
    ///
    /// # Errors
    /// The file cannot be mapped.
    pub fn read_only(file: &File) -> io::Result<Option<Cells>> {
        if file.metadata()?.len() != (LENGTH * size_of::<u64>()) as u64 {
            return Ok(None);
        }
        let cells = Cells(AtomicMemory::read_only(file, 0, LENGTH)?);
        Ok((cells[0].load(Ordering::Relaxed) == MAGIC).then_some(cells))
    }

    /// The books as they were last written.
    pub fn books(&self) -> Books {
        let copy = self[1].load(Ordering::Acquire) as usize % 2;
        let begin = COPIES + copy * WORDS;
        Books::from_words(&std::array::from_fn(|index| self[begin + index].load(Ordering::Relaxed)))
    }

    /// Writes the books. Only one thread at a time may call this.
    pub fn write_books(&self, books: &Books) {
        let copy = (self[1].load(Ordering::Relaxed) as usize + 1) % 2;
        let begin = COPIES + copy * WORDS;
        for (word, cell) in books.to_words().into_iter().zip(&self[begin..begin + WORDS]) {
            cell.store(word, Ordering::Relaxed);
        }
        self[1].store(copy as u64, Ordering::Release);
    }

    pub fn slot(&self, number: usize) -> Slot<'_> {
        let begin = SLOTS + number * SLOT_WORDS;
        Slot(self[begin..begin + SLOT_WORDS].try_into().expect("a slot has as many words"))
    }

    /// The sums over all slots: accepted records, and those of them that a full ring refused.
    pub fn counted(&self) -> (RecordTally, RecordTally) {
        let (mut accepted, mut refused) = (RecordTally::default(), RecordTally::default());
        for number in 0..MAX_SLOTS {
            let slot = self.slot(number);
            // Refused records are read first, so that they never exceed the accepted ones.
            refused.add(slot.refused());
            accepted.add(slot.accepted());
        }
        (accepted, refused)
    }
}

/// The numbers that one thread increments. Other threads only read them.
#[derive(Clone, Copy)]
pub struct Slot<'a>(&'a [AtomicU64; SLOT_WORDS]);

impl Slot<'_> {
    pub fn accept(self, bytes: u64) {
        add(&self.0[1], bytes);
        add(&self.0[0], 1);
    }

    pub fn accept_all(self, tally: RecordTally) {
        add(&self.0[1], tally.bytes);
        add(&self.0[0], tally.records);
    }

    pub fn refuse(self, bytes: u64) {
        add(&self.0[3], bytes);
        add(&self.0[2], 1);
    }

    fn accepted(self) -> RecordTally {
        self.read(0)
    }

    fn refused(self) -> RecordTally {
        self.read(2)
    }

    fn read(self, at: usize) -> RecordTally {
        RecordTally { records: self.0[at].load(Ordering::Acquire), bytes: self.0[at + 1].load(Ordering::Acquire) }
    }
}

/// Without a locked instruction, since each cell has a single writer.
fn add(cell: &AtomicU64, more: u64) {
    cell.store(cell.load(Ordering::Relaxed) + more, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapped_file_keeps_the_numbers() {
        let directory = weir_testkit::TempDir::new();
        let path = directory.path().join("account");
        let open = || {
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(false).open(&path).expect("its own directory")
        };
        let cells = Cells::mapped(&open()).expect("mapped");
        cells.slot(3).accept(10);
        cells.slot(3).accept(10);
        cells.slot(500).refuse(7);
        let books = Books { spool_done: 5, delivered: RecordTally::one(10), ..Books::default() };
        cells.write_books(&Books::default());
        cells.write_books(&books);
        drop(cells);
        let cells = Cells::mapped(&open()).expect("mapped");
        assert_eq!(cells.books(), books);
        assert_eq!(cells.counted(), (RecordTally { records: 2, bytes: 20 }, RecordTally::one(7)));
        open().set_len(17).expect("its own file");
        assert_eq!(Cells::mapped(&open()).expect("mapped").books(), Books::default());
    }
}
