//! One stream: the client's side of one exchange.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::Response;
use weir_net::timer::{NEVER, Timer};
use weir_plugin::{Exchange, Stop};
use weir_proto::{Framing, RequestHead, Trailers};

use super::{STREAM_WINDOW, Shared};
use crate::context::WorkerContext;
use crate::context::lifecycle::WorkerPhase;
use crate::message::forward::Coding;
use crate::message::sides::{ClientSide, Pipe, Sending};
use crate::multiplexed::{Outgoing, broken, fields};
use crate::snapshot::ClientSettings;

/// As much of a response as is taken from its upstream at once: what a client does not take is held for each stream.
const ROOM: usize = 16 * 1024;
/// Where this much is held for all streams of a connection, each further one takes little until the client takes some.
const MOST_HELD: usize = 512 * 1024;
const LITTLE: usize = 1024;
/// A stream that lasted this long was not opened to be given up.
const LONG_NS: u64 = 1_000_000_000;
/// How long content behind an early answer is taken and thrown away.
const DISCARD_NS: u64 = 1_000_000_000;

pub struct Stream {
    connection: Rc<Shared>,
    timer: Timer,
    /// Bytes of the request's head and trailers, which the connection counts.
    head_bytes: usize,
    begun_ns: u64,
    /// When the client has no more use for an answer.
    call_deadline_ns: u64,
    receiving: RecvStream,
    /// Content that is still to be received, where the client has said how much there is.
    to_come: Option<u64>,
    /// Content that was received and not read yet.
    piece: Bytes,
    trailers: Trailers,
    respond: SendResponse<Bytes>,
    /// A head that leaves with what follows it.
    head: Option<Response<()>>,
    outgoing: Outgoing,
    /// Always empty: what belongs to another message has a stream of its own.
    stash: Vec<u8>,
}

impl Stream {
    pub(super) fn new(
        connection: Rc<Shared>,
        request: &RequestHead,
        receiving: RecvStream,
        respond: SendResponse<Bytes>,
    ) -> Stream {
        let head_bytes = request.head.bytes().len();
        connection.begin_stream();
        connection.heads.hold(0, head_bytes);
        let to_come = match request.framing {
            Framing::Sized(length) => Some(length),
            _ => None,
        };
        let begun_ns = connection.worker.now_ns();
        Stream {
            timer: connection.worker.wheel.add(),
            head_bytes,
            begun_ns,
            call_deadline_ns: request.timeout_ns().map_or(NEVER, |ns| begun_ns.saturating_add(ns)),
            connection,
            receiving,
            to_come,
            piece: Bytes::new(),
            trailers: Trailers::default(),
            respond,
            head: None,
            outgoing: Outgoing::default(),
            stash: Vec::new(),
        }
    }

    /// Makes the task that calls it the one its timer wakes.
    pub(super) async fn watch(&self) {
        let waker = poll_fn(|context| Poll::Ready(context.waker().clone())).await;
        self.connection.worker.wheel.watch(&self.timer, waker);
    }

    /// Shows the client that its response is not complete.
    pub(super) fn reset(&mut self) {
        self.respond.send_reset(Reason::INTERNAL_ERROR);
    }

    /// Takes what else comes of content that nobody wanted, for a while; not if the client has announced more of it than it
    /// may send without being told that it may. Then the stream ends with a reset, which is no error (RFC 9113 §8.1); and
    /// yet there are clients to whom it is the loss of their answer (curl before 8.0), and who wait for ever when they can
    /// neither send on nor fail.
    pub(super) async fn discard_rest(&mut self) {
        let fits = self.to_come.is_none_or(|to_come| to_come <= u64::from(STREAM_WINDOW));
        if self.receiving.is_end_stream() || !fits {
            return;
        }
        let worker = self.context();
        let deadline_ns = worker.now_ns() + DISCARD_NS;
        self.set_deadline(deadline_ns);
        poll_fn(|context| {
            worker.wake_up();
            loop {
                match self.receiving.poll_data(context) {
                    Poll::Ready(Some(Ok(piece))) => {
                        if self.receiving.flow_control().release_capacity(piece.len()).is_err() {
                            return Poll::Ready(());
                        }
                    }
                    Poll::Ready(_) => return Poll::Ready(()),
                    Poll::Pending if worker.now_ns() >= deadline_ns || worker.phase() != WorkerPhase::Serving => {
                        return Poll::Ready(());
                    }
                    Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await;
    }
}

impl Sending for Stream {
    fn end(&mut self, _: &mut Vec<u8>, _: Coding, trailers: Option<&Trailers>) {
        self.outgoing.end(trailers);
    }

    fn send(&mut self, _: &mut Context<'_>, bytes: &[u8]) -> io::Result<usize> {
        if let Some(head) = self.head.take() {
            let ends = self.outgoing.ends_with_head(bytes);
            self.outgoing.begin(self.respond.send_response(head, ends).map_err(broken)?);
        }
        let before = self.outgoing.held();
        let taken = self.outgoing.send(&self.connection.worker, bytes);
        self.connection.holds(before, self.outgoing.held());
        taken
    }

    fn is_blocked(&self) -> bool {
        self.outgoing.is_blocked()
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let before = self.outgoing.held();
        let taken = self.outgoing.poll_flush(&self.connection.worker, context);
        self.connection.holds(before, self.outgoing.held());
        taken
    }
}

impl ClientSide for Stream {
    type Pipe = Stream;

    fn context(&self) -> Rc<WorkerContext> {
        Rc::clone(self.connection.worker.context())
    }

    fn set_deadline(&self, deadline_ns: u64) {
        self.connection.worker.wheel.set(&self.timer, deadline_ns);
    }

    fn stash(&mut self) -> &mut Vec<u8> {
        &mut self.stash
    }

    /// The window opens as the content is taken from here: not before the upstream has taken what came before it.
    fn poll_read(&mut self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        while self.piece.is_empty() {
            match ready!(self.receiving.poll_data(context)) {
                Some(Ok(piece)) => {
                    self.to_come = self.to_come.map(|to_come| to_come.saturating_sub(piece.len() as u64));
                    self.piece = piece;
                }
                Some(Err(error)) => return Poll::Ready(Err(broken(error))),
                None => {
                    if let Some(trailers) = ready!(self.receiving.poll_trailers(context)).map_err(broken)? {
                        let size = fields::size(&trailers) as usize;
                        if !self.connection.has_room(size) {
                            return Poll::Ready(Err(io::ErrorKind::QuotaExceeded.into()));
                        }
                        self.connection.heads.hold(self.head_bytes, self.head_bytes + size);
                        self.head_bytes += size;
                        self.trailers = fields::read_trailers(&trailers);
                    }
                    return Poll::Ready(Ok(0));
                }
            }
        }
        let count = self.piece.len().min(buffer.len());
        self.piece.copy_to_slice(&mut buffer[..count]);
        self.receiving.flow_control().release_capacity(count).map_err(broken)?;
        Poll::Ready(Ok(count))
    }

    fn take_trailers(&mut self) -> Trailers {
        std::mem::take(&mut self.trailers)
    }

    fn room(&self) -> usize {
        if self.connection.held.get() < MOST_HELD { ROOM } else { LITTLE }
    }

    fn poll_ahead(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        let reset = match self.outgoing.stream() {
            Some(stream) => stream.poll_reset(context),
            None => self.respond.poll_reset(context),
        };
        reset.map(|_| Err(Stop::ClientGone))
    }

    /// The end of a request is not the end of its client.
    fn ended(&self) -> bool {
        false
    }

    fn half_close_deadline_ns(&self, _: &ClientSettings) -> u64 {
        NEVER
    }

    fn call_deadline_ns(&self) -> u64 {
        self.call_deadline_ns
    }

    fn response_head(&mut self, _: &mut Vec<u8>, exchange: &mut Exchange, coding: Coding, _: bool) {
        let head = fields::response(exchange, coding);
        exchange.response_bytes += fields::size(head.headers());
        self.head = Some(head);
    }

    fn interim_head(&mut self, _: &mut Vec<u8>, exchange: &mut Exchange) {
        let head = fields::interim(exchange);
        exchange.response_bytes += fields::size(head.headers());
        // A client that has gone is seen elsewhere.
        let _ = self.respond.send_informational(head);
    }

    fn upgrade_head(&mut self, _: &mut Vec<u8>, exchange: &mut Exchange) {
        self.head = Some(fields::upgraded(exchange));
    }

    fn pipe(&mut self) -> &mut Stream {
        self
    }
}

/// A tunnel within the stream (RFC 8441).
impl Pipe for Stream {
    fn poll_read(&mut self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        ClientSide::poll_read(self, context, buffer)
    }

    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.outgoing.poll_write(context, bytes)
    }

    fn poll_shutdown(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.outgoing.end(None);
        Poll::Ready(self.outgoing.send(&self.connection.worker, b"").map(|_| ()))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.connection.holds(self.outgoing.held(), 0);
        self.outgoing.release(&self.connection.worker);
        self.connection.worker.wheel.remove(&self.timer);
        self.connection.heads.hold(self.head_bytes, 0);
        let now_ns = self.connection.worker.now_ns();
        if now_ns.saturating_sub(self.begun_ns) >= LONG_NS {
            self.connection.watch.borrow_mut().stream_lasted();
        } else if self.call_deadline_ns <= now_ns {
            self.connection.watch.borrow_mut().stream_left();
        }
        self.connection.end_stream();
    }
}
