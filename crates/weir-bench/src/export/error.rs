use hdrhistogram::serialization::{V2DeflateSerializeError, interval_log::IntervalLogWriterError};

/// Why a result cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error("{row} · {target} was not measured")]
    NotMeasured { row: String, target: String },
    #[error("JTL: {0}")]
    Jtl(#[from] csv::Error),
    #[error("interval log: {0}")]
    IntervalLog(#[from] IntervalLogWriterError<V2DeflateSerializeError>),
}
