//! The Prometheus text format 0.0.4, or OpenMetrics 1.0 if the scraper accepts it.

use std::fmt::{self, Display, Write};

use crate::exemplar::{Exemplar, SampledTrace};
use crate::page::{HistogramBucket, HistogramValue, MetricFamily, MetricKind, MetricSample, MetricValue, Page};

/// The text formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Prometheus,
    OpenMetrics,
}

impl Format {
    /// The format for a scraper's `Accept` field: OpenMetrics if it is accepted, and not less than other formats (RFC 9110
    /// §12.5.1).
    pub fn for_accept(accept: Option<&str>) -> Self {
        let (mut openmetrics, mut others) = (0.0, 0.0_f64);
        for range in accept.unwrap_or_default().split(',') {
            let mut parts = range.split(';').map(str::trim);
            let is_openmetrics =
                parts.next().is_some_and(|name| name.eq_ignore_ascii_case("application/openmetrics-text"));
            let weight = parts.find_map(|part| part.strip_prefix("q=").or(part.strip_prefix("Q="))?.parse().ok());
            let weight = weight.unwrap_or(1.0);
            match is_openmetrics {
                true => openmetrics = weight,
                false if range.contains("text/plain") => others = others.max(weight),
                false => {}
            }
        }
        if openmetrics > 0.0 && openmetrics >= others { Format::OpenMetrics } else { Format::Prometheus }
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// The bound of the last bucket.
const ABOVE: &str = "+Inf";

impl Page {
    /// The page as text.
    pub fn text(&self, format: Format) -> String {
        let mut text = MetricsText { text: String::with_capacity(64 * 1024), format };
        self.families().iter().for_each(|family| text.family(family));
        if format == Format::OpenMetrics {
            text.text.push_str("# EOF\n");
        }
        text.text
    }
}

struct MetricsText {
    text: String,
    format: Format,
}

impl MetricsText {
    fn family(&mut self, family: &MetricFamily) {
        let MetricFamily { name, help, kind, samples } = family;
        let (of_family, of_sample, kind) = match (kind, self.format) {
            (MetricKind::Counter, Format::Prometheus) => ("_total", "_total", "counter"),
            (MetricKind::Counter, Format::OpenMetrics) => ("", "_total", "counter"),
            (MetricKind::CounterWithoutTotal, Format::Prometheus) => ("", "", "counter"),
            (MetricKind::CounterWithoutTotal, Format::OpenMetrics) => ("", "", "unknown"),
            (MetricKind::Gauge, _) => ("", "", "gauge"),
            (MetricKind::Histogram, _) => ("", "", "histogram"),
        };
        self.write(format_args!("# HELP {name}{of_family} {help}\n# TYPE {name}{of_family} {kind}\n"));
        for MetricSample { labels, value } in samples {
            match value {
                MetricValue::Integer(value) => self.sample((name, of_sample), labels, None, value),
                MetricValue::Float(value) => self.sample((name, of_sample), labels, None, value),
                MetricValue::Histogram(value) => self.buckets(name, labels, value),
            }
        }
    }

    /// Writes a histogram, whose buckets are cumulative in both formats.
    fn buckets(&mut self, name: &str, labels: &[(&str, String)], histogram: &HistogramValue) {
        let mut cumulative = 0;
        for HistogramBucket { bound, count, exemplar } in &histogram.buckets {
            cumulative += count;
            let bound = self.bound(*bound);
            self.sample((name, "_bucket"), labels, Some(("le", &bound)), cumulative);
            if let Some(exemplar) = exemplar.filter(|_| self.format == Format::OpenMetrics) {
                self.exemplar(&exemplar);
            }
        }
        self.sample((name, "_sum"), labels, None, histogram.sum);
        self.sample((name, "_count"), labels, None, cumulative);
    }

    /// Appends an exemplar to the line just written.
    fn exemplar(&mut self, exemplar: &Exemplar) {
        let Exemplar { trace: SampledTrace { trace, span }, value_ns, unix_ms } = exemplar;
        let (value, at) = (*value_ns as f64 / 1e9, *unix_ms as f64 / 1e3);
        self.text.pop();
        self.write(format_args!(" # {{trace_id=\"{trace:032x}\",span_id=\"{span:016x}\"}} {value} {at}\n"));
    }

    /// OpenMetrics has one form for each bound, with a decimal point or an exponent; Prometheus compares the text as well, so
    /// its form stays as it is.
    fn bound(&self, bound: f64) -> String {
        match self.format {
            _ if bound.is_infinite() => ABOVE.to_owned(),
            Format::Prometheus => bound.to_string(),
            Format::OpenMetrics => canonical(bound),
        }
    }

    fn sample(
        &mut self,
        (name, suffix): (&str, &str),
        labels: &[(&str, String)],
        last: Option<(&str, &str)>,
        value: impl Display,
    ) {
        self.write(format_args!("{name}{suffix}"));
        let mut separator = '{';
        for (name, value) in labels.iter().map(|(name, value)| (*name, &**value)).chain(last) {
            self.write(format_args!("{separator}{name}=\"{}\"", LabelValue(value)));
            separator = ',';
        }
        if separator == ',' {
            self.text.push('}');
        }
        self.write(format_args!(" {value}\n"));
    }

    fn write(&mut self, arguments: fmt::Arguments<'_>) {
        self.text.write_fmt(arguments).expect("a String takes everything");
    }
}

/// A positive number in the canonical form of OpenMetrics 1.0: the shortest digits that give the same number, with an exponent of
/// two digits at least below 0.0001 and from 1,000,000 on.
fn canonical(number: f64) -> String {
    if (1e-4..1e6).contains(&number) || number == 0.0 {
        return format!("{number:?}");
    }
    let written = format!("{number:e}");
    let (digits, exponent) = written.split_once('e').expect("it is in this form");
    let exponent: i32 = exponent.parse().expect("a number");
    format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
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
    use crate::cell::{BUCKETS, Histogram, HistogramTotals};
    use crate::exemplar::{BucketExemplars, Exemplars};
    use crate::page::Resolution;

    #[test]
    fn the_two_formats_differ_in_the_names_of_counters_and_the_end() {
        let mut page = Page::default();
        page.counter("weir_a", "Things.").total(&[("x", "y")], 3);
        page.gauge("weir_b", "Others.").value(&[], 0.5);
        page.counter_without_total("apisix_c", "More.").value(&[], 1);
        assert_eq!(
            page.text(Format::Prometheus),
            "# HELP weir_a_total Things.\n# TYPE weir_a_total counter\nweir_a_total{x=\"y\"} 3\n\
             # HELP weir_b Others.\n# TYPE weir_b gauge\nweir_b 0.5\n\
             # HELP apisix_c More.\n# TYPE apisix_c counter\napisix_c 1\n"
        );
        assert_eq!(
            page.text(Format::OpenMetrics),
            "# HELP weir_a Things.\n# TYPE weir_a counter\nweir_a_total{x=\"y\"} 3\n\
             # HELP weir_b Others.\n# TYPE weir_b gauge\nweir_b 0.5\n\
             # HELP apisix_c More.\n# TYPE apisix_c unknown\napisix_c 1\n# EOF\n"
        );
    }

    #[test]
    fn p14_a_label_cannot_break_out_of_its_quotes() {
        let mut page = Page::default();
        page.gauge("weir_a", "A.").value(&[("route", "a\"} 1\nweir_evil{x=\"\\")], 1);
        assert_eq!(page.text(Format::Prometheus).lines().last(), Some(r#"weir_a{route="a\"} 1\nweir_evil{x=\"\\"} 1"#));
    }

    fn histogram(totals: &HistogramTotals, exemplars: &BucketExemplars, resolution: Resolution) -> Page {
        let mut page = Page::default();
        page.histogram("weir_a_seconds", "A.").exemplified(&[("route", "r")], totals, exemplars, resolution);
        page
    }

    #[test]
    fn a_coarse_histogram_has_the_same_total_in_fewer_buckets() {
        let histogram_of = Histogram::default();
        for exponent in 0..40 {
            histogram_of.record_ns(1 << exponent);
        }
        let mut totals = HistogramTotals::default();
        histogram_of.add_to(&mut totals);
        let lines = |resolution| {
            let text = histogram(&totals, &BucketExemplars::default(), resolution).text(Format::Prometheus);
            text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>()
        };
        let (full, coarse) = (lines(Resolution::Full), lines(Resolution::Coarse));
        assert_eq!(full.len(), BUCKETS + 2);
        assert_eq!(coarse.len(), 11);
        assert_eq!(coarse[0], r#"weir_a_seconds_bucket{route="r",le="0.000524288"} 20"#);
        assert_eq!(coarse[8], r#"weir_a_seconds_bucket{route="r",le="+Inf"} 40"#);
        assert!(coarse.iter().all(|line| full.contains(line)));
    }

    #[test]
    fn exemplars_are_for_openmetrics_alone() {
        let (cells, exemplars) = (Histogram::default(), Exemplars::default());
        cells.record_ns(600_000_000);
        exemplars.record(600_000_000, SampledTrace { trace: 0xab, span: 0xc }, 1_700_000_000_123);
        let (mut totals, mut collected) = (HistogramTotals::default(), BucketExemplars::default());
        cells.add_to(&mut totals);
        exemplars.add_to(&mut collected, 0);
        let page = histogram(&totals, &collected, Resolution::Coarse);
        assert!(!page.text(Format::Prometheus).contains(" # "));
        let line = "weir_a_seconds_bucket{route=\"r\",le=\"2.147483648\"} 1 \
                    # {trace_id=\"000000000000000000000000000000ab\",span_id=\"000000000000000c\"} 0.6 1700000000.123";
        let text = page.text(Format::OpenMetrics);
        assert!(text.lines().any(|written| written == line), "{text}");
        assert_eq!(text.matches("trace_id").count(), 1);
    }

    #[test]
    fn bounds_have_one_form_in_openmetrics() {
        for (number, want) in [
            (0.000008192, "8.192e-06"),
            (0.00012288, "0.00012288"),
            (1.0, "1.0"),
            (60_000.0, "60000.0"),
            (1e6, "1e+06"),
            (2.5e10, "2.5e+10"),
        ] {
            assert_eq!(canonical(number), want);
        }
    }

    #[test]
    fn openmetrics_is_for_scrapers_that_ask_for_it() {
        for (accept, want) in [
            (None, Format::Prometheus),
            (Some("text/plain"), Format::Prometheus),
            (Some("*/*"), Format::Prometheus),
            (Some("application/openmetrics-text"), Format::OpenMetrics),
            (Some("application/openmetrics-text; version=1.0.0"), Format::OpenMetrics),
            (
                Some("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3"),
                Format::OpenMetrics,
            ),
            (
                Some("application/openmetrics-text;version=1.0.0;q=0.2,text/plain;version=0.0.4;q=0.3"),
                Format::Prometheus,
            ),
            (Some("Application/OpenMetrics-Text; q=0"), Format::Prometheus),
            (Some("application/openmetrics-text-not"), Format::Prometheus),
        ] {
            assert_eq!(Format::for_accept(accept), want, "{accept:?}");
        }
    }
}
