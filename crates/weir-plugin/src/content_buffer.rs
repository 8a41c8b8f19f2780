//! Memory for copies of content.
//!
//! A large block of fresh memory costs a page fault for each 4 KiB, which is several times as long as the copy itself, and
//! freeing it gives the pages back to the system. So large buffers are used again, in whichever thread they are dropped.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Buffers with less capacity than this, in bytes, are left to the allocator.
const MIN_REUSED: usize = 64 << 10;
/// The most bytes of all spare buffers of the process.
const MAX_SPARE: usize = 8 << 20;

/// Bytes whose memory is used again if it is large.
#[derive(Debug, Default)]
pub struct ContentBuffer(Vec<u8>);

static SPARE: Mutex<SpareBuffers> = Mutex::new(SpareBuffers { buffers: Vec::new(), bytes: 0 });

#[derive(Default)]
struct SpareBuffers {
    buffers: Vec<Vec<u8>>,
    /// The capacity of all of them.
    bytes: usize,
}

impl SpareBuffers {
    /// A buffer with at least this capacity, and at most twice as much: what is held is counted by its length.
    fn take(&mut self, capacity: usize) -> Option<Vec<u8>> {
        let fits = |buffer: &Vec<u8>| (capacity..=2 * capacity).contains(&buffer.capacity());
        let found = self.buffers.iter().rposition(fits)?;
        let buffer = self.buffers.swap_remove(found);
        self.bytes -= buffer.capacity();
        Some(buffer)
    }

    /// Keeps a buffer; gives it back if there are enough.
    fn keep(&mut self, mut buffer: Vec<u8>) -> Option<Vec<u8>> {
        if self.bytes + buffer.capacity() > MAX_SPARE {
            return Some(buffer);
        }
        buffer.clear();
        self.bytes += buffer.capacity();
        self.buffers.push(buffer);
        None
    }
}

fn spare() -> MutexGuard<'static, SpareBuffers> {
    SPARE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ContentBuffer {
    /// An empty buffer with room for so many bytes.
    pub fn with_capacity(capacity: usize) -> ContentBuffer {
        let reused = if capacity >= MIN_REUSED { spare().take(capacity) } else { None };
        ContentBuffer(reused.unwrap_or_else(|| Vec::with_capacity(capacity)))
    }
}

impl From<Vec<u8>> for ContentBuffer {
    fn from(bytes: Vec<u8>) -> ContentBuffer {
        ContentBuffer(bytes)
    }
}

impl Drop for ContentBuffer {
    fn drop(&mut self) {
        if self.0.capacity() >= MIN_REUSED {
            // One that is not kept is freed after the lock is released.
            let _freed = spare().keep(std::mem::take(&mut self.0));
        }
    }
}

impl Deref for ContentBuffer {
    type Target = Vec<u8>;

    fn deref(&self) -> &Vec<u8> {
        &self.0
    }
}

impl DerefMut for ContentBuffer {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }
}

impl AsRef<[u8]> for ContentBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spare_buffers_are_bounded_and_not_wasted_on_small_content() {
        let mut spare = SpareBuffers::default();
        assert!(spare.keep(Vec::with_capacity(MAX_SPARE + 1)).is_some(), "too large");
        assert!(spare.keep(vec![1; 1 << 20]).is_none());
        assert!(spare.take((1 << 19) - 1).is_none(), "less than half of it would be used");
        assert!(spare.take((1 << 20) + 1).is_none(), "it has no room for that");
        let taken = spare.take(1 << 19).expect("it fits");
        assert!(taken.is_empty() && taken.capacity() == 1 << 20 && spare.bytes == 0);
        while spare.keep(Vec::with_capacity(1 << 20)).is_none() {}
        assert_eq!((spare.bytes, spare.buffers.len()), (MAX_SPARE, 8));
    }
}
