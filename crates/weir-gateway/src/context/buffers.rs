//! The buffers of a worker. They are lent for one step of work, so that an idle connection owns none.

use std::cell::{Cell, RefCell};

use super::pipes::Pipes;
use super::served_exchange::{CarriedExchange, ServedExchange};

/// The most bytes read from a socket at once.
pub(crate) const READ_BYTES: usize = 64 * 1024;
/// The most exchanges, and the most buffers, that are kept for reuse; any beyond that are freed.
const KEEP: usize = 512;
/// The most bytes of all spare buffers together: a burst may need many large ones, and must not keep them for ever.
const SPARE_BYTES: usize = 4 << 20;
/// An exchange that has grown larger than this, in bytes, is freed: few do, and a client could make all of them so large.
const KEPT_EXCHANGE: usize = 32 * 1024;

pub(crate) struct Buffers {
    read: RefCell<Box<[u8]>>,
    write: RefCell<Vec<u8>>,
    // Boxed, since they are handed out: moving an exchange would copy half a kilobyte.
    #[allow(clippy::vec_box)]
    exchanges: RefCell<Vec<Box<ServedExchange>>>,
    spare: RefCell<Vec<Vec<u8>>>,
    /// The capacity of all spare buffers, in bytes.
    spare_bytes: Cell<usize>,
    pub pipes: Pipes,
}

#[cfg(test)]
impl Default for Buffers {
    fn default() -> Buffers {
        Buffers::new(super::pipes::PIPES)
    }
}

impl Buffers {
    /// `pipes`: the most pipes of the worker.
    pub(super) fn new(pipes: usize) -> Buffers {
        Buffers {
            read: RefCell::new(vec![0; READ_BYTES].into_boxed_slice()),
            write: RefCell::new(Vec::with_capacity(2 * READ_BYTES)),
            exchanges: RefCell::default(),
            spare: RefCell::default(),
            spare_bytes: Cell::new(0),
            pipes: Pipes::new(pipes),
        }
    }

    /// Lends the worker's read buffer; it must not be held across an `await`.
    pub(crate) fn with_read_buffer<T>(&self, read: impl FnOnce(&mut [u8]) -> T) -> T {
        read(&mut self.read.borrow_mut())
    }

    /// Lends an empty buffer to write into; it must not be held across an `await`.
    pub(crate) fn with_write_buffer<T>(&self, write: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let mut buffer = self.write.borrow_mut();
        buffer.clear();
        write(&mut buffer)
    }

    pub(crate) fn take_exchange(&self) -> Box<ServedExchange> {
        self.exchanges.borrow_mut().pop().unwrap_or_default()
    }

    pub(crate) fn recycle_exchange(&self, mut exchange: Box<ServedExchange>) {
        exchange.clear();
        let mut exchanges = self.exchanges.borrow_mut();
        if exchanges.len() < KEEP && exchange.capacity() <= KEPT_EXCHANGE {
            exchanges.push(exchange);
        }
    }

    /// Takes from the exchange of a stream what is needed while its bytes are carried; another one can use the rest.
    pub(crate) fn put_stream_aside(&self, mut exchange: Box<ServedExchange>) -> CarriedExchange {
        let stream = exchange.take_stream();
        self.recycle_exchange(exchange);
        stream
    }

    /// Keeps bytes that a peer does not take yet, or that are not a complete head yet.
    pub(crate) fn append_unread(&self, stash: &mut Vec<u8>, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.lend(stash);
        stash.extend_from_slice(bytes);
    }

    /// Gives a spare buffer's memory to a buffer that has none and is about to be filled.
    pub(crate) fn lend(&self, buffer: &mut Vec<u8>) {
        if buffer.capacity() == 0
            && let Some(other) = self.spare.borrow_mut().pop()
        {
            self.spare_bytes.set(self.spare_bytes.get() - other.capacity());
            *buffer = other;
        }
    }

    /// Removes the first `count` bytes of a stash. A stash that becomes empty gives its memory back: idle connections own
    /// none.
    pub(crate) fn consume(&self, stash: &mut Vec<u8>, count: usize) {
        if count < stash.len() {
            stash.drain(..count);
            return;
        }
        self.release(stash);
    }

    pub(crate) fn release(&self, stash: &mut Vec<u8>) {
        if stash.capacity() == 0 {
            return;
        }
        let mut buffer = std::mem::take(stash);
        let (mut spare, bytes) = (self.spare.borrow_mut(), self.spare_bytes.get() + buffer.capacity());
        if spare.len() < KEEP && buffer.capacity() <= 2 * READ_BYTES && bytes <= SPARE_BYTES {
            self.spare_bytes.set(bytes);
            buffer.clear();
            spare.push(buffer);
        }
    }
}
