//! The dynamic table (RFC 7541 §2.3.2): fields in the order of their coming, as long as they fit.

use std::collections::VecDeque;

use crate::h2::class::Class;

/// What an entry takes beside its bytes (RFC 7541 §4.1).
const OVERHEAD: usize = 32;

#[derive(Clone, Copy, Debug)]
struct TableEntry {
    /// Counted from the first byte that the table has ever held.
    start: u32,
    name: u16,
    value: u16,
    class: Class,
}

impl TableEntry {
    fn size(self) -> usize {
        usize::from(self.name) + usize::from(self.value) + OVERHEAD
    }
}

/// Entries stand one after another in one piece of memory; what has been dropped from its beginning is moved over when
/// there is as much of it as of the rest.
#[derive(Debug)]
pub struct DynamicTable {
    bytes: Vec<u8>,
    /// The number of the first byte.
    base: u32,
    /// The oldest first.
    entries: VecDeque<TableEntry>,
    /// As RFC 7541 §4.1 counts it.
    size: usize,
    most: usize,
}

/// Dropped bytes that are not worth moving the others for.
const LITTLE: usize = 256;

impl DynamicTable {
    pub fn new(most: usize) -> DynamicTable {
        DynamicTable { bytes: Vec::new(), base: 0, entries: VecDeque::new(), size: 0, most }
    }

    pub fn max_size(&self) -> usize {
        self.most
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Memory taken, in bytes.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity() + self.entries.capacity() * size_of::<TableEntry>()
    }

    /// Name, value and class of an entry; 0 is the newest.
    pub fn get(&self, index: usize) -> Option<(&[u8], &[u8], Class)> {
        let at = self.entries.len().checked_sub(index + 1)?;
        let entry = self.entries[at];
        let start = entry.start.wrapping_sub(self.base) as usize;
        let (name, value) = (usize::from(entry.name), usize::from(entry.value));
        let (name, value) = self.bytes[start..start + name + value].split_at(name);
        Some((name, value, entry.class))
    }

    /// Changes how much it may hold (RFC 7541 §4.3).
    pub fn resize(&mut self, most: usize) {
        self.most = most;
        self.drop_until(most);
    }

    /// Where a field may be put together before it is known whether it becomes an entry. It has to be taken back with
    /// [`DynamicTable::discard`] or kept with [`DynamicTable::keep`].
    pub fn draft(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Begins to put a field together; says where.
    pub fn begin(&mut self) -> usize {
        let dead = self.entries.front().map_or(self.bytes.len(), |entry| entry.start.wrapping_sub(self.base) as usize);
        if dead >= LITTLE.max(self.bytes.len() - dead) {
            self.bytes.drain(..dead);
            self.base = self.base.wrapping_add(dead as u32);
        }
        self.bytes.len()
    }

    /// Appends the name of an entry to what is put together, and says what that entry is.
    pub fn copy_name(&mut self, index: usize) -> Option<Class> {
        let at = self.entries.len().checked_sub(index + 1)?;
        let TableEntry { start, name, class, .. } = self.entries[at];
        let start = start.wrapping_sub(self.base) as usize;
        self.bytes.extend_from_within(start..start + usize::from(name));
        Some(class)
    }

    /// Takes back what was put together from `start` on.
    pub fn discard(&mut self, start: usize) {
        self.bytes.truncate(start);
        // One long string must not stay in memory for as long as the connection.
        if self.bytes.capacity() > 2 * super::TABLE_BYTES + LITTLE {
            self.bytes.shrink_to(2 * super::TABLE_BYTES);
        }
    }

    /// Makes an entry of what was put together from `start` on, with a name of so many bytes. One larger than the table
    /// empties it (RFC 7541 §4.4).
    pub fn keep(&mut self, start: usize, name: usize, class: Class) {
        let value = self.bytes.len() - start - name;
        let size = name + value + OVERHEAD;
        if size > self.most {
            self.drop_until(0);
            return self.discard(start);
        }
        self.drop_until(self.most - size);
        self.size += size;
        // Both are smaller than the table.
        let (name, value) = (name as u16, value as u16);
        self.entries.push_back(TableEntry { start: self.base.wrapping_add(start as u32), name, value, class });
    }

    fn drop_until(&mut self, most: usize) {
        while self.size > most {
            let entry = self.entries.pop_front().expect("what has a size has an entry");
            self.size -= entry.size();
        }
    }
}
