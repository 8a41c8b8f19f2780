//! Starts the task of a new connection, by the protocol of its listener.

use std::net::SocketAddr;
use std::rc::Rc;

use tokio::net::TcpStream;
use weir_net::stream::Stream;

use crate::connection::accepted::Accepted;
use crate::connection::listener::ListenerProtocol;
use crate::connection::{announced, h1, h2, reset, secure};
use crate::worker::Worker;

pub fn start_connection(worker: &Rc<Worker>, stream: TcpStream, spoken: ListenerProtocol, peer: SocketAddr) {
    let mut task = worker.task();
    // With the PROXY protocol, the client's address is known only after its header has been read.
    if !spoken.proxy_protocol && !task.claim(peer.ip()) {
        return reset(&stream);
    }
    match spoken {
        ListenerProtocol { tls: false, proxy_protocol: false, h2c: false } => {
            tokio::task::spawn_local(h1::run(Accepted::new(task, Stream::plain(stream), peer, None)));
        }
        ListenerProtocol { h2c: true, proxy_protocol: false, .. } => {
            h2::spawn(Accepted::new(task, Stream::plain(stream), peer, None));
        }
        ListenerProtocol { tls: true, proxy_protocol: false, .. } => {
            tokio::task::spawn_local(secure::run(task, stream, peer));
        }
        ListenerProtocol { proxy_protocol: true, .. } => {
            tokio::task::spawn_local(announced::run(task, stream, spoken, peer));
        }
    }
}
