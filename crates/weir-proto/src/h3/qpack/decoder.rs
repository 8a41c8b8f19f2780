//! Decodes field sections (RFC 9204 §4.5).

use super::{BrokenFieldSection, statics};
use crate::h2::class::FieldClass;
use crate::h2::hpack::{DecodedField, huffman, integer};

/// Decodes a whole field section and calls `field` with each field.
pub fn decode(mut section: &[u8], mut field: impl FnMut(DecodedField<'_>)) -> Result<(), BrokenFieldSection> {
    prefix(&mut section)?;
    // The strings of a field, which are decoded one after the other.
    let mut strings = Vec::new();
    while let Some((&first, rest)) = section.split_first() {
        section = rest;
        match first {
            // §4.5.2: an indexed field; the bit 0x40 says of the static table.
            0xc0.. => {
                let index = integer::read(first, 6, &mut section)?;
                let (name, value) = *statics::ENTRIES.get(index).ok_or(BrokenFieldSection)?;
                field(DecodedField { class: statics::class(index), name, value, never_indexed: false });
            }
            // §4.5.4: a literal with the name of an entry; the bit 0x10 says of the static table.
            0x40..=0x7f if first & 0x10 != 0 => {
                let index = integer::read(first, 4, &mut section)?;
                let name = statics::ENTRIES.get(index).ok_or(BrokenFieldSection)?.0;
                string(7, &mut section, &mut strings)?;
                let class = statics::class(index).with_value(&strings);
                field(DecodedField { class, name, value: &strings, never_indexed: first & 0x20 != 0 });
            }
            // §4.5.6: a literal with a literal name, whose length stands in the same byte.
            0x20..=0x3f => {
                string_of(first, 3, &mut section, &mut strings)?;
                let name_bytes = strings.len();
                string(7, &mut section, &mut strings)?;
                let (name, value) = strings.split_at(name_bytes);
                let class = FieldClass::of_name(name).with_value(value);
                field(DecodedField { class, name, value, never_indexed: first & 0x10 != 0 });
            }
            // The dynamic table, which has no entries.
            _ => return Err(BrokenFieldSection),
        }
        strings.clear();
    }
    Ok(())
}

/// Reads the prefix of a section (§4.5.1). Without a dynamic table, the section requires no insertions, and its base, which must not
/// be negative, has no effect.
fn prefix(section: &mut &[u8]) -> Result<(), BrokenFieldSection> {
    let [first, second, ..] = **section else { return Err(BrokenFieldSection) };
    if first != 0 || second & 0x80 != 0 {
        return Err(BrokenFieldSection);
    }
    *section = &section[2..];
    integer::read(second, 7, section).map(|_| ())
}

/// Reads a string whose length begins in the next byte.
fn string(prefix: u32, section: &mut &[u8], out: &mut Vec<u8>) -> Result<(), BrokenFieldSection> {
    let (&first, rest) = section.split_first().ok_or(BrokenFieldSection)?;
    *section = rest;
    string_of(first, prefix, section, out)
}

/// Reads a string whose length begins in the low `prefix` bits of `first`. The bit above says whether Huffman coding is used (§4.1.2).
fn string_of(first: u8, prefix: u32, section: &mut &[u8], out: &mut Vec<u8>) -> Result<(), BrokenFieldSection> {
    let length = integer::read(first, prefix, section)?;
    let (bytes, rest) = section.split_at_checked(length).ok_or(BrokenFieldSection)?;
    *section = rest;
    match first >> prefix & 1 {
        0 => out.extend_from_slice(bytes),
        _ => huffman::decode(bytes, out)?,
    }
    Ok(())
}
