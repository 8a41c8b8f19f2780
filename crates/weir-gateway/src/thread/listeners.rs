//! The listeners of a worker, which come and go.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use weir_net::datagram::DatagramSocket;
use weir_net::listener::{ListeningSocket, local_addr_of_all};

use super::accept::accept;
use super::command::WorkerCommand;
use super::listener::{AcceptingListener, Listener, WorkerListenerChange};
use super::rebalance::ConnectionRebalancer;
use super::receive::receive;
use super::start_connection::start_connection;
use crate::connection::h3::{self, QuicShare};
use crate::context::lifecycle::{ListenerId, ServicePhase};
use crate::snapshot::ListenerSettings;
use crate::worker::Worker;

/// An open listener, with the tasks that accept from its sockets.
struct AcceptedListener {
    listener: Rc<AcceptingListener>,
    accepting: Vec<JoinHandle<()>>,
}

/// The listeners of a worker.
pub(super) struct WorkerListeners {
    worker: Rc<Worker>,
    /// The most connections that the worker accepts.
    most: usize,
    rebalancer: Arc<ConnectionRebalancer<WorkerCommand>>,
    open: RefCell<Vec<AcceptedListener>>,
    /// The newest that was opened so far.
    newest: Cell<ListenerId>,
    /// Of the last change.
    patience: Cell<Duration>,
}

impl WorkerListeners {
    pub(super) fn new(
        worker: Rc<Worker>,
        most: usize,
        rebalancer: Arc<ConnectionRebalancer<WorkerCommand>>,
    ) -> WorkerListeners {
        WorkerListeners {
            worker,
            most,
            rebalancer,
            open: RefCell::default(),
            newest: Cell::default(),
            patience: Cell::default(),
        }
    }

    /// Begins to accept from a listener.
    ///
    /// # Errors
    /// A socket that cannot be registered with the poller. The others are accepted from.
    pub(super) fn open(&self, listener: Listener) -> io::Result<()> {
        let Listener { id, sockets, settings } = listener;
        // Another worker may have handed over a connection of it already.
        let service = self.service(id);
        service.open_at(local_addr_of_all(&sockets));
        self.newest.set(self.newest.get().max(id));
        let listener = Rc::new(AcceptingListener { service, settings: Cell::new(settings) });
        let mut accepting = Vec::new();
        let registered = sockets.into_iter().try_for_each(|socket| {
            accepting.push(self.begin_to_accept(socket, Rc::clone(&listener))?);
            Ok(())
        });
        self.open.borrow_mut().push(AcceptedListener { listener, accepting });
        registered
    }

    fn begin_to_accept(&self, socket: ListeningSocket, listener: Rc<AcceptingListener>) -> io::Result<JoinHandle<()>> {
        let worker = Rc::clone(&self.worker);
        Ok(match socket {
            ListeningSocket::Tcp(socket) => {
                socket.set_nonblocking(true)?;
                let socket = tokio::net::TcpListener::from_std(socket)?;
                tokio::task::spawn_local(accept(worker, socket, listener, self.most, self.rebalancer.clone()))
            }
            ListeningSocket::Udp(socket) => {
                tokio::task::spawn_local(receive(worker, DatagramSocket::new(socket)?, listener, self.most))
            }
        })
    }

    /// Carries a change out. When it returns, the sockets of closed listeners are closed, and what was in their queues is
    /// served.
    pub(super) async fn change(&self, change: WorkerListenerChange) {
        let WorkerListenerChange { open, set, close, patience } = change;
        self.patience.set(patience);
        for (id, settings) in set {
            for open in self.open.borrow().iter().filter(|open| open.listener.service.listener() == id) {
                open.listener.settings.set(settings);
            }
        }
        for listener in open {
            if let Err(error) = self.open(listener) {
                tracing::error!("worker {}: a listening socket cannot be polled: {error}", self.worker.index());
            }
        }
        let closed: Vec<AcceptedListener> =
            self.open.borrow_mut().extract_if(.., |open| close.contains(&open.listener.service.listener())).collect();
        for AcceptedListener { listener, .. } in &closed {
            self.worker.drain_service(&listener.service, patience);
        }
        for task in closed.into_iter().flat_map(|closed| closed.accepting) {
            // It fails only if the task panicked, which dropped its socket as well.
            let _ = task.await;
        }
    }

    /// Serves a connection that another worker has accepted.
    pub(super) fn take(&self, stream: TcpStream, id: ListenerId, settings: ListenerSettings, peer: SocketAddr) {
        start_connection(&self.worker, &self.service(id), stream, settings, peer);
    }

    /// Begins to serve HTTP/3 beside TCP, until the listener is closed and has drained.
    pub(super) fn serve_http3(&self, id: ListenerId, share: QuicShare) {
        tokio::task::spawn_local(h3::serve(Rc::clone(&self.worker), share, self.service(id), self.most));
    }

    /// The phase of a listener's connections.
    fn service(&self, id: ListenerId) -> Rc<ServicePhase> {
        if let Some(service) = self.worker.lifecycle.service_of(id) {
            return service;
        }
        let service = self.worker.lifecycle.begin_service(id);
        if id <= self.newest.get() {
            // It was closed here while the connection was on its way.
            self.worker.drain_service(&service, self.patience.get());
        }
        service
    }
}
