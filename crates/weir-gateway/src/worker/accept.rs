//! Accepting connections, and starting the task that serves each.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;

use super::Worker;
use super::commands::WorkerCommand;
use super::rebalance::ConnectionRebalancer;
use super::start_connection::start_connection;
use crate::connection::listener::ListenerProtocol;
use crate::context::lifecycle::WorkerPhase;

/// How long accepting pauses when there is no descriptor left. Established connections go on meanwhile.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Takes new connections until draining begins; then what has queued up until that moment, and no more. Closing the
/// socket closes nothing for another process that accepts from the same queue.
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
                // A client that has gone again is no reason to pause; having no descriptor, and whatever else, is.
                if !matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
                    worker.set_connections_full(true);
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
    // The socket itself is asked: what the poller has not reported yet is waiting all the same, and would be reset.
    let Ok(listener) = listener.into_std() else { return };
    while let Ok((stream, peer)) = listener.accept() {
        let stream = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
        if let Ok(stream) = stream {
            start_connection(&worker, stream, spoken, peer);
        }
    }
}

/// Gives a new connection to a worker that has fewer.
fn hand_over(
    worker: &Rc<Worker>,
    rebalancer: &ConnectionRebalancer<WorkerCommand>,
    to: usize,
    stream: TcpStream,
    spoken: ListenerProtocol,
    peer: SocketAddr,
) {
    // Only a poller that does not work would refuse; then the connection is lost here as there.
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
