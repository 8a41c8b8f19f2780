//! A number that survives a crash: how far a reader has got.

use std::io;
use std::sync::Arc;

use crate::Seq;
use crate::storage::{File, Storage};

/// Generation, sequence number, checksum of both.
const SLOT_BYTES: usize = 20;
/// Two slots, each within a sector of its own, so that a torn write leaves the other whole.
const SLOT_OFFSETS: [u64; 2] = [0, 4096];

/// A file with the sequence number that its owner has reached. Written in turns to two slots: whatever happens during a
/// write, the number before is still there.
pub struct Cursor {
    file: Arc<dyn File>,
    generation: u64,
    seq: Seq,
}

impl Cursor {
    /// Opens the cursor, or makes it with the number 0. A file that holds no valid slot counts as new: the owner begins at
    /// the oldest record, and repeats instead of skipping.
    ///
    /// # Errors
    /// The file can be neither read nor made.
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

    /// The last record that is done with; 0 before the first.
    pub fn seq(&self) -> Seq {
        self.seq
    }

    /// Writes a number down. It survives the death of the process from here on, and a loss of power after [`Cursor::sync`].
    ///
    /// # Errors
    /// It could not be written; the number before still stands.
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
    /// The disk has not taken it.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
}

/// Generation and number, if the slot is whole.
fn read_slot(file: &dyn File, offset: u64) -> io::Result<Option<(u64, Seq)>> {
    let mut slot = [0; SLOT_BYTES];
    if file.read_at(&mut slot, offset)? < SLOT_BYTES {
        return Ok(None);
    }
    let number = |at: usize| u64::from_le_bytes(slot[at..at + 8].try_into().expect("eight bytes"));
    let crc = u32::from_le_bytes(slot[16..].try_into().expect("four bytes"));
    // A slot of zeros has the checksum of zeros, but no generation.
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
