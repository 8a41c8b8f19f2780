//! The leaky bucket in a Redis server, shared by all gateways that use it.

use std::sync::Arc;
use std::time::Duration;

use weir_plugin::{Exchange, Flow, Plugin, Stop};

use super::{Bucket, delayed};
use crate::store::redis_server::{NoRedisAnswer, RedisServer};
use crate::store::scripts;

/// A limiter whose buckets are in a Redis server.
pub(super) struct RedisReqLimiter {
    pub(super) bucket: Bucket,
    pub(super) server: Arc<RedisServer>,
    /// The prefix of its keys.
    pub(super) title: String,
    pub(super) allow_degradation: bool,
}

impl Plugin for RedisReqLimiter {
    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Result<Flow<'a>, Stop> {
        Ok(Flow::wait(async move {
            let key = self.bucket.key.in_redis(&self.title, exchange);
            let amounts = [self.bucket.interval_ns / 1000, self.bucket.max_wait_ns / 1000];
            match self.server.ask(&scripts::RESERVE_IN_LEAKY_BUCKET, &key, &amounts).await {
                Ok([0, _]) => Err(self.bucket.refusal.send(exchange)),
                Ok([_, wait_us]) => {
                    let wait = Duration::from_micros(wait_us.max(0).unsigned_abs());
                    if self.bucket.waits { delayed(wait).finish().await } else { Ok(()) }
                }
                Err(NoRedisAnswer) if self.allow_degradation => {
                    exchange.note_service_failure();
                    Ok(())
                }
                Err(NoRedisAnswer) => Err(Stop::Respond(500)),
            }
        }))
    }
}
