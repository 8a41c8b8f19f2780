//! One HTTP/2 client connection: its streams are exchanges like any other, each in a task of its own.

mod heads;
mod stream;

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use base64::prelude::{BASE64_STANDARD, Engine};
use bytes::Bytes;
use h2::server::{Builder, SendResponse};
use h2::{Reason, RecvStream};
use http::Request;
use weir_plugin::{Exchange, Stop};
use weir_proto::h1::Reject;
use weir_proto::h2::Watch;

use super::accepted::Accepted;
use super::{After, in_time};
use crate::context::lifecycle::WorkerPhase;
use crate::message::sides::Pipe;
use crate::multiplexed::{Io, fields};
use crate::serve::serve;
use crate::snapshot::ClientSettings;
use crate::worker::Worker;

use heads::Heads;
use stream::Stream;

/// Content a client may send on one stream, and on all of them, before somebody has taken it.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Content of one response that the library may hold.
const SEND_BUFFER: usize = 16 * 1024;
/// Streams that we reset because of what the client did on them; more end the connection (CVE-2025-8671).
const MOST_LOCAL_RESETS: usize = 100;
/// How long a client may take to go once it has been told to.
const FAREWELL_NS: u64 = 5_000_000_000;

/// What the streams of a connection share.
struct Shared {
    accepted: RefCell<Accepted>,
    worker: Rc<Worker>,
    watch: RefCell<Watch>,
    streams: Cell<usize>,
    heads: Heads,
    /// Bytes of responses that the client does not take yet, of all streams.
    held: Cell<usize>,
    /// When the last stream ended, or the connection began.
    idle_since_ns: Cell<u64>,
}

/// Serves one connection from its preface, which may stand in the stash already, to its close.
pub async fn run(accepted: Accepted) {
    let worker = Rc::clone(&accepted.worker);
    accepted.watch().await;
    let (builder, patience_ns, head_bytes, most_streams) = {
        let current = worker.current();
        let settings = &current.snapshot.clients;
        let patience_ns = settings.header_timeout.as_nanos() as u64;
        (builder(settings), patience_ns, settings.limits.head_bytes, settings.concurrent_streams as usize)
    };
    let shared = Rc::new(Shared {
        watch: RefCell::new(Watch::new(worker.now_ns(), head_bytes)),
        accepted: RefCell::new(accepted),
        streams: Cell::new(0),
        heads: Heads::new(most_streams),
        held: Cell::new(0),
        idle_since_ns: Cell::new(worker.now_ns()),
        worker,
    });
    let worker = &shared.worker;
    let io = Io::new(Watched(Rc::clone(&shared)), Rc::clone(worker));
    let library = match in_time(worker, patience_ns, builder.handshake(io)).await {
        Some(Ok(library)) => library,
        None => return,
        Some(Err(error)) => {
            tracing::debug!("HTTP/2 with {}: {error}", shared.accepted.borrow().peer);
            // RFC 9113 §3.4: it may end without a word. It ends in order, as others see a reset as something else.
            let shared = Rc::into_inner(shared).expect("the bytes went with the handshake");
            return shared.accepted.into_inner().linger().await;
        }
    };
    let mut connection = Connection { library, shared: &shared, requests: 0, last_words_ns: None };
    std::future::poll_fn(|context| connection.poll(context)).await;
    shared.accepted.borrow_mut().stream.send_close_notify();
}

fn builder(settings: &ClientSettings) -> Builder {
    let mut builder = Builder::new();
    builder
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(settings.concurrent_streams)
        .max_header_list_size(settings.limits.head_bytes as u32)
        .max_send_buffer_size(SEND_BUFFER)
        .max_local_error_reset_streams(Some(MOST_LOCAL_RESETS))
        .enable_connect_protocol();
    builder
}

struct Connection<'a> {
    library: h2::server::Connection<Io<Watched>, Bytes>,
    shared: &'a Rc<Shared>,
    requests: u64,
    /// By when the client must have gone, once it has been told to.
    last_words_ns: Option<u64>,
}

impl Connection<'_> {
    /// Ready when the connection is over.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let now_ns = self.shared.worker.wake_up();
        loop {
            match self.library.poll_accept(context) {
                Poll::Ready(Some(Ok((request, respond)))) => self.begin(context, request, respond, now_ns),
                Poll::Ready(Some(Err(error))) => {
                    tracing::debug!("HTTP/2 with {}: {error}", self.shared.accepted.borrow().peer);
                    let was_told = self.last_words_ns.is_some_and(|at| at != u64::MAX);
                    if error.is_library() && error.reason() == Some(Reason::ENHANCE_YOUR_CALM) && !was_told {
                        self.shared.worker.metrics.errors.increment("flood");
                    }
                    return Poll::Ready(());
                }
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Pending if self.ends_now(now_ns) => {}
                Poll::Pending => break,
            }
        }
        self.shared.watch.borrow_mut().look();
        self.keep_deadlines(now_ns)
    }

    /// Whether it was just told to end, which the library has to hear of at once.
    fn ends_now(&mut self, now_ns: u64) -> bool {
        let is_flood = self.shared.watch.borrow().is_exhausted();
        if is_flood && self.last_words_ns.is_none_or(|at| at == u64::MAX) {
            self.shared.worker.metrics.errors.increment("flood");
            self.library.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
            self.last_words_ns = Some(now_ns + FAREWELL_NS);
            return true;
        }
        let current = self.shared.worker.current();
        let most = current.snapshot.clients.keepalive_requests;
        let is_worn = most.is_some_and(|most| self.requests >= most);
        if self.last_words_ns.is_none() && (is_worn || self.shared.worker.phase() == WorkerPhase::Draining) {
            // RFC 9113 §6.8: first that it will end, and a round trip later with which stream.
            self.library.graceful_shutdown();
            self.last_words_ns = Some(u64::MAX);
            return true;
        }
        false
    }

    fn begin(
        &mut self,
        context: &mut Context<'_>,
        request: Request<RecvStream>,
        mut respond: SendResponse<Bytes>,
        now_ns: u64,
    ) {
        let (shared, worker) = (self.shared, &self.shared.worker);
        self.requests += 1;
        if shared.watch.borrow().has_reset() && respond.poll_reset(context).is_ready() {
            return worker.metrics.errors.increment(Stop::ClientGone.ending().name); // nobody is there to be served
        }
        let size = fields::size(request.headers());
        if !shared.has_room(size as usize) {
            // RFC 9113 §8.7: it may be sent again, when others have ended.
            return respond.send_reset(Reason::REFUSED_STREAM);
        }
        let mut exchange = worker.buffers.take_exchange();
        shared.accepted.borrow().describe(&mut exchange, self.requests, now_ns);
        let ended = request.body().is_end_stream();
        let current = worker.current();
        match fields::read_request(&request, ended, &current.snapshot.clients.limits, &mut exchange.request) {
            Ok(()) if exchange.request.upgrade => add_websocket_key(&mut exchange),
            Ok(()) => {}
            Err(Reject::Malformed) => {
                worker.metrics.errors.increment(Reject::Malformed.name());
                worker.buffers.give_exchange(exchange);
                return respond.send_reset(Reason::PROTOCOL_ERROR);
            }
            Err(reject) => exchange.stop = Some(Stop::Rejected(reject)),
        }
        exchange.request_bytes = size;
        let worker = Rc::clone(&shared.worker);
        let mut stream = Stream::new(Rc::clone(shared), &exchange.request, request.into_body(), respond);
        // Boxed, as the runtime moves what it is given from place to place.
        tokio::task::spawn_local(Box::pin(async move {
            stream.watch().await;
            match serve(&worker, &mut stream, exchange).await {
                After::KeepAlive | After::Close => stream.discard_rest().await,
                After::Abort | After::Reset => stream.reset(),
            }
        }));
    }

    /// Nothing comes: has the client run out of time?
    fn keep_deadlines(&mut self, now_ns: u64) -> Poll<()> {
        let shared = self.shared;
        if shared.worker.phase() == WorkerPhase::Stopping {
            return Poll::Ready(());
        }
        let current = shared.worker.current();
        let settings = &current.snapshot.clients;
        let head_since_ns = shared.watch.borrow().head_since_ns();
        let head_ns = head_since_ns.map_or(u64::MAX, |since_ns| since_ns + settings.header_timeout.as_nanos() as u64);
        let idle_ns = match (shared.streams.get(), self.last_words_ns) {
            (0, Some(_)) => shared.idle_since_ns.get().max(shared.worker.lifecycle.phase_since_ns()) + FAREWELL_NS,
            (0, None) => {
                let full_ns = shared.worker.lifecycle.patience_ns(true);
                let patience_ns = full_ns.min(settings.idle_timeout.as_nanos() as u64);
                shared.idle_since_ns.get() + patience_ns
            }
            _ => u64::MAX,
        };
        let deadline_ns = head_ns.min(idle_ns).min(self.last_words_ns.unwrap_or(u64::MAX));
        if deadline_ns <= now_ns {
            return Poll::Ready(());
        }
        shared.accepted.borrow().set_deadline(deadline_ns);
        Poll::Pending
    }
}

/// What an HTTP/1 upstream expects of a client that wants a WebSocket (RFC 6455 §4.1), and one of HTTP/2 does not send.
fn add_websocket_key(exchange: &mut Exchange) {
    let mut nonce = [0; 16];
    SystemRandom::new().fill(&mut nonce).expect("the system has random numbers");
    let key = BASE64_STANDARD.encode(nonce);
    exchange.request.head.set(b"sec-websocket-key", key.as_bytes()).expect("base64 is a valid value");
}

impl Shared {
    /// Whether a head or trailers of so many bytes may be kept beside what there is. A head alone always may.
    fn has_room(&self, head: usize) -> bool {
        let others = self.streams.get() > 0;
        let has_room = !others || self.heads.have_room(head, self.watch.borrow().sections());
        if !has_room {
            self.worker.metrics.errors.increment("too_many_heads");
        }
        has_room
    }

    fn begin_stream(&self) {
        self.streams.set(self.streams.get() + 1);
    }

    /// A stream held so many bytes for the client, and now holds others.
    fn holds(&self, before: usize, now: usize) {
        self.held.set(self.held.get() - before + now);
    }

    /// The connection's task looks at its deadline again, as this may have been the last one.
    fn end_stream(&self) {
        self.streams.set(self.streams.get() - 1);
        self.idle_since_ns.set(self.worker.now_ns());
        self.accepted.borrow().set_deadline(self.worker.now_ns());
    }
}

/// The bytes of the connection, under watch.
struct Watched(Rc<Shared>);

impl Pipe for Watched {
    fn poll_read(&mut self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let shared = &*self.0;
        let mut watch = shared.watch.borrow_mut();
        if watch.is_exhausted() || watch.has_enough() {
            context.waker().wake_by_ref(); // to be told to go, or to go on
            return Poll::Pending;
        }
        let room = buffer.len().min(watch.room());
        let buffer = &mut buffer[..room];
        let mut accepted = shared.accepted.borrow_mut();
        let count = match accepted.stash.len().min(room) {
            0 => std::task::ready!(accepted.poll_read(context, buffer))?,
            count => {
                buffer[..count].copy_from_slice(&accepted.stash[..count]);
                shared.worker.buffers.consume(&mut accepted.stash, count);
                count
            }
        };
        watch.received(&buffer[..count], shared.worker.now_ns());
        Poll::Ready(Ok(count))
    }

    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let shared = &*self.0;
        let sent = shared.accepted.borrow_mut().stream.poll_write(context, bytes);
        if let Poll::Ready(Ok(count)) = sent {
            shared.worker.metrics.client_bytes_sent.add(count as u64);
            shared.watch.borrow_mut().sent(count);
        }
        sent
    }

    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.accepted.borrow_mut().stream.poll_shutdown(context)
    }
}
