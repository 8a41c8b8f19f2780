//! The dynamic table (RFC 7541 §2.3.2): the most recent fields, in order of insertion, up to a total size.

use std::collections::VecDeque;

use crate::h2::class::FieldClass;

/// The size an entry counts in addition to its bytes (RFC 7541 §4.1).
const OVERHEAD: usize = 32;

#[derive(Clone, Copy, Debug)]
struct TableEntry {
    /// Offset of the entry, counted from the first byte the table ever held (wrapping).
    start: u32,
    name: u16,
    value: u16,
    class: FieldClass,
}

impl TableEntry {
    fn size(self) -> usize {
        usize::from(self.name) + usize::from(self.value) + OVERHEAD
    }
}

/// Entries are stored back to back in one buffer. Evicted bytes at its front are reclaimed, by moving the rest, once they are as
/// many as the rest.
#[derive(Debug)]
pub(super) struct DynamicTable {
    bytes: Vec<u8>,
    /// Offset of the first byte of `bytes`, counted like `TableEntry::start`.
    base: u32,
    /// The oldest first.
    entries: VecDeque<TableEntry>,
    /// Size as defined by RFC 7541 §4.1.
    size: usize,
    most: usize,
}

/// Evicted bytes below which reclaiming is not worth the move.
const LITTLE: usize = 256;

impl DynamicTable {
    pub(super) fn new(most: usize) -> DynamicTable {
        DynamicTable { bytes: Vec::new(), base: 0, entries: VecDeque::new(), size: 0, most }
    }

    pub(super) fn max_size(&self) -> usize {
        self.most
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Heap memory in use, in bytes.
    pub(super) fn capacity(&self) -> usize {
        self.bytes.capacity() + self.entries.capacity() * size_of::<TableEntry>()
    }

    /// Name, value and class of an entry; index 0 is the newest.
    pub(super) fn get(&self, index: usize) -> Option<(&[u8], &[u8], FieldClass)> {
        let at = self.entries.len().checked_sub(index + 1)?;
        let entry = self.entries[at];
        let start = entry.start.wrapping_sub(self.base) as usize;
        let (name, value) = (usize::from(entry.name), usize::from(entry.value));
        let (name, value) = self.bytes[start..start + name + value].split_at(name);
        Some((name, value, entry.class))
    }

    /// Changes the maximum size, and evicts entries beyond it (RFC 7541 §4.3).
    pub(super) fn resize(&mut self, most: usize) {
        self.most = most;
        self.drop_until(most);
    }

    /// Buffer in which a field is assembled before it is known whether it becomes an entry. Afterwards it must be removed with
    /// [`DynamicTable::discard`] or kept with [`DynamicTable::keep`].
    pub(super) fn draft(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Begins to assemble a field; returns its offset in [`DynamicTable::draft`].
    pub(super) fn begin(&mut self) -> usize {
        let dead = self.entries.front().map_or(self.bytes.len(), |entry| entry.start.wrapping_sub(self.base) as usize);
        if dead >= LITTLE.max(self.bytes.len() - dead) {
            self.bytes.drain(..dead);
            self.base = self.base.wrapping_add(dead as u32);
        }
        self.bytes.len()
    }

    /// Appends the name of an entry to the field being assembled, and returns the entry's class.
    pub(super) fn copy_name(&mut self, index: usize) -> Option<FieldClass> {
        let at = self.entries.len().checked_sub(index + 1)?;
        let TableEntry { start, name, class, .. } = self.entries[at];
        let start = start.wrapping_sub(self.base) as usize;
        self.bytes.extend_from_within(start..start + usize::from(name));
        Some(class)
    }

    /// Removes the field assembled from `start` on.
    pub(super) fn discard(&mut self, start: usize) {
        self.bytes.truncate(start);
        // A single long string must not occupy memory for the lifetime of the connection.
        if self.bytes.capacity() > 2 * super::TABLE_BYTES + LITTLE {
            self.bytes.shrink_to(2 * super::TABLE_BYTES);
        }
    }

    /// Makes the field assembled from `start` on, whose name has `name` bytes, an entry. A field larger than the table empties
    /// it (RFC 7541 §4.4).
    pub(super) fn keep(&mut self, start: usize, name: usize, class: FieldClass) {
        let value = self.bytes.len() - start - name;
        let size = name + value + OVERHEAD;
        if size > self.most {
            self.drop_until(0);
            return self.discard(start);
        }
        self.drop_until(self.most - size);
        self.size += size;
        // Both lengths are less than the table's size, so they fit 16 bits.
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
