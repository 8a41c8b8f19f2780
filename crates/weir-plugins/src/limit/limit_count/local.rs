//! Fixed and sliding windows, counted in this process.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use super::WindowType;
use super::quota::{CountQuota, EffectiveLimit, LimitDecision, MAX_COUNT, MAX_PAIRED_COUNT, MAX_WINDOW_S};
use crate::clock;
use crate::limit::key::LimitKey;
use crate::store::counters::{CounterKey, CounterTable, PackedCounter};
use crate::store::durable::{DurableCounter, DurableCounters, Startable};
use weir_plugin::{Build, Exchange};

/// The most keys in each of the two tables: a million, in at most 16 MiB. The two kinds of windows need separate
/// tables, because their entries expire in different units.
const MOST_KEYS: usize = 1 << 20;

/// The counters of all keys, for one kind of window.
pub(in crate::limit) enum Windows {
    Fixed(Arc<CounterTable<Fixed>>),
    Sliding(Arc<CounterTable<Sliding>>),
}

impl Windows {
    pub(in crate::limit) fn new(window: WindowType, build: &Build) -> Windows {
        match window {
            WindowType::Fixed => Windows::Fixed(
                build.shared("limit-count", "", || CounterTable::passed_on("limit-count-fixed", MOST_KEYS)),
            ),
            WindowType::Sliding => Windows::Sliding(
                build.shared("limit-count", "", || CounterTable::passed_on("limit-count-sliding", MOST_KEYS)),
            ),
        }
    }

    /// Windows that are kept on disk, and what keeps them; `None` without a `data_dir`.
    pub(super) fn durable(window: WindowType, build: &Build) -> Option<(Windows, Arc<dyn Startable>)> {
        Some(match window {
            WindowType::Fixed => {
                let kept = DurableCounters::<Fixed>::of(build)?;
                (Windows::Fixed(Arc::clone(kept.table())), kept as Arc<dyn Startable>)
            }
            WindowType::Sliding => {
                let kept = DurableCounters::<Sliding>::of(build)?;
                (Windows::Sliding(Arc::clone(kept.table())), kept)
            }
        })
    }

    /// Counts what a request costs.
    pub(super) fn take(
        &self,
        quota: &CountQuota,
        asked: EffectiveLimit,
        exchange: &Exchange,
        cost: CountedAmount,
        now: Duration,
    ) -> LimitDecision {
        let key = self.key(&quota.key, quota.name, exchange);
        self.take_counted(key, asked, cost, now)
    }

    /// The key under which an exchange is counted, for the limit `name`.
    pub(in crate::limit) fn key(&self, key: &LimitKey, name: u64, exchange: &Exchange) -> CounterKey {
        match self {
            Windows::Fixed(table) => key.in_table(table, name, exchange),
            Windows::Sliding(table) => key.in_table(table, name, exchange),
        }
    }

    /// The key of a separate counter for a part of what `key` counts.
    pub(in crate::limit) fn part_of(&self, key: CounterKey, part: &[u8]) -> CounterKey {
        match self {
            Windows::Fixed(table) => table.key(key.number(), part),
            Windows::Sliding(table) => table.key(key.number(), part),
        }
    }

    /// Counts `amount` at once. It is accepted if anything is left, even if less than `amount`.
    pub(in crate::limit) fn take_amount(
        &self,
        key: CounterKey,
        asked: EffectiveLimit,
        amount: u64,
        now: Duration,
    ) -> LimitDecision {
        self.take_counted(key, asked, CountedAmount::any(amount), now)
    }

    fn take_counted(
        &self,
        key: CounterKey,
        asked: EffectiveLimit,
        amount: CountedAmount,
        now: Duration,
    ) -> LimitDecision {
        match self {
            Windows::Fixed(table) => take_fixed(table, key, asked, amount, now),
            Windows::Sliding(table) => take_sliding(table, key, asked, amount, now),
        }
    }
}

/// What is counted at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct CountedAmount {
    pub(super) amount: u64,
    /// How much must be left for it to be accepted.
    pub(super) least: u64,
}

impl CountedAmount {
    /// It is accepted if all of it is left.
    pub(super) fn whole(amount: u64) -> CountedAmount {
        CountedAmount { amount, least: amount }
    }

    /// Nothing is counted: whether all of `amount` is left.
    pub(super) fn none_of(amount: u64) -> CountedAmount {
        CountedAmount { amount: 0, least: amount }
    }

    /// It is accepted if anything is left.
    fn any(amount: u64) -> CountedAmount {
        CountedAmount { amount, least: 1 }
    }
}

/// A window that began with the first request of its key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fixed {
    /// The end of the window in milliseconds since 1970, 44 bits.
    until_ms: u64,
    /// 44 bits.
    count: u64,
}

impl PackedCounter for Fixed {
    fn from_bits(bits: u128) -> Fixed {
        Fixed { until_ms: (bits >> 44) as u64, count: bits as u64 & MAX_COUNT }
    }

    fn bits(self) -> u128 {
        u128::from(self.until_ms) << 44 | u128::from(self.count)
    }

    fn is_live(self, now_ms: u64) -> bool {
        self.until_ms > now_ms
    }

    fn weight(self, _: u64) -> u64 {
        self.count
    }
}

impl DurableCounter for Fixed {
    const KIND: &'static str = "limit-count-fixed-durable";

    fn now() -> u64 {
        clock::now().as_millis() as u64
    }

    fn is_possible(self, now_ms: u64) -> bool {
        self.until_ms <= now_ms + MAX_WINDOW_S * 1000
    }

    fn plus(self, other: Fixed, now_ms: u64) -> Fixed {
        match (self.is_live(now_ms), other.is_live(now_ms)) {
            (false, _) => other,
            (_, false) => self,
            _ => Fixed {
                until_ms: self.until_ms.min(other.until_ms),
                count: self.count.saturating_add(other.count).min(MAX_COUNT),
            },
        }
    }
}

fn take_fixed(
    table: &CounterTable<Fixed>,
    key: CounterKey,
    asked: EffectiveLimit,
    CountedAmount { amount, least }: CountedAmount,
    now: Duration,
) -> LimitDecision {
    let EffectiveLimit { limit, window_s } = asked;
    let now_ms = now.as_millis() as u64;
    table.update(key, now_ms, |Fixed { until_ms, count }| {
        let (until_ms, count) = if until_ms > now_ms { (until_ms, count) } else { (now_ms + window_s * 1000, 0) };
        let reset_ms = until_ms - now_ms;
        let free = limit.saturating_sub(count);
        if free < least {
            return (None, LimitDecision { accepted: false, remaining: free, reset_ms });
        }
        let count = count.saturating_add(amount).min(MAX_COUNT);
        let remaining = limit.saturating_sub(count);
        (Some(Fixed { until_ms, count }), LimitDecision { accepted: true, remaining, reset_ms })
    })
}

/// The counts of the current window and of the one before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sliding {
    /// When the window after the current one ends, and the counts have no effect any more: seconds since 1970, 32 bits.
    until_s: u64,
    /// 28 bits each.
    current: u64,
    previous: u64,
}

impl PackedCounter for Sliding {
    fn from_bits(bits: u128) -> Sliding {
        let count = |shift: u32| (bits >> shift) as u64 & MAX_PAIRED_COUNT;
        Sliding { until_s: (bits >> 56) as u64, current: count(28), previous: count(0) }
    }

    fn bits(self) -> u128 {
        u128::from(self.until_s) << 56 | u128::from(self.current) << 28 | u128::from(self.previous)
    }

    fn is_live(self, now_s: u64) -> bool {
        self.until_s > now_s
    }

    fn weight(self, _: u64) -> u64 {
        self.current.max(self.previous)
    }
}

impl DurableCounter for Sliding {
    const KIND: &'static str = "limit-count-sliding-durable";

    fn now() -> u64 {
        clock::now().as_secs()
    }

    fn is_possible(self, now_s: u64) -> bool {
        self.until_s <= now_s + 2 * MAX_WINDOW_S
    }

    fn plus(self, other: Sliding, _: u64) -> Sliding {
        let sum = |one: u64, other: u64| one.saturating_add(other).min(MAX_PAIRED_COUNT);
        match self.until_s.cmp(&other.until_s) {
            Ordering::Equal => Sliding {
                until_s: self.until_s,
                current: sum(self.current, other.current),
                previous: sum(self.previous, other.previous),
            },
            // What counted last is in a later window, for which the counts of the other are at most those of the previous one.
            Ordering::Greater => Sliding { previous: sum(self.previous, other.current), ..self },
            Ordering::Less => Sliding { previous: sum(other.previous, self.current), ..other },
        }
    }
}

fn take_sliding(
    table: &CounterTable<Sliding>,
    key: CounterKey,
    asked: EffectiveLimit,
    CountedAmount { amount, least }: CountedAmount,
    now: Duration,
) -> LimitDecision {
    let EffectiveLimit { limit, window_s } = asked;
    let (now_s, window_ms) = (now.as_secs(), window_s * 1000);
    let start_s = now_s / window_s * window_s;
    let left_ms = window_ms - (now.as_millis() as u64 - start_s * 1000);
    let until_s = start_s + 2 * window_s;
    table.update(key, now_s, |counter| {
        let (current, previous) = match counter.until_s {
            until if until == until_s => (counter.current, counter.previous),
            until if until == start_s + window_s => (0, counter.current),
            _ => (0, 0),
        };
        // Calculated in units of a request times a millisecond, so that nothing is rounded before the division.
        let weighted = u128::from(previous) * u128::from(left_ms) + u128::from(current) * u128::from(window_ms);
        let free = (u128::from(limit) * u128::from(window_ms)).saturating_sub(weighted) / u128::from(window_ms);
        let free = free as u64;
        match free < least {
            true => (None, LimitDecision { accepted: false, remaining: free, reset_ms: left_ms }),
            false => {
                let remaining = free.saturating_sub(amount);
                let current = current.saturating_add(amount).min(MAX_PAIRED_COUNT);
                (
                    Some(Sliding { until_s, current, previous }),
                    LimitDecision { accepted: true, remaining, reset_ms: left_ms },
                )
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(1_000_000_000 + ms)
    }

    #[test]
    fn a_fixed_window_begins_with_the_first_request() {
        let table = CounterTable::new(0);
        let key = table.key(1, b"a");
        let asked = EffectiveLimit { limit: 2, window_s: 10 };
        let take = |ms| take_fixed(&table, key, asked, CountedAmount::whole(1), at(ms));
        let verdict = |accepted, remaining, reset_ms| LimitDecision { accepted, remaining, reset_ms };
        assert_eq!(take(3_000), verdict(true, 1, 10_000));
        assert_eq!(take(4_000), verdict(true, 0, 9_000));
        assert_eq!(take(12_999), verdict(false, 0, 1));
        assert_eq!(take(13_000), verdict(true, 1, 10_000));
        assert_eq!(
            take_fixed(&table, table.key(1, b"b"), asked, CountedAmount::whole(1), at(13_000)),
            verdict(true, 1, 10_000)
        );
    }

    #[test]
    fn a_cost_is_accepted_only_if_all_of_it_is_left() {
        let (fixed, sliding) = (CounterTable::new(0), CounterTable::new(0));
        let (in_fixed, in_sliding) = (fixed.key(1, b"a"), sliding.key(1, b"a"));
        let asked = EffectiveLimit { limit: 10, window_s: 10 };
        for (cost, want) in [(11, (false, 10)), (7, (true, 3)), (4, (false, 3)), (u64::MAX, (false, 3)), (3, (true, 0))]
        {
            let cost = CountedAmount::whole(cost);
            let verdicts = [
                take_fixed(&fixed, in_fixed, asked, cost, at(3_000)),
                take_sliding(&sliding, in_sliding, asked, cost, at(3_000)),
            ];
            assert_eq!(verdicts.map(|verdict| (verdict.accepted, verdict.remaining)), [want; 2], "{cost:?}");
        }
    }

    #[test]
    fn an_amount_is_accepted_as_long_as_anything_is_left() {
        let (fixed, sliding) = (CounterTable::new(0), CounterTable::new(0));
        let (in_fixed, in_sliding) = (fixed.key(1, b"a"), sliding.key(1, b"a"));
        let asked = EffectiveLimit { limit: 10, window_s: 10 };
        for (amount, accepted) in [(4, true), (5, true), (100, true), (1, false), (0, false)] {
            assert_eq!(
                take_fixed(&fixed, in_fixed, asked, CountedAmount::any(amount), at(3_000)).accepted,
                accepted,
                "{amount}"
            );
            assert_eq!(
                take_sliding(&sliding, in_sliding, asked, CountedAmount::any(amount), at(3_000)).accepted,
                accepted,
                "{amount}"
            );
        }
        assert!(
            take_fixed(&fixed, in_fixed, asked, CountedAmount::any(u64::MAX), at(13_000)).accepted,
            "what cannot be counted is the most"
        );
        assert_eq!(fixed.read(in_fixed).count, MAX_COUNT);
    }

    #[test]
    fn a_sliding_window_counts_a_share_of_the_one_before() {
        let table = CounterTable::new(0);
        let key = table.key(1, b"a");
        let take =
            |ms| take_sliding(&table, key, EffectiveLimit { limit: 10, window_s: 10 }, CountedAmount::whole(1), at(ms));
        for left in (0..10).rev() {
            assert_eq!(take(4_000), LimitDecision { accepted: true, remaining: left, reset_ms: 6_000 });
        }
        assert!(!take(9_999).accepted);
        assert!(!take(10_000).accepted, "the whole of the last window still counts");
        assert_eq!(take(15_000), LimitDecision { accepted: true, remaining: 4, reset_ms: 5_000 });
        assert_eq!((0..10).filter(|_| take(15_000).accepted).count(), 4);
        assert_eq!(take(40_000), LimitDecision { accepted: true, remaining: 9, reset_ms: 10_000 });
    }

    #[test]
    fn p08_a_sliding_window_is_within_one_request_of_its_definition() {
        let mut state = 42_u64;
        let mut random = |below: u64| {
            // SplitMix64.
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut bits = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (bits ^ (bits >> 31)) % below
        };
        for (limit, window_s) in [(1, 1), (7, 3), (100, 10), (1_000, 60)] {
            let table = CounterTable::new(0);
            let key = table.key(1, b"a");
            let window_ms = window_s * 1_000;
            let mut passed: Vec<u64> = Vec::new();
            let mut now_ms = 1_000_000_000;
            for turn in 0..50_000 {
                // Bursts, a steady stream of about twice the limit, and pauses that windows pass in.
                now_ms += match turn % 1_000 {
                    0 => random(3 * window_ms),
                    1..400 => 0,
                    _ => random(window_ms / limit + 1),
                };
                let start_ms = now_ms / window_ms * window_ms;
                let within = |from: u64, to: u64| {
                    passed.partition_point(|&at| at < to) - passed.partition_point(|&at| at < from)
                };
                let share = (window_ms - (now_ms - start_ms)) as f64 / window_ms as f64;
                let counted = within(start_ms, u64::MAX) as f64 + within(start_ms - window_ms, start_ms) as f64 * share;
                let free = limit as f64 - counted;
                let verdict = take_sliding(
                    &table,
                    key,
                    EffectiveLimit { limit, window_s },
                    CountedAmount::whole(1),
                    Duration::from_millis(now_ms),
                );
                let at = format!("{limit} in {window_s} s, turn {turn}: {counted} counted");
                assert!(if verdict.accepted { free > 0.999 } else { free < 1.001 }, "{at}: {verdict:?}");
                if verdict.accepted {
                    assert!((free - 1.0 - verdict.remaining as f64).abs() <= 1.0, "{at}: {verdict:?}");
                    passed.push(now_ms);
                }
            }
            assert!(passed.len() > limit as usize, "some windows were used up");
        }
    }

    #[test]
    fn a_flood_of_keys_frees_no_key_that_has_reached_its_limit() {
        let (fixed, sliding) = (CounterTable::new(0), CounterTable::new(0));
        let asked = EffectiveLimit { limit: 2, window_s: 60 };
        let accepted = |name: u64, value: u64| {
            let (in_fixed, in_sliding) =
                (fixed.key(name, &value.to_le_bytes()), sliding.key(name, &value.to_le_bytes()));
            let fixed = take_fixed(&fixed, in_fixed, asked, CountedAmount::whole(1), at(1_000)).accepted;
            [fixed, take_sliding(&sliding, in_sliding, asked, CountedAmount::whole(1), at(1_000)).accepted]
        };
        assert_eq!([(); 3].map(|()| accepted(1, 0)), [[true; 2], [true; 2], [false; 2]]);
        // Many more than the table has cells.
        (0..100_000).for_each(|value| _ = accepted(2, value));
        assert_eq!(accepted(1, 0), [false; 2]);
    }

    #[test]
    fn exactly_as_many_as_the_limit_pass_from_all_threads() {
        let (fixed, sliding) = (CounterTable::new(0), CounterTable::new(0));
        let asked = EffectiveLimit { limit: 1_000, window_s: 60 };
        let (in_fixed, in_sliding) = (fixed.key(1, b"a"), sliding.key(1, b"a"));
        let passed: usize = std::thread::scope(|scope| {
            let work = || {
                let accepted = |turn: u64| {
                    let now = at(turn % 10);
                    let a = take_fixed(&fixed, in_fixed, asked, CountedAmount::whole(1), now).accepted;
                    let b = take_sliding(&sliding, in_sliding, asked, CountedAmount::whole(1), now).accepted;
                    usize::from(a) + usize::from(b)
                };
                (0..20_000).map(accepted).sum::<usize>()
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(work)).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
        });
        assert_eq!(passed, 2_000);
    }
}
