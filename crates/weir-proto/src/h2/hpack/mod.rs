//! HPACK (RFC 7541): field sections as they travel, and what both ends remember of them.

pub mod decoder;
pub mod encoder;
mod huffman;
mod integer;
mod statics;
mod table;

pub use decoder::Decoder;
pub use encoder::Encoder;

/// A field section that cannot be decoded. What both ends remember may differ from there on, so this ends the connection
/// (RFC 9113 §4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokenFieldSection;

/// The size of a table that neither end has changed (RFC 9113 §6.5.2), and the most that either of ours may take.
pub const TABLE_BYTES: usize = 4096;

#[cfg(test)]
mod tests;
