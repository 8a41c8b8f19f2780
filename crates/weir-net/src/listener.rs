//! Listening sockets: one per worker and address, so that workers share no accept queue.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use socket2::{Domain, Protocol, SockFilter, Socket, Type};

/// Opens `count` sockets that listen on `addr` and share its connections (`SO_REUSEPORT`). With port 0 all of them use the same
/// free port. `[::]` includes IPv4, and means IPv4 alone on a machine without IPv6.
///
/// An address another process listens on is an error, even if that process would share it: two gateways that split one port by
/// accident are hard to diagnose.
pub fn bind(addr: SocketAddr, count: usize, backlog: i32) -> io::Result<Vec<TcpListener>> {
    open_all(reserve(addr)?, count, backlog)
}

/// The same, on a port that this process listens on at another address: `127.0.0.1:80` beside `0.0.0.0:80`. The kernel gives
/// a connection to the listener with the more specific address.
pub fn bind_beside(addr: SocketAddr, count: usize, backlog: i32) -> io::Result<Vec<TcpListener>> {
    match open_all(addr, count, backlog) {
        Err(error) if addr.is_ipv6() && addr.ip().is_unspecified() && lacks_ipv6(&error) => {
            open_all(SocketAddr::from((Ipv4Addr::UNSPECIFIED, addr.port())), count, backlog)
        }
        opened => opened,
    }
}

fn open_all(addr: SocketAddr, count: usize, backlog: i32) -> io::Result<Vec<TcpListener>> {
    let first = open(addr, backlog)?;
    let addr = first.local_addr()?;
    let mut listeners = vec![first];
    while listeners.len() < count {
        listeners.push(open(addr, backlog)?);
    }
    Ok(listeners)
}

/// Checks that the address is free. Returns the address to use, which is IPv4 if the machine has no IPv6.
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
    // Connections of an earlier process in TIME_WAIT must not block the address.
    socket.set_reuse_address(true)?;
    if addr.is_ipv6() {
        socket.set_only_v6(!addr.ip().is_unspecified())?;
    }
    Ok(socket)
}

fn open(addr: SocketAddr, backlog: i32) -> io::Result<TcpListener> {
    let socket = socket(addr)?;
    socket.set_reuse_port(true)?;
    // Accepted connections inherit this option, which saves a system call for each.
    socket.set_tcp_nodelay(true)?;
    socket.bind(&addr.into())?;
    socket.listen(backlog)?;
    Ok(socket.into())
}

/// The classic BPF program `if (tcp.flags & SYN) drop; accept;`. A filter of a TCP socket sees segments from their TCP header
/// on, whose byte 13 has the flags.
const DROP_SYN: [SockFilter; 4] = [
    SockFilter::new(0x30, 0, 0, 13),          // ldb [13]
    SockFilter::new(0x45, 0, 1, 0x02),        // jset #SYN, +0, +1
    SockFilter::new(0x06, 0, 0, 0),           // ret #0
    SockFilter::new(0x06, 0, 0, 0x0004_0000), // ret #262144
];

/// Lets a socket that is about to be closed establish no more connections: a client that connects meanwhile is refused once the
/// socket is closed, and not reset after it was connected. Connections that are in the queue, or about to be, are not affected.
/// Also applies to copies of the socket, in other processes too, until [`welcome`].
pub fn turn_away(listener: &TcpListener) -> io::Result<()> {
    socket2::SockRef::from(listener).attach_filter(&DROP_SYN)
}

/// Undoes [`turn_away`].
pub fn welcome(listener: &TcpListener) -> io::Result<()> {
    let undone = socket2::SockRef::from(listener).detach_filter();
    // ENOENT: the socket has no filter.
    undone.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

/// Makes inherited sockets of one address serve `count` workers: adds own sockets if the inherited ones allow it
/// (`SO_REUSEPORT`). None is closed, since connections may be in its accept queue.
pub fn widen(inherited: &mut Vec<TcpListener>, count: usize, backlog: i32) -> io::Result<()> {
    for listener in &*inherited {
        // The service manager need not have set these options.
        listener.set_nonblocking(true)?;
        // A process that stopped listening here may have left it.
        welcome(listener)?;
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

/// Distributes the sockets of one address among `workers`: each worker has at least one, and each socket has a worker. With
/// fewer sockets than workers, workers share one; with more, some workers have several.
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

    /// A worker's listeners, by inode, which all descriptors of one socket share.
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
    fn an_address_beside_an_own_one_takes_its_own_connections() {
        let everywhere = bind("[::]:0".parse().expect("an address"), 1, 16).expect("there is a free port").remove(0);
        let port = everywhere.local_addr().expect("it is bound").port();
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let specific = bind_beside(loopback, 1, 16).expect("both are ours").remove(0);
        let client = TcpStream::connect(loopback).expect("it is served");
        let (_, peer) = specific.accept().expect("the more specific address has it");
        assert_eq!(peer, client.local_addr().expect("it is connected"));
        let everywhere_again = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
        bind_beside(everywhere_again, 1, 16).expect("IPv4 beside IPv6");
        assert_eq!(everywhere.accept().map(|_| ()).map_err(|error| error.kind()), Err(io::ErrorKind::WouldBlock));
    }

    #[test]
    fn a_socket_that_drops_syn_segments_accepts_no_new_connection() {
        let listener = bind(loopback(), 1, 16).expect("loopback has a free port").remove(0);
        let addr = listener.local_addr().expect("it is bound");
        let _queued = TcpStream::connect(addr).expect("it listens");
        turn_away(&listener).expect("no privilege is needed");
        let late = socket(addr).expect("a socket");
        late.set_nonblocking(true).expect("an option");
        assert_eq!(late.connect(&addr.into()).map_err(|error| error.raw_os_error()), Err(Some(115)), "in progress");
        listener.accept().expect("what was in the queue stays there");
        assert_eq!(listener.accept().map(|_| ()).map_err(|error| error.kind()), Err(io::ErrorKind::WouldBlock));
        welcome(&listener).expect("it has a filter");
        welcome(&listener).expect("and may have none");
        TcpStream::connect(addr).expect("it listens again");
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
