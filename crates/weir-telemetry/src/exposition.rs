//! The Prometheus text format 0.0.4, or OpenMetrics 1.0 if the scraper accepts it.

use std::fmt::{self, Display, Write};

use crate::cell::{HistogramTotals, bucket_bound_ns};

/// The text formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Prometheus,
    OpenMetrics,
}

impl Format {
    /// The format for a scraper's `Accept` field.
    pub fn for_accept(accept: Option<&str>) -> Self {
        match accept {
            Some(accept) if accept.contains("application/openmetrics-text") => Format::OpenMetrics,
            _ => Format::Prometheus,
        }
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Labels of one series, as (name, value).
pub type Labels<'a> = &'a [(&'a str, &'a str)];

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

/// A metrics page under construction. Samples belong to the family begun last.
pub struct Page {
    text: String,
    format: Format,
    family: &'static str,
}

/// The bound of the last bucket.
const ABOVE: &str = "+Inf";

impl Page {
    pub fn new(format: Format) -> Self {
        Self { text: String::with_capacity(64 * 1024), format, family: "" }
    }

    /// Begins a counter. `name` is without `_total`, which is appended to its samples.
    pub fn counter(&mut self, name: &'static str, help: &str) -> &mut Self {
        let declared_as = match self.format {
            Format::Prometheus => "_total",
            Format::OpenMetrics => "",
        };
        self.begin(name, declared_as, "counter", help)
    }

    /// Begins a counter whose samples have no `_total` and are written with [`Page::value`], for compatibility with other
    /// gateways. OpenMetrics has no such counters.
    pub fn counter_without_total(&mut self, name: &'static str, help: &str) -> &mut Self {
        let kind = match self.format {
            Format::Prometheus => "counter",
            Format::OpenMetrics => "unknown",
        };
        self.begin(name, "", kind, help)
    }

    pub fn gauge(&mut self, name: &'static str, help: &str) -> &mut Self {
        self.begin(name, "", "gauge", help)
    }

    pub fn histogram(&mut self, name: &'static str, help: &str) -> &mut Self {
        self.begin(name, "", "histogram", help)
    }

    fn begin(&mut self, name: &'static str, suffix: &str, kind: &str, help: &str) -> &mut Self {
        self.family = name;
        self.write(format_args!("# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {kind}\n"));
        self
    }

    /// Writes one sample of a counter.
    pub fn total(&mut self, labels: Labels, value: impl Display) -> &mut Self {
        self.sample("_total", labels, None, value)
    }

    /// Writes one sample of a gauge.
    pub fn value(&mut self, labels: Labels, value: impl Display) -> &mut Self {
        self.sample("", labels, None, value)
    }

    /// Writes all samples of one histogram, with bounds in seconds.
    pub fn distribution(&mut self, labels: Labels, totals: &HistogramTotals, resolution: Resolution) -> &mut Self {
        let buckets = totals.buckets.iter().enumerate().map(|(bucket, count)| {
            let bound = match bucket_bound_ns(bucket) {
                Some(bound) => resolution.shows(bucket).then(|| (bound as f64 / 1e9).to_string()),
                None => Some(ABOVE.to_owned()),
            };
            (*count, bound)
        });
        self.buckets(labels, buckets, totals.sum_seconds())
    }

    /// Writes all samples of one histogram with its own bounds: the counts of each bucket, and of the one above the last bound.
    pub fn counts(&mut self, labels: Labels, bounds: &[u32], counts: &[u64], sum: impl Display) -> &mut Self {
        let bounds = bounds.iter().map(u32::to_string).chain([ABOVE.to_owned()]);
        self.buckets(labels, counts.iter().copied().zip(bounds.map(Some)), sum)
    }

    /// Writes buckets, given their counts and, if shown, their bounds.
    fn buckets(
        &mut self,
        labels: Labels,
        buckets: impl Iterator<Item = (u64, Option<String>)>,
        sum: impl Display,
    ) -> &mut Self {
        let mut cumulative = 0;
        for (count, bound) in buckets {
            cumulative += count;
            if let Some(bound) = bound {
                self.sample("_bucket", labels, Some(("le", &bound)), cumulative);
            }
        }
        self.sample("_sum", labels, None, sum);
        self.sample("_count", labels, None, cumulative)
    }

    fn sample(&mut self, suffix: &str, labels: Labels, last: Option<(&str, &str)>, value: impl Display) -> &mut Self {
        let family = self.family;
        self.write(format_args!("{family}{suffix}"));
        let mut separator = '{';
        for (name, value) in labels.iter().copied().chain(last) {
            self.write(format_args!("{separator}{name}=\"{}\"", LabelValue(value)));
            separator = ',';
        }
        if separator == ',' {
            self.text.push('}');
        }
        self.write(format_args!(" {value}\n"));
        self
    }

    /// Completes the page.
    pub fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }

    fn write(&mut self, arguments: fmt::Arguments) {
        self.text.write_fmt(arguments).expect("a String takes everything");
    }
}

/// Displays a label's value, with the three characters escaped that have a meaning in it.
struct LabelValue<'a>(&'a str);

impl Display for LabelValue<'_> {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        for char in self.0.chars() {
            match char {
                '\\' => out.write_str("\\\\")?,
                '"' => out.write_str("\\\"")?,
                '\n' => out.write_str("\\n")?,
                _ => out.write_char(char)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::{BUCKETS, Histogram};

    #[test]
    fn the_two_formats_differ_in_the_names_of_counters_and_the_end() {
        let page = |format| {
            let mut page = Page::new(format);
            page.counter("weir_a", "Things.").total(&[("x", "y")], 3);
            page.gauge("weir_b", "Others.").value(&[], 0.5);
            page.finish()
        };
        assert_eq!(
            page(Format::Prometheus),
            "# HELP weir_a_total Things.\n# TYPE weir_a_total counter\nweir_a_total{x=\"y\"} 3\n\
             # HELP weir_b Others.\n# TYPE weir_b gauge\nweir_b 0.5\n"
        );
        assert_eq!(
            page(Format::OpenMetrics),
            "# HELP weir_a Things.\n# TYPE weir_a counter\nweir_a_total{x=\"y\"} 3\n\
             # HELP weir_b Others.\n# TYPE weir_b gauge\nweir_b 0.5\n# EOF\n"
        );
    }

    #[test]
    fn p14_a_label_cannot_break_out_of_its_quotes() {
        let mut page = Page::new(Format::Prometheus);
        page.gauge("weir_a", "A.").value(&[("route", "a\"} 1\nweir_evil{x=\"\\")], 1);
        assert_eq!(page.finish().lines().last(), Some(r#"weir_a{route="a\"} 1\nweir_evil{x=\"\\"} 1"#));
    }

    #[test]
    fn a_coarse_histogram_has_the_same_total_in_fewer_buckets() {
        let histogram = Histogram::default();
        for exponent in 0..40 {
            histogram.record_ns(1 << exponent);
        }
        let mut totals = HistogramTotals::default();
        histogram.add_to(&mut totals);
        let lines = |resolution| {
            let mut page = Page::new(Format::Prometheus);
            page.histogram("weir_a_seconds", "A.").distribution(&[("route", "r")], &totals, resolution);
            page.finish().lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>()
        };
        let (full, coarse) = (lines(Resolution::Full), lines(Resolution::Coarse));
        assert_eq!(full.len(), BUCKETS + 2);
        assert_eq!(coarse.len(), 11);
        assert_eq!(coarse[0], r#"weir_a_seconds_bucket{route="r",le="0.000524288"} 20"#);
        assert_eq!(coarse[8], r#"weir_a_seconds_bucket{route="r",le="+Inf"} 40"#);
        assert!(coarse.iter().all(|line| full.contains(line)));
    }

    #[test]
    fn openmetrics_is_for_who_asks() {
        assert_eq!(Format::for_accept(None), Format::Prometheus);
        assert_eq!(Format::for_accept(Some("text/plain")), Format::Prometheus);
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3";
        assert_eq!(Format::for_accept(Some(prometheus)), Format::OpenMetrics);
    }
}
