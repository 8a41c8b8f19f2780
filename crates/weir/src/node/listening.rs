//! The listeners for clients, which come and go with the configuration.
//!
//! New addresses are opened before a configuration is published, so that one that cannot be opened refuses the configuration as a
//! whole. Listeners that it does not name any more are closed after the workers use it.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use weir_control::Diagnostic;
use weir_control::document::{Document, Listen, ListenAddress};
use weir_gateway::snapshot::{ListenerProtocol, ListenerSettings};
use weir_gateway::{DataPlane, Listener, ListenerChange, ListenerId};
use weir_net::inherit::{InheritedSockets, ListenerKey};
use weir_net::listener::{self, ListeningSocket, SocketPlan};
use weir_net::quic::{InheritedQuic, ProcessLife, QuicHandOver, SocketGroup};

use super::http3::{Http3, Http3Plan, Http3Sockets};
use super::sockets::CannotListen;
use crate::say::{say, say_error};

/// How long workers may take to open and close listeners. They do so between two events, usually within microseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often a UDP port that is not free yet is tried again.
const HTTP3_RETRY: Duration = Duration::from_millis(500);
/// How many other ports are tried where the system chooses one.
const OTHER_PORTS: usize = 15;

/// The listeners for clients of this process.
pub(super) struct ClientListeners {
    workers: usize,
    backlog: i32,
    state: Arc<Mutex<ListenersState>>,
    /// Set after the gateway has been started. Weak, since the gateway is owned elsewhere.
    gateway: OnceLock<Weak<DataPlane>>,
}

struct ListenersState {
    open: Vec<OpenListener>,
    newest: ListenerId,
    /// The sockets that the process was started with, until it is ready.
    inherited: InheritedSockets,
    /// Another process has been started with copies of the sockets, and may take the service over.
    is_handing_over: bool,
    /// The node drains: it accepts no more, whatever its configuration says.
    has_ended: bool,
    /// An address could not be listened on.
    has_failed: bool,
    http3: Http3Sockets,
}

struct OpenListener {
    id: ListenerId,
    address: ListenAddress,
    settings: ListenerSettings,
    /// With the port that it has, if `address` has port 0.
    bound: SocketAddr,
    http3: Http3,
    /// Beside the copies of the workers, to be passed on in an upgrade.
    sockets: Vec<ListeningSocket>,
    is_inherited: bool,
}

/// What a configuration changes.
#[derive(Default)]
struct ListenerPlan {
    opened: Vec<OpenListener>,
    set: Vec<(ListenerId, ListenerSettings)>,
    closed: Vec<ListenerId>,
}

impl ClientListeners {
    /// `directory`: that which the node has been given for its files.
    pub(super) fn new(
        workers: usize,
        backlog: i32,
        inherited: InheritedSockets,
        http3: InheritedQuic,
        directory: Option<PathBuf>,
    ) -> ClientListeners {
        let state = ListenersState {
            open: Vec::new(),
            newest: ListenerId::default(),
            inherited,
            is_handing_over: false,
            has_ended: false,
            has_failed: false,
            http3: Http3Sockets::new(http3, directory),
        };
        ClientListeners { workers, backlog, state: Arc::new(Mutex::new(state)), gateway: OnceLock::new() }
    }

    /// Opens the addresses that the document adds.
    ///
    /// # Errors
    /// The addresses that cannot be listened on. Nothing has changed then.
    pub(super) fn reserve(&self, document: &Document) -> Result<ReservedListeners<'_>, Vec<Diagnostic>> {
        let mut state = self.state();
        let mut reserved = ReservedListeners {
            listeners: self,
            plan: ListenerPlan::default(),
            drain: document.settings.worker_shutdown_timeout,
        };
        if state.has_ended {
            return Ok(reserved);
        }
        let (added, set, closed) = state.difference(document);
        (reserved.plan.set, reserved.plan.closed) = (set, closed);
        if added.iter().any(|listen| listen.http3) {
            state.http3.keep_reset_key();
        }
        let mut faults = Vec::new();
        for listen in added {
            match state.opened(listen, self.workers, self.backlog) {
                Ok(opened) => reserved.plan.opened.push(opened),
                Err(error) => faults.push(fault(document, listen, &error)),
            }
        }
        state.has_failed |= !faults.is_empty();
        drop(state);
        if faults.is_empty() { Ok(reserved) } else { Err(faults) }
    }

    /// Lets the workers of `gateway` follow later changes. Returns nothing before it was called.
    pub(super) fn follow_with(&self, gateway: &Arc<DataPlane>) {
        // A node has one gateway, so this is set only once.
        let _ = self.gateway.set(Arc::downgrade(gateway));
        self.serve_http3(&mut self.state(), gateway);
    }

    /// Gives the workers the sockets of HTTP/3 that they do not have yet.
    fn serve_http3(&self, state: &mut ListenersState, gateway: &Arc<DataPlane>) {
        let ListenersState { open, http3, is_handing_over, .. } = state;
        for open in open {
            open.http3 = match std::mem::replace(&mut open.http3, Http3::Off) {
                Http3::Opened(mut group) => {
                    gateway.serve_http3(open.id, &http3.share(open.bound, &group));
                    // Those of the start are directed here when the node is ready.
                    if http3.is_newest && !*is_handing_over && http3.has_others(&mut group) {
                        direct(open.bound, &group);
                    }
                    Http3::Served(group)
                }
                Http3::Pending(plan) => {
                    let (id, gateway, state) = (open.id, Arc::downgrade(gateway), Arc::downgrade(&self.state));
                    let waits = move || await_http3(id, plan, &state, &gateway);
                    let thread = std::thread::Builder::new().name("http3-socket".into()).spawn(waits);
                    thread
                        .map(|_| ())
                        .unwrap_or_else(|error| say_error!("{} does not serve HTTP/3: {error}", plan.bound));
                    Http3::Awaited
                }
                other => other,
            }
        }
    }

    /// Lets new connections over HTTP/3 begin in this process. Those of earlier processes stay there, until these end.
    pub(super) fn take_new_http3(&self) -> io::Result<()> {
        let mut state = self.state();
        state.http3.inherited.close_left_over();
        state.tell_served_http3();
        state.http3.is_newest = true;
        for open in &state.open {
            if let Some(group) = open.http3.served().filter(|group| !group.others.is_empty()) {
                group.steer()?;
                say!("{}: new connections over HTTP/3 begin here, those of earlier processes stay there", open.bound);
            }
        }
        for life in &state.http3.earlier {
            let (life, state) = (life.clone(), Arc::downgrade(&self.state));
            let thread = std::thread::Builder::new().name("http3-earlier".into());
            thread.spawn(move || await_end(&life, &state))?;
        }
        Ok(())
    }

    /// The open listeners, for each worker.
    pub(super) fn for_workers(&self) -> io::Result<Vec<Vec<Listener>>> {
        let state = self.state();
        shares(&state.open, self.workers)
    }

    /// The addresses with the names of their protocols.
    pub(super) fn addresses(&self) -> Vec<(SocketAddr, &'static str)> {
        self.state().open.iter().map(|open| (open.bound, open.settings.name())).collect()
    }

    /// The first address on which clients speak HTTP/1.1 without TLS and without the PROXY protocol.
    pub(super) fn in_the_clear(&self) -> Option<SocketAddr> {
        let state = self.state();
        state.open.iter().find(|open| open.settings == ListenerProtocol::Http.into()).map(|open| open.bound)
    }

    /// Uses the sockets that the process was started with.
    pub(super) fn with_inherited<T>(&self, each: impl FnOnce(&mut InheritedSockets) -> T) -> T {
        each(&mut self.state().inherited)
    }

    /// Whether an address could not be listened on.
    pub(super) fn has_failed(&self) -> bool {
        self.state().has_failed
    }

    /// Calls `start`, which starts another process, with the sockets that it is to get; it gets no others until it has failed.
    pub(super) fn hand_over<T, E>(
        &self,
        start: impl FnOnce(Vec<(ListenerKey, &[ListeningSocket])>, io::Result<QuicHandOver>) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut state = self.state();
        let ListenersState { open, http3, .. } = &mut *state;
        let mut http3 = http3.hand_over(open.iter().filter_map(|open| Some((open.bound, open.http3.group()?))));
        let watches = http3.as_mut().map(QuicHandOver::take_watches).unwrap_or_default();
        let key = |open: &OpenListener| ListenerKey { purpose: open.settings.name(), addr: open.address.socket_addr() };
        let started = start(state.open.iter().map(|open| (key(open), &*open.sockets)).collect(), http3);
        state.is_handing_over = started.is_ok();
        state.http3.others.set_later(started.is_ok().then_some(watches));
        started
    }

    /// The other process has taken the service over.
    pub(super) fn handed_over(&self) {
        // What earlier processes watch is the other process's from now on.
        self.state().http3.inherited.tell_served(|_| false);
    }

    /// The other process has failed.
    pub(super) fn keep(&self) {
        let mut state = self.state();
        state.is_handing_over = false;
        state.http3.others.set_later(None);
        state.steer_http3(|_| true);
    }

    /// Closes the copies of all sockets, and opens no more: the workers close theirs after they have accepted what is queued.
    pub(super) fn end(&self) {
        let mut state = self.state();
        state.has_ended = true;
        state.open.clear();
    }

    fn state(&self) -> MutexGuard<'_, ListenersState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ListenersState {
    /// What the document adds, changes, and does not name any more.
    fn difference<'d>(
        &self,
        document: &'d Document,
    ) -> (Vec<&'d Listen>, Vec<(ListenerId, ListenerSettings)>, Vec<ListenerId>) {
        let mut open: Vec<&OpenListener> = self.open.iter().collect();
        let mut wanted: Vec<&Listen> = document.listened_addresses();
        // Port 0 may be open several times: those that stay as they are come first.
        let same_addr =
            |open: &OpenListener, listen: &Listen| open.address.socket_addr() == listen.address.socket_addr();
        wanted.retain(|listen| {
            let kept = open.iter().position(|open| {
                same_addr(open, listen) && open.settings == listen.settings && open.http3.is_on() == listen.http3
            });
            kept.map(|kept| open.remove(kept)).is_none()
        });
        let mut set = Vec::new();
        wanted.retain(|listen| {
            let Some(kept) = open.iter().position(|open| {
                same_addr(open, listen)
                    && open.settings.protocol.transport() == listen.settings.protocol.transport()
                    && open.http3.is_on() == listen.http3
            }) else {
                return true;
            };
            set.push((open.remove(kept).id, listen.settings));
            false
        });
        (wanted, set, open.into_iter().map(|open| open.id).collect())
    }

    /// Lets earlier processes learn which addresses are not served over HTTP/3: there they refuse new connections while they drain.
    fn tell_served_http3(&mut self) {
        let ListenersState { open, http3, .. } = self;
        http3.inherited.tell_served(|addr| open.iter().any(|open| open.bound == addr && open.http3.group().is_some()));
    }

    /// Directs the datagrams of listeners that `which` is true for.
    fn steer_http3(&mut self, mut which: impl FnMut(&mut Http3) -> bool) {
        // Else the newest process does so.
        let is_newest = self.http3.is_newest && !self.is_handing_over && !self.has_ended;
        for open in &mut self.open {
            let is_wanted = which(&mut open.http3);
            if let Some(group) = open.http3.served().filter(|_| is_wanted && is_newest) {
                direct(open.bound, group);
            }
        }
    }

    /// Opens the sockets of a new address, or takes inherited ones.
    fn opened(&mut self, listen: &Listen, workers: usize, backlog: i32) -> Result<OpenListener, CannotListen> {
        let addr = listen.address.socket_addr();
        let transport = listen.settings.protocol.transport();
        let plan = SocketPlan { transport, count: workers, backlog };
        let mut open = || {
            let names = ListenerSettings::all(transport).map(ListenerSettings::name);
            let mut sockets = self.inherited.take_any(listen.settings.name(), names, addr, transport);
            let is_inherited = !sockets.is_empty();
            let mut is_beside = false;
            if is_inherited {
                listener::widen(&mut sockets, plan)?;
            } else {
                let same = |open: &&OpenListener| open.settings.protocol.transport() == transport;
                let open = self.open.iter().filter(same).map(|open| open.bound);
                let own = open.chain(self.inherited.left_over(transport));
                is_beside = addr.port() != 0 && own.into_iter().any(|own| own.port() == addr.port());
                let bind = if is_beside { listener::bind_beside } else { listener::bind };
                sockets = bind(addr, plan)?;
            }
            let bound = sockets[0].local_addr()?;
            let http3 = match listen.http3 {
                true => {
                    let plan = Http3Plan { bound, workers, may_wait: is_inherited || is_beside };
                    self.http3.open(plan)?
                }
                false => Http3::Off,
            };
            self.newest = ListenerId(self.newest.0 + 1);
            let (id, address, settings) = (self.newest, listen.address, listen.settings);
            Ok(OpenListener { id, address, settings, bound, http3, sockets, is_inherited })
        };
        let mut opened: io::Result<OpenListener> = open();
        // A port that the system has chosen for TCP can be taken for UDP.
        let others = if listen.http3 && addr.port() == 0 { OTHER_PORTS } else { 0 };
        for _ in 0..others {
            match &opened {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => opened = open(),
                _ => break,
            }
        }
        opened.map_err(|error| CannotListen { addr, error })
    }
}

/// Lets new connections over HTTP/3 begin in this process.
fn direct(bound: SocketAddr, group: &SocketGroup) {
    group.steer().unwrap_or_else(|error| say_error!("{bound}: HTTP/3 cannot be directed: {error}"));
}

/// Opens the UDP sockets of an address once their former owner has closed them, which is when its last connection has ended.
fn await_http3(id: ListenerId, plan: Http3Plan, state: &Weak<Mutex<ListenersState>>, gateway: &Weak<DataPlane>) {
    let bound = plan.bound;
    say!("{bound} serves HTTP/3 once the UDP port is free: connections of before are served to their end first");
    loop {
        std::thread::sleep(HTTP3_RETRY);
        let (Some(gateway), Some(state)) = (gateway.upgrade(), state.upgrade()) else { return };
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        let ListenersState { open, http3, is_handing_over, has_ended, .. } = &mut *state;
        let Some(open) = open.iter_mut().find(|open| open.id == id).filter(|_| !*has_ended) else { return };
        if *is_handing_over {
            continue;
        }
        match http3.open(plan) {
            Ok(Http3::Opened(group)) => {
                say!("{bound} serves HTTP/3");
                gateway.serve_http3(id, &http3.share(bound, &group));
                open.http3 = Http3::Served(group);
                return;
            }
            Ok(_) => {}
            Err(error) => return say_error!("{bound} does not serve HTTP/3: {error}"),
        }
    }
}

/// Waits for the end of an earlier process, and lets its datagrams come to this one: clients that it has left are told.
fn await_end(life: &ProcessLife, state: &Weak<Mutex<ListenersState>>) {
    life.wait();
    let Some(state) = state.upgrade() else { return };
    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
    state.http3.earlier.retain(|earlier| earlier.tag != life.tag);
    state.http3.others.forget(life.tag);
    state.steer_http3(|http3| http3.forget(life.tag));
}

/// The fault of an address that cannot be listened on. Its author is to know at once, so a change of a resource is refused.
fn fault(document: &Document, listen: &Listen, error: &CannotListen) -> Diagnostic {
    let fault = Diagnostic::at_place(&document.source, listen.origin.place, error.to_string());
    let fault = Diagnostic { path: listen.origin.path.to_string(), ..fault };
    document.located(match error.advice() {
        Some(advice) => fault.advise(advice),
        None => fault,
    })
}

/// Copies of the sockets, distributed to the workers.
fn shares(open: &[OpenListener], workers: usize) -> io::Result<Vec<Vec<Listener>>> {
    let mut shares: Vec<Vec<Listener>> = Vec::new();
    shares.resize_with(workers, Vec::new);
    for open in open {
        for (share, sockets) in shares.iter_mut().zip(listener::share(&open.sockets, workers)?) {
            share.push(Listener { id: open.id, sockets, settings: open.settings });
        }
    }
    Ok(shares)
}

/// The change of listeners that a configuration brings. Dropped, it closes what it has opened.
pub(super) struct ReservedListeners<'l> {
    listeners: &'l ClientListeners,
    plan: ListenerPlan,
    /// How long connections of closed listeners may take to end.
    drain: Duration,
}

impl ReservedListeners<'_> {
    /// Puts the change into service. Returns when the workers have carried it out.
    pub(super) fn apply(mut self) {
        let ListenerPlan { opened, set, closed } = std::mem::take(&mut self.plan);
        if opened.is_empty() && set.is_empty() && closed.is_empty() {
            return;
        }
        let ClientListeners { workers, gateway, .. } = self.listeners;
        let mut state = self.listeners.state();
        let gateway = gateway.get().and_then(Weak::upgrade);
        let open = shares(&opened, *workers).unwrap_or_else(|error| {
            say_error!("the file descriptor of a listening socket cannot be duplicated: {error}");
            Vec::new()
        });
        for open in &mut state.open {
            if let Some((_, settings)) = set.iter().find(|(id, _)| *id == open.id) {
                open.settings = *settings;
                say!("listening on {} ({})", open.bound, settings.name());
            }
        }
        if gateway.is_some() {
            // Those of the start are announced when the node is ready.
            opened.iter().for_each(|open| say!("listening on {} ({})", open.bound, open.settings.name()));
        }
        state.open.extend(opened);
        let has_closed = !closed.is_empty();
        for gone in state.open.extract_if(.., |open| closed.contains(&open.id)).collect::<Vec<_>>() {
            if !state.is_handing_over {
                // Without the filter, a client may connect between the last accept and the close, and is reset.
                let turned = gone.sockets.iter().try_for_each(listener::turn_away);
                turned.unwrap_or_else(|error| say_error!("{} is closed without a filter: {error}", gone.bound));
            }
            say!("no longer listening on {} ({})", gone.bound, gone.settings.name());
        }
        if has_closed && state.http3.is_newest {
            state.tell_served_http3();
        }
        drop(state);
        let Some(gateway) = gateway else { return };
        let change = ListenerChange { open, set, close: closed, drain: self.drain };
        if !gateway.change_listeners(change, PATIENCE) {
            say_error!("a worker has not changed its listeners after {} s", PATIENCE.as_secs());
        }
        self.listeners.serve_http3(&mut self.listeners.state(), &gateway);
    }
}

impl Drop for ReservedListeners<'_> {
    fn drop(&mut self) {
        let opened = std::mem::take(&mut self.plan.opened);
        let mut state = self.listeners.state();
        for open in &opened {
            state.http3.put_back(open.bound, &open.http3);
        }
        for OpenListener { settings, address, sockets, .. } in opened.into_iter().filter(|open| open.is_inherited) {
            let key = ListenerKey { purpose: settings.name(), addr: address.socket_addr() };
            state.inherited.put_back(&key, sockets);
        }
    }
}
