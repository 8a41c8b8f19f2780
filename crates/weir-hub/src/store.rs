//! The hub's files: a journal of events, and a journal of the state.
//!
//! Both lie in the hub's directory, which is locked by one process at a time. Events are synced before their publisher is
//! answered. Outcomes are written at once and synced every second: they survive the end of the process, but after a loss of power
//! the deliveries of the last second are repeated. Changes of subscriptions are synced before they take effect.
//!
//! With Kafka as the log, the journal of events is a copy of a partition, and the state is written elsewhere ([`StateLog`]).

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use weir_journal::{
    AppendError, Disk, Item, Journal, OnCommit, Options, Reader, Storage, Sync, WhenFull, create_private_directory,
};
use weir_kafka::partition_of;

use crate::engine::Engine;
use crate::form::SubscriptionRequest;
use crate::record::{self, Event, LogEntry, StateRecord, UnknownRecord};
use crate::settings::HubSettings;

const EVENT_SEGMENT_BYTES: u64 = 8 << 20;
const STATE_SEGMENT_BYTES: u64 = 8 << 20;
/// The growth of the state's journal below which no snapshot is written.
const LEAST_GROWTH_BYTES: u64 = 16 << 20;
/// Records of a snapshot that are written as one batch.
const SNAPSHOT_BATCH: usize = 1_000;
/// The most payloads of a snapshot that wait for the disk while another batch is encoded.
const SNAPSHOT_BATCHES: usize = 8;
/// Size of the cache of events, in bytes.
const CACHE_BYTES: usize = 64 << 20;
/// Bytes of events read ahead for a subscriber that lags behind.
const READ_AHEAD_BYTES: usize = 256 << 10;
/// Readers of the journal kept open for subscribers that lag behind.
const MAX_READERS: usize = 16;

/// The log of events. Any thread may read and append.
pub(crate) struct EventLog {
    pub journal: Journal,
    /// Appends events elsewhere, if the journal is a copy. Each record of a copy begins with the time of the original.
    pub origin: Option<EventOrigin>,
}

/// Appends an event to the log that the journal is a copy of.
pub(crate) type EventOrigin = Box<dyn Fn(Vec<u8>, OnCommit) -> Result<(), AppendError> + Send + std::marker::Sync>;

impl EventLog {
    /// # Errors
    /// The event is refused.
    pub(crate) fn append(&self, record: Vec<u8>, on_commit: OnCommit) -> Result<(), AppendError> {
        match &self.origin {
            Some(origin) => origin(record, on_commit),
            None => self.journal.append(record, on_commit),
        }
    }

    /// The options of the journal. The engine does the retention; the limit of the journal applies only if space is not freed fast
    /// enough.
    pub(crate) fn options(settings: &HubSettings, is_copy: bool) -> Options {
        Options {
            segment_bytes: EVENT_SEGMENT_BYTES,
            max_bytes: settings.retention.bytes.saturating_mul(2) + 4 * EVENT_SEGMENT_BYTES,
            max_record_bytes: 64 << 20,
            sync: if is_copy { Sync::Never } else { Sync::Always },
            when_full: if is_copy { WhenFull::DropOldest } else { WhenFull::Refuse },
            ..Options::default()
        }
    }

    /// Applies other settings from now on.
    pub(crate) fn reconfigure(&self, settings: &HubSettings) {
        self.journal.set_options(EventLog::options(settings, self.origin.is_some()));
    }

    /// The record of a copy: the original's time, and the original record.
    pub(crate) fn copied(time_ms: u64, record: &[u8]) -> Vec<u8> {
        [&time_ms.to_le_bytes(), record].concat()
    }

    /// The time and content of a record; `None` for the placeholder of an offset without a record, in a copy.
    fn split<'a>(&self, time_ms: u64, payload: &'a [u8]) -> Result<Option<(u64, &'a [u8])>, UnknownRecord> {
        if self.origin.is_none() {
            return Ok(Some((time_ms, payload)));
        }
        let (time, record) = payload.split_first_chunk().ok_or(UnknownRecord)?;
        Ok((!record.is_empty()).then_some((u64::from_le_bytes(*time), record)))
    }

    fn entry(&self, seq: u64, time_ms: u64, payload: &[u8]) -> Result<Option<LogEntry>, UnknownRecord> {
        let Some((time_ms, record)) = self.split(time_ms, payload)? else { return Ok(None) };
        LogEntry::decode(seq, time_ms, record).map(Some)
    }
}

/// One of several shares of the subscriptions, each with an engine of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SubscriptionShare {
    pub index: u32,
    pub count: u32,
}

impl SubscriptionShare {
    /// The size of each share's range of ids: enough for a hundred subscriptions per second for three hundred years, and exact in
    /// JSON.
    const NUMBERS: u64 = 1 << 40;

    /// Whether the request belongs to this share. A subscription is identified by its topic and callback (W3C WebSub §5.1).
    pub(crate) fn has(&self, request: &SubscriptionRequest) -> bool {
        let key = format!("{} {}", request.topic, request.callback);
        partition_of(key.as_bytes(), self.count as usize) == self.index as usize
    }

    pub(crate) fn first_number(&self) -> u64 {
        u64::from(self.index) * SubscriptionShare::NUMBERS + 1
    }
}

/// The log of the state: changes of subscriptions and outcomes, in order. Each hub, or share of a hub, is the only writer of its
/// log.
pub(crate) trait StateLog: Send {
    /// Appends a record; `on_commit` is called when it is valid. With `survives_power_loss` it is on
    /// the disk by then.
    ///
    /// # Errors
    /// The record is refused.
    fn append(&self, payload: Vec<u8>, survives_power_loss: bool, on_commit: OnCommit) -> Result<(), AppendError>;

    fn size(&self) -> StateLogSize;

    /// Allows to remove the records that the log had at this size: a snapshot after them replaces them.
    fn release(&self, before: StateLogSize);

    /// Allows to remove events up to this one.
    fn release_events(&self, seq: u64);

    /// The log's current error, if there is one.
    fn error(&self) -> Option<String>;
}

/// The size of a state log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StateLogSize {
    /// The number of its last record.
    pub last: u64,
    pub bytes: u64,
}

/// The state log of a hub of one node: a journal beside that of the events.
struct StateJournal {
    state: Journal,
    events: Arc<EventLog>,
}

impl StateLog for StateJournal {
    fn append(&self, payload: Vec<u8>, survives_power_loss: bool, on_commit: OnCommit) -> Result<(), AppendError> {
        match survives_power_loss {
            true => self.state.append_synced(payload, on_commit),
            false => self.state.append(payload, on_commit),
        }
    }

    fn size(&self) -> StateLogSize {
        let status = self.state.status();
        StateLogSize { last: status.committed, bytes: status.bytes }
    }

    fn release(&self, before: StateLogSize) {
        self.state.release(before.last);
    }

    fn release_events(&self, seq: u64) {
        self.events.journal.release(seq);
    }

    fn error(&self) -> Option<String> {
        self.state.status().error
    }
}

/// The contents of the files when they were opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HubRecovery {
    pub subscriptions: usize,
    pub events: u64,
    /// The number of damaged places in both journals.
    pub damaged: usize,
}

pub(crate) struct HubStore {
    pub events: Arc<EventLog>,
    pub state: Box<dyn StateLog>,
    /// Reads events as they are committed.
    newest: Reader,
    cache: EventCache,
    /// The size of the state log after the last snapshot, in bytes.
    snapshot_bytes: u64,
    /// The growth of the state log below which no snapshot is written, in bytes.
    pub least_growth_bytes: u64,
    /// The share whose requests are taken in from the log of events; `None` takes in no requests.
    share: Option<SubscriptionShare>,
    /// Requests found while events were restored, which the engine has not taken in yet.
    early: VecDeque<LogEntry>,
    /// Unlocks the directory when it is dropped; the last field, so that it is dropped last.
    _lock: Option<File>,
}

/// Locks a hub's directory; `None` if another process has locked it.
///
/// # Errors
/// The directory cannot be created, or the lock file cannot be opened.
pub fn lock(directory: &Path) -> io::Result<Option<File>> {
    create_private_directory(directory)?;
    let file = File::options().create(true).truncate(false).write(true).open(directory.join("lock"))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn unreadable(_: UnknownRecord) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a record was written by a newer version of this program")
}

impl HubStore {
    /// Opens both journals, and restores an engine from them.
    ///
    /// # Errors
    /// The files cannot be used, or are of a newer version.
    pub(crate) fn open(
        directory: &Path,
        lock: File,
        settings: &Arc<HubSettings>,
        seed: u64,
    ) -> io::Result<(HubStore, Engine, HubRecovery)> {
        let state_options = Options {
            segment_bytes: STATE_SEGMENT_BYTES,
            max_bytes: u64::MAX,
            max_pending_bytes: usize::MAX,
            max_record_bytes: 64 << 20,
            sync: Sync::Every(Duration::from_secs(1)),
            ..Options::default()
        };
        let (state, of_state) = Journal::open_in(storage(&directory.join("state"))?, state_options)?;
        let mut engine = restore_state(&state, settings, seed)?;
        let event_options = Options { min_next_seq: engine.processed() + 1, ..EventLog::options(settings, false) };
        let (events, of_events) = Journal::open_in(storage(&directory.join("events"))?, event_options)?;
        let events = Arc::new(EventLog { journal: events, origin: None });
        let (newest, _) = restore_events(&events, &mut engine)?;
        let recovery = HubRecovery {
            subscriptions: engine.subscription_count(),
            events: events.journal.status().records,
            damaged: of_state.damage.len() + of_events.damage.len(),
        };
        let mut store = HubStore {
            events: Arc::clone(&events),
            state: Box::new(StateJournal { state, events }),
            newest,
            cache: EventCache::default(),
            snapshot_bytes: 0,
            least_growth_bytes: LEAST_GROWTH_BYTES,
            share: None,
            early: VecDeque::new(),
            _lock: Some(lock),
        };
        // Records after an unfinished snapshot would be lost with it, so a complete one is written first.
        store.write_snapshot(&engine)?;
        Ok((store, engine, recovery))
    }

    /// Opens a store on a copy of a log of events; requests of `share` are taken in from it.
    ///
    /// # Errors
    /// The copy cannot be read, or contains a record of a newer version.
    pub(crate) fn over_copy(
        events: Arc<EventLog>,
        state: Box<dyn StateLog>,
        engine: &mut Engine,
        share: Option<SubscriptionShare>,
    ) -> io::Result<HubStore> {
        let (newest, requests) = restore_events(&events, engine)?;
        let is_own =
            |entry: &LogEntry| matches!(entry, LogEntry::Request(_, it) if share.is_some_and(|share| share.has(it)));
        let early = requests.into_iter().filter(is_own).collect();
        let most = CACHE_BYTES / share.map_or(1, |share| share.count as usize);
        let cache = EventCache { most, ..EventCache::default() };
        let least_growth_bytes = LEAST_GROWTH_BYTES;
        Ok(HubStore { events, state, newest, cache, snapshot_bytes: 0, least_growth_bytes, share, early, _lock: None })
    }

    /// Writes a snapshot of the whole state, and releases the records before it.
    ///
    /// # Errors
    /// The snapshot could not be written; the records before it stay valid.
    pub(crate) fn write_snapshot(&mut self, engine: &Engine) -> io::Result<()> {
        let before = self.state.size();
        let failed = |error: AppendError| io::Error::other(error.to_string());
        let wait = |written: mpsc::Receiver<Result<u64, AppendError>>| {
            written.recv().map_err(|_| io::Error::other("the log has ended"))?.map_err(failed)
        };
        let mut under_way = VecDeque::new();
        let mut records = engine.snapshot().peekable();
        while records.peek().is_some() {
            while under_way.len() >= SNAPSHOT_BATCHES {
                under_way.pop_front().map_or(Ok(0), wait)?;
            }
            let batch: Vec<StateRecord> = records.by_ref().take(SNAPSHOT_BATCH).collect();
            for (payload, _) in record::encode(&batch) {
                let (sender, written) = mpsc::sync_channel(1);
                let tell = Box::new(move |result| drop(sender.send(result)));
                self.state.append(payload, true, tell).map_err(failed)?;
                under_way.push_back(written);
            }
        }
        for written in under_way {
            wait(written)?;
        }
        self.state.release(before);
        self.snapshot_bytes = self.state.size().bytes.saturating_sub(before.bytes);
        Ok(())
    }

    /// Whether the state log has grown so much that a snapshot should replace it.
    pub(crate) fn wants_snapshot(&self) -> bool {
        self.state.size().bytes > 2 * self.snapshot_bytes + self.least_growth_bytes
    }

    /// The next committed event, or request of the share.
    ///
    /// # Errors
    /// Reading failed; it may succeed later.
    pub(crate) fn next_committed(&mut self) -> io::Result<Option<LogEntry>> {
        if let Some(request) = self.early.pop_front() {
            return Ok(Some(request));
        }
        loop {
            match self.newest.read()? {
                None => return Ok(None),
                Some(Item::Gone { .. }) => {}
                Some(Item::Record { seq, time_ms, payload }) => {
                    match self.events.entry(seq, time_ms, payload).map_err(unreadable)? {
                        Some(LogEntry::Event(event)) => {
                            self.cache.put(&event);
                            return Ok(Some(LogEntry::Event(event)));
                        }
                        Some(LogEntry::Request(seq, request)) if self.share.is_some_and(|it| it.has(&request)) => {
                            return Ok(Some(LogEntry::Request(seq, request)));
                        }
                        _ => {}
                    }
                }
            }
        }
    }

    /// An event, from the cache or from the disk; `None` if it was removed.
    ///
    /// # Errors
    /// Reading failed; it may succeed later.
    pub(crate) fn event(&mut self, seq: u64) -> io::Result<Option<Arc<Event>>> {
        match self.cache.get(seq) {
            Some(event) => Ok(Some(event)),
            None => self.cache.load(&self.events, seq),
        }
    }
}

fn storage(directory: &Path) -> io::Result<Arc<dyn Storage>> {
    Ok(Arc::new(Disk::open(directory)?))
}

/// Restores an engine from the records of a state log.
pub(crate) struct StateRestore {
    new: Box<dyn Fn() -> Engine + Send>,
    engine: Engine,
    /// The engine of a snapshot that has begun, until its end is read.
    unfinished: Option<Engine>,
}

impl StateRestore {
    pub(crate) fn new(new: impl Fn() -> Engine + Send + 'static) -> StateRestore {
        StateRestore { engine: new(), new: Box::new(new), unfinished: None }
    }

    /// # Errors
    /// The payload was written by a newer version.
    pub(crate) fn take(&mut self, payload: &[u8]) -> io::Result<()> {
        for record in record::decode(payload).map_err(unreadable)? {
            match record {
                StateRecord::SnapshotBegin => self.unfinished = Some((self.new)()),
                StateRecord::SnapshotEnd => {
                    if let Some(engine) = self.unfinished.take() {
                        self.engine = engine;
                    }
                }
                // Records after a damaged place may refer to lost subscriptions, so errors are ignored.
                record => drop(self.unfinished.as_mut().unwrap_or(&mut self.engine).restore(record)),
            }
        }
        Ok(())
    }

    /// Discards a snapshot that has begun: its end will not come.
    pub(crate) fn forget_unfinished(&mut self) {
        self.unfinished = None;
    }

    /// Returns the engine. A snapshot without an end is discarded.
    pub(crate) fn end(self) -> Engine {
        self.engine
    }
}

fn restore_state(state: &Journal, settings: &Arc<HubSettings>, seed: u64) -> io::Result<Engine> {
    let settings = Arc::clone(settings);
    let mut restore = StateRestore::new(move || Engine::new(Arc::clone(&settings), seed));
    let mut reader = state.reader(0);
    while let Some(item) = reader.read()? {
        if let Item::Record { payload, .. } = item {
            restore.take(payload)?;
        }
    }
    Ok(restore.end())
}

/// Restores the events that the engine keeps. Returns a reader positioned after the last event, and the requests that the
/// engine has not taken in.
fn restore_events(events: &EventLog, engine: &mut Engine) -> io::Result<(Reader, Vec<LogEntry>)> {
    let (mut reader, mut requests) = (events.journal.reader(0), Vec::new());
    while let Some(item) = reader.read()? {
        let Item::Record { seq, time_ms, payload } = item else { continue };
        let Some((time_ms, record)) = events.split(time_ms, payload).map_err(unreadable)? else { continue };
        if !record::is_request(record) {
            let (topic, bytes) = Event::topic_and_size(record).map_err(unreadable)?;
            engine.restore_event(seq, topic, bytes, time_ms);
        } else if seq > engine.requests_taken() {
            requests.push(LogEntry::decode(seq, time_ms, record).map_err(unreadable)?);
        }
    }
    Ok((reader, requests))
}

/// A cache of recently read or written events; the oldest entry is evicted first.
struct EventCache {
    /// The most bytes of cached events.
    most: usize,
    events: HashMap<u64, Arc<Event>>,
    order: VecDeque<u64>,
    bytes: usize,
    /// Readers for subscribers that lag behind, the most recently used one last.
    readers: Vec<Reader>,
}

impl Default for EventCache {
    fn default() -> EventCache {
        let (events, order, readers) = (HashMap::new(), VecDeque::new(), Vec::new());
        EventCache { most: CACHE_BYTES, events, order, bytes: 0, readers }
    }
}

impl EventCache {
    fn get(&self, seq: u64) -> Option<Arc<Event>> {
        self.events.get(&seq).cloned()
    }

    fn put(&mut self, event: &Arc<Event>) {
        if self.events.insert(event.seq, Arc::clone(event)).is_some() {
            return;
        }
        self.order.push_back(event.seq);
        self.bytes += cached_bytes(event);
        while self.bytes > self.most && self.order.len() > 1 {
            let oldest = self.order.pop_front().and_then(|seq| self.events.remove(&seq));
            self.bytes -= oldest.map_or(0, |event| cached_bytes(&event));
        }
    }

    /// Reads an event, and some that follow it; `None` if it was removed.
    fn load(&mut self, events: &EventLog, seq: u64) -> io::Result<Option<Arc<Event>>> {
        // A reader that another subscriber has left a little before this event is used again.
        let near = |reader: &Reader| reader.seq() < seq && seq - reader.seq() < 64;
        let mut reader = match self.readers.iter().position(near) {
            Some(index) => self.readers.remove(index),
            None => events.journal.reader(seq - 1),
        };
        let mut found = None;
        let mut ahead = 0;
        while reader.seq() < seq || ahead < READ_AHEAD_BYTES {
            match reader.read() {
                Ok(Some(Item::Record { seq: read, time_ms, payload })) => {
                    ahead += if read > seq { payload.len() } else { 0 };
                    let Some(LogEntry::Event(event)) = events.entry(read, time_ms, payload).map_err(unreadable)? else {
                        continue;
                    };
                    if read == seq {
                        found = Some(Arc::clone(&event));
                    }
                    self.put(&event);
                }
                Ok(Some(Item::Gone { .. })) => {}
                Ok(None) => break,
                // What follows it is not needed yet.
                Err(_) if found.is_some() => break,
                Err(error) => return Err(error),
            }
        }
        self.readers.push(reader);
        if self.readers.len() > MAX_READERS {
            self.readers.remove(0);
        }
        Ok(found)
    }
}

/// What an event takes in the cache: its parts, and what the cache itself needs for one, in bytes.
fn cached_bytes(event: &Event) -> usize {
    event.content.len() + event.topic.len() + event.content_type.len() + 256
}
