//! Histograms of times in nanoseconds, with three significant digits.

use std::borrow::Cow;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::serialization::{Deserializer, Serializer as _, V2DeflateSerializer, V2Serializer};
use serde::de::Error as _;
use serde::{Deserialize, Serialize};

/// The longest time a histogram holds; longer ones are recorded as this. One hour.
pub const LONGEST_NS: u64 = 3_600_000_000_000;

type Hdr = hdrhistogram::Histogram<u64>;

/// An HdrHistogram of times in ns: 1 ns to one hour, three significant digits.
///
/// Serialised as the base64 of HdrHistogram's compressed V2 form, which every HdrHistogram library reads.
#[derive(Clone)]
pub struct LatencyHistogram(HistogramForm);

/// A histogram in use has 270 KB of counters, nearly all of them zero. One that is only stored (a run stores three for
/// each interval) is packed into a few KB.
#[derive(Clone)]
enum HistogramForm {
    Counting(Hdr),
    /// In the V2 serialisation.
    Packed(Vec<u8>),
}

impl LatencyHistogram {
    pub fn new() -> Self {
        Self(HistogramForm::Counting(empty()))
    }

    /// Counts one time.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.counting().saturating_record(ns);
    }

    /// Adds all counts of `other`.
    pub fn add(&mut self, other: &Self) {
        let other = other.as_hdr();
        if !other.is_empty() {
            self.counting().add(&*other).expect("all histograms have the same bounds");
        }
    }

    /// Resets all counts, and keeps the memory.
    pub fn clear(&mut self) {
        match &mut self.0 {
            HistogramForm::Counting(hdr) => hdr.reset(),
            HistogramForm::Packed(_) => *self = Self::new(),
        }
    }

    /// The same histogram in its packed form. It is unpacked when something is added.
    pub fn packed(&self) -> Self {
        match &self.0 {
            HistogramForm::Packed(bytes) => Self(HistogramForm::Packed(bytes.clone())),
            HistogramForm::Counting(hdr) => {
                let mut bytes = Vec::new();
                V2Serializer::new().serialize(hdr, &mut bytes).expect("writing to memory does not fail");
                Self(HistogramForm::Packed(bytes))
            }
        }
    }

    /// The underlying histogram, for several queries at once, iteration and export.
    pub fn as_hdr(&self) -> Cow<'_, Hdr> {
        match &self.0 {
            HistogramForm::Counting(hdr) => Cow::Borrowed(hdr),
            HistogramForm::Packed(bytes) => {
                Cow::Owned(unpack(bytes).expect("it was packed here, or read before it was kept"))
            }
        }
    }

    /// How many times were recorded.
    pub fn count(&self) -> u64 {
        self.as_hdr().len()
    }

    pub fn is_empty(&self) -> bool {
        self.as_hdr().is_empty()
    }

    /// The time in ns within which this share (0.0 to 1.0) of the recorded times lies. 0 when empty.
    pub fn quantile(&self, share: f64) -> u64 {
        self.as_hdr().value_at_quantile(share)
    }

    /// Mean in ns. 0 when empty.
    pub fn mean(&self) -> f64 {
        let hdr = self.as_hdr();
        if hdr.is_empty() { 0.0 } else { hdr.mean() }
    }

    /// Standard deviation in ns. 0 when empty.
    pub fn deviation(&self) -> f64 {
        let hdr = self.as_hdr();
        if hdr.is_empty() { 0.0 } else { hdr.stdev() }
    }

    /// Shortest time in ns. 0 when empty.
    pub fn min(&self) -> u64 {
        let hdr = self.as_hdr();
        if hdr.is_empty() { 0 } else { hdr.min() }
    }

    /// Longest time in ns. 0 when empty.
    pub fn max(&self) -> u64 {
        self.as_hdr().max()
    }

    /// Share (0.0 to 1.0) of the recorded times at or below `ns`. 1.0 when empty.
    pub fn share_within(&self, ns: u64) -> f64 {
        let hdr = self.as_hdr();
        if hdr.is_empty() { 1.0 } else { hdr.quantile_below(ns) }
    }

    #[inline]
    fn counting(&mut self) -> &mut Hdr {
        if matches!(self.0, HistogramForm::Packed(_)) {
            self.0 = HistogramForm::Counting(self.as_hdr().into_owned());
        }
        match &mut self.0 {
            HistogramForm::Counting(hdr) => hdr,
            HistogramForm::Packed(_) => unreachable!("unpacked above"),
        }
    }
}

fn empty() -> Hdr {
    Hdr::new_with_bounds(1, LONGEST_NS, 3).expect("the bounds are constants and valid")
}

/// Reads the V2 form, compressed or not.
fn unpack(mut bytes: &[u8]) -> Result<Hdr, hdrhistogram::serialization::DeserializeError> {
    let read: Hdr = Deserializer::new().deserialize(&mut bytes)?;
    if (read.low(), read.high(), read.sigfig()) == (1, LONGEST_NS, 3) {
        return Ok(read);
    }
    // Histograms of other tools may have other bounds; converted to these, they can be added to the engine's own.
    let mut hdr = empty();
    for step in read.iter_recorded() {
        hdr.saturating_record_n(step.value_iterated_to(), step.count_at_value());
    }
    Ok(hdr)
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self::new()
    }
}

/// Prints a summary instead of thousands of counters.
impl fmt::Debug for LatencyHistogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hdr = self.as_hdr();
        write!(f, "Histogram({} times, median {} ns, max {} ns)", hdr.len(), hdr.value_at_quantile(0.5), hdr.max())
    }
}

impl PartialEq for LatencyHistogram {
    fn eq(&self, other: &Self) -> bool {
        *self.as_hdr() == *other.as_hdr()
    }
}

impl Serialize for LatencyHistogram {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut bytes = Vec::new();
        V2DeflateSerializer::new().serialize(&*self.as_hdr(), &mut bytes).map_err(serde::ser::Error::custom)?;
        serializer.serialize_str(&STANDARD.encode(bytes))
    }
}

impl<'de> Deserialize<'de> for LatencyHistogram {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = STANDARD.decode(String::deserialize(deserializer)?).map_err(D::Error::custom)?;
        let hdr = unpack(&bytes).map_err(D::Error::custom)?;
        Ok(Self(HistogramForm::Counting(hdr)).packed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survives_packing_and_serialisation() {
        let mut histogram = LatencyHistogram::new();
        for ns in [1, 999, 80_000, 1_000_000_007, LONGEST_NS * 2] {
            histogram.record(ns);
        }
        let text = serde_json::to_string(&histogram).expect("serialises");
        let back: LatencyHistogram = serde_json::from_str(&text).expect("reads its own form");
        assert_eq!(back, histogram);
        assert_eq!(histogram.packed(), histogram);
        let mut sum = back;
        sum.add(&histogram.packed());
        assert_eq!((sum.count(), sum.quantile(0.5)), (10, histogram.quantile(0.5)));
    }

    #[test]
    fn refuses_what_is_not_a_histogram() {
        for bad in ["\"\"", "\"AAAA\"", "\"%%\"", "7"] {
            assert!(serde_json::from_str::<LatencyHistogram>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_empty_one_has_no_surprises() {
        for histogram in [LatencyHistogram::new(), LatencyHistogram::new().packed()] {
            assert_eq!((histogram.quantile(0.99), histogram.min(), histogram.max()), (0, 0, 0));
            assert_eq!((histogram.mean(), histogram.share_within(1)), (0.0, 1.0));
        }
    }
}
