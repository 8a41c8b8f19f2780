//! The sessions of a socket that receives datagrams: one for each address and port of a client, and each address that it has sent
//! to. A client is not known to be where its datagrams say, so that a forged address begins a session as well: their number is bounded, and one
//! that is in use is not given up for a new one.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use slab::Slab;
use weir_net::datagram::{Datagram, DatagramBatch, DatagramSocket};
use weir_net::listener::Transport;
use weir_plugin::{ClientFacts, ClientProtocol};

use crate::context::lifecycle::ServicePhase;
use crate::serve::stream::{DatagramSession, find, serve_session};
use crate::worker::{TaskGuard, Worker};

/// The most sessions of one worker on one socket, as a number, and as a share of all that the worker may have open. The rest is
/// for other sockets: a flood on one leaves room at the others, and most of it to connections, whose clients are where they say.
const MOST_SESSIONS: usize = 16_384;
const SOCKET_SHARE: usize = 4;
/// The same for the sessions of all sockets of a worker.
const WORKER_SHARE: usize = 2;
/// When there is no room, a session may be ended for a new one after nothing has come from either side for this long.
const SPARE_AFTER_NS: u64 = 1_000_000_000;
/// The most sessions that are looked at to find such a one.
const LOOKED_AT: usize = 16;

pub(crate) struct Sessions {
    worker: Rc<Worker>,
    service: Rc<ServicePhase>,
    socket: Rc<DatagramSocket>,
    /// Of connections and sessions of the worker.
    most: usize,
    table: Rc<RefCell<DatagramSessions>>,
}

/// A client, and the address that it has sent to.
type SessionKey = (SocketAddr, SocketAddr);

#[derive(Default)]
struct DatagramSessions {
    places: HashMap<SessionKey, usize>,
    sessions: Slab<Rc<DatagramSession>>,
    /// Where the next search for a session to end begins.
    next: usize,
}

impl DatagramSessions {
    fn find(&self, key: &SessionKey) -> Option<&Rc<DatagramSession>> {
        self.places.get(key).map(|place| &self.sessions[*place])
    }

    fn insert(&mut self, key: SessionKey, session: Rc<DatagramSession>) {
        let place = self.sessions.insert(session);
        self.places.insert(key, place);
    }

    /// Removes a session, unless another one has its place.
    fn remove(&mut self, session: &Rc<DatagramSession>) {
        let key = session.key();
        if let Some(place) = self.places.get(&key).copied()
            && Rc::ptr_eq(&self.sessions[place], session)
        {
            self.places.remove(&key);
            self.sessions.remove(place);
        }
    }

    /// Removes and returns a session that has been idle, if one of the next few has.
    fn remove_spare(&mut self, now_ns: u64) -> Option<Rc<DatagramSession>> {
        for _ in 0..LOOKED_AT.min(self.sessions.capacity()) {
            self.next = (self.next + 1) % self.sessions.capacity();
            let found = self.sessions.get(self.next);
            if let Some(spare) = found.filter(|session| session.idle_ns(now_ns) >= SPARE_AFTER_NS).cloned() {
                self.remove(&spare);
                return Some(spare);
            }
        }
        None
    }
}

impl Sessions {
    pub(crate) fn new(
        worker: Rc<Worker>,
        service: Rc<ServicePhase>,
        socket: Rc<DatagramSocket>,
        most: usize,
    ) -> Sessions {
        Sessions { worker, service, socket, most, table: Rc::default() }
    }

    /// Receives at least one datagram.
    pub(crate) async fn receive(&self, batch: &mut DatagramBatch) -> io::Result<()> {
        self.socket.receive(batch).await
    }

    /// Passes a datagram to the session of its client, which begins with it if there is none. It is dropped, and counted, if no
    /// stream route takes it, or there is no room.
    pub(crate) fn take(&mut self, datagram: Datagram<'_>) {
        let key = (datagram.from, datagram.to);
        if let Some(session) = self.table.borrow().find(&key) {
            return session.take(&self.worker, datagram.bytes);
        }
        match self.begin(key) {
            Ok(session) => session.take(&self.worker, datagram.bytes),
            Err(cause) => self.worker.metrics.datagrams_dropped.increment(cause),
        }
    }

    fn is_full(&self) -> bool {
        let (of_socket, of_worker) = (self.table.borrow().sessions.len(), self.worker.lifecycle.sessions.get());
        of_socket >= MOST_SESSIONS.min(self.most / SOCKET_SHARE)
            || of_worker >= self.most / WORKER_SHARE
            || self.worker.lifecycle.tasks() >= self.most
    }

    /// Begins a session.
    ///
    /// # Errors
    /// Why there is none, as metrics name it.
    fn begin(&mut self, key: SessionKey) -> Result<Rc<DatagramSession>, &'static str> {
        let [client, local] = [key.0, key.1].map(|addr| SocketAddr::new(addr.ip().to_canonical(), addr.port()));
        let worker = &self.worker;
        // Without a route there is neither a session nor a record: either would be a gift to a flood.
        find(&worker.current().snapshot, Transport::Udp, local, client.ip(), None).ok_or("no_route")?;
        let is_full = self.is_full();
        // A client with more than its share ends no session of another one.
        let task = worker.task(&self.service);
        if !task.claim(client.ip()) {
            return Err("sessions_of_client");
        }
        if is_full {
            let spare = self.table.borrow_mut().remove_spare(worker.now_ns()).ok_or("sessions_full")?;
            spare.end(worker);
        }
        let session = Rc::new(DatagramSession::new(worker, Rc::clone(&self.socket), key));
        self.table.borrow_mut().insert(key, Rc::clone(&session));
        worker.lifecycle.sessions.update(|count| count + 1);
        let facts = ClientFacts {
            peer: client,
            local,
            addr: client.ip(),
            port: client.port(),
            public_port: local.port(),
            protocol: ClientProtocol::Udp,
            connection: worker.number_connection(),
            connection_requests: 1,
            ..ClientFacts::default()
        };
        tokio::task::spawn_local(serve(task, Rc::clone(&session), facts, Rc::clone(&self.table)));
        Ok(session)
    }
}

async fn serve(
    task: TaskGuard,
    session: Rc<DatagramSession>,
    facts: ClientFacts,
    table: Rc<RefCell<DatagramSessions>>,
) {
    let mut exchange = task.buffers.take_exchange();
    exchange.started_ns = task.now_ns();
    exchange.client = facts;
    serve_session(&task, &session, task.service(), exchange).await;
    table.borrow_mut().remove(&session);
    session.forget_timer(&task);
    task.lifecycle.sessions.update(|count| count - 1);
}
