//! Where events are counted: in this process, or here and in a server that several gateways share.

use std::sync::Arc;

use weir_plugin::Exchange;

use super::EventQuota;
use crate::clock;
use crate::limit::key::{LimitKey, digest};
use crate::limit::limit_count::delayed::DelayedSync;
use crate::limit::limit_count::local::Windows;
use crate::limit::limit_count::quota::{EffectiveLimit, LimitDecision};
use crate::store::counters::CounterKey;
use crate::store::redis_server::{NoRedisAnswer, RedisServer};

pub(super) enum EventCounting {
    Here(Windows),
    /// A message does not wait for the answer of a server: it is told now and then.
    Server(Arc<RedisServer>, DelayedSync),
}

/// Where the events of one stream are counted, and to what limit.
#[derive(Clone)]
pub(super) struct StreamQuota {
    place: CountedAt,
    pub(super) limit: EffectiveLimit,
}

#[derive(Clone)]
enum CountedAt {
    Here(CounterKey),
    /// Under this key of the server.
    Server(Box<[u8]>),
}

impl EventCounting {
    pub(super) fn quota(
        &self,
        key: &LimitKey,
        quota: &EventQuota,
        limit: EffectiveLimit,
        exchange: &Exchange,
    ) -> StreamQuota {
        let place = match self {
            EventCounting::Here(windows) => CountedAt::Here(windows.key(key, quota.name, exchange)),
            EventCounting::Server(..) => CountedAt::Server(key.in_redis(&quota.title, exchange).into()),
        };
        StreamQuota { place, limit }
    }

    /// A part of what a quota counts, on its own.
    pub(super) fn part_of(&self, quota: &StreamQuota, part: &[u8]) -> StreamQuota {
        let place = match (self, &quota.place) {
            (EventCounting::Here(windows), CountedAt::Here(key)) => CountedAt::Here(windows.part_of(*key, part)),
            (_, CountedAt::Server(key)) => CountedAt::Server([key, &b":"[..], digest(part).as_bytes()].concat().into()),
            (EventCounting::Server(..), CountedAt::Here(_)) => quota.place.clone(),
        };
        StreamQuota { place, ..*quota }
    }

    /// Counts so much. It is accepted as long as anything is left, also if it is more than that.
    pub(super) fn take(&self, quota: &StreamQuota, amount: u64) -> LimitDecision {
        match (self, &quota.place) {
            (EventCounting::Here(windows), CountedAt::Here(key)) => {
                windows.take_amount(*key, quota.limit, amount, clock::now())
            }
            (EventCounting::Server(server, delayed), CountedAt::Server(key)) => {
                delayed.count(server, key, quota.limit, amount, clock::now())
            }
            // Quotas are made by the limits that count them.
            _ => LimitDecision { accepted: true, remaining: 0, reset_ms: 0 },
        }
    }

    /// Asks the server what is used up, if nothing is known of it here.
    pub(super) async fn ask(&self, quota: &StreamQuota) -> Result<(), NoRedisAnswer> {
        match (self, &quota.place) {
            (EventCounting::Server(server, delayed), CountedAt::Server(key)) => {
                delayed.ask(server, key, quota.limit).await
            }
            _ => Ok(()),
        }
    }
}
