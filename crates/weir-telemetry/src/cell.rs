//! Numbers with one writer and any number of readers.
//!
//! A worker is the only writer of its cells, so an update is a plain load and store: no lock, no atomic read-modify-write, no
//! cache line bouncing between cores. Readers may see a slightly old value, never a torn one. Two threads writing the same cell
//! would lose counts; numbers with several writers need an ordinary atomic.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A number that only grows (and wraps at 2^64).
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub fn add(&self, amount: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(amount), Relaxed);
    }

    #[inline]
    pub fn increment(&self) {
        self.add(1);
    }

    pub fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A number that goes up and down.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    #[inline]
    pub fn increment(&self) {
        self.set(self.value().wrapping_add(1));
    }

    #[inline]
    pub fn decrement(&self) {
        self.set(self.value().wrapping_sub(1));
    }

    #[inline]
    pub fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The upper bound of the first bucket is 2^13 ns = 8.192 µs.
const FIRST_BOUND_LOG2: u32 = 13;
/// The last finite bound is 2^36 ns = 68.7 s, since typical time-outs of a gateway are a minute.
const LAST_BOUND_LOG2: u32 = 36;
/// Two buckets per doubling, and one for values above the last bound.
pub const BUCKETS: usize = ((LAST_BOUND_LOG2 - FIRST_BOUND_LOG2) * 2 + 2) as usize;

/// A histogram of durations: the bounds of its buckets grow by factors of 1.5 and 1.33 in turn, from 8.192 µs to 68.7 s.
///
/// The bounds are fixed, so that histograms of all workers, nodes and releases can be added, and finding a bucket takes a
/// handful of instructions instead of a search.
#[derive(Debug)]
pub struct Histogram {
    buckets: [Counter; BUCKETS],
    sum_ns: Counter,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: [const { Counter(AtomicU64::new(0)) }; BUCKETS], sum_ns: Counter::default() }
    }
}

impl Histogram {
    #[inline]
    pub fn record(&self, duration: Duration) {
        self.record_ns(duration.as_secs() * 1_000_000_000 + u64::from(duration.subsec_nanos()));
    }

    #[inline]
    pub fn record_ns(&self, ns: u64) {
        self.buckets[bucket_of(ns)].increment();
        self.sum_ns.add(ns);
    }

    /// Adds this histogram's counts to `totals`.
    pub fn add_to(&self, totals: &mut HistogramTotals) {
        for (total, bucket) in totals.buckets.iter_mut().zip(&self.buckets) {
            *total = total.wrapping_add(bucket.value());
        }
        totals.sum_ns = totals.sum_ns.wrapping_add(self.sum_ns.value());
    }
}

/// The bucket of a duration. Bounds are inclusive upper bounds, as Prometheus' `le`.
#[inline]
pub(crate) fn bucket_of(ns: u64) -> usize {
    let scaled = (ns.saturating_sub(1) >> (FIRST_BOUND_LOG2 - 1)).max(1);
    let octave = 63 - scaled.leading_zeros();
    // The bit below the highest one selects the half of the octave; the first bucket is not halved.
    let half = ((scaled << 1) >> octave) & 1;
    ((u64::from(octave) * 2 + half).saturating_sub(1) as usize).min(BUCKETS - 1)
}

/// The inclusive upper bound of a bucket in nanoseconds; `None` for the last one, which has no bound.
pub fn bucket_bound_ns(bucket: usize) -> Option<u64> {
    if bucket >= BUCKETS - 1 {
        return None;
    }
    let octave = 1u64 << (FIRST_BOUND_LOG2 + bucket as u32 / 2);
    Some(if bucket.is_multiple_of(2) { octave } else { octave / 2 * 3 })
}

/// The sum of histograms, for a scrape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistogramTotals {
    /// Observations in each bucket, not cumulative.
    pub buckets: [u64; BUCKETS],
    pub sum_ns: u64,
}

impl Default for HistogramTotals {
    fn default() -> Self {
        Self { buckets: [0; BUCKETS], sum_ns: 0 }
    }
}

impl HistogramTotals {
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    pub fn sum_seconds(&self) -> f64 {
        self.sum_ns as f64 / 1e9
    }

    /// The observations since an earlier reading of the same histograms.
    pub fn since(&self, before: &HistogramTotals) -> HistogramTotals {
        let buckets = std::array::from_fn(|bucket| self.buckets[bucket].saturating_sub(before.buckets[bucket]));
        HistogramTotals { buckets, sum_ns: self.sum_ns.saturating_sub(before.sum_ns) }
    }

    /// The value that a part of the observations, such as 0.99, does not exceed, in nanoseconds; `None` without observations. Within
    /// a bucket, observations count as evenly spread.
    pub fn quantile_ns(&self, part: f64) -> Option<f64> {
        let wanted = self.count() as f64 * part;
        let mut below = 0.0;
        let (bucket, count) = self.buckets.iter().enumerate().find_map(|(bucket, count)| {
            let is_in = *count > 0 && below + *count as f64 >= wanted;
            if !is_in {
                below += *count as f64;
            }
            is_in.then_some((bucket, *count as f64))
        })?;
        let low = bucket.checked_sub(1).and_then(bucket_bound_ns).unwrap_or_default() as f64;
        // The last bucket has no bound of its own.
        let high = bucket_bound_ns(bucket).map_or(low, |bound| bound as f64);
        Some(low + (high - low) * ((wanted - below) / count).clamp(0.0, 1.0))
    }
}

/// Counters by status class; the last one counts statuses without a valid class.
#[derive(Debug, Default)]
pub struct ByClass([Counter; 6]);

impl ByClass {
    pub const LABELS: [&'static str; 6] = ["1xx", "2xx", "3xx", "4xx", "5xx", "other"];

    #[inline]
    pub fn increment(&self, status: u16) {
        let class = usize::from(status / 100).wrapping_sub(1).min(5);
        self.0[class].increment();
    }

    /// In the order of [`ByClass::LABELS`].
    pub fn values(&self) -> [u64; 6] {
        std::array::from_fn(|class| self.0[class].value())
    }
}

/// Counters by status; the last one counts values that are not a status.
#[derive(Debug)]
pub struct ByStatus([Counter; 501]);

impl Default for ByStatus {
    fn default() -> Self {
        Self([const { Counter(AtomicU64::new(0)) }; 501])
    }
}

impl ByStatus {
    /// Stands for a value that is not a status.
    pub const INVALID: u16 = 600;

    #[inline]
    pub fn increment(&self, status: u16) {
        self.0[usize::from(status.wrapping_sub(100)).min(500)].increment();
    }

    /// The statuses that have occurred, and how often.
    pub fn values(&self) -> impl Iterator<Item = (u16, u64)> {
        let all = (100..=Self::INVALID).zip(&self.0).map(|(status, counter)| (status, counter.value()));
        all.filter(|(_, count)| *count > 0)
    }

    /// In the order of [`ByClass::LABELS`].
    pub fn by_class(&self) -> [u64; 6] {
        let mut classes = [0; 6];
        self.values().for_each(|(status, count)| classes[usize::from(status / 100 - 1)] += count);
        classes
    }
}

/// Counters by a keyword of the program, such as the cause that ended an exchange early. Keywords are found by a linear search
/// among those that have occurred, so this is for failures, not for every request.
#[derive(Debug)]
pub struct ByWord {
    words: [OnceLock<&'static str>; ByWord::LIMIT],
    counts: [Counter; ByWord::LIMIT],
}

impl Default for ByWord {
    fn default() -> Self {
        Self { words: [const { OnceLock::new() }; Self::LIMIT], counts: std::array::from_fn(|_| Counter::default()) }
    }
}

impl ByWord {
    /// The most separate keywords. All later ones share the last place, so that a mistake cannot add series without limit.
    pub(crate) const LIMIT: usize = 64;
    const LATER: &'static str = "other";

    pub fn increment(&self, word: &'static str) {
        let last = Self::LIMIT - 1;
        let place = self.words[..last].iter().position(|known| *known.get_or_init(|| word) == word);
        let place = place.unwrap_or_else(|| {
            self.words[last].get_or_init(|| Self::LATER);
            last
        });
        self.counts[place].increment();
    }

    /// The keywords that have occurred, with their counts.
    pub fn values(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let words = self.words.iter().map_while(|word| word.get().copied());
        words.zip(self.counts.iter().map(Counter::value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bound_belongs_to_its_own_bucket_and_the_next_nanosecond_to_the_next() {
        for bucket in 0..BUCKETS - 1 {
            let bound = bucket_bound_ns(bucket).expect("all but the last bucket are bounded");
            assert_eq!(bucket_of(bound), bucket, "{bound} ns");
            assert_eq!(bucket_of(bound + 1), bucket + 1, "{} ns", bound + 1);
        }
    }

    #[test]
    fn the_ends_of_the_scale_have_a_bucket() {
        assert_eq!(bucket_of(0), 0);
        assert_eq!(bucket_of(1), 0);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
        assert_eq!(bucket_bound_ns(0), Some(8_192));
        assert_eq!(bucket_bound_ns(BUCKETS - 2), Some(1 << LAST_BOUND_LOG2));
        assert_eq!(bucket_bound_ns(BUCKETS - 1), None);
    }

    #[test]
    fn a_histogram_counts_and_sums_what_it_was_given() {
        let histogram = Histogram::default();
        histogram.record(Duration::from_micros(5));
        histogram.record(Duration::from_millis(3));
        histogram.record(Duration::from_secs(100));
        let mut totals = HistogramTotals::default();
        histogram.add_to(&mut totals);
        histogram.add_to(&mut totals);
        assert_eq!(totals.count(), 6);
        assert_eq!(totals.sum_ns, 2 * (5_000 + 3_000_000 + 100_000_000_000));
        assert_eq!(totals.buckets[0], 2);
        assert_eq!(totals.buckets[BUCKETS - 1], 2);
    }
}
