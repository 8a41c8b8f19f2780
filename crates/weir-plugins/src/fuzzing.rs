//! The parsers of this crate that `fuzz/` tries.

pub use crate::content::{json, xml};
use http::Response;
use hyper::body::Bytes;
use weir_records::SendOutcome;

use crate::log::elasticsearch_logger;
pub use crate::observe::trace::{b3, w3c};
pub use crate::transform::grpc_web::Base64Decoder as GrpcWebDecoder;

/// Of how many records an answer of a store to a bulk request tells, where it tells of each.
pub fn bulk_outcomes(answer: &[u8], count: usize) -> Option<usize> {
    let answer = Response::new(Bytes::copy_from_slice(answer));
    match elasticsearch_logger::judge(&answer, count) {
        SendOutcome::Each { outcomes, .. } => Some(outcomes.len()),
        _ => None,
    }
}
