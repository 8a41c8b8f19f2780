//! The ring of bytes through which a worker hands records to a sink: one for each pair of worker and sink.
//!
//! Message content, which is large, is not copied into the ring: its buffers are passed through a channel beside it.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use rtrb::{Consumer, Producer, RingBuffer};

use crate::account::RecordAccount;

/// The capacity in bytes. Pages are touched only as they are used.
pub const RING_BYTES: usize = 1 << 20;
/// The most bytes of content that wait beside the ring.
const ATTACHED_BYTES: u64 = 16 << 20;
/// The header of a record: length, number of attachments, and number of records refused before it.
const HEADER_BYTES: usize = 8;

/// Content that belongs to a record, and the permit that keeps its memory counted while it waits.
pub struct Attachment {
    pub bytes: Vec<u8>,
    pub _held: Box<dyn Send>,
}

impl fmt::Debug for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attachment").field("bytes", &self.bytes.len()).finish_non_exhaustive()
    }
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
    /// Bytes of content that the sink has not taken yet.
    attached: Arc<AtomicU64>,
    /// Records refused by the full ring since the last record that fitted.
    refused: u32,
    scratch: Vec<u8>,
}

impl RingWriter {
    /// Whether less than a quarter of the capacity is free.
    pub fn is_nearly_full(&self) -> bool {
        let state = self.state.borrow();
        state.ring.slots() < RING_BYTES / 4 || state.attached.load(Ordering::Relaxed) > ATTACHED_BYTES / 4 * 3
    }

    /// Copies a record into the ring, or counts that there was no room. `write` appends the record to the given buffer.
    pub fn write(&self, attachments: Vec<Attachment>, write: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        state.scratch.clear();
        state.scratch.extend_from_slice(&[0; HEADER_BYTES]);
        write(&mut state.scratch);
        let length = state.scratch.len() - HEADER_BYTES;
        let attached: usize = attachments.iter().map(|attachment| attachment.bytes.len()).sum();
        let bytes = (length + attached) as u64;
        state.scratch[..4].copy_from_slice(&((length as u32) << 1 | u32::from(!attachments.is_empty())).to_le_bytes());
        state.scratch[4..8].copy_from_slice(&state.refused.to_le_bytes());
        let slot = self.account.slot(self.slot);
        // Counted before the sink can see the record, so that it never sees more records than were accepted.
        slot.accept(bytes);
        // Attachments are sent before the record, whose header announces them.
        let taken = length < 1 << 31
            && state.ring.slots() >= state.scratch.len()
            && (attachments.is_empty() || attach(state, attachments, attached as u64))
            && state.ring.push_entire_slice(&state.scratch).is_ok();
        match taken {
            true => state.refused = 0,
            false => {
                state.refused += 1;
                slot.refuse(bytes);
            }
        }
    }
}

/// Sends attachments to the sink, if there is room for them.
fn attach(state: &WriterState, attachments: Vec<Attachment>, bytes: u64) -> bool {
    let before = state.attached.load(Ordering::Relaxed);
    // One record's content is always accepted when none waits, since a large one would otherwise never fit.
    if before > 0 && before + bytes > ATTACHED_BYTES {
        return false;
    }
    state.attached.fetch_add(bytes, Ordering::Relaxed);
    state.attachments.send(attachments).is_ok()
}

impl Drop for RingWriter {
    fn drop(&mut self) {
        self.account.give_back_slot(self.slot);
    }
}

/// The sink's end of a ring.
pub struct RingReader {
    ring: Consumer<u8>,
    attachments: Receiver<Vec<Attachment>>,
    attached: Arc<AtomicU64>,
    /// The account in which the ring's records are counted.
    account: Arc<RecordAccount>,
}

/// A record taken out of a ring.
pub struct RingTake {
    pub payload: Vec<u8>,
    pub attachments: Vec<Attachment>,
    /// Records of this worker that were refused since the previous one.
    pub refused: u32,
}

impl RingReader {
    pub fn take(&mut self) -> Option<RingTake> {
        let mut header = [0; HEADER_BYTES];
        self.ring.pop_entire_slice(&mut header).ok()?;
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
        let mut payload = vec![0; (word(0) >> 1) as usize];
        self.ring.pop_entire_slice(&mut payload).expect("a record is written whole");
        let attachments = match word(0) & 1 {
            1 => self.attachments.recv().expect("attachments come before their record"),
            _ => Vec::new(),
        };
        if !attachments.is_empty() {
            let bytes: usize = attachments.iter().map(|attachment| attachment.bytes.len()).sum();
            self.attached.fetch_sub(bytes as u64, Ordering::Relaxed);
        }
        Some(RingTake { payload, attachments, refused: word(4) })
    }

    pub fn account(&self) -> &Arc<RecordAccount> {
        &self.account
    }

    /// Whether no more records will come.
    pub fn has_ended(&self) -> bool {
        // In this order, so that no record written before the writer was dropped is missed.
        self.ring.is_abandoned() && self.ring.is_empty()
    }
}

/// Creates a ring for the calling thread, if the account has a free slot.
pub fn new_ring(account: &Arc<RecordAccount>) -> Option<(RingWriter, RingReader)> {
    let slot = account.take_slot()?;
    let (producer, consumer) = RingBuffer::new(RING_BYTES);
    let (sender, receiver) = channel();
    let attached = Arc::new(AtomicU64::new(0));
    let state = WriterState {
        ring: producer,
        attachments: sender,
        attached: Arc::clone(&attached),
        refused: 0,
        scratch: Vec::with_capacity(4096),
    };
    let writer = RingWriter { state: RefCell::new(state), account: Arc::clone(account), slot };
    Some((writer, RingReader { ring: consumer, attachments: receiver, attached, account: Arc::clone(account) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_out_as_they_went_in_and_a_full_ring_counts() {
        let account = Arc::new(RecordAccount::in_memory("test"));
        let (writer, mut reader) = new_ring(&account).expect("a slot");
        let attached = Attachment { bytes: b"body".to_vec(), _held: Box::new(()) };
        writer.write(Vec::new(), |out| out.extend_from_slice(b"one"));
        writer.write(vec![attached], |out| out.extend_from_slice(b"two"));
        let taken = reader.take().expect("one");
        assert_eq!((&*taken.payload, taken.attachments.len(), taken.refused), (&b"one"[..], 0, 0));
        let taken = reader.take().expect("two");
        assert_eq!((&*taken.payload, &*taken.attachments[0].bytes), (&b"two"[..], &b"body"[..]));
        assert!(reader.take().is_none());
        // Four of these would fit without their headers.
        for _ in 0..5 {
            writer.write(Vec::new(), |out| out.resize(out.len() + RING_BYTES / 4, 7));
        }
        assert_eq!(account.read().dropped_records("memory_full"), 2);
        while reader.take().is_some() {}
        writer.write(Vec::new(), |out| out.extend_from_slice(b"x"));
        assert_eq!(reader.take().expect("it has room again").refused, 2);
        drop(writer);
        assert!(reader.has_ended());
    }

    #[test]
    fn two_threads_lose_nothing() {
        let account = Arc::new(RecordAccount::in_memory("test"));
        let (writer, mut reader) = new_ring(&account).expect("a slot");
        let thread = std::thread::spawn(move || {
            for number in 0..20_000_u32 {
                writer.write(Vec::new(), |out| {
                    out.extend_from_slice(&number.to_le_bytes().repeat(1 + number as usize % 50))
                });
            }
        });
        let (mut next, mut refused) = (0, 0);
        while !reader.has_ended() {
            while let Some(taken) = reader.take() {
                let number = u32::from_le_bytes(taken.payload[..4].try_into().expect("four bytes"));
                next += taken.refused;
                refused += u64::from(taken.refused);
                assert_eq!((number, taken.payload.len()), (next, 4 * (1 + number as usize % 50)));
                next += 1;
            }
        }
        thread.join().expect("it does not panic");
        let reading = account.read();
        assert_eq!(reading.accepted.records, 20_000);
        assert!(reading.dropped_records("memory_full") >= refused);
    }
}
