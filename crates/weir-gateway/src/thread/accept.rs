//! Accepts connections, and starts the task that serves each.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;

use super::command::WorkerCommand;
use super::listener::AcceptingListener;
use super::rebalance::ConnectionRebalancer;
use super::start_connection::start_connection;
use crate::context::lifecycle::WorkerPhase;
use crate::worker::Worker;

/// How long accepting pauses at the connection limit, or when there is no file descriptor left. Open connections are served
/// meanwhile.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// New connections of one turn. What is ready on others is served before the next, however many clients connect at once.
const ACCEPTS_PER_TURN: usize = 8;

/// Accepts connections until the listener or the worker begins to drain, then those that are already in the socket's queue, and
/// no more. Closing the socket does not affect another process that accepts from the same queue.
pub(super) async fn accept(
    worker: Rc<Worker>,
    socket: tokio::net::TcpListener,
    listener: Rc<AcceptingListener>,
    most: usize,
    rebalancer: Arc<ConnectionRebalancer<WorkerCommand>>,
) {
    let service = &listener.service;
    let _accepting = worker.task(service);
    let mut in_turn = 0;
    while service.phase() == WorkerPhase::Serving {
        if in_turn == ACCEPTS_PER_TURN
            || listener.settings.get().protocol.begins_with_handshake() && worker.handshakes.are_many_waiting()
        {
            in_turn = 0;
            tokio::task::yield_now().await;
            continue;
        }
        in_turn += 1;
        if worker.lifecycle.tasks() >= most {
            worker.note_shortage();
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        }
        let accepted = tokio::select! {
            biased;
            accepted = socket.accept() => accepted,
            () = service.change() => break,
        };
        match accepted {
            Ok((stream, peer)) => match rebalancer.less_loaded_than(worker.index()) {
                None => start_connection(&worker, service, stream, listener.settings.get(), peer),
                Some(other) => hand_over(&worker, &rebalancer, other, &listener, (stream, peer)),
            },
            Err(error) => {
                worker.metrics.accept_errors.increment();
                // A client that has disconnected already is no reason to pause; a missing file descriptor, or any other
                // error, is.
                if !matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
                    worker.note_shortage();
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
    // The socket is queried directly: connections that the poller has not reported yet are in its queue too, and would be
    // reset.
    let Ok(socket) = socket.into_std() else { return };
    while let Ok((stream, peer)) = socket.accept() {
        let stream = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
        if let Ok(stream) = stream {
            start_connection(&worker, service, stream, listener.settings.get(), peer);
        }
    }
}

/// Hands a new connection over to a worker that has fewer.
fn hand_over(
    worker: &Rc<Worker>,
    rebalancer: &ConnectionRebalancer<WorkerCommand>,
    to: usize,
    listener: &AcceptingListener,
    (stream, peer): (TcpStream, SocketAddr),
) {
    // Deregistering from the poller fails only if the poller is broken; the connection is then lost in any case.
    let Ok(stream) = stream.into_std() else { return };
    let (id, settings) = (listener.service.listener(), listener.settings.get());
    match rebalancer.hand_over(to, WorkerCommand::Take { stream, listener: id, settings, peer }) {
        Ok(()) => worker.metrics.connections_handed_over.increment(),
        Err(WorkerCommand::Take { stream, settings, peer, .. }) => {
            if let Ok(stream) = TcpStream::from_std(stream) {
                start_connection(worker, &listener.service, stream, settings, peer);
            }
        }
        Err(_) => unreachable!("what comes back is what was given"),
    }
}
