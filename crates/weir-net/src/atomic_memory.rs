//! Numbers that several threads count in, in memory of this process alone or in a mapped file, which outlives the process and is
//! shared with others. They are accessed as atomics only, so that no process has to be trusted with more than wrong numbers.
#![expect(unsafe_code, reason = "a mapping has no type, and zeroed memory no values, until someone vouches for them")]

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::sync::atomic::AtomicU64;

use memmap2::{MmapOptions, MmapRaw};
use portable_atomic::AtomicU128;

/// The memory begins at a multiple of this in a file.
pub const PAGE: usize = 1 << 12;

/// Numbers whose every bit pattern is a value, zero included.
///
/// # Safety
/// That must hold for the type, it may only be changed atomically, and [`PAGE`] must be a multiple of its alignment.
pub unsafe trait AtomicNumber: Sync {}

// SAFETY: it is an integer, changed atomically, and aligned to 8 bytes.
unsafe impl AtomicNumber for AtomicU64 {}
// SAFETY: it is an integer, changed atomically, and aligned to 16 bytes.
unsafe impl AtomicNumber for AtomicU128 {}

/// A list of numbers.
pub struct AtomicMemory<N>(Memory<N>);

enum Memory<N> {
    Heap(Box<[N]>),
    Mapped { map: MmapRaw, at: usize, count: usize },
}

impl<N: AtomicNumber> AtomicMemory<N> {
    /// Memory of this process alone, all zero. A page is allocated when a number in it is first used.
    pub fn zeroed(count: usize) -> AtomicMemory<N> {
        // SAFETY: zero is a value of the type.
        AtomicMemory(Memory::Heap(unsafe { Box::new_zeroed_slice(count).assume_init() }))
    }

    /// Maps `count` numbers that begin at `page` of a file. While they are mapped, the file must not become shorter: accessing
    /// what is missing would end the process with SIGBUS.
    ///
    /// # Errors
    /// The file is too short, or cannot be mapped.
    pub fn mapped(file: &File, page: usize, count: usize) -> io::Result<AtomicMemory<N>> {
        AtomicMemory::of(file, page, count, |options| options.map_raw(file))
    }

    fn of(
        file: &File,
        page: usize,
        count: usize,
        map: impl FnOnce(&mut MmapOptions) -> io::Result<MmapRaw>,
    ) -> io::Result<AtomicMemory<N>> {
        let end = count.checked_mul(size_of::<N>()).zip(page.checked_mul(PAGE)).and_then(|(a, b)| a.checked_add(b));
        let end = end.ok_or(io::ErrorKind::InvalidInput)?;
        if file.metadata()?.len() < end as u64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let map = map(MmapOptions::new().len(end))?;
        Ok(AtomicMemory(Memory::Mapped { map, at: page * PAGE, count }))
    }
}

impl AtomicMemory<AtomicU64> {
    /// Like [`AtomicMemory::mapped`], only to be read: storing a number would end the process. Not for wider numbers, which some
    /// processors read by writing.
    ///
    /// # Errors
    /// The file is too short, or cannot be mapped.
    pub fn read_only(file: &File, page: usize, count: usize) -> io::Result<AtomicMemory<AtomicU64>> {
        AtomicMemory::of(file, page, count, |options| options.map_raw_read_only(file))
    }
}

impl<N: AtomicNumber> Deref for AtomicMemory<N> {
    type Target = [N];

    #[inline]
    fn deref(&self) -> &[N] {
        match &self.0 {
            Memory::Heap(numbers) => numbers,
            // SAFETY: the mapping has `count` numbers from `at` on, begins at a page, and lives as long as `self`; each of their bit
            // patterns is a value, and this process and others change them atomically.
            Memory::Mapped { map, at, count } => unsafe {
                std::slice::from_raw_parts(map.as_ptr().add(*at).cast(), *count)
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use weir_testkit::TempDir;

    use super::*;

    #[test]
    fn two_mappings_of_a_file_are_the_same_numbers() {
        let place = TempDir::new();
        let path = place.write("numbers", vec![0; PAGE + 32]);
        let file = File::options().read(true).write(true).open(path).expect("a file of its own");
        let one = AtomicMemory::<AtomicU128>::mapped(&file, 1, 2).expect("mapped");
        let other = AtomicMemory::<AtomicU64>::read_only(&file, 1, 4).expect("mapped");
        one[1].store(7, Relaxed);
        assert_eq!(other.iter().map(|number| number.load(Relaxed)).collect::<Vec<_>>(), [0, 0, 7, 0]);
        assert!(AtomicMemory::<AtomicU128>::mapped(&file, 1, 3).is_err(), "the file has no third number");
        assert!(AtomicMemory::<AtomicU128>::mapped(&file, usize::MAX, 1).is_err());
    }

    #[test]
    fn memory_of_the_process_is_zero_at_first() {
        let memory = AtomicMemory::<AtomicU64>::zeroed(3);
        assert_eq!((memory.len(), memory.iter().map(|number| number.load(Relaxed)).sum::<u64>()), (3, 0));
    }
}
