//! Field sections for the peer.

use super::statics;
use super::table::DynamicTable;
use super::{TABLE_BYTES, huffman, integer};
use crate::h2::class::Class;

/// Places by hash: of the entries of the table, and of fields that came once. More entries than half of them do not fit
/// into a table of 4 KiB.
const PLACES: usize = 128;

/// A place: the hash of what stands there, and which of all entries ever made it is. Idle connections keep their places, so
/// they are small; two fields of one hash cost a look at the table or an entry that comes early, and numbers begin anew.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    hash: u16,
    /// Counted from 1; 0 where it came once, and is no entry yet.
    number: u16,
}

/// One direction's memory.
///
/// A field becomes an entry when it comes for the second time: what has another value in each message (an identifier, a
/// length) would only push out what comes again.
#[derive(Debug)]
pub struct Encoder {
    table: DynamicTable,
    places: Vec<Place>,
    /// Entries ever made.
    made: u16,
    /// The sizes of the table that the peer has to be told of: the smallest since the last section, and the last one.
    resized: Option<(usize, usize)>,
}

impl Default for Encoder {
    fn default() -> Encoder {
        Encoder { table: DynamicTable::new(TABLE_BYTES), places: Vec::new(), made: 0, resized: None }
    }
}

/// Names whose values are not to be remembered by anybody (RFC 7541 §7.1.3).
fn is_secret(entry: Option<usize>) -> bool {
    matches!(entry, Some(23 | 32 | 49 | 55)) // authorization, cookie, proxy-authorization, set-cookie
}

impl Encoder {
    /// The peer has said how large a table it keeps (RFC 9113 §6.5.2).
    pub fn resize(&mut self, most: usize) {
        let most = most.min(TABLE_BYTES);
        if most == self.table.max_size() && self.resized.is_none() {
            return;
        }
        self.table.resize(most);
        let smallest = self.resized.map_or(most, |(smallest, _)| smallest.min(most));
        self.resized = Some((smallest, most));
    }

    /// Forgets all fields and gives back their memory. The peer is told in the next section, by a table of no size for a moment
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

    /// Memory taken, in bytes.
    pub fn capacity(&self) -> usize {
        self.table.capacity() + self.places.capacity() * size_of::<Place>()
    }

    /// Begins a section.
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

    /// Appends a field. Its name must be in lower case.
    pub fn field(&mut self, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
        // Most fields come again and again, so the table is asked first.
        let hash = hash(name, value);
        let at = usize::from(hash) % PLACES;
        let place = self.places.get(at).copied().unwrap_or_default();
        let came_before = place.hash == hash;
        if came_before && let Some(index) = self.index_of(place.number, name, value) {
            return integer::write(0x80, 7, statics::ENTRIES.len() + 1 + index, out);
        }
        let known = statics::with_name(name);
        if let Some(entry) = known {
            // Few names have more than one entry, and those stand together.
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
            if is_secret(known) {
                integer::write(0x10, 4, entry, out);
                return string(value, out);
            }
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

    /// Where the entry of this number stands, if it is there still and this field.
    fn index_of(&self, number: u16, name: &[u8], value: &[u8]) -> Option<usize> {
        let index = usize::from(self.made.wrapping_sub(number));
        let entry = if number == 0 { None } else { self.table.get(index) };
        entry.is_some_and(|entry| entry.0 == name && entry.1 == value).then_some(index)
    }

    /// Makes an entry, and says which it is.
    fn remember(&mut self, name: &[u8], value: &[u8]) -> u16 {
        let start = self.table.begin();
        self.table.draft().extend_from_slice(name);
        self.table.draft().extend_from_slice(value);
        self.table.keep(start, name.len(), Class::Malformed);
        self.made = self.made.wrapping_add(1).max(1);
        self.made
    }
}

/// FNV-1a, over eight bytes at a time. The last eight may be some of those before once more.
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

/// Writes a string, in the shorter of its two forms (RFC 7541 §5.2).
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
