//! The parsers of this crate that `fuzz/` tries.

pub use crate::content::{json, xml};
pub use crate::transform::grpc_web::Base64Decoder as GrpcWebDecoder;
