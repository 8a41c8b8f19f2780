use std::{
    fmt::Write as _,
    time::{Duration, UNIX_EPOCH},
};

use hdrhistogram::serialization::{V2DeflateSerializer, interval_log::IntervalLogWriterBuilder};

use super::ExportError;
use crate::{
    engine::{LatencyHistogram, LoadPhase},
    result::Cell,
};

/// Steps for each halving of the distance to 100 %; the default of HdrHistogram.
const STEPS_PER_HALF: u32 = 5;

/// The percentile distribution in the format of HdrHistogram's plotters, in milliseconds.
pub(super) fn distribution(latency: &LatencyHistogram) -> String {
    let hdr = latency.as_hdr();
    let mut text = String::from("       Value     Percentile TotalCount 1/(1-Percentile)\n\n");
    for step in hdr.iter_quantiles(STEPS_PER_HALF) {
        let quantile = step.quantile_iterated_to();
        let (value, count) = (step.value_iterated_to() as f64 / 1e6, hdr.count_between(0, step.value_iterated_to()));
        if quantile < 1.0 {
            let _ = writeln!(text, "{value:12.3} {quantile:14.12} {count:10} {:14.2}", 1.0 / (1.0 - quantile));
        } else {
            let _ = writeln!(text, "{value:12.3} {quantile:14.12} {count:10}          inf");
        }
    }
    let milliseconds = |ns: f64| ns / 1e6;
    let _ = write!(
        text,
        "#[Mean    = {:12.3}, StdDeviation   = {:12.3}]\n#[Max     = {:12.3}, Total count    = {:12}]\n\
         #[Buckets = {:12}, SubBuckets     = {:12}]\n",
        milliseconds(latency.mean()),
        milliseconds(latency.deviation()),
        milliseconds(latency.max() as f64),
        latency.count(),
        hdr.buckets(),
        2048
    );
    text
}

/// An interval log of all runs of a cell: one line per interval of the measured part, in nanoseconds.
pub(super) fn interval_log(cell: &Cell) -> Result<String, ExportError> {
    let mut text = Vec::new();
    let mut serializer = V2DeflateSerializer::new();
    let start = cell.runs().first().map_or(0, |run| run.load.started_unix_ns);
    let start = UNIX_EPOCH + Duration::from_nanos(start);
    let mut writer = IntervalLogWriterBuilder::new()
        .add_comment(&format!("{} · {}, latency from when requests were due, ns", cell.row, cell.target))
        .with_start_time(start)
        .with_base_time(start)
        .with_max_value_divisor(1e6)
        .begin_log_with(&mut text, &mut serializer)
        .map_err(|error| ExportError::IntervalLog(error.into()))?;
    for run in cell.runs() {
        let offset =
            Duration::from_nanos(run.load.started_unix_ns) - start.duration_since(UNIX_EPOCH).unwrap_or_default();
        for interval in run.load.intervals.iter().filter(|interval| interval.phase == LoadPhase::Measured) {
            let from = offset + Duration::from_nanos(interval.start_ns);
            let length = Duration::from_nanos(interval.length_ns);
            writer.write_histogram(&interval.tally.latency.as_hdr(), from, length, None)?;
        }
    }
    drop(writer);
    Ok(String::from_utf8(text).expect("the log is ASCII, but for the comment, which is a text"))
}
