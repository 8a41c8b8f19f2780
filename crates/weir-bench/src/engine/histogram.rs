//! Histograms of times in nanoseconds, with three significant digits.

use std::borrow::Cow;
use std::fmt;
use std::io::Read as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::read::ZlibDecoder;
use hdrhistogram::serialization::{Deserializer, Serializer as _, V2DeflateSerializer, V2Serializer};
use serde::de::Error as _;
use serde::{Deserialize, Serialize};

/// The longest time a histogram holds; longer ones are recorded as this. One hour.
pub const LONGEST_NS: u64 = 3_600_000_000_000;

/// The most significant digits of a histogram that is read. With them, the largest one has less than 0.5 MB of counters.
const MOST_DIGITS: u8 = 3;
/// The most bytes of a V2 serialisation: those of the longest one with this many digits are fewer.
const MOST_SERIALISED: usize = 1 << 20;
/// The bytes before the counters in a V2 serialisation.
const HEADER: usize = 40;
/// How a compressed V2 serialisation begins.
const COMPRESSED: [u8; 4] = 0x1c84_9314_u32.to_be_bytes();

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
    /// In the V2 serialisation, compressed if it was read like that: a file takes no more memory than it is long.
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

    /// Like [`LatencyHistogram::quantile`]; none when empty.
    pub(crate) fn quantile_if_any(&self, share: f64) -> Option<u64> {
        (!self.is_empty()).then(|| self.quantile(share))
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

/// Reads the V2 form, compressed or not. The lengths and bounds that it states are checked before memory is taken for them.
fn unpack(bytes: &[u8]) -> Result<Hdr, String> {
    let plain = match bytes.strip_prefix(&COMPRESSED) {
        None => Cow::Borrowed(bytes),
        // After the length of what follows.
        Some(rest) => {
            let mut plain = Vec::new();
            let compressed = ZlibDecoder::new(rest.get(4..).unwrap_or_default());
            compressed.take(MOST_SERIALISED as u64 + 1).read_to_end(&mut plain).map_err(|error| error.to_string())?;
            Cow::Owned(plain)
        }
    };
    let number =
        |at: usize| plain.get(at..at + 4).map(|four| four.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)));
    let (Some(length), Some(digits)) = (number(4), number(12)) else {
        return Err("a histogram is too short".to_owned());
    };
    if plain.len() > MOST_SERIALISED || length > plain.len().saturating_sub(HEADER) {
        return Err("a histogram is too large, or shorter than it says".to_owned());
    }
    if digits > usize::from(MOST_DIGITS) {
        return Err(format!("a histogram has more than {MOST_DIGITS} significant digits"));
    }
    let read: Hdr = Deserializer::new().deserialize(&mut &*plain).map_err(|error| error.to_string())?;
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
        unpack(&bytes).map_err(D::Error::custom)?;
        Ok(Self(HistogramForm::Packed(bytes)))
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

    /// Histograms that state more than they have, and ones that take more memory than any of the lab.
    #[test]
    fn lengths_and_bounds_are_checked_before_memory_is_taken() {
        let stated = |length: u32, digits: u32, counters: &[u8]| {
            let mut bytes = 0x1c84_9313_u32.to_be_bytes().to_vec();
            bytes.extend([length, 0, digits].iter().flat_map(|number| number.to_be_bytes()));
            bytes.extend([1, LONGEST_NS].iter().flat_map(|number| number.to_be_bytes()));
            bytes.extend(1.0_f64.to_be_bytes());
            bytes.extend(counters);
            bytes
        };
        let compressed = |plain: &[u8]| {
            let mut packed = Vec::new();
            flate2::read::ZlibEncoder::new(plain, flate2::Compression::best())
                .read_to_end(&mut packed)
                .expect("in memory");
            let length = u32::try_from(packed.len()).expect("it is small");
            [&COMPRESSED[..], &length.to_be_bytes(), &packed].concat()
        };
        let fault = |bytes: &[u8]| unpack(bytes).map(|hdr| hdr.len());
        assert_eq!(fault(&stated(1, 3, &[2])), Ok(1), "one time of 1 ns or less");
        assert_eq!(fault(&compressed(&stated(1, 3, &[2]))), Ok(1));
        for bytes in [stated(u32::MAX, 3, &[2]), compressed(&stated(u32::MAX, 3, &[2]))] {
            assert!(fault(&bytes).is_err_and(|error| error.contains("shorter than it says")));
        }
        let zeros = vec![0; MOST_SERIALISED + 1];
        let large = compressed(&stated(u32::try_from(zeros.len()).expect("1 MiB"), 3, &zeros));
        assert!(large.len() < 4_000 && fault(&large).is_err_and(|error| error.contains("too large")));
        assert!(fault(&stated(1, 5, &[2])).is_err_and(|error| error.contains("significant digits")));
    }

    /// A file of many histograms takes no more memory than it is long.
    #[test]
    fn histograms_that_are_read_stay_compressed() {
        let mut histogram = LatencyHistogram::new();
        (1..=2_000).for_each(|ns| histogram.record(ns));
        let text = serde_json::to_string(&histogram).expect("serialises");
        let read: LatencyHistogram = serde_json::from_str(&text).expect("reads its own form");
        assert!(matches!(&read.0, HistogramForm::Packed(bytes) if bytes.len() < text.len()));
        assert_eq!(read, histogram);
    }

    #[test]
    fn an_empty_one_has_no_surprises() {
        for histogram in [LatencyHistogram::new(), LatencyHistogram::new().packed()] {
            assert_eq!((histogram.quantile(0.99), histogram.min(), histogram.max()), (0, 0, 0));
            assert_eq!((histogram.mean(), histogram.share_within(1)), (0.0, 1.0));
        }
    }
}
