//! Accounting of content held in memory: whole messages for plugins, copies for logs and mirrors, pending records. One budget of
//! the node covers all of it, and no client may use more than its share.
//!
//! Content that is streamed from one socket to another is not held and not counted here.

use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use foldhash::quality::RandomState;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use weir_proto::address::client_network;

use crate::stop::Stop;

/// Limits of held content in bytes, of the node and of each client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldLimits {
    pub node: u64,
    pub client: u64,
}

impl Default for HeldLimits {
    fn default() -> HeldLimits {
        HeldLimits { node: 256 << 20, client: 64 << 20 }
    }
}

/// Which limit does not allow to hold more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exhausted {
    /// The node's limit is reached.
    Node,
    /// The client's share is used up.
    Client,
}

impl From<Exhausted> for Stop {
    fn from(exhausted: Exhausted) -> Stop {
        match exhausted {
            Exhausted::Node => Stop::HeldContent,
            Exhausted::Client => Stop::HeldByClient,
        }
    }
}

/// Content held now in bytes, and the number of refusals for each limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldUse {
    pub bytes: u64,
    pub limit: u64,
    pub refused_for_node: u64,
    pub refused_for_client: u64,
    /// Times that content which need not be held was not: see [`Held::set_if_spare`].
    pub not_spare: u64,
}

/// Number of tables for clients, so that workers rarely contend for a lock.
const TABLES: usize = 16;
/// This part of each limit, a quarter, is spare: see [`Held::set_if_spare`].
const SPARE_PART: u64 = 4;
/// Held bytes are counted in multiples of this.
const STEP: u64 = 256;

/// The budget of one node.
pub struct HeldBudget {
    node: AtomicU64,
    client: AtomicU64,
    used: AtomicU64,
    refused_for_node: AtomicU64,
    refused_for_client: AtomicU64,
    not_spare: AtomicU64,
    random: RandomState,
    clients: [Mutex<HashTable<ClientShare>>; TABLES],
}

/// Bytes held for a client.
struct ClientShare {
    client: IpAddr,
    bytes: u64,
}

static BUDGET: LazyLock<HeldBudget> = LazyLock::new(|| HeldBudget::new(HeldLimits::default()));

impl HeldBudget {
    /// The budget of this process.
    pub fn of_process() -> &'static HeldBudget {
        &BUDGET
    }

    fn new(limits: HeldLimits) -> HeldBudget {
        HeldBudget {
            node: AtomicU64::new(limits.node),
            client: AtomicU64::new(limits.client),
            used: AtomicU64::new(0),
            refused_for_node: AtomicU64::new(0),
            refused_for_client: AtomicU64::new(0),
            not_spare: AtomicU64::new(0),
            random: RandomState::default(),
            clients: std::array::from_fn(|_| Mutex::default()),
        }
    }

    /// Changes the limits. Content held already stays, even beyond them.
    pub fn set_limits(&self, limits: HeldLimits) {
        self.node.store(limits.node, Relaxed);
        self.client.store(limits.client, Relaxed);
    }

    pub fn in_use(&self) -> HeldUse {
        HeldUse {
            bytes: self.used.load(Relaxed),
            limit: self.node.load(Relaxed),
            refused_for_node: self.refused_for_node.load(Relaxed),
            refused_for_client: self.refused_for_client.load(Relaxed),
            not_spare: self.not_spare.load(Relaxed),
        }
    }

    /// The hash of a client, and the table in which it is.
    fn table(&self, client: IpAddr) -> (u64, MutexGuard<'_, HashTable<ClientShare>>) {
        let hash = self.random.hash_one(client);
        // A table uses the lowest and the highest bits.
        let number = (hash >> 32) as usize % TABLES;
        (hash, self.clients[number].lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn take(&self, of: Holder, bytes: u64) -> Result<(), Exhausted> {
        if let Some(client) = of.client
            && !self.take_share(client, bytes)
        {
            self.refused_for_client.fetch_add(1, Relaxed);
            return Err(Exhausted::Client);
        }
        if of.shares {
            return Ok(());
        }
        let before = self.used.fetch_add(bytes, Relaxed);
        if before.saturating_add(bytes) > self.node.load(Relaxed) {
            self.refused_for_node.fetch_add(1, Relaxed);
            self.give(of, bytes);
            return Err(Exhausted::Node);
        }
        Ok(())
    }

    /// `false`: the client's limit is reached.
    fn take_share(&self, client: IpAddr, bytes: u64) -> bool {
        let limit = self.client.load(Relaxed);
        let (hash, mut table) = self.table(client);
        let entry = table.entry(hash, |share| share.client == client, |share| self.random.hash_one(share.client));
        match entry {
            Entry::Occupied(mut entry) => {
                let share = entry.get_mut();
                let fits = share.bytes.saturating_add(bytes) <= limit;
                if fits {
                    share.bytes += bytes;
                }
                fits
            }
            Entry::Vacant(entry) if bytes <= limit => {
                entry.insert(ClientShare { client, bytes });
                true
            }
            Entry::Vacant(_) => false,
        }
    }

    /// How many more bytes a client may hold by its own limit.
    fn share_left(&self, client: IpAddr) -> u64 {
        let (hash, table) = self.table(client);
        let used = table.find(hash, |share| share.client == client).map_or(0, |share| share.bytes);
        self.client.load(Relaxed).saturating_sub(used)
    }

    /// How many more bytes may be held now.
    fn room(&self, of: Holder) -> u64 {
        let of_client = of.client.map_or(u64::MAX, |client| self.share_left(client));
        let of_node = self.node.load(Relaxed).saturating_sub(self.used.load(Relaxed));
        if of.shares { of_client } else { of_client.min(of_node) }
    }

    /// Whether the spare part of both limits has room for so many bytes more.
    fn has_spare(&self, of: Holder, more: u64) -> bool {
        let is_spare = |limit: u64, free: u64| free.saturating_sub(more) >= limit - limit / SPARE_PART;
        let (node, client) = (self.node.load(Relaxed), self.client.load(Relaxed));
        is_spare(node, node.saturating_sub(self.used.load(Relaxed)))
            && of.client.is_none_or(|of| is_spare(client, self.share_left(of)))
    }

    fn give(&self, of: Holder, bytes: u64) {
        if !of.shares {
            self.used.fetch_sub(bytes, Relaxed);
        }
        self.give_share(of.client, bytes);
    }

    fn give_share(&self, client: Option<IpAddr>, bytes: u64) {
        let Some(client) = client else { return };
        let (hash, mut table) = self.table(client);
        if let Ok(mut entry) = table.find_entry(hash, |share| share.client == client) {
            let share = entry.get_mut();
            share.bytes = share.bytes.saturating_sub(bytes);
            if share.bytes == 0 {
                entry.remove();
            }
        }
    }
}

/// The content of one holder. Dropping it returns all of it to the budget.
#[derive(Debug, Default)]
pub struct Held {
    of: Holder,
    bytes: u64,
}

/// For whom content is held.
#[derive(Clone, Copy, Debug, Default)]
struct Holder {
    client: Option<IpAddr>,
    /// It counts for the client alone: the node counts it once, for all clients that share it.
    shares: bool,
}

impl Held {
    /// An empty share for this client.
    pub fn of(client: IpAddr) -> Held {
        Held { of: Holder { client: Some(client_network(client)), shares: false }, bytes: 0 }
    }

    /// An empty share for this client, of content that other clients share: one more holder, without a client, counts it for the node.
    pub fn shared_by(client: IpAddr) -> Held {
        Held { of: Holder { client: Some(client_network(client)), shares: true }, bytes: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Sets the number of bytes held, more or less than before.
    ///
    /// # Errors
    /// There is no room for more; the number stays as it was.
    pub fn set(&mut self, bytes: u64) -> Result<(), Exhausted> {
        self.set_in(&BUDGET, bytes)
    }

    /// Like [`Held::set`], for content that need not be held: only while three quarters of both limits stay free, so that it leaves
    /// room for other content. Returns whether it is held; `false` counts for itself and as no refusal, and the number stays as it was.
    pub fn set_if_spare(&mut self, bytes: u64) -> bool {
        self.set_if_spare_in(&BUDGET, bytes)
    }

    fn set_if_spare_in(&mut self, budget: &HeldBudget, bytes: u64) -> bool {
        let more = bytes.div_ceil(STEP).saturating_mul(STEP).saturating_sub(self.bytes);
        let is_held = budget.has_spare(self.of, more) && self.set_in(budget, bytes).is_ok();
        if !is_held {
            budget.not_spare.fetch_add(1, Relaxed);
        }
        is_held
    }

    /// How many more bytes a client may hold by its own limit, whatever the node holds.
    pub fn share_left(client: IpAddr) -> u64 {
        BUDGET.share_left(client_network(client))
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The most bytes that [`Held::set`] would accept now.
    pub fn most(&self) -> u64 {
        self.most_in(&BUDGET)
    }

    fn most_in(&self, budget: &HeldBudget) -> u64 {
        let most = self.bytes.saturating_add(budget.room(self.of));
        // `set` rounds up.
        most - most % STEP
    }

    /// Counts what is held for another client from now on; `false` if it exceeds that client's share. With `None` it counts for the
    /// node alone.
    pub fn pass_to(&mut self, client: Option<IpAddr>) -> bool {
        self.pass_to_in(&BUDGET, client)
    }

    fn pass_to_in(&mut self, budget: &HeldBudget, client: Option<IpAddr>) -> bool {
        let client = client.map(client_network);
        if client == self.of.client {
            return true;
        }
        if client.is_some_and(|client| self.bytes > 0 && !budget.take_share(client, self.bytes)) {
            return false;
        }
        budget.give_share(self.of.client, self.bytes);
        self.of.client = client;
        true
    }

    fn set_in(&mut self, budget: &HeldBudget, bytes: u64) -> Result<(), Exhausted> {
        let bytes = bytes.div_ceil(STEP).saturating_mul(STEP);
        if bytes > self.bytes {
            budget.take(self.of, bytes - self.bytes)?;
        } else if bytes < self.bytes {
            budget.give(self.of, self.bytes - bytes);
        }
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.bytes > 0 {
            BUDGET.give(self.of, self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(last: u8) -> Holder {
        Holder { client: Some(IpAddr::from([10, 0, 0, last])), shares: false }
    }

    #[test]
    fn u01_a_node_and_a_client_hold_no_more_than_they_may() {
        let budget = HeldBudget::new(HeldLimits { node: 100 * STEP, client: 60 * STEP });
        assert_eq!(budget.take(client(1), 60 * STEP), Ok(()));
        assert_eq!(budget.take(client(1), STEP), Err(Exhausted::Client));
        assert_eq!(budget.take(client(2), 41 * STEP), Err(Exhausted::Node), "its share is not used up by it");
        assert_eq!(budget.take(client(2), 40 * STEP), Ok(()));
        assert_eq!(budget.take(Holder::default(), 1), Err(Exhausted::Node));
        budget.give(client(1), 60 * STEP);
        assert_eq!(budget.take(client(2), 20 * STEP), Ok(()));
        let used = budget.in_use();
        assert_eq!((used.bytes, used.refused_for_node, used.refused_for_client), (60 * STEP, 2, 1));
        budget.give(client(2), 60 * STEP);
        assert!(budget.clients.iter().all(|table| table.lock().expect("no test panics with it").is_empty()));
    }

    #[test]
    fn held_bytes_can_be_passed_to_another_client() {
        let budget = HeldBudget::new(HeldLimits { node: 5 * STEP, client: 2 * STEP });
        let mut held = Held { of: client(1), bytes: 0 };
        assert_eq!(held.most_in(&budget), 2 * STEP);
        assert_eq!(held.set_in(&budget, 2 * STEP), Ok(()));
        assert_eq!(budget.take(client(2), STEP), Ok(()));
        assert!(!held.pass_to_in(&budget, client(2).client), "it has room for half of it");
        assert!(held.pass_to_in(&budget, client(3).client));
        assert_eq!((budget.in_use().bytes, budget.room(client(1)), budget.room(client(3))), (3 * STEP, 2 * STEP, 0));
        assert!(held.pass_to_in(&budget, None));
        assert_eq!((held.most_in(&budget), budget.room(client(3))), (4 * STEP, 2 * STEP));
        assert_eq!(held.set_in(&budget, 0), Ok(()));
        assert_eq!(budget.in_use().bytes, STEP);
    }

    #[test]
    fn content_that_need_not_be_held_leaves_three_quarters_to_others() {
        let budget = HeldBudget::new(HeldLimits { node: 16 * STEP, client: 8 * STEP });
        let mut paced = [1, 2, 3, 4, 5, 6].map(|last| Held { of: client(last), bytes: 0 });
        assert!(paced[0].set_if_spare_in(&budget, 2 * STEP));
        assert!(!paced[0].set_if_spare_in(&budget, 2 * STEP + 1), "it is a quarter of the client's share");
        assert_eq!(paced[0].bytes(), 2 * STEP, "what is held stays");
        assert!(budget.take(client(1), 6 * STEP).is_ok(), "the client has the rest of its share");
        budget.give(client(1), 6 * STEP);
        let held = paced.iter_mut().filter_map(|held| held.set_if_spare_in(&budget, 2 * STEP).then_some(held.bytes()));
        assert_eq!(held.sum::<u64>(), 4 * STEP, "a quarter of the node's");
        let used = budget.in_use();
        assert_eq!((used.refused_for_node, used.refused_for_client), (0, 0), "nothing of others was refused");
        assert_eq!(used.not_spare, 5, "once for the first one, and for four of six");
        paced.iter_mut().for_each(|held| held.set_in(&budget, 0).expect("it becomes less"));
    }

    #[test]
    fn shared_content_counts_for_each_client_and_once_for_the_node() {
        let budget = HeldBudget::new(HeldLimits { node: 4 * STEP, client: 2 * STEP });
        let sharer = |last| Held { of: Holder { shares: true, ..client(last) }, bytes: 0 };
        let (mut node, mut clients) = (Held::default(), [1, 2, 3].map(sharer));
        assert_eq!(node.set_in(&budget, 2 * STEP), Ok(()));
        assert!(clients.iter_mut().all(|held| held.set_in(&budget, 2 * STEP).is_ok()));
        assert_eq!(budget.in_use().bytes, 2 * STEP);
        assert_eq!(sharer(1).set_in(&budget, 1), Err(Exhausted::Client));
        clients.iter_mut().chain([&mut node]).for_each(|held| held.set_in(&budget, 0).expect("it becomes less"));
        assert_eq!(budget.in_use().bytes, 0);
        assert!(budget.clients.iter().all(|table| table.lock().expect("no test panics with it").is_empty()));
    }

    #[test]
    fn u01_a_holder_counts_in_steps_and_gives_everything_back() {
        let budget = HeldBudget::new(HeldLimits { node: 4 * STEP, client: 2 * STEP });
        let mut held = Held { of: client(1), bytes: 0 };
        assert_eq!(held.set_in(&budget, 1), Ok(()));
        assert_eq!(held.set_in(&budget, STEP), Ok(()));
        assert_eq!(budget.in_use().bytes, STEP);
        assert_eq!(held.set_in(&budget, 2 * STEP + 1), Err(Exhausted::Client));
        assert_eq!(budget.in_use().bytes, STEP, "what was held stays");
        assert_eq!(held.set_in(&budget, 0), Ok(()));
        assert_eq!(budget.in_use().bytes, 0);
    }
}
