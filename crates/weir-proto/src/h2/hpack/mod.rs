//! HPACK (RFC 7541): header compression, with state that both ends share.

pub mod decoder;
pub mod encoder;
pub(crate) mod huffman;
pub(crate) mod integer;
mod statics;
mod table;

pub use decoder::{DecodedField, Decoder};
pub use encoder::Encoder;

/// A field section that cannot be decoded. The tables of the two ends may differ afterwards, so this ends the connection (RFC
/// 9113 §4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokenFieldSection;

/// The initial size of a dynamic table (RFC 9113 §6.5.2), and the largest either of ours may have, in bytes.
pub const TABLE_BYTES: usize = 4096;

#[cfg(test)]
mod tests;
