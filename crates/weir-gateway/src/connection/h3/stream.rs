//! A stream as the client side of one exchange.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

use weir_net::quic::StreamId;
use weir_net::timer::{NEVER, Timer};
use weir_plugin::{Exchange, Stop};
use weir_proto::h3::{H3ErrorCode, H3Fault, head};
use weir_proto::{RequestHead, Trailers};

use super::connection::H3Connection;
use super::slot::{RequestSlot, SlotPart};
use super::state::code;
use crate::connection::left_streams::StreamOutcome;
use crate::context::WorkerContext;
use crate::context::frame::own_waker;
use crate::context::lifecycle::ServicePhase;
use crate::message::fields;
use crate::message::forward::HopFraming;
use crate::message::sides::{ClientSide, Pipe, Sending, StreamLoss};
use crate::worker::Worker;

/// The most bytes of a response that are read from the upstream at once.
const ROOM: usize = 16 * 1024;

pub(super) struct H3ClientStream {
    connection: Rc<H3Connection>,
    id: StreamId,
    timer: Timer,
    /// Bytes of the request's head and trailers, which count against the connection's heads.
    head_bytes: usize,
    begun_ns: u64,
    has_response: bool,
    /// The deadline of the call (`grpc-timeout`), after which the client has no use for a response.
    call_deadline_ns: u64,
    /// The trailers that end the message, after the content that is given to `send` next.
    ending: Option<Trailers>,
    /// Always empty: another message has a stream of its own.
    stash: Vec<u8>,
}

impl H3ClientStream {
    pub(super) fn new(connection: Rc<H3Connection>, id: StreamId, request: &RequestHead) -> H3ClientStream {
        let worker = &connection.worker;
        let begun_ns = worker.now_ns();
        H3ClientStream {
            id,
            timer: worker.wheel.add(),
            head_bytes: request.head.bytes().len(),
            call_deadline_ns: request.timeout_ns().map_or(NEVER, |ns| begun_ns.saturating_add(ns)),
            begun_ns,
            has_response: false,
            ending: None,
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
        self.with(|slot| slot.task = Some(waker.clone()));
        self.connection.worker.wheel.watch(&self.timer, waker);
    }

    fn with<T>(&self, each: impl FnOnce(&mut RequestSlot) -> T) -> Option<T> {
        self.connection.state.borrow_mut().slots.get_mut(&self.id).map(each)
    }

    fn lost(&self) -> Option<StreamLoss> {
        self.with(|slot| slot.lost).unwrap_or(Some(StreamLoss::Connection))
    }

    /// Appends to what waits, and gives QUIC what it takes of that.
    fn write(&self, append: impl FnOnce(&mut RequestSlot)) -> io::Result<usize> {
        let mut state = self.connection.state.borrow_mut();
        let state = &mut *state;
        let Some(slot) = state.slots.get_mut(&self.id) else { return Err(StreamLoss::Connection.into()) };
        if let Some(lost) = slot.lost {
            return Err(lost.into());
        }
        append(slot);
        let flushed = self.connection.flush(state, self.id);
        self.connection.touch();
        match state.slots.get(&self.id).and_then(|slot| slot.lost) {
            Some(lost) => Err(lost.into()),
            None => Ok(flushed),
        }
    }

    fn poll_content(&mut self, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let connection = Rc::clone(&self.connection);
        let mut state = connection.state.borrow_mut();
        let state = &mut *state;
        loop {
            let Some(slot) = state.slots.get_mut(&self.id) else {
                return Poll::Ready(Err(StreamLoss::Connection.into()));
            };
            if slot.has_ended() {
                return Poll::Ready(Ok(0));
            }
            if let Some(lost) = slot.lost {
                return Poll::Ready(Err(lost.into()));
            }
            let fault = match slot.poll_part(self.id, &mut state.quic, buffer) {
                Poll::Pending => {
                    if slot.reader.held() == 0 || !state.has_too_many_sections() {
                        return Poll::Pending;
                    }
                    H3Fault::Stream(H3ErrorCode::H3_EXCESSIVE_LOAD)
                }
                Poll::Ready(Ok(SlotPart::Content(count))) => {
                    connection.worker.metrics.client_bytes_received.add(count as u64);
                    state.credit.received();
                    connection.touch(); // the client may be told that it may send more
                    return Poll::Ready(Ok(count));
                }
                Poll::Ready(Ok(SlotPart::End)) => return Poll::Ready(Ok(0)),
                // RFC 9114 §4.4.
                Poll::Ready(Ok(SlotPart::Trailers(_))) if slot.is_tunnel => {
                    H3Fault::Connection(H3ErrorCode::H3_FRAME_UNEXPECTED)
                }
                Poll::Ready(Ok(SlotPart::Trailers(section))) => {
                    state.sections += section.len() as u64;
                    let limits = connection.worker.current().snapshot.clients.limits;
                    match head::read_trailers(&section, &limits) {
                        Ok(trailers) if connection.heads.have_room(trailers.len(), state.sections) => {
                            connection.heads.hold(0, trailers.len());
                            self.head_bytes += trailers.len();
                            slot.trailers = trailers;
                            continue;
                        }
                        Ok(_) => H3Fault::Stream(H3ErrorCode::H3_EXCESSIVE_LOAD),
                        Err(fault) => fault,
                    }
                }
                Poll::Ready(Ok(_)) => {
                    state.credit.empty_frame();
                    connection.touch(); // the driver looks at the credit
                    continue;
                }
                Poll::Ready(Err(fault)) => fault,
            };
            connection.fault(state, self.id, fault);
        }
    }
}

impl Sending for H3ClientStream {
    fn end(&mut self, _: &mut Vec<u8>, _: HopFraming, trailers: Option<&Trailers>) {
        self.ending = Some(trailers.cloned().unwrap_or_default());
    }

    fn send(&mut self, _: &mut Context<'_>, bytes: &[u8]) -> io::Result<usize> {
        let (buffers, ending) = (&self.connection.worker.buffers, self.ending.take());
        let mut before = 0;
        let flushed = self.write(|slot| {
            before = slot.held();
            if !bytes.is_empty() {
                slot.append_content(buffers, bytes);
            }
            if let Some(trailers) = &ending {
                slot.end(buffers, Some(trailers));
            }
        })?;
        Ok(flushed.saturating_sub(before).min(bytes.len()))
    }

    fn is_blocked(&self) -> bool {
        self.with(|slot| slot.is_blocked()).unwrap_or(false)
    }

    fn poll_flush(&mut self, _: &mut Context<'_>) -> Poll<io::Result<usize>> {
        match self.write(|_| {}) {
            Ok(0) if self.is_blocked() => Poll::Pending,
            flushed => Poll::Ready(flushed),
        }
    }
}

impl ClientSide for H3ClientStream {
    const MARKS_END: bool = true;

    type Pipe = H3ClientStream;

    fn context(&self) -> Rc<WorkerContext> {
        Rc::clone(self.connection.worker.context())
    }

    fn service(&self) -> &ServicePhase {
        self.connection.worker.service()
    }

    fn set_deadline(&self, deadline_ns: u64) {
        self.connection.worker.wheel.set(&self.timer, deadline_ns);
    }

    fn unread_bytes(&mut self) -> &mut Vec<u8> {
        &mut self.stash
    }

    /// Reading opens the flow-control window: not before the upstream has taken the content before it.
    fn poll_read(&mut self, _: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        self.poll_content(buffer)
    }

    fn take_trailers(&mut self) -> Trailers {
        self.with(|slot| std::mem::take(&mut slot.trailers)).unwrap_or_default()
    }

    fn has_ended(&self) -> bool {
        let mut state = self.connection.state.borrow_mut();
        let state = &mut *state;
        state.slots.get_mut(&self.id).is_some_and(|slot| slot.poll_end(self.id, &mut state.quic))
    }

    fn room(&self) -> usize {
        ROOM
    }

    fn poll_read_ahead(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        match self.lost() {
            Some(_) => Poll::Ready(Err(Stop::ClientGone)),
            None => Poll::Pending,
        }
    }

    fn call_deadline_ns(&self) -> u64 {
        self.call_deadline_ns
    }

    fn response_head(&mut self, _: &mut Vec<u8>, exchange: &mut Exchange, coding: HopFraming, _: bool) {
        let mut frame = Vec::new();
        let status = exchange.response.status;
        let bytes = head::write_response(&mut frame, status, |writer| fields::response(writer, exchange, coding));
        self.has_response = true;
        self.write_head(&frame);
        exchange.response_bytes += bytes as u64;
    }

    fn interim_head(&mut self, _: &mut Vec<u8>, exchange: &mut Exchange) {
        let mut frame = Vec::new();
        let status = exchange.response.status;
        let bytes = head::write_response(&mut frame, status, |writer| fields::interim(writer, exchange));
        self.write_head(&frame);
        exchange.response_bytes += bytes as u64;
    }

    fn upgrade_head(&mut self, _: &mut Vec<u8>, exchange: &mut Exchange) {
        let mut frame = Vec::new();
        let bytes = head::write_response(&mut frame, 200, |writer| fields::upgraded(writer, exchange));
        self.write_head(&frame);
        self.with(|slot| slot.is_tunnel = true);
        exchange.response_bytes += bytes as u64;
    }

    fn pipe(&mut self) -> &mut H3ClientStream {
        self
    }
}

impl H3ClientStream {
    fn write_head(&self, frame: &[u8]) {
        // A stream that is lost is noticed at the next step of the exchange.
        let _ = self.write(|slot| slot.append(&self.connection.worker.buffers, frame));
    }
}

/// A tunnel within the stream (RFC 9220).
impl Pipe for H3ClientStream {
    fn poll_read(&mut self, _: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        self.poll_content(buffer)
    }

    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.is_blocked() && Sending::poll_flush(self, context)?.is_pending() {
            return Poll::Pending;
        }
        if self.is_blocked() {
            return Poll::Pending;
        }
        let buffers = &self.connection.worker.buffers;
        Poll::Ready(self.write(|slot| slot.append_content(buffers, bytes)).map(|_| bytes.len()))
    }

    fn is_flushed(&self) -> bool {
        !self.is_blocked()
    }

    /// Ready once QUIC has the end: without it, the stream is reset when the tunnel ends.
    fn poll_shutdown(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.write(|slot| slot.end(&self.connection.worker.buffers, None))?;
        match self.is_blocked() {
            true => Poll::Pending,
            false => Poll::Ready(Ok(())),
        }
    }
}

impl Drop for H3ClientStream {
    fn drop(&mut self) {
        let connection = &self.connection;
        let worker = &connection.worker;
        worker.wheel.remove(&self.timer);
        connection.heads.hold(self.head_bytes, 0);
        let now_ns = worker.now_ns();
        connection.idle_since_ns.set(now_ns);
        let mut state = connection.state.borrow_mut();
        let state = &mut *state;
        if let Some(mut slot) = state.slots.remove(&self.id) {
            let end = StreamOutcome {
                lasted_ns: now_ns.saturating_sub(self.begun_ns),
                was_left: matches!(slot.lost, Some(StreamLoss::Reset(_))),
                has_response: self.has_response,
                call_deadline_ns: self.call_deadline_ns,
                now_ns,
            };
            end.charge().into_iter().for_each(|charge| charge.apply(&mut state.credit));
            if !slot.finished {
                // The response is not whole: RFC 9114 §4.1.1. For tunnels: RFC 9220 §3.
                let error = match slot.is_tunnel {
                    true => H3ErrorCode::H3_REQUEST_CANCELLED,
                    false => H3ErrorCode::H3_INTERNAL_ERROR,
                };
                let _ = state.quic.send_stream(self.id).reset(code(error));
            }
            if !slot.has_ended() {
                // §4.1: the rest of the request is not needed. The response is not affected.
                let _ = state.quic.recv_stream(self.id).stop(code(H3ErrorCode::H3_NO_ERROR));
            }
            slot.release(&worker.buffers);
        }
        state.forget_places();
        connection.touch();
    }
}
