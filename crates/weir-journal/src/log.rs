//! The single writer of a journal.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::frame;
use crate::options::{Options, Sync, WhenFull};
use crate::recovery::{self, Recovery};
use crate::segment::{HEADER_BYTES, Header, Segment};
use crate::storage::{File, Storage};
use crate::{Damage, Seq};

/// Why a record was not appended.
#[derive(Clone, Debug)]
pub enum AppendError {
    /// The payload is longer than [`Options::max_record_bytes`].
    TooLarge { bytes: usize, limit: u32 },
    /// [`Options::max_bytes`] or [`Options::reserve_free_bytes`] is reached.
    Full,
    /// More bytes than [`Options::max_pending_bytes`] are queued for the journal's thread.
    Busy,
    /// An I/O error. The record may or may not be found after a restart; readers of this process do not see it.
    Io(Arc<io::Error>),
    /// The journal is being closed.
    Closed,
}

impl fmt::Display for AppendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AppendError::TooLarge { bytes, limit } => {
                write!(f, "the record has {bytes} bytes, and the limit is {limit} bytes")
            }
            AppendError::Full => {
                f.write_str("the journal has reached its size limit, or the disk has too little free space")
            }
            AppendError::Busy => f.write_str("too many bytes wait to be written"),
            AppendError::Io(error) => write!(f, "the journal could not be written: {error}"),
            AppendError::Closed => f.write_str("the journal is being closed"),
        }
    }
}

impl std::error::Error for AppendError {}

impl AppendError {
    /// There is no room: by the journal's limits, on the disk, or in the quota of the process's user.
    pub fn is_full(&self) -> bool {
        match self {
            AppendError::Full => true,
            AppendError::Io(error) => matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded),
            AppendError::TooLarge { .. } | AppendError::Busy | AppendError::Closed => false,
        }
    }
}

/// Records that were removed before they were released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removal {
    pub reason: RemovalReason,
    pub first: Seq,
    pub last: Seq,
    pub records: u64,
    /// The length of the file, frames included.
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalReason {
    /// [`WhenFull::DropOldest`].
    Full,
    /// The records were older than allowed.
    Expired,
}

/// The size and position of a journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The oldest record, or the next one if there is none.
    pub first_seq: Seq,
    /// The newest committed record; 0 before the first.
    pub committed: Seq,
    pub records: u64,
    pub bytes: u64,
    pub segments: usize,
    /// The last error, until a record is written successfully.
    pub error: Option<String>,
}

/// State shared by the writer and the readers.
pub(crate) struct JournalShared {
    pub storage: Arc<dyn Storage>,
    pub id: u64,
    pub max_record_bytes: u32,
    /// Oldest first.
    segments: Mutex<VecDeque<Arc<Segment>>>,
    pub committed: AtomicU64,
    /// Records that were removed before they were released, until they are taken. A removal is here before readers miss its
    /// records.
    removals: Mutex<Vec<Removal>>,
    error: Mutex<Option<String>>,
}

impl JournalShared {
    pub(crate) fn segments(&self) -> MutexGuard<'_, VecDeque<Arc<Segment>>> {
        self.segments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The removals since the last call.
    pub(crate) fn take_removals(&self) -> Vec<Removal> {
        mem::take(&mut *self.removals.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn set_error(&self, error: Option<String>) {
        *self.error.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }

    pub(crate) fn status(&self) -> Status {
        let segments = self.segments();
        let committed = self.committed.load(Ordering::Acquire);
        Status {
            first_seq: segments.front().map_or(committed + 1, |segment| segment.header.first_seq),
            committed,
            records: segments.iter().map(|segment| segment.records.load(Ordering::Relaxed)).sum(),
            bytes: segments.iter().map(|segment| segment.bytes()).sum(),
            segments: segments.len(),
            error: self.error.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}

/// Appends to the newest segment, begins new segments, and removes old ones.
pub(crate) struct Log {
    shared: Arc<JournalShared>,
    options: Options,
    current: Option<OpenSegment>,
    next_seq: Seq,
    /// The encoded frames of the current batch.
    buffer: Vec<u8>,
    /// Written records have not been synced.
    is_dirty: bool,
}

struct OpenSegment {
    segment: Arc<Segment>,
    file: Arc<dyn File>,
}

impl Log {
    /// # Errors
    /// The directory, or a segment in it, cannot be read.
    pub(crate) fn open(storage: Arc<dyn Storage>, options: Options) -> io::Result<(Log, Recovery)> {
        let recovered = recovery::recover(&*storage, &options)?;
        let shared = JournalShared {
            storage,
            id: recovered.id,
            max_record_bytes: options.max_record_bytes,
            committed: AtomicU64::new(recovered.recovery.last_seq),
            segments: Mutex::new(recovered.segments),
            removals: Mutex::default(),
            error: Mutex::default(),
        };
        let log = Log {
            shared: Arc::new(shared),
            options,
            current: None,
            next_seq: recovered.next_seq,
            buffer: Vec::new(),
            is_dirty: false,
        };
        Ok((log, recovered.recovery))
    }

    pub(crate) fn shared(&self) -> &Arc<JournalShared> {
        &self.shared
    }

    /// Applies other limits and another durability from now on; [`Options::min_next_seq`] and the limits of one record and of
    /// queued bytes stay.
    pub(crate) fn set_options(&mut self, options: Options) {
        self.options = Options {
            max_record_bytes: self.options.max_record_bytes,
            max_pending_bytes: self.options.max_pending_bytes,
            min_next_seq: self.options.min_next_seq,
            ..options
        };
    }

    /// Appends all of the records or none, with one write, and with [`Sync::Always`] one sync. Returns the number of the first.
    pub(crate) fn append(&mut self, payloads: &[impl AsRef<[u8]>], now_ms: u64) -> Result<Seq, AppendError> {
        let result = self.try_append(payloads, now_ms);
        match &result {
            Ok(_) => self.shared.set_error(None),
            Err(error) => self.shared.set_error(Some(error.to_string())),
        }
        result
    }

    fn try_append(&mut self, payloads: &[impl AsRef<[u8]>], now_ms: u64) -> Result<Seq, AppendError> {
        let limit = self.options.max_record_bytes;
        let too_large = payloads.iter().map(|payload| payload.as_ref().len()).find(|bytes| *bytes > limit as usize);
        if let Some(bytes) = too_large {
            return Err(AppendError::TooLarge { bytes, limit });
        }
        let first = self.next_seq;
        if payloads.is_empty() {
            return Ok(first);
        }
        self.buffer.clear();
        for (seq, payload) in (first..).zip(payloads) {
            frame::encode(&mut self.buffer, self.shared.id, seq, now_ms, payload.as_ref());
        }
        self.make_room(self.buffer.len() as u64)?;
        let OpenSegment { segment, file } = self.segment_for(self.buffer.len() as u64).map_err(failed)?;
        let (segment, file, begin) = (Arc::clone(segment), Arc::clone(file), segment.bytes());
        let end = begin + self.buffer.len() as u64;
        if let Err(error) = file.write_at(&self.buffer, begin) {
            // A part may have been written. If it is cut off, the sequence numbers can be used again.
            if file.set_len(begin).is_err() {
                // Records written earlier must still reach the disk.
                let _ = self.sync();
                self.abandon_segment(payloads.len() as u64);
            }
            return Err(failed(error));
        }
        self.is_dirty = true;
        if self.options.sync == Sync::Always
            && let Err(error) = file.sync()
        {
            // The kernel may have dropped the pages and reports this only once, so nothing may be written after them.
            let _ = file.set_len(begin);
            self.abandon_segment(payloads.len() as u64);
            return Err(failed(error));
        }
        self.is_dirty = self.options.sync != Sync::Always;
        let count = payloads.len() as u64;
        let last = first + count - 1;
        self.next_seq = last + 1;
        segment.commit(end, last, count, now_ms);
        self.shared.committed.store(last, Ordering::Release);
        Ok(first)
    }

    /// Closes the current segment; the next `numbers` sequence numbers are not used again.
    fn abandon_segment(&mut self, numbers: u64) {
        self.next_seq += numbers;
        self.current = None;
        self.is_dirty = false;
    }

    fn make_room(&mut self, bytes: u64) -> Result<(), AppendError> {
        let reserve = self.options.reserve_free_bytes;
        loop {
            // Includes the header of a new segment, which may be needed.
            let used: u64 = self.shared.segments().iter().map(|segment| segment.bytes()).sum::<u64>() + HEADER_BYTES;
            let is_short_of_disk =
                reserve > 0 && self.shared.storage.free_bytes().is_ok_and(|free| free < reserve.saturating_add(bytes));
            if used + bytes <= self.options.max_bytes && !is_short_of_disk {
                return Ok(());
            }
            if self.options.when_full == WhenFull::Refuse {
                return Err(AppendError::Full);
            }
            let oldest = self.shared.segments().front().cloned().ok_or(AppendError::Full)?;
            if self.is_current(&oldest) {
                // The only segment: it is removed as a whole, and a new one begins.
                if oldest.records.load(Ordering::Relaxed) == 0 {
                    return Err(AppendError::Full);
                }
                self.current = None;
            }
            let has_records = oldest.records.load(Ordering::Relaxed) > 0;
            self.remove(&oldest, has_records.then_some(RemovalReason::Full)).map_err(failed)?;
        }
    }

    fn is_current(&self, segment: &Arc<Segment>) -> bool {
        self.current.as_ref().is_some_and(|writing| Arc::ptr_eq(&writing.segment, segment))
    }

    /// The segment for a batch of this size; a new one if it does not fit into the current one.
    fn segment_for(&mut self, bytes: u64) -> io::Result<&OpenSegment> {
        let fits = |writing: &OpenSegment| {
            let used = writing.segment.bytes();
            used <= HEADER_BYTES || used + bytes <= self.options.segment_bytes
        };
        if !self.current.as_ref().is_some_and(fits) {
            self.begin_segment()?;
        }
        Ok(self.current.as_ref().expect("one has been begun"))
    }

    fn begin_segment(&mut self) -> io::Result<()> {
        // The previous segment is synced now, since later syncs cover only the new one.
        self.sync()?;
        let header = Header {
            id: self.shared.id,
            first_seq: self.next_seq,
            follows: self.shared.committed.load(Ordering::Relaxed),
        };
        // An empty segment of this name may be left from before a restart, or from a failed batch.
        let leftover = self.shared.segments().back().filter(|last| last.header.first_seq == self.next_seq).cloned();
        if let Some(leftover) = leftover {
            self.remove(&leftover, None)?;
        }
        let (segment, file) = recovery::begin(&*self.shared.storage, header)?;
        if self.options.sync != Sync::Never
            && let Err(error) = file.sync().and_then(|()| self.shared.storage.sync())
        {
            let _ = self.shared.storage.remove(&segment.name);
            return Err(error);
        }
        let segment = Arc::new(segment);
        self.shared.segments().push_back(Arc::clone(&segment));
        self.current = Some(OpenSegment { segment, file });
        Ok(())
    }

    /// Whether written records have not been synced.
    pub(crate) fn is_dirty(&self) -> bool {
        self.is_dirty
    }

    /// Syncs written records to the disk.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        if !self.is_dirty || self.options.sync == Sync::Never {
            return Ok(());
        }
        let Some(OpenSegment { file, .. }) = &self.current else { return Ok(()) };
        match file.sync() {
            Ok(()) => {
                self.is_dirty = false;
                Ok(())
            }
            Err(error) => {
                self.shared.set_error(Some(format!("the journal could not be synced: {error}")));
                self.abandon_segment(0);
                Err(error)
            }
        }
    }

    /// Removes the segments whose records are all released, up to and including `seq`, and those without a record before them.
    pub(crate) fn release(&mut self, seq: Seq) -> io::Result<()> {
        self.remove_while(|segment| segment.last_seq() <= seq, None)
    }

    /// Removes the segments without a record younger than `oldest_ms`, in ms since 1970.
    pub(crate) fn expire(&mut self, oldest_ms: u64) -> io::Result<()> {
        let is_old = |segment: &Segment| segment.newest_ms.load(Ordering::Relaxed) < oldest_ms;
        self.remove_while(is_old, Some(RemovalReason::Expired))
    }

    fn remove_while(&mut self, is_done: impl Fn(&Segment) -> bool, reason: Option<RemovalReason>) -> io::Result<()> {
        loop {
            let (oldest, is_only) = {
                let segments = self.shared.segments();
                let Some(oldest) = segments.front().cloned() else { return Ok(()) };
                (oldest, segments.len() == 1)
            };
            let is_empty = oldest.records.load(Ordering::Relaxed) == 0;
            if is_empty && is_only || !is_empty && !is_done(&oldest) {
                return Ok(());
            }
            // The newest segment's name stores which numbers have been used, so another segment must exist first.
            if is_only {
                self.begin_segment()?;
            }
            // One without records is left from a failed batch, or from before a restart. It must not keep those behind it.
            self.remove(&oldest, reason.filter(|_| !is_empty))?;
        }
    }

    /// Removes a segment. A removal with a reason is reported.
    fn remove(&self, segment: &Arc<Segment>, reason: Option<RemovalReason>) -> io::Result<()> {
        // The lock is held until readers see both: that the file is gone, and why.
        let mut segments = self.shared.segments();
        match self.shared.storage.remove(&segment.name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => segments.retain(|other| !Arc::ptr_eq(other, segment)),
        }
        let Some(reason) = reason else { return Ok(()) };
        let removal = Removal {
            reason,
            first: segment.header.first_seq,
            last: segment.last_seq(),
            records: segment.records.load(Ordering::Relaxed),
            bytes: segment.bytes(),
        };
        self.shared.removals.lock().unwrap_or_else(PoisonError::into_inner).push(removal);
        Ok(())
    }
}

fn failed(error: io::Error) -> AppendError {
    AppendError::Io(Arc::new(error))
}

impl Recovery {
    /// A summary for the log; `None` without damage.
    pub fn summary(&self) -> Option<String> {
        if self.damage.is_empty() {
            return None;
        }
        let torn = |damage: &Damage| if let Damage::TornTail { bytes, .. } = damage { *bytes } else { 0 };
        let set_aside = self.damage.iter().filter(|damage| matches!(damage, Damage::SetAside { .. })).count();
        Some(format!(
            "{} records recovered, {} lost, {} bytes of unfinished records cut off, {set_aside} unreadable segments set aside",
            self.records,
            self.lost(),
            self.damage.iter().map(torn).sum::<u64>(),
        ))
    }
}

#[cfg(test)]
mod tests;
