//! Fixed and sliding windows, counted in a Redis server for all gateways that use it: one script call for each request.

use std::sync::Arc;
use std::time::Duration;

use weir_plugin::Exchange;

use super::WindowType;
use super::delayed::DelayedSync;
use super::local::CountedAmount;
use super::quota::{CountQuota, EffectiveLimit, LimitDecision};
use crate::store::redis_server::{NoRedisAnswer, RedisServer};
use crate::store::scripts;

/// A limiter whose counters are in a Redis server.
pub(super) struct RedisCountLimiter {
    pub(super) server: Arc<RedisServer>,
    pub(super) window: WindowType,
    /// With delayed synchronisation, counts in this process between two synchronisations with the server.
    pub(super) delayed: Option<DelayedSync>,
}

impl RedisCountLimiter {
    /// Counts what a request costs. Between two synchronisations the server is not asked; that it did not take the last one is a
    /// failure that the request has seen.
    pub(super) async fn take(
        &self,
        quota: &CountQuota,
        asked: EffectiveLimit,
        exchange: &mut Exchange,
        cost: CountedAmount,
        now: Duration,
    ) -> Result<LimitDecision, NoRedisAnswer> {
        let key = quota.key.in_redis(&quota.title, exchange);
        let Some(delayed) = &self.delayed else { return self.ask(&key, asked, cost).await };
        if let Some(verdict) = delayed.take(&self.server, &key, asked, cost, now) {
            if verdict.accepted && self.server.is_down() {
                exchange.note_service_failure();
            }
            return Ok(verdict);
        }
        let verdict = self.ask(&key, asked, cost).await?;
        delayed.learn(&key, asked, verdict, now);
        Ok(verdict)
    }

    async fn ask(
        &self,
        key: &[u8],
        asked: EffectiveLimit,
        cost: CountedAmount,
    ) -> Result<LimitDecision, NoRedisAnswer> {
        let script = match self.window {
            WindowType::Fixed => &*scripts::COUNT_IN_FIXED_WINDOW,
            WindowType::Sliding => &*scripts::COUNT_IN_SLIDING_WINDOW,
        };
        // A larger cost is as much too large, and numbers of the server have 53 bits.
        let [amount, least] = [cost.amount, cost.least].map(|cost| cost.min(asked.limit + 1));
        let [accepted, remaining, reset_ms] =
            self.server.ask(script, key, &[asked.limit, asked.window_s * 1000, amount, least]).await?;
        Ok(LimitDecision {
            accepted: accepted != 0,
            remaining: remaining.max(0).unsigned_abs(),
            reset_ms: reset_ms.max(0).unsigned_abs(),
        })
    }
}
