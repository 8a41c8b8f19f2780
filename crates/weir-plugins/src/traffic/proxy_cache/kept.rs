//! Fetches that go on although no client reads them any more: the next one that asks for the resource finds it stored. Each occupies
//! a connection to the upstream and a part of the zone, so there are few of them, and fewer for one client.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use weir_plugin::proto::address::client_network;

/// The most at a time, for all clients of a zone.
const MOST_KEPT: usize = 64;
/// The most of them that were begun for one client address (IPv6: /64).
const MOST_OF_CLIENT: usize = 4;
/// How long one goes on without a reader.
const KEPT_FOR: Duration = Duration::from_secs(120);
/// The most content of a response of unknown length that is received without a reader: it may never end.
pub(super) const MOST_UNREAD_BYTES: u64 = 4 << 20;

/// The fetches without a reader, by the client that they were begun for.
#[derive(Default)]
pub(super) struct KeptFetches(Mutex<HashMap<IpAddr, usize>>);

impl KeptFetches {
    fn all(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Permits a fetch to go on; `None` if as many do as may.
    pub(super) fn keep(self: &Arc<Self>, client: IpAddr) -> Option<KeptFetch> {
        let client = client_network(client);
        let mut all = self.all();
        let count = all.values().sum::<usize>();
        let of_client = all.get(&client).copied().unwrap_or_default();
        if count >= MOST_KEPT || of_client >= MOST_OF_CLIENT {
            return None;
        }
        all.insert(client, of_client + 1);
        Some(KeptFetch { fetches: Arc::clone(self), client, until: Instant::now() + KEPT_FOR })
    }
}

/// The right to go on without a reader.
pub(super) struct KeptFetch {
    fetches: Arc<KeptFetches>,
    client: IpAddr,
    pub until: Instant,
}

impl Drop for KeptFetch {
    fn drop(&mut self) {
        let mut all = self.fetches.all();
        if let Some(count) = all.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_go_on_and_fewer_for_one_client() {
        let fetches = Arc::<KeptFetches>::default();
        let of = |number: u16| IpAddr::from([0x2001, 0xdb8, 0, number, 0, 0, 0, 1]);
        let mut kept: Vec<KeptFetch> = (0..MOST_OF_CLIENT).map(|_| fetches.keep(of(0)).expect("a place")).collect();
        assert!(fetches.keep(of(0)).is_none());
        kept.pop();
        kept.push(fetches.keep(of(0)).expect("the place of the last one"));
        for number in 1..=(MOST_KEPT - MOST_OF_CLIENT) as u16 {
            kept.push(fetches.keep(of(number)).expect("a place"));
        }
        assert!(fetches.keep(of(1000)).is_none());
        drop(kept);
        assert!(fetches.all().is_empty());
    }
}
