//! Prometheus Remote-Write 1.0: a message of protobuf in the block format of Snappy.

use prost::Message as _;

use super::PushedFigures;

pub(super) const FIELDS: [(&str, &str); 3] = [
    ("Content-Type", "application/x-protobuf"),
    ("Content-Encoding", "snappy"),
    ("X-Prometheus-Remote-Write-Version", "0.1.0"),
];

/// The bits of the number that says that a series has ended, or has no value for now (Prometheus's stale marker).
const NO_VALUE: u64 = 0x7ff0_0000_0000_0002;

#[derive(Clone, PartialEq, prost::Message)]
struct RemoteWriteRequest {
    #[prost(message, repeated, tag = "1")]
    timeseries: Vec<WrittenSeries>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct WrittenSeries {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<WrittenLabel>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<WrittenSample>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct WrittenLabel {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct WrittenSample {
    #[prost(double, tag = "1")]
    value: f64,
    #[prost(int64, tag = "2")]
    timestamp_ms: i64,
}

/// The body of a request.
pub(super) fn body(figures: &PushedFigures, labels: &[(String, String)]) -> Vec<u8> {
    let timestamp_ms = i64::try_from(figures.at_unix_ms).unwrap_or(i64::MAX);
    let metrics = figures.metrics();
    let series = metrics.iter().map(|metric| {
        let own = [("__name__", Some(metric.name)), ("quantile", metric.quantile)];
        let own = own.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let given = labels.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let label = |(name, value): (&str, &str)| WrittenLabel { name: name.to_owned(), value: value.to_owned() };
        let mut labels: Vec<WrittenLabel> = own.chain(given).map(label).collect();
        // Receivers may refuse labels in another order.
        labels.sort_by(|one, other| one.name.cmp(&other.name));
        let value = metric.value.unwrap_or(f64::from_bits(NO_VALUE));
        WrittenSeries { labels, samples: vec![WrittenSample { value, timestamp_ms }] }
    });
    snappy(&RemoteWriteRequest { timeseries: series.collect() }.encode_to_vec())
}

/// The longest literal with a length of two bytes.
const LONGEST_LITERAL: usize = 1 << 16;
/// The tag of a literal whose length follows in two bytes (Snappy's format description, 2.1).
const LITERAL_OF_TWO_BYTES: u8 = 61 << 2;

/// The block format of Snappy with literals only: it is required, and a message of a second is too short to gain by compression.
fn snappy(bytes: &[u8]) -> Vec<u8> {
    let mut block = Vec::with_capacity(bytes.len() + 16);
    prost::encoding::encode_varint(bytes.len() as u64, &mut block);
    for literal in bytes.chunks(LONGEST_LITERAL) {
        block.push(LITERAL_OF_TWO_BYTES);
        block.extend_from_slice(&((literal.len() - 1) as u16).to_le_bytes());
        block.extend_from_slice(literal);
    }
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_have_sorted_labels_and_one_sample() {
        let figures =
            PushedFigures { at_unix_ms: 5, p50_ns: Some(1_000_000), has_begun: true, ..PushedFigures::default() };
        let labels = [("url", "http://a/"), ("job", "j"), ("Zone", "z")];
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let block = body(&figures, &labels);
        // The length takes two bytes, the tag of the only literal one, and its length two.
        let request = RemoteWriteRequest::decode(&block[5..]).expect("a message");
        assert_eq!(request.timeseries.len(), 6);
        let series = &request.timeseries[3];
        let names: Vec<&str> = series.labels.iter().map(|label| label.name.as_str()).collect();
        assert_eq!(names, ["Zone", "__name__", "job", "quantile", "url"]);
        assert_eq!(series.samples, [WrittenSample { value: 0.001, timestamp_ms: 5 }]);
        assert_eq!(request.timeseries[4].samples[0].value.to_bits(), NO_VALUE);
    }

    #[test]
    fn long_messages_are_several_literals() {
        let block = snappy(&vec![7; LONGEST_LITERAL + 1]);
        assert_eq!(block[..6], [0x81, 0x80, 0x04, LITERAL_OF_TWO_BYTES, 0xff, 0xff]);
        assert_eq!(block[6 + LONGEST_LITERAL..], [LITERAL_OF_TWO_BYTES, 0, 0, 7]);
    }
}
