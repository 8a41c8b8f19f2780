//! A stream: bytes between a client and an endpoint without HTTP, from the connection to its log record. It is an exchange
//! whose request and response are empty.

mod connect;
mod datagrams;
mod opening;
mod record;
mod relay;

use std::future::poll_fn;
use std::net::IpAddr;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use weir_net::listener::Transport;
use weir_plugin::{Exchange, MatchedRoute, Stop};

use crate::certificates::Admission;
use crate::context::frame::boxed;
use crate::context::lifecycle::{ServicePhase, WorkerPhase};
use crate::context::served_exchange::ServedExchange;
use crate::endpoint::pool::StreamConnection;
use crate::message::sides::Pipe;
use crate::plugins::chain::Plugins;
use crate::route::TakenStream;
use crate::snapshot::{Snapshot, Target};
use crate::worker::Worker;
use crate::worker::snapshot::WorkerSnapshot;

use opening::{OpeningClient, OpeningConnection};
use relay::StreamRelay;

pub(crate) use datagrams::{DatagramSession, serve_session};

/// What a stream needs of its client.
pub(crate) trait StreamClient: Pipe {
    /// The phase of the listener that has accepted the client.
    fn service(&self) -> &ServicePhase;

    /// Sets the time at which the task is woken at the latest.
    fn set_deadline(&self, deadline_ns: u64);

    /// Takes the bytes that were received and not used yet.
    fn take_received(&mut self) -> Vec<u8>;

    /// Puts bytes back that were received and not used.
    fn put_back(&mut self, received: Vec<u8>);

    /// Ends the connection in a way that the client does not take what it has received for complete.
    fn abort(&mut self);
}

/// The stream route of a connection to `local`.
pub(crate) fn find(
    snapshot: &Snapshot,
    transport: Transport,
    local: std::net::SocketAddr,
    client: IpAddr,
    server_name: Option<&str>,
) -> Option<TakenStream> {
    snapshot.streams.of(transport).find(&snapshot.stream_lookup(transport, local, client, server_name))
}

/// Carries a stream until both sides have closed, or it fails.
pub(crate) async fn serve_stream(
    worker: &Rc<Worker>,
    client: &mut impl StreamClient,
    mut exchange: Box<ServedExchange>,
) {
    let current = worker.current(); // one configuration for the whole stream
    worker.metrics.streams_opened.increment();
    // Boxed, since connecting is over before the long part of a stream's life.
    let (mut connection, idle) = match boxed(|| open(worker, &current, client, &mut exchange)).await {
        Ok(opened) => opened,
        Err(stop) => {
            client.abort();
            return record::finish(worker, &current, exchange, Err(stop));
        }
    };
    let mut relay = StreamRelay::new(client.take_received(), idle, worker.now_ns());
    let mut carried = worker.buffers.put_stream_aside(exchange);
    let end = poll_fn(|context| relay.poll(context, worker, client, &mut connection, &mut carried.bare)).await;
    let mut exchange = worker.buffers.take_exchange();
    exchange.put_back(carried);
    relay.finish(worker, &mut exchange);
    if end.is_err() {
        connection.abort();
        client.abort();
    }
    drop(connection);
    record::finish(worker, &current, exchange, end);
}

/// Connects to an endpoint; returns the connection, and how long nothing may come from either side.
async fn open<'w>(
    worker: &'w Rc<Worker>,
    current: &Rc<WorkerSnapshot>,
    client: &mut impl StreamClient,
    exchange: &mut ServedExchange,
) -> Result<(StreamConnection<'w>, Duration), Stop> {
    let timeout_ns = current.snapshot.clients.header_timeout.as_nanos() as u64;
    let opening = OpeningConnection::new(worker, &mut *client, timeout_ns);
    let begun = begin(worker, current, Transport::Tcp, opening, exchange).await;
    if let Some(first_bytes) = exchange.withdraw_first_bytes() {
        // What the relay counts, if it comes to that.
        exchange.request_bytes = first_bytes.count() as u64;
        client.put_back(first_bytes.take());
    }
    let (taken, number) = begun?;
    let upstream = current.upstream(number);
    let connection = connect::connect(worker, upstream, client, exchange).await?;
    Ok((connection, taken.idle_timeout.unwrap_or(upstream.settings.stream_idle_timeout)))
}

/// Chooses the stream route and runs its plugins; returns it with the number of the upstream. Plugins that wait are left when
/// the client leaves.
async fn begin(
    worker: &Rc<Worker>,
    current: &Rc<WorkerSnapshot>,
    transport: Transport,
    mut opening: impl OpeningClient,
    exchange: &mut ServedExchange,
) -> Result<(TakenStream, usize), Stop> {
    let server_name = exchange.tls.as_ref().and_then(|tls| tls.server_name.as_deref());
    let (local, addr) = (exchange.client.local, exchange.client.addr);
    let taken = find(&current.snapshot, transport, local, addr, server_name).ok_or(Stop::NoRoute)?;
    admit(&current.snapshot, exchange)?;
    exchange.route = Some(MatchedRoute::new(Rc::clone(current) as Rc<_>, taken.route as usize));
    current.metrics_of(worker, exchange).streams_opened.increment();
    let plugins = Plugins::of(worker, current, exchange);
    if plugins.see_requests() {
        if plugins.read_first_bytes()
            && let Some(first_bytes) = opening.first_bytes()
        {
            exchange.offer_first_bytes(first_bytes);
        }
        boxed(|| plugins.on_request(exchange, |context| opening.poll_leave(context))).await?;
    }
    match (exchange.diverted_to(), &current.snapshot.routes[taken.route as usize].target) {
        (Some(number), _) => Ok((taken, number as usize)),
        (None, Target::Upstream(number)) => Ok((taken, *number)),
        (None, _) => Err(Stop::NoUpstream),
    }
}

/// Refuses a client without the certificate that the server name requires. A stream has no path that could be exempt.
fn admit(snapshot: &Snapshot, exchange: &Exchange) -> Result<(), Stop> {
    let Some(tls) = exchange.tls.as_ref().filter(|_| exchange.client.tls) else { return Ok(()) };
    let name = tls.server_name.as_deref().unwrap_or_default().as_bytes();
    let listener = snapshot.listeners.find(exchange.client.local, name).and_then(|found| found.id.as_deref());
    match snapshot.certificates.of_listener(listener).admit(name, b"", tls) {
        Admission::Admitted | Admission::Proved => Ok(()),
        Admission::Misdirected | Admission::Unproved => Err(Stop::NoCertificate),
    }
}

/// Ready once the listener stops, for whatever is awaited before bytes are carried.
fn poll_stopped(service: &ServicePhase) -> Poll<Stop> {
    match service.phase() {
        WorkerPhase::Stopping => Poll::Ready(Stop::Shutdown),
        WorkerPhase::Serving | WorkerPhase::Draining => Poll::Pending,
    }
}
