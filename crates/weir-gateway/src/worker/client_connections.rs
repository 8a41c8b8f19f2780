//! The number of connections of each client, over all workers. A client is an IPv4 address or an IPv6 network.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_proto::address::client_network;

/// The number of tables that clients are spread over, each with its own lock, so that workers seldom contend.
const TABLES: usize = 16;
/// The least time between two log messages about clients with too many connections.
const TELL_NS: u64 = 60_000_000_000;

pub(crate) struct ClientConnections {
    room: usize,
    random: RandomState,
    tables: [Mutex<HashMap<IpAddr, usize>>; TABLES],
    /// When this was last logged; 0 if never.
    told_ns: AtomicU64,
}

impl ClientConnections {
    /// `room`: the most connections that all workers can have together.
    pub(crate) fn new(room: usize) -> ClientConnections {
        let tables = std::array::from_fn(|_| Mutex::default());
        ClientConnections { room, random: RandomState::new(), tables, told_ns: AtomicU64::new(0) }
    }

    pub(crate) fn room(&self) -> usize {
        self.room
    }

    /// Counts one more connection of a client, unless it has `most` already.
    pub(crate) fn claim(self: &Arc<Self>, client: IpAddr, most: usize) -> Option<ClientConnectionPermit> {
        let client = client_network(client);
        let mut table = self.table(client);
        let count = table.entry(client).or_default();
        if *count >= most {
            return None; // a new entry cannot be left behind, as `most` is not 0
        }
        *count += 1;
        Some(ClientConnectionPermit { client, among: Arc::clone(self) })
    }

    /// Whether it should be logged now that a client has too many connections.
    pub(crate) fn should_log(&self, now_ns: u64) -> bool {
        let told_ns = self.told_ns.load(Relaxed);
        let is_due = told_ns == 0 || now_ns >= told_ns.saturating_add(TELL_NS);
        is_due && self.told_ns.compare_exchange(told_ns, now_ns.max(1), Relaxed, Relaxed).is_ok()
    }

    fn table(&self, client: IpAddr) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        let number = self.random.hash_one(client) as usize % TABLES;
        self.tables[number].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One counted connection of a client, until it is dropped.
pub(crate) struct ClientConnectionPermit {
    client: IpAddr,
    among: Arc<ClientConnections>,
}

impl Drop for ClientConnectionPermit {
    fn drop(&mut self) {
        let mut table = self.among.table(self.client);
        let count = table.get_mut(&self.client).expect("it was counted when it was made");
        *count -= 1;
        if *count == 0 {
            table.remove(&self.client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u02_a_client_has_no_more_connections_than_its_share() {
        let clients = Arc::new(ClientConnections::new(100));
        let address = |text: &str| text.parse::<IpAddr>().expect("an address");
        let first = clients.claim(address("192.0.2.1"), 2);
        let _second = clients.claim(address("::ffff:192.0.2.1"), 2).expect("the same client");
        assert!(clients.claim(address("192.0.2.1"), 2).is_none());
        assert!(clients.claim(address("192.0.2.2"), 2).is_some(), "another one");
        drop(first);
        assert!(clients.claim(address("192.0.2.1"), 2).is_some());
        let _whole = clients.claim(address("2001:db8::1"), 1).expect("nobody has one");
        assert!(clients.claim(address("2001:db8::ffff:1"), 1).is_none(), "a customer has the whole network");
        assert!(clients.claim(address("2001:db8:0:1::1"), 1).is_some());
        let counted: usize =
            clients.tables.iter().map(|table| table.lock().expect("no test panics with it").len()).sum();
        assert_eq!(counted, 2, "nothing is kept of clients that have gone");
    }

    #[test]
    fn the_log_is_told_once_in_a_while() {
        let clients = ClientConnections::new(1);
        assert!(clients.should_log(5) && !clients.should_log(5 + TELL_NS - 1));
        assert!(clients.should_log(5 + TELL_NS));
    }
}
