//! What a connection's driver and its streams share: a slot for each stream, and what comes for it.

use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use slab::Slab;
use weir_proto::h2::{self, ConnectionEvent, ErrorCode, HeadTarget, Sent};
use weir_proto::{ResponseHead, Trailers};

use super::silence::ReceivedFrames;
use crate::context::WorkerContext;
use crate::context::buffers::READ_BYTES;
use crate::message::sides::{Pipe, StreamLoss};

/// Reads of one wake-up, so that one connection does not keep the others from their turn.
const READS: usize = 4;
/// Heads of one response that wait to be looked at: more interim ones than anybody lets through.
const MOST_HEADS: usize = 10;

/// A head of a response, as it came.
pub struct ResponseStart {
    pub head: ResponseHead,
    pub parsed: Result<(), weir_proto::h1::BadResponse>,
}

/// One stream's share of the connection.
#[derive(Default)]
pub(super) struct StreamSlot {
    pub(super) id: u32,
    /// Wakes who serves it.
    pub(super) task: Option<Waker>,
    pub(super) answers: VecDeque<Box<ResponseStart>>,
    /// Content that came, in pieces as large as a read, and how much of the first was taken.
    pub(super) incoming: VecDeque<Vec<u8>>,
    pub(super) taken: usize,
    /// Nothing comes behind it.
    pub(super) ended: bool,
    pub(super) trailers: Trailers,
    pub(super) lost: Option<StreamLoss>,
    /// Content that is to be sent, and what follows it.
    pub(super) unsent: Vec<u8>,
    pub(super) end: Option<Trailers>,
    /// Sent since anybody asked.
    pub(super) flushed: usize,
    /// It waits for its turn to send.
    pub(super) is_waiting: bool,
    /// A head that stands in the output and may turn out to be all of the message.
    pub(super) head: Option<Sent>,
}

/// What an event is to one of the two sides.
pub trait Handler<P> {
    /// Where the next head goes. It must be clear.
    fn lend(&mut self) -> HeadTarget<'_>;

    /// Takes what is of no stream, or begins one.
    fn event(&mut self, state: &mut State<P>, event: ConnectionEvent<'_>);

    /// Takes the head of a response that stands where it was lent.
    fn answer(&mut self) -> ResponseHead {
        ResponseHead::default()
    }

    /// Whether so many bytes of trailers may be kept.
    fn takes_trailers(&mut self, _: &State<P>, _: usize) -> bool {
        true
    }
}

/// The connection behind its lock.
pub struct State<P> {
    pub pipe: P,
    pub protocol: h2::Connection,
    pub(super) worker: Rc<WorkerContext>,
    /// The beginning of a frame.
    stash: Vec<u8>,
    /// What has come since the driver looked.
    heard: ReceivedFrames,
    /// Turns to send that were given, round and round.
    pub(super) turns: u8,
    pub(super) slots: Slab<StreamSlot>,
    /// Streams that have something to send, in turn.
    pub(super) waiting: VecDeque<usize>,
    /// Bytes that wait in all of them.
    pub(super) held: usize,
    /// Nothing more can be received or sent.
    over: bool,
    /// The peer takes no more streams.
    leaving: bool,
    /// Nobody will use it any more.
    closed: bool,
}

impl<P> State<P> {
    pub(super) fn new(worker: Rc<WorkerContext>, pipe: P, protocol: h2::Connection) -> State<P> {
        State {
            pipe,
            protocol,
            worker,
            stash: Vec::new(),
            heard: ReceivedFrames::default(),
            turns: 0,
            slots: Slab::new(),
            waiting: VecDeque::new(),
            held: 0,
            over: false,
            leaving: false,
            closed: false,
        }
    }

    /// A slot for a stream that has begun, or will.
    pub fn add(&mut self, id: u32, ended: bool) -> usize {
        let key = self.slots.insert(StreamSlot { id, ended, ..StreamSlot::default() });
        self.protocol.set_key(id, key);
        key
    }

    /// Gives back the memory that only streams need, while there are none: most connections are idle.
    pub fn rest(&mut self) {
        (self.slots, self.waiting) = (Slab::new(), VecDeque::new());
        self.protocol.rest();
    }

    /// No stream has begun since [`State::rest`], or ever.
    pub fn is_at_rest(&self) -> bool {
        self.slots.capacity() == 0
    }

    pub fn set_id(&mut self, key: usize, id: u32) {
        self.slots[key].id = id;
    }

    pub fn id(&self, key: usize) -> u32 {
        self.slots[key].id
    }

    /// Streams that somebody serves.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// What has come since the last time.
    pub fn take_heard(&mut self) -> ReceivedFrames {
        std::mem::take(&mut self.heard)
    }

    pub fn is_over(&self) -> bool {
        self.over
    }

    /// The beginning of a frame waits for its end.
    pub fn is_in_frame(&self) -> bool {
        !self.stash.is_empty()
    }

    /// What may be written into, with memory that others have given back.
    pub fn protocol(&mut self) -> &mut h2::Connection {
        self.worker.buffers.lend(self.protocol.output());
        &mut self.protocol
    }

    pub(super) fn wake(&self, key: usize) {
        if let Some(task) = &self.slots[key].task {
            task.wake_by_ref();
        }
    }

    /// Has all streams look again.
    pub fn wake_all(&self) {
        self.slots.iter().for_each(|(key, _)| self.wake(key));
    }

    /// Ends a stream for its user.
    pub fn lose(&mut self, key: usize, lost: StreamLoss) {
        if let Some(slot) = self.slots.get_mut(key) {
            slot.lost.get_or_insert(lost);
            self.wake(key);
        }
    }

    /// The same for all that are not complete.
    pub fn lose_all(&mut self, lost: StreamLoss) {
        self.over = true;
        let keys: Vec<usize> = self.slots.iter().map(|(key, _)| key).collect();
        keys.into_iter().for_each(|key| self.lose(key, lost));
    }

    /// The peer will go, and streams after `last` go with it.
    pub fn leaves(&mut self, last: u32, lost: StreamLoss) {
        self.leaving = true;
        let late: Vec<usize> = self.slots.iter().filter(|(_, slot)| slot.id > last).map(|(key, _)| key).collect();
        late.into_iter().for_each(|key| self.lose(key, lost));
    }

    pub fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// It is to end with its last stream.
    pub fn close(&mut self) {
        self.closed = true;
    }

    pub fn is_closed(&self) -> bool {
        self.closed
    }
}

impl<P: Pipe> State<P> {
    /// Receives what there is, a few times. Ready when the peer has closed, with an error when the connection has to end.
    pub fn poll_receive(
        &mut self,
        context: &mut Context<'_>,
        handler: &mut impl Handler<P>,
    ) -> Poll<io::Result<Result<(), ErrorCode>>> {
        let worker = Rc::clone(&self.worker);
        for _ in 0..READS {
            let read = worker.buffers.with_read_buffer(|buffer| {
                let count = std::task::ready!(self.pipe.poll_read(context, buffer))?;
                Poll::Ready(Ok(if count == 0 { None } else { Some(self.received(&buffer[..count], handler)) }))
            });
            match read {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(Some(Ok(())))) => {}
                Poll::Ready(Ok(Some(Err(code)))) => return Poll::Ready(Ok(Err(code))),
                Poll::Ready(Ok(None)) => return Poll::Ready(Ok(Ok(()))),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Takes bytes behind those that wait for the end of their frame.
    pub fn received(&mut self, bytes: &[u8], handler: &mut impl Handler<P>) -> Result<(), ErrorCode> {
        if self.stash.is_empty() {
            let used = self.take(bytes, handler)?;
            self.worker.buffers.stash(&mut self.stash, &bytes[used..]);
            return Ok(());
        }
        let mut stash = std::mem::take(&mut self.stash);
        stash.extend_from_slice(bytes);
        let used = self.take(&stash, handler);
        self.worker.buffers.consume(&mut stash, used.unwrap_or(0));
        self.stash = stash;
        used.map(|_| ())
    }

    /// Hands out what came. An error is what the connection ends with.
    fn take(&mut self, bytes: &[u8], handler: &mut impl Handler<P>) -> Result<usize, ErrorCode> {
        let mut rest = bytes;
        self.heard = self.heard.max(ReceivedFrames::Frames);
        self.worker.buffers.lend(self.protocol.output());
        while let Some(event) = self.protocol.next(&mut rest, &mut handler.lend())? {
            if matches!(
                event,
                ConnectionEvent::Data { .. } | ConnectionEvent::Response { .. } | ConnectionEvent::Trailers { .. }
            ) {
                self.heard = ReceivedFrames::Messages;
            }
            match event {
                ConnectionEvent::Data { key, bytes, ended } => {
                    let Some(slot) = self.slots.get_mut(key) else { continue };
                    match slot.incoming.back_mut() {
                        Some(piece) if piece.len() + bytes.len() <= READ_BYTES => piece.extend_from_slice(bytes),
                        _ if bytes.is_empty() => {}
                        _ => {
                            let mut piece = Vec::new();
                            self.worker.buffers.stash(&mut piece, bytes);
                            slot.incoming.push_back(piece);
                        }
                    }
                    slot.ended |= ended;
                    self.wake(key);
                }
                ConnectionEvent::Trailers { key, trailers } => {
                    if !self.slots.contains(key) {
                        continue;
                    }
                    if handler.takes_trailers(self, trailers.len()) {
                        let slot = &mut self.slots[key];
                        (slot.trailers, slot.ended) = (trailers, true);
                        self.wake(key);
                    } else {
                        self.lose(key, StreamLoss::Failed(ErrorCode::ENHANCE_YOUR_CALM));
                    }
                }
                ConnectionEvent::Response { key, ended, parsed } => {
                    let head = handler.answer();
                    let Some(slot) = self.slots.get_mut(key) else { continue };
                    if slot.answers.len() < MOST_HEADS {
                        slot.answers.push_back(Box::new(ResponseStart { head, parsed }));
                    }
                    slot.ended |= ended;
                    self.wake(key);
                }
                ConnectionEvent::Reset { key, code } => self.lose(key, StreamLoss::Reset(code)),
                ConnectionEvent::Failed { key, code } => self.lose(key, StreamLoss::Failed(code)),
                ConnectionEvent::Opened { key: Some(_) | None } => {}
                event => handler.event(self, event),
            }
        }
        Ok(bytes.len() - rest.len())
    }
}

impl<P> Drop for State<P> {
    fn drop(&mut self) {
        self.worker.buffers.release(&mut self.stash);
        self.worker.buffers.release(self.protocol.output());
    }
}
