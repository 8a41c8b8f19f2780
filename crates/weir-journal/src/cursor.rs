//! A sequence number that survives a crash: the position of a reader.

use std::io;
use std::sync::Arc;

use crate::Seq;
use crate::storage::{File, Storage};

/// Length of a slot: generation (8 bytes), sequence number (8), CRC-32 of both (4).
const SLOT_BYTES: usize = 20;
/// Offsets of the two slots, in different disk sectors, so that a torn write leaves the other slot intact.
const SLOT_OFFSETS: [u64; 2] = [0, 4096];

/// A file with the sequence number its owner has reached. Writes alternate between two slots, so the previous number survives a
/// failed write.
pub struct Cursor {
    file: Arc<dyn File>,
    generation: u64,
    seq: Seq,
}

impl Cursor {
    /// Opens the cursor, or creates it with the number 0. A file without a valid slot counts as new: the owner starts at the
    /// oldest record, so records are repeated rather than skipped.
    ///
    /// # Errors
    /// The file can be neither read nor created.
    pub fn open(storage: &dyn Storage, name: &str) -> io::Result<Cursor> {
        let file = match storage.open(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let file = storage.create(name)?;
                storage.sync()?;
                file
            }
            file => file?,
        };
        let mut newest = (0, 0);
        for offset in SLOT_OFFSETS {
            newest = newest.max(read_slot(&*file, offset)?.unwrap_or_default());
        }
        Ok(Cursor { file, generation: newest.0, seq: newest.1 })
    }

    /// The last record that was processed; 0 before the first.
    pub fn seq(&self) -> Seq {
        self.seq
    }

    /// Stores a number. It survives a crash of the process from here on, and a power loss after [`Cursor::sync`].
    ///
    /// # Errors
    /// It could not be written; the previous number is still stored.
    pub fn store(&mut self, seq: Seq) -> io::Result<()> {
        let generation = self.generation + 1;
        let mut slot = [0; SLOT_BYTES];
        slot[..8].copy_from_slice(&generation.to_le_bytes());
        slot[8..16].copy_from_slice(&seq.to_le_bytes());
        let crc = crc32fast::hash(&slot[..16]);
        slot[16..].copy_from_slice(&crc.to_le_bytes());
        self.file.write_at(&slot, SLOT_OFFSETS[(generation % 2) as usize])?;
        (self.generation, self.seq) = (generation, seq);
        Ok(())
    }

    /// # Errors
    /// The disk has not confirmed the write.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
}

/// Generation and number, if the slot is valid.
fn read_slot(file: &dyn File, offset: u64) -> io::Result<Option<(u64, Seq)>> {
    let mut slot = [0; SLOT_BYTES];
    if file.read_at(&mut slot, offset)? < SLOT_BYTES {
        return Ok(None);
    }
    let number = |at: usize| u64::from_le_bytes(slot[at..at + 8].try_into().expect("eight bytes"));
    let crc = u32::from_le_bytes(slot[16..].try_into().expect("four bytes"));
    // A slot of zeros has a valid checksum, but generation 0, which is never written.
    let is_whole = crc == crc32fast::hash(&slot[..16]) && number(0) > 0;
    Ok(is_whole.then(|| (number(0), number(8))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation::Simulated;

    #[test]
    fn a_torn_write_leaves_the_number_before() {
        let storage = Simulated::new(1);
        let mut cursor = Cursor::open(&storage, "cursor").expect("it is made");
        assert_eq!(cursor.seq(), 0);
        cursor.store(7).expect("written");
        cursor.store(8).expect("written");
        let file = storage.open("cursor").expect("it is there");
        file.write_at(&[0xff; 5], SLOT_OFFSETS[0] + 6).expect("written");
        assert_eq!(Cursor::open(&storage, "cursor").expect("it opens").seq(), 7);
        file.write_at(&[0xff; 5], SLOT_OFFSETS[1] + 6).expect("written");
        assert_eq!(Cursor::open(&storage, "cursor").expect("it opens").seq(), 0);
    }
}
