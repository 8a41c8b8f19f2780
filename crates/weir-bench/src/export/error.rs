use std::{error::Error, fmt};

use hdrhistogram::serialization::{V2DeflateSerializeError, interval_log::IntervalLogWriterError};

use crate::errors::from_causes;

/// Why a result cannot be exported.
#[derive(Debug)]
pub enum ExportError {
    NotMeasured { row: String, target: String },
    Jtl(csv::Error),
    IntervalLog(IntervalLogWriterError<V2DeflateSerializeError>),
}

impl fmt::Display for ExportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExportError::NotMeasured { row, target } => write!(f, "{row} · {target} was not measured"),
            ExportError::Jtl(error) => write!(f, "JTL: {error}"),
            ExportError::IntervalLog(error) => write!(f, "interval log: {error}"),
        }
    }
}

impl Error for ExportError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            ExportError::NotMeasured { .. } => None,
            ExportError::Jtl(error) => Some(error),
            ExportError::IntervalLog(error) => Some(error),
        }
    }
}

from_causes!(ExportError: Jtl(csv::Error), IntervalLog(IntervalLogWriterError<V2DeflateSerializeError>));
