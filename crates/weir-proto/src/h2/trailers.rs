//! Trailers as field sections (RFC 9113 §8.1, RFC 9114 §4.1).

use super::class::FieldClass;
use super::hpack::DecodedField;
use crate::field::Known;
use crate::head::write_field;
use crate::limits::Limits;
use crate::trailers::Trailers;

/// Builds trailers from fields as they are decoded.
pub struct TrailersReader {
    limits: Limits,
    lines: Vec<u8>,
    count: usize,
    is_good: bool,
}

impl TrailersReader {
    pub fn new(limits: Limits) -> TrailersReader {
        TrailersReader { limits, lines: Vec::new(), count: 0, is_good: true }
    }

    /// Adds a field of a known class.
    pub fn field(&mut self, DecodedField { class, name, value, .. }: DecodedField<'_>) {
        self.count += 1;
        // There are no pseudo-fields among them.
        self.is_good &= matches!(class, FieldClass::Field(_) | FieldClass::Cookie) && self.count <= self.limits.fields;
        self.is_good &= self.lines.len() + name.len() + value.len() + 4 <= self.limits.head_bytes;
        if self.is_good && !matches!(class, FieldClass::Field(Known::Te)) {
            write_field(&mut self.lines, name, value);
        }
    }

    /// The trailers; `None` if they are malformed or too large.
    pub fn finish(self) -> Option<Trailers> {
        self.is_good.then(|| Trailers::from_lines(self.lines))
    }
}
