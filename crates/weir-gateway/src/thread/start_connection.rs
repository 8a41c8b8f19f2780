//! Starts the task of a new connection, by the protocol of its listener.

use std::net::SocketAddr;
use std::rc::Rc;

use tokio::net::TcpStream;

use crate::connection::{announced, begin, reset};
use crate::context::lifecycle::ServicePhase;
use crate::snapshot::ListenerSettings;
use crate::worker::Worker;

pub(super) fn start_connection(
    worker: &Rc<Worker>,
    service: &Rc<ServicePhase>,
    stream: TcpStream,
    settings: ListenerSettings,
    peer: SocketAddr,
) {
    let task = worker.task(service);
    // With the PROXY protocol, the client's address is known only after its header has been read.
    if settings.proxy_protocol {
        tokio::task::spawn_local(announced::run(task, stream, settings.protocol, peer));
    } else if task.claim(peer.ip()) {
        begin::spawn(task, stream, settings.protocol, peer);
    } else {
        reset(&stream);
    }
}
