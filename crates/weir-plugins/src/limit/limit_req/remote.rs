//! The rate, kept by a server for all gateways that use it.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::Script;
use weir_plugin::{Exchange, Flow, Plugin, Stop};

use super::{Bucket, delayed};
use crate::store::redis_server::{RedisServer, Unanswered};

/// `microseconds between requests, the most one may wait` → `accepted, microseconds to wait`. The key holds when the next
/// request is due, on the server's clock.
static TAKE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
local interval, patience = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local turn = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), now)
if turn - now > patience then return {0, 0} end
local due = turn + interval
redis.call('SET', KEYS[1], string.format('%.0f', due), 'PX', math.ceil((due - now) / 1000))
return {1, turn - now}
",
    )
});

/// A bucket in a server.
pub(super) struct RedisReqLimiter {
    pub(super) bucket: Bucket,
    pub(super) server: Arc<RedisServer>,
    /// What its keys begin with.
    pub(super) title: String,
    pub(super) allow_degradation: bool,
}

impl Plugin for RedisReqLimiter {
    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Result<Flow<'a>, Stop> {
        Ok(Flow::wait(async move {
            let key = self.bucket.key.elsewhere(&self.title, exchange);
            let amounts = [self.bucket.interval_ns / 1000, self.bucket.patience_ns / 1000];
            match self.server.ask(&TAKE, &key, &amounts).await {
                Ok([0, _]) => Err(self.bucket.refusal.send(exchange)),
                Ok([_, wait_us]) => {
                    let wait = Duration::from_micros(wait_us.max(0).unsigned_abs());
                    if self.bucket.waits { delayed(wait).finish().await } else { Ok(()) }
                }
                Err(Unanswered) if self.allow_degradation => Ok(()),
                Err(Unanswered) => Err(Stop::Respond(500)),
            }
        }))
    }
}
