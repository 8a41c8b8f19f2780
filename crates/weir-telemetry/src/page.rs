//! The metrics of the process at one moment, in no particular format: `exposition` writes them as text, and the exporter of
//! OTLP sends them.

use std::borrow::Cow;

use crate::cell::{HistogramTotals, bucket_bound_ns};
use crate::exemplar::{BucketExemplars, Exemplar};

/// Labels of one series, as (name, value).
pub type Labels<'a> = &'a [(&'static str, &'a str)];

/// A set of metrics under construction. Samples belong to the family begun last.
#[derive(Debug, Default)]
pub struct Page {
    families: Vec<MetricFamily>,
}

/// All series of one name.
#[derive(Debug, PartialEq)]
pub struct MetricFamily {
    /// Counters have no `_total` here. A unit, in the plural, is at the end.
    pub name: &'static str,
    pub help: Cow<'static, str>,
    pub kind: MetricKind,
    pub samples: Vec<MetricSample>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// A number since the start of the process, which only grows.
    Counter,
    /// The same, for compatibility with gateways whose counters have no `_total` in the text formats.
    CounterWithoutTotal,
    Gauge,
    Histogram,
}

/// One series.
#[derive(Debug, PartialEq)]
pub struct MetricSample {
    pub labels: Vec<(&'static str, String)>,
    pub value: MetricValue,
}

#[derive(Debug, PartialEq)]
pub enum MetricValue {
    Integer(i64),
    Float(f64),
    Histogram(HistogramValue),
}

/// The values of a histogram, in the unit of its family.
#[derive(Debug, Default, PartialEq)]
pub struct HistogramValue {
    /// In the order of their bounds; the bound of the last one is infinite.
    pub buckets: Vec<HistogramBucket>,
    pub sum: f64,
}

#[derive(Debug, PartialEq)]
pub struct HistogramBucket {
    /// Inclusive.
    pub bound: f64,
    /// Not cumulative.
    pub count: u64,
    /// A recent observation in this bucket that belongs to a trace. Its value is in nanoseconds.
    pub exemplar: Option<Exemplar>,
}

macro_rules! integers {
    ($($kind:ty),*) => {
        $(impl From<$kind> for MetricValue {
            fn from(value: $kind) -> MetricValue {
                MetricValue::Integer(value as i64)
            }
        })*
    };
}

// Numbers above 2^63 do not occur.
integers!(u8, u16, u32, u64, usize, i32, i64);

impl<T: Copy + Into<MetricValue>> From<&T> for MetricValue {
    fn from(value: &T) -> MetricValue {
        (*value).into()
    }
}

impl From<f64> for MetricValue {
    fn from(value: f64) -> MetricValue {
        MetricValue::Float(value)
    }
}

/// The number of buckets a histogram is shown with. Its cells always have all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolution {
    /// Every bucket.
    Full,
    /// One bucket per factor of four from 0.5 ms to 8.6 s: enough to see changes of a route, with few series.
    Coarse,
}

impl Resolution {
    fn shows(self, bucket: usize) -> bool {
        // The bound of an even bucket n is 2^(13 + n/2) ns.
        self == Resolution::Full || (bucket.is_multiple_of(4) && (12..=40).contains(&bucket))
    }
}

impl Page {
    /// Begins a counter. `name` is without `_total`.
    pub fn counter(&mut self, name: &'static str, help: impl Into<Cow<'static, str>>) -> &mut Self {
        self.begin(name, MetricKind::Counter, help)
    }

    /// Begins a counter that has no `_total` in the text formats. OpenMetrics has no such counters.
    pub fn counter_without_total(&mut self, name: &'static str, help: impl Into<Cow<'static, str>>) -> &mut Self {
        self.begin(name, MetricKind::CounterWithoutTotal, help)
    }

    pub fn gauge(&mut self, name: &'static str, help: impl Into<Cow<'static, str>>) -> &mut Self {
        self.begin(name, MetricKind::Gauge, help)
    }

    pub fn histogram(&mut self, name: &'static str, help: impl Into<Cow<'static, str>>) -> &mut Self {
        self.begin(name, MetricKind::Histogram, help)
    }

    fn begin(&mut self, name: &'static str, kind: MetricKind, help: impl Into<Cow<'static, str>>) -> &mut Self {
        self.families.push(MetricFamily { name, help: help.into(), kind, samples: Vec::new() });
        self
    }

    /// Adds one series of a gauge, or of a counter without `_total`.
    pub fn value(&mut self, labels: Labels<'_>, value: impl Into<MetricValue>) -> &mut Self {
        let labels = labels.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        let family = self.families.last_mut().expect("a family was begun");
        family.samples.push(MetricSample { labels, value: value.into() });
        self
    }

    /// Adds one series of a counter.
    pub fn total(&mut self, labels: Labels<'_>, value: impl Into<MetricValue>) -> &mut Self {
        self.value(labels, value)
    }

    /// Adds one histogram of durations, with bounds in seconds.
    pub fn distribution(&mut self, labels: Labels<'_>, totals: &HistogramTotals, resolution: Resolution) -> &mut Self {
        self.exemplified(labels, totals, &BucketExemplars::default(), resolution)
    }

    /// The same for a histogram with exemplars.
    pub fn exemplified(
        &mut self,
        labels: Labels<'_>,
        totals: &HistogramTotals,
        exemplars: &BucketExemplars,
        resolution: Resolution,
    ) -> &mut Self {
        let (mut buckets, mut count, mut latest) = (Vec::new(), 0_u64, None::<Exemplar>);
        for (bucket, more) in totals.buckets.iter().enumerate() {
            count += more;
            let exemplar = exemplars.get(bucket).filter(|_| *more > 0);
            latest = latest.into_iter().chain(exemplar).max_by_key(|exemplar| exemplar.unix_ms);
            let bound = match bucket_bound_ns(bucket) {
                Some(bound) if resolution.shows(bucket) => bound as f64 / 1e9,
                Some(_) => continue,
                None => f64::INFINITY,
            };
            buckets.push(HistogramBucket { bound, count: std::mem::take(&mut count), exemplar: latest.take() });
        }
        self.value(labels, MetricValue::Histogram(HistogramValue { buckets, sum: totals.sum_seconds() }))
    }

    /// Adds one histogram with its own bounds: the counts of each bucket, and of the one above the last bound.
    pub fn counts(&mut self, labels: Labels<'_>, bounds: &[u32], counts: &[u64], sum: f64) -> &mut Self {
        let bounds = bounds.iter().map(|bound| f64::from(*bound)).chain([f64::INFINITY]);
        let buckets = bounds.zip(counts).map(|(bound, count)| HistogramBucket { bound, count: *count, exemplar: None });
        self.value(labels, MetricValue::Histogram(HistogramValue { buckets: buckets.collect(), sum }))
    }

    pub fn families(&self) -> &[MetricFamily] {
        &self.families
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::Histogram;
    use crate::exemplar::{Exemplars, SampledTrace};

    #[test]
    fn a_coarse_bucket_has_the_latest_exemplar_of_its_parts() {
        let (histogram, exemplars) = (Histogram::default(), Exemplars::default());
        let mut totals = HistogramTotals::default();
        for (ns, unix_ms) in [(600_000, 30), (1_000_000, 40), (1_600_000, 20), (3_000_000_000, 10)] {
            histogram.record_ns(ns);
            exemplars.record(ns, SampledTrace { trace: 1, span: 2 }, unix_ms);
        }
        histogram.add_to(&mut totals);
        let mut collected = BucketExemplars::default();
        exemplars.add_to(&mut collected, 0);
        let mut page = Page::default();
        page.histogram("a_seconds", "A.").exemplified(&[], &totals, &collected, Resolution::Coarse);
        let MetricValue::Histogram(value) = &page.families()[0].samples[0].value else { panic!("a histogram") };
        let shown: Vec<_> =
            value.buckets.iter().map(|bucket| (bucket.count, bucket.exemplar.map(|it| it.unix_ms))).collect();
        let none = (0, None);
        assert_eq!(shown, [none, (3, Some(40)), none, none, none, none, none, (1, Some(10)), none]);
    }
}
