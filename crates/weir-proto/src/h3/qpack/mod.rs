//! QPACK (RFC 9204) without dynamic tables: this end announces none, and its encoder uses none. A section therefore depends on no
//! other, and no stream waits for another.

mod decoder;
mod encoder;
mod instructions;
mod statics;

pub use decoder::decode;
pub use encoder::SectionWriter;
pub use instructions::{DecoderStream, EncoderStream};

/// A field section that cannot be decoded, which ends the connection (RFC 9204 §2.2, QPACK_DECOMPRESSION_FAILED).
pub use crate::h2::hpack::BrokenFieldSection;

#[cfg(test)]
mod tests;
