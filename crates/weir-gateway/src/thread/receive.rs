//! Receives the datagrams of a listener, and passes each to the session of its client.

use std::rc::Rc;
use std::time::Duration;

use weir_net::datagram::{DatagramBatch, DatagramSocket};

use super::listener::AcceptingListener;
use crate::connection::sessions::Sessions;
use crate::context::lifecycle::WorkerPhase;
use crate::worker::Worker;

/// How long receiving pauses after an error of the socket itself.
const RECEIVE_PAUSE: Duration = Duration::from_millis(20);

/// Receives until the listener or the worker begins to drain. From then on another process may receive from the same socket, as
/// in an upgrade; sessions here only wait for answers. `most`: of connections and sessions of the worker.
pub(super) async fn receive(worker: Rc<Worker>, socket: DatagramSocket, listener: Rc<AcceptingListener>, most: usize) {
    let service = &listener.service;
    let _receiving = worker.task(service);
    let mut sessions = Sessions::new(Rc::clone(&worker), Rc::clone(service), Rc::new(socket), most);
    let mut batch = DatagramBatch::default();
    while service.phase() == WorkerPhase::Serving {
        let received = tokio::select! {
            biased;
            received = sessions.receive(&mut batch) => received,
            () = service.change() => break,
        };
        match received {
            Ok(()) => {
                worker.wake_up();
                batch.datagrams().for_each(|datagram| sessions.take(datagram));
            }
            Err(error) => {
                worker.metrics.accept_errors.increment();
                tracing::debug!("receiving datagrams failed: {error}");
                tokio::time::sleep(RECEIVE_PAUSE).await;
            }
        }
    }
}
