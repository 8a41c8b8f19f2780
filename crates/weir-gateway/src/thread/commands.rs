//! Carries out the commands that a worker receives.

use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::mpsc::UnboundedReceiver;

use super::command::WorkerCommand;
use super::listeners::WorkerListeners;
use super::progress::WorkerProgress;
use super::rebalance::ConnectionRebalancer;
use crate::context::lifecycle::WorkerPhase;
use crate::endpoint::state::SharedState;
use crate::worker::Worker;

/// Carries out commands until the worker has stopped serving and its last task has ended.
pub(super) async fn run_commands(
    worker: &Rc<Worker>,
    listeners: &WorkerListeners,
    mut inbox: UnboundedReceiver<WorkerCommand>,
    shared: &SharedState,
    rebalancer: &ConnectionRebalancer<WorkerCommand>,
    progress: &WorkerProgress,
) {
    let mut check = tokio::time::interval(Duration::from_millis(10));
    loop {
        let command = match worker.phase() {
            WorkerPhase::Serving => inbox.recv().await,
            // From here on it also checks regularly whether the last task has ended.
            WorkerPhase::Draining | WorkerPhase::Stopping => tokio::select! {
                command = inbox.recv() => command,
                _ = check.tick() => {
                    if worker.lifecycle.tasks() == 0 && !rebalancer.expects(worker.index()) {
                        return;
                    }
                    continue;
                }
            },
        };
        match command {
            Some(WorkerCommand::Publish(published)) => {
                let revision = published.snapshot.revision;
                let current = worker.current().successor(published, worker, shared).await;
                worker.replace(current);
                progress.revisions[worker.index()].store(revision, Ordering::Release);
                progress.announce();
            }
            Some(WorkerCommand::Enter(phase)) => {
                rebalancer.leave(worker.index());
                worker.enter(phase);
            }
            Some(WorkerCommand::Drain { patience }) => {
                rebalancer.leave(worker.index());
                worker.drain(patience);
            }
            Some(WorkerCommand::ChangeListeners(change)) => {
                listeners.change(change).await;
                progress.listener_changes[worker.index()].fetch_add(1, Ordering::Release);
                progress.announce();
            }
            Some(WorkerCommand::ServeHttp3 { listener, share }) => listeners.serve_http3(listener, share),
            Some(WorkerCommand::Take { stream, listener, settings, peer }) => {
                // If the socket cannot be registered with the poller, the connection is closed, as at any overloaded
                // server.
                if let Ok(stream) = TcpStream::from_std(stream) {
                    listeners.take(stream, listener, settings, peer);
                }
                rebalancer.arrived(worker.index());
            }
            None => worker.enter(WorkerPhase::Stopping),
        }
    }
}
