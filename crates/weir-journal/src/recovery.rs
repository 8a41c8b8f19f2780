//! Recovery: reads and repairs a journal when it is opened.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::Seq;
use crate::options::Options;
use crate::segment::{Frames, HEADER_BYTES, Header, HeaderError, PeekedFrame, Segment, name, parse_name};
use crate::storage::{File, Storage};

const SCAN_BYTES: usize = 1 << 20;

/// The result of opening a journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Records that can be read.
    pub records: u64,
    /// Length of all segments in bytes.
    pub bytes: u64,
    /// The newest record; 0 if there is none.
    pub last_seq: Seq,
    pub damage: Vec<Damage>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Damage {
    /// Bytes at the end of a segment that are not a record: a write cut short by a crash, or a damaged last record.
    TornTail { segment: String, bytes: u64 },
    /// Records `first` to `last` were committed and are lost.
    Lost { first: Seq, last: Seq },
    /// The segment's header was damaged; its records were found by their checksums.
    Header { segment: String },
    /// Nothing in the segment can be read. The file was renamed.
    SetAside { segment: String, renamed: String, bytes: u64 },
}

impl Recovery {
    /// The number of lost records, as far as gaps in the sequence show.
    pub fn lost(&self) -> u64 {
        let lost = |damage: &Damage| if let Damage::Lost { first, last } = damage { last - first + 1 } else { 0 };
        self.damage.iter().map(lost).sum()
    }
}

/// The recovered segments of a journal.
pub(crate) struct RecoveredSegments {
    pub id: u64,
    /// The lowest number for the next record.
    pub next_seq: Seq,
    pub segments: VecDeque<Arc<Segment>>,
    pub recovery: Recovery,
}

/// Reads every segment. Damage is repaired or skipped; the error is a directory or file that cannot be read.
pub(crate) fn recover(storage: &dyn Storage, options: &Options) -> io::Result<RecoveredSegments> {
    let mut names: Vec<_> = storage.list()?.into_iter().filter_map(|name| Some((parse_name(&name)?, name))).collect();
    names.sort();
    let mut found = Vec::new();
    for (first_seq, name) in names {
        let file = storage.open(&name)?;
        let header = read_header(&*file, &name)?;
        found.push(SegmentSummary { first_seq, name, file, header });
    }
    let id = found.iter().find_map(|found| Some(found.header?.id)).unwrap_or_else(new_id);
    // Even if nothing in the segment can be read, its name shows which numbers have been used.
    let newest_name = found.last().map_or(1, |found| found.first_seq);
    // From the newest to the oldest: a failed batch may have left records after the end of its segment, whose numbers were then
    // used again for records in a later segment.
    let mut scanned = VecDeque::new();
    let mut until = Seq::MAX;
    for found in found.into_iter().rev() {
        let one = scan(found, id, until, options.max_record_bytes)?;
        if one.has_records() {
            until = one.segment.header.first_seq;
        }
        scanned.push_front(one);
    }
    let mut recoverer = Recoverer { storage, segments: VecDeque::new(), damage: Vec::new(), changed: false };
    while let Some(one) = scanned.pop_front() {
        recoverer.take(one, scanned.is_empty())?;
    }
    if recoverer.changed {
        storage.sync()?;
    }
    let Recoverer { segments, damage, .. } = recoverer;
    let recovery = Recovery {
        records: segments.iter().map(|segment| segment.records.load(Ordering::Relaxed)).sum(),
        bytes: segments.iter().map(|segment| segment.bytes()).sum(),
        last_seq: segments.back().map_or(0, |segment| segment.last_seq()),
        damage,
    };
    let next_seq = newest_name.max(recovery.last_seq + 1).max(options.min_next_seq);
    Ok(RecoveredSegments { id, next_seq, segments, recovery })
}

struct SegmentSummary {
    first_seq: Seq,
    name: String,
    file: Arc<dyn File>,
    header: Option<Header>,
}

fn read_header(file: &dyn File, name: &str) -> io::Result<Option<Header>> {
    let mut bytes = [0; HEADER_BYTES as usize];
    let count = file.read_at(&mut bytes, 0)?;
    match Header::decode(&bytes[..count]) {
        Ok(header) => Ok(Some(header)),
        Err(HeaderError::Broken) => Ok(None),
        Err(HeaderError::Version(version)) => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{name} has format {version}, which this version cannot read; a newer version wrote the file"),
        )),
    }
}

/// Ids of journals must differ, and must not be predictable by clients whose data becomes payloads.
fn new_id() -> u64 {
    RandomState::new().hash_one(std::time::SystemTime::now()) | 1
}

/// A segment whose frames have been read.
struct ScannedSegment {
    segment: Segment,
    file: Arc<dyn File>,
    /// The header is valid, and matches the journal's id and the file's name.
    has_header: bool,
    gaps: Vec<Damage>,
    /// Bytes after the last record, which are not a record.
    broken_bytes: u64,
    len: u64,
}

impl ScannedSegment {
    fn has_records(&self) -> bool {
        self.segment.records.load(Ordering::Relaxed) > 0
    }
}

/// Reads the records before number `until`.
fn scan(found: SegmentSummary, id: u64, until: Seq, max_payload: u32) -> io::Result<ScannedSegment> {
    let SegmentSummary { first_seq, name, file, header } = found;
    let own = header.filter(|header| header.id == id && header.first_seq == first_seq);
    // Without a header it is unknown which records preceded the segment.
    let header = own.unwrap_or(Header { id, first_seq, follows: 0 });
    let segment = Segment::new(name, header);
    let len = file.len()?;
    let mut frames = Frames::new(Arc::clone(&file), header, max_payload, SCAN_BYTES);
    let mut last = first_seq - 1;
    let mut gaps = Vec::new();
    let broken_bytes = loop {
        match frames.peek(len, last)? {
            PeekedFrame::Frame(seq) if seq >= until => break len - segment.bytes(),
            PeekedFrame::Frame(seq) => {
                if seq != last + 1 {
                    gaps.push(Damage::Lost { first: last + 1, last: seq - 1 });
                }
                last = seq;
                let newest_ms = frames.take().time_ms;
                segment.commit(frames.position(), last, 1, newest_ms);
            }
            PeekedFrame::End { broken_bytes } => break broken_bytes,
        }
    };
    Ok(ScannedSegment { segment, file, has_header: own.is_some(), gaps, broken_bytes, len })
}

/// Repairs or removes each segment, oldest first.
struct Recoverer<'a> {
    storage: &'a dyn Storage,
    segments: VecDeque<Arc<Segment>>,
    damage: Vec<Damage>,
    changed: bool,
}

impl Recoverer<'_> {
    fn take(&mut self, scanned: ScannedSegment, is_last: bool) -> io::Result<()> {
        let before = self.segments.back().map(|segment| segment.last_seq());
        let Header { first_seq, follows, .. } = scanned.segment.header;
        if !scanned.has_records() {
            // A segment without records: a crash occurred while it was created, or undid its removal.
            let is_unused = scanned.has_header || (is_last && scanned.len <= HEADER_BYTES);
            if !is_unused {
                return self.set_aside(scanned.segment.name, scanned.len);
            }
            if !scanned.has_header || !is_last || before.is_some_and(|before| before >= first_seq) {
                self.changed = true;
                return self.storage.remove(&scanned.segment.name);
            }
        }
        if let Some(before) = before.filter(|before| *before < follows) {
            self.damage.push(Damage::Lost { first: before + 1, last: follows });
        }
        if !scanned.has_header {
            self.damage.push(Damage::Header { segment: scanned.segment.name.clone() });
        }
        self.damage.extend(scanned.gaps);
        if scanned.broken_bytes > 0 {
            let segment = scanned.segment.name.clone();
            self.damage.push(Damage::TornTail { segment, bytes: scanned.broken_bytes });
            // If it cannot be cut off, the next recovery finds it again.
            if scanned.file.set_len(scanned.segment.bytes()).is_ok() {
                let _ = scanned.file.sync();
            }
        }
        self.segments.push_back(Arc::new(scanned.segment));
        Ok(())
    }

    fn set_aside(&mut self, name: String, bytes: u64) -> io::Result<()> {
        let renamed = format!("{name}.bad");
        self.storage.rename(&name, &renamed)?;
        self.changed = true;
        self.damage.push(Damage::SetAside { segment: name, renamed, bytes });
        Ok(())
    }
}

/// Creates the segment after all others.
pub(crate) fn begin(storage: &dyn Storage, header: Header) -> io::Result<(Segment, Arc<dyn File>)> {
    let name = name(header.first_seq);
    let file = match storage.create(&name) {
        // Left by an earlier attempt that could not remove it.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            storage.remove(&name)?;
            storage.create(&name)?
        }
        created => created?,
    };
    if let Err(error) = file.write_at(&header.encode(), 0) {
        // If this fails, recovery removes the file.
        let _ = storage.remove(&name);
        return Err(error);
    }
    Ok((Segment::new(name, header), file))
}
