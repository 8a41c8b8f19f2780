//! Times in nanoseconds, with three significant digits.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::serialization::{Deserializer, Serializer as _, V2DeflateSerializer};
use serde::de::Error as _;
use serde::{Deserialize, Serialize};

/// The longest time a histogram holds; longer ones are recorded as this. One hour.
pub const LONGEST_NS: u64 = 3_600_000_000_000;

/// An HdrHistogram of times in ns: 1 ns to one hour, three significant digits.
///
/// Serialised as the base64 of HdrHistogram's compressed V2 form, which every HdrHistogram library reads.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram(hdrhistogram::Histogram<u64>);

impl Histogram {
    pub fn new() -> Self {
        Self(hdrhistogram::Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("the bounds are constants and valid"))
    }

    /// Counts one time.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.0.saturating_record(ns);
    }

    /// Adds all counts of `other`.
    pub fn add(&mut self, other: &Self) {
        self.0.add(&other.0).expect("all histograms have the same bounds");
    }

    /// Forgets all counts and keeps the memory.
    pub fn clear(&mut self) {
        self.0.reset();
    }

    /// How many times were recorded.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The time within which this share (0.0 to 1.0) of all fell, in ns. 0 when empty.
    pub fn quantile(&self, share: f64) -> u64 {
        self.0.value_at_quantile(share)
    }

    /// Mean in ns. 0 when empty.
    pub fn mean(&self) -> f64 {
        if self.0.is_empty() { 0.0 } else { self.0.mean() }
    }

    /// Standard deviation in ns. 0 when empty.
    pub fn deviation(&self) -> f64 {
        if self.0.is_empty() { 0.0 } else { self.0.stdev() }
    }

    pub fn min(&self) -> u64 {
        self.0.min()
    }

    pub fn max(&self) -> u64 {
        self.0.max()
    }

    /// Share (0.0 to 1.0) of the recorded times at or below `ns`. 1.0 when empty.
    pub fn share_within(&self, ns: u64) -> f64 {
        if self.0.is_empty() { 1.0 } else { self.0.quantile_below(ns) }
    }

    /// The histogram itself, for iteration and for export.
    pub fn as_hdr(&self) -> &hdrhistogram::Histogram<u64> {
        &self.0
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl Serialize for Histogram {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut bytes = Vec::new();
        V2DeflateSerializer::new().serialize(&self.0, &mut bytes).map_err(serde::ser::Error::custom)?;
        serializer.serialize_str(&STANDARD.encode(bytes))
    }
}

impl<'de> Deserialize<'de> for Histogram {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = STANDARD.decode(text).map_err(D::Error::custom)?;
        let read: hdrhistogram::Histogram<u64> =
            Deserializer::new().deserialize(&mut bytes.as_slice()).map_err(D::Error::custom)?;
        // Histograms of other tools may have other bounds: re-recording makes all of ours addable.
        let mut histogram = Self::new();
        for step in read.iter_recorded() {
            histogram.0.saturating_record_n(step.value_iterated_to(), step.count_at_value());
        }
        Ok(histogram)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survives_serialisation() {
        let mut histogram = Histogram::new();
        for ns in [1, 999, 80_000, 1_000_000_007, LONGEST_NS * 2] {
            histogram.record(ns);
        }
        let text = serde_json::to_string(&histogram).expect("serialises");
        let back: Histogram = serde_json::from_str(&text).expect("reads its own form");
        assert_eq!(back.count(), 5);
        for share in [0.1, 0.5, 0.9, 1.0] {
            assert_eq!(back.quantile(share), histogram.quantile(share));
        }
    }

    #[test]
    fn refuses_what_is_not_a_histogram() {
        for bad in ["\"\"", "\"AAAA\"", "\"%%\"", "7"] {
            assert!(serde_json::from_str::<Histogram>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_empty_one_has_no_surprises() {
        let histogram = Histogram::new();
        assert_eq!((histogram.quantile(0.99), histogram.max(), histogram.mean()), (0, 0, 0.0));
        assert_eq!(histogram.share_within(1), 1.0);
    }
}
