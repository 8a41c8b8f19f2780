//! Which worker gets a datagram: the first byte of its destination connection id says so, whatever address it comes from. A client
//! that changes its address, as a phone does, or a NAT that forgets its port, therefore stays with the worker that has its connection.
#![expect(unsafe_code, reason = "the filter of a socket is set by a call of the system")]

use std::io;
use std::mem::size_of_val;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use socket2::SockFilter;

/// The most workers that one byte can tell apart.
pub(super) const MAX_WORKERS: usize = 256;

/// Lets the kernel give each datagram to the socket whose number is the first byte of its destination connection id, modulo the number
/// of sockets. `sockets` are all that share the address (`SO_REUSEPORT`), in the order in which they were bound, which is how the kernel
/// numbers them; none of them may be closed before the others. No privilege is needed.
pub(super) fn steer(sockets: &[UdpSocket]) -> io::Result<()> {
    let Some(socket) = sockets.first() else { return Ok(()) };
    let workers = u32::try_from(sockets.len()).ok().filter(|count| *count as usize <= MAX_WORKERS);
    let workers = workers.ok_or_else(|| io::Error::other("HTTP/3 is served by at most 256 workers"))?;
    let program = program(workers);
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut().cast() };
    // SAFETY: the kernel reads the program, which outlives the call, from a descriptor that is open. A `SockFilter` is a
    // `sock_filter`, by its documentation.
    let failed = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            size_of_val(&program) as libc::socklen_t,
        )
    };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The program in classic BPF. It sees the payload of a datagram. A long header has the length of the connection id in byte 5, and the
/// id behind it; a short header has the id from byte 1 on (RFC 8999 §5). A program that reads behind the end of a datagram returns 0.
fn program(workers: u32) -> [SockFilter; 7] {
    [
        SockFilter::new(0x30, 0, 0, 0),       // ldb [0]
        SockFilter::new(0x45, 0, 2, 0x80),    // jset #0x80, +0, +2
        SockFilter::new(0x30, 0, 0, 6),       // ldb [6]
        SockFilter::new(0x05, 0, 0, 1),       // ja +1
        SockFilter::new(0x30, 0, 0, 1),       // ldb [1]
        SockFilter::new(0x94, 0, 0, workers), // mod #workers
        SockFilter::new(0x16, 0, 0, 0),       // ret a
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, SocketAddr};
    use std::time::Duration;

    use socket2::{Domain, Socket, Type};

    fn group(count: usize) -> Vec<UdpSocket> {
        let mut addr = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        (0..count)
            .map(|_| {
                let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).expect("a socket");
                socket.set_reuse_port(true).expect("an option");
                socket.bind(&addr.into()).expect("a port that is free, or shared");
                let socket = UdpSocket::from(socket);
                socket.set_read_timeout(Some(Duration::from_secs(10))).expect("an option");
                addr = socket.local_addr().expect("it is bound");
                socket
            })
            .collect()
    }

    #[test]
    fn a_datagram_goes_to_the_worker_in_its_connection_id_whatever_its_source() {
        let sockets = group(3);
        steer(&sockets).expect("no privilege is needed");
        let to = sockets[0].local_addr().expect("it is bound");
        for first in 0..=255_u8 {
            for datagram in [&[0x40, first, 1, 2][..], &[0xc0, 0, 0, 0, 1, 8, first, 1, 2]] {
                let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
                client.send_to(datagram, to).expect("it is sent");
                let (mut received, owner) = ([0; 16], &sockets[usize::from(first) % 3]);
                let (count, from) = owner.recv_from(&mut received).expect("its worker gets it");
                assert_eq!((&received[..count], from), (datagram, client.local_addr().expect("it is bound")));
            }
        }
    }
}
