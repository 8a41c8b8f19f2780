//! Encodes field sections (RFC 9204 §4.5) with the static table alone.

use super::statics;
use crate::field_sink::{FieldSink, in_lower_case};
use crate::h2::hpack::{huffman, integer};

/// Writes one field section. It has no state between sections.
pub struct SectionWriter<'o> {
    out: &'o mut Vec<u8>,
    /// The size of the fields as HTTP/1 lines, in bytes.
    bytes: usize,
}

impl SectionWriter<'_> {
    /// Begins a section at the end of `out`: it requires no insertions, and has the base 0 (§4.5.1).
    pub fn begin(out: &mut Vec<u8>) -> SectionWriter<'_> {
        out.extend_from_slice(&[0, 0]);
        SectionWriter { out, bytes: 0 }
    }

    /// Appends the status of a response.
    pub fn status(&mut self, status: u16) {
        match statics::status(status) {
            Some(entry) => integer::write(0xc0, 6, entry, self.out),
            None => {
                let digits = [status / 100, status / 10, status].map(|digit| b'0' + (digit % 10) as u8);
                integer::write(0x50, 4, statics::STATUS, self.out);
                string(0, 7, &digits, self.out);
            }
        }
    }

    /// The size of the fields so far as HTTP/1 lines, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn field(&mut self, name: &[u8], value: &[u8], never_indexed: bool) {
        let entries = statics::with_name(name);
        let Some(&entry) = entries.first() else {
            string(if never_indexed { 0x30 } else { 0x20 }, 3, name, self.out);
            return string(0, 7, value, self.out);
        };
        let whole = entries.iter().find(|entry| statics::ENTRIES[usize::from(**entry)].1 == value);
        match whole.filter(|_| !never_indexed && !value.is_empty()) {
            Some(entry) => integer::write(0xc0, 6, usize::from(*entry), self.out),
            None => {
                integer::write(if never_indexed { 0x70 } else { 0x50 }, 4, usize::from(entry), self.out);
                string(0, 7, value, self.out);
            }
        }
    }
}

impl FieldSink for SectionWriter<'_> {
    fn add_as(&mut self, name: &[u8], value: &[u8], never_indexed: bool) {
        self.bytes += name.len() + value.len() + 4;
        in_lower_case(name, |name| self.field(name, value, never_indexed));
    }
}

/// Appends a string, Huffman-coded if that is shorter (§4.1.2): `pattern`, the bit for Huffman coding, and a length of `prefix` bits.
fn string(pattern: u8, prefix: u32, text: &[u8], out: &mut Vec<u8>) {
    let coded = huffman::encoded_len(text);
    if coded < text.len() {
        integer::write(pattern | 1 << prefix, prefix, coded, out);
        huffman::encode(text, out);
    } else {
        integer::write(pattern, prefix, text.len(), out);
        out.extend_from_slice(text);
    }
}
