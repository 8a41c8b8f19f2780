//! Records on disk, while a destination lags.
//!
//! A sink has a directory, `DATA_DIR/records/SINK`, with a numbered place for each process that uses it at the same time: there
//! are two during an upgrade, or while a removed sink still drains. A place consists of a lock, the account, and a journal. A
//! process that finds a place whose process has ended takes it over and delivers its records.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use weir_journal::{Disk, Item, Journal, Options, Reader, Removal, RemovalReason, Seq, Storage, Sync, WhenFull};

use crate::account::{AccountReading, RecordAccount};
use crate::books::{Books, DropReason, RecordTally};
use crate::cells::Cells;
use crate::lock::locked;
use crate::parcel;
use crate::queue::{Record, tally};
use crate::sealed::{MissingKey, SpoolKeys};

/// The most places of one sink.
pub(crate) const MAX_PLACES: usize = 64;
/// The largest journal, in bytes, that a sink reads before it takes records. Larger ones are read beside its work.
pub(crate) const QUICKLY_READ: u64 = 32 << 20;
pub(crate) const LOCK: &str = "lock";
pub(crate) const ACCOUNT: &str = "account";
pub(crate) const NAME: &str = "name";
pub(crate) const JOURNAL: &str = "journal";
/// The number of files that a spool is divided into.
const SEGMENTS: u64 = 16;
const MIN_SEGMENT_BYTES: u64 = 1 << 20;
const MAX_SEGMENT_BYTES: u64 = 64 << 20;
/// How often written records are synced, unless the options set another mode.
const SYNC_EVERY: Duration = Duration::from_millis(200);

/// The limits of a spool, and its durability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpoolOptions {
    /// The most bytes on disk.
    pub max_bytes: u64,
    pub max_age: Duration,
    pub sync: SpoolSync,
    pub when_full: SpoolFullPolicy,
    /// Records are encrypted if there is at least one key.
    pub keys: SpoolKeys,
}

/// The behaviour when `max_bytes` is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpoolFullPolicy {
    DropNewest,
    /// The oldest records are dropped to make room.
    DropOldest,
    /// Records wait in memory, and once that is nearly full, writers should stop: see [`crate::SinkWriter::is_full`].
    Block,
}

impl Default for SpoolOptions {
    fn default() -> SpoolOptions {
        SpoolOptions {
            max_bytes: 1 << 30,
            max_age: Duration::from_secs(86_400),
            sync: SpoolSync::Interval,
            when_full: SpoolFullPolicy::DropNewest,
            keys: SpoolKeys::default(),
        }
    }
}

/// When records are synced. A crash of the process loses no written record; a loss of power loses those that were not synced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpoolSync {
    Always,
    /// Every 200 ms.
    #[default]
    Interval,
    Never,
}

/// A place on disk: a lock, an account and a journal of records.
pub struct SpoolPlace {
    directory: PathBuf,
    pub account: Arc<RecordAccount>,
    pub journal: Journal,
    /// The keys of all sinks that have used the place in this process. A parcel is opened with any of them.
    keyrings: Mutex<Vec<SpoolKeys>>,
    /// The tally of each parcel that was not taken for sending.
    index: Mutex<BTreeMap<Seq, RecordTally>>,
    /// The newest parcel ever in the index. The journal may return a parcel to readers before it is in the index.
    known: AtomicU64,
    /// The newest parcel that was given up because its file cannot be read. Parcels up to it are lost, also those whose commit is
    /// reported later.
    passed: AtomicU64,
    _lock: File,
}

/// The places of a sink that no process uses.
#[derive(Default)]
pub struct FoundPlaces {
    /// Those with records.
    pub places: Vec<SpoolPlace>,
    /// Those that could not be opened.
    pub unusable: Vec<PathBuf>,
}

/// Parcels that were taken for sending.
#[derive(Default)]
pub struct Group {
    pub records: Vec<Record>,
    /// In their order; at least one.
    pub parcels: Vec<(Seq, RecordTally)>,
}

fn sum(parcels: &[(Seq, RecordTally)]) -> RecordTally {
    parcels.iter().map(|(_, tally)| *tally).sum()
}

impl SpoolPlace {
    /// Opens the first place of a sink that is not in use, can be used, and is read quickly: a sink takes no records before.
    ///
    /// # Errors
    /// The directory cannot be used.
    pub fn open(directory: &Path, name: &str, options: SpoolOptions) -> io::Result<SpoolPlace> {
        let places = || (0..MAX_PLACES).map(|number| directory.join(number.to_string()));
        let mut unusable = None;
        for is_large in [false, true] {
            for place in places().filter(|place| is_large == (journal_bytes(place) > QUICKLY_READ)) {
                match SpoolPlace::try_open(&place, name, options) {
                    Ok(Some(place)) => return Ok(place),
                    Ok(None) => {}
                    // Such as one whose records are encrypted with an unknown key. It stays for a process that can read it.
                    Err(error) => drop(unusable.get_or_insert(error)),
                }
            }
        }
        Err(unusable.unwrap_or_else(|| {
            io::Error::other(format!("all {MAX_PLACES} spool directories in {} are in use", directory.display()))
        }))
    }

    /// Opens the places with records that no process uses, of at most so many bytes, apart from those known to be `unusable`.
    pub fn left_behind(
        directory: &Path,
        name: &str,
        options: SpoolOptions,
        (unusable, most_bytes): (&BTreeSet<PathBuf>, u64),
    ) -> FoundPlaces {
        let mut found = FoundPlaces::default();
        for number in 0..MAX_PLACES {
            let place = directory.join(number.to_string());
            if unusable.contains(&place) || !place.exists() || journal_bytes(&place) > most_bytes {
                continue;
            }
            match SpoolPlace::try_open(&place, name, options) {
                Ok(opened) => found.places.extend(opened.filter(|place| !place.is_empty())),
                Err(error) => {
                    tracing::error!("{name}: the spool in {} stays: {error}", place.display());
                    found.unusable.push(place);
                }
            }
        }
        found
    }

    /// `None` if the place is used by another process, or by another sink of this process.
    fn try_open(directory: &Path, name: &str, options: SpoolOptions) -> io::Result<Option<SpoolPlace>> {
        // Creates the directory of the place, too.
        let storage: Arc<dyn Storage> = Arc::new(Disk::open(directory.join(JOURNAL))?);
        let mut options_of_file = File::options();
        options_of_file.read(true).write(true).create(true).truncate(false).mode(0o600);
        let open = |file: &str| options_of_file.open(directory.join(file));
        let lock = open(LOCK)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            locked => locked?,
        }
        // For `weir records`, which is refused while the process uses the place. On a full disk the number is missing.
        let _ = lock.set_len(0).and_then(|()| (&lock).write_all(std::process::id().to_string().as_bytes()));
        // An existing place must open on a full disk, or what fills the disk is never delivered.
        if fs::read(directory.join(NAME)).ok().as_deref() != Some(name.as_bytes()) {
            options_of_file.clone().truncate(true).open(directory.join(NAME))?.write_all(name.as_bytes())?;
        }
        let cells = Cells::mapped(&open(ACCOUNT)?)?;
        Ok(Some(SpoolPlace::recover(directory.to_owned(), name, cells, storage, lock, options)?))
    }

    fn recover(
        directory: PathBuf,
        name: &str,
        cells: Cells,
        storage: Arc<dyn Storage>,
        lock: File,
        options: SpoolOptions,
    ) -> io::Result<SpoolPlace> {
        let done = cells.books().spool_done;
        let (journal, recovery) = Journal::open_in(storage, journal_options(options, done))?;
        if let Some(damage) = recovery.summary() {
            tracing::error!("{name}: the spool in {} was damaged: {damage}", directory.display());
        }
        let keyrings = vec![options.keys];
        let index = index_of(&mut journal.reader(done), &keyrings)?;
        let spooled = index.values().copied().sum();
        let lost = if recovery.lost() > 0 { DropReason::Corrupt } else { DropReason::Crash };
        let account = Arc::new(RecordAccount::of_cells(name, cells, spooled, lost));
        let known = AtomicU64::new(journal.committed());
        let passed = AtomicU64::new(0);
        let (keyrings, index) = (Mutex::new(keyrings), Mutex::new(index));
        Ok(SpoolPlace { directory, account, journal, keyrings, index, known, passed, _lock: lock })
    }

    /// Applies the options of another sink that uses the place from now on. Parcels that were encrypted with earlier keys can
    /// still be opened.
    pub fn use_with(&self, options: SpoolOptions) {
        let mut keyrings = locked(&self.keyrings);
        if !keyrings.contains(&options.keys) {
            keyrings.push(options.keys);
        }
        self.journal.set_options(journal_options(options, 0));
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub fn is_empty(&self) -> bool {
        locked(&self.index).is_empty()
    }

    /// Called when a parcel was committed: moves its records from the queue to the spool in the books.
    pub fn committed(&self, seq: Seq, tally: RecordTally) {
        let mut index = locked(&self.index);
        if seq <= self.passed.load(Ordering::Relaxed) {
            self.account.book(|books| books.drop_from(|books| &mut books.queued, DropReason::Corrupt, tally));
        } else {
            index.insert(seq, tally);
            self.account.book(|books| {
                books.queued.subtract(tally);
                books.spooled.add(tally);
            });
        }
        drop(index);
        self.known.fetch_max(seq, Ordering::AcqRel);
    }

    /// Takes parcels for sending, up to this number of records or bytes; at least one parcel.
    ///
    /// # Errors
    /// The disk cannot be read.
    pub fn take(&self, reader: &mut Reader, max_records: usize, max_bytes: usize) -> io::Result<Option<Group>> {
        let (mut group, mut bytes) = (Group::default(), 0);
        while group.records.len() < max_records
            && bytes < max_bytes as u64
            && reader.seq() < self.known.load(Ordering::Acquire)
        {
            let (seq, records) = match reader.read() {
                // Cannot fail: parcels without a key are not in the index.
                Ok(Some(Item::Record { seq, payload, .. })) => {
                    (seq, decoded(payload, &locked(&self.keyrings)).unwrap_or_default())
                }
                Ok(Some(Item::Gone { first, last })) => {
                    // Those that the journal has removed have reasons of their own.
                    self.book_removals();
                    self.lost(first, last, DropReason::Corrupt);
                    continue;
                }
                Ok(None) => break,
                // The records read so far are sent first; the error comes again with the next call.
                Err(_) if !group.records.is_empty() => break,
                Err(error) => return Err(error),
            };
            let Some(tally) = locked(&self.index).remove(&seq) else { continue };
            match records {
                Some(records) => {
                    group.records.extend(records);
                    group.parcels.push((seq, tally));
                    bytes += tally.bytes;
                    self.account.book(|books| {
                        books.spooled.subtract(tally);
                        books.inflight.add(tally);
                    });
                }
                None => {
                    self.account.book(|books| books.drop_from(|books| &mut books.spooled, DropReason::Corrupt, tally))
                }
            }
        }
        Ok((!group.parcels.is_empty()).then_some(group))
    }

    /// Books a group whose records are all settled, and releases its parcels.
    pub fn done(&self, parcels: &[(Seq, RecordTally)], book: impl FnOnce(&mut Books)) {
        let through = parcels.last().map_or(0, |(seq, _)| *seq);
        self.account.book(|books| {
            books.inflight.subtract(sum(parcels));
            book(books);
            // In the same step: a process that dies here has booked all of the group, or nothing.
            books.spool_done = books.spool_done.max(through);
        });
        self.journal.release(through);
    }

    /// Returns a group that was not settled; the next sink or process that uses the place sends it.
    pub fn put_back(&self, parcels: Vec<(Seq, RecordTally)>) {
        let total = sum(&parcels);
        locked(&self.index).extend(parcels);
        self.account.book(|books| {
            books.inflight.subtract(total);
            books.spooled.add(total);
        });
    }

    /// Asks the journal to remove records older than `max_age`; this happens in the background.
    pub fn expire(&self, max_age: Duration) {
        self.journal.expire(max_age);
    }

    /// Books records that the journal removed because of their age, or to make room.
    pub fn book_removals(&self) {
        for Removal { reason, first, last, .. } in self.journal.take_removals() {
            let reason = match reason {
                RemovalReason::Full => DropReason::SpoolFull,
                RemovalReason::Expired => DropReason::Expired,
            };
            self.lost(first, last, reason);
        }
    }

    /// Skips a file that cannot be read, and books its records as lost.
    pub fn skip_segment(&self, reader: &mut Reader) {
        if let Some((first, last)) = reader.skip_segment() {
            // Set first: parcels that are written but not reported as committed yet are not in the index.
            self.passed.fetch_max(last, Ordering::Relaxed);
            self.lost(first, last, DropReason::Corrupt);
        }
    }

    fn lost(&self, first: Seq, last: Seq, reason: DropReason) {
        let mut index = locked(&self.index);
        let gone: Vec<Seq> = index.range(first..=last).map(|(seq, _)| *seq).collect();
        let lost: RecordTally = gone.iter().filter_map(|seq| index.remove(seq)).sum();
        if !lost.is_zero() {
            self.account.book(|books| books.drop_from(|books| &mut books.spooled, reason, lost));
        }
    }
}

/// The accounts in a directory of sinks, by name. Only reads, whether a process uses them or not.
///
/// # Errors
/// The directory cannot be read.
pub fn read_accounts(directory: &Path) -> io::Result<Vec<AccountReading>> {
    Ok(by_name(read_places(directory, |_| true)?))
}

/// The account of each place in a directory of sinks whose path is wanted.
///
/// # Errors
/// The directory cannot be read.
pub(crate) fn read_places(directory: &Path, is_wanted: impl Fn(&Path) -> bool) -> io::Result<Vec<AccountReading>> {
    let mut readings = Vec::new();
    for sink in fs::read_dir(directory)? {
        let Ok(places) = fs::read_dir(sink?.path()) else { continue };
        for place in places {
            let place = place?.path();
            if !is_wanted(&place) {
                continue;
            }
            let (Ok(name), Ok(file)) = (fs::read_to_string(place.join(NAME)), File::open(place.join(ACCOUNT))) else {
                continue;
            };
            if let Some(cells) = Cells::read_only(&file)? {
                readings.push(RecordAccount::of(&name, cells).read());
            }
        }
    }
    Ok(readings)
}

/// The sums of the readings of each sink, by its name.
pub(crate) fn by_name(readings: impl IntoIterator<Item = AccountReading>) -> Vec<AccountReading> {
    let mut sums: BTreeMap<String, AccountReading> = BTreeMap::new();
    for reading in readings {
        match sums.get_mut(&reading.name) {
            Some(sum) => sum.add(reading),
            None => drop(sums.insert(reading.name.clone(), reading)),
        }
    }
    sums.into_values().collect()
}

/// The size of the journal of a place, in bytes; 0 if there is none.
fn journal_bytes(place: &Path) -> u64 {
    let Ok(files) = fs::read_dir(place.join(JOURNAL)) else { return 0 };
    files.filter_map(|file| Some(file.ok()?.metadata().ok()?.len())).sum()
}

fn journal_options(options: SpoolOptions, done: Seq) -> Options {
    Options {
        segment_bytes: (options.max_bytes / SEGMENTS).clamp(MIN_SEGMENT_BYTES, MAX_SEGMENT_BYTES),
        max_bytes: options.max_bytes,
        max_record_bytes: u32::MAX >> 2,
        // What waits to be written is limited by the memory of the sink.
        max_pending_bytes: usize::MAX,
        when_full: match options.when_full {
            SpoolFullPolicy::DropOldest => WhenFull::DropOldest,
            SpoolFullPolicy::DropNewest | SpoolFullPolicy::Block => WhenFull::Refuse,
        },
        sync: match options.sync {
            SpoolSync::Always => Sync::Always,
            SpoolSync::Interval => Sync::Every(SYNC_EVERY),
            SpoolSync::Never => Sync::Never,
        },
        min_next_seq: done + 1,
        ..Options::default()
    }
}

/// The records of a parcel; `None` if it is damaged, or of another version.
fn decoded(payload: &[u8], keyrings: &[SpoolKeys]) -> Result<Option<Vec<Record>>, MissingKey> {
    let opened = keyrings.iter().find_map(|keys| keys.open(payload).ok()).ok_or(MissingKey)?;
    Ok(opened.and_then(|parcel| parcel::decode(&parcel)))
}

/// The tally of each parcel. A file that cannot be read is skipped; its records are lost, and the account will show that.
fn index_of(reader: &mut Reader, keyrings: &[SpoolKeys]) -> io::Result<BTreeMap<Seq, RecordTally>> {
    let mut index = BTreeMap::new();
    loop {
        let (seq, tally) = match reader.read() {
            Ok(Some(Item::Record { seq, payload, .. })) => match decoded(payload, keyrings) {
                Ok(records) => (seq, records.as_ref().map(tally)),
                Err(MissingKey) => {
                    return Err(io::Error::other(
                        "its records are encrypted with a key that is not in `encryption_keyring`",
                    ));
                }
            },
            Ok(Some(Item::Gone { .. })) => continue,
            Ok(None) => return Ok(index),
            Err(error) => match reader.skip_segment() {
                Some(_) => continue,
                None => return Err(error),
            },
        };
        if let Some(tally) = tally {
            index.insert(seq, tally);
        }
    }
}

/// The name of the directory of a sink with this name, whose destination has this place for its records: short, unique, and
/// readable but for the place.
pub fn directory_name(name: &str, place: &str) -> String {
    let readable: String =
        name.chars().take(48).map(|char| if char.is_ascii_alphanumeric() { char } else { '-' }).collect();
    format!("{readable}-{:016x}", fingerprint([name, "\n", place]))
}

/// FNV-1a: the same in every version, unlike the hashes of the standard library.
fn fingerprint<const N: usize>(texts: [&str; N]) -> u64 {
    let bytes = texts.iter().flat_map(|text| text.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_of_a_sink_has_the_same_name_in_every_version() {
        assert_eq!(directory_name("kafka-logger", "orders"), "kafka-logger-39ea32d210eb255f");
    }

    #[test]
    fn a_spool_of_any_size_is_divided_so_that_a_part_can_be_removed() {
        let segment =
            |max_bytes| journal_options(SpoolOptions { max_bytes, ..SpoolOptions::default() }, 0).segment_bytes;
        assert_eq!([1 << 20, 64 << 20, 1 << 30, 1 << 40].map(segment), [1 << 20, 4 << 20, 64 << 20, 64 << 20]);
    }
}
