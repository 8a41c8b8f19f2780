//! Counts in this process, and synchronizes with the server at an interval (`sync_interval`).
//!
//! The server is asked about the first request of a window. From then on, each interval, the gateway reports the requests that it
//! has let through, and the server answers with the total of all gateways. Between these reports, a gateway does not know the
//! counts of the others. So within a window, all gateways together let through at most `count`, plus what the others have let
//! through since the last report: with `n` gateways of the same traffic, `n - 1` times what one lets through in an interval. It
//! is never more than `n` times `count`. The count of one gateway is exact over its workers.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use weir_plugin::{Build, PerWorker};

use super::local::CountedAmount;
use super::quota::{EffectiveLimit, LimitDecision};
use crate::clock;
use crate::store::counters::{self, CounterKey, CounterTable, PackedCounter};
use crate::store::redis_server::{NoRedisAnswer, RedisServer};
use crate::store::scripts;

/// The most keys with unreported counts on a worker. Beyond that, the server is asked about each request.
const MAX_UNREPORTED: usize = 65_536;

/// The most keys that a worker reports at the same time.
const AT_A_TIME: usize = 64;

/// A million keys at a time, in 16 MiB at most.
const MOST_KEYS: usize = 1 << 20;

/// The state of a window in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WindowShare {
    /// The end of the window, 32 bits: tenths of a second since 2020.
    until: u64,
    /// Requests that all gateways have let through, as far as is known here; 28 bits.
    total: u64,
    /// Requests let through here and not reported to the server yet; 28 bits.
    unreported: u64,
}

impl WindowShare {
    /// The state after a report: the server's total, and what has been counted here while it was asked.
    fn reported(self, until: u64, told: u64) -> WindowShare {
        WindowShare { until, total: told + self.unreported, ..self }
    }
}

const BITS_28: u64 = (1 << 28) - 1;
/// 2020-01-01, in tenths of a second since 1970.
const EPOCH: u64 = 15_778_368_000;

impl PackedCounter for WindowShare {
    fn from_bits(bits: u128) -> WindowShare {
        let count = |shift: u32| (bits >> shift) as u64 & BITS_28;
        WindowShare { until: (bits >> 56) as u64, total: count(28), unreported: count(0) }
    }

    fn bits(self) -> u128 {
        u128::from(self.until) << 56
            | u128::from(self.total.min(BITS_28)) << 28
            | u128::from(self.unreported.min(BITS_28))
    }

    fn is_live(self, now: u64) -> bool {
        self.until > now
    }

    fn weight(self, _: u64) -> u64 {
        self.total
    }
}

fn tenths(time: Duration) -> u64 {
    (time.as_millis() as u64 / 100).saturating_sub(EPOCH)
}

/// The keys with unreported counts of a worker, as the server names them; for one limiter.
type UnsentCounts = RefCell<HashMap<Box<[u8]>, EffectiveLimit>>;

/// Counts in this process, and reports the counts to a server later.
#[derive(Clone)]
pub(in crate::limit) struct DelayedSync {
    interval: Duration,
    table: Arc<CounterTable<WindowShare>>,
    unsent: PerWorker<UnsentCounts>,
    /// The prefix of this limiter's keys in the table.
    name: u64,
}

impl DelayedSync {
    pub(in crate::limit) fn new(interval: Duration, identity: &str, build: &Build) -> DelayedSync {
        DelayedSync {
            interval,
            table: build.shared("limit-count-delayed", "", || CounterTable::new(MOST_KEYS)),
            unsent: build.per_worker("limit-count-unsent", identity, UnsentCounts::default),
            name: counters::name(identity),
        }
    }

    fn key(&self, key: &[u8]) -> CounterKey {
        self.table.key(self.name, key)
    }

    /// Counts what a request costs; `None` if the server has to be asked.
    pub(super) fn take(
        &self,
        server: &Arc<RedisServer>,
        key: &[u8],
        asked: EffectiveLimit,
        CountedAmount { amount, least }: CountedAmount,
        now: Duration,
    ) -> Option<LimitDecision> {
        let now_tenths = tenths(now);
        if !self.can_tell(key) {
            return None;
        }
        let (verdict, is_first) = self.table.update(self.key(key), now_tenths, |share| {
            if !share.is_live(now_tenths) {
                return (None, (None, false));
            }
            let reset_ms = (share.until - now_tenths) * 100;
            let free = asked.limit.saturating_sub(share.total);
            if free < least {
                return (None, (Some(LimitDecision { accepted: false, remaining: free, reset_ms }), false));
            }
            let taken = WindowShare { total: share.total + amount, unreported: share.unreported + amount, ..share };
            let verdict =
                LimitDecision { accepted: true, remaining: asked.limit.saturating_sub(taken.total), reset_ms };
            (Some(taken), (Some(verdict), share.unreported == 0 && amount > 0))
        });
        if is_first {
            self.tell_later(server, key, asked);
        }
        verdict
    }

    /// Counts an amount without asking the server first. It is accepted if anything is left, even if the amount exceeds what is
    /// left.
    pub(in crate::limit) fn count(
        &self,
        server: &Arc<RedisServer>,
        key: &[u8],
        asked: EffectiveLimit,
        amount: u64,
        now: Duration,
    ) -> LimitDecision {
        let now_tenths = tenths(now);
        let told_later = if self.can_tell(key) { amount } else { 0 };
        let (verdict, is_first) = self.table.update(self.key(key), now_tenths, |share| {
            let begun = || WindowShare { until: now_tenths + asked.window_s * 10, total: 0, unreported: 0 };
            let share = if share.is_live(now_tenths) { share } else { begun() };
            let reset_ms = (share.until - now_tenths) * 100;
            if share.total >= asked.limit {
                return (None, (LimitDecision { accepted: false, remaining: 0, reset_ms }, false));
            }
            let add = |to: u64, more: u64| to.saturating_add(more).min(BITS_28);
            let taken =
                WindowShare { total: add(share.total, amount), unreported: add(share.unreported, told_later), ..share };
            let remaining = asked.limit.saturating_sub(taken.total);
            let verdict = LimitDecision { accepted: true, remaining, reset_ms };
            (Some(taken), (verdict, share.unreported == 0 && taken.unreported > 0))
        });
        if is_first {
            self.tell_later(server, key, asked);
        }
        verdict
    }

    /// Asks the server for the total of all gateways, if this process has no state for the window.
    pub(in crate::limit) async fn ask(
        &self,
        server: &Arc<RedisServer>,
        key: &[u8],
        asked: EffectiveLimit,
    ) -> Result<(), NoRedisAnswer> {
        if self.table.read(self.key(key)).is_live(tenths(clock::now())) {
            return Ok(());
        }
        let [total, ends_ms] = server.ask(&scripts::ADD_TO_FIXED_WINDOW, key, &[0, asked.window_s * 1000]).await?;
        let (remaining, reset_ms) =
            (asked.limit.saturating_sub(total.max(0).unsigned_abs()), ends_ms.max(0).unsigned_abs());
        self.learn(key, asked, LimitDecision { accepted: remaining > 0, remaining, reset_ms }, clock::now());
        Ok(())
    }

    /// Takes over the server's answer to the first request of a window.
    pub(super) fn learn(&self, key: &[u8], asked: EffectiveLimit, verdict: LimitDecision, now: Duration) {
        let total = asked.limit - verdict.remaining.min(asked.limit);
        let until = tenths(now + Duration::from_millis(verdict.reset_ms));
        let now_tenths = tenths(now);
        self.table.update(self.key(key), now_tenths, |share| match share.is_live(now_tenths) {
            // Another request has got an answer for this window meanwhile.
            true => (Some(WindowShare { total: share.total.max(total + share.unreported), ..share }), ()),
            false => (Some(WindowShare { until, total, unreported: 0 }), ()),
        });
    }

    fn can_tell(&self, key: &[u8]) -> bool {
        let unsent = self.unsent.get();
        let unsent = unsent.borrow();
        unsent.len() < MAX_UNREPORTED || unsent.contains_key(key)
    }

    /// Adds a key to report, and starts the task that reports after the interval, unless it runs on this worker already.
    fn tell_later(&self, server: &Arc<RedisServer>, key: &[u8], asked: EffectiveLimit) {
        let unsent = self.unsent.get();
        unsent.borrow_mut().insert(key.into(), asked);
        if unsent.borrow().len() == 1 {
            let (own, server) = (self.clone(), Arc::clone(server));
            tokio::task::spawn_local(async move {
                tokio::time::sleep(own.interval).await;
                let unsent = own.unsent.get().take();
                let (own, server) = (&own, &server);
                let each =
                    |(key, asked): (Box<[u8]>, EffectiveLimit)| async move { own.tell(server, &key, asked).await };
                futures_util::stream::iter(unsent).for_each_concurrent(AT_A_TIME, each).await;
            });
        }
    }

    /// Reports a count to the server, and takes over the total of all gateways.
    async fn tell(&self, server: &Arc<RedisServer>, key: &[u8], asked: EffectiveLimit) {
        let place = self.key(key);
        let now = tenths(clock::now());
        // The count of a window that has ended is discarded.
        let share = self.table.update(place, now, |share| match share.is_live(now) && share.unreported > 0 {
            true => (Some(WindowShare { unreported: 0, ..share }), Some(share)),
            false => (None, None),
        });
        let Some(share) = share else { return };
        match server.report(&scripts::ADD_TO_FIXED_WINDOW, key, &[share.unreported, asked.window_s * 1000]).await {
            Ok([total, ends_ms]) => {
                let now = clock::now();
                let until = tenths(now + Duration::from_millis(ends_ms.max(0).unsigned_abs()));
                let told = total.max(0).unsigned_abs();
                self.table.update(place, tenths(now), |share| (Some(share.reported(until, told)), ()));
            }
            Err(NoRedisAnswer) => {
                let is_same_window = self.table.update(place, now, |newer| match newer.until == share.until {
                    true => (Some(WindowShare { unreported: newer.unreported + share.unreported, ..newer }), true),
                    false => (None, false),
                });
                if is_same_window {
                    self.tell_later(server, key, asked);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis_server::{RedisAddress, RedisLogin, Topology};

    #[test]
    fn a_share_fits_into_its_bits() {
        let share = WindowShare { until: u64::from(u32::MAX), total: BITS_28, unreported: BITS_28 - 1 };
        assert_eq!(WindowShare::from_bits(share.bits()), share);
        assert_eq!(share.bits() >> crate::store::counters::COUNTER_BITS, 0);
        // The format can represent ends of windows until 2033.
        assert!(tenths(Duration::from_secs(2_000_000_000)) < u64::from(u32::MAX));
    }

    #[test]
    fn a_window_is_counted_here_from_the_servers_answer_to_its_first_request() {
        const KEY: &[u8] = b"a";
        let build = Build::default();
        let address = RedisAddress { host: "127.0.0.1".to_owned(), port: 1 };
        let topology = Topology::Single { address, tls: None };
        let server = RedisServer::of(topology, RedisLogin::default(), 0, Duration::from_secs(1), &build);
        // The server is not told of the counts while the test runs.
        let sync = DelayedSync::new(Duration::from_secs(3_600), "test", &build);
        let asked = EffectiveLimit { limit: 5, window_s: 60 };
        let at = |seconds: u64| Duration::from_secs(1_700_000_000 + seconds);
        let decision = |accepted, remaining, reset_ms| LimitDecision { accepted, remaining, reset_ms };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let cost = |cost, seconds| sync.take(&server, KEY, asked, cost, at(seconds));
            let take = |seconds| cost(CountedAmount::whole(1), seconds);
            assert_eq!(take(0), None, "the server is asked about the first request");
            sync.learn(KEY, asked, decision(true, 3, 60_000), at(0));
            assert_eq!(take(10), Some(decision(true, 2, 50_000)));
            // An answer that came later: the server has counted this request, and has not been told of the one above.
            sync.learn(KEY, asked, decision(true, 2, 50_000), at(10));
            assert_eq!(take(20), Some(decision(true, 0, 40_000)));
            assert_eq!(take(20), Some(decision(false, 0, 40_000)));
            assert_eq!(take(60), None, "the window has ended");
            sync.learn(KEY, asked, decision(true, 5, 60_000), at(60));
            assert_eq!(cost(CountedAmount::none_of(6), 60), Some(decision(false, 5, 60_000)));
            assert_eq!(cost(CountedAmount::none_of(5), 60), Some(decision(true, 5, 60_000)), "nothing is counted");
            assert_eq!(cost(CountedAmount::whole(3), 60), Some(decision(true, 2, 60_000)));
            assert_eq!(cost(CountedAmount::whole(3), 60), Some(decision(false, 2, 60_000)));
            assert_eq!(cost(CountedAmount::whole(u64::MAX), 60), Some(decision(false, 2, 60_000)));
            assert_eq!(cost(CountedAmount::whole(2), 60), Some(decision(true, 0, 60_000)));
            let count = |seconds| sync.count(&server, b"b", asked, 3, at(seconds));
            assert_eq!(count(0), decision(true, 2, 60_000), "an amount needs no answer");
            assert_eq!(count(15), decision(true, 0, 45_000));
            assert_eq!(count(15), decision(false, 0, 45_000));
        });
    }

    #[test]
    fn amounts_that_are_counted_during_a_report_are_added_to_the_servers_total() {
        let share = WindowShare { until: 600, total: 4, unreported: 2 };
        assert_eq!(share.reported(601, 7), WindowShare { until: 601, total: 9, unreported: 2 });
    }
}
