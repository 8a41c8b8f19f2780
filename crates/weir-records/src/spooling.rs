//! The spool as a sink's task uses it: records stay in memory at first, and all go through the disk once the destination lags.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;
use weir_journal::{AppendError, Reader, Seq};

use crate::account::RecordAccount;
use crate::books::{DropReason, RecordTally};
use crate::parcel;
use crate::queue::{Record, tally};
use crate::register::SinkRegister;
use crate::spool::{FoundPlaces, Group, QUICKLY_READ, SpoolFullPolicy, SpoolOptions, SpoolPlace};

/// How long only memory is used after the disk has failed.
const DISK_PAUSE: Duration = Duration::from_secs(5);
/// The same for a full spool, which has room again as soon as records are delivered.
const FULL_PAUSE: Duration = Duration::from_millis(250);
/// How often expired records are removed, and places of ended processes are searched.
const TIDY_EVERY: Duration = Duration::from_secs(2);

/// The spool of a sink: its directory and options.
#[derive(Clone, Debug)]
pub struct SinkSpool {
    pub directory: PathBuf,
    pub options: SpoolOptions,
}

/// A parcel's number, and whether it was committed.
type SpoolCommit = (u64, Result<Seq, AppendError>);

pub(crate) struct Spooling {
    spool: SinkSpool,
    name: String,
    register: Arc<SinkRegister>,
    place: Arc<SpoolPlace>,
    /// The places in use, given back to the register at the end.
    used: RefCell<Vec<Arc<SpoolPlace>>>,
    /// Places of ended processes; their records are sent first.
    backlog: RefCell<Vec<(Arc<SpoolPlace>, Option<Reader>)>>,
    /// `None` while a blocking thread reads with it.
    reader: RefCell<Option<Reader>>,
    /// Whether all records go through the disk.
    is_spooling: Cell<bool>,
    /// Parcels handed to the journal and not committed yet.
    writing: RefCell<BTreeMap<u64, Vec<Record>>>,
    /// The number of the last parcel.
    parcels: Cell<u64>,
    commits: RefCell<UnboundedReceiver<SpoolCommit>>,
    committing: UnboundedSender<SpoolCommit>,
    broken_until: Cell<Option<Instant>>,
    tidied: Cell<Option<Instant>>,
    /// Places of ended processes that a blocking thread has found.
    found: RefCell<UnboundedReceiver<FoundPlaces>>,
    finding: UnboundedSender<FoundPlaces>,
    /// Whether a blocking thread searches now.
    is_searching: Cell<bool>,
    /// Places that could not be opened. They are tried again by the next process.
    unusable: RefCell<BTreeSet<PathBuf>>,
}

impl Drop for Spooling {
    fn drop(&mut self) {
        self.used.borrow().iter().for_each(|place| self.register.give_back_place(place));
    }
}

/// A sink's own place, and those of ended processes.
pub(crate) struct OpenedPlaces {
    spool: SinkSpool,
    places: Vec<Arc<SpoolPlace>>,
    unusable: Vec<PathBuf>,
}

/// The parcels that were written, or failed, since the last step.
#[derive(Default)]
pub(crate) struct SpoolWritten {
    pub bytes: u64,
    /// Whether there are new records to read.
    pub committed: bool,
    /// Records that could not be written. They go back to the front of the queue.
    pub failed: Vec<Record>,
    pub error: Option<String>,
}

impl Spooling {
    /// Opens a sink's place, and those of ended processes that are read quickly; [`Spooling::tidy`] finds the others. Must not run on
    /// a shared thread.
    ///
    /// # Errors
    /// The directory cannot be used.
    pub(crate) fn open(spool: SinkSpool, name: &str, register: &Arc<SinkRegister>) -> io::Result<OpenedPlaces> {
        let mut open = register.claim_places(&spool.directory, |_| true);
        open.iter().for_each(|place| place.use_with(spool.options));
        let opened = |place| {
            let place = Arc::new(place);
            register.add_place(&place);
            place
        };
        if open.is_empty() {
            open.push(opened(SpoolPlace::open(&spool.directory, name, spool.options)?));
        }
        let FoundPlaces { places, unusable } =
            SpoolPlace::left_behind(&spool.directory, name, spool.options, (&BTreeSet::new(), QUICKLY_READ));
        open.extend(places.into_iter().map(opened));
        Ok(OpenedPlaces { spool, places: open, unusable })
    }

    pub(crate) fn new(opened: OpenedPlaces, name: &str, register: &Arc<SinkRegister>) -> Spooling {
        let mut places = opened.places.into_iter();
        let place = places.next().expect("one was opened");
        let ((committing, commits), (finding, found)) = (unbounded_channel(), unbounded_channel());
        let reader = place.journal.reader(place.account.book(|books| books.spool_done));
        let spooling = Spooling {
            spool: opened.spool,
            name: name.to_owned(),
            register: Arc::clone(register),
            is_spooling: Cell::new(!place.is_empty()),
            used: RefCell::new(vec![Arc::clone(&place)]),
            place,
            backlog: RefCell::default(),
            reader: RefCell::new(Some(reader)),
            writing: RefCell::default(),
            parcels: Cell::new(0),
            commits: RefCell::new(commits),
            committing,
            broken_until: Cell::new(None),
            tidied: Cell::new(None),
            found: RefCell::new(found),
            finding,
            is_searching: Cell::new(false),
            unusable: RefCell::new(opened.unusable.into_iter().collect()),
        };
        spooling.add_backlog(places.collect());
        spooling
    }

    pub(crate) fn account(&self) -> &Arc<RecordAccount> {
        &self.place.account
    }

    fn add_backlog(&self, places: Vec<Arc<SpoolPlace>>) {
        for place in places {
            self.used.borrow_mut().push(Arc::clone(&place));
            let reader = place.journal.reader(place.account.book(|books| books.spool_done));
            self.backlog.borrow_mut().push((place, Some(reader)));
            self.is_spooling.set(true);
        }
    }

    /// How long a record may wait.
    pub(crate) fn max_age(&self) -> Duration {
        self.spool.options.max_age
    }

    pub(crate) fn is_spooling(&self) -> bool {
        self.is_spooling.get()
    }

    /// Sends all records through the disk from now on, since the destination lags.
    pub(crate) fn start_spooling(&self) {
        self.is_spooling.set(true);
    }

    /// Whether the disk has failed recently.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken_until.get().is_some_and(|until| Instant::now() < until)
    }

    pub(crate) fn is_writing(&self) -> bool {
        !self.writing.borrow().is_empty()
    }

    /// Hands records to the journal, as one or more parcels.
    pub(crate) fn write(&self, records: Vec<Record>) {
        let mut writing = self.writing.borrow_mut();
        for records in parcel::divide(records) {
            let number = self.parcels.get() + 1;
            self.parcels.set(number);
            let committing = self.committing.clone();
            let on_commit = Box::new(move |commit| drop(committing.send((number, commit))));
            let parcel = self.spool.options.keys.seal(parcel::encode(&records));
            if let Err(error) = self.place.journal.append(parcel, on_commit) {
                let _ = self.committing.send((number, Err(error)));
            }
            writing.insert(number, records);
        }
    }

    /// Books the results of writes that the journal has reported.
    pub(crate) fn step(&self) -> SpoolWritten {
        let mut written = SpoolWritten::default();
        self.used.borrow().iter().for_each(|place| place.book_removals());
        while let Ok((number, commit)) = self.commits.borrow_mut().try_recv() {
            let Some(records) = self.writing.borrow_mut().remove(&number) else { continue };
            let moved = tally(&records);
            match commit {
                Ok(seq) => {
                    self.place.committed(seq, moved);
                    written.committed = true;
                    written.bytes += moved.bytes;
                }
                Err(AppendError::Full) if self.spool.options.when_full == SpoolFullPolicy::Block => {
                    self.broken_until.set(Some(Instant::now() + FULL_PAUSE));
                    written.failed.extend(records);
                }
                Err(AppendError::Full) => self.lose(moved, DropReason::SpoolFull, &mut written),
                Err(AppendError::TooLarge { .. }) => self.lose(moved, DropReason::Oversize, &mut written),
                Err(error) => {
                    self.broken_until.set(Some(Instant::now() + DISK_PAUSE));
                    written.error = Some(format!("the spool in {}: {error}", self.place.directory().display()));
                    written.failed.extend(records);
                }
            }
        }
        written
    }

    fn lose(&self, lost: RecordTally, reason: DropReason, written: &mut SpoolWritten) {
        self.place.account.book(|books| books.drop_from(|books| &mut books.queued, reason, lost));
        written.bytes += lost.bytes;
    }

    /// Removes expired records, and takes over places of ended processes and sinks, at most every `TIDY_EVERY`. Places are
    /// searched and read on a blocking thread.
    pub(crate) fn tidy(&self) {
        if let Ok(FoundPlaces { places, unusable }) = self.found.borrow_mut().try_recv() {
            self.is_searching.set(false);
            self.unusable.borrow_mut().extend(unusable);
            let places: Vec<_> = places.into_iter().map(Arc::new).collect();
            places.iter().for_each(|place| self.register.add_place(place));
            self.add_backlog(places);
        }
        if self.tidied.get().is_some_and(|at| at.elapsed() < TIDY_EVERY) {
            return;
        }
        self.tidied.set(Some(Instant::now()));
        self.used.borrow().iter().for_each(|place| place.expire(self.spool.options.max_age));
        let ended = self.register.claim_places(&self.spool.directory, |place| !place.is_empty());
        ended.iter().for_each(|place| place.use_with(self.spool.options));
        self.add_backlog(ended);
        if self.is_searching.replace(true) {
            return;
        }
        let (spool, name) = (self.spool.clone(), self.name.clone());
        let (finding, unusable) = (self.finding.clone(), self.unusable.borrow().clone());
        tokio::task::spawn_blocking(move || {
            drop(finding.send(SpoolPlace::left_behind(&spool.directory, &name, spool.options, (&unusable, u64::MAX))));
        });
    }

    /// The next group to send, and its place. `None` if there is none; if no write is pending either, records are sent directly
    /// again.
    ///
    /// # Errors
    /// The disk cannot be read.
    pub(crate) async fn next(
        &self,
        max_records: usize,
        max_bytes: usize,
    ) -> io::Result<Option<(Arc<SpoolPlace>, Group)>> {
        loop {
            let oldest =
                self.backlog.borrow_mut().first_mut().map(|(place, reader)| (Arc::clone(place), reader.take()));
            let Some((place, reader)) = oldest else { break };
            let Some(reader) = reader else { break };
            let (reader, group) = read(&place, reader, max_records, max_bytes).await;
            if let Some((_, slot)) = self.backlog.borrow_mut().first_mut() {
                *slot = Some(reader);
            }
            match group? {
                Some(group) => return Ok(Some((place, group))),
                None => drop(self.backlog.borrow_mut().remove(0)),
            }
        }
        let Some(reader) = self.reader.borrow_mut().take() else { return Ok(None) };
        let (reader, group) = read(&self.place, reader, max_records, max_bytes).await;
        *self.reader.borrow_mut() = Some(reader);
        if let Some(group) = group? {
            return Ok(Some((Arc::clone(&self.place), group)));
        }
        self.is_spooling.set(self.is_writing() || !self.place.is_empty());
        Ok(None)
    }
}

/// Reads on a blocking thread. A file that cannot be read is skipped, unless the process lacks what it needs to read it.
async fn read(
    place: &Arc<SpoolPlace>,
    mut reader: Reader,
    max_records: usize,
    max_bytes: usize,
) -> (Reader, io::Result<Option<Group>>) {
    let place = Arc::clone(place);
    let read = move || {
        loop {
            let group = place.take(&mut reader, max_records, max_bytes);
            let Err(error) = &group else { return (reader, group) };
            if is_for_lack_of_resources(error) {
                return (reader, group);
            }
            tracing::error!("the spool in {} cannot be read: {error}", place.directory().display());
            let before = reader.seq();
            place.skip_segment(&mut reader);
            if reader.seq() == before {
                return (reader, Ok(None));
            }
        }
    };
    match tokio::task::spawn_blocking(read).await {
        Ok(read) => read,
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    }
}

/// Whether the file may be intact: the process has too many open files, too little memory, or no right to read it.
fn is_for_lack_of_resources(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    errno.is_some_and(|errno| [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::ACCESS, Errno::PERM].contains(&errno))
}
