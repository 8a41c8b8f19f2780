//! What is found when a journal is opened.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::Seq;
use crate::options::Options;
use crate::segment::{Frames, HEADER_BYTES, Header, HeaderError, Peeked, Segment, name, parse_name};
use crate::storage::{File, Storage};

const SCAN_BYTES: usize = 1 << 20;

/// What was found in the directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Records that can be read.
    pub records: u64,
    /// Bytes of all segments.
    pub bytes: u64,
    /// The newest record; 0 if there is none.
    pub last_seq: Seq,
    pub damage: Vec<Damage>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Damage {
    /// Bytes at the end of a segment that are no record: a write that a crash cut short, or a damaged last record.
    TornTail { segment: String, bytes: u64 },
    /// Records `first` to `last` were committed and are gone.
    Lost { first: Seq, last: Seq },
    /// The segment's header was broken; its records were found by their own checksums.
    Header { segment: String },
    /// Nothing in the segment can be read. It was set aside under another name.
    SetAside { segment: String, renamed: String, bytes: u64 },
}

impl Recovery {
    /// Records that were committed and are gone, as far as their numbers tell.
    pub fn lost(&self) -> u64 {
        let lost = |damage: &Damage| if let Damage::Lost { first, last } = damage { last - first + 1 } else { 0 };
        self.damage.iter().map(lost).sum()
    }
}

/// A journal's segments as they were found.
pub struct Recovered {
    pub id: u64,
    /// The next record gets at least this number.
    pub next_seq: Seq,
    pub segments: VecDeque<Arc<Segment>>,
    pub recovery: Recovery,
}

/// Reads every segment. Damage never makes it fail; a directory or a file that cannot be read does.
pub fn recover(storage: &dyn Storage, options: &Options) -> io::Result<Recovered> {
    let mut names: Vec<_> = storage.list()?.into_iter().filter_map(|name| Some((parse_name(&name)?, name))).collect();
    names.sort();
    let mut found = Vec::new();
    for (first_seq, name) in names {
        let file = storage.open(&name)?;
        let header = read_header(&*file, &name)?;
        found.push(SegmentSummary { first_seq, name, file, header });
    }
    let id = found.iter().find_map(|found| Some(found.header?.id)).unwrap_or_else(new_id);
    // A segment of which nothing is left still says by its name which numbers were given out.
    let newest_name = found.last().map_or(1, |found| found.first_seq);
    // From the newest on: a batch that failed may have left records behind its segment's end whose numbers were then given
    // out again, to records of a later segment.
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
    Ok(Recovered { id, next_seq, segments, recovery })
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

/// Numbers of journals must differ, and must not be guessed by whoever writes payloads.
fn new_id() -> u64 {
    RandomState::new().hash_one(std::time::SystemTime::now()) | 1
}

/// A segment whose frames have been read.
struct Scanned {
    segment: Segment,
    file: Arc<dyn File>,
    /// The header is whole and belongs to this journal and this name.
    has_header: bool,
    gaps: Vec<Damage>,
    /// Bytes after the last record.
    broken_bytes: u64,
    len: u64,
}

impl Scanned {
    fn has_records(&self) -> bool {
        self.segment.records.load(Ordering::Relaxed) > 0
    }
}

/// Reads the records before `until`.
fn scan(found: SegmentSummary, id: u64, until: Seq, max_payload: u32) -> io::Result<Scanned> {
    let SegmentSummary { first_seq, name, file, header } = found;
    let own = header.filter(|header| header.id == id && header.first_seq == first_seq);
    // Without a header nothing can be said of what stood before it.
    let header = own.unwrap_or(Header { id, first_seq, follows: 0 });
    let segment = Segment::new(name, header);
    let len = file.len()?;
    let mut frames = Frames::new(Arc::clone(&file), header, max_payload, SCAN_BYTES);
    let mut last = first_seq - 1;
    let mut gaps = Vec::new();
    let broken_bytes = loop {
        match frames.peek(len, last)? {
            Peeked::Frame(seq) if seq >= until => break len - segment.bytes(),
            Peeked::Frame(seq) => {
                if seq != last + 1 {
                    gaps.push(Damage::Lost { first: last + 1, last: seq - 1 });
                }
                last = seq;
                let newest_ms = frames.take().time_ms;
                segment.commit(frames.position(), last, 1, newest_ms);
            }
            Peeked::End { broken_bytes } => break broken_bytes,
        }
    };
    Ok(Scanned { segment, file, has_header: own.is_some(), gaps, broken_bytes, len })
}

/// Decides what becomes of each segment, oldest first.
struct Recoverer<'a> {
    storage: &'a dyn Storage,
    segments: VecDeque<Arc<Segment>>,
    damage: Vec<Damage>,
    changed: bool,
}

impl Recoverer<'_> {
    fn take(&mut self, scanned: Scanned, is_last: bool) -> io::Result<()> {
        let before = self.segments.back().map(|segment| segment.last_seq());
        let Header { first_seq, follows, .. } = scanned.segment.header;
        if !scanned.has_records() {
            // Begun and not used: a crash came while it was made, or its removal was forgotten in one.
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
            // Where it cannot be cut off it is found again next time.
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

/// The segment that comes after all others.
pub fn begin(storage: &dyn Storage, header: Header) -> io::Result<(Segment, Arc<dyn File>)> {
    let name = name(header.first_seq);
    let file = match storage.create(&name) {
        // An attempt before this one could not remove what it had begun.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            storage.remove(&name)?;
            storage.create(&name)?
        }
        created => created?,
    };
    if let Err(error) = file.write_at(&header.encode(), 0) {
        // What is left over is removed when the journal is opened.
        let _ = storage.remove(&name);
        return Err(error);
    }
    Ok((Segment::new(name, header), file))
}
