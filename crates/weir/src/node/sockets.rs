//! The listening sockets of the node itself: opened, or inherited.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};

use weir_net::inherit::{InheritedSockets, ListenerKey};
use weir_net::listener::{self, ListeningSocket, SocketPlan, Transport};

/// An address that cannot be listened on, with the reason.
#[derive(Debug)]
pub(super) struct CannotListen {
    pub addr: SocketAddr,
    pub error: io::Error,
}

impl CannotListen {
    /// How to correct it, if known.
    pub(super) fn advice(&self) -> Option<&'static str> {
        match self.error.kind() {
            io::ErrorKind::AddrInUse => Some("stop the process that listens there, or choose another port"),
            io::ErrorKind::PermissionDenied if self.addr.port() < 1024 => {
                Some("ports below 1024 need CAP_NET_BIND_SERVICE")
            }
            io::ErrorKind::AddrNotAvailable => Some("no interface of this machine has this address"),
            _ => None,
        }
    }
}

/// Without the advice.
impl fmt::Display for CannotListen {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        let Self { addr, error } = self;
        write!(out, "cannot listen on {addr}: {error}")
    }
}

/// The listening sockets of the node itself, by key. They are kept here, beside the copies in use, to be passed on in an upgrade.
#[derive(Debug, Default)]
pub(super) struct Sockets(Vec<(ListenerKey, Vec<ListeningSocket>)>);

impl Sockets {
    /// Opens a socket for an address, or takes inherited ones. Returns the address that it is bound to.
    pub(super) fn open(
        &mut self,
        place: ListenerKey,
        backlog: i32,
        inherited: &mut InheritedSockets,
    ) -> Result<SocketAddr, CannotListen> {
        let addr = place.addr;
        let opened = || {
            let plan = SocketPlan { transport: Transport::Tcp, count: 1, backlog };
            let mut listeners = inherited.take(&place, plan.transport);
            if listeners.is_empty() {
                listeners = listener::bind(addr, plan)?;
            } else {
                listener::widen(&mut listeners, plan)?;
            }
            let bound = listeners[0].local_addr()?;
            self.0.push((place, listeners));
            Ok(bound)
        };
        opened().map_err(|error| CannotListen { addr, error })
    }

    /// Copies of the sockets opened for `purpose`.
    pub(super) fn copies(&self, purpose: &str) -> io::Result<Vec<TcpListener>> {
        let opened = self.0.iter().filter(|(place, _)| place.purpose == purpose);
        let listeners = opened.flat_map(|(_, listeners)| listeners).filter_map(|socket| match socket {
            ListeningSocket::Tcp(listener) => Some(listener.try_clone()),
            ListeningSocket::Udp(_) => None,
        });
        listeners.collect()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (ListenerKey, &[ListeningSocket])> {
        self.0.iter().map(|(place, listeners)| (place.clone(), &**listeners))
    }
}
