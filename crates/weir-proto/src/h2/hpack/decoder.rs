//! Decodes the field sections of the peer.

use super::statics;
use super::table::DynamicTable;
use super::{BrokenFieldSection, TABLE_BYTES, huffman, integer};
use crate::h2::class::FieldClass;

/// The decoding state of one direction. The table keeps the initial size of RFC 9113 §6.5.2; we never announce another.
#[derive(Debug)]
pub struct Decoder {
    table: DynamicTable,
}

impl Default for Decoder {
    fn default() -> Decoder {
        Decoder { table: DynamicTable::new(TABLE_BYTES) }
    }
}

/// A field of a section.
#[derive(Clone, Copy, Debug)]
pub struct DecodedField<'d> {
    pub class: FieldClass,
    pub name: &'d [u8],
    pub value: &'d [u8],
    /// A proxy must not index it either when it forwards it (RFC 7541 §6.2.3).
    pub never_indexed: bool,
}

impl<'d> DecodedField<'d> {
    /// A field that may be indexed.
    pub fn of(name: &'d [u8], value: &'d [u8]) -> DecodedField<'d> {
        DecodedField { class: FieldClass::of(name, value), name, value, never_indexed: false }
    }
}

/// What becomes of a literal (RFC 7541 §6.2).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Indexing {
    Incremental,
    Without,
    Never,
}

/// The bit of a string literal that marks Huffman coding (RFC 7541 §5.2).
const HUFFMAN: u8 = 0x80;

impl Decoder {
    /// Decodes a whole field section and calls `field` with each field. After an error the decoder must not be used again.
    pub fn decode(
        &mut self,
        mut block: &[u8],
        mut field: impl FnMut(DecodedField<'_>),
    ) -> Result<(), BrokenFieldSection> {
        let mut may_resize = true;
        while let Some((&first, rest)) = block.split_first() {
            block = rest;
            match first {
                // RFC 7541 §6.1: an indexed field.
                0x80.. => {
                    let (name, value, class) = self.entry(integer::read(first, 7, &mut block)?)?;
                    field(DecodedField { class, name, value, never_indexed: false });
                }
                // §6.2.1: a literal that is added to the table.
                0x40.. => {
                    let name_of = integer::read(first, 6, &mut block)?;
                    self.literal(name_of, &mut block, Indexing::Incremental, &mut field)?;
                }
                // §6.3: a table size update, allowed only at the start of a section (§4.2) and up to the size we announced.
                0x20.. => {
                    let size = integer::read(first, 5, &mut block)?;
                    if !may_resize || size > TABLE_BYTES {
                        return Err(BrokenFieldSection);
                    }
                    self.table.resize(size);
                    continue;
                }
                // §6.2.2 and §6.2.3: literals that are not added to the table.
                _ => {
                    let name_of = integer::read(first, 4, &mut block)?;
                    let indexing = if first & 0x10 == 0 { Indexing::Without } else { Indexing::Never };
                    self.literal(name_of, &mut block, indexing, &mut field)?;
                }
            }
            may_resize = false;
        }
        Ok(())
    }

    /// Heap memory in use, in bytes.
    pub fn capacity(&self) -> usize {
        self.table.capacity()
    }

    fn entry(&self, index: usize) -> Result<(&[u8], &[u8], FieldClass), BrokenFieldSection> {
        match index.checked_sub(1).ok_or(BrokenFieldSection)? {
            at if at < statics::ENTRIES.len() => {
                let (name, value) = statics::ENTRIES[at];
                Ok((name, value, statics::class(index)))
            }
            at => self.table.get(at - statics::ENTRIES.len()).ok_or(BrokenFieldSection),
        }
    }

    /// Decodes a literal field. Its name is that of entry `name_of`, or a string that follows if that is 0. The field is
    /// assembled at the end of the table's memory, so that it can become an entry without a copy.
    fn literal(
        &mut self,
        name_of: usize,
        block: &mut &[u8],
        indexing: Indexing,
        field: &mut impl FnMut(DecodedField<'_>),
    ) -> Result<(), BrokenFieldSection> {
        let start = self.table.begin();
        let class = match name_of {
            0 => {
                string(block, self.table.draft())?;
                FieldClass::of_name(&self.table.draft()[start..])
            }
            index if index <= statics::ENTRIES.len() => {
                self.table.draft().extend_from_slice(statics::ENTRIES[index - 1].0);
                statics::class(index)
            }
            index => {
                let class = self.table.copy_name(index - statics::ENTRIES.len() - 1).ok_or(BrokenFieldSection)?;
                // The entry may be malformed because of its value only; the name is classified again.
                if class == FieldClass::Malformed { FieldClass::of_name(&self.table.draft()[start..]) } else { class }
            }
        };
        let name = self.table.draft().len() - start;
        string(block, self.table.draft())?;
        let (_, both) = self.table.draft().split_at(start);
        let (name_bytes, value) = both.split_at(name);
        let class = class.with_value(value);
        field(DecodedField { class, name: name_bytes, value, never_indexed: indexing == Indexing::Never });
        match indexing {
            Indexing::Incremental => self.table.keep(start, name, class),
            Indexing::Without | Indexing::Never => self.table.discard(start),
        }
        Ok(())
    }
}

/// Reads a string (RFC 7541 §5.2) and appends it to `out`.
fn string(block: &mut &[u8], out: &mut Vec<u8>) -> Result<(), BrokenFieldSection> {
    let (&first, rest) = block.split_first().ok_or(BrokenFieldSection)?;
    *block = rest;
    let length = integer::read(first, 7, block)?;
    let (bytes, rest) = block.split_at_checked(length).ok_or(BrokenFieldSection)?;
    *block = rest;
    match first & HUFFMAN {
        0 => out.extend_from_slice(bytes),
        _ => huffman::decode(bytes, out)?,
    }
    Ok(())
}
