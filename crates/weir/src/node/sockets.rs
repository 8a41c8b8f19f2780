//! The listening sockets of a node: opened, or inherited.

use std::fmt;
use std::io;
use std::net::{Ipv6Addr, SocketAddr, TcpListener};

use weir_control::document::ListenAddress;
use weir_net::inherit::{InheritedSockets, ListenerKey};
use weir_net::listener;

/// An address that cannot be listened on, with the reason.
#[derive(Debug)]
pub struct CannotListen {
    addr: SocketAddr,
    error: io::Error,
}

impl fmt::Display for CannotListen {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        let Self { addr, error } = self;
        write!(out, "cannot listen on {addr}: {error}")?;
        match error.kind() {
            io::ErrorKind::AddrInUse => write!(out, "; stop the process that listens there, or choose another port"),
            io::ErrorKind::PermissionDenied if addr.port() < 1024 => {
                write!(out, "; ports below 1024 need CAP_NET_BIND_SERVICE")
            }
            io::ErrorKind::AddrNotAvailable => write!(out, "; no interface of this machine has this address"),
            _ => Ok(()),
        }
    }
}

/// The address to bind a socket to. `[::]` accepts IPv4 clients as well.
pub fn socket_addr(address: ListenAddress) -> SocketAddr {
    match address {
        ListenAddress::Everywhere(port) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)),
        ListenAddress::One(addr) => addr,
    }
}

/// All listening sockets of the process, by key. They are kept here, beside the copies in use, to be passed on in an upgrade.
#[derive(Debug, Default)]
pub struct Sockets(Vec<(ListenerKey, Vec<TcpListener>)>);

impl Sockets {
    /// Opens `count` sockets for an address, or takes inherited ones. Returns the address that they are bound to.
    pub fn open(
        &mut self,
        place: ListenerKey,
        count: usize,
        backlog: i32,
        inherited: &mut InheritedSockets,
    ) -> Result<SocketAddr, CannotListen> {
        let addr = place.addr;
        let opened = || {
            let mut listeners = inherited.take(&place);
            if listeners.is_empty() {
                listeners = listener::bind(addr, count, backlog)?;
            } else {
                listener::widen(&mut listeners, count, backlog)?;
            }
            let bound = listeners[0].local_addr()?;
            self.0.push((place, listeners));
            Ok(bound)
        };
        opened().map_err(|error| CannotListen { addr, error })
    }

    /// Copies of the sockets opened for `purpose`, distributed to the workers.
    pub fn share(&self, purpose: &str, workers: usize) -> io::Result<Vec<Vec<TcpListener>>> {
        let mut shares: Vec<Vec<TcpListener>> = Vec::new();
        shares.resize_with(workers, Vec::new);
        for (_, listeners) in self.0.iter().filter(|(place, _)| place.purpose == purpose) {
            for (share, more) in shares.iter_mut().zip(listener::share(listeners, workers)?) {
                share.extend(more);
            }
        }
        Ok(shares)
    }

    pub fn all(&self) -> &[(ListenerKey, Vec<TcpListener>)] {
        &self.0
    }
}
