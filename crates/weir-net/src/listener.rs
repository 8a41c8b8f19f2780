//! Listening sockets: one per worker and address, so that workers share no accept queue.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use socket2::{Domain, Protocol, SockFilter, SockRef, Socket, Type};

/// The transport of a listening socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    Tcp,
    Udp,
}

/// A socket that clients connect to, or send datagrams to.
#[derive(Debug)]
pub enum ListeningSocket {
    Tcp(TcpListener),
    Udp(UdpSocket),
}

impl ListeningSocket {
    /// Takes over a descriptor.
    ///
    /// # Errors
    /// It is neither a TCP socket that listens, nor a UDP socket.
    pub fn from_descriptor(descriptor: OwnedFd) -> io::Result<ListeningSocket> {
        let socket = SockRef::from(&descriptor);
        match socket.r#type()? {
            Type::STREAM if socket.is_listener()? => Ok(ListeningSocket::Tcp(descriptor.into())),
            Type::DGRAM => Ok(ListeningSocket::Udp(descriptor.into())),
            _ => Err(io::Error::other("it is neither a listening TCP socket nor a UDP socket")),
        }
    }

    pub fn transport(&self) -> Transport {
        match self {
            ListeningSocket::Tcp(_) => Transport::Tcp,
            ListeningSocket::Udp(_) => Transport::Udp,
        }
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            ListeningSocket::Tcp(socket) => socket.local_addr(),
            ListeningSocket::Udp(socket) => socket.local_addr(),
        }
    }

    pub fn try_clone(&self) -> io::Result<ListeningSocket> {
        match self {
            ListeningSocket::Tcp(socket) => socket.try_clone().map(ListeningSocket::Tcp),
            ListeningSocket::Udp(socket) => socket.try_clone().map(ListeningSocket::Udp),
        }
    }
}

impl AsFd for ListeningSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            ListeningSocket::Tcp(socket) => socket.as_fd(),
            ListeningSocket::Udp(socket) => socket.as_fd(),
        }
    }
}

impl AsRawFd for ListeningSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl From<TcpListener> for ListeningSocket {
    fn from(socket: TcpListener) -> ListeningSocket {
        ListeningSocket::Tcp(socket)
    }
}

/// What new sockets of an address are.
#[derive(Clone, Copy, Debug)]
pub struct SocketPlan {
    pub transport: Transport,
    /// One per worker.
    pub count: usize,
    /// The most connections that wait to be accepted.
    pub backlog: i32,
}

/// Opens sockets that listen on `addr` and share what comes (`SO_REUSEPORT`). With port 0 all of them use the same free port.
/// `[::]` includes IPv4, and means IPv4 alone on a machine without IPv6.
///
/// An address another process listens on is an error, even if that process would share it: two gateways that split one port by
/// accident are hard to diagnose.
pub fn bind(addr: SocketAddr, plan: SocketPlan) -> io::Result<Vec<ListeningSocket>> {
    open_all(reserve(addr, plan.transport)?, plan)
}

/// The same, on a port that this process listens on at another address: `127.0.0.1:80` beside `0.0.0.0:80`. The kernel gives
/// a connection to the listener with the more specific address.
pub fn bind_beside(addr: SocketAddr, plan: SocketPlan) -> io::Result<Vec<ListeningSocket>> {
    match open_all(addr, plan) {
        Err(error) if addr.is_ipv6() && addr.ip().is_unspecified() && lacks_ipv6(&error) => {
            open_all(SocketAddr::from((Ipv4Addr::UNSPECIFIED, addr.port())), plan)
        }
        opened => opened,
    }
}

fn open_all(addr: SocketAddr, plan: SocketPlan) -> io::Result<Vec<ListeningSocket>> {
    let first = open(addr, plan)?;
    let addr = first.local_addr()?;
    let mut sockets = vec![first];
    while sockets.len() < plan.count {
        sockets.push(open(addr, plan)?);
    }
    Ok(sockets)
}

/// Checks that the address is free. Returns the address to use, which is IPv4 if the machine has no IPv6.
fn reserve(addr: SocketAddr, transport: Transport) -> io::Result<SocketAddr> {
    match socket(addr, transport).and_then(|socket| socket.bind(&addr.into())) {
        Ok(()) => Ok(addr),
        Err(error) if addr.is_ipv6() && addr.ip().is_unspecified() && lacks_ipv6(&error) => {
            reserve(SocketAddr::from((Ipv4Addr::UNSPECIFIED, addr.port())), transport)
        }
        Err(error) => Err(error),
    }
}

fn lacks_ipv6(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(rustix::io::Errno::from_raw_os_error);
    matches!(code, Some(rustix::io::Errno::AFNOSUPPORT | rustix::io::Errno::ADDRNOTAVAIL))
}

fn socket(addr: SocketAddr, transport: Transport) -> io::Result<Socket> {
    let (kind, protocol) = match transport {
        Transport::Tcp => (Type::STREAM, Protocol::TCP),
        Transport::Udp => (Type::DGRAM, Protocol::UDP),
    };
    let socket = Socket::new(Domain::for_address(addr), kind.nonblocking(), Some(protocol))?;
    if transport == Transport::Tcp {
        // Connections of an earlier process in TIME_WAIT must not block the address. With UDP, the option would let another
        // process take the port as well.
        socket.set_reuse_address(true)?;
    }
    if addr.is_ipv6() {
        socket.set_only_v6(!addr.ip().is_unspecified())?;
    }
    Ok(socket)
}

fn open(addr: SocketAddr, plan: SocketPlan) -> io::Result<ListeningSocket> {
    let socket = socket(addr, plan.transport)?;
    socket.set_reuse_port(true)?;
    match plan.transport {
        Transport::Tcp => {
            // Accepted connections inherit this option, which saves a system call for each.
            socket.set_tcp_nodelay(true)?;
            socket.bind(&addr.into())?;
            socket.listen(plan.backlog)?;
            Ok(ListeningSocket::Tcp(socket.into()))
        }
        Transport::Udp => {
            socket.bind(&addr.into())?;
            Ok(ListeningSocket::Udp(socket.into()))
        }
    }
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
pub fn turn_away(socket: &ListeningSocket) -> io::Result<()> {
    match socket {
        ListeningSocket::Tcp(listener) => SockRef::from(listener).attach_filter(&DROP_SYN),
        ListeningSocket::Udp(_) => Ok(()),
    }
}

/// Undoes [`turn_away`].
pub fn welcome(socket: &ListeningSocket) -> io::Result<()> {
    let ListeningSocket::Tcp(listener) = socket else { return Ok(()) };
    let undone = SockRef::from(listener).detach_filter();
    // ENOENT: the socket has no filter.
    undone.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

/// Makes inherited sockets of one address serve the workers: adds own sockets if the inherited ones allow it (`SO_REUSEPORT`).
/// None is closed, since connections may be in its accept queue.
pub fn widen(inherited: &mut Vec<ListeningSocket>, plan: SocketPlan) -> io::Result<()> {
    for socket in &*inherited {
        // A process that stopped listening here may have left it.
        welcome(socket)?;
        // The service manager need not have set these options.
        let options = SockRef::from(socket);
        options.set_nonblocking(true)?;
        if plan.transport == Transport::Tcp {
            options.set_tcp_nodelay(true)?;
        }
        if !options.reuse_port()? {
            return Ok(());
        }
    }
    let Some(addr) = inherited.first().map(ListeningSocket::local_addr).transpose()? else { return Ok(()) };
    while inherited.len() < plan.count {
        inherited.push(open(addr, plan)?);
    }
    Ok(())
}

/// The local address of each connection that these sockets accept; `None` if it is not the same for all: they are bound to all addresses of
/// the machine, or take connections to any address (`IP_TRANSPARENT`).
pub fn local_addr_of_all(sockets: &[ListeningSocket]) -> Option<SocketAddr> {
    let addr = sockets.first()?.local_addr().ok()?;
    let is_sure = |socket: &ListeningSocket| {
        let is_transparent = SockRef::from(socket).ip_transparent_v4();
        socket.local_addr().is_ok_and(|of| of == addr) && is_transparent.is_ok_and(|is_transparent| !is_transparent)
    };
    (!addr.ip().is_unspecified() && sockets.iter().all(is_sure)).then_some(addr)
}

/// Distributes the sockets of one address among `workers`: each worker has at least one, and each socket has a worker. With
/// fewer sockets than workers, workers share one; with more, some workers have several.
pub fn share(sockets: &[ListeningSocket], workers: usize) -> io::Result<Vec<Vec<ListeningSocket>>> {
    (0..workers)
        .map(|worker| {
            let own = (worker..sockets.len()).step_by(workers);
            let shared = (worker >= sockets.len()).then(|| worker % sockets.len());
            own.chain(shared).map(|place| sockets[place].try_clone()).collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;

    use weir_testkit::{DEADLINE, eventually, eventually_some};

    fn loopback() -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
    }

    fn plan(count: usize) -> SocketPlan {
        SocketPlan { transport: Transport::Tcp, count, backlog: 16 }
    }

    fn tcp(socket: ListeningSocket) -> TcpListener {
        let ListeningSocket::Tcp(listener) = socket else { panic!("it is a socket of TCP") };
        listener
    }

    /// A worker's listeners, by inode, which all descriptors of one socket share.
    fn inodes(listeners: &[ListeningSocket]) -> Vec<u64> {
        listeners.iter().map(|listener| rustix::fs::fstat(listener.as_fd()).expect("it is open").st_ino).collect()
    }

    #[test]
    fn the_local_address_of_connections_is_known_of_sockets_that_are_bound_to_one() {
        let listeners = bind(loopback(), plan(2)).expect("loopback has a free port");
        let addr = listeners[0].local_addr().expect("it is bound");
        assert_eq!(local_addr_of_all(&listeners), Some(addr));
        assert_eq!(local_addr_of_all(&[]), None);
        // Only a process with privileges may set it.
        if SockRef::from(&listeners[1]).set_ip_transparent_v4(true).is_ok() {
            assert_eq!(local_addr_of_all(&listeners), None);
        }
        let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        assert_eq!(local_addr_of_all(&bind(any, plan(1)).expect("a free port")), None);
    }

    #[test]
    fn all_sockets_share_one_free_port() {
        let listeners = bind(loopback(), plan(3)).expect("loopback has a free port");
        let port = listeners[0].local_addr().expect("it is bound").port();
        assert_ne!(port, 0);
        assert!(listeners.iter().all(|listener| listener.local_addr().expect("it is bound").port() == port));
    }

    #[test]
    fn an_address_in_use_is_refused_though_its_owner_would_share_it() {
        let listeners = bind(loopback(), plan(1)).expect("loopback has a free port");
        let addr = listeners[0].local_addr().expect("it is bound");
        let error = bind(addr, plan(1)).expect_err("a process listens there");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        drop(listeners);
        // Processes that other tests start have copies of all sockets for a moment.
        eventually("no process listens there any more", DEADLINE, || bind(addr, plan(1)).is_ok());
    }

    #[test]
    fn an_address_beside_an_own_one_takes_its_own_connections() {
        let everywhere =
            tcp(bind("[::]:0".parse().expect("an address"), plan(1)).expect("there is a free port").remove(0));
        let port = everywhere.local_addr().expect("it is bound").port();
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let specific = tcp(bind_beside(loopback, plan(1)).expect("both are ours").remove(0));
        let client = TcpStream::connect(loopback).expect("it is served");
        let accepted = || specific.accept().ok();
        let (_, peer) = eventually_some("the more specific address has it", DEADLINE, accepted);
        assert_eq!(peer, client.local_addr().expect("it is connected"));
        let everywhere_again = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
        bind_beside(everywhere_again, plan(1)).expect("IPv4 beside IPv6");
        assert_eq!(everywhere.accept().map(|_| ()).map_err(|error| error.kind()), Err(io::ErrorKind::WouldBlock));
    }

    #[test]
    fn a_socket_that_drops_syn_segments_accepts_no_new_connection() {
        let listener = bind(loopback(), plan(1)).expect("loopback has a free port").remove(0);
        let addr = listener.local_addr().expect("it is bound");
        let accepting = tcp(listener.try_clone().expect("a descriptor"));
        let _queued = TcpStream::connect(addr).expect("it listens");
        turn_away(&listener).expect("no privilege is needed");
        let late = socket(addr, Transport::Tcp).expect("a socket");
        late.set_nonblocking(true).expect("an option");
        assert_eq!(late.connect(&addr.into()).map_err(|error| error.raw_os_error()), Err(Some(115)), "in progress");
        eventually("what was in the queue stays there", DEADLINE, || accepting.accept().is_ok());
        assert_eq!(accepting.accept().map(|_| ()).map_err(|error| error.kind()), Err(io::ErrorKind::WouldBlock));
        welcome(&listener).expect("it has a filter");
        welcome(&listener).expect("and may have none");
        TcpStream::connect(addr).expect("it listens again");
    }

    #[test]
    fn the_unspecified_ipv6_address_takes_ipv4_clients() {
        let listeners = bind("[::]:0".parse().expect("an address"), plan(1)).expect("there is a free port");
        let port = listeners[0].local_addr().expect("it is bound").port();
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("IPv4 is served");
    }

    #[test]
    fn f15_every_socket_has_a_worker_and_every_worker_a_socket() {
        for sockets in 1..6 {
            let listeners = bind(loopback(), plan(sockets)).expect("loopback has a free port");
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
        let mut listeners = bind(loopback(), plan(2)).expect("loopback has a free port");
        let before = inodes(&listeners);
        widen(&mut listeners, plan(4)).expect("they share their port");
        assert_eq!(listeners.len(), 4);
        assert_eq!(inodes(&listeners)[..2], before);
        widen(&mut listeners, plan(1)).expect("there is nothing to do");
        assert_eq!(listeners.len(), 4, "none is closed");
    }

    #[test]
    fn a_socket_that_does_not_share_its_port_stays_alone() {
        let mut foreign = vec![TcpListener::bind(loopback()).expect("loopback has a free port").into()];
        widen(&mut foreign, plan(4)).expect("there is nothing to do");
        assert_eq!(foreign.len(), 1);
    }

    #[test]
    fn a_port_of_datagrams_is_shared_by_workers_and_with_no_other_process() {
        let datagrams = SocketPlan { transport: Transport::Udp, ..plan(2) };
        let sockets = bind(loopback(), datagrams).expect("a free port");
        let addr = sockets[0].local_addr().expect("it is bound");
        assert_eq!(sockets[1].local_addr().expect("it is bound"), addr);
        let error = bind(addr, datagrams).expect_err("it is in use");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        // Another process may have the number over TCP, so that several are tried.
        let is_beside = (0..20).any(|_| {
            let sockets = bind(loopback(), datagrams).expect("a free port");
            bind(sockets[0].local_addr().expect("it is bound"), plan(1)).is_ok()
        });
        assert!(is_beside, "TCP has ports of its own");
    }

    #[test]
    fn a_descriptor_is_taken_for_what_it_is() {
        let of = |socket: OwnedFd| ListeningSocket::from_descriptor(socket).map(|socket| socket.transport()).ok();
        let listener = TcpListener::bind(loopback()).expect("a free port");
        let client = TcpStream::connect(listener.local_addr().expect("it is bound")).expect("it listens");
        assert_eq!(of(client.into()), None);
        assert_eq!(of(listener.into()), Some(Transport::Tcp));
        assert_eq!(of(UdpSocket::bind(loopback()).expect("a free port").into()), Some(Transport::Udp));
    }
}
