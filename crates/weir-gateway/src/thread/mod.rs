//! A worker's thread, from its start to its end: it accepts connections, carries out commands, and advances the timers.

mod accept;
pub(crate) mod command;
mod commands;
pub(crate) mod listener;
mod listeners;
pub(crate) mod progress;
pub(crate) mod rebalance;
mod receive;
mod start_connection;
mod tick;

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::mpsc::UnboundedReceiver;
use weir_net::clock::Clock;
use weir_telemetry::log_file::LogSink;
use weir_telemetry::metrics::Metrics;

use crate::access_log::{AccessLogWriter, LineFormat};
use crate::context::WorkerContext;
use crate::endpoint::pool::Pools;
use crate::endpoint::state::SharedState;
use crate::published::Published;
use crate::worker::Worker;
use crate::worker::client_connections::ClientConnections;
use crate::worker::snapshot::WorkerSnapshot;
use command::WorkerCommand;
use commands::run_commands;
use listener::Listener;
use listeners::WorkerListeners;
use progress::WorkerProgress;
use rebalance::ConnectionRebalancer;
use tick::tick;

/// The arguments of a worker's thread.
pub(crate) struct WorkerStart {
    pub index: usize,
    pub listeners: Vec<Listener>,
    pub clock: Clock,
    pub shared: Arc<SharedState>,
    pub metrics: Arc<Metrics>,
    pub log: Option<(LineFormat, LogSink)>,
    /// The number of workers.
    pub workers: usize,
    pub published: Arc<Published>,
    pub connections: usize,
    /// The most pipes of the worker.
    pub pipes: usize,
    /// The connections of all workers, counted by client.
    pub clients: Arc<ClientConnections>,
    pub progress: Arc<WorkerProgress>,
    pub rebalancer: Arc<ConnectionRebalancer<WorkerCommand>>,
    pub inbox: UnboundedReceiver<WorkerCommand>,
}

impl WorkerStart {
    pub(crate) fn run(self) {
        let progress = Arc::clone(&self.progress);
        let index = self.index;
        if let Err(error) = self.serve() {
            tracing::error!("worker {index}: {error}");
        }
        // Before the worker counts as ended: once all have, the process flushes the sinks of its plugins.
        weir_plugin::state::end_worker();
        progress.running.fetch_sub(1, Ordering::Release);
        progress.announce();
    }

    fn serve(self) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default())?;
        let pools = Rc::new(Pools::new(self.workers));
        let shared = self.shared;
        let current = WorkerSnapshot::new(self.published, self.index, &pools, &shared);
        let revision = current.snapshot.revision;
        let log = self.log.map(|(format, sink)| AccessLogWriter::new(format, sink));
        let context = Rc::new(WorkerContext::new(self.clock, self.metrics.worker(self.index), log, self.pipes));
        let worker = Rc::new(Worker::new(self.index, context, pools, current, self.clients));
        runtime.block_on(async {
            let listeners = WorkerListeners::new(Rc::clone(&worker), self.connections, Arc::clone(&self.rebalancer));
            self.listeners.into_iter().try_for_each(|listener| listeners.open(listener))?;
            tokio::task::spawn_local(tick(Rc::clone(&worker)));
            self.progress.revisions[self.index].store(revision, Ordering::Release);
            self.progress.announce();
            run_commands(&worker, &listeners, self.inbox, &shared, &self.rebalancer, &self.progress).await;
            Ok(())
        })
    }
}
