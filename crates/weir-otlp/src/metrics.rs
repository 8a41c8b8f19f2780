//! Encodes metrics in OTLP: the messages of `opentelemetry/proto/metrics/v1`.
//!
//! Names are those of `/metrics`, counters without `_total`, so that what a collector exports to Prometheus has the names that
//! a scrape has. Metrics of the process have the names of OpenTelemetry's semantic conventions.

use weir_telemetry::exemplar::{Exemplar, SampledTrace};
use weir_telemetry::page::{HistogramValue, MetricFamily, MetricKind, MetricSample, MetricValue};

use crate::messages::{bytes, double, fixed_64, key_value, message, number, request};

/// `AGGREGATION_TEMPORALITY_CUMULATIVE`.
const CUMULATIVE: u64 = 2;

/// Metrics with a name in the semantic conventions (OS process metrics, 1.45), with their unit. Those that are a size or a
/// number of things are sums there, which grow and shrink.
const CONVENTIONS: &[(&str, &str, &str)] = &[
    ("process_cpu_seconds", "process.cpu.time", "s"),
    ("process_resident_memory_bytes", "process.memory.usage", "By"),
    ("process_virtual_memory_bytes", "process.memory.virtual", "By"),
    ("process_open_fds", "process.unix.file_descriptor.count", "{file_descriptor}"),
    ("process_threads", "process.thread.count", "{thread}"),
];

/// The period that cumulative values are of, in nanoseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub struct MetricsPeriod {
    /// The start of the process.
    pub start_ns: u64,
    pub now_ns: u64,
}

/// How a family is shown in OTLP.
struct MetricForm {
    name: &'static str,
    unit: &'static str,
    /// The number of its field in a `Metric`: `gauge`, `sum` or `histogram`.
    data: u64,
    is_monotonic: bool,
}

const GAUGE: u64 = 5;
const SUM: u64 = 7;
const HISTOGRAM: u64 = 9;

impl MetricForm {
    fn of(family: &MetricFamily) -> MetricForm {
        let is_counter = matches!(family.kind, MetricKind::Counter | MetricKind::CounterWithoutTotal);
        if let Some((_, name, unit)) = CONVENTIONS.iter().find(|(own, ..)| *own == family.name) {
            return MetricForm { name, unit, data: SUM, is_monotonic: is_counter };
        }
        let data = match family.kind {
            MetricKind::Counter | MetricKind::CounterWithoutTotal => SUM,
            MetricKind::Gauge => GAUGE,
            MetricKind::Histogram => HISTOGRAM,
        };
        MetricForm { name: family.name, unit: unit(family.name), data, is_monotonic: is_counter }
    }
}

/// The unit (UCUM), by the end of the name; empty if it has none. The two names of Apache APISIX do not show theirs.
fn unit(name: &str) -> &'static str {
    match name {
        "apisix_http_latency" => "ms",
        "apisix_bandwidth" => "By",
        name if name.ends_with("_seconds") => "s",
        name if name.ends_with("_bytes") => "By",
        _ => "",
    }
}

/// `ExportMetricsServiceRequest`s with all families; each has about `most_bytes` at most.
pub fn requests(
    resource: &[u8],
    scope: (&str, &str),
    families: &[MetricFamily],
    period: MetricsPeriod,
    most_bytes: usize,
) -> Vec<Vec<u8>> {
    let (mut requests, mut metrics, mut points) = (Vec::new(), Vec::new(), Vec::new());
    for family in families {
        let form = MetricForm::of(family);
        for sample in &family.samples {
            if metrics.len() + points.len() > most_bytes {
                metric(&mut metrics, family, &form, &points);
                points.clear();
                requests.push(request(resource, scope, std::iter::once(&*metrics)));
                metrics.clear();
            }
            message(&mut points, 1, |out| data_point(out, sample, &form, period));
        }
        if !points.is_empty() {
            metric(&mut metrics, family, &form, &points);
            points.clear();
        }
    }
    if !metrics.is_empty() {
        requests.push(request(resource, scope, std::iter::once(&*metrics)));
    }
    requests
}

/// Appends a `Metric` with these data points.
fn metric(out: &mut Vec<u8>, family: &MetricFamily, form: &MetricForm, points: &[u8]) {
    message(out, 2, |out| {
        bytes(out, 1, form.name.as_bytes());
        bytes(out, 2, family.help.as_bytes());
        bytes(out, 3, form.unit.as_bytes());
        message(out, form.data, |out| {
            out.extend_from_slice(points);
            if form.data != GAUGE {
                number(out, 2, CUMULATIVE);
            }
            if form.data == SUM && form.is_monotonic {
                number(out, 3, 1);
            }
        });
    });
}

/// Writes a `NumberDataPoint` or a `HistogramDataPoint`, whose times have the same fields.
fn data_point(out: &mut Vec<u8>, sample: &MetricSample, form: &MetricForm, period: MetricsPeriod) {
    let is_histogram = matches!(sample.value, MetricValue::Histogram(_));
    for (name, value) in &sample.labels {
        key_value(out, if is_histogram { 9 } else { 7 }, name, |out| bytes(out, 1, value.as_bytes()));
    }
    if form.data != GAUGE {
        fixed_64(out, 2, period.start_ns);
    }
    fixed_64(out, 3, period.now_ns);
    match &sample.value {
        MetricValue::Integer(value) => fixed_64(out, 6, *value as u64),
        MetricValue::Float(value) => double(out, 4, *value),
        MetricValue::Histogram(value) => histogram(out, value),
    }
}

fn histogram(out: &mut Vec<u8>, value: &HistogramValue) {
    let HistogramValue { buckets, sum } = value;
    fixed_64(out, 4, buckets.iter().map(|bucket| bucket.count).sum());
    double(out, 5, *sum);
    message(out, 6, |out| buckets.iter().for_each(|bucket| out.extend_from_slice(&bucket.count.to_le_bytes())));
    let bounds = buckets.iter().map(|bucket| bucket.bound).filter(|bound| bound.is_finite());
    message(out, 7, |out| bounds.for_each(|bound| out.extend_from_slice(&bound.to_le_bytes())));
    for Exemplar { trace: SampledTrace { trace, span }, value_ns, unix_ms } in
        buckets.iter().filter_map(|bucket| bucket.exemplar)
    {
        message(out, 8, |out| {
            fixed_64(out, 2, unix_ms * 1_000_000);
            double(out, 3, value_ns as f64 / 1e9);
            bytes(out, 4, &span.to_be_bytes());
            bytes(out, 5, &trace.to_be_bytes());
        });
    }
}
