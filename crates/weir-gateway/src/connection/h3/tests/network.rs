//! A network between clients and the gateway that exists in memory only, and loses, delays, duplicates, reorders and damages datagrams.
//! Its time is that of the runtime, which is paused: nothing waits in earnest.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};
use weir_net::quic::{EcnCodepoint, QuicLink, RecvMeta, Transmit};
use weir_proto::h3::varint;

/// The address of the gateway.
pub(super) const GATEWAY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1)), 443);

/// RFC 9000 §8.1: so many times what a client has sent may be sent to it before its address is proven.
const AMPLIFICATION: u64 = 3;

/// A driver that is polled so often in one simulation never rests.
const MOST_POLLS: u64 = 2_000_000;

/// How bad a network is. Shares are of a thousand datagrams, in each direction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NetworkRules {
    pub lost: u32,
    pub duplicated: u32,
    /// These take up to four times as long, so that others overtake them.
    pub late: u32,
    /// Some bit of these is another one.
    pub damaged: u32,
    /// These are marked by a router that has to wait (ECN).
    pub marked: u32,
    /// In each direction.
    pub delay: Duration,
    /// Bytes that pass in a second, in each direction; `None` is no limit.
    pub rate: Option<u64>,
    /// After so many datagrams of a client, its address is another one, as behind a NAT.
    pub moves_after: Option<u64>,
}

/// The longest time that a datagram waits for its turn; what would wait longer is lost.
const LONGEST_QUEUE: Duration = Duration::from_millis(200);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Datagram {
    from: SocketAddr,
    /// Proves that the client receives at the address which it comes from.
    is_proof: bool,
    ecn: Option<EcnCodepoint>,
    bytes: Vec<u8>,
}

/// When it is due, its number, and what it is.
struct DueDatagram(Instant, u64, Datagram);

impl PartialEq for DueDatagram {
    fn eq(&self, other: &DueDatagram) -> bool {
        self.1 == other.1
    }
}

impl Eq for DueDatagram {}

impl PartialOrd for DueDatagram {
    fn partial_cmp(&self, other: &DueDatagram) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for DueDatagram {
    fn cmp(&self, other: &DueDatagram) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

/// What is on its way to one end.
#[derive(Default)]
struct Inbox {
    waiting: BinaryHeap<Reverse<DueDatagram>>,
    timer: Option<Pin<Box<Sleep>>>,
    reader: Option<Waker>,
    /// Until when the line to this end is busy.
    busy_until: Option<Instant>,
}

impl Inbox {
    /// Takes what is due.
    fn poll(&mut self, context: &mut Context<'_>, most: usize) -> Poll<Vec<Datagram>> {
        loop {
            let now = Instant::now();
            let mut due = Vec::new();
            while due.len() < most
                && let Some(Reverse(next)) = self.waiting.peek()
                && next.0 <= now
            {
                due.extend(self.waiting.pop().map(|Reverse(next)| next.2));
            }
            if !due.is_empty() {
                return Poll::Ready(due);
            }
            self.reader = Some(context.waker().clone());
            let Some(Reverse(next)) = self.waiting.peek() else { return Poll::Pending };
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(next.0)));
            timer.as_mut().reset(next.0);
            if timer.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

/// An address of a client, as the gateway knows it.
#[derive(Default)]
struct AddressAccount {
    received: u64,
    sent: u64,
    is_proven: bool,
}

struct ClientPlace {
    addr: SocketAddr,
    inbox: Inbox,
    sent: u64,
    /// It had another address before.
    has_moved: bool,
    /// The gateway has sent packets that only an established connection has.
    is_established: bool,
    /// Nothing reaches it any more, and nothing of it arrives.
    is_gone: bool,
}

/// What has become of datagrams.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NetworkCounts {
    pub take_from_gateway: u64,
    pub bytes_from_gateway: u64,
    pub from_clients: u64,
    pub lost: u64,
    pub duplicated: u64,
    /// Those that others may have overtaken.
    pub late: u64,
    pub moved: u64,
    polls: u64,
}

struct NetworkState {
    rules: NetworkRules,
    random: fastrand::Rng,
    number: u64,
    gateway: Inbox,
    clients: Vec<ClientPlace>,
    places: HashMap<SocketAddr, usize>,
    accounts: HashMap<SocketAddr, AddressAccount>,
    counts: NetworkCounts,
}

#[derive(Clone, Copy)]
enum Towards {
    Gateway,
    Client(usize),
}

impl NetworkState {
    fn happens(&mut self, share: u32) -> bool {
        share > 0 && self.random.u32(0..1000) < share
    }

    /// Decides what becomes of a datagram.
    fn send(&mut self, towards: Towards, mut datagram: Datagram) {
        let NetworkRules { lost, duplicated, late, damaged, marked, delay, rate, .. } = self.rules;
        if self.happens(lost) {
            self.counts.lost += 1;
            return;
        }
        if self.happens(damaged) && !datagram.bytes.is_empty() {
            let (at, bit) = (self.random.usize(0..datagram.bytes.len()), self.random.u8(0..8));
            datagram.bytes[at] ^= 1 << bit;
        }
        if datagram.ecn.is_some() && self.happens(marked) {
            datagram.ecn = Some(EcnCodepoint::Ce);
        }
        let copies = if self.happens(duplicated) { 2 } else { 1 };
        self.counts.duplicated += copies - 1;
        for _ in 0..copies {
            let is_late = self.happens(late);
            self.counts.late += u64::from(is_late);
            let delay = if is_late { delay.mul_f64(1.0 + 3.0 * self.random.f64()) } else { delay };
            self.number += 1;
            let number = self.number;
            let inbox = match towards {
                Towards::Gateway => &mut self.gateway,
                Towards::Client(index) => &mut self.clients[index].inbox,
            };
            let now = Instant::now();
            let takes = rate.map_or(Duration::ZERO, |rate| {
                Duration::from_secs(1).mul_f64(datagram.bytes.len() as f64 / rate as f64)
            });
            let sent = inbox.busy_until.map_or(now, |busy| busy.max(now)) + takes;
            if sent > now + LONGEST_QUEUE {
                self.counts.lost += 1;
                return;
            }
            inbox.busy_until = Some(sent);
            inbox.waiting.push(Reverse(DueDatagram(sent + delay, number, datagram.clone())));
            inbox.reader.take().into_iter().for_each(Waker::wake);
        }
    }

    fn take_from_client(&mut self, index: usize, ecn: Option<EcnCodepoint>, bytes: &[u8]) {
        let moves_after = self.rules.moves_after;
        let place = &mut self.clients[index];
        self.counts.from_clients += 1;
        if place.is_gone {
            return;
        }
        place.sent += u64::from(place.is_established);
        if place.is_established && moves_after.is_some_and(|most| place.sent.is_multiple_of(most)) {
            self.places.remove(&place.addr);
            place.addr.set_port(place.addr.port() + 1);
            place.has_moved = true;
            self.places.insert(place.addr, index);
            self.counts.moved += 1;
        }
        let from = place.addr;
        // Only first addresses are judged: `quinn-proto` sends a whole datagram to a new one that has sent fewer bytes.
        let is_proof = place.has_moved || proves_address(bytes);
        self.send(Towards::Gateway, Datagram { from, is_proof, ecn, bytes: bytes.to_vec() });
    }

    fn take_from_gateway(&mut self, to: SocketAddr, ecn: Option<EcnCodepoint>, bytes: &[u8]) {
        self.counts.take_from_gateway += 1;
        self.counts.bytes_from_gateway += bytes.len() as u64;
        let account = self.accounts.entry(to).or_default();
        account.sent += bytes.len() as u64;
        assert!(
            account.is_proven || account.sent <= AMPLIFICATION * account.received,
            "{to} has sent {} bytes, and gets {}",
            account.received,
            account.sent
        );
        // At a former address nothing receives.
        let Some(&index) = self.places.get(&to) else { return };
        let place = &mut self.clients[index];
        if place.is_gone {
            return;
        }
        place.is_established |= bytes[0] & 0x80 == 0;
        self.send(Towards::Client(index), Datagram { from: GATEWAY, is_proof: false, ecn, bytes: bytes.to_vec() });
    }
}

/// Whether a datagram of a client proves its address, because it has a packet with keys that the client has received there (RFC 9000
/// §8.1): not only Initial packets.
fn proves_address(mut datagram: &[u8]) -> bool {
    while let Some(first) = datagram.first() {
        if first & 0x80 == 0 || first & 0x30 != 0 {
            return true;
        }
        let Some(length) = initial_packet_length(datagram) else { return false };
        datagram = datagram.get(length..).unwrap_or_default();
    }
    false
}

/// The length of the Initial packet at the beginning (RFC 9000 §17.2.2).
fn initial_packet_length(datagram: &[u8]) -> Option<usize> {
    let mut rest = datagram.get(5..)?;
    for _ in 0..2 {
        let (&length, after) = rest.split_first()?;
        rest = after.get(usize::from(length)..)?;
    }
    let token = varint::take(&mut rest)?;
    rest = rest.get(usize::try_from(token).ok()?..)?;
    let length = varint::take(&mut rest)?;
    Some(datagram.len() - rest.len() + usize::try_from(length).ok()?)
}

/// A network.
#[derive(Clone)]
pub(super) struct SimulatedNetwork(Arc<Mutex<NetworkState>>);

impl SimulatedNetwork {
    pub(super) fn new(rules: NetworkRules, random: fastrand::Rng) -> SimulatedNetwork {
        SimulatedNetwork(Arc::new(Mutex::new(NetworkState {
            rules,
            random,
            number: 0,
            gateway: Inbox::default(),
            clients: Vec::new(),
            places: HashMap::new(),
            accounts: HashMap::new(),
            counts: NetworkCounts::default(),
        })))
    }

    fn state(&self) -> MutexGuard<'_, NetworkState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn counts(&self) -> NetworkCounts {
        self.state().counts
    }

    /// The place of another client.
    pub(super) fn add_client(&self) -> ClientLink {
        let mut state = self.state();
        let index = state.clients.len();
        let addr = SocketAddr::from(([192, 0, 2, 1 + index as u8], 1024));
        state.places.insert(addr, index);
        let inbox = Inbox::default();
        let place = ClientPlace { addr, inbox, sent: 0, has_moved: false, is_established: false, is_gone: false };
        state.clients.push(place);
        ClientLink { network: self.clone(), index }
    }

    /// The end of the gateway.
    pub(super) fn gateway(&self) -> GatewayLink {
        GatewayLink(self.clone())
    }
}

/// The end of the gateway.
pub(super) struct GatewayLink(SimulatedNetwork);

impl QuicLink for GatewayLink {
    fn local_addr(&self) -> SocketAddr {
        GATEWAY
    }

    fn max_segments(&self) -> usize {
        10
    }

    fn poll_receive(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.0.state();
        state.counts.polls += 1;
        assert!(state.counts.polls < MOST_POLLS, "the driver never rests");
        let Poll::Ready(due) = state.gateway.poll(context, buffers.len().min(meta.len())) else { return Poll::Pending };
        for datagram in &due {
            let account = state.accounts.entry(datagram.from).or_default();
            account.received += datagram.bytes.len() as u64;
            account.is_proven |= datagram.is_proof;
        }
        Poll::Ready(Ok(fill(&due, buffers, |index, of| meta[index] = of)))
    }

    fn poll_send(&self, _: &mut Context<'_>, transmit: &Transmit<'_>) -> Poll<()> {
        let mut state = self.0.state();
        for bytes in segments(transmit) {
            state.take_from_gateway(transmit.destination, transmit.ecn, bytes);
        }
        Poll::Ready(())
    }
}

fn segments<'t>(transmit: &'t Transmit<'_>) -> impl Iterator<Item = &'t [u8]> {
    transmit.contents.chunks(transmit.segment_size.unwrap_or(transmit.contents.len()).max(1))
}

/// Copies datagrams into buffers.
fn fill(due: &[Datagram], buffers: &mut [IoSliceMut<'_>], mut note: impl FnMut(usize, RecvMeta)) -> usize {
    for (index, (datagram, buffer)) in due.iter().zip(buffers).enumerate() {
        let len = datagram.bytes.len();
        buffer[..len].copy_from_slice(&datagram.bytes);
        note(index, RecvMeta { addr: datagram.from, len, stride: len, ecn: datagram.ecn, dst_ip: None });
    }
    due.len()
}

/// The end of a client, as `quinn` uses it.
pub(super) struct ClientLink {
    network: SimulatedNetwork,
    index: usize,
}

impl ClientLink {
    pub(super) fn index(&self) -> usize {
        self.index
    }

    /// The network loses everything from and to this client from now on.
    pub(super) fn vanish(&self) {
        self.network.state().clients[self.index].is_gone = true;
    }
}

impl std::fmt::Debug for ClientLink {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "client {}", self.index)
    }
}

impl quinn::AsyncUdpSocket for ClientLink {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn quinn::UdpPoller>> {
        Box::pin(AlwaysWritable)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let mut state = self.network.state();
        segments(transmit).for_each(|bytes| state.take_from_client(self.index, transmit.ecn, bytes));
        Ok(())
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.network.state();
        let most = buffers.len().min(meta.len());
        let due = state.clients[self.index].inbox.poll(context, most);
        due.map(|due| Ok(fill(&due, buffers, |index, of| meta[index] = of)))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(SocketAddr::from(([192, 0, 2, 1 + self.index as u8], 1024)))
    }

    fn may_fragment(&self) -> bool {
        false
    }
}

#[derive(Debug)]
struct AlwaysWritable;

impl quinn::UdpPoller for AlwaysWritable {
    fn poll_writable(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
