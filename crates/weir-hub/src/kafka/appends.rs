//! The queue of records to append to a partition, taken in batches.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use weir_journal::{AppendError, OnCommit};

/// Payload bytes of a batch. A larger record has a batch of its own.
const BATCH_BYTES: usize = 512 << 10;
/// Payload bytes that may wait in the queue.
const MAX_PENDING_BYTES: usize = 64 << 20;

pub(super) struct Append {
    pub payload: Vec<u8>,
    pub on_commit: OnCommit,
}

/// The sending side of the queue.
#[derive(Clone)]
pub(super) struct Appender {
    sender: UnboundedSender<Append>,
    pending: Arc<AtomicUsize>,
}

/// The receiving side of the queue.
pub(super) struct AppendQueue {
    receiver: UnboundedReceiver<Append>,
    pending: Arc<AtomicUsize>,
    /// A record that did not fit into the previous batch.
    held: Option<Append>,
}

pub(super) fn appends() -> (Appender, AppendQueue) {
    let (sender, receiver) = unbounded_channel();
    let pending = Arc::new(AtomicUsize::new(0));
    (Appender { sender, pending: Arc::clone(&pending) }, AppendQueue { receiver, pending, held: None })
}

impl Appender {
    /// # Errors
    /// Too many bytes wait, or the queue is closed.
    pub(super) fn append(&self, payload: Vec<u8>, on_commit: OnCommit) -> Result<(), AppendError> {
        let bytes = payload.len();
        if self.pending.load(Relaxed) + bytes > MAX_PENDING_BYTES {
            return Err(AppendError::Busy);
        }
        self.pending.fetch_add(bytes, Relaxed);
        self.sender.send(Append { payload, on_commit }).map_err(|_| AppendError::Closed)
    }
}

impl AppendQueue {
    /// Waits for the next records to append. An empty result means that all senders of the queue have been dropped.
    pub(super) async fn next(&mut self) -> Vec<Append> {
        let first = match self.held.take() {
            Some(held) => Some(held),
            None => self.receiver.recv().await,
        };
        let mut batch: Vec<Append> = first.into_iter().collect();
        let mut bytes = batch.iter().map(|append| append.payload.len()).sum::<usize>();
        while !batch.is_empty()
            && bytes < BATCH_BYTES
            && let Ok(append) = self.receiver.try_recv()
        {
            if bytes + append.payload.len() > BATCH_BYTES {
                self.held = Some(append);
                break;
            }
            bytes += append.payload.len();
            batch.push(append);
        }
        self.pending.fetch_sub(bytes, Relaxed);
        batch
    }
}
