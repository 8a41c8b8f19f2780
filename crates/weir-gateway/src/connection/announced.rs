//! Connections from a load balancer that names the client first, by the PROXY protocol.

use std::net::SocketAddr;

use tokio::net::TcpStream;
use weir_net::proxy_protocol::receive;

use super::{begin, reset, within_timeout};
use crate::context::lifecycle::WaitsFor;
use crate::snapshot::ListenerProtocol;
use crate::worker::TaskGuard;

/// Reads the PROXY header of a connection, and begins to serve it for the client that the header names.
pub(crate) async fn run(worker: TaskGuard, tcp: TcpStream, protocol: ListenerProtocol, sender: SocketAddr) {
    let Some(client) = client(&worker, &tcp, sender).await else { return };
    if !worker.claim(client.ip()) {
        return reset(&tcp);
    }
    begin::spawn(worker, tcp, protocol, client);
}

/// The client that the PROXY header names; `None` if the sender is not trusted or sends no valid header in time.
async fn client(worker: &TaskGuard, tcp: &TcpStream, sender: SocketAddr) -> Option<SocketAddr> {
    let timeout_ns = {
        let current = worker.current();
        let clients = &current.snapshot.clients;
        if !clients.trusts(sender.ip()) {
            tracing::info!(
                "connection from {sender} closed: the address is not in trusted_addresses, so it may not send a PROXY header"
            );
            return None;
        }
        clients.header_timeout.as_nanos() as u64
    };
    let deadline_ns = worker.now_ns().saturating_add(timeout_ns);
    match within_timeout(worker, WaitsFor::RestOfHead, deadline_ns, receive(tcp)).await {
        Some(Ok(announced)) => return Some(announced.client.unwrap_or(sender)),
        Some(Err(error)) => tracing::info!("reading the PROXY header of {sender} failed: {error}"),
        None => tracing::info!("PROXY header of {sender} not received within {} s", timeout_ns as f64 / 1e9),
    }
    None
}
