//! A bad network between client and gateway: a relay of datagrams that loses, delays, duplicates and reorders them, and takes another
//! port of its own now and then, as a NAT does. What becomes of a datagram follows from a seed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::time::Instant;

/// The longest datagram of UDP over IPv4.
const LONGEST: usize = 65_507;

/// How bad the network is. Shares are of a thousand datagrams, in each direction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BadNetwork {
    pub(crate) lost: u32,
    pub(crate) duplicated: u32,
    /// These are held back by another `delay`, so that others overtake them.
    pub(crate) late: u32,
    /// The first datagram of the client is late in any case.
    pub(crate) is_first_late: bool,
    /// In each direction.
    pub(crate) delay: Duration,
    /// After so many datagrams of the client, the relay sends from another port, and the one before is closed. They are counted from the
    /// end of the handshake: a server discards what comes from another address before (RFC 9000 §9).
    pub(crate) moves_after: Option<u64>,
}

/// What has become of datagrams so far.
#[derive(Debug, Default)]
pub(crate) struct RelayCounts {
    pub(crate) relayed: AtomicU64,
    pub(crate) lost: AtomicU64,
    pub(crate) duplicated: AtomicU64,
    pub(crate) late: AtomicU64,
    pub(crate) moved: AtomicU64,
}

impl RelayCounts {
    pub(crate) fn of(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Towards {
    Gateway,
    Client,
}

/// A datagram that waits: when it is due, its number, where it goes, and its bytes.
type DelayedDatagram = Reverse<(Instant, u64, Towards, Vec<u8>)>;

/// The relay between one client and the gateway.
struct UdpRelay {
    network: BadNetwork,
    random: fastrand::Rng,
    gateway: SocketAddr,
    client: Option<SocketAddr>,
    inside: UdpSocket,
    outside: UdpSocket,
    waiting: BinaryHeap<DelayedDatagram>,
    received: u64,
    /// The gateway has sent packets that only an established connection has: those with a short header.
    is_established: bool,
    /// Since then.
    from_client: u64,
    counts: Arc<RelayCounts>,
}

async fn socket() -> UdpSocket {
    UdpSocket::bind(("127.0.0.1", 0)).await.expect("loopback has free ports")
}

/// Starts a relay to the gateway for as long as the runtime lasts; returns the address for the client.
pub(crate) async fn start(gateway: SocketAddr, network: BadNetwork, seed: u64) -> (SocketAddr, Arc<RelayCounts>) {
    let counts = Arc::<RelayCounts>::default();
    let (inside, outside) = (socket().await, socket().await);
    let address = inside.local_addr().expect("a bound socket has an address");
    let relay = UdpRelay {
        network,
        random: fastrand::Rng::with_seed(seed),
        gateway,
        client: None,
        inside,
        outside,
        waiting: BinaryHeap::new(),
        received: 0,
        is_established: false,
        from_client: 0,
        counts: Arc::clone(&counts),
    };
    tokio::spawn(relay.run());
    (address, counts)
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl UdpRelay {
    async fn run(mut self) {
        let (mut of_client, mut of_gateway) = (vec![0; LONGEST], vec![0; LONGEST]);
        loop {
            let due = self.waiting.peek().map(|Reverse((due, ..))| *due);
            let wait = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            // Errors are those of datagrams before, whose receiver has gone.
            tokio::select! {
                received = self.inside.recv_from(&mut of_client) => {
                    let Ok((length, client)) = received else { continue };
                    self.client = Some(client);
                    self.move_if_due().await;
                    self.take(Towards::Gateway, &of_client[..length]);
                }
                received = self.outside.recv(&mut of_gateway) => {
                    let Ok(length) = received else { continue };
                    self.is_established |= of_gateway[0] & 0x80 == 0;
                    self.take(Towards::Client, &of_gateway[..length]);
                }
                () = wait => {}
            }
            self.send_due().await;
        }
    }

    async fn move_if_due(&mut self) {
        self.from_client += u64::from(self.is_established);
        if self.network.moves_after.is_some_and(|most| self.is_established && self.from_client.is_multiple_of(most)) {
            self.outside = socket().await;
            count(&self.counts.moved);
        }
    }

    /// Decides what becomes of a datagram.
    fn take(&mut self, towards: Towards, datagram: &[u8]) {
        let mut happens = |share: u32| share > 0 && self.random.u32(0..1000) < share;
        let (is_lost, is_twice, is_late) =
            (happens(self.network.lost), happens(self.network.duplicated), happens(self.network.late));
        let is_late = is_late || self.network.is_first_late && self.received == 0;
        if is_lost {
            return count(&self.counts.lost);
        }
        let due = Instant::now() + self.network.delay * if is_late { 2 } else { 1 };
        for _ in 0..=u32::from(is_twice) {
            self.received += 1;
            self.waiting.push(Reverse((due, self.received, towards, datagram.to_vec())));
        }
        count(&self.counts.relayed);
        if is_twice {
            count(&self.counts.duplicated);
        }
        if is_late {
            count(&self.counts.late);
        }
    }

    async fn send_due(&mut self) {
        while self.waiting.peek().is_some_and(|Reverse((due, ..))| *due <= Instant::now()) {
            let Some(Reverse((.., towards, datagram))) = self.waiting.pop() else { return };
            let sent = match (towards, self.client) {
                (Towards::Client, Some(client)) => self.inside.send_to(&datagram, client).await,
                _ => self.outside.send_to(&datagram, self.gateway).await,
            };
            // A datagram that cannot be sent is lost, as on any network.
            drop(sent);
        }
    }
}
