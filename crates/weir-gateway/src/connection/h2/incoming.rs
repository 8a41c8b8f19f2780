//! The requests received on a connection, until each has a task of its own.

use std::rc::Rc;

use weir_plugin::Stop;
use weir_proto::h1::Reject;
use weir_proto::h2::{ConnectionEvent, ErrorCode, HeadTarget};

use super::Shared;
use super::stream::H2ClientStream;
use crate::connection::accepted::Accepted;
use crate::context::frame::boxed;
use crate::context::served_exchange::ServedExchange;
use crate::http2::{Handler, State};
use crate::message::AfterExchange;
use crate::message::websocket_handshake::add_websocket_key;
use crate::serve::serve;

/// Creates the exchanges of a connection's requests.
pub(super) struct Incoming {
    shared: Rc<Shared>,
    /// The next exchange, into which the next head is parsed.
    next: Option<Box<ServedExchange>>,
    /// Exchanges that began in this wake-up: some may be reset before it is over.
    begun: Vec<(usize, Box<ServedExchange>)>,
    pub(super) requests: u64,
    pub(super) now_ns: u64,
}

impl Incoming {
    pub(super) fn new(shared: Rc<Shared>) -> Incoming {
        Incoming { shared, next: None, begun: Vec::new(), requests: 0, now_ns: 0 }
    }

    /// Starts the tasks of the new exchanges whose streams have not been reset.
    pub(super) fn begin_streams(&mut self) {
        let worker = &self.shared.session.worker;
        if let Some(next) = self.next.take() {
            worker.buffers.recycle_exchange(next);
        }
        for (key, exchange) in self.begun.drain(..) {
            let stream = H2ClientStream::new(Rc::clone(&self.shared), key, &exchange.request);
            if self.shared.session.lost(key).is_some() {
                worker.metrics.errors.increment(Stop::ClientGone.ending().name); // the stream has been reset
                worker.buffers.recycle_exchange(exchange);
                continue;
            }
            // Boxed, because the runtime moves the future several times before it is polled.
            tokio::task::spawn_local(boxed(|| run(stream, exchange)));
        }
    }

    fn request(&mut self, state: &mut State<Accepted>, stream: u32, ended: bool, parsed: Result<(), Reject>) {
        let worker = &self.shared.session.worker;
        let mut exchange = self.next.take().expect("its head was lent");
        self.requests += 1;
        let size = exchange.request.head.bytes().len();
        if !self.shared.has_room(state.len(), size, state.protocol.sections()) {
            // RFC 9113 §8.7: the client may send the request again once other streams have ended.
            state.protocol.reset(stream, ErrorCode::REFUSED_STREAM);
            return worker.buffers.recycle_exchange(exchange);
        }
        state.pipe.describe(&mut exchange, self.requests, self.now_ns);
        exchange.request_bytes = size as u64;
        match parsed {
            Ok(()) if exchange.request.upgrade => add_websocket_key(&mut exchange),
            Ok(()) => {}
            Err(reject) => exchange.end_by(Stop::Rejected(reject)),
        }
        // Including the added key of a WebSocket, since the stream returns the bytes of the whole head.
        self.shared.heads.hold(0, exchange.request.head.bytes().len());
        self.begun.push((state.add(stream, ended), exchange));
    }
}

async fn run(mut stream: H2ClientStream, exchange: Box<ServedExchange>) {
    stream.watch().await;
    let worker = stream.worker();
    match serve(&worker, &mut stream, exchange).await {
        AfterExchange::KeepAlive | AfterExchange::Close | AfterExchange::Finish => stream.discard_rest().await,
        AfterExchange::Abort | AfterExchange::Reset => {}
    }
}

impl Handler<Accepted> for Incoming {
    fn lend(&mut self) -> HeadTarget<'_> {
        let worker = &self.shared.session.worker;
        HeadTarget::Request(&mut self.next.get_or_insert_with(|| worker.buffers.take_exchange()).request)
    }

    fn event(&mut self, state: &mut State<Accepted>, event: ConnectionEvent<'_>) {
        match event {
            ConnectionEvent::Request { stream, ended, parsed } => self.request(state, stream, ended, parsed),
            ConnectionEvent::Malformed { .. } => {
                self.shared.session.worker.metrics.errors.increment(Reject::Malformed.name());
                if let Some(next) = &mut self.next {
                    next.request.clear();
                }
            }
            _ => {} // a GOAWAY of the client needs no action: the client closes the connection itself
        }
    }

    fn takes_trailers(&mut self, state: &State<Accepted>, bytes: usize) -> bool {
        let takes = self.shared.has_room(state.len().saturating_sub(1), bytes, state.protocol.sections());
        if takes {
            self.shared.heads.hold(0, bytes);
        }
        takes
    }
}
