//! Requests in progress, counted in a Redis server for all gateways that use it.
//!
//! A key of the server holds one member for each request, with the time until which it counts: a lease, renewed while
//! the request is in progress. If its end is not reported, because the gateway died or the server was not reachable,
//! the lease expires.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::iter;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use weir_plugin::{Exchange, Flow, PerWorker, Phases, Plugin, Stop};

use super::{ConnLimiter, PHASES};
use crate::store::redis_server::{NoRedisAnswer, RedisServer};
use crate::store::scripts;

/// The longest lease: a permit counts for this long if the end of its request is not reported.
const LONGEST_LEASE: Duration = Duration::from_secs(30);
/// How often a lease is renewed within its length, so that one failure or a slow server does not end it.
const RENEWALS: u32 = 3;
/// The most leases that are renewed with one script call.
const AT_A_TIME: usize = 64;

/// The permits of requests in progress, by member. Kept per worker: a request ends on the worker on which it began.
#[derive(Default)]
pub(super) struct HeldPermits {
    permits: RefCell<HashMap<u64, HeldPermit>>,
    /// The shortest lease among them; `None` while no task renews leases.
    renewed_for: Cell<Option<Duration>>,
    /// Notified when `renewed_for` has become shorter.
    is_shorter: Notify,
}

/// Leases under one key of a server, which are renewed together.
struct SharedLease {
    server: Arc<RedisServer>,
    key: Vec<u8>,
    lease_ms: u64,
    members: Vec<u64>,
}

impl HeldPermits {
    /// The leases to renew, grouped by server, key and length.
    fn leases(&self) -> Vec<SharedLease> {
        let mut leases: Vec<SharedLease> = Vec::new();
        let mut places: HashMap<_, usize> = HashMap::new();
        let permits = self.permits.borrow();
        for HeldPermit { server, key, member, lease, .. } in permits.values() {
            let place = *places.entry((Arc::as_ptr(server), &**key, *lease)).or_insert_with(|| {
                let lease_ms = lease.as_millis() as u64;
                leases.push(SharedLease {
                    server: Arc::clone(server),
                    key: key.clone(),
                    lease_ms,
                    members: Vec::new(),
                });
                leases.len() - 1
            });
            leases[place].members.push(*member);
        }
        leases
    }
}

/// Stores a permit until its request ends, and starts the task that renews leases if it does not run.
fn hold(held: &PerWorker<HeldPermits>, permit: HeldPermit) {
    let permits = held.get();
    let lease = permit.lease;
    permits.permits.borrow_mut().insert(permit.member, permit);
    match permits.renewed_for.get() {
        Some(known) if lease < known => {
            permits.renewed_for.set(Some(lease));
            permits.is_shorter.notify_one();
        }
        Some(_) => {}
        None => {
            permits.renewed_for.set(Some(lease));
            tokio::task::spawn_local(renew(held.clone()));
        }
    }
}

/// Renews leases until none are left.
async fn renew(held: PerWorker<HeldPermits>) {
    while let Some(lease) = held.get().renewed_for.get() {
        let permits = held.get();
        let is_shorter = tokio::time::timeout(lease / RENEWALS, permits.is_shorter.notified()).await.is_ok();
        if is_shorter {
            continue;
        }
        let leases = held.get().leases();
        if leases.is_empty() {
            held.get().renewed_for.set(None);
            return;
        }
        for SharedLease { server, key, lease_ms, members } in leases {
            for members in members.chunks(AT_A_TIME) {
                // Without those that have ended meanwhile: the renewal would recreate them, and they would not be released again.
                let permits = held.get();
                let is_held = |member: &&u64| permits.permits.borrow().contains_key(*member);
                let arguments: Vec<u64> =
                    iter::once(&lease_ms).chain(members.iter().filter(is_held)).copied().collect();
                if arguments.len() == 1 {
                    continue;
                }
                // If this fails, it is repeated before the lease ends.
                let _ = server.report::<1>(&scripts::RENEW_PERMITS, &key, &arguments).await;
            }
        }
    }
}

/// A permit that is counted in a server. Released when it is dropped.
pub(super) struct HeldPermit {
    server: Arc<RedisServer>,
    key: Vec<u8>,
    member: u64,
    lease: Duration,
    /// The server has refused the permit, so there is nothing to release.
    refused: bool,
}

impl Drop for HeldPermit {
    fn drop(&mut self) {
        if self.refused {
            return;
        }
        let (server, key, member) = (Arc::clone(&self.server), std::mem::take(&mut self.key), self.member);
        // Without a runtime the worker is ending; the lease ends by itself.
        if tokio::runtime::Handle::try_current().is_ok() {
            tokio::task::spawn_local(async move {
                // If this fails, the permit ends with its lease.
                let _ = server.report::<1>(&scripts::RELEASE_PERMIT, &key, &[member]).await;
            });
        }
    }
}

/// A limiter whose permits are counted in a Redis server.
pub(super) struct RedisConnLimiter {
    pub(super) limiter: ConnLimiter,
    pub(super) server: Arc<RedisServer>,
    /// How long a permit counts after its last renewal.
    pub(super) lease: Duration,
    pub(super) held: PerWorker<HeldPermits>,
}

impl RedisConnLimiter {
    /// The lease of permits with this `key_ttl`.
    pub(super) fn lease(key_ttl: Duration) -> Duration {
        key_ttl.min(LONGEST_LEASE)
    }

    async fn admit(&self, exchange: &mut Exchange) -> Result<Duration, Stop> {
        let ConnLimiter { quotas, refusal, allow_degradation, .. } = &self.limiter;
        let mut pauses = 0;
        for quota in quotas {
            let Some((conn, burst)) = quota.ask(exchange, *allow_degradation)? else { continue };
            // From here on the server may count the request, even if its answer is lost; dropping `permit` releases it.
            let key = quota.key.in_redis(&quota.title, exchange);
            let server = Arc::clone(&self.server);
            let mut permit = HeldPermit { server, key, member: rand::random(), lease: self.lease, refused: false };
            let lease_ms = self.lease.as_millis() as u64;
            match self.server.ask(&scripts::ACQUIRE_PERMIT, &permit.key, &[permit.member, conn + burst, lease_ms]).await
            {
                Ok([0, _]) => {
                    permit.refused = true;
                    return Err(refusal.send(exchange));
                }
                Ok([_, count]) => {
                    exchange.notes.write(quota.note, [permit.member, 0, 0]);
                    hold(&self.held, permit);
                    pauses = (count.max(0).unsigned_abs() / conn).max(pauses);
                }
                Err(NoRedisAnswer) if *allow_degradation => exchange.note_service_failure(),
                Err(NoRedisAnswer) => return Err(Stop::Respond(500)),
            }
        }
        Ok(self.limiter.wait(pauses))
    }
}

impl Plugin for RedisConnLimiter {
    fn phases(&self) -> Phases {
        PHASES
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Result<Flow<'a>, Stop> {
        if self.limiter.replaceable.is_replaced(exchange) {
            return Ok(Flow::Continue);
        }
        Ok(Flow::wait(async move {
            let wait = self.admit(exchange).await?;
            self.limiter.delay(exchange, wait).finish().await
        }))
    }

    fn on_log(&self, exchange: &Exchange) {
        for quota in &self.limiter.quotas {
            let Some([member, ..]) = exchange.notes.read(quota.note) else { continue };
            // Dropped after the borrow of the map has ended; this releases the permit.
            let permit = self.held.get().permits.borrow_mut().remove(&member);
            drop(permit);
        }
        self.limiter.learn(exchange);
    }
}
