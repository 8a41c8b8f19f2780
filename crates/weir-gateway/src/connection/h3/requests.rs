//! The requests of a connection, until each has a task of its own.

use std::rc::Rc;
use std::task::Poll;

use weir_net::quic::StreamId;
use weir_net::timer::NEVER;
use weir_plugin::Stop;
use weir_proto::h1::Reject;
use weir_proto::h3::{H3ErrorCode, H3Fault, head};
use weir_proto::{Framing, Method, RequestHead};

use super::connection::H3Connection;
use super::slot::{SlotAhead, SlotPart};
use super::state::{H3State, prioritize};
use super::stream::H3ClientStream;
use crate::context::frame::boxed;
use crate::message::websocket_handshake::add_websocket_key;
use crate::serve::serve;

/// How long the end of a request that has no content in all likelihood may come after its head began.
pub(super) const UNDECIDED_NS: u64 = 1_000_000_000;

/// Reads the head of a request, as far as it has come, and begins its exchange once it is complete.
pub(super) fn begin(connection: &Rc<H3Connection>, state: &mut H3State, id: StreamId) {
    let section = loop {
        let Some(slot) = state.slots.get_mut(&id) else { return };
        if slot.head.is_some() {
            // Any frame wakes the stream: its head is parsed once more only when it is decided.
            match slot.look_ahead(id, &mut state.quic, || state.credit.empty_frame()) {
                Ok(SlotAhead::Unknown) => return state.credit.empty_frame(),
                Ok(SlotAhead::End | SlotAhead::Part) => break slot.head.take(),
                Err(fault) => {
                    connection.fault(state, id, fault);
                    state.slots.remove(&id);
                    return;
                }
            }
        }
        let quic = &mut state.quic;
        let part = connection.worker.buffers.with_read_buffer(|buffer| slot.poll_part(id, quic, buffer));
        match part {
            Poll::Pending if slot.held_sections() > 0 && state.has_too_many_sections() => {
                connection.fault(state, id, H3Fault::Stream(H3ErrorCode::H3_EXCESSIVE_LOAD));
                state.slots.remove(&id);
                return;
            }
            Poll::Pending => return,
            Poll::Ready(Ok(SlotPart::Empty)) => state.credit.empty_frame(),
            Poll::Ready(Ok(SlotPart::Head(section))) => {
                state.sections += section.len() as u64;
                break Some(section);
            }
            Poll::Ready(Ok(SlotPart::HeadTooLong)) => break None,
            // The reader refuses everything else before the head.
            Poll::Ready(Ok(_)) => return,
            Poll::Ready(Err(fault)) => {
                connection.fault(state, id, fault);
                state.slots.remove(&id);
                return;
            }
        }
    };
    start_or_end(connection, state, id, section, true);
}

/// Begins the exchanges of requests whose end has not come soon after their heads, as of requests with content.
pub(super) fn begin_undecided(connection: &Rc<H3Connection>, state: &mut H3State, now_ns: u64) {
    if state.undecided_until_ns > now_ns {
        return;
    }
    state.undecided_until_ns = NEVER;
    let heads = state.slots.iter_mut().filter(|(_, slot)| slot.head.is_some());
    let ids: Vec<StreamId> = heads.map(|(id, _)| *id).collect();
    for id in ids {
        let Some(slot) = state.slots.get_mut(&id) else { continue };
        if slot.begun_ns + UNDECIDED_NS > now_ns {
            state.undecided_until_ns = state.undecided_until_ns.min(slot.begun_ns + UNDECIDED_NS);
            continue;
        }
        let section = slot.head.take();
        start_or_end(connection, state, id, section, false);
    }
}

/// Begins the exchange of a request, or ends its stream.
fn start_or_end(
    connection: &Rc<H3Connection>,
    state: &mut H3State,
    id: StreamId,
    section: Option<Vec<u8>>,
    may_wait: bool,
) {
    if let Err(fault) = start(connection, state, id, section, may_wait) {
        connection.fault(state, id, fault);
        state.slots.remove(&id);
    }
}

/// `section`: `None` if it is too long. `may_wait`: the request may wait for its end.
fn start(
    connection: &Rc<H3Connection>,
    state: &mut H3State,
    id: StreamId,
    section: Option<Vec<u8>>,
    may_wait: bool,
) -> Result<(), H3Fault> {
    let worker = &connection.worker;
    let mut exchange = worker.buffers.take_exchange();
    let parsed = match &section {
        None => Err(Reject::HeadTooLarge),
        Some(section) => parse(connection, state, id, section, &mut exchange.request)?,
    };
    if parsed.is_ok() && is_undecided(state, id, &mut exchange.request)? && may_wait {
        if let Some(slot) = state.slots.get_mut(&id) {
            slot.head = section;
            state.undecided_until_ns = state.undecided_until_ns.min(slot.begun_ns + UNDECIDED_NS);
        }
        worker.buffers.recycle_exchange(exchange);
        return match state.has_too_many_sections() {
            true => Err(H3Fault::Stream(H3ErrorCode::H3_EXCESSIVE_LOAD)),
            false => Ok(()),
        };
    }
    if parsed == Err(Reject::Malformed) {
        worker.buffers.recycle_exchange(exchange);
        return Err(H3Fault::Stream(H3ErrorCode::H3_MESSAGE_ERROR));
    }
    connection.requests.set(connection.requests.get() + 1);
    let size = exchange.request.head.bytes().len();
    let has_room = state.slots.len() <= 1 || connection.heads.have_room(size, state.sections);
    if !has_room {
        worker.metrics.errors.increment("too_many_heads");
        worker.buffers.recycle_exchange(exchange);
        // RFC 9114 §4.1.1: the client may send the request again.
        return Err(H3Fault::Stream(H3ErrorCode::H3_REQUEST_REJECTED));
    }
    if let (Framing::Sized(length), Ok(()), Some(slot)) = (exchange.request.framing, parsed, state.slots.get_mut(&id)) {
        slot.reader.announce(length);
    }
    connection.describe(&mut exchange);
    exchange.request_bytes = size as u64;
    match parsed {
        Ok(()) if exchange.request.upgrade => add_websocket_key(&mut exchange),
        Ok(()) => {}
        Err(reject) => exchange.end_by(Stop::Rejected(reject)),
    }
    let held = exchange.request.head.bytes().len();
    connection.heads.hold(0, held);
    let stream = H3ClientStream::new(Rc::clone(connection), id, &exchange.request);
    if let Some(slot) = state.slots.get_mut(&id) {
        slot.task = Some(std::task::Waker::noop().clone());
    }
    // Boxed, because the runtime moves the future several times before it is polled.
    tokio::task::spawn_local(boxed(|| run(stream, exchange)));
    Ok(())
}

/// Makes a head of the section.
fn parse(
    connection: &H3Connection,
    state: &mut H3State,
    id: StreamId,
    section: &[u8],
    request: &mut RequestHead,
) -> Result<Result<(), Reject>, H3Fault> {
    let limits = connection.worker.current().snapshot.clients.limits;
    let ended = state.slots.get_mut(&id).is_some_and(|slot| slot.poll_end(id, &mut state.quic));
    let read = head::read_request(section, ended, &limits, request).map_err(H3Fault::Connection)?;
    // RFC 9218 §7: what the client has said later counts, in whatever order it comes.
    let is_updated = state.slots.get(&id).is_some_and(|slot| slot.has_priority_update);
    if let Some(priority) = read.priority.filter(|_| !is_updated) {
        prioritize(&mut state.quic, id, priority);
    }
    Ok(read.parsed)
}

/// Whether a request that has no content in all likelihood may still have some: many clients send the end of the stream after the head,
/// in a packet of its own. With content of unknown length it would be neither cached nor tried again elsewhere.
fn is_undecided(state: &mut H3State, id: StreamId, request: &mut RequestHead) -> Result<bool, H3Fault> {
    let is_bare =
        matches!(request.method, Method::Get | Method::Head | Method::Options | Method::Delete | Method::Trace);
    if !is_bare || request.framing != Framing::UntilClose || request.expects_continue {
        return Ok(false);
    }
    let H3State { slots, quic, credit, .. } = state;
    let Some(slot) = slots.get_mut(&id) else { return Ok(false) };
    let ahead = slot.look_ahead(id, quic, || credit.empty_frame())?;
    if matches!(ahead, SlotAhead::End) {
        request.framing = Framing::None;
    }
    Ok(matches!(ahead, SlotAhead::Unknown))
}

async fn run(mut stream: H3ClientStream, exchange: Box<crate::context::served_exchange::ServedExchange>) {
    stream.watch().await;
    let worker = stream.worker();
    serve(&worker, &mut stream, exchange).await;
}
