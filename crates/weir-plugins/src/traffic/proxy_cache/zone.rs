//! Where responses are kept: in memory, within a limit.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::time::Duration;

use foldhash::fast::RandomState;
use weir_plugin::ReplyHead;
use weir_plugin::proto::{RequestHead, Trailers};

use super::CacheTotals;
use super::freshness::{Lifetime, StoredAge};
use super::kept::KeptFetches;

/// What a stored response costs besides its bytes: entries of maps, counters, and its parts' own lengths.
const OVERHEAD: u64 = 512;
/// The same for each piece of its content.
pub(super) const PIECE_OVERHEAD: u64 = 48;
/// The most stored responses that are looked at to make room once.
const MOST_LOOKED_AT: usize = 256;
/// The most responses for one resource and scope that differ in the fields that `Vary` names.
const MOST_VARIANTS: usize = 32;
/// For how long requests for a response that could not be stored do not wait for each other.
const PASS_FOR: Duration = Duration::from_secs(10);
/// The most resources of which this is remembered.
const MOST_PASSES: usize = 10_000;
/// The counters of removals. Resources whose hashes are equal modulo this number share one.
const PURGE_COUNTERS: usize = 1024;

/// The head of a stored response, and what it says about its use.
pub(super) struct StoredHead {
    /// With names in lower case, without fields for one connection, and without `Age` and `Content-Length`.
    pub head: Arc<ReplyHead>,
    pub age: StoredAge,
    pub lifetime: Lifetime,
    pub vary: VaryFields,
}

/// The content of a stored response.
pub(super) struct StoredContent {
    pub pieces: Box<[Arc<[u8]>]>,
    /// In bytes.
    pub length: u64,
    /// The fields after the content (RFC 9111 §3).
    pub trailers: Trailers,
    /// Its part of the zone's memory, until its last reader is done.
    _memory: Reservation,
}

impl StoredContent {
    pub(super) fn new(pieces: Vec<Arc<[u8]>>, trailers: Trailers, memory: Reservation) -> StoredContent {
        let length = pieces.iter().map(|piece| piece.len() as u64).sum();
        StoredContent { pieces: pieces.into(), length, trailers, _memory: memory }
    }
}

/// One stored response.
pub(super) struct StoredResponse {
    pub head: Arc<StoredHead>,
    pub content: Arc<StoredContent>,
    /// It was used since it was last looked at to make room.
    is_used: AtomicBool,
}

impl StoredResponse {
    pub(super) fn new(head: Arc<StoredHead>, content: Arc<StoredContent>) -> StoredResponse {
        StoredResponse { head, content, is_used: AtomicBool::new(false) }
    }
}

/// The fields that a response's `Vary` names, with the values that its request had (RFC 9111 §4.1). A field without a value is
/// not the same as none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct VaryFields(Box<[VaryField]>);

/// The name of a field, and its value in a request.
type VaryField = (Box<[u8]>, Option<Box<[u8]>>);

impl VaryFields {
    pub(super) fn of(response: &ReplyHead, request: &RequestHead) -> VaryFields {
        let names = response.values(b"vary").flat_map(|value| value.split(|byte| *byte == b','));
        let names = names.map(|name| name.trim_ascii().to_ascii_lowercase()).filter(|name| !name.is_empty());
        VaryFields(names.map(|name| (name.clone().into(), combined(request, &name))).collect())
    }

    /// The bytes of the names and values.
    pub(super) fn bytes(&self) -> u64 {
        self.0.iter().map(|(name, value)| (name.len() + value.as_ref().map_or(0, |value| value.len())) as u64).sum()
    }

    /// Adds what a request has in these fields to a name: requests for the same response get the same name.
    pub(super) fn name_variant(&self, request: &RequestHead, name: &mut ScopeParts) {
        for (field, _) in &self.0 {
            let value = combined(request, field);
            name.add(field);
            // A field that is missing differs from one without a value.
            name.add(if value.is_some() { b"1" } else { b"0" });
            name.add(value.as_deref().unwrap_or_default());
        }
    }

    /// Whether the response would also be sent to this request.
    pub(super) fn matches(&self, request: &RequestHead) -> bool {
        self.0.iter().all(|(name, value)| combined(request, name) == *value)
    }
}

/// The values of a field as one list, without the white space that has no meaning. `None` if there is no such field.
fn combined(request: &RequestHead, name: &[u8]) -> Option<Box<[u8]>> {
    request.head.value(name)?;
    let members = request.head.values(name).flat_map(|value| value.split(|byte| *byte == b','));
    Some(members.map(<[u8]>::trim_ascii).filter(|member| !member.is_empty()).collect::<Vec<_>>().join(&b',').into())
}

/// The memory of a zone, or of all zones.
pub(super) struct ZoneMemory {
    limit: AtomicU64,
    used: AtomicU64,
}

impl Default for ZoneMemory {
    /// Without a limit.
    fn default() -> ZoneMemory {
        ZoneMemory { limit: AtomicU64::new(u64::MAX), used: AtomicU64::new(0) }
    }
}

impl ZoneMemory {
    pub(super) fn limit_to(&self, bytes: u64) {
        self.limit.store(bytes, Relaxed);
    }

    /// Takes a part; `false` if so much is not left.
    fn take(&self, bytes: u64) -> bool {
        let limit = self.limit.load(Relaxed);
        let add = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= limit);
        self.used.fetch_update(Relaxed, Relaxed, add).is_ok()
    }

    fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Relaxed);
    }
}

/// A part of a zone's memory, and of that of all zones.
pub(super) struct Reservation {
    zone: Arc<ZoneMemory>,
    totals: Arc<CacheTotals>,
    bytes: u64,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.zone.give_back(self.bytes);
        self.totals.memory.give_back(self.bytes);
    }
}

/// A key, or the name of a stored response within its resource: what requests must have in common besides their key.
pub(super) type ResourceScope = Box<[u8]>;

/// Builds a key or a scope: texts of different parts are never equal.
pub(super) struct ScopeParts(Vec<u8>);

/// The bytes that most keys and scopes have room in.
const USUAL_SCOPE: usize = 256;

impl Default for ScopeParts {
    fn default() -> ScopeParts {
        ScopeParts(Vec::with_capacity(USUAL_SCOPE))
    }
}

impl ScopeParts {
    pub(super) fn add(&mut self, part: &[u8]) {
        self.0.extend_from_slice(&(part.len() as u64).to_le_bytes());
        self.0.extend_from_slice(part);
    }

    /// Adds the values of a field, however many there are.
    pub(super) fn add_values(&mut self, request: &RequestHead, name: &[u8]) {
        self.0.extend_from_slice(&(request.head.values(name).count() as u64).to_le_bytes());
        request.head.values(name).for_each(|value| self.add(value));
    }

    pub(super) fn finished(self) -> ResourceScope {
        self.0.into()
    }
}

type Resource = HashMap<ResourceScope, Vec<Arc<StoredResponse>>>;

#[derive(Default)]
struct Contents {
    resources: HashMap<Arc<[u8]>, Resource>,
    /// The stored responses in the order in which they are looked at to make room, with their place. Those that were removed
    /// meanwhile are skipped.
    queue: VecDeque<(Weak<StoredResponse>, Arc<[u8]>, ResourceScope)>,
    /// The number of stored responses.
    count: usize,
}

impl Contents {
    fn add(&mut self, key: &[u8], scope: &[u8], stored: &Arc<StoredResponse>) {
        let key: Arc<[u8]> = match self.resources.get_key_value(key) {
            Some((key, _)) => Arc::clone(key),
            None => key.into(),
        };
        let variants = self.resources.entry(Arc::clone(&key)).or_default().entry(scope.into()).or_default();
        let before = variants.len();
        variants.retain(|variant| variant.head.vary != stored.head.vary);
        if variants.len() == MOST_VARIANTS {
            variants.remove(0);
        }
        variants.push(Arc::clone(stored));
        self.count = self.count + variants.len() - before;
        self.queue.push_back((Arc::downgrade(stored), key, scope.into()));
        if self.queue.len() > 2 * self.count + MOST_LOOKED_AT {
            self.queue.retain(|(stored, ..)| stored.strong_count() > 0);
        }
    }

    fn remove(&mut self, stored: &Arc<StoredResponse>, key: &[u8], scope: &[u8]) {
        let Some(resource) = self.resources.get_mut(key) else { return };
        let Some(variants) = resource.get_mut(scope) else { return };
        let before = variants.len();
        variants.retain(|variant| !Arc::ptr_eq(variant, stored));
        self.count -= before - variants.len();
        if variants.is_empty() {
            resource.remove(scope);
        }
        if resource.is_empty() {
            self.resources.remove(key);
        }
    }

    fn purge(&mut self, key: &[u8]) -> bool {
        let Some(resource) = self.resources.remove(key) else { return false };
        self.count -= resource.values().map(Vec::len).sum::<usize>();
        true
    }
}

/// A place for stored responses, with its own limit. All workers share it.
pub(super) struct CacheZone {
    memory: Arc<ZoneMemory>,
    contents: RwLock<Contents>,
    /// Resources whose responses could not be stored, by the hash of their key, until when this counts.
    passes: Mutex<HashMap<u64, Duration>>,
    /// Changed when a resource is removed, with `contents` locked: what was requested before is not stored.
    purges: Box<[AtomicU64]>,
    hasher: RandomState,
    totals: Arc<CacheTotals>,
    /// The fetches that no client reads.
    pub kept: Arc<KeptFetches>,
}

impl CacheZone {
    pub(super) fn new(limit: u64, totals: Arc<CacheTotals>) -> CacheZone {
        CacheZone {
            memory: Arc::new(ZoneMemory { limit: AtomicU64::new(limit), used: AtomicU64::new(0) }),
            contents: RwLock::default(),
            passes: Mutex::default(),
            purges: (0..PURGE_COUNTERS).map(|_| AtomicU64::new(0)).collect(),
            hasher: RandomState::default(),
            totals,
            kept: Arc::default(),
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Contents> {
        self.contents.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Contents> {
        self.contents.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn passes(&self) -> MutexGuard<'_, HashMap<u64, Duration>> {
        self.passes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The stored response for a request.
    pub(super) fn find(&self, key: &[u8], scope: &[u8], request: &RequestHead) -> Option<Arc<StoredResponse>> {
        let contents = self.read();
        let variants = contents.resources.get(key)?.get(scope)?;
        let stored = variants.iter().rev().find(|variant| variant.head.vary.matches(request))?;
        // Written once only, since workers that read the same value do not wait for each other.
        if !stored.is_used.load(Relaxed) {
            stored.is_used.store(true, Relaxed);
        }
        Some(Arc::clone(stored))
    }

    /// The fields by which the responses for a resource differ, as the last one that was stored says; `None` if there is none.
    pub(super) fn vary(&self, key: &[u8], scope: &[u8]) -> Option<VaryFields> {
        let contents = self.read();
        Some(contents.resources.get(key)?.get(scope)?.last()?.head.vary.clone())
    }

    fn purge_counter(&self, key: &[u8]) -> &AtomicU64 {
        &self.purges[self.hasher.hash_one(key) as usize % PURGE_COUNTERS]
    }

    /// How often a resource was removed, to be read before its response is requested.
    pub(super) fn purges(&self, key: &[u8]) -> u64 {
        self.purge_counter(key).load(Relaxed)
    }

    /// Stores a response; it replaces the one for the same request. It is not stored if the resource was removed since `purges`
    /// was read, as it may be the response from before.
    pub(super) fn store(&self, (key, purges): (&[u8], u64), scope: &[u8], stored: &Arc<StoredResponse>) {
        let mut contents = self.write();
        if self.purges(key) == purges {
            contents.add(key, scope, stored);
        }
    }

    /// Removes all responses for a resource; `false` if there were none.
    pub(super) fn purge(&self, key: &[u8]) -> bool {
        self.passes().remove(&self.hasher.hash_one(key));
        let mut contents = self.write();
        self.purge_counter(key).fetch_add(1, Relaxed);
        contents.purge(key)
    }

    /// Removes one response.
    pub(super) fn remove(&self, key: &[u8], scope: &[u8], stored: &Arc<StoredResponse>) {
        self.write().remove(stored, key, scope);
    }

    /// Reserves memory for a response with so many bytes; others that are used less are removed for it. `None` if there is no
    /// room.
    pub(super) fn reserve(&self, bytes: u64) -> Option<Reservation> {
        let (zone, totals) = (Arc::clone(&self.memory), Arc::clone(&self.totals));
        let mut reservation = Reservation { zone, totals, bytes: 0 };
        self.extend(&mut reservation, bytes.saturating_add(OVERHEAD)).then_some(reservation)
    }

    /// Makes a reservation larger; `false` if there is no room.
    pub(super) fn extend(&self, reservation: &mut Reservation, bytes: u64) -> bool {
        if !take(&self.memory, bytes, || self.evict()) {
            return false;
        }
        if !take(&self.totals.memory, bytes, || self.totals.evict()) {
            self.memory.give_back(bytes);
            return false;
        }
        reservation.bytes += bytes;
        true
    }

    /// The bytes in use.
    pub(super) fn used(&self) -> u64 {
        self.memory.used.load(Relaxed)
    }

    /// Removes one response that was not used since it was last looked at, and that no client is reading.
    pub(super) fn evict(&self) -> bool {
        let mut contents = self.write();
        // Two rounds, as those that were used are passed over once.
        for _ in 0..(2 * contents.queue.len()).min(MOST_LOOKED_AT) {
            let Some((listed, key, scope)) = contents.queue.pop_front() else { return false };
            // Besides its resource, only those that read it hold it.
            let is_read = listed.strong_count() > 1;
            let Some(stored) = listed.upgrade() else { continue };
            if stored.is_used.swap(false, Relaxed) || is_read {
                contents.queue.push_back((listed, key, scope));
                continue;
            }
            contents.remove(&stored, &key, &scope);
            self.totals.evictions.fetch_add(1, Relaxed);
            return true;
        }
        false
    }

    /// Remembers that the response for this resource could not be stored.
    pub(super) fn pass(&self, key: &[u8], now: Duration) {
        let mut passes = self.passes();
        if passes.len() >= MOST_PASSES {
            passes.retain(|_, until| *until > now);
        }
        if passes.len() < MOST_PASSES {
            passes.insert(self.hasher.hash_one(key), now + PASS_FOR);
        }
    }

    /// Whether the response for this resource could not be stored a short time ago.
    pub(super) fn passes_on(&self, key: &[u8], now: Duration) -> bool {
        self.passes().get(&self.hasher.hash_one(key)).is_some_and(|until| *until > now)
    }

    /// The bytes in use, and the number of stored responses.
    pub(super) fn usage(&self) -> (u64, u64) {
        (self.used(), self.read().count as u64)
    }
}

/// Takes a part of a memory, for which others are removed; `false` if there is no room.
fn take(memory: &ZoneMemory, bytes: u64, evict: impl Fn() -> bool) -> bool {
    while !memory.take(bytes) {
        if bytes > memory.limit.load(Relaxed) || !evict() {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::exchange;

    fn zone(limit: u64) -> CacheZone {
        CacheZone::new(limit, Arc::default())
    }

    fn request(fields: &str) -> RequestHead {
        exchange(&format!("GET /a HTTP/1.1\nHost: t\n{fields}")).request.clone()
    }

    fn response(zone: &CacheZone, vary: &str, asked: &RequestHead) -> Arc<StoredResponse> {
        let fields = vec![(b"vary"[..].into(), vary.as_bytes().into())];
        let head = ReplyHead { status: 200, fields };
        let age = StoredAge { received: Duration::ZERO, initial: Duration::ZERO };
        let vary = VaryFields::of(&head, asked);
        let content = StoredContent::new(
            vec![b"hello"[..].into()],
            Trailers::default(),
            zone.reserve(488).expect("there is room"),
        );
        let head = StoredHead { head: head.into(), age, lifetime: Lifetime::default(), vary };
        Arc::new(StoredResponse::new(Arc::new(head), Arc::new(content)))
    }

    #[test]
    fn the_fields_that_vary_names_select_a_response() {
        let zone = zone(1 << 20);
        let (one, other) = (request("Accept-Encoding: gzip,br\nX: 1"), request("Accept-Encoding:  br"));
        let first = response(&zone, "Accept-Encoding", &one);
        zone.store((b"k", 0), b"s", &first);
        let same = request("Accept-Encoding: gzip \nAccept-Encoding: br\nX: 2");
        assert!(zone.find(b"k", b"s", &same).is_some_and(|found| Arc::ptr_eq(&found, &first)));
        assert!(zone.find(b"k", b"s", &other).is_none() && zone.find(b"k", b"t", &one).is_none());
        zone.store((b"k", 0), b"s", &response(&zone, "accept-encoding", &other));
        assert_eq!(zone.usage().1, 2);
        zone.store((b"k", 0), b"s", &response(&zone, "accept-encoding", &other));
        assert_eq!(zone.usage().1, 2, "the second of the same replaces the first");
        assert!(zone.purge(b"k") && !zone.purge(b"k"));
        assert!(zone.find(b"k", b"s", &one).is_none());
    }

    #[test]
    fn an_empty_field_is_another_one_than_none() {
        let zone = zone(1 << 20);
        zone.store((b"k", 0), b"s", &response(&zone, "Accept-Encoding", &request("")));
        assert!(zone.find(b"k", b"s", &request("Accept-Encoding:")).is_none());
        assert!(zone.find(b"k", b"s", &request("X: 1")).is_some());
    }

    #[test]
    fn values_of_different_fields_are_different_parts() {
        let scope = |fields: &str| {
            let mut scope = ScopeParts::default();
            [&b"a"[..], b"b"].iter().for_each(|name| scope.add_values(&request(fields), name));
            scope.finished()
        };
        assert_ne!(scope("A:\nA: x"), scope("B: x\nB:"));
        assert_ne!(scope("A:"), scope("B:"));
    }

    #[test]
    fn response_requested_before_a_purge_is_not_stored() {
        let zone = zone(1 << 20);
        let asked = request("");
        let before = zone.purges(b"k");
        zone.purge(b"k");
        zone.store((b"k", before), b"s", &response(&zone, "", &asked));
        assert!(zone.find(b"k", b"s", &asked).is_none());
        zone.store((b"k", zone.purges(b"k")), b"s", &response(&zone, "", &asked));
        assert!(zone.find(b"k", b"s", &asked).is_some());
    }

    #[test]
    fn the_variants_of_a_resource_are_bounded() {
        let zone = zone(1 << 20);
        for number in 0..100 {
            let asked = request(&format!("X: {number}"));
            zone.store((b"k", 0), b"s", &response(&zone, "X", &asked));
        }
        assert_eq!(zone.usage().1, MOST_VARIANTS as u64);
        assert!(zone.find(b"k", b"s", &request("X: 99")).is_some());
    }

    #[test]
    fn unused_responses_make_room() {
        let zone = zone(10_000);
        let asked = request("");
        for number in 0..10_u8 {
            zone.store((&[number], 0), b"s", &response(&zone, "", &asked));
        }
        assert_eq!(zone.usage(), (10_000, 10));
        let kept: Vec<_> = (0..3_u8).map(|number| zone.find(&[number], b"s", &asked).expect("stored")).collect();
        for number in 10..15_u8 {
            zone.store((&[number], 0), b"s", &response(&zone, "", &asked));
        }
        assert_eq!(zone.usage(), (10_000, 10));
        assert!((0..3_u8).all(|number| zone.find(&[number], b"s", &asked).is_some()), "they were used");
        drop(kept);
        assert!(zone.reserve(9_489).is_none(), "more than the zone has");
    }

    #[test]
    fn zones_together_have_a_limit_and_the_largest_makes_room() {
        let totals = Arc::<CacheTotals>::default();
        totals.memory.limit_to(10_000);
        let zones = ["a", "b", "c"].map(|name| {
            let zone = Arc::new(CacheZone::new(8_000, Arc::clone(&totals)));
            totals.list(name, &zone);
            zone
        });
        let asked = request("");
        for zone in &zones {
            for number in 0..8_u8 {
                zone.store((&[number], 0), b"s", &response(zone, "", &asked));
            }
        }
        let used: u64 = zones.iter().map(|zone| zone.used()).sum();
        assert_eq!(used, 10_000, "each response takes 1,000");
        assert!(zones.iter().all(|zone| zone.used() >= 2_000), "no zone is left without a part");
        assert!(zones[0].reserve(9_489).is_none(), "more than its zone has");
        let dropped = zones[1].used();
        drop(zones);
        assert_eq!((dropped > 0, totals.memory.used.load(Relaxed)), (true, 0));
    }

    #[test]
    fn removed_response_counts_until_its_clients_have_read_it() {
        let zone = zone(2_000);
        let asked = request("");
        let read = response(&zone, "", &asked);
        zone.store((b"a", 0), b"s", &read);
        zone.purge(b"a");
        let more = zone.reserve(488).expect("half of it is left");
        assert!(zone.reserve(0).is_none(), "a client reads the other half");
        drop(read);
        assert!(zone.reserve(0).is_some());
        drop(more);
        assert_eq!(zone.usage(), (0, 0));
    }

    #[test]
    fn keys_that_could_not_be_stored_are_remembered_for_a_time() {
        let zone = zone(2_000);
        let now = Duration::from_secs(100);
        zone.pass(b"a", now);
        assert!(zone.passes_on(b"a", now) && !zone.passes_on(b"b", now) && !zone.passes_on(b"a", now + PASS_FOR));
        for number in 0..=MOST_PASSES as u64 {
            zone.pass(&number.to_le_bytes(), now);
        }
        assert_eq!(zone.passes().len(), MOST_PASSES);
    }
}
