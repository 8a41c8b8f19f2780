//! One HTTP/1.x client connection. Between requests it owns no buffer: it waits for its socket, and the worker's buffer
//! is there when something comes.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll};

use weir_net::stream::Stream;
use weir_net::timer::{NEVER, Timer};
use weir_plugin::{Exchange, Stop, Tls};
use weir_proto::h1::parse_request;

use crate::serve::serve;
use crate::snapshot::ClientSettings;
use crate::worker::{Phase, TaskGuard, Worker};

/// How long an idle connection may still bring a request once draining has begun, so that a request already on its way
/// is answered (with `Connection: close`) instead of reset.
const DRAIN_IDLE_NS: u64 = 5_000_000_000;

/// Bytes a client may send ahead while its request is being answered. It is not read further until it is its turn.
const MAX_AHEAD: usize = 16 * 1024;

/// The client's side of its exchanges. Most connections are idle, so it is kept small.
pub struct Client {
    worker: TaskGuard,
    stream: Stream,
    tls: Option<Rc<Tls>>,
    timer: Timer,
    /// Received and not yet used: a partial head, the start of a body, pipelined requests.
    pub stash: Vec<u8>,
    /// To be sent, and not taken by the client yet.
    pub unsent: Vec<u8>,
    peer: SocketAddr,
    local: SocketAddr,
    /// Unique in this process.
    number: u64,
    requests: u64,
    /// When the client had closed its sending side; 0 if it has not.
    ended_ns: u64,
}

/// What a connection does after an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    KeepAlive,
    /// The client has its answer; close so that it can read it to the end.
    Close,
    /// There is nobody to be polite to, or the response was cut short.
    Abort,
    /// The same where only a reset shows that the response was cut short: its end is the end of the connection.
    Reset,
}

/// Serves one connection from accept to close. Not an `async fn`, which would keep its arguments beside the client that
/// is made of them, for as long as the connection lives.
pub fn run(worker: TaskGuard, stream: Stream, peer: SocketAddr, tls: Option<Rc<Tls>>) -> impl Future<Output = ()> {
    let mut client = Client::new(worker, stream, peer, tls);
    async move {
        let waker = poll_fn(|context| Poll::Ready(context.waker().clone())).await;
        client.worker.wheel.watch(&client.timer, waker);
        while let Some(exchange) = client.next().await {
            // Boxed for as long as the exchange lasts: the state of serving is twice that of an idle connection, and
            // most connections are idle. Costs some hundred instructions.
            match Box::pin(serve(&mut client, exchange)).await {
                After::KeepAlive => {}
                After::Close => return Box::pin(client.linger()).await,
                After::Abort => return,
                After::Reset => return client.stream.reset_on_drop(),
            }
        }
        client.stream.say_goodbye();
    }
}

impl Client {
    fn new(worker: TaskGuard, stream: Stream, peer: SocketAddr, tls: Option<Rc<Tls>>) -> Client {
        worker.metrics.connections_opened.increment();
        Client {
            timer: worker.wheel.add(),
            // A socket that has lost its address has been reset, which the first read will tell.
            local: stream.local_addr().unwrap_or(peer),
            number: worker.number_connection(),
            worker,
            stream,
            tls,
            stash: Vec::new(),
            unsent: Vec::new(),
            peer,
            requests: 0,
            ended_ns: 0,
        }
    }

    /// The worker that serves the connection.
    pub fn worker(&self) -> Rc<Worker> {
        Rc::clone(&self.worker)
    }

    /// Waits for the next request. A request that was refused comes with its reason in `stop`. `None` when the
    /// connection is over.
    async fn next(&mut self) -> Option<Box<Exchange>> {
        let worker = Rc::clone(&self.worker);
        let waiting_since_ns = worker.now_ns();
        let mut head_since_ns = (!self.stash.is_empty()).then_some(waiting_since_ns);
        let mut parse_stash = !self.stash.is_empty();
        poll_fn(|context| {
            // Asked for anew at each wake-up: an idle connection must not keep an old configuration alive.
            let current = worker.current();
            let settings = &current.snapshot.clients;
            loop {
                if parse_stash {
                    let exchange = self.parse_stash(settings, head_since_ns.unwrap_or(waiting_since_ns));
                    if exchange.is_some() {
                        return Poll::Ready(exchange);
                    }
                    parse_stash = false;
                }
                let read = worker.with_read_buffer(|buffer| {
                    let count = match self.poll_read(context, buffer) {
                        Poll::Pending => return Poll::Pending,
                        Poll::Ready(Ok(count)) if count > 0 => count,
                        Poll::Ready(_) => return Poll::Ready(None),
                    };
                    let received = &buffer[..count];
                    let now_ns = worker.wake_up();
                    if !self.stash.is_empty() {
                        parse_stash = memchr::memchr(b'\n', received).is_some()
                            || self.stash.len() + count > settings.limits.target_bytes;
                        worker.stash(&mut self.stash, received);
                        return Poll::Ready(Some(None));
                    }
                    head_since_ns = Some(now_ns);
                    let (exchange, used) = self.parse(received, settings, now_ns);
                    worker.stash(&mut self.stash, &received[used..]);
                    Poll::Ready(Some(exchange))
                });
                match read {
                    Poll::Ready(Some(Some(exchange))) => return Poll::Ready(Some(exchange)),
                    Poll::Ready(Some(None)) => {}
                    Poll::Ready(None) => return Poll::Ready(None),
                    Poll::Pending => return self.wait(settings, waiting_since_ns, head_since_ns),
                }
            }
        })
        .await
    }

    /// Nothing to read: sets the deadline, or ends the wait if it has passed.
    fn wait(
        &mut self,
        settings: &ClientSettings,
        waiting_since_ns: u64,
        head_since_ns: Option<u64>,
    ) -> Poll<Option<Box<Exchange>>> {
        let now_ns = self.worker.now_ns();
        let phase = self.worker.phase();
        if phase == Phase::Stopping {
            return Poll::Ready(None);
        }
        let mut deadline_ns = match head_since_ns {
            Some(since_ns) => since_ns + settings.header_timeout.as_nanos() as u64,
            None => waiting_since_ns + settings.idle_timeout.as_nanos() as u64,
        };
        if phase == Phase::Draining && head_since_ns.is_none() {
            deadline_ns = deadline_ns.min(waiting_since_ns.max(self.worker.phase_since_ns()) + DRAIN_IDLE_NS);
        }
        if deadline_ns > now_ns {
            self.set_deadline(deadline_ns);
            return Poll::Pending;
        }
        Poll::Ready(head_since_ns.map(|since_ns| {
            let mut exchange = self.exchange(since_ns);
            exchange.stop = Some(Stop::HeadTimeout);
            exchange
        }))
    }

    fn parse_stash(&mut self, settings: &ClientSettings, now_ns: u64) -> Option<Box<Exchange>> {
        let stash = std::mem::take(&mut self.stash);
        let (exchange, used) = self.parse(&stash, settings, now_ns);
        self.stash = stash;
        self.worker.consume(&mut self.stash, used);
        exchange
    }

    /// Tries to make an exchange of what was received; says how many bytes of it belong to the head.
    fn parse(&mut self, received: &[u8], settings: &ClientSettings, now_ns: u64) -> (Option<Box<Exchange>>, usize) {
        let mut exchange = self.worker.take_exchange();
        match parse_request(received, &settings.limits, &mut exchange.request) {
            Ok(None) => {
                self.worker.give_exchange(exchange);
                (None, 0)
            }
            Ok(Some(length)) => {
                self.describe(&mut exchange, now_ns);
                exchange.request_bytes = length as u64;
                (Some(exchange), length)
            }
            Err(reject) => {
                self.describe(&mut exchange, now_ns);
                exchange.request_bytes = received.len() as u64;
                exchange.request.keep_alive = false;
                exchange.stop = Some(Stop::Rejected(reject));
                (Some(exchange), received.len())
            }
        }
    }

    /// An exchange without a request that could be understood.
    fn exchange(&mut self, now_ns: u64) -> Box<Exchange> {
        let mut exchange = self.worker.take_exchange();
        self.describe(&mut exchange, now_ns);
        exchange
    }

    fn describe(&mut self, exchange: &mut Exchange, now_ns: u64) {
        self.requests += 1;
        if self.ended() {
            self.ended_ns = self.worker.now_ns(); // for this exchange, it ends now
        }
        exchange.started_ns = now_ns;
        exchange.client = weir_plugin::Client {
            peer: self.peer,
            local: self.local,
            addr: self.peer.ip(),
            trusted: false,
            tls: self.tls.is_some(),
            connection: self.number,
            connection_requests: self.requests,
        };
        exchange.tls.clone_from(&self.tls);
    }

    pub fn set_deadline(&self, deadline_ns: u64) {
        self.worker.wheel.set(&self.timer, deadline_ns);
    }

    /// Reads into `buffer`; 0 is the end.
    pub fn poll_read(&mut self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let read = self.stream.poll_read(context, buffer);
        if let Poll::Ready(Ok(count)) = read {
            self.worker.metrics.client_bytes_received.add(count as u64);
            if count == 0 {
                self.ended_ns = self.worker.now_ns();
            }
        }
        read
    }

    /// Nothing more will come from the client.
    pub fn ended(&self) -> bool {
        self.ended_ns != 0
    }

    /// Some clients close their half and wait for the answer; others have gone. By this time they are taken to be gone.
    pub fn half_close_deadline_ns(&self, settings: &ClientSettings) -> u64 {
        match self.ended_ns {
            0 => NEVER,
            ended_ns => ended_ns + settings.half_close_timeout.as_nanos() as u64,
        }
    }

    /// Reads what the client sends while it is not its turn, up to a limit: what is wanted is to see that it goes away.
    /// Ready when something came.
    pub fn poll_ahead(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        if self.ended() || self.stash.len() >= MAX_AHEAD {
            return Poll::Pending;
        }
        let worker = self.worker();
        worker.with_read_buffer(|buffer| match self.poll_read(context, &mut buffer[..MAX_AHEAD]) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(count)) => {
                worker.stash(&mut self.stash, &buffer[..count]);
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(_)) => Poll::Ready(Err(Stop::ClientGone)),
        })
    }

    /// For whoever waits on behalf of the client: ready when there is no point in it any more.
    pub fn poll_leave(&mut self, context: &mut Context<'_>) -> Poll<Stop> {
        let now_ns = self.worker.wake_up();
        if self.worker.phase() == Phase::Stopping {
            return Poll::Ready(Stop::Shutdown);
        }
        while let Poll::Ready(read) = self.poll_ahead(context) {
            if let Err(stop) = read {
                return Poll::Ready(stop);
            }
        }
        let deadline_ns = self.half_close_deadline_ns(&self.worker.current().snapshot.clients);
        if deadline_ns <= now_ns {
            return Poll::Ready(Stop::ClientGone);
        }
        self.set_deadline(deadline_ns);
        Poll::Pending
    }

    /// Sends what it can of `bytes` and keeps the rest, in order, for [`Client::poll_flush`].
    pub fn send(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> io::Result<()> {
        let mut sent = 0;
        while self.unsent.is_empty() && sent < bytes.len() {
            match self.stream.poll_write(context, &bytes[sent..]) {
                Poll::Ready(Ok(count)) => sent += count,
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => break,
            }
        }
        self.worker.metrics.client_bytes_sent.add(sent as u64);
        self.worker.stash(&mut self.unsent, &bytes[sent..]);
        Ok(())
    }

    /// Sends what was kept. Ready when nothing is left.
    pub fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.unsent.is_empty() {
            match self.stream.poll_write(context, &self.unsent) {
                Poll::Ready(Ok(count)) => {
                    self.worker.metrics.client_bytes_sent.add(count as u64);
                    self.worker.consume(&mut self.unsent, count);
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(()))
    }

    /// The stream itself and what was received beyond the last message, for a tunnel.
    pub fn stream(&mut self) -> &mut Stream {
        &mut self.stream
    }

    /// Says goodbye so that the client can read the answer: our side is closed first, and what it still sends is thrown
    /// away for a moment. Closing with unread bytes would reset the connection and destroy the answer (RFC 9112 §9.6).
    async fn linger(&mut self) {
        const PATIENCE_NS: u64 = 1_000_000_000;
        const MOST_BYTES: usize = 1024 * 1024;
        if self.ended() || poll_fn(|context| self.stream.poll_shutdown(context)).await.is_err() {
            return;
        }
        let worker = Rc::clone(&self.worker);
        let deadline_ns = worker.now_ns() + PATIENCE_NS;
        self.set_deadline(deadline_ns);
        let mut thrown_away = 0;
        poll_fn(|context| {
            worker.wake_up();
            loop {
                match worker.with_read_buffer(|buffer| self.poll_read(context, buffer)) {
                    Poll::Ready(Ok(count)) if count > 0 && thrown_away < MOST_BYTES => thrown_away += count,
                    Poll::Ready(_) => return Poll::Ready(()),
                    Poll::Pending if worker.now_ns() >= deadline_ns || worker.phase() == Phase::Stopping => {
                        return Poll::Ready(());
                    }
                    Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await;
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.worker.release(&mut self.stash);
        self.worker.release(&mut self.unsent);
        self.worker.wheel.remove(&self.timer);
        self.worker.metrics.connections_closed.increment();
    }
}
