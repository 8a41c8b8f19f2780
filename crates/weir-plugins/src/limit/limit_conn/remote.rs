//! What is under way, counted by a server for all gateways that use it.
//!
//! A key holds a member for each request, with the time at which it is forgotten whatever happens: a gateway that dies
//! takes its places with it no longer than that.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::Script;
use weir_plugin::{Exchange, Flow, PerWorker, Phases, Plugin, Stop};

use super::{ConnLimiter, PHASES};
use crate::clock;
use crate::limit::limit_req::delayed;
use crate::store::redis_server::{RedisServer, Unanswered};

/// `member, most, ms until it is forgotten` → `accepted, how many were there before`.
static ENTER: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local count = redis.call('ZCARD', KEYS[1])
if count >= tonumber(ARGV[2]) then return {0, count} end
redis.call('ZADD', KEYS[1], now + ARGV[3], ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {1, count}
",
    )
});

/// `member` → `whether it was there`.
static LEAVE: LazyLock<Script> = LazyLock::new(|| Script::new("return {redis.call('ZREM', KEYS[1], ARGV[1])}"));

/// The permits of requests under way, by member: a request ends on the worker on which it began.
pub(super) type HeldPermits = RefCell<HashMap<u64, HeldPermit>>;

/// A permit in a server's count. Dropped, it is given back.
pub(super) struct HeldPermit {
    server: Arc<RedisServer>,
    key: Vec<u8>,
    member: u64,
    /// The server has said that there was none.
    refused: bool,
}

impl Drop for HeldPermit {
    fn drop(&mut self) {
        if self.refused {
            return;
        }
        let (server, key, member) = (Arc::clone(&self.server), std::mem::take(&mut self.key), self.member);
        // Without a runtime the worker is ending; the server forgets the place in time.
        if tokio::runtime::Handle::try_current().is_ok() {
            tokio::task::spawn_local(async move {
                // Failing, it is forgotten later.
                let _ = server.ask::<1>(&LEAVE, &key, &[member]).await;
            });
        }
    }
}

/// Limits that a server counts.
pub(super) struct RedisConnLimiter {
    pub(super) limiter: ConnLimiter,
    pub(super) server: Arc<RedisServer>,
    /// After which a request is forgotten that nobody has seen end.
    pub(super) forget_after: Duration,
    pub(super) held: PerWorker<HeldPermits>,
}

impl RedisConnLimiter {
    async fn admit(&self, exchange: &mut Exchange) -> Result<Duration, Stop> {
        let ConnLimiter { quotas, refusal, allow_degradation, .. } = &self.limiter;
        let mut pauses = 0;
        for quota in quotas {
            let Some((conn, burst)) = quota.ask(exchange, *allow_degradation)? else { continue };
            // From here on the server may have counted the request in, whether or not it gets to say so.
            let key = quota.key.elsewhere(&quota.title, exchange);
            let server = Arc::clone(&self.server);
            let mut permit = HeldPermit { server, key, member: rand::random(), refused: false };
            let most_ms = self.forget_after.as_millis() as u64;
            match self.server.ask(&ENTER, &permit.key, &[permit.member, conn + burst, most_ms]).await {
                Ok([0, _]) => {
                    permit.refused = true;
                    return Err(refusal.send(exchange));
                }
                Ok([_, count]) => {
                    exchange.notes.write(quota.note, [permit.member, clock::now().as_nanos() as u64, 0]);
                    self.held.get().borrow_mut().insert(permit.member, permit);
                    pauses = (count.max(0).unsigned_abs() / conn).max(pauses);
                }
                Err(Unanswered) if *allow_degradation => {}
                Err(Unanswered) => return Err(Stop::Respond(500)),
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
        Ok(Flow::wait(async move {
            let wait = self.admit(exchange).await?;
            if self.limiter.waits { delayed(wait).finish().await } else { Ok(()) }
        }))
    }

    fn on_log(&self, exchange: &Exchange) {
        for quota in &self.limiter.quotas {
            let Some([member, entered_ns, _]) = exchange.notes.read(quota.note) else { continue };
            // Dropped when the map is free again: it gives the permit back.
            let permit = self.held.get().borrow_mut().remove(&member);
            drop(permit);
            self.limiter.learn(entered_ns);
        }
    }
}
