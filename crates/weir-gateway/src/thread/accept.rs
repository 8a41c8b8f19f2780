//! Accepts connections, and starts the task that serves each.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;

use super::commands::WorkerCommand;
use super::rebalance::ConnectionRebalancer;
use super::start_connection::start_connection;
use crate::connection::listener::ListenerProtocol;
use crate::context::lifecycle::WorkerPhase;
use crate::worker::Worker;

/// How long accepting pauses at the connection limit, or when there is no file descriptor left. Open connections are served
/// meanwhile.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Accepts connections until draining begins, then those that are already in the socket's queue, and no more. Closing the
/// socket does not affect another process that accepts from the same queue.
pub async fn accept(
    worker: Rc<Worker>,
    listener: tokio::net::TcpListener,
    spoken: ListenerProtocol,
    most: usize,
    rebalancer: Arc<ConnectionRebalancer<WorkerCommand>>,
) {
    let _accepting = worker.task();
    while worker.phase() == WorkerPhase::Serving {
        if worker.lifecycle.tasks() >= most {
            worker.set_connections_full(true);
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        }
        let accepted = tokio::select! {
            biased;
            accepted = listener.accept() => accepted,
            () = worker.lifecycle.phase_change() => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                worker.set_connections_full(false);
                match rebalancer.less_loaded_than(worker.index()) {
                    None => start_connection(&worker, stream, spoken, peer),
                    Some(other) => hand_over(&worker, &rebalancer, other, stream, spoken, peer),
                }
            }
            Err(error) => {
                worker.metrics.accept_errors.increment();
                // A client that has disconnected already is no reason to pause; a missing file descriptor, or any other
                // error, is.
                if !matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
                    worker.set_connections_full(true);
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
    // The socket is queried directly: connections that the poller has not reported yet are in its queue too, and would be
    // reset.
    let Ok(listener) = listener.into_std() else { return };
    while let Ok((stream, peer)) = listener.accept() {
        let stream = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
        if let Ok(stream) = stream {
            start_connection(&worker, stream, spoken, peer);
        }
    }
}

/// Hands a new connection over to a worker that has fewer.
fn hand_over(
    worker: &Rc<Worker>,
    rebalancer: &ConnectionRebalancer<WorkerCommand>,
    to: usize,
    stream: TcpStream,
    spoken: ListenerProtocol,
    peer: SocketAddr,
) {
    // Deregistering from the poller fails only if the poller is broken; the connection is then lost in any case.
    let Ok(stream) = stream.into_std() else { return };
    match rebalancer.hand_over(to, WorkerCommand::Take { stream, spoken, peer }) {
        Ok(()) => worker.metrics.connections_handed_over.increment(),
        Err(WorkerCommand::Take { stream, spoken, peer }) => {
            if let Ok(stream) = TcpStream::from_std(stream) {
                start_connection(worker, stream, spoken, peer);
            }
        }
        Err(_) => unreachable!("what comes back is what was given"),
    }
}
