//! Session persistence: clients stay with their endpoint, by a cookie of the gateway or one that the application sets.
//!
//! The clients of an endpoint that is out of rotation go to the others, unless they are to be refused. An endpoint that is
//! drained (weight 0) keeps its clients and gets no new ones.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weir_plugin::{Exchange, Variables};

use crate::snapshot::Endpoint;
use crate::snapshot::persistence::{Persistence, PersistenceKind};

impl Persistence {
    /// The endpoint that the client's cookie stands for, if it is known.
    pub fn persistent_endpoint(
        &self,
        exchange: &Exchange,
        sessions: &StickySessions,
        endpoints: &[Endpoint],
        now_ns: u64,
    ) -> Option<usize> {
        let value = exchange.variable(&self.cookie)?;
        match &self.kind {
            PersistenceKind::Own { endpoints, .. } => endpoints.get(&*value).copied(),
            PersistenceKind::Learnt { idle } => sessions.find((&self.name, &value), endpoints, *idle, now_ns),
        }
    }

    /// Called when an endpoint has answered, before the response is sent: sets the cookie, or remembers the application's.
    pub fn answered(
        &self,
        exchange: &mut Exchange,
        sessions: &StickySessions,
        (endpoints, endpoint): (&[Endpoint], usize),
        now_ns: u64,
    ) {
        match &self.kind {
            PersistenceKind::Own { codes, attributes, .. } => {
                let code = &codes[endpoint];
                if exchange.variable(&self.cookie).is_none_or(|value| *value != *code.as_bytes()) {
                    let field = format!("{}={code}{attributes}", self.name);
                    // If the head has no room for the field, the response goes without it, and the next request may go to
                    // any endpoint.
                    let _ = exchange.response.head.add(b"Set-Cookie", field.as_bytes());
                }
            }
            PersistenceKind::Learnt { idle } => {
                let set =
                    exchange.response.head.values(b"set-cookie").find_map(|field| cookie_value(field, &self.name));
                match set {
                    Some(value) => sessions.learn((&self.name, value), (endpoints, endpoint), *idle, now_ns),
                    // The cookie is unknown after a restart, or its endpoint is gone: it now belongs to this endpoint.
                    None => {
                        if let Some(value) = exchange.variable(&self.cookie) {
                            sessions.learn((&self.name, &value), (endpoints, endpoint), *idle, now_ns);
                        }
                    }
                }
            }
        }
    }
}

/// The value that a `Set-Cookie` field gives to a cookie of this name (RFC 6265 §4.1.1).
fn cookie_value<'a>(field: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let pair = field.split(|&byte| byte == b';').next()?.trim_ascii();
    let value = pair.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
    (!value.is_empty()).then_some(value)
}

/// The number of parts of the table, each with a lock of its own, so that workers seldom contend.
const SHARDS: usize = 64;
/// The most sessions of one shard. When it is full, the eighth that was used least recently is dropped.
const MAX_SESSIONS: usize = 8_192;

/// Which endpoint has set which cookie: shared by all workers, and kept across snapshots. Used only for upstreams with a
/// cookie of the application.
#[derive(Debug)]
pub struct StickySessions {
    shards: [Mutex<HashMap<u64, StickySession>>; SHARDS],
    hasher: foldhash::quality::RandomState,
}

/// How many upstreams may know the same cookie with the same value: services behind one host name see each other's cookies.
const SERVICES: usize = 3;

/// The endpoint of each upstream, the latest first. Upstreams with endpoints in common share one, unless they forget it after
/// different times.
#[derive(Clone, Copy, Debug, Default)]
struct StickySession([Option<StickyEndpoint>; SERVICES]);

#[derive(Clone, Copy, Debug)]
struct StickyEndpoint {
    addr: SocketAddr,
    /// The `idle` of the upstreams that know it.
    idle: Duration,
    seen_ns: u64,
}

impl StickySession {
    /// The number of the endpoint among these. It is forgotten if it has not been seen for `idle`. If only upstreams with another
    /// `idle` know it, as after an edit, it counts as well, but is not forgotten by them.
    fn endpoint(&mut self, endpoints: &[Endpoint], idle: Duration, now_ns: u64) -> Option<usize> {
        let number_of = |known: &StickyEndpoint| endpoints.iter().position(|endpoint| endpoint.addr == known.addr);
        let is_over = |known: &StickyEndpoint| u128::from(now_ns.saturating_sub(known.seen_ns)) > idle.as_nanos();
        let is_own = |slot: &&mut Option<StickyEndpoint>| slot.is_some_and(|known| known.idle == idle);
        let own = self.0.iter_mut().filter(is_own).find_map(|slot| {
            let number = slot.as_ref().and_then(number_of)?;
            Some((slot, number))
        });
        let Some((slot, number)) = own else {
            return self.0.iter().flatten().filter(|known| !is_over(known)).find_map(number_of);
        };
        let known = slot.as_mut()?;
        if is_over(known) {
            *slot = None;
            return None;
        }
        known.seen_ns = now_ns;
        Some(number)
    }

    /// Replaces what upstreams of these endpoints with the same `idle` knew.
    fn set(&mut self, endpoints: &[Endpoint], endpoint: usize, idle: Duration, now_ns: u64) {
        let is_other =
            |known: &StickyEndpoint| known.idle != idle || endpoints.iter().all(|endpoint| endpoint.addr != known.addr);
        let others = self.0.into_iter().flatten().filter(is_other);
        let own = StickyEndpoint { addr: endpoints[endpoint].addr, idle, seen_ns: now_ns };
        let mut all = [own].into_iter().chain(others);
        self.0 = std::array::from_fn(|_| all.next());
    }

    fn seen_ns(&self) -> u64 {
        self.0.iter().flatten().map(|known| known.seen_ns).max().unwrap_or(0)
    }
}

impl Default for StickySessions {
    fn default() -> StickySessions {
        StickySessions { shards: std::array::from_fn(|_| Mutex::default()), hasher: Default::default() }
    }
}

impl StickySessions {
    fn shard(&self, cookie: (&str, &[u8])) -> (u64, MutexGuard<'_, HashMap<u64, StickySession>>) {
        let hash = self.hasher.hash_one(cookie);
        (hash, self.shards[hash as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The endpoint among these that has set a cookie, by name and value.
    fn find(&self, cookie: (&str, &[u8]), endpoints: &[Endpoint], idle: Duration, now_ns: u64) -> Option<usize> {
        let (hash, mut sessions) = self.shard(cookie);
        sessions.get_mut(&hash)?.endpoint(endpoints, idle, now_ns)
    }

    /// Notes which of the endpoints has set a cookie; it is forgotten after `idle`.
    fn learn(&self, cookie: (&str, &[u8]), (endpoints, endpoint): (&[Endpoint], usize), idle: Duration, now_ns: u64) {
        let (hash, mut sessions) = self.shard(cookie);
        if sessions.len() >= MAX_SESSIONS && !sessions.contains_key(&hash) {
            let mut seen: Vec<u64> = sessions.values().map(StickySession::seen_ns).collect();
            let (_, oldest_kept, _) = seen.select_nth_unstable(MAX_SESSIONS / 8);
            let oldest_kept = *oldest_kept;
            sessions.retain(|_, session| session.seen_ns() >= oldest_kept);
            if sessions.len() >= MAX_SESSIONS {
                sessions.clear(); // all were used at the same time
            }
        }
        sessions.entry(hash).or_default().set(endpoints, endpoint, idle, now_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::persistence::tests::endpoint;

    #[test]
    fn a_set_cookie_field_gives_one_value() {
        assert_eq!(cookie_value(b"SID=abc; Path=/", "SID"), Some(&b"abc"[..]));
        assert_eq!(cookie_value(b" SID=a=b", "SID"), Some(&b"a=b"[..]));
        assert_eq!(cookie_value(b"SIDE=abc", "SID"), None);
        assert_eq!(cookie_value(b"x=1; SID=abc", "SID"), None);
        assert_eq!(cookie_value(b"SID=; Max-Age=0", "SID"), None);
    }

    #[test]
    fn sessions_are_forgotten_when_idle_and_never_too_many() {
        let sessions = StickySessions::default();
        let (idle, nodes) = (Duration::from_nanos(100), [endpoint(1), endpoint(2)]);
        sessions.learn(("SID", b"a"), (&nodes, 1), idle, 10);
        assert_eq!(sessions.find(("SID", b"a"), &nodes, idle, 100), Some(1));
        assert_eq!(sessions.find(("SID", b"a"), &nodes, idle, 200), Some(1), "seen meanwhile");
        assert_eq!(sessions.find(("SID", b"a"), &nodes, idle, 301), None);
        assert_eq!(sessions.find(("OTHER", b"a"), &nodes, idle, 200), None);
        let many = SHARDS * MAX_SESSIONS * 5 / 4;
        for number in 0..many {
            sessions.learn(("SID", &number.to_le_bytes()), (&nodes, 0), Duration::MAX, 1_000 + number as u64);
        }
        let kept: usize = sessions.shards.iter().map(|shard| shard.lock().expect("no panic").len()).sum();
        assert!(kept <= SHARDS * MAX_SESSIONS && kept > SHARDS * MAX_SESSIONS / 2, "{kept}");
        let last = (many - 1).to_le_bytes();
        assert_eq!(sessions.find(("SID", &last), &nodes, Duration::MAX, u64::MAX), Some(0), "the newest is there");
    }

    #[test]
    fn services_that_see_the_same_cookie_keep_an_endpoint_each() {
        let (sessions, cookie) = (StickySessions::default(), ("SID", &b"a"[..]));
        let services: Vec<[Endpoint; 2]> =
            (0..4).map(|number| [10, 11].map(|port| endpoint(port + 10 * number))).collect();
        let idle = Duration::from_nanos(5);
        let found = |of: usize| sessions.find(cookie, &services[of], idle, 0);
        for (service, nodes) in services[..3].iter().enumerate() {
            sessions.learn(cookie, (nodes, service % 2), idle, 0);
        }
        assert_eq!([found(0), found(1), found(2), found(3)], [Some(0), Some(1), Some(0), None]);
        sessions.learn(cookie, (&services[1], 0), idle, 0);
        assert_eq!([found(0), found(1), found(2)], [Some(0), Some(0), Some(0)], "it has moved");
        let same = [endpoint(11), endpoint(10), endpoint(99)];
        assert_eq!(sessions.find(cookie, &same, idle, 0), Some(1), "another upstream of the same servers");
        assert_eq!(sessions.find(cookie, &services[2], idle, 6), None, "it was not seen for so long");
        assert_eq!([found(0), found(1), found(2)], [Some(0), Some(0), None], "the others have their own times");
        sessions.learn(cookie, (&services[2], 0), idle, 0);
        (0..2).for_each(|service| sessions.learn(cookie, (&services[1 - service], 0), idle, 0));
        sessions.learn(cookie, (&services[3], 1), idle, 0);
        assert_eq!((found(3), found(2)), (Some(1), None), "the one that was learnt first has made room");
    }

    #[test]
    fn a_cookie_that_one_upstream_forgets_early_is_kept_for_another_of_the_same_endpoints() {
        let (sessions, cookie, nodes) = (StickySessions::default(), ("SID", &b"a"[..]), [endpoint(1), endpoint(2)]);
        let (short, long) = (Duration::from_nanos(10), Duration::from_nanos(1_000));
        sessions.learn(cookie, (&nodes, 1), long, 0);
        assert_eq!(sessions.find(cookie, &nodes, short, 5), Some(1), "it counts for the other one, too");
        assert_eq!(sessions.find(cookie, &nodes, short, 50), None, "for a shorter time");
        sessions.learn(cookie, (&nodes, 0), short, 50);
        assert_eq!(sessions.find(cookie, &nodes, short, 55), Some(0));
        assert_eq!(sessions.find(cookie, &nodes, long, 55), Some(1), "the first one has not forgotten it");
        assert_eq!(sessions.find(cookie, &nodes, short, 99), None);
        assert_eq!(sessions.find(cookie, &nodes, long, 99), Some(1));
    }
}
