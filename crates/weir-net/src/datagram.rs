//! Sockets for datagrams: many are received by one system call, with the address that each was sent to, and answers are sent from
//! that address. On an address of every interface, the kernel would choose one by its routes, and a client discards what does not
//! come from where it has sent to.
#![expect(
    unsafe_code,
    reason = "batches of datagrams with their addresses are received and sent by calls of the system"
)]

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;
use std::task::{Context, Poll, ready};

use socket2::{SockAddr, SockAddrStorage};
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// The largest datagram that UDP can carry.
pub const LARGEST_DATAGRAM: usize = 65_535;
/// The most datagrams of clients that are received by one system call, and the most answers of one endpoint.
const BATCH: usize = 16;
const ANSWERS: usize = 4;
/// Bytes for the address that a datagram was sent to: a header of 16 bytes, and at most 20 of `in6_pktinfo`, aligned.
const CONTROL_BYTES: usize = 64;

/// A socket that clients send datagrams to.
#[derive(Debug)]
pub struct DatagramSocket {
    socket: UdpSocket,
    local: SocketAddr,
    /// Whether datagrams may come to different addresses.
    is_everywhere: bool,
    /// For what endpoints answer.
    answers: RefCell<DatagramBatch>,
}

/// A received datagram.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'b> {
    pub bytes: &'b [u8],
    pub from: SocketAddr,
    /// The address that it was sent to, in the form of the socket's family.
    pub to: SocketAddr,
}

/// Memory for the datagrams of one system call. Pages that no datagram has reached take none.
#[derive(Debug)]
pub struct DatagramBatch {
    bytes: Vec<u8>,
    received: Vec<ReceivedDatagram>,
}

#[derive(Clone, Copy, Debug)]
struct ReceivedDatagram {
    length: usize,
    from: SocketAddr,
    to: SocketAddr,
}

#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct ControlBuffer([u8; CONTROL_BYTES]);

impl Default for DatagramBatch {
    fn default() -> DatagramBatch {
        DatagramBatch::of(BATCH)
    }
}

impl DatagramBatch {
    fn of(most: usize) -> DatagramBatch {
        DatagramBatch { bytes: vec![0; most * LARGEST_DATAGRAM], received: Vec::with_capacity(most) }
    }

    pub fn datagrams(&self) -> impl Iterator<Item = Datagram<'_>> {
        self.bytes.chunks(LARGEST_DATAGRAM).zip(&self.received).map(|(bytes, received)| Datagram {
            bytes: &bytes[..received.length],
            from: received.from,
            to: received.to,
        })
    }
}

impl DatagramSocket {
    /// Takes over a bound socket. Called within a runtime.
    pub fn new(socket: std::net::UdpSocket) -> io::Result<DatagramSocket> {
        socket.set_nonblocking(true)?;
        let local = socket.local_addr()?;
        let is_everywhere = local.ip().is_unspecified();
        if is_everywhere {
            report_addresses(socket.as_raw_fd(), local.is_ipv6())?;
        }
        let answers = RefCell::new(DatagramBatch::of(ANSWERS));
        Ok(DatagramSocket { socket: UdpSocket::from_std(socket)?, local, is_everywhere, answers })
    }

    /// Waits for datagrams, and receives as many as are there and fit into the batch: at least one.
    pub async fn receive(&self, batch: &mut DatagramBatch) -> io::Result<()> {
        poll_fn(|context| poll_batch::<BATCH>(&self.socket, context, self.local, batch)).await
    }

    /// Receives what has come from `endpoint`, a socket of [`connect`], and calls `each` with it: at least one datagram. When pending, the
    /// task is woken once there is one.
    pub fn poll_answers(
        &self,
        endpoint: &UdpSocket,
        context: &mut Context<'_>,
        mut each: impl FnMut(&[u8]),
    ) -> Poll<io::Result<()>> {
        let batch = &mut *self.answers.borrow_mut();
        ready!(poll_batch::<ANSWERS>(endpoint, context, self.local, batch))?;
        batch.datagrams().for_each(|datagram| each(datagram.bytes));
        Poll::Ready(Ok(()))
    }

    /// Sends a datagram at once. `from`: the address that the peer has sent to, as [`Datagram::to`] names it.
    ///
    /// # Errors
    /// `WouldBlock` if the socket's buffer is full; any other error concerns this datagram or an earlier one to the same peer.
    pub fn send(&self, bytes: &[u8], to: SocketAddr, from: IpAddr) -> io::Result<()> {
        // Not by way of the runtime, which would refuse until the poller has reported the socket for the first time.
        send(self.socket.as_raw_fd(), bytes, to, self.is_everywhere.then_some(from))
    }
}

/// A socket for datagrams to and from `peer` alone. Called within a runtime.
pub fn connect(peer: SocketAddr) -> io::Result<UdpSocket> {
    let any: IpAddr = match peer {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = std::net::UdpSocket::bind((any, 0))?;
    socket.connect(peer)?;
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket)
}

/// Has the kernel tell with each datagram the address that it was sent to.
fn report_addresses(socket: RawFd, is_ipv6: bool) -> io::Result<()> {
    let on: libc::c_int = 1;
    let (level, name) = match is_ipv6 {
        // A socket for both families reports an address of IPv4 in the form of IPv6.
        true => (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
        false => (libc::IPPROTO_IP, libc::IP_PKTINFO),
    };
    // SAFETY: the option takes a pointer to an int that lives through the call, and its size.
    let outcome = unsafe {
        libc::setsockopt(socket, level, name, (&raw const on).cast(), mem::size_of_val(&on) as libc::socklen_t)
    };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Receives at least one datagram. Fewer than fit into the batch were all: the runtime learns that there are no more, which saves the
/// call that would say so.
fn poll_batch<const MOST: usize>(
    socket: &UdpSocket,
    context: &mut Context<'_>,
    local: SocketAddr,
    batch: &mut DatagramBatch,
) -> Poll<io::Result<()>> {
    loop {
        ready!(socket.poll_recv_ready(context))?;
        batch.received.clear();
        let received = socket.try_io(Interest::READABLE, || {
            receive::<MOST>(socket.as_raw_fd(), local, batch)?;
            if batch.received.len() == MOST { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
        });
        match received {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Poll::Ready(Err(error)),
            _ if batch.received.is_empty() => {}
            _ => return Poll::Ready(Ok(())),
        }
    }
}

fn receive<const MOST: usize>(socket: RawFd, local: SocketAddr, batch: &mut DatagramBatch) -> io::Result<()> {
    let mut names: [SockAddrStorage; MOST] = std::array::from_fn(|_| SockAddrStorage::zeroed());
    let mut controls = [ControlBuffer([0; CONTROL_BYTES]); MOST];
    let mut buffers: [libc::iovec; MOST] = std::array::from_fn(|place| libc::iovec {
        iov_base: batch.bytes[place * LARGEST_DATAGRAM..].as_mut_ptr().cast(),
        iov_len: LARGEST_DATAGRAM,
    });
    // SAFETY: zero is valid in all fields: null pointers, and lengths of 0.
    let mut messages: [libc::mmsghdr; MOST] = unsafe { mem::zeroed() };
    for (place, message) in messages.iter_mut().enumerate() {
        let header = &mut message.msg_hdr;
        header.msg_name = (&raw mut names[place]).cast();
        header.msg_namelen = names[place].size_of();
        header.msg_iov = &raw mut buffers[place];
        header.msg_iovlen = 1;
        header.msg_control = (&raw mut controls[place]).cast();
        header.msg_controllen = CONTROL_BYTES as _;
    }
    // SAFETY: each message points to a buffer, a name and a control buffer of the given lengths, which live through the call and
    // are used by nothing else.
    let count = unsafe {
        libc::recvmmsg(socket, messages.as_mut_ptr(), MOST as libc::c_uint, libc::MSG_DONTWAIT as _, ptr::null_mut())
    };
    if count < 0 {
        return Err(io::Error::last_os_error());
    }
    for (message, name) in messages.iter().zip(names).take(count as usize) {
        // SAFETY: the kernel has written the address, and its length.
        let from = unsafe { SockAddr::new(name, message.msg_hdr.msg_namelen) };
        // SAFETY: the kernel has written the control messages, and their length; the buffer lives until here.
        let addressed = unsafe { addressed_to(&message.msg_hdr) };
        batch.received.push(ReceivedDatagram {
            length: message.msg_len as usize,
            from: from.as_socket().unwrap_or(local),
            to: addressed.map_or(local, |to| SocketAddr::new(to, local.port())),
        });
    }
    Ok(())
}

/// The address in the control messages of a datagram.
///
/// # Safety
/// `header` must point to control messages as the kernel writes them.
unsafe fn addressed_to(header: &libc::msghdr) -> Option<IpAddr> {
    // SAFETY: guaranteed by the caller; the reads need no alignment.
    unsafe {
        let mut next = libc::CMSG_FIRSTHDR(header);
        while let Some(control) = next.as_ref() {
            let data = libc::CMSG_DATA(next);
            match (control.cmsg_level, control.cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    let info: libc::in_pktinfo = ptr::read_unaligned(data.cast());
                    return Some(Ipv4Addr::from(u32::from_be(info.ipi_addr.s_addr)).into());
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    let info: libc::in6_pktinfo = ptr::read_unaligned(data.cast());
                    return Some(Ipv6Addr::from(info.ipi6_addr.s6_addr).into());
                }
                _ => next = libc::CMSG_NXTHDR(header, next),
            }
        }
        None
    }
}

fn send(socket: RawFd, bytes: &[u8], to: SocketAddr, from: Option<IpAddr>) -> io::Result<()> {
    let name = SockAddr::from(to);
    let mut control = ControlBuffer([0; CONTROL_BYTES]);
    let mut buffer = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: zero is valid in all fields: null pointers, and lengths of 0.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_name = name.as_ptr().cast_mut().cast();
    header.msg_namelen = name.len();
    header.msg_iov = &raw mut buffer;
    header.msg_iovlen = 1;
    if let Some(from) = from {
        header.msg_control = (&raw mut control).cast();
        header.msg_controllen = CONTROL_BYTES as _;
        // SAFETY: the control buffer is zeroed, aligned, and large enough for either structure.
        header.msg_controllen = unsafe { put_source(&header, from) } as _;
    }
    // SAFETY: the header points to a name, a buffer and a control buffer of the given lengths, which live through the call; the
    // kernel only reads them.
    match unsafe { libc::sendmsg(socket, &raw const header, libc::MSG_DONTWAIT) } {
        sent if sent < 0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Writes the source address of a datagram as a control message; returns the length of all control messages.
///
/// # Safety
/// `header` must point to a control buffer that is aligned, and large enough.
unsafe fn put_source(header: &libc::msghdr, from: IpAddr) -> usize {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let control = libc::CMSG_FIRSTHDR(header);
        let length = match from {
            IpAddr::V4(from) => {
                let mut info: libc::in_pktinfo = mem::zeroed();
                info.ipi_spec_dst.s_addr = u32::from(from).to_be();
                (*control).cmsg_level = libc::IPPROTO_IP;
                (*control).cmsg_type = libc::IP_PKTINFO;
                ptr::write_unaligned(libc::CMSG_DATA(control).cast(), info);
                mem::size_of_val(&info)
            }
            IpAddr::V6(from) => {
                let mut info: libc::in6_pktinfo = mem::zeroed();
                info.ipi6_addr.s6_addr = from.octets();
                (*control).cmsg_level = libc::IPPROTO_IPV6;
                (*control).cmsg_type = libc::IPV6_PKTINFO;
                ptr::write_unaligned(libc::CMSG_DATA(control).cast(), info);
                mem::size_of_val(&info)
            }
        } as libc::c_uint;
        (*control).cmsg_len = libc::CMSG_LEN(length) as _;
        libc::CMSG_SPACE(length) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(to: &str) -> std::net::UdpSocket {
        let client = std::net::UdpSocket::bind(if to.contains('[') { "[::]:0" } else { "0.0.0.0:0" }).expect("a port");
        client.connect(to).expect("an address");
        client.set_read_timeout(Some(std::time::Duration::from_secs(10))).expect("an option");
        client
    }

    async fn received(
        socket: &DatagramSocket,
        batch: &mut DatagramBatch,
        count: usize,
    ) -> Vec<(Vec<u8>, SocketAddr, SocketAddr)> {
        let mut all = Vec::new();
        while all.len() < count {
            socket.receive(batch).await.expect("a datagram");
            all.extend(batch.datagrams().map(|one| (one.bytes.to_vec(), one.from, one.to)));
        }
        all
    }

    #[test]
    fn an_answer_comes_from_the_address_that_was_asked() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            for (bound, asked) in
                [("127.0.0.1:0", "127.0.0.1"), ("0.0.0.0:0", "127.0.0.9"), ("[::]:0", "127.0.0.9"), ("[::]:0", "[::1]")]
            {
                let socket = std::net::UdpSocket::bind(bound).expect("a free port");
                let port = socket.local_addr().expect("it is bound").port();
                let socket = DatagramSocket::new(socket).expect("it is one of UDP");
                let mut batch = DatagramBatch::default();
                let client = client(&format!("{asked}:{port}"));
                client.send(b"ask").expect("sent");
                let all = received(&socket, &mut batch, 1).await;
                let (bytes, from, to) = &all[0];
                assert_eq!(bytes, b"ask");
                assert_eq!(from.port(), client.local_addr().expect("it is bound").port());
                assert_eq!(to.ip().to_canonical().to_string(), asked.trim_matches(['[', ']']), "{bound}");
                socket.send(b"answer", *from, to.ip()).expect("sent");
                let mut answer = [0; 16];
                // A connected socket receives only what comes from the address that it sends to.
                assert_eq!(client.recv(&mut answer).expect("an answer"), 6, "{bound}");
            }
        });
    }

    #[test]
    fn answers_that_come_together_are_received_together_and_later_ones_are_announced() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let bound = || std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
            let (socket, peer) = (DatagramSocket::new(bound()).expect("it is one of UDP"), bound());
            let endpoint = connect(peer.local_addr().expect("it is bound")).expect("a port");
            let to = endpoint.local_addr().expect("it is bound");
            for sizes in [&[0][..], &[1, 2, 3], &[5; ANSWERS], &[6; 2 * ANSWERS + 1], &[7]] {
                for size in sizes {
                    peer.send_to(&vec![9; *size], to).expect("sent");
                }
                let mut got = Vec::new();
                while got.len() < sizes.len() {
                    poll_fn(|context| socket.poll_answers(&endpoint, context, |bytes| got.push(bytes.len())))
                        .await
                        .expect("an answer");
                }
                assert_eq!(got, sizes);
                let more = poll_fn(|context| Poll::Ready(socket.poll_answers(&endpoint, context, |_| {}).is_ready()));
                assert!(!more.await, "there is nothing");
            }
        });
    }

    #[test]
    fn datagrams_keep_their_bounds_in_any_number_and_size() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
            let client = client(&socket.local_addr().expect("it is bound").to_string());
            let socket = DatagramSocket::new(socket).expect("it is one of UDP");
            let mut batch = DatagramBatch::default();
            let sizes: Vec<usize> = (0..2 * BATCH + 1).map(|place| place * 100).collect();
            for size in &sizes {
                client.send(&vec![7; *size]).expect("sent");
            }
            let all = received(&socket, &mut batch, sizes.len()).await;
            assert_eq!(all.iter().map(|(bytes, ..)| bytes.len()).collect::<Vec<_>>(), sizes);
            client.send(&[1; 65_507]).expect("the largest over IPv4");
            assert_eq!(received(&socket, &mut batch, 1).await[0].0, [1; 65_507]);
        });
    }
}
