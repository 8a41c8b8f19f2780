//! The counters of events: in this process only, or synchronized with a server that several gateways share.

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
    /// Counts in this process and synchronizes at an interval, since a message does not wait for a server's answer.
    Server(Arc<RedisServer>, DelayedSync),
}

/// The counter of the events of one stream, and its limit.
#[derive(Clone)]
pub(super) struct StreamQuota {
    place: CountedAt,
    pub(super) limit: EffectiveLimit,
}

#[derive(Clone)]
enum CountedAt {
    Here(CounterKey),
    /// The key on the server.
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

    /// A separate counter for a part of the quota, such as a topic.
    pub(super) fn part_of(&self, quota: &StreamQuota, part: &[u8]) -> StreamQuota {
        let place = match (self, &quota.place) {
            (EventCounting::Here(windows), CountedAt::Here(key)) => CountedAt::Here(windows.part_of(*key, part)),
            (_, CountedAt::Server(key)) => CountedAt::Server([key, &b":"[..], digest(part).as_bytes()].concat().into()),
            (EventCounting::Server(..), CountedAt::Here(_)) => quota.place.clone(),
        };
        StreamQuota { place, ..*quota }
    }

    /// Counts an amount. It is accepted if anything is left, even if the amount exceeds what is left.
    pub(super) fn take(&self, quota: &StreamQuota, amount: u64) -> LimitDecision {
        match (self, &quota.place) {
            (EventCounting::Here(windows), CountedAt::Here(key)) => {
                windows.take_amount(*key, quota.limit, amount, clock::now())
            }
            (EventCounting::Server(server, delayed), CountedAt::Server(key)) => {
                delayed.count(server, key, quota.limit, amount, clock::now())
            }
            // Cannot happen: a quota is only used with the counters that created it.
            _ => LimitDecision { accepted: true, remaining: 0, reset_ms: 0 },
        }
    }

    /// Whether the server did not take the last report, so that the counts of other gateways are out of date.
    pub(super) fn is_out_of_date(&self) -> bool {
        matches!(self, EventCounting::Server(server, _) if server.is_down())
    }

    /// Asks the server for the total of all gateways, if this process has no state for the window.
    pub(super) async fn ask(&self, quota: &StreamQuota) -> Result<(), NoRedisAnswer> {
        match (self, &quota.place) {
            (EventCounting::Server(server, delayed), CountedAt::Server(key)) => {
                delayed.ask(server, key, quota.limit).await
            }
            _ => Ok(()),
        }
    }
}
