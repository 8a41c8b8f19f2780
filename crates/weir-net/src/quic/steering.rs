//! Which process and which worker gets a datagram: its destination connection id says so, whatever address it comes from. A client
//! that changes its address, as a phone does, or a NAT that forgets its port, therefore stays with the worker that has its connection.
#![expect(unsafe_code, reason = "the filter of a socket is set by a call of the system")]

use std::io;
use std::mem::size_of_val;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use socket2::SockFilter;

use super::connection_ids::{LENGTH, WorkerConnectionIds};
use super::processes::ProcessTag;

/// The most workers that one byte can tell apart.
pub(super) const MAX_WORKERS: usize = 256;

/// The sockets of one process among all that share an address, as the kernel numbers them: one for each worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketBlock {
    pub tag: ProcessTag,
    /// The number of the first.
    pub base: usize,
    pub count: usize,
}

impl SocketBlock {
    /// The ids of connections of a worker.
    pub fn ids_of(&self, worker: usize) -> WorkerConnectionIds {
        WorkerConnectionIds { worker: worker as u8, workers: self.count as u16, tag: self.tag }
    }

    /// The number behind that of the last.
    pub fn end(&self) -> usize {
        self.base + self.count
    }
}

/// Lets the kernel give each datagram to the process whose tag is in its destination connection id, if that is one of `others`, and to
/// that of `newest` otherwise: there new connections begin, whose ids clients choose. In its block, it is the socket whose number is the
/// first byte of the id, modulo the number of sockets.
///
/// `socket` is any of those that share the address (`SO_REUSEPORT`). The kernel numbers them in the order in which they were bound; none
/// may be closed before those behind it. No privilege is needed. The former program is replaced in one step.
pub(super) fn steer(socket: &UdpSocket, newest: SocketBlock, others: &[SocketBlock]) -> io::Result<()> {
    if newest.count > MAX_WORKERS {
        return Err(io::Error::other("HTTP/3 is served by at most 256 workers"));
    }
    let program = program(newest, others);
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
/// id behind it; a short header has the id from byte 1 on (RFC 8999 §5). X is where the id begins. An id of another length was chosen
/// by a client. A program that reads behind the end of a datagram returns 0.
fn program(newest: SocketBlock, others: &[SocketBlock]) -> Vec<SockFilter> {
    let others_count = others.len() as u8;
    let mut program = vec![
        SockFilter::new(0x30, 0, 0, 0),                            // ldb [0]
        SockFilter::new(0x45, 2, 0, 0x80),                         // jset #0x80, +2, +0
        SockFilter::new(0x01, 0, 0, 1),                            // ldx #1
        SockFilter::new(0x05, 0, 0, 3),                            // ja +3
        SockFilter::new(0x01, 0, 0, 6),                            // ldx #6
        SockFilter::new(0x30, 0, 0, 5),                            // ldb [5]
        SockFilter::new(0x15, 0, 1 + others_count, LENGTH as u32), // jeq #LENGTH, +0, newest
        SockFilter::new(0x40, 0, 0, 1),                            // ld [x + 1]
    ];
    // Behind these comparisons are the choices in the block of the newest and of each other, four instructions each.
    for (index, other) in (0..others_count).zip(others) {
        program.push(SockFilter::new(0x15, others_count + 3 + 3 * index, 0, other.tag.0)); // jeq #tag, other, +0
    }
    for block in [&newest].into_iter().chain(others) {
        program.extend([
            SockFilter::new(0x50, 0, 0, 0),                  // ldb [x + 0]
            SockFilter::new(0x94, 0, 0, block.count as u32), // mod #count
            SockFilter::new(0x04, 0, 0, block.base as u32),  // add #base
            SockFilter::new(0x16, 0, 0, 0),                  // ret a
        ]);
    }
    program
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

    /// Checks that a datagram from some port comes to the socket with this number.
    #[track_caller]
    fn comes_to(sockets: &[UdpSocket], datagram: &[u8], owner: usize) {
        let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        client.send_to(datagram, sockets[0].local_addr().expect("it is bound")).expect("it is sent");
        let mut received = [0; 32];
        let (count, from) = sockets[owner].recv_from(&mut received).expect("its worker gets it");
        assert_eq!((&received[..count], from), (datagram, client.local_addr().expect("it is bound")));
    }

    fn block(tag: u32, base: usize, count: usize) -> SocketBlock {
        SocketBlock { tag: ProcessTag(tag), base, count }
    }

    fn id(first: u8, tag: u32) -> [u8; LENGTH] {
        let mut id = [7; LENGTH];
        id[0] = first;
        id[1..5].copy_from_slice(&tag.to_be_bytes());
        id
    }

    #[test]
    fn a_datagram_goes_to_the_worker_in_its_connection_id_whatever_its_source() {
        let sockets = group(3);
        steer(&sockets[0], block(1, 0, 3), &[]).expect("no privilege is needed");
        for first in 0..=255_u8 {
            let id = id(first, 0xffff_ffff);
            let owner = usize::from(first) % 3;
            comes_to(&sockets, &[&[0x40], &id[..]].concat(), owner);
            comes_to(&sockets, &[&[0xc0, 0, 0, 0, 1, 8], &id[..8]].concat(), owner);
        }
    }

    #[test]
    fn a_datagram_goes_to_the_process_in_its_connection_id_and_others_to_the_newest() {
        let sockets = group(6);
        let [newest, second, first] = [block(0xffff_fff0, 3, 3), block(2, 1, 2), block(1, 0, 1)];
        steer(&sockets[5], newest, &[second, first]).expect("no privilege is needed");
        for byte in [0, 1, 2, 3, 128, 255] {
            for (tag, block) in [(1, first), (2, second), (0xffff_fff0, newest), (3, newest)] {
                let owner = block.base + usize::from(byte) % block.count;
                comes_to(&sockets, &[&[0x40], &id(byte, tag)[..]].concat(), owner);
                comes_to(&sockets, &[&[0xc0, 0, 0, 0, 1, LENGTH as u8], &id(byte, tag)[..]].concat(), owner);
                // The client has chosen an id of another length, which has no tag.
                let new = newest.base + usize::from(byte) % newest.count;
                comes_to(&sockets, &[&[0xc0, 0, 0, 0, 1, 8], &id(byte, tag)[..]].concat(), new);
            }
        }
    }
}
