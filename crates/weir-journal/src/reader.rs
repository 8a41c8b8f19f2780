//! Reads committed records in order.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::Seq;
use crate::log::JournalShared;
use crate::segment::{Frames, PeekedFrame, Segment};

/// The next item of a reader.
#[derive(Debug, PartialEq, Eq)]
pub enum Item<'a> {
    Record {
        seq: Seq,
        time_ms: u64,
        payload: &'a [u8],
    },
    /// These records no longer exist: released, expired, removed to make room, or damaged on disk.
    Gone {
        first: Seq,
        last: Seq,
    },
}

/// A position in a journal. Readers are independent of each other and of the writer.
pub struct Reader {
    shared: Arc<JournalShared>,
    /// The last record that was returned or skipped.
    seq: Seq,
    chunk_bytes: usize,
    open: Option<(Arc<Segment>, Frames)>,
}

impl Reader {
    pub(crate) fn new(shared: Arc<JournalShared>, after: Seq, chunk_bytes: usize) -> Reader {
        Reader { shared, seq: after, chunk_bytes, open: None }
    }

    /// The last record that was returned or skipped.
    pub fn seq(&self) -> Seq {
        self.seq
    }

    /// The next record, or the gap before it; `None` if there is none yet.
    ///
    /// # Errors
    /// A segment cannot be read. The next call tries the same record again; [`Reader::skip_segment`] skips it.
    pub fn read(&mut self) -> io::Result<Option<Item<'_>>> {
        if self.seq >= self.shared.committed.load(Ordering::Acquire) {
            return Ok(None);
        }
        loop {
            if self.open.is_none() {
                let Some(segment) = self.segment_after(self.seq) else { return Ok(None) };
                let follows = segment.header.follows;
                if follows > self.seq {
                    let first = self.seq + 1;
                    self.seq = follows;
                    return Ok(Some(Item::Gone { first, last: follows }));
                }
                self.seq = self.seq.max(segment.header.first_seq - 1);
                match self.open_segment(Arc::clone(&segment)) {
                    // The segment was removed just now and is no longer listed. If it is still listed, its file was removed from
                    // outside.
                    Err(error) if error.kind() == io::ErrorKind::NotFound && !self.is_listed(&segment) => continue,
                    opened => opened?,
                }
            }
            // This must be checked before the peek: a segment that is not the newest gets no more frames.
            let is_newest = self.is_newest();
            let (segment, frames) = self.open.as_mut().expect("it has been opened");
            match frames.peek(segment.bytes(), self.seq)? {
                PeekedFrame::Frame(seq) if seq > self.seq + 1 => {
                    let first = self.seq + 1;
                    self.seq = seq - 1;
                    return Ok(Some(Item::Gone { first, last: seq - 1 }));
                }
                PeekedFrame::Frame(_) => break,
                PeekedFrame::End { .. } if is_newest => return Ok(None),
                PeekedFrame::End { .. } => {
                    // Its last records were committed, and have become unreadable since.
                    let (first, last) = (self.seq + 1, segment.last_seq());
                    self.open = None;
                    if first <= last {
                        self.seq = last;
                        return Ok(Some(Item::Gone { first, last }));
                    }
                }
            }
        }
        self.seq += 1;
        let (_, frames) = self.open.as_mut().expect("a frame was found in it");
        let frame = frames.take();
        Ok(Some(Item::Record { seq: frame.seq, time_ms: frame.time_ms, payload: frame.payload }))
    }

    /// Skips the rest of a segment that cannot be read; returns the range of skipped records.
    pub fn skip_segment(&mut self) -> Option<(Seq, Seq)> {
        let segment = match self.open.take() {
            Some((segment, _)) => segment,
            None => self.segment_after(self.seq)?,
        };
        let (first, last) = (self.seq + 1, segment.last_seq());
        self.seq = self.seq.max(last);
        (first <= last).then_some((first, last))
    }

    /// The oldest segment with records after this one.
    fn segment_after(&self, seq: Seq) -> Option<Arc<Segment>> {
        self.shared.segments().iter().find(|segment| segment.last_seq() > seq).cloned()
    }

    fn is_listed(&self, segment: &Arc<Segment>) -> bool {
        self.shared.segments().iter().any(|listed| Arc::ptr_eq(listed, segment))
    }

    fn is_newest(&self) -> bool {
        let segments = self.shared.segments();
        matches!((&self.open, segments.back()), (Some((open, _)), Some(newest)) if Arc::ptr_eq(open, newest))
    }

    fn open_segment(&mut self, segment: Arc<Segment>) -> io::Result<()> {
        let file = self.shared.storage.open(&segment.name)?;
        let header = segment.header;
        self.open = Some((segment, Frames::new(file, header, self.shared.max_record_bytes, self.chunk_bytes)));
        Ok(())
    }
}
