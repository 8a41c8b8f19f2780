//! Connections that carry no HTTP: plain, over TLS that ends here, and over TLS that is passed through.

use std::net::SocketAddr;
use std::rc::Rc;

use tokio::net::TcpStream;
use weir_net::handshake::{ClientHello, read_hello};
use weir_net::listener::Transport;
use weir_net::stream::Stream;
use weir_plugin::Tls;

use super::accepted::Accepted;
use super::secure::{self, Offer};
use super::{reset, within_timeout};
use crate::context::frame::{boxed, own_waker};
use crate::context::lifecycle::{ServicePhase, WaitsFor};
use crate::serve::stream::{self, StreamClient, serve_stream};
use crate::worker::TaskGuard;

/// Serves a plain connection.
pub(crate) fn spawn_plain(worker: TaskGuard, tcp: TcpStream, peer: SocketAddr) {
    spawn(Accepted::new(worker, Stream::plain(tcp), peer, None));
}

/// Serves a connection whose TLS ends here.
pub(crate) async fn terminated(worker: TaskGuard, tcp: TcpStream, peer: SocketAddr) {
    let shaken = boxed(|| secure::handshake(&worker, tcp, peer, Offer::Nothing, None)).await;
    let Some((stream, tls)) = shaken else { return };
    spawn_secured(worker, stream, peer, tls);
}

fn spawn_secured(worker: TaskGuard, mut stream: Stream, peer: SocketAddr, tls: Rc<Tls>) {
    match secure::is_validation(&stream) {
        true => stream.send_close_notify(),
        false => spawn(Accepted::new(worker, stream, peer, Some(tls))),
    }
}

/// Serves a connection whose TLS is passed through. `by_route`: only if its stream route says so; otherwise it ends here.
pub(crate) async fn passed_through(worker: TaskGuard, tcp: TcpStream, peer: SocketAddr, by_route: bool) {
    let Some(hello) = boxed(|| hello(&worker, &tcp, peer)).await else { return reset(&tcp) };
    let server_name = hello.wanted.as_ref().and_then(|wanted| wanted.name.as_deref());
    let ends_here = by_route && {
        let current = worker.current();
        let local = worker.service().local_addr(|| tcp.local_addr());
        let taken = local.and_then(|local| {
            stream::find(&current.snapshot, Transport::Tcp, local, peer.ip().to_canonical(), server_name)
        });
        taken.is_none_or(|taken| !taken.tls_passthrough)
    };
    if ends_here && hello.wanted.is_none() {
        // Bytes without TLS must not come to an endpoint for which TLS, and perhaps a certificate of the client, is required here.
        worker.metrics.tls_failures.increment();
        tracing::info!("{peer} does not use TLS, which its stream route requires");
        return reset(&tcp);
    }
    if ends_here {
        let shaken = boxed(|| secure::handshake(&worker, tcp, peer, Offer::Nothing, Some(hello))).await;
        let Some((stream, tls)) = shaken else { return };
        return spawn_secured(worker, stream, peer, tls);
    }
    let tls = hello.wanted.map(|wanted| Rc::new(Tls { server_name: wanted.name, ..Tls::default() }));
    let mut connection = Accepted::new(worker, Stream::plain(tcp), peer, None);
    connection.stash = hello.received;
    connection.tls = tls;
    spawn(connection);
}

/// The ClientHello, which is passed on as it is. `None` if it does not come in time, or is not valid.
async fn hello(worker: &TaskGuard, tcp: &TcpStream, peer: SocketAddr) -> Option<ClientHello> {
    let timeout_ns = worker.current().snapshot.clients.handshake_timeout.as_nanos() as u64;
    let deadline_ns = worker.now_ns().saturating_add(timeout_ns);
    match within_timeout(worker, WaitsFor::FirstByte, deadline_ns, read_hello(tcp)).await {
        Some(Ok(hello)) => return Some(hello),
        Some(Err(error)) => tracing::info!("reading the ClientHello of {peer} failed: {error}"),
        None => tracing::info!("ClientHello of {peer} not received within {} s", timeout_ns as f64 / 1e9),
    }
    worker.metrics.tls_failures.increment();
    None
}

/// Serves a connection in a task of its own, which is no larger than a stream needs for its life.
fn spawn(connection: Accepted) {
    tokio::task::spawn_local(serve(connection));
}

#[expect(clippy::manual_async_fn, reason = "an `async fn` keeps its argument twice: as given, and as used")]
fn serve(mut connection: Accepted) -> impl Future<Output = ()> {
    async move {
        connection.watch(own_waker().await);
        let worker = Rc::clone(&connection.worker);
        let mut exchange = worker.buffers.take_exchange();
        connection.describe(&mut exchange, 1, worker.wake_up());
        // TLS that is passed through has a name, and ends elsewhere.
        exchange.client.tls = connection.stream.tls().is_some();
        exchange.client.protocol = weir_plugin::ClientProtocol::Tcp;
        serve_stream(&worker, &mut connection, exchange).await;
    }
}

impl StreamClient for Accepted {
    fn service(&self) -> &ServicePhase {
        self.worker.service()
    }

    fn set_deadline(&self, deadline_ns: u64) {
        Accepted::set_deadline(self, deadline_ns);
    }

    fn take_received(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.stash)
    }

    fn put_back(&mut self, received: Vec<u8>) {
        self.stash = received;
    }

    fn abort(&mut self) {
        self.stream.reset_on_drop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The runtime adds about a hundred bytes to the task, and half a kilobyte for both sockets.
    #[test]
    fn an_idle_stream_takes_one_kilobyte_beside_its_sockets() {
        fn bytes_of<F: Future>(_: impl FnOnce(Accepted) -> F) -> usize {
            size_of::<F>()
        }
        let task = bytes_of(serve);
        assert!(task <= 910, "{task}");
    }
}
