//! How often certificates may be asked for: who asks has no certificate yet, and each request can be one to the API server.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// So many requests of one address may come at once, and one more after each pause.
const OF_CLIENT: Allowance = Allowance { most: 16, pause: Duration::from_millis(500) };
/// The same of all addresses.
const OF_ALL: Allowance = Allowance { most: 128, pause: Duration::from_millis(50) };
/// The most addresses that are known at a time.
const MOST_CLIENTS: usize = 1_024;

/// The part of an address of IPv6 that the owner of a network cannot choose.
const NETWORK_OF_IPV6: u128 = u128::MAX << 64;

/// How many requests there may be.
struct Allowance {
    most: u32,
    pause: Duration,
}

/// Counts requests by addresses.
#[derive(Default)]
pub(super) struct RequestGate(Mutex<SeenRequests>);

#[derive(Default)]
struct SeenRequests {
    all: Option<Instant>,
    /// When each address will have its whole allowance again.
    clients: BTreeMap<IpAddr, Instant>,
}

impl Allowance {
    /// When the whole allowance is there again, if a request is made `now`; `None` if it may not be made.
    fn take(&self, whole: Option<Instant>, now: Instant) -> Option<Instant> {
        let next = whole.filter(|at| *at > now).unwrap_or(now) + self.pause;
        (next <= now + self.pause * self.most).then_some(next)
    }
}

impl RequestGate {
    /// Whether an address may make a request now.
    pub(super) fn admits(&self, client: IpAddr, now: Instant) -> bool {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // An address of IPv6 has as many others as it likes.
        let client = match client {
            IpAddr::V6(address) if address.to_ipv4_mapped().is_none() => {
                IpAddr::V6((address.to_bits() & NETWORK_OF_IPV6).into())
            }
            other => other,
        };
        if !seen.clients.contains_key(&client) && seen.clients.len() >= MOST_CLIENTS {
            seen.clients.retain(|_, whole| *whole > now);
            if seen.clients.len() >= MOST_CLIENTS {
                return false;
            }
        }
        let of_client = OF_CLIENT.take(seen.clients.get(&client).copied(), now);
        let (Some(of_client), Some(all)) = (of_client, OF_ALL.take(seen.all, now)) else { return false };
        seen.clients.insert(client, of_client);
        seen.all = Some(all);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(number: u32) -> IpAddr {
        IpAddr::from(number.to_be_bytes())
    }

    #[test]
    fn a_client_has_a_share_that_comes_back() {
        let (gate, now) = (RequestGate::default(), Instant::now());
        let admitted = |client, at| (0..100).filter(|_| gate.admits(client, at)).count();
        assert_eq!(admitted(client(1), now), 16);
        assert_eq!(admitted(client(2), now), 16, "one takes nothing from another");
        assert_eq!(admitted(client(1), now + Duration::from_secs(1)), 2);
        assert_eq!(admitted(client(1), now + Duration::from_secs(60)), 16);
    }

    #[test]
    fn all_clients_together_have_a_bound_and_so_has_the_table() {
        let (gate, now) = (RequestGate::default(), Instant::now());
        assert_eq!((0..1_000).filter(|number| gate.admits(client(*number), now)).count(), 128);
        // New addresses again and again, as many as may come: those that have their whole share again are forgotten.
        for second in 1..100 {
            let at = now + Duration::from_secs(10 + second);
            let admitted = (0..20).filter(|number| gate.admits(client(1_000 * second as u32 + number), at)).count();
            assert_eq!(admitted, 20, "in second {second}");
        }
        assert!(gate.0.lock().expect("no panic").clients.len() <= MOST_CLIENTS);
    }

    #[test]
    fn addresses_of_one_network_of_ipv6_are_one_client() {
        let (gate, now) = (RequestGate::default(), Instant::now());
        let of = |last: u128| IpAddr::from(((0x2001_0db8_u128 << 96) | last).to_be_bytes());
        assert_eq!((0..100).filter(|last| gate.admits(of(*last), now)).count(), 16);
    }
}
