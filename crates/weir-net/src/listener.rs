//! Listening sockets: one for each worker and address, so that workers share no accept queue.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};

/// Opens `count` sockets that listen on `addr` and share its connections among them (`SO_REUSEPORT`). Port 0 is the
/// same free port for all of them. `[::]` means IPv4 too, and IPv4 alone where the machine has no IPv6.
///
/// An address somebody else listens on is an error also when that process would share it with us: two gateways that
/// split one port between them by accident are hard to find.
pub fn bind(addr: SocketAddr, count: usize, backlog: i32) -> io::Result<Vec<TcpListener>> {
    let addr = reserve(addr)?;
    let first = open(addr, backlog)?;
    let addr = first.local_addr()?;
    let mut listeners = vec![first];
    while listeners.len() < count {
        listeners.push(open(addr, backlog)?);
    }
    Ok(listeners)
}

/// Checks that the address is free, and returns the one to use in its place where the machine has no IPv6.
fn reserve(addr: SocketAddr) -> io::Result<SocketAddr> {
    match socket(addr).and_then(|socket| socket.bind(&addr.into())) {
        Ok(()) => Ok(addr),
        Err(error) if addr.is_ipv6() && addr.ip().is_unspecified() && lacks_ipv6(&error) => {
            reserve(SocketAddr::from((Ipv4Addr::UNSPECIFIED, addr.port())))
        }
        Err(error) => Err(error),
    }
}

fn lacks_ipv6(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(rustix::io::Errno::from_raw_os_error);
    matches!(code, Some(rustix::io::Errno::AFNOSUPPORT | rustix::io::Errno::ADDRNOTAVAIL))
}

fn socket(addr: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    // Connections of an earlier process that still close must not keep us from the address.
    socket.set_reuse_address(true)?;
    if addr.is_ipv6() {
        socket.set_only_v6(!addr.ip().is_unspecified())?;
    }
    Ok(socket)
}

fn open(addr: SocketAddr, backlog: i32) -> io::Result<TcpListener> {
    let socket = socket(addr)?;
    socket.set_reuse_port(true)?;
    // Accepted connections inherit this, which saves a call for each.
    socket.set_tcp_nodelay(true)?;
    socket.bind(&addr.into())?;
    socket.listen(backlog)?;
    Ok(socket.into())
}

/// Makes sure that inherited sockets of one address serve `count` workers: adds sockets of our own where the inherited
/// ones allow others beside them. None is ever closed, because connections may wait in its queue.
pub fn widen(inherited: &mut Vec<TcpListener>, count: usize, backlog: i32) -> io::Result<()> {
    for listener in &*inherited {
        // Who opened them need not have thought of this.
        listener.set_nonblocking(true)?;
        let socket = socket2::SockRef::from(listener);
        socket.set_tcp_nodelay(true)?;
        if !socket.reuse_port()? {
            return Ok(());
        }
    }
    let Some(addr) = inherited.first().map(TcpListener::local_addr).transpose()? else { return Ok(()) };
    while inherited.len() < count {
        inherited.push(open(addr, backlog)?);
    }
    Ok(())
}

/// Hands the sockets of one address out to `workers`: each worker has at least one, and each socket has a worker. With
/// fewer sockets than workers, workers share; with more, some workers have several.
pub fn share(listeners: &[TcpListener], workers: usize) -> io::Result<Vec<Vec<TcpListener>>> {
    (0..workers)
        .map(|worker| {
            let own = (worker..listeners.len()).step_by(workers);
            let shared = (worker >= listeners.len()).then(|| worker % listeners.len());
            own.chain(shared).map(|place| listeners[place].try_clone()).collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;
    use std::os::fd::AsFd;

    fn loopback() -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
    }

    /// The listeners that a worker got, by the inode that two descriptors of one socket share.
    fn inodes(listeners: &[TcpListener]) -> Vec<u64> {
        listeners.iter().map(|listener| rustix::fs::fstat(listener.as_fd()).expect("it is open").st_ino).collect()
    }

    #[test]
    fn all_sockets_share_one_free_port() {
        let listeners = bind(loopback(), 3, 16).expect("loopback has a free port");
        let port = listeners[0].local_addr().expect("it is bound").port();
        assert_ne!(port, 0);
        assert!(listeners.iter().all(|listener| listener.local_addr().expect("it is bound").port() == port));
    }

    #[test]
    fn an_address_in_use_is_refused_though_its_owner_would_share_it() {
        let listeners = bind(loopback(), 1, 16).expect("loopback has a free port");
        let addr = listeners[0].local_addr().expect("it is bound");
        let error = bind(addr, 1, 16).expect_err("somebody listens there");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        drop(listeners);
        bind(addr, 1, 16).expect("nobody listens there any more");
    }

    #[test]
    fn the_unspecified_ipv6_address_takes_ipv4_clients() {
        let listeners = bind("[::]:0".parse().expect("an address"), 1, 16).expect("there is a free port");
        let port = listeners[0].local_addr().expect("it is bound").port();
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("IPv4 is served");
    }

    #[test]
    fn f15_every_socket_has_a_worker_and_every_worker_a_socket() {
        for sockets in 1..6 {
            let listeners = bind(loopback(), sockets, 16).expect("loopback has a free port");
            for workers in 1..6 {
                let shares = share(&listeners, workers).expect("there are descriptors left");
                assert_eq!(shares.len(), workers);
                assert!(shares.iter().all(|share| !share.is_empty()), "{sockets} sockets, {workers} workers");
                let mut served: Vec<u64> = shares.iter().flat_map(|share| inodes(share)).collect();
                served.sort_unstable();
                served.dedup();
                assert_eq!(served.len(), sockets, "{sockets} sockets, {workers} workers");
            }
        }
    }

    #[test]
    fn f15_more_workers_than_before_get_sockets_beside_the_inherited_ones() {
        let mut listeners = bind(loopback(), 2, 16).expect("loopback has a free port");
        let before = inodes(&listeners);
        widen(&mut listeners, 4, 16).expect("they share their port");
        assert_eq!(listeners.len(), 4);
        assert_eq!(inodes(&listeners)[..2], before);
        widen(&mut listeners, 1, 16).expect("there is nothing to do");
        assert_eq!(listeners.len(), 4, "none is closed");
    }

    #[test]
    fn a_socket_that_does_not_share_its_port_stays_alone() {
        let mut foreign = vec![TcpListener::bind(loopback()).expect("loopback has a free port")];
        widen(&mut foreign, 4, 16).expect("there is nothing to do");
        assert_eq!(foreign.len(), 1);
    }
}
