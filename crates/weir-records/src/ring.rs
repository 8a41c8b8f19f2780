//! The ring of bytes through which a worker hands records to a sink: one for each pair of worker and sink.
//!
//! Message content, which is large, is not copied into the ring: its buffers are passed through a channel beside it.
//!
//! A ring has room for some milliseconds of traffic. A sink's thread that does not run for longer, because it encodes a large
//! batch or because the processors are busy, must not cost records: a full ring continues in a further one. The records in
//! there, and content beyond a limit, are counted in the sink's memory ([`SinkMemory`]) from the time they are written; all
//! others from the time the sink takes them.

use std::cell::RefCell;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use rtrb::{Consumer, Producer, RingBuffer};

use crate::account::RecordAccount;
use crate::memory::SinkMemory;

/// The capacity in bytes. Pages are touched only as they are used.
pub(crate) const RING_BYTES: usize = 1 << 20;
/// The most bytes of content beside the ring that are not counted in the sink's memory.
const ATTACHED_BYTES: u64 = 16 << 20;
/// The size at first of the buffer for a record.
const SCRATCH_BYTES: usize = 4096;
/// The header of a record: its length and flags, and the number of records refused before it.
const HEADER_BYTES: usize = 8;
/// The record has attachments.
const HAS_ATTACHMENTS: u32 = 1;
/// The record is counted in the sink's memory.
const IS_COUNTED: u32 = 2;
/// The flags take the lowest bits of the word.
const FLAG_BITS: u32 = 2;
const MAX_RECORD_BYTES: usize = 1 << (32 - FLAG_BITS);

/// Content that belongs to a record. What owns its memory, and counts it, is dropped with the record.
pub struct Attachment(Box<dyn AsRef<[u8]> + Send>);

impl Attachment {
    pub fn new(content: impl AsRef<[u8]> + Send + 'static) -> Attachment {
        Attachment(Box::new(content))
    }
}

impl Deref for Attachment {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

impl fmt::Debug for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attachment").field("bytes", &self.len()).finish_non_exhaustive()
    }
}

/// Counters of both ends of a ring.
#[derive(Default)]
struct RingCounters {
    /// Bytes of content that the sink has not taken yet and that are not counted in its memory.
    attached: AtomicU64,
    /// Records that are counted in the sink's memory and that it has not taken yet. While there are any, all new ones are.
    counted: AtomicUsize,
}

/// The worker's end of a ring.
pub struct RingWriter {
    state: RefCell<WriterState>,
    account: Arc<RecordAccount>,
    slot: usize,
}

struct WriterState {
    ring: Producer<u8>,
    attachments: Sender<Vec<Attachment>>,
    further: Sender<Consumer<u8>>,
    counters: Arc<RingCounters>,
    memory: Arc<SinkMemory>,
    /// Records refused since the last record that was accepted.
    refused: u32,
    scratch: Vec<u8>,
}

impl RingWriter {
    /// Copies a record into the ring, or counts that there was no room. `write` appends the record to the given buffer.
    pub fn write(&self, attachments: Vec<Attachment>, write: impl FnOnce(&mut Vec<u8>)) {
        self.offer(attachments, write);
    }

    /// The same; returns whether there was room.
    pub(crate) fn offer(&self, attachments: Vec<Attachment>, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        state.scratch.clear();
        state.scratch.extend_from_slice(&[0; HEADER_BYTES]);
        write(&mut state.scratch);
        let attached = attached_bytes(&attachments);
        let bytes = (state.scratch.len() - HEADER_BYTES + attached) as u64;
        let slot = self.account.slot(self.slot);
        // Counted before the sink can see the record, so that it never sees more records than were accepted.
        slot.accept(bytes);
        let is_taken = state.hand_over(attachments, attached as u64);
        match is_taken {
            true => state.refused = 0,
            false => {
                state.refused = state.refused.saturating_add(1);
                slot.refuse(bytes);
            }
        }
        is_taken
    }

    /// Bytes of content that the sink has not taken yet and that are not counted in its memory.
    pub fn attached_bytes(&self) -> u64 {
        self.state.borrow().counters.attached.load(Ordering::Relaxed)
    }
}

impl WriterState {
    /// Passes the record in `scratch` to the sink; `false` if there is no room for it.
    fn hand_over(&mut self, attachments: Vec<Attachment>, attached: u64) -> bool {
        let length = self.scratch.len() - HEADER_BYTES;
        let has_room = self.ring.slots() >= self.scratch.len();
        let is_free = has_room
            && self.counters.counted.load(Ordering::Relaxed) == 0
            && (attached == 0 || self.counters.attached.load(Ordering::Relaxed) + attached <= ATTACHED_BYTES);
        if length >= MAX_RECORD_BYTES || !is_free && !self.take_memory(length as u64 + attached, has_room) {
            return false;
        }
        let has_attachments = if attachments.is_empty() { 0 } else { HAS_ATTACHMENTS };
        let word = (length as u32) << FLAG_BITS | has_attachments | if is_free { 0 } else { IS_COUNTED };
        self.scratch[..4].copy_from_slice(&word.to_le_bytes());
        self.scratch[4..HEADER_BYTES].copy_from_slice(&self.refused.to_le_bytes());
        if is_free && attached > 0 {
            self.counters.attached.fetch_add(attached, Ordering::Relaxed);
        }
        // Attachments are sent before the record, whose header announces them. Sending fails only if the sink's task has
        // panicked: the record then stays in the ring, as those before it.
        if !attachments.is_empty() {
            let _ = self.attachments.send(attachments);
        }
        let is_taken = self.ring.push_entire_slice(&self.scratch).is_ok();
        if !is_free && self.scratch.capacity() > RING_BYTES {
            self.scratch = Vec::with_capacity(SCRATCH_BYTES);
        }
        is_taken
    }

    /// Reserves memory for a record, and begins a further ring if it does not fit into the current one.
    #[cold]
    fn take_memory(&mut self, bytes: u64, has_room: bool) -> bool {
        if !self.memory.take(bytes) {
            return false;
        }
        if !has_room {
            let (producer, consumer) = RingBuffer::new(RING_BYTES.max(self.scratch.len()));
            if self.further.send(consumer).is_err() {
                // The sink's task has panicked.
                self.memory.give(bytes);
                return false;
            }
            // After this, the sink sees that the previous ring has ended, and finds the further one.
            self.ring = producer;
        }
        self.counters.counted.fetch_add(1, Ordering::Relaxed);
        true
    }
}

impl Drop for RingWriter {
    fn drop(&mut self) {
        self.account.give_back_slot(self.slot);
    }
}

/// The sink's end of a ring.
pub(crate) struct RingReader {
    ring: Consumer<u8>,
    attachments: Receiver<Vec<Attachment>>,
    further: Receiver<Consumer<u8>>,
    counters: Arc<RingCounters>,
    /// A record that was put back.
    next: Option<RingTake>,
    /// The account in which the ring's records are counted.
    account: Arc<RecordAccount>,
}

/// A record taken out of a ring.
pub(crate) struct RingTake {
    pub payload: Vec<u8>,
    pub attachments: Vec<Attachment>,
    /// Records of this worker that were refused since the previous one.
    pub refused: u32,
    /// The record is counted in the sink's memory already.
    pub is_counted: bool,
}

impl RingTake {
    pub(crate) fn bytes(&self) -> u64 {
        (self.payload.len() + attached_bytes(&self.attachments)) as u64
    }
}

fn attached_bytes(attachments: &[Attachment]) -> usize {
    attachments.iter().map(|attachment| attachment.len()).sum()
}

impl RingReader {
    pub(crate) fn take(&mut self) -> Option<RingTake> {
        if let Some(next) = self.next.take() {
            return Some(next);
        }
        let mut header = [0; HEADER_BYTES];
        while self.ring.pop_entire_slice(&mut header).is_err() {
            self.go_on()?;
        }
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
        let mut payload = vec![0; (word(0) >> FLAG_BITS) as usize];
        self.ring.pop_entire_slice(&mut payload).expect("a record is written whole");
        let attachments = match word(0) & HAS_ATTACHMENTS {
            0 => Vec::new(),
            _ => self.attachments.recv().expect("attachments come before their record"),
        };
        let is_counted = word(0) & IS_COUNTED != 0;
        if is_counted {
            self.counters.counted.fetch_sub(1, Ordering::Relaxed);
        } else if !attachments.is_empty() {
            self.counters.attached.fetch_sub(attached_bytes(&attachments) as u64, Ordering::Relaxed);
        }
        Some(RingTake { payload, attachments, refused: word(4), is_counted })
    }

    /// Goes on to the further ring, if the current one has ended; `None` if there is nothing to read.
    fn go_on(&mut self) -> Option<()> {
        // In this order, so that no record written before the writer left the ring is missed.
        if !self.ring.is_abandoned() || !self.ring.is_empty() {
            return (!self.ring.is_empty()).then_some(());
        }
        self.ring = self.further.try_recv().ok()?;
        Some(())
    }

    /// Puts back the record that was taken last: the next one to take.
    pub(crate) fn put_back(&mut self, taken: RingTake) {
        self.next = Some(taken);
    }

    /// Whether there are records to take that are counted in the sink's memory already.
    pub(crate) fn has_counted(&self) -> bool {
        self.counters.counted.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn account(&self) -> &Arc<RecordAccount> {
        &self.account
    }

    /// Whether there is nothing to take now. Further rings are begun by [`RingReader::take`], which comes before.
    pub(crate) fn is_empty(&self) -> bool {
        self.next.is_none() && self.ring.is_empty()
    }

    /// Whether no more records will come.
    pub(crate) fn has_ended(&mut self) -> bool {
        // In this order, so that no record written before the writer was dropped is missed.
        self.next.is_none() && self.ring.is_abandoned() && self.ring.is_empty() && self.go_on().is_none()
    }
}

/// Creates a ring for the calling thread, if the account has a free slot.
pub(crate) fn new_ring(account: &Arc<RecordAccount>, memory: &Arc<SinkMemory>) -> Option<(RingWriter, RingReader)> {
    let slot = account.take_slot()?;
    let (producer, consumer) = RingBuffer::new(RING_BYTES);
    let ((attachments, attached), (further, rings)) = (channel(), channel());
    let counters = Arc::new(RingCounters::default());
    let state = WriterState {
        ring: producer,
        attachments,
        further,
        counters: Arc::clone(&counters),
        memory: Arc::clone(memory),
        refused: 0,
        scratch: Vec::with_capacity(SCRATCH_BYTES),
    };
    let writer = RingWriter { state: RefCell::new(state), account: Arc::clone(account), slot };
    let account = Arc::clone(account);
    Some((writer, RingReader { ring: consumer, attachments: attached, further: rings, counters, next: None, account }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::register::{SinkLimits, SinkRegister};

    /// The memory of a sink with this limit.
    fn memory(sink_memory: u64) -> (Arc<SinkRegister>, Arc<SinkMemory>) {
        let register = Arc::new(SinkRegister::default());
        register.set_limits(SinkLimits { sink_memory, ..SinkLimits::default() });
        (Arc::clone(&register), Arc::new(SinkMemory::new(Arc::clone(&register.memory))))
    }

    fn attachment(bytes: usize) -> Attachment {
        Attachment::new(vec![7; bytes])
    }

    #[test]
    fn records_come_out_as_they_went_in() {
        let account = Arc::new(RecordAccount::in_memory("test"));
        let (writer, mut reader) = new_ring(&account, &memory(0).1).expect("a slot");
        writer.write(Vec::new(), |out| out.extend_from_slice(b"one"));
        writer.write(vec![attachment(4)], |out| out.extend_from_slice(b"two"));
        let taken = reader.take().expect("one");
        assert_eq!((&*taken.payload, taken.attachments.len(), taken.refused), (&b"one"[..], 0, 0));
        let taken = reader.take().expect("two");
        assert_eq!((&*taken.payload, &*taken.attachments[0], taken.is_counted), (&b"two"[..], &[7; 4][..], false));
        assert!(reader.take().is_none() && !reader.has_ended());
        drop(writer);
        assert!(reader.has_ended());
    }

    #[test]
    fn a_full_ring_goes_on_in_another_until_the_memory_is_full() {
        let account = Arc::new(RecordAccount::in_memory("test"));
        let (register, memory) = memory(2 << 20);
        let (writer, mut reader) = new_ring(&account, &memory).expect("a slot");
        // Three fit into the first ring, with their headers, and eight into the memory.
        let write = |byte| writer.write(Vec::new(), |out| out.resize(out.len() + RING_BYTES / 4, byte));
        (1..=13).for_each(write);
        assert_eq!((account.read().dropped_records("memory_full"), register.memory.in_use()), (2, 2 << 20));
        for byte in 1..=11 {
            let taken = reader.take().expect("they come in order");
            assert_eq!((taken.payload[0], taken.is_counted, taken.refused), (byte, byte > 3, 0));
            if taken.is_counted {
                memory.give(taken.bytes());
            }
        }
        assert!(reader.take().is_none());
        write(14);
        let taken = reader.take().expect("it has room again");
        assert_eq!((taken.payload[0], taken.is_counted, taken.refused), (14, false, 2));
        drop(writer);
        assert!(reader.has_ended());
        assert_eq!(register.memory.in_use(), 0);
    }

    #[test]
    fn content_beside_the_ring_is_limited_by_the_memory_too() {
        let account = Arc::new(RecordAccount::in_memory("test"));
        let (register, memory) = memory(8 << 20);
        let (writer, mut reader) = new_ring(&account, &memory).expect("a slot");
        for _ in 0..14 {
            writer.write(vec![attachment((2 << 20) - 1)], |out| out.push(b'x'));
        }
        assert_eq!((account.read().dropped_records("memory_full"), register.memory.in_use()), (2, 8 << 20));
        let taken: Vec<_> = std::iter::from_fn(|| reader.take()).map(|taken| taken.is_counted).collect();
        assert_eq!(taken, [[false; 8].as_slice(), &[true; 4]].concat());
        // A record that is larger than a ring.
        memory.give(8 << 20);
        writer.write(Vec::new(), |out| out.resize(out.len() + 3 * RING_BYTES, b'x'));
        assert_eq!(reader.take().expect("it has a ring of its own").payload.len(), 3 * RING_BYTES);
    }

    #[test]
    fn a_writer_that_ends_leaves_its_rings_to_be_read() {
        let account = Arc::new(RecordAccount::in_memory("test"));
        let (register, memory) = memory(8 << 20);
        let (writer, mut reader) = new_ring(&account, &memory).expect("a slot");
        (0..9).for_each(|byte| writer.write(Vec::new(), |out| out.resize(out.len() + RING_BYTES / 2, byte)));
        drop(writer);
        for byte in 0..9 {
            assert!(!reader.has_ended());
            assert_eq!(reader.take().expect("they are all there").payload[0], byte);
        }
        assert!(reader.has_ended() && register.memory.in_use() > 0);
        drop((reader, memory));
        assert_eq!(register.memory.in_use(), 0, "nothing stays counted");
    }

    #[test]
    fn two_threads_lose_nothing() {
        let account = Arc::new(RecordAccount::in_memory("test"));
        let (register, memory) = memory(1 << 30);
        let (writer, mut reader) = new_ring(&account, &memory).expect("a slot");
        let thread = std::thread::spawn(move || {
            for number in 0..200_000_u32 {
                let attached = if number % 16 == 0 { vec![attachment(64)] } else { Vec::new() };
                writer.write(attached, |out| {
                    out.extend_from_slice(&number.to_le_bytes().repeat(1 + number as usize % 50))
                });
            }
        });
        let mut next = 0;
        while !reader.has_ended() {
            while let Some(taken) = reader.take() {
                let number = u32::from_le_bytes(taken.payload[..4].try_into().expect("four bytes"));
                let attachments = usize::from(next % 16 == 0);
                assert_eq!((number, taken.payload.len()), (next, 4 * (1 + number as usize % 50)));
                assert_eq!((taken.attachments.len(), taken.refused), (attachments, 0));
                if taken.is_counted {
                    memory.give(taken.bytes());
                }
                next += 1;
            }
        }
        thread.join().expect("it does not panic");
        assert_eq!((account.read().accepted.records, next, register.memory.in_use()), (200_000, 200_000, 0));
        assert_eq!(account.read().dropped_records("memory_full"), 0);
    }
}
