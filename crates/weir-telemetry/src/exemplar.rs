//! Exemplars: for each bucket of a histogram, a recent observation that belongs to a sampled trace.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

use crate::cell::{BUCKETS, bucket_of};

/// The trace and the span of a sampled exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampledTrace {
    pub trace: u128,
    pub span: u64,
}

/// An observation of a histogram that belongs to a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exemplar {
    pub trace: SampledTrace,
    pub value_ns: u64,
    /// When it was observed, in milliseconds since 1970.
    pub unix_ms: u64,
}

/// The latest exemplar of one bucket. A sequence lock: one thread writes, any number of threads read, and neither waits.
#[derive(Debug, Default)]
struct ExemplarCell {
    /// Odd while the fields are written, 0 before the first exemplar.
    version: AtomicU64,
    fields: [AtomicU64; 5],
}

impl ExemplarCell {
    fn write(&self, exemplar: &Exemplar) {
        let Exemplar { trace: SampledTrace { trace, span }, value_ns, unix_ms } = *exemplar;
        let version = self.version.load(Relaxed);
        self.version.store(version.wrapping_add(1), Relaxed);
        // No field is written before a reader can see that the version is odd.
        fence(Release);
        for (field, value) in self.fields.iter().zip([(trace >> 64) as u64, trace as u64, span, value_ns, unix_ms]) {
            field.store(value, Relaxed);
        }
        self.version.store(version.wrapping_add(2), Release);
    }

    /// `None` if there is none, or if it is being replaced just now.
    fn read(&self) -> Option<Exemplar> {
        let version = self.version.load(Acquire);
        let [high, low, span, value_ns, unix_ms] = std::array::from_fn(|field| self.fields[field].load(Relaxed));
        // The fields are read before the version is read again.
        fence(Acquire);
        let is_whole = version != 0 && version.is_multiple_of(2) && self.version.load(Relaxed) == version;
        let trace = u128::from(high) << 64 | u128::from(low);
        is_whole.then_some(Exemplar { trace: SampledTrace { trace, span }, value_ns, unix_ms })
    }
}

/// The exemplars of one histogram of one worker. Only that worker's thread may write them. Allocated with the first one, since
/// most histograms never have any.
#[derive(Debug, Default)]
pub struct Exemplars(OnceLock<Box<[ExemplarCell]>>);

impl Exemplars {
    /// Replaces the exemplar of the bucket of this duration.
    pub fn record(&self, value_ns: u64, trace: SampledTrace, unix_ms: u64) {
        let cells = self.0.get_or_init(|| (0..BUCKETS).map(|_| ExemplarCell::default()).collect());
        cells[bucket_of(value_ns)].write(&Exemplar { trace, value_ns, unix_ms });
    }

    /// Adds those observed at or after `since_unix_ms` to `latest`, where they replace earlier ones.
    pub fn add_to(&self, latest: &mut BucketExemplars, since_unix_ms: u64) {
        let Some(cells) = self.0.get() else { return };
        for (bucket, exemplar) in cells.iter().enumerate().filter_map(|(bucket, cell)| Some((bucket, cell.read()?))) {
            let is_latest = latest.get(bucket).is_none_or(|other| other.unix_ms < exemplar.unix_ms);
            if exemplar.unix_ms >= since_unix_ms && is_latest {
                latest.set(bucket, exemplar);
            }
        }
    }
}

/// The latest exemplar of each bucket, over all workers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BucketExemplars(Vec<Option<Exemplar>>);

impl BucketExemplars {
    pub fn get(&self, bucket: usize) -> Option<Exemplar> {
        self.0.get(bucket).copied().flatten()
    }

    fn set(&mut self, bucket: usize, exemplar: Exemplar) {
        self.0.resize(BUCKETS, None);
        self.0[bucket] = Some(exemplar);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_never_sees_parts_of_two_exemplars() {
        let exemplars = Exemplars::default();
        let written = |number: u64| SampledTrace { trace: u128::from(number) << 64 | u128::from(number), span: number };
        exemplars.record(1, written(1), 1);
        std::thread::scope(|scope| {
            scope.spawn(|| (2..200_000).for_each(|number| exemplars.record(1, written(number), number)));
            let mut last = 0;
            while last < 199_999 {
                let mut latest = BucketExemplars::default();
                exemplars.add_to(&mut latest, 0);
                let Some(exemplar) = latest.get(0) else { continue };
                assert_eq!((exemplar.trace, exemplar.value_ns), (written(exemplar.unix_ms), 1));
                assert!(exemplar.unix_ms >= last, "it does not go back");
                last = exemplar.unix_ms;
            }
        });
    }

    #[test]
    fn the_latest_of_all_workers_is_shown_and_none_of_an_earlier_owner() {
        let workers = [Exemplars::default(), Exemplars::default()];
        let trace = |span| SampledTrace { trace: 7, span };
        workers[0].record(1, trace(1), 20);
        workers[1].record(1, trace(2), 10);
        workers[1].record(u64::MAX, trace(3), 10);
        let latest = |since| {
            let mut latest = BucketExemplars::default();
            workers.iter().for_each(|worker| worker.add_to(&mut latest, since));
            [latest.get(0), latest.get(BUCKETS - 1)].map(|exemplar| exemplar.map(|exemplar| exemplar.trace.span))
        };
        assert_eq!(latest(0), [Some(1), Some(3)]);
        assert_eq!(latest(15), [Some(1), None]);
        assert_eq!(latest(21), [None, None]);
    }
}
