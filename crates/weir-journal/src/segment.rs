//! One file of a journal.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Seq;
use crate::frame::{self, Decoded, Frame};
use crate::storage::File;

const MAGIC: [u8; 8] = *b"WEIRJRNL";
const VERSION: u32 = 1;
const SUFFIX: &str = ".segment";
pub(crate) const HEADER_BYTES: u64 = 40;

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The journal's id, a random number.
    pub id: u64,
    /// The number of the first record the segment may contain.
    pub first_seq: Seq,
    /// The last committed record when the segment was begun. Numbers missing between the previous segment's last record and
    /// `follows` are lost records; numbers between `follows` and `first_seq` were never committed.
    pub follows: Seq,
}

/// Why the first bytes of a file are not a header.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HeaderError {
    Broken,
    /// A valid header of a format version that this program does not support.
    Version(u32),
}

impl Header {
    pub(crate) fn encode(self) -> [u8; HEADER_BYTES as usize] {
        let mut bytes = [0; HEADER_BYTES as usize];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.id.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.first_seq.to_le_bytes());
        bytes[32..].copy_from_slice(&self.follows.to_le_bytes());
        let crc = header_checksum(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Header, HeaderError> {
        let bytes: &[u8; HEADER_BYTES as usize] = bytes.first_chunk().ok_or(HeaderError::Broken)?;
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let (version, crc) = (number(8) as u32, (number(8) >> 32) as u32);
        if bytes[..8] != MAGIC || crc != header_checksum(bytes) {
            return Err(HeaderError::Broken);
        }
        if version != VERSION {
            return Err(HeaderError::Version(version));
        }
        Ok(Header { id: number(16), first_seq: number(24), follows: number(32) })
    }
}

fn header_checksum(bytes: &[u8; HEADER_BYTES as usize]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&bytes[..12]);
    hasher.update(&bytes[16..]);
    hasher.finalize()
}

pub(crate) fn name(first_seq: Seq) -> String {
    format!("{first_seq:020}{SUFFIX}")
}

/// The first record of the segment with this file name; `None` for other files.
pub(crate) fn parse_name(name: &str) -> Option<Seq> {
    let digits = name.strip_suffix(SUFFIX)?;
    let is_number = digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().ok()).flatten().filter(|seq| *seq > 0)
}

/// A segment, shared by the writer and the readers.
#[derive(Debug)]
pub(crate) struct Segment {
    pub name: String,
    pub header: Header,
    /// The end of the committed frames in bytes; readers stop there.
    pub committed_bytes: AtomicU64,
    /// The last committed record; 0 if there is none.
    pub last_seq: AtomicU64,
    pub records: AtomicU64,
    /// The time of the newest record, in ms since 1970.
    pub newest_ms: AtomicU64,
}

impl Segment {
    pub(crate) fn new(name: String, header: Header) -> Segment {
        Segment {
            name,
            header,
            committed_bytes: AtomicU64::new(HEADER_BYTES),
            last_seq: AtomicU64::new(0),
            records: AtomicU64::new(0),
            newest_ms: AtomicU64::new(0),
        }
    }

    /// Publishes frames up to `bytes` to readers. Called by the writer only.
    pub(crate) fn commit(&self, bytes: u64, last_seq: Seq, records: u64, newest_ms: u64) {
        self.last_seq.store(last_seq, Ordering::Relaxed);
        self.records.fetch_add(records, Ordering::Relaxed);
        self.newest_ms.fetch_max(newest_ms, Ordering::Relaxed);
        self.committed_bytes.store(bytes, Ordering::Release);
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.committed_bytes.load(Ordering::Acquire)
    }

    /// The last record, or `first_seq - 1` if there is none.
    pub(crate) fn last_seq(&self) -> Seq {
        match self.last_seq.load(Ordering::Relaxed) {
            0 => self.header.first_seq - 1,
            last => last,
        }
    }
}

/// Reads the frames of a segment in order.
pub(crate) struct Frames {
    file: Arc<dyn File>,
    id: u64,
    max_payload: u32,
    chunk_bytes: usize,
    buffer: Vec<u8>,
    /// Offset of the buffer in the file.
    offset: u64,
    /// Bytes of the buffer already read.
    at: usize,
    /// The last frame that was read or skipped.
    last: Seq,
}

/// The result of [`Frames::peek`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeekedFrame {
    /// A valid frame with this number. A gap before it is damage that was skipped.
    Frame(Seq),
    /// No further valid frame before the limit, but this many bytes that are not a frame.
    End { broken_bytes: u64 },
}

impl Frames {
    /// Starts at the first frame. `chunk_bytes` are read at a time.
    pub(crate) fn new(file: Arc<dyn File>, header: Header, max_payload: u32, chunk_bytes: usize) -> Frames {
        Frames {
            file,
            id: header.id,
            max_payload,
            chunk_bytes,
            buffer: Vec::new(),
            offset: HEADER_BYTES,
            at: 0,
            last: header.first_seq - 1,
        }
    }

    /// Offset of the next frame in the file.
    pub(crate) fn position(&self) -> u64 {
        self.offset + self.at as u64
    }

    /// Finds the next frame before `limit` whose number is greater than `after`.
    pub(crate) fn peek(&mut self, limit: u64, after: Seq) -> io::Result<PeekedFrame> {
        loop {
            match frame::decode(&self.buffer[self.at..], self.id, self.max_payload) {
                Decoded::Whole(frame, _) if frame.seq > after.max(self.last) => {
                    return Ok(PeekedFrame::Frame(frame.seq));
                }
                Decoded::Whole(frame, total) if frame.seq > self.last => {
                    self.last = frame.seq;
                    self.at += total;
                }
                Decoded::Partial(needed) if self.position() + needed as u64 <= limit => self.fill(needed, limit)?,
                _ if self.position() >= limit => return Ok(PeekedFrame::End { broken_bytes: 0 }),
                _ => match self.pass_damage(limit)? {
                    0 => {}
                    broken_bytes => return Ok(PeekedFrame::End { broken_bytes }),
                },
            }
        }
    }

    /// The frame found by [`Frames::peek`].
    pub(crate) fn take(&mut self) -> Frame<'_> {
        let begin = self.at;
        match frame::decode(&self.buffer[begin..], self.id, self.max_payload) {
            Decoded::Whole(frame, total) => {
                self.at += total;
                self.last = frame.seq;
                frame
            }
            _ => unreachable!("`peek` has found a whole frame here"),
        }
    }

    /// Moves to the next valid frame and returns 0. Without one the position is unchanged, and the number of bytes left is
    /// returned.
    fn pass_damage(&mut self, limit: u64) -> io::Result<u64> {
        let left = limit - self.position();
        self.fill(left as usize, limit)?;
        match frame::resync(&self.buffer[self.at..], self.id, self.max_payload, self.last) {
            Some(next) => {
                self.at += next;
                Ok(0)
            }
            None => Ok(left),
        }
    }

    /// Reads until the buffer contains `needed` bytes, or everything before `limit`.
    fn fill(&mut self, needed: usize, limit: u64) -> io::Result<()> {
        self.buffer.drain(..self.at);
        self.offset += self.at as u64;
        self.at = 0;
        let have = self.buffer.len();
        let end = (self.offset + needed.max(self.chunk_bytes) as u64).min(limit);
        let wanted = (end - self.offset) as usize;
        if wanted <= have {
            return Ok(());
        }
        self.buffer.resize(wanted, 0);
        let result = self.file.read_at(&mut self.buffer[have..], self.offset + have as u64);
        // If the file is shorter than expected the rest stays zero, which is not a frame.
        if let Err(error) = result {
            self.buffer.truncate(have);
            return Err(error);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_as_they_were_written() {
        let header = Header { id: 3, first_seq: 10, follows: 8 };
        let mut bytes = header.encode();
        assert_eq!(Header::decode(&bytes), Ok(header));
        bytes[25] ^= 4;
        assert_eq!(Header::decode(&bytes), Err(HeaderError::Broken));
        assert_eq!(Header::decode(&bytes[..39]), Err(HeaderError::Broken));
    }

    #[test]
    fn names_sort_as_their_numbers() {
        assert_eq!(parse_name(&name(7)), Some(7));
        assert!(name(9) < name(10) && name(10) < name(u64::MAX));
        for other in ["cursor", "7.segment", "00000000000000000000.segment", "00000000000000000001.segment.bad"] {
            assert_eq!(parse_name(other), None, "{other}");
        }
    }
}
