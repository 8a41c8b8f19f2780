//! Records on disk, while a destination lags.
//!
//! A sink has a directory, `DATA_DIR/records/SINK`, with a numbered place for each process that uses it at the same time: two during
//! an upgrade, or while a sink that was removed still drains. A place has a lock, the account, and a journal. Places whose
//! process has ended are emptied by whichever process finds them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
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

/// Places of one sink that are looked for.
const MAX_PLACES: usize = 64;
const LOCK: &str = "lock";
const ACCOUNT: &str = "account";
const NAME: &str = "name";
const JOURNAL: &str = "journal";
/// A spool is divided into so many files.
const SEGMENTS: u64 = 16;
const MIN_SEGMENT_BYTES: u64 = 1 << 20;
const MAX_SEGMENT_BYTES: u64 = 64 << 20;
/// How often written records are forced to the disk, unless the options say otherwise.
const SYNC_EVERY: Duration = Duration::from_millis(200);

/// How much may wait on disk, for how long, and how safely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpoolOptions {
    /// Bytes on disk.
    pub max_bytes: u64,
    pub max_age: Duration,
    pub sync: SpoolSync,
    pub when_full: SpoolFullPolicy,
    /// Records are encrypted if there is one.
    pub keys: SpoolKeys,
}

/// What happens when there is no room on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpoolFullPolicy {
    DropNewest,
    /// The oldest records make room for new ones.
    DropOldest,
    /// Records wait in memory, and once that is nearly full, no more should come: see [`crate::SinkWriter::is_full`].
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

/// When records are forced to the disk. The death of the process loses none that were written; a loss of power loses those that
/// were not forced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpoolSync {
    Always,
    /// Every 200 ms.
    #[default]
    Interval,
    Never,
}

/// A place on disk: its lock, its account, its records.
pub struct SpoolPlace {
    directory: PathBuf,
    pub account: Arc<RecordAccount>,
    pub journal: Journal,
    keys: SpoolKeys,
    /// What the parcels hold that are not taken for sending.
    index: Mutex<BTreeMap<Seq, RecordTally>>,
    /// The newest parcel that was in the index. The journal may show one to readers before it is.
    known: AtomicU64,
    /// The newest parcel that was given up because its file cannot be read; those up to it are lost also where they are
    /// booked later.
    passed: AtomicU64,
    _lock: File,
}

/// Parcels that were taken to be sent.
pub struct Group {
    pub records: Vec<Record>,
    pub tally: RecordTally,
    /// The last of them.
    pub through: Seq,
}

impl SpoolPlace {
    /// The first place of a sink that no process uses.
    ///
    /// # Errors
    /// The directory cannot be used.
    pub fn open(directory: &Path, name: &str, options: SpoolOptions) -> io::Result<SpoolPlace> {
        for number in 0..MAX_PLACES {
            if let Some(place) = SpoolPlace::try_open(&directory.join(number.to_string()), name, options)? {
                return Ok(place);
            }
        }
        Err(io::Error::other(format!("all {MAX_PLACES} spool directories in {} are in use", directory.display())))
    }

    /// Places with records that no process uses.
    pub fn left_behind(directory: &Path, name: &str, options: SpoolOptions) -> Vec<SpoolPlace> {
        let numbers = 0..MAX_PLACES;
        let places = numbers.map(|number| directory.join(number.to_string())).filter(|place| place.exists());
        let opened = places.filter_map(|place| {
            let opened = SpoolPlace::try_open(&place, name, options);
            let explain =
                |error: &io::Error| tracing::error!("{name}: the spool in {} stays: {error}", place.display());
            opened.inspect_err(explain).ok().flatten()
        });
        opened.filter(|place| !place.is_empty()).collect()
    }

    /// `None` where another process, or another sink of this one, uses it.
    fn try_open(directory: &Path, name: &str, options: SpoolOptions) -> io::Result<Option<SpoolPlace>> {
        fs::create_dir_all(directory)?;
        let open =
            |file: &str| File::options().read(true).write(true).create(true).truncate(false).open(directory.join(file));
        let lock = open(LOCK)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            locked => locked?,
        }
        fs::write(directory.join(NAME), name)?;
        let cells = Cells::mapped(&open(ACCOUNT)?)?;
        let storage: Arc<dyn Storage> = Arc::new(Disk::open(directory.join(JOURNAL))?);
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
        let index = index_of(&mut journal.reader(done), &options.keys)?;
        let spooled = index.values().copied().sum();
        let lost = if recovery.lost() > 0 { DropReason::Corrupt } else { DropReason::Crash };
        let account = Arc::new(RecordAccount::of_cells(name, cells, spooled, lost));
        let known = AtomicU64::new(journal.committed());
        let passed = AtomicU64::new(0);
        let keys = options.keys;
        Ok(SpoolPlace { directory, account, journal, keys, index: Mutex::new(index), known, passed, _lock: lock })
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub fn is_empty(&self) -> bool {
        locked(&self.index).is_empty()
    }

    /// A parcel was committed, which was in the queue before.
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

    /// Takes parcels to be sent, up to so many records or bytes; at least one parcel.
    ///
    /// # Errors
    /// The disk cannot be read.
    pub fn take(&self, reader: &mut Reader, max_records: usize, max_bytes: usize) -> io::Result<Option<Group>> {
        let mut group = Group { records: Vec::new(), tally: RecordTally::default(), through: 0 };
        let is_wanted = |group: &Group| group.records.len() < max_records && group.tally.bytes < max_bytes as u64;
        while is_wanted(&group) && reader.seq() < self.known.load(Ordering::Acquire) {
            let (seq, records) = match reader.read() {
                // There is a key for what is in the index.
                Ok(Some(Item::Record { seq, payload, .. })) => (seq, decoded(payload, &self.keys).unwrap_or_default()),
                Ok(Some(Item::Gone { first, last })) => {
                    self.lost(first, last, DropReason::Corrupt);
                    continue;
                }
                Ok(None) => break,
                // What can be sent is sent; the error comes again.
                Err(_) if !group.records.is_empty() => break,
                Err(error) => return Err(error),
            };
            let Some(tally) = locked(&self.index).remove(&seq) else { continue };
            match records {
                Some(records) => {
                    group.records.extend(records);
                    group.tally.add(tally);
                    group.through = seq;
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
        Ok((!group.records.is_empty()).then_some(group))
    }

    /// All of a group is settled.
    pub fn done(&self, group_tally: RecordTally, through: Seq, book: impl FnOnce(&mut Books)) {
        self.account.book(|books| {
            books.inflight.subtract(group_tally);
            book(books);
            // With the rest: a process that dies here has sent all of it, or none.
            books.spool_done = books.spool_done.max(through);
        });
        self.journal.release(through);
    }

    /// A group that was not settled stays where it is, for the next process.
    pub fn put_back(&self, group_tally: RecordTally, through: Seq) {
        locked(&self.index).insert(through, group_tally);
        self.account.book(|books| {
            books.inflight.subtract(group_tally);
            books.spooled.add(group_tally);
        });
    }

    /// Removes what is too old, soon.
    pub fn expire(&self, max_age: Duration) {
        self.journal.expire(max_age);
    }

    /// Books what was removed because it was too old, or to make room.
    pub fn book_removals(&self) {
        for Removal { reason, first, last, .. } in self.journal.take_removals() {
            let reason = match reason {
                RemovalReason::Full => DropReason::SpoolFull,
                RemovalReason::Expired => DropReason::Expired,
            };
            self.lost(first, last, reason);
        }
    }

    /// Gives up what cannot be read.
    pub fn skip_segment(&self, reader: &mut Reader) {
        if let Some((first, last)) = reader.skip_segment() {
            // First: what the journal has written and `committed` has not booked yet is not in the index.
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

/// The accounts in a directory of sinks, by name, as they stand: nothing is changed, whether a process uses them or not.
///
/// # Errors
/// The directory cannot be read.
pub fn read_accounts(directory: &Path) -> io::Result<Vec<AccountReading>> {
    let mut readings: BTreeMap<String, AccountReading> = BTreeMap::new();
    for sink in fs::read_dir(directory)? {
        let Ok(places) = fs::read_dir(sink?.path()) else { continue };
        for place in places {
            let place = place?.path();
            let (Ok(name), Ok(file)) = (fs::read_to_string(place.join(NAME)), File::open(place.join(ACCOUNT))) else {
                continue;
            };
            let Some(cells) = Cells::read_only(&file)? else { continue };
            let reading = RecordAccount::of(&name, cells).read();
            match readings.get_mut(&name) {
                Some(sum) => sum.add(reading),
                None => drop(readings.insert(name, reading)),
            }
        }
    }
    Ok(readings.into_values().collect())
}

fn journal_options(options: SpoolOptions, done: Seq) -> Options {
    Options {
        segment_bytes: (options.max_bytes / SEGMENTS).clamp(MIN_SEGMENT_BYTES, MAX_SEGMENT_BYTES),
        max_bytes: options.max_bytes,
        max_record_bytes: u32::MAX >> 2,
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

/// The records of a parcel; `None` where it is none of this version.
fn decoded(payload: &[u8], keys: &SpoolKeys) -> Result<Option<Vec<Record>>, MissingKey> {
    Ok(keys.open(payload)?.and_then(|parcel| parcel::decode(&parcel)))
}

/// What each parcel holds. A file that cannot be read is passed over: its records are lost, and the account will say so.
fn index_of(reader: &mut Reader, keys: &SpoolKeys) -> io::Result<BTreeMap<Seq, RecordTally>> {
    let mut index = BTreeMap::new();
    loop {
        let (seq, tally) = match reader.read() {
            Ok(Some(Item::Record { seq, payload, .. })) => match decoded(payload, keys) {
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

/// The directory of a sink, by what it is called: short, unique, and still to be recognised.
pub fn directory_name(identity: &str) -> String {
    let readable: String =
        identity.chars().take(48).map(|char| if char.is_ascii_alphanumeric() { char } else { '-' }).collect();
    format!("{readable}-{:08x}", fingerprint(identity))
}

/// FNV-1a: the same in every version, unlike the hashes of the standard library.
fn fingerprint(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}
