//! Windows of both kinds, counted by a server for all gateways that use it: one script call for a request.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::Script;
use weir_plugin::Exchange;

use super::WindowType;
use super::delayed::DelayedSync;
use super::quota::{CountQuota, EffectiveLimit, LimitDecision};
use crate::store::redis_server::{RedisServer, Unanswered};

/// `limit, window in ms` → `accepted, left, ms until the window ends`. The window begins with the first request.
static FIXED: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
local limit, window = tonumber(ARGV[1]), tonumber(ARGV[2])
local ends = redis.call('PTTL', KEYS[1])
if ends <= 0 then
  redis.call('SET', KEYS[1], 1, 'PX', window)
  return {1, limit - 1, window}
end
local used = tonumber(redis.call('GET', KEYS[1]))
if used >= limit then return {0, 0, ends} end
redis.call('INCR', KEYS[1])
return {1, limit - used - 1, ends}
",
    )
});

/// The same for windows that follow each other on the server's clock: of the one before, the share that still lies
/// within the last window counts.
static SLIDING: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
local limit, window = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local number = math.floor(now / window)
local ends = (number + 1) * window - now
local kept = redis.call('HMGET', KEYS[1], 'number', 'current', 'previous')
local current, previous = 0, 0
if tonumber(kept[1]) == number then
  current, previous = tonumber(kept[2]), tonumber(kept[3])
elseif tonumber(kept[1]) == number - 1 then
  previous = tonumber(kept[2])
end
local free = math.floor(limit - current - previous * ends / window)
if free < 1 then return {0, 0, ends} end
redis.call('HSET', KEYS[1], 'number', number, 'current', current + 1, 'previous', previous)
redis.call('PEXPIRE', KEYS[1], 2 * window)
return {1, free - 1, ends}
",
    )
});

/// Counts in a server.
pub(super) struct RedisCountLimiter {
    pub(super) server: Arc<RedisServer>,
    pub(super) window: WindowType,
    /// Counts here in between, and tells the server now and then.
    pub(super) delayed: Option<DelayedSync>,
}

impl RedisCountLimiter {
    /// Counts one request.
    pub(super) async fn take(
        &self,
        quota: &CountQuota,
        asked: EffectiveLimit,
        exchange: &Exchange,
        now: Duration,
    ) -> Result<LimitDecision, Unanswered> {
        let key = quota.key.elsewhere(&quota.title, exchange);
        let Some(delayed) = &self.delayed else { return self.ask(&key, asked).await };
        if let Some(verdict) = delayed.take(&self.server, &key, asked, now) {
            return Ok(verdict);
        }
        let verdict = self.ask(&key, asked).await?;
        delayed.learn(&key, asked, verdict, now);
        Ok(verdict)
    }

    async fn ask(&self, key: &[u8], asked: EffectiveLimit) -> Result<LimitDecision, Unanswered> {
        let script: &Script = match self.window {
            WindowType::Fixed => &FIXED,
            WindowType::Sliding => &SLIDING,
        };
        let [accepted, remaining, reset_ms] =
            self.server.ask(script, key, &[asked.limit, asked.window_s * 1000]).await?;
        Ok(LimitDecision {
            accepted: accepted != 0,
            remaining: remaining.max(0).unsigned_abs(),
            reset_ms: reset_ms.max(0).unsigned_abs(),
        })
    }
}
