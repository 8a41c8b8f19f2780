//! One HTTP/2 connection, for its driver and its streams. The driver reads from and writes to the socket for all streams; a
//! stream takes received content from here, and leaves here what is to be sent.

use std::cell::{Cell, RefCell, RefMut};
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use weir_proto::Trailers;
use weir_proto::h2::{self, ErrorCode, Sent};

use super::state::{ResponseStart, State};
use crate::context::WorkerContext;
use crate::message::sides::{Pipe, StreamLoss};

/// What the streams of one connection and its driver share.
pub(crate) struct Session<P> {
    pub worker: Rc<WorkerContext>,
    state: RefCell<State<P>>,
    driver: RefCell<Waker>,
    /// The driver has been woken and has not finished its turn.
    awake: Cell<bool>,
}

impl<P: Pipe> Session<P> {
    pub(crate) fn new(worker: Rc<WorkerContext>, pipe: P, protocol: h2::Connection) -> Session<P> {
        let state = State::new(Rc::clone(&worker), pipe, protocol);
        Session {
            worker,
            state: RefCell::new(state),
            driver: RefCell::new(Waker::noop().clone()),
            awake: Cell::new(true),
        }
    }

    pub(crate) fn state(&self) -> RefMut<'_, State<P>> {
        self.state.borrow_mut()
    }

    /// Called when the driver begins to run: notes the waker of its task.
    pub(crate) fn begin_turn(&self, context: &Context<'_>) {
        self.awake.set(true);
        let mut driver = self.driver.borrow_mut();
        if !driver.will_wake(context.waker()) {
            driver.clone_from(context.waker());
        }
    }

    /// Called when the driver has done what it can.
    pub(crate) fn end_turn(&self) {
        self.awake.set(false);
    }

    /// Wakes the driver, so that it sends what is in the output.
    pub(crate) fn wake_driver(&self) {
        if !self.awake.replace(true) {
            self.driver.borrow().wake_by_ref();
        }
    }

    // ----- For streams -----

    /// Sets the waker of the task that serves a stream.
    pub(crate) fn watch(&self, key: usize, waker: Waker) {
        self.state().slots[key].task = Some(waker);
    }

    /// Takes received content; 0 is the end.
    pub(crate) fn poll_read(&self, key: usize, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut state = self.state();
        let State { protocol, slots, worker, .. } = &mut *state;
        let slot = &mut slots[key];
        let Some(piece) = slot.incoming.front_mut() else {
            return match (slot.lost, slot.ended) {
                (_, true) => Poll::Ready(Ok(0)),
                (Some(lost), _) => Poll::Ready(Err(lost.into())),
                _ => Poll::Pending,
            };
        };
        let here = &piece[slot.taken..];
        let count = here.len().min(buffer.len());
        buffer[..count].copy_from_slice(&here[..count]);
        slot.taken += count;
        if slot.taken == piece.len() {
            slot.taken = 0;
            worker.buffers.release(piece);
            slot.incoming.pop_front();
        }
        // The output gets spare memory if it has none: a newly allocated buffer would each time become one more spare
        // buffer.
        worker.buffers.lend(protocol.output());
        let said = protocol.output().len();
        protocol.release(slot.id, count);
        let has_said = protocol.output().len() > said;
        drop(state);
        if has_said {
            self.wake_driver();
        }
        Poll::Ready(Ok(count))
    }

    /// Enlarges the window of the stream: the peer may send so many bytes before they are read.
    pub(crate) fn widen(&self, key: usize, window: u32) {
        let mut state = self.state();
        let State { protocol, slots, worker, .. } = &mut *state;
        worker.buffers.lend(protocol.output());
        protocol.widen(slots[key].id, window);
        drop(state);
        self.wake_driver();
    }

    pub(crate) fn take_trailers(&self, key: usize) -> Trailers {
        std::mem::take(&mut self.state().slots[key].trailers)
    }

    /// Bytes of the received trailers that have not been taken.
    pub(crate) fn untaken_trailers(&self, key: usize) -> usize {
        self.state().slots[key].trailers.len()
    }

    /// The next head of a response. An error is reported once no head is left.
    pub(crate) fn poll_answer(&self, key: usize) -> Poll<io::Result<Box<ResponseStart>>> {
        let slot = &mut self.state().slots[key];
        match (slot.answers.pop_front(), slot.lost) {
            (Some(answer), _) => Poll::Ready(Ok(answer)),
            (None, Some(lost)) => Poll::Ready(Err(lost.into())),
            _ => Poll::Pending,
        }
    }

    pub(crate) fn lost(&self, key: usize) -> Option<StreamLoss> {
        self.state().slots[key].lost
    }

    /// Whether all of the peer's message has been received and taken, or no more of it will come.
    pub(crate) fn is_read(&self, key: usize) -> bool {
        let slot = &self.state().slots[key];
        slot.lost.is_some() || slot.ended && slot.incoming.is_empty()
    }

    /// Whether all of the peer's message has been received and taken, but for its trailers.
    pub(crate) fn has_ended(&self, key: usize) -> bool {
        let slot = &self.state().slots[key];
        slot.ended && slot.incoming.is_empty()
    }

    /// Called when a head has been written, which may be the whole message.
    pub(crate) fn head_sent(&self, key: usize, sent: Sent) {
        self.state().slots[key].head = Some(sent);
        self.wake_driver();
    }

    /// All content has been given to `send`; these trailers end the message.
    pub(crate) fn end(&self, key: usize, trailers: Option<&Trailers>) {
        let trailers = trailers.filter(|trailers| trailers.fields().next().is_some());
        self.state().slots[key].end = Some(trailers.cloned().unwrap_or_default());
    }

    pub(crate) fn is_blocked(&self, key: usize) -> bool {
        !self.state().slots[key].unsent.is_empty()
    }

    /// Sends what the peer takes of `bytes`, and keeps the rest; returns how many bytes were taken.
    pub(crate) fn send(&self, key: usize, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.state();
        if let Some(lost) = state.slots[key].lost {
            return Err(lost.into());
        }
        let is_first = state.slots[key].unsent.is_empty();
        // An end without content before it needs no turn: it is a flag of a head, or a frame as small as one.
        let passes = is_first && (bytes.is_empty() || state.may_pass_at_once());
        let taken = if passes { state.pass(key, bytes, usize::MAX) } else { 0 };
        if taken < bytes.len() {
            let State { worker, slots, held, .. } = &mut *state;
            slots[key].unsent.append(&worker.buffers, &bytes[taken..]);
            *held += bytes.len() - taken;
            state.wait(key);
        }
        drop(state);
        self.wake_driver();
        Ok(taken)
    }

    /// Ready with how many of the kept bytes were sent. After an error none are kept: they can no longer be sent.
    pub(crate) fn poll_flush(&self, key: usize) -> Poll<io::Result<usize>> {
        let mut state = self.state();
        let State { slots, worker, held, .. } = &mut *state;
        let slot = &mut slots[key];
        match (slot.lost, std::mem::take(&mut slot.flushed)) {
            (Some(lost), _) => {
                *held -= slot.unsent.len();
                slot.unsent.release(&worker.buffers);
                Poll::Ready(Err(lost.into()))
            }
            (None, 0) if !slot.unsent.is_empty() => Poll::Pending,
            (None, flushed) => Poll::Ready(Ok(flushed)),
        }
    }

    /// Sends what the peer takes of `bytes`, without keeping any.
    pub(crate) fn poll_write(&self, key: usize, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = self.state();
        if let Some(lost) = state.slots[key].lost {
            return Poll::Ready(Err(lost.into()));
        }
        let taken = state.pass(key, bytes, usize::MAX);
        if taken == 0 && !bytes.is_empty() {
            state.wait(key);
            return Poll::Pending;
        }
        drop(state);
        self.wake_driver();
        Poll::Ready(Ok(taken))
    }

    /// Bytes that wait to be sent, of all streams.
    pub(crate) fn held(&self) -> usize {
        self.state().held
    }

    /// Removes a stream. If it has not ended on both sides, it is reset: with the code `incomplete` if the gateway has not
    /// sent its whole message, otherwise with `complete`.
    pub(crate) fn forget(&self, key: usize, incomplete: ErrorCode, complete: ErrorCode) {
        let mut state = self.state();
        let State { protocol, slots, worker, held, waiting, .. } = &mut *state;
        let slot = &mut slots[key];
        *held -= slot.unsent.len();
        if slot.is_waiting {
            waiting.retain(|other| *other != key);
        }
        let is_sent = slot.unsent.is_empty() && slot.end.is_none() && protocol.has_sent_all(slot.id);
        worker.buffers.lend(protocol.output());
        protocol.reset(slot.id, if is_sent { complete } else { incomplete });
        // Content that was not taken is released: its stream is gone, and other streams may need the connection's window.
        let untaken = slot.incoming.iter().map(Vec::len).sum::<usize>() - slot.taken;
        protocol.release(slot.id, untaken);
        slot.incoming.iter_mut().for_each(|piece| worker.buffers.release(piece));
        slot.unsent.release(&worker.buffers);
        slots.remove(key);
        drop(state);
        self.wake_driver();
    }
}
