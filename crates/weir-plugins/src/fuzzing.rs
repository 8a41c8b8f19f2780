//! The parsers of this crate that `fuzz/` tries.

pub use crate::content::{json, xml};
use http::Response;
use hyper::body::Bytes;
use weir_records::SendOutcome;

use crate::log::elasticsearch_logger;
use crate::observe::collector;
pub use crate::observe::trace::otlp::rejected as otlp_rejected;
pub use crate::observe::trace::{b3, w3c};
pub use crate::transform::grpc_web::Base64Decoder as GrpcWebDecoder;

/// Of how many records an answer of a store to a bulk request tells, where it tells of each.
pub fn bulk_outcomes(answer: &[u8], count: usize) -> Option<usize> {
    told(&elasticsearch_logger::judge(&Response::new(Bytes::copy_from_slice(answer)), count))
}

/// The same of what a collector of OpenTelemetry answers.
pub fn otlp_outcomes(answer: &[u8], count: usize) -> Option<usize> {
    told(&collector::judge(&Response::new(Bytes::copy_from_slice(answer)), count, "spans"))
}

fn told(outcome: &SendOutcome) -> Option<usize> {
    match outcome {
        SendOutcome::Each { outcomes, .. } => Some(outcomes.len()),
        _ => None,
    }
}
