//! A stream as the client side of one exchange.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

use weir_net::timer::{NEVER, Timer};
use weir_plugin::{Exchange, Stop};
use weir_proto::h2::{ErrorCode, FieldWriter};
use weir_proto::{Framing, RequestHead, Trailers};

use super::{STREAM_WINDOW, Shared};
use crate::connection::accepted::DISCARD_NS;
use crate::connection::left_streams::StreamOutcome;
use crate::context::WorkerContext;
use crate::context::frame::own_waker;
use crate::context::lifecycle::{ServicePhase, WorkerPhase};
use crate::message::fields;
use crate::message::forward::HopFraming;
use crate::message::sides::{ClientSide, Pipe, Sending, StreamLoss};
use crate::worker::Worker;

/// The most bytes of a response that are read from the upstream at once: what a client does not take is held per stream.
const ROOM: usize = 16 * 1024;
/// Once this many bytes are held for all streams of a connection, each stream reads only [`LITTLE`] at once.
const MOST_HELD: usize = 512 * 1024;
const LITTLE: usize = 1024;
/// After an early response, the rest of the request's content is discarded as long as it comes without pauses of this
/// length, up to a total time and this number of bytes.
const PAUSE_NS: u64 = 1_000_000_000;
const DISCARD_BYTES: u64 = 256 * 1024 * 1024;

pub(super) struct H2ClientStream {
    connection: Rc<Shared>,
    key: usize,
    id: u32,
    timer: Timer,
    /// Bytes of the request's head and trailers, which count against the connection's [`crate::connection::heads::Heads`].
    head_bytes: usize,
    begun_ns: u64,
    /// The deadline of the call (`grpc-timeout`), after which the client has no use for a response.
    call_deadline_ns: u64,
    /// The request's `Content-Length`; `None` if it has none.
    announced: Option<u64>,
    /// The status of the response; 0 before its head has been written.
    status: u16,
    /// Always empty: another message has a stream of its own.
    stash: Vec<u8>,
}

impl H2ClientStream {
    pub(super) fn new(connection: Rc<Shared>, key: usize, request: &RequestHead) -> H2ClientStream {
        let worker = &connection.session.worker;
        let begun_ns = worker.now_ns();
        let id = connection.session.state().id(key);
        H2ClientStream {
            key,
            id,
            timer: worker.wheel.add(),
            head_bytes: request.head.bytes().len(),
            begun_ns,
            call_deadline_ns: request.timeout_ns().map_or(NEVER, |ns| begun_ns.saturating_add(ns)),
            announced: match request.framing {
                Framing::Sized(length) => Some(length),
                _ => None,
            },
            status: 0,
            stash: Vec::new(),
            connection,
        }
    }

    pub(super) fn worker(&self) -> Rc<Worker> {
        Rc::clone(&self.connection.worker)
    }

    /// Registers the calling task to be woken by its timer, and by events of the stream.
    pub(super) async fn watch(&self) {
        let waker = own_waker().await;
        self.connection.session.watch(self.key, waker.clone());
        self.connection.session.worker.wheel.watch(&self.timer, waker);
    }

    /// Discards the rest of the content after an early response. Some clients lose the response if the stream is reset
    /// while they send, even with NO_ERROR (RFC 9113 §8.1). Content beyond the limits is ended by such a reset.
    pub(super) async fn discard_rest(&mut self) {
        let session = &self.connection.session;
        // With a response below 300, curl before 8.0 neither reads nor fails before it has sent all its content, and would
        // wait for the window to open until its own time-out. So only content that fits into the window is taken; more is
        // reset at once.
        let fits = self.announced.is_none_or(|length| length <= u64::from(STREAM_WINDOW));
        if session.is_read(self.key) || !(fits || self.status >= 300) {
            return;
        }
        let worker = &session.worker;
        let (begun_ns, mut last_ns, mut discarded) = (worker.now_ns(), worker.now_ns(), 0);
        poll_fn(|_| {
            let now_ns = worker.wake_up();
            loop {
                let read = worker.buffers.with_read_buffer(|buffer| session.poll_read(self.key, buffer));
                match read {
                    Poll::Ready(Ok(count)) if count > 0 && discarded < DISCARD_BYTES => {
                        discarded += count as u64;
                        last_ns = now_ns;
                    }
                    Poll::Ready(_) => return Poll::Ready(()),
                    Poll::Pending => {
                        let deadline_ns = (last_ns + PAUSE_NS).min(begun_ns + DISCARD_NS);
                        if now_ns >= deadline_ns || self.connection.service.phase() != WorkerPhase::Serving {
                            return Poll::Ready(());
                        }
                        worker.wheel.set(&self.timer, deadline_ns);
                        return Poll::Pending;
                    }
                }
            }
        })
        .await;
    }
}

impl Sending for H2ClientStream {
    fn end(&mut self, _: &mut Vec<u8>, _: HopFraming, trailers: Option<&Trailers>) {
        self.connection.session.end(self.key, trailers);
    }

    fn send(&mut self, _: &mut Context<'_>, bytes: &[u8]) -> io::Result<usize> {
        self.connection.session.send(self.key, bytes)
    }

    fn is_blocked(&self) -> bool {
        self.connection.session.is_blocked(self.key)
    }

    fn poll_flush(&mut self, _: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.connection.session.poll_flush(self.key)
    }
}

impl ClientSide for H2ClientStream {
    const MARKS_END: bool = true;

    type Pipe = H2ClientStream;

    fn context(&self) -> Rc<WorkerContext> {
        Rc::clone(&self.connection.session.worker)
    }

    fn service(&self) -> &ServicePhase {
        &self.connection.service
    }

    fn set_deadline(&self, deadline_ns: u64) {
        self.connection.session.worker.wheel.set(&self.timer, deadline_ns);
    }

    fn unread_bytes(&mut self) -> &mut Vec<u8> {
        &mut self.stash
    }

    /// Reading opens the flow-control window: not before the upstream has taken the content before it.
    fn poll_read(&mut self, _: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        self.connection.session.poll_read(self.key, buffer)
    }

    fn take_trailers(&mut self) -> Trailers {
        let trailers = self.connection.session.take_trailers(self.key);
        self.head_bytes += trailers.len();
        trailers
    }

    fn has_ended(&self) -> bool {
        self.connection.session.has_ended(self.key)
    }

    fn room(&self) -> usize {
        if self.connection.session.held() < MOST_HELD { ROOM } else { LITTLE }
    }

    fn poll_read_ahead(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        match self.connection.session.lost(self.key) {
            Some(_) => Poll::Ready(Err(Stop::ClientGone)),
            None => Poll::Pending,
        }
    }

    fn call_deadline_ns(&self) -> u64 {
        self.call_deadline_ns
    }

    fn response_head(&mut self, _: &mut Vec<u8>, exchange: &mut Exchange, coding: HopFraming, _: bool) {
        let (session, status) = (&self.connection.session, exchange.response.status);
        let write = |writer: &mut FieldWriter<'_>| fields::response(writer, exchange, coding);
        let sent = session.state().writable_protocol().respond(self.id, status, false, write);
        session.head_sent(self.key, sent);
        exchange.response_bytes += sent.bytes as u64;
        self.status = status;
    }

    fn interim_head(&mut self, _: &mut Vec<u8>, exchange: &mut Exchange) {
        let (session, status) = (&self.connection.session, exchange.response.status);
        let sent = session
            .state()
            .writable_protocol()
            .respond(self.id, status, false, |writer| fields::interim(writer, exchange));
        session.wake_driver();
        exchange.response_bytes += sent.bytes as u64;
    }

    fn upgrade_head(&mut self, _: &mut Vec<u8>, exchange: &mut Exchange) {
        let session = &self.connection.session;
        let sent = session
            .state()
            .writable_protocol()
            .respond(self.id, 200, false, |writer| fields::upgraded(writer, exchange));
        session.wake_driver();
        exchange.response_bytes += sent.bytes as u64;
    }

    fn pipe(&mut self) -> &mut H2ClientStream {
        self
    }
}

/// A tunnel within the stream (RFC 8441).
impl Pipe for H2ClientStream {
    fn poll_read(&mut self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        ClientSide::poll_read(self, context, buffer)
    }

    fn poll_write(&mut self, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.connection.session.poll_write(self.key, bytes)
    }

    fn poll_shutdown(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let session = &self.connection.session;
        session.end(self.key, None);
        Poll::Ready(session.send(self.key, b"").map(|_| ()))
    }
}

impl Drop for H2ClientStream {
    fn drop(&mut self) {
        let session = &self.connection.session;
        let now_ns = session.worker.now_ns();
        session.worker.wheel.remove(&self.timer);
        let trailers = session.untaken_trailers(self.key);
        self.connection.heads.hold(self.head_bytes + trailers, 0);
        self.connection.idle_since_ns.set(now_ns);
        let responses_end = {
            let mut state = session.state();
            state.sent_bytes() + state.protocol.output().len() as u64
        };
        self.connection.responses_end.set(responses_end);
        let end = StreamOutcome {
            lasted_ns: now_ns.saturating_sub(self.begun_ns),
            was_left: matches!(session.lost(self.key), Some(StreamLoss::Reset(_))),
            has_response: self.status != 0,
            call_deadline_ns: self.call_deadline_ns,
            now_ns,
        };
        if let Some(charge) = end.charge() {
            charge.apply(session.state().protocol.credit());
        }
        // An incomplete response is reset with an error; with a complete one, the client is only told to stop sending (RFC
        // 9113 §8.1).
        session.forget(self.key, ErrorCode::INTERNAL_ERROR, ErrorCode::NO_ERROR);
    }
}
