//! Non-blocking client sockets.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};

use super::recorder::Cause;

/// Starts connecting to `address`; the socket becomes writable when that has succeeded or failed.
pub(super) fn connect(address: SocketAddr, source: Option<IpAddr>) -> Result<OwnedFd, Cause> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))
        .map_err(|_| Cause::Local)?;
    socket.set_tcp_nodelay(true).map_err(|_| Cause::Local)?;
    if let Some(source) = source {
        choose_port_at_connect(&socket).map_err(|_| Cause::Local)?;
        socket.bind(&SocketAddr::new(source, 0).into()).map_err(|_| Cause::Local)?;
    }
    match socket.connect(&address.into()) {
        Ok(()) => Ok(socket.into()),
        Err(error) if error.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => Ok(socket.into()),
        Err(error) => Err(connect_cause(&error)),
    }
}

/// A socket for datagrams to and from `address` only.
pub(super) fn connect_datagrams(address: SocketAddr, source: Option<IpAddr>) -> Result<UdpSocket, Cause> {
    let any = match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let opened = || {
        let socket = UdpSocket::bind((source.unwrap_or(any), 0))?;
        socket.connect(address)?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    opened().map_err(|error: io::Error| connect_cause(&error))
}

/// Defers the choice of the local port to connect, so that a port must be unique only per destination
/// (`IP_BIND_ADDRESS_NO_PORT`).
#[expect(unsafe_code, reason = "no library in use has this option")]
fn choose_port_at_connect(socket: &Socket) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the option takes a pointer to an int that lives through the call, and its size.
    let outcome = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Why connecting failed.
pub(super) fn connect_cause(error: &io::Error) -> Cause {
    const LOCAL: [Errno; 5] = [Errno::ADDRNOTAVAIL, Errno::ADDRINUSE, Errno::MFILE, Errno::NFILE, Errno::NOBUFS];
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(errno) if LOCAL.contains(&errno) => Cause::Local,
        Some(Errno::TIMEDOUT) => Cause::ConnectTimeout,
        _ => Cause::Connect,
    }
}

/// Why an open connection failed.
pub(super) fn stream_cause(error: &io::Error) -> Cause {
    match error.kind() {
        io::ErrorKind::InvalidData => Cause::Tls,
        io::ErrorKind::UnexpectedEof => Cause::Closed,
        io::ErrorKind::TimedOut => Cause::Timeout,
        _ => Cause::Reset,
    }
}
