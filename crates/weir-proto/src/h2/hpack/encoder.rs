//! Encodes field sections for the peer.

use super::statics;
use super::table::DynamicTable;
use super::{TABLE_BYTES, huffman, integer};
use crate::h2::class::FieldClass;

/// Slots of the hash index, which holds the table's entries and fields seen once. A table of 4 KiB rarely has more than half as
/// many entries.
const PLACES: usize = 128;

/// A slot: the hash of a field and the sequence number of its table entry. Both are small, since idle connections keep their
/// slots. A false match, by hash collision or by a wrapped number, costs only a failed comparison or an entry that is made one
/// occurrence early.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    hash: u16,
    /// Counted from 1; 0 if the field was seen once and is not an entry yet.
    number: u16,
}

/// The encoding state of one direction.
///
/// A field becomes a table entry when it occurs for the second time: a value that differs in each message (an identifier, a
/// length) would only evict fields that recur.
#[derive(Debug)]
pub struct Encoder {
    table: DynamicTable,
    places: Vec<Place>,
    /// Sequence number of the newest entry; it wraps around and skips 0.
    made: u16,
    /// Table sizes to announce to the peer: the smallest since the last section, and the current one (RFC 7541 §4.2).
    resized: Option<(usize, usize)>,
}

impl Default for Encoder {
    fn default() -> Encoder {
        Encoder { table: DynamicTable::new(TABLE_BYTES), places: Vec::new(), made: 0, resized: None }
    }
}

/// Whether values of this name must never be indexed, here or by an intermediary (RFC 7541 §7.1.3). `entry` is that of the name
/// in the static table.
fn is_secret(entry: Option<usize>, name: &[u8]) -> bool {
    match entry {
        Some(entry) => matches!(entry, 23 | 32 | 49 | 55), // authorization, cookie, proxy-authorization, set-cookie
        None => matches!(name, b"apikey" | b"api-key" | b"x-api-key") || name.ends_with(b"-token"),
    }
}

impl Encoder {
    /// Applies the table size the peer allows (SETTINGS_HEADER_TABLE_SIZE, RFC 9113 §6.5.2), up to `TABLE_BYTES`.
    pub fn resize(&mut self, most: usize) {
        let most = most.min(TABLE_BYTES);
        if most == self.table.max_size() && self.resized.is_none() {
            return;
        }
        self.table.resize(most);
        let smallest = self.resized.map_or(most, |(smallest, _)| smallest.min(most));
        self.resized = Some((smallest, most));
    }

    /// Clears the table and frees its memory. The next section tells the peer so, by a table size of 0 and the former size
    /// (RFC 7541 §4.2, §4.3).
    pub fn forget(&mut self) {
        let most = self.table.max_size();
        if !self.table.is_empty() {
            self.resize(0);
            self.resize(most);
        }
        self.table = DynamicTable::new(most);
        self.places = Vec::new();
    }

    /// Heap memory in use, in bytes.
    pub fn capacity(&self) -> usize {
        self.table.capacity() + self.places.capacity() * size_of::<Place>()
    }

    /// Begins a section: writes pending table size updates.
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        if let Some((smallest, last)) = self.resized.take() {
            if smallest < last {
                integer::write(0x20, 5, smallest, out);
            }
            integer::write(0x20, 5, last, out);
        }
    }

    /// Appends the status of a response.
    pub fn status(&mut self, status: u16, out: &mut Vec<u8>) {
        // RFC 7541, appendix A: the static table has the most frequent ones, as the entries 8 to 14.
        const ENTRIES: [u16; 7] = [200, 204, 206, 304, 400, 404, 500];
        if let Some(at) = ENTRIES.iter().position(|known| *known == status) {
            return out.push(0x88 + at as u8);
        }
        let digits = [status / 100, status / 10, status].map(|digit| b'0' + (digit % 10) as u8);
        self.field(b":status", &digits, out);
    }

    /// Appends a field that was received as never indexed. Its name must be in lower case.
    pub fn never_indexed(&mut self, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
        never_indexed(statics::with_name(name), name, value, out);
    }

    /// Appends a field. Its name must be in lower case.
    pub fn field(&mut self, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
        // Most fields recur, so the dynamic table is searched before the static one.
        let hash = hash(name, value);
        let at = usize::from(hash) % PLACES;
        let place = self.places.get(at).copied().unwrap_or_default();
        let came_before = place.hash == hash;
        if came_before && let Some(index) = self.index_of(place.number, name, value) {
            return integer::write(0x80, 7, statics::ENTRIES.len() + 1 + index, out);
        }
        let known = statics::with_name(name);
        if let Some(entry) = known {
            // Only names of the first 14 entries occur more than once, in adjacent entries.
            let mut at = entry;
            while let Some((other, known_value)) = statics::ENTRIES.get(at - 1)
                && *other == name
                && (at == entry || entry < 15)
            {
                if *known_value == value && !value.is_empty() {
                    return integer::write(0x80, 7, at, out);
                }
                at += 1;
            }
        }
        if is_secret(known, name) {
            return never_indexed(known, name, value, out);
        }
        let again = came_before && name.len() + value.len() + 32 <= self.table.max_size() / 4;
        let number = if again { self.remember(name, value) } else { 0 };
        if self.places.is_empty() {
            self.places = vec![Place::default(); PLACES];
        }
        self.places[at] = Place { hash, number };
        match (again, known) {
            (true, Some(entry)) => integer::write(0x40, 6, entry, out),
            (false, Some(entry)) => integer::write(0, 4, entry, out),
            (_, None) => {
                out.push(if again { 0x40 } else { 0 });
                string(name, out);
            }
        }
        string(value, out);
    }

    /// The index of the entry with this number, if it is still in the table and equals this field.
    fn index_of(&self, number: u16, name: &[u8], value: &[u8]) -> Option<usize> {
        let index = usize::from(self.made.wrapping_sub(number));
        let entry = if number == 0 { None } else { self.table.get(index) };
        entry.is_some_and(|entry| entry.0 == name && entry.1 == value).then_some(index)
    }

    /// Adds an entry and returns its sequence number.
    fn remember(&mut self, name: &[u8], value: &[u8]) -> u16 {
        let start = self.table.begin();
        self.table.draft().extend_from_slice(name);
        self.table.draft().extend_from_slice(value);
        self.table.keep(start, name.len(), FieldClass::Malformed);
        self.made = self.made.wrapping_add(1).max(1);
        self.made
    }
}

/// Writes a literal that no intermediary may index (RFC 7541 §6.2.3).
fn never_indexed(entry: Option<usize>, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    match entry {
        Some(entry) => integer::write(0x10, 4, entry, out),
        None => {
            out.push(0x10);
            string(name, out);
        }
    }
    string(value, out);
}

/// FNV-1a over eight bytes at a time. The last eight may overlap the eight before.
fn hash(name: &[u8], value: &[u8]) -> u16 {
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let mix = |hash: u64, eight: [u8; 8]| (hash ^ u64::from_le_bytes(eight)).wrapping_mul(PRIME).rotate_left(29);
    let mut hash = 0xcbf2_9ce4_8422_2325_u64 ^ (name.len() as u64) << 32 ^ value.len() as u64;
    for bytes in [name, value] {
        hash = bytes.as_chunks().0.iter().fold(hash, |hash, eight| mix(hash, *eight));
        let last = bytes.last_chunk().copied().unwrap_or_else(|| {
            let mut last = [0; 8];
            last[..bytes.len()].copy_from_slice(bytes);
            last
        });
        hash = mix(hash, last);
    }
    (hash >> 48 ^ hash >> 32 ^ hash >> 16 ^ hash) as u16
}

/// Writes a string literal, Huffman-coded if that is shorter (RFC 7541 §5.2).
fn string(text: &[u8], out: &mut Vec<u8>) {
    let coded = huffman::encoded_len(text);
    if coded < text.len() {
        integer::write(0x80, 7, coded, out);
        huffman::encode(text, out);
    } else {
        integer::write(0, 7, text.len(), out);
        out.extend_from_slice(text);
    }
}
