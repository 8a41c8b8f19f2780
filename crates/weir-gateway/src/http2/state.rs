//! The state that a connection's driver and its streams share: a slot for each stream, with what was received for it.

use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use slab::Slab;
use weir_proto::h2::{self, ConnectionEvent, ErrorCode, HeadTarget, Sent, Unfinished};
use weir_proto::head::MAX_INTERIM_BYTES;
use weir_proto::{ResponseHead, Trailers};

use super::silence::ReceivedFrames;
use crate::context::WorkerContext;
use crate::context::buffers::READ_BYTES;
use crate::message::sides::{Pipe, StreamLoss};
use crate::message::unsent::UnsentBytes;

/// The most reads in one wake-up, so that one connection does not delay the others.
const READS: usize = 4;
/// The most heads of one response that may wait to be read. Interim ones beyond them are discarded.
const MOST_HEADS: usize = 10;

/// A head of a response, as it was received.
pub(crate) struct ResponseStart {
    pub head: ResponseHead,
    pub parsed: Result<(), weir_proto::h1::BadResponse>,
}

/// The state of one stream.
#[derive(Default)]
pub(super) struct StreamSlot {
    pub(super) id: u32,
    /// Wakes the task that serves this stream.
    pub(super) task: Option<Waker>,
    pub(super) answers: VecDeque<Box<ResponseStart>>,
    /// Bytes of the interim heads that were discarded.
    discarded: usize,
    /// Received content, in pieces of at most one read, and how many bytes of the first piece have been taken.
    pub(super) incoming: VecDeque<Vec<u8>>,
    pub(super) taken: usize,
    /// The end of the stream has been received.
    pub(super) ended: bool,
    pub(super) trailers: Trailers,
    pub(super) lost: Option<StreamLoss>,
    /// Content that waits to be sent, and the trailers that end the message after it.
    pub(super) unsent: UnsentBytes,
    pub(super) end: Option<Trailers>,
    /// Bytes sent since the last call of `poll_flush`.
    pub(super) flushed: usize,
    /// The stream is in [`State::waiting`].
    pub(super) is_waiting: bool,
    /// A head that is in the output, and is the whole message if the stream is ended next.
    pub(super) head: Option<Sent>,
}

/// Handles the events that differ between client and upstream connections.
pub(crate) trait Handler<P> {
    /// Lends the head into which the next one is parsed. It must be clear.
    fn lend(&mut self) -> HeadTarget<'_>;

    /// Handles an event that begins a stream, or concerns none.
    fn event(&mut self, state: &mut State<P>, event: ConnectionEvent<'_>);

    /// Takes the response head that was parsed into the lent one.
    fn answer(&mut self) -> ResponseHead {
        ResponseHead::default()
    }

    /// Whether this many bytes of trailers may be kept.
    fn takes_trailers(&mut self, _: &State<P>, _: usize) -> bool {
        true
    }
}

/// The state of a connection, which its driver and its streams borrow from the [`super::Session`] in turn.
pub(crate) struct State<P> {
    pub pipe: P,
    pub protocol: h2::Connection,
    pub(super) worker: Rc<WorkerContext>,
    /// The beginning of a frame that is not complete yet.
    stash: Vec<u8>,
    /// Bytes of the connection that have been parsed.
    taken: u64,
    /// Bytes that the peer's socket has taken.
    pub(super) sent: u64,
    /// What has been received since the last call of [`State::take_received_frames`].
    heard: ReceivedFrames,
    /// Counts the turns to send, modulo the `FAIR` of [`super::turns`].
    pub(super) turns: u8,
    pub(super) slots: Slab<StreamSlot>,
    /// Streams that have something to send, in the order in which they began to wait.
    pub(super) waiting: VecDeque<usize>,
    /// Bytes of unsent content in all streams.
    pub(super) held: usize,
    /// Nothing more can be received or sent.
    over: bool,
    /// The peer accepts no more streams.
    leaving: bool,
    /// The connection is closed to new streams; it ends with its last open stream.
    closed: bool,
}

impl<P> State<P> {
    pub(super) fn new(worker: Rc<WorkerContext>, pipe: P, protocol: h2::Connection) -> State<P> {
        State {
            pipe,
            protocol,
            worker,
            stash: Vec::new(),
            taken: 0,
            sent: 0,
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

    /// Adds a slot for a stream that has begun, or is about to (`id` 0).
    pub(crate) fn add(&mut self, id: u32, ended: bool) -> usize {
        let key = self.slots.insert(StreamSlot { id, ended, ..StreamSlot::default() });
        self.protocol.set_key(id, key);
        key
    }

    /// Frees the memory that only streams need. Called when no stream has been open for a while: most connections are idle.
    pub(crate) fn rest(&mut self) {
        (self.slots, self.waiting) = (Slab::new(), VecDeque::new());
        self.protocol.rest();
    }

    /// No stream has begun since [`State::rest`], or ever.
    pub(crate) fn is_idle(&self) -> bool {
        self.slots.capacity() == 0
    }

    pub(crate) fn set_id(&mut self, key: usize, id: u32) {
        self.slots[key].id = id;
    }

    pub(crate) fn id(&self, key: usize) -> u32 {
        self.slots[key].id
    }

    /// The number of streams with a slot.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// What has been received since the last call.
    pub(crate) fn take_received_frames(&mut self) -> ReceivedFrames {
        std::mem::take(&mut self.heard)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    /// How many bytes of the connection the socket has taken.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.sent
    }

    /// What the peer has begun and not completed.
    pub(crate) fn unfinished(&self) -> Option<Unfinished> {
        let frame = (!self.stash.is_empty()).then_some(Unfinished::Frame(self.taken));
        self.protocol.unfinished().or(frame)
    }

    /// The protocol, for writing: its output buffer gets spare memory first, if it has none.
    pub(crate) fn writable_protocol(&mut self) -> &mut h2::Connection {
        self.worker.buffers.lend(self.protocol.output());
        &mut self.protocol
    }

    pub(super) fn wake(&self, key: usize) {
        if let Some(task) = &self.slots[key].task {
            task.wake_by_ref();
        }
    }

    /// Wakes the tasks of all streams.
    pub(crate) fn wake_all(&self) {
        self.slots.iter().for_each(|(key, _)| self.wake(key));
    }

    /// Marks a stream as ended early, and wakes its task.
    pub(crate) fn fail_stream(&mut self, key: usize, lost: StreamLoss) {
        if let Some(slot) = self.slots.get_mut(key) {
            slot.lost.get_or_insert(lost);
            self.wake(key);
        }
    }

    /// The same for the streams that have not begun: the peer has got nothing of their requests.
    pub(crate) fn fail_unsent_streams(&mut self, lost: StreamLoss) {
        let unsent: Vec<usize> = self.slots.iter().filter(|(_, slot)| slot.id == 0).map(|(key, _)| key).collect();
        unsent.into_iter().for_each(|key| self.fail_stream(key, lost));
    }

    /// The same for all streams; nothing more can be received or sent.
    pub(crate) fn fail_all_streams(&mut self, lost: StreamLoss) {
        self.over = true;
        let keys: Vec<usize> = self.slots.iter().map(|(key, _)| key).collect();
        keys.into_iter().for_each(|key| self.fail_stream(key, lost));
    }

    /// The peer will close the connection, and does not process streams after `last`.
    pub(crate) fn receive_goaway(&mut self, last: u32, lost: StreamLoss) {
        self.leaving = true;
        let late: Vec<usize> = self.slots.iter().filter(|(_, slot)| slot.id > last).map(|(key, _)| key).collect();
        late.into_iter().for_each(|key| self.fail_stream(key, lost));
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// Closes the connection to new streams; it ends with its last open stream.
    pub(crate) fn close(&mut self) {
        self.closed = true;
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }
}

impl<P: Pipe> State<P> {
    /// Receives what is available, in a limited number of reads. Ready when the peer has closed, or with the error that the
    /// connection must be ended with.
    pub(crate) fn poll_receive(
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

    /// Handles received bytes, after those of an incomplete frame.
    pub(crate) fn received(&mut self, bytes: &[u8], handler: &mut impl Handler<P>) -> Result<(), ErrorCode> {
        if self.stash.is_empty() {
            let used = self.take(bytes, handler)?;
            self.worker.buffers.append_unread(&mut self.stash, &bytes[used..]);
            return Ok(());
        }
        let mut stash = std::mem::take(&mut self.stash);
        stash.extend_from_slice(bytes);
        let used = self.take(&stash, handler);
        self.worker.buffers.consume(&mut stash, used.unwrap_or(0));
        self.stash = stash;
        used.map(|_| ())
    }

    /// Keeps a response's head for the task of its stream. A final one is never discarded.
    fn keep_head(&mut self, key: usize, start: ResponseStart, ended: bool) {
        let Some(slot) = self.slots.get_mut(key) else { return };
        let is_interim = start.head.status < 200 && start.parsed.is_ok();
        if is_interim && slot.answers.len() >= MOST_HEADS {
            slot.discarded += start.head.head.bytes().len();
            if slot.discarded > MAX_INTERIM_BYTES {
                self.fail_stream(key, StreamLoss::Failed(ErrorCode::ENHANCE_YOUR_CALM));
            }
            return;
        }
        slot.answers.push_back(Box::new(start));
        slot.ended |= ended;
        self.wake(key);
    }

    /// Parses bytes, and gives the streams what was received for them. After an error the connection must be ended.
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
                            self.worker.buffers.append_unread(&mut piece, bytes);
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
                        self.fail_stream(key, StreamLoss::Failed(ErrorCode::ENHANCE_YOUR_CALM));
                    }
                }
                ConnectionEvent::Response { key, ended, parsed } => {
                    let head = handler.answer();
                    self.keep_head(key, ResponseStart { head, parsed }, ended);
                }
                ConnectionEvent::Reset { key, code } => self.fail_stream(key, StreamLoss::Reset(code)),
                ConnectionEvent::Failed { key, code } => self.fail_stream(key, StreamLoss::Failed(code)),
                ConnectionEvent::WindowOpened { key: Some(_) | None } => {}
                event => handler.event(self, event),
            }
        }
        let used = bytes.len() - rest.len();
        self.taken += used as u64;
        Ok(used)
    }
}

impl<P> Drop for State<P> {
    fn drop(&mut self) {
        self.worker.buffers.release(&mut self.stash);
        self.worker.buffers.release(self.protocol.output());
    }
}
