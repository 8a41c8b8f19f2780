//! A record of the journal: some cells of a table. Reading all records in order gives the table, since a later record of a cell
//! replaces an earlier one.
//!
//! ```text
//! record = version u8 | fingerprint of the table's secret u64 | cells of the table u32 | cell*
//! cell   = number u32 | word u128                                             little-endian
//! ```

use crate::store::counters::{CounterTable, PackedCounter, StoredCell};

const VERSION: u8 = 1;
/// The bytes of a cell.
pub(super) const CELL_BYTES: usize = 4 + 16;
/// The most cells of one record: a megabyte.
const MOST_CELLS: usize = 50_000;
/// The largest record in bytes.
pub(super) const MAX_BYTES: usize = size_of::<RecordHead>() + MOST_CELLS * CELL_BYTES;

/// What must be the same for cells to mean the same.
pub(super) type RecordHead = [u8; 13];

pub(super) fn head<C: PackedCounter>(table: &CounterTable<C>) -> RecordHead {
    let fingerprint = table.secret().hash(0, b"fingerprint");
    let mut head = [VERSION; size_of::<RecordHead>()];
    head[1..9].copy_from_slice(&fingerprint.to_le_bytes());
    head[9..].copy_from_slice(&(table.cell_count() as u32).to_le_bytes());
    head
}

pub(super) fn encode(head: RecordHead, cells: &[StoredCell]) -> impl Iterator<Item = Vec<u8>> {
    cells.chunks(MOST_CELLS).map(move |cells| {
        let mut record = Vec::with_capacity(head.len() + cells.len() * CELL_BYTES);
        record.extend_from_slice(&head);
        for StoredCell { number, word } in cells {
            record.extend_from_slice(&number.to_le_bytes());
            record.extend_from_slice(&word.to_le_bytes());
        }
        record
    })
}

/// The cells of a record; `None` if it is of another table.
pub(super) fn decode(head: RecordHead, record: &[u8]) -> Option<impl Iterator<Item = StoredCell>> {
    let (cells, []) = record.strip_prefix(&head)?.as_chunks::<CELL_BYTES>() else { return None };
    Some(cells.iter().map(|cell| {
        let (number, word) = cell.split_first_chunk().expect("longer than a number");
        let word = word.try_into().expect("the rest of it");
        StoredCell { number: u32::from_le_bytes(*number), word: u128::from_le_bytes(word) }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_read_as_they_were_written_and_only_for_their_table() {
        let cell = |number: u32| StoredCell { number, word: u128::from(number) << 90 | 7 };
        let cells: Vec<_> = (0..MOST_CELLS as u32 + 1).map(cell).collect();
        let head = [VERSION; size_of::<RecordHead>()];
        let records: Vec<_> = encode(head, &cells).collect();
        assert_eq!(records.iter().map(Vec::len).collect::<Vec<_>>(), [MAX_BYTES, head.len() + CELL_BYTES]);
        let read: Vec<_> = records.iter().flat_map(|record| decode(head, record).expect("of this table")).collect();
        assert_eq!(read, cells);
        let other = [VERSION + 1; size_of::<RecordHead>()];
        assert!(decode(other, &records[1]).is_none());
        assert!(decode(head, &records[1][..records[1].len() - 1]).is_none());
    }
}
