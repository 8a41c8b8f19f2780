//! One connection, as its driver and its streams see it. The driver reads and writes for all of them; a stream takes from
//! here what came for it, and puts here what is to be sent.

use std::cell::{Cell, RefCell, RefMut};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use slab::Slab;
use weir_proto::h2::{self, ErrorCode, Event, Lent, Sent};
use weir_proto::{ResponseHead, Trailers};

use crate::context::WorkerContext;
use crate::context::buffers::READ_BYTES;
use crate::message::sides::{Lost, Pipe};

/// As much as waits for the socket before streams have to wait with what they send.
const MOST_OUT: usize = READ_BYTES;
/// As much of one stream is sent before it is the turn of another.
const TURN: usize = 16 * 1024;
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
struct Slot {
    id: u32,
    /// Wakes who serves it.
    task: Option<Waker>,
    answers: VecDeque<Box<ResponseStart>>,
    /// Content that came, in pieces as large as a read, and how much of the first was taken.
    incoming: VecDeque<Vec<u8>>,
    taken: usize,
    /// Nothing comes behind it.
    ended: bool,
    trailers: Trailers,
    lost: Option<Lost>,
    /// Content that is to be sent, and what follows it.
    unsent: Vec<u8>,
    end: Option<Trailers>,
    /// Sent since anybody asked.
    flushed: usize,
    /// It waits for its turn to send.
    is_waiting: bool,
    /// A head that stands in the output and may turn out to be all of the message.
    head: Option<Sent>,
}

/// What an event is to one of the two sides.
pub trait Handler<P> {
    /// Where the next head goes. It must be clear.
    fn lend(&mut self) -> Lent<'_>;

    /// Takes what is of no stream, or begins one.
    fn event(&mut self, state: &mut State<P>, event: Event<'_>);

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
    worker: Rc<WorkerContext>,
    /// The beginning of a frame.
    stash: Vec<u8>,
    slots: Slab<Slot>,
    /// Streams that have something to send, in turn.
    waiting: VecDeque<usize>,
    /// Bytes that wait in all of them.
    held: usize,
    /// Nothing more can be received or sent.
    over: bool,
    /// The peer takes no more streams.
    leaving: bool,
    /// Nobody will use it any more.
    closed: bool,
}

/// What the streams of one connection and its driver share.
pub struct Session<P> {
    pub worker: Rc<WorkerContext>,
    state: RefCell<State<P>>,
    driver: RefCell<Waker>,
    /// The driver has been woken, or runs.
    awake: Cell<bool>,
}

impl<P: Pipe> Session<P> {
    pub fn new(worker: Rc<WorkerContext>, pipe: P, protocol: h2::Connection) -> Session<P> {
        let state = State {
            pipe,
            protocol,
            worker: Rc::clone(&worker),
            stash: Vec::new(),
            slots: Slab::new(),
            waiting: VecDeque::new(),
            held: 0,
            over: false,
            leaving: false,
            closed: false,
        };
        Session {
            worker,
            state: RefCell::new(state),
            driver: RefCell::new(Waker::noop().clone()),
            awake: Cell::new(true),
        }
    }

    pub fn state(&self) -> RefMut<'_, State<P>> {
        self.state.borrow_mut()
    }

    /// The driver runs, in this task.
    pub fn begin_turn(&self, context: &Context<'_>) {
        self.awake.set(true);
        let mut driver = self.driver.borrow_mut();
        if !driver.will_wake(context.waker()) {
            driver.clone_from(context.waker());
        }
    }

    /// It has done what it can.
    pub fn end_turn(&self) {
        self.awake.set(false);
    }

    /// Has the driver send what has been said.
    pub fn wake_driver(&self) {
        if !self.awake.replace(true) {
            self.driver.borrow().wake_by_ref();
        }
    }

    // ----- For streams -----

    /// Makes the task that calls it the one that is woken for a stream.
    pub fn watch(&self, key: usize, waker: Waker) {
        self.state().slots[key].task = Some(waker);
    }

    /// Takes content that came; 0 is the end.
    pub fn poll_read(&self, key: usize, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
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
        // With memory that others gave back: what is made anew each time would be one more spare buffer each time.
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

    pub fn take_trailers(&self, key: usize) -> Trailers {
        std::mem::take(&mut self.state().slots[key].trailers)
    }

    /// The next head of a response. An error is told once there are none.
    pub fn poll_answer(&self, key: usize) -> Poll<io::Result<Box<ResponseStart>>> {
        let slot = &mut self.state().slots[key];
        match (slot.answers.pop_front(), slot.lost) {
            (Some(answer), _) => Poll::Ready(Ok(answer)),
            (None, Some(lost)) => Poll::Ready(Err(lost.into())),
            _ => Poll::Pending,
        }
    }

    pub fn lost(&self, key: usize) -> Option<Lost> {
        self.state().slots[key].lost
    }

    /// All of the peer's message has come and been taken, or nothing more of it comes.
    pub fn is_read(&self, key: usize) -> bool {
        let slot = &self.state().slots[key];
        slot.lost.is_some() || slot.ended && slot.incoming.is_empty()
    }

    /// A head has been written, which may be all of the message.
    pub fn head_sent(&self, key: usize, sent: Sent) {
        self.state().slots[key].head = Some(sent);
        self.wake_driver();
    }

    /// All of the content has been given; these follow it.
    pub fn end(&self, key: usize, trailers: Option<&Trailers>) {
        let trailers = trailers.filter(|trailers| trailers.fields().next().is_some());
        self.state().slots[key].end = Some(trailers.cloned().unwrap_or_default());
    }

    pub fn is_blocked(&self, key: usize) -> bool {
        !self.state().slots[key].unsent.is_empty()
    }

    /// Sends what the peer takes and keeps the rest; says how much it took.
    pub fn send(&self, key: usize, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.state();
        let before = state.slots[key].unsent.len();
        if let Some(lost) = state.slots[key].lost {
            return Err(lost.into());
        }
        let taken = if before == 0 { state.pass(key, bytes, usize::MAX) } else { 0 };
        if taken < bytes.len() {
            let State { worker, slots, held, .. } = &mut *state;
            worker.buffers.stash(&mut slots[key].unsent, &bytes[taken..]);
            *held += bytes.len() - taken;
            state.wait(key);
        }
        drop(state);
        self.wake_driver();
        Ok(taken)
    }

    /// Ready with what was sent of what was kept.
    pub fn poll_flush(&self, key: usize) -> Poll<io::Result<usize>> {
        let slot = &mut self.state().slots[key];
        match (slot.lost, std::mem::take(&mut slot.flushed)) {
            (Some(lost), _) => Poll::Ready(Err(lost.into())),
            (None, 0) if !slot.unsent.is_empty() => Poll::Pending,
            (None, flushed) => Poll::Ready(Ok(flushed)),
        }
    }

    /// Sends what the peer takes of `bytes`, and keeps nothing.
    pub fn poll_write(&self, key: usize, bytes: &[u8]) -> Poll<io::Result<usize>> {
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

    /// Bytes that wait for the peer, of all streams.
    pub fn held(&self) -> usize {
        self.state().held
    }

    /// Forgets a stream. One that is not over on both sides is reset: with the one code if our message is not complete,
    /// and with the other if it is.
    pub fn forget(&self, key: usize, incomplete: ErrorCode, complete: ErrorCode) {
        let mut state = self.state();
        let State { protocol, slots, worker, held, waiting, .. } = &mut *state;
        let mut slot = slots.remove(key);
        *held -= slot.unsent.len();
        waiting.retain(|other| *other != key);
        let is_sent = slot.unsent.is_empty() && slot.end.is_none() && protocol.has_sent_all(slot.id);
        worker.buffers.lend(protocol.output());
        protocol.reset(slot.id, if is_sent { complete } else { incomplete });
        // What nobody has taken is taken now: its stream is gone, and others may need the connection's window.
        let untaken = slot.incoming.iter().map(Vec::len).sum::<usize>() - slot.taken;
        protocol.release(slot.id, untaken);
        slot.incoming.iter_mut().for_each(|piece| worker.buffers.release(piece));
        worker.buffers.release(&mut slot.unsent);
        drop(state);
        self.wake_driver();
    }
}

impl<P> State<P> {
    /// A slot for a stream that has begun, or will.
    pub fn add(&mut self, id: u32, ended: bool) -> usize {
        let key = self.slots.insert(Slot { id, ended, ..Slot::default() });
        self.protocol.set_key(id, key);
        key
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

    fn wait(&mut self, key: usize) {
        if !std::mem::replace(&mut self.slots[key].is_waiting, true) {
            self.waiting.push_back(key);
        }
    }

    /// Sends of `bytes` what the windows and the output have room for, and after all of it the end; at most so much.
    fn pass(&mut self, key: usize, bytes: &[u8], most: usize) -> usize {
        self.worker.buffers.lend(self.protocol.output());
        let slot = &mut self.slots[key];
        let head = slot.head.take();
        let ends = slot.end.as_ref().is_some_and(Trailers::is_empty);
        if let (true, true, Some(head)) = (ends, bytes.is_empty(), head) {
            slot.end = None;
            self.protocol.end_with_head(slot.id, head);
            return 0;
        }
        let room = MOST_OUT.saturating_sub(self.protocol.output().len()).min(most);
        let piece = &bytes[..bytes.len().min(room)];
        let is_all = piece.len() == bytes.len();
        let mut taken = 0;
        if !bytes.is_empty() || ends {
            taken = self.protocol.send_data(slot.id, piece, ends && is_all);
        }
        if taken == bytes.len()
            && let Some(trailers) = slot.end.take()
            && !trailers.is_empty()
        {
            self.protocol.send_trailers(slot.id, &trailers);
        }
        taken
    }

    fn wake(&self, key: usize) {
        if let Some(task) = &self.slots[key].task {
            task.wake_by_ref();
        }
    }

    /// Ends a stream for its user.
    pub fn lose(&mut self, key: usize, lost: Lost) {
        if let Some(slot) = self.slots.get_mut(key) {
            slot.lost.get_or_insert(lost);
            self.wake(key);
        }
    }

    /// The same for all that are not complete.
    pub fn lose_all(&mut self, lost: Lost) {
        self.over = true;
        let keys: Vec<usize> = self.slots.iter().map(|(key, _)| key).collect();
        keys.into_iter().for_each(|key| self.lose(key, lost));
    }

    /// The peer will go, and streams after `last` go with it.
    pub fn leaves(&mut self, last: u32, lost: Lost) {
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

    /// Hands out what came. An error is what the connection ends with.
    fn take(&mut self, bytes: &[u8], handler: &mut impl Handler<P>) -> Result<usize, ErrorCode> {
        let mut rest = bytes;
        self.worker.buffers.lend(self.protocol.output());
        while let Some(event) = self.protocol.next(&mut rest, &mut handler.lend())? {
            match event {
                Event::Data { key, bytes, ended } => {
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
                Event::Trailers { key, trailers } => {
                    if !self.slots.contains(key) {
                        continue;
                    }
                    if handler.takes_trailers(self, trailers.len()) {
                        let slot = &mut self.slots[key];
                        (slot.trailers, slot.ended) = (trailers, true);
                        self.wake(key);
                    } else {
                        self.lose(key, Lost::Failed(ErrorCode::ENHANCE_YOUR_CALM));
                    }
                }
                Event::Response { key, ended, parsed } => {
                    let head = handler.answer();
                    let Some(slot) = self.slots.get_mut(key) else { continue };
                    if slot.answers.len() < MOST_HEADS {
                        slot.answers.push_back(Box::new(ResponseStart { head, parsed }));
                    }
                    slot.ended |= ended;
                    self.wake(key);
                }
                Event::Reset { key, code } => self.lose(key, Lost::Reset(code)),
                Event::Failed { key, code } => self.lose(key, Lost::Failed(code)),
                Event::Opened { key: Some(_) | None } => {}
                event => handler.event(self, event),
            }
        }
        Ok(bytes.len() - rest.len())
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

    /// Sends what has been said and what waits, as far as it is taken: in turns, the most urgent first (RFC 9218 §10).
    pub fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let has_passed = self.pass_waiting();
            let mut sent = 0;
            let State { pipe, protocol, worker, .. } = &mut *self;
            while sent < protocol.output().len() {
                match pipe.poll_write(context, &protocol.output()[sent..]) {
                    Poll::Ready(Ok(count)) => sent += count,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => break,
                }
            }
            protocol.credit().sent(sent);
            worker.buffers.consume(protocol.output(), sent);
            if !protocol.output().is_empty() {
                return Poll::Pending;
            }
            // What waited for room in the output may have it now.
            if self.waiting.is_empty() || !has_passed && sent == 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Moves what waits into the output; whether anything was moved.
    fn pass_waiting(&mut self) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        if self.protocol.has_priorities() {
            let State { waiting, slots, protocol, .. } = &mut *self;
            waiting.make_contiguous().sort_by_key(|key| protocol.priority(slots[*key].id).urgency);
        }
        let (mut has_passed, mut idle) = (false, 0);
        while idle < self.waiting.len() && self.protocol.output().len() < MOST_OUT {
            let Some(key) = self.waiting.pop_front() else { break };
            let mut unsent = std::mem::take(&mut self.slots[key].unsent);
            if unsent.is_empty() {
                // It asks anew for what it wants to send, if there is room.
                if self.protocol.room(self.slots[key].id) > 0 {
                    self.slots[key].is_waiting = false;
                    self.wake(key);
                } else {
                    self.waiting.push_back(key);
                    idle += 1;
                }
                continue;
            }
            let taken = self.pass(key, &unsent, TURN);
            self.worker.buffers.consume(&mut unsent, taken);
            self.held -= taken;
            let slot = &mut self.slots[key];
            slot.flushed += taken;
            slot.is_waiting = !unsent.is_empty();
            slot.unsent = unsent;
            idle = if taken > 0 { 0 } else { idle + 1 };
            has_passed |= taken > 0;
            if slot.is_waiting {
                self.waiting.push_back(key);
            }
            if taken > 0 {
                self.wake(key);
            }
        }
        has_passed
    }
}

impl<P> Drop for State<P> {
    fn drop(&mut self) {
        self.worker.buffers.release(&mut self.stash);
        self.worker.buffers.release(self.protocol.output());
    }
}
