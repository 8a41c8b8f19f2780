//! Writes the changes of a table to its journal.

use std::fmt;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use weir_journal::{AppendError, Item, Journal, Options, Seq, Sync, WhenFull};

use super::DurableCounter;
use super::folder::{CounterFolder, FolderError, JOURNAL};
use super::record::{self, RecordHead};
use super::totals;
use crate::store::counters::{CounterTable, StoredCell};

/// How often changes are written: what a process that is killed may lose.
pub(super) const WRITE_EVERY: Duration = Duration::from_millis(100);
/// How often what was written is synced: what a loss of power may lose besides.
const SYNC_EVERY: Duration = Duration::from_secs(1);
/// The pause after a failure.
const RETRY_EVERY: Duration = Duration::from_secs(1);
/// How long the start of a node waits for a process that is just ending.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);
/// The most bytes of a journal. A table with all cells in use takes 5 MiB. When it has grown by as much it is written anew, and only
/// then is what came before removed.
pub(super) const MAX_BYTES: u64 = 32 << 20;
const SEGMENT_BYTES: u64 = 2 << 20;
/// A journal that has grown by less is not written anew.
const LEAST_GROWTH: u64 = 1 << 20;

/// A table, and its folder.
pub(super) struct Keeper<C: DurableCounter> {
    table: Arc<CounterTable<C>>,
    folder: CounterFolder,
    head: RecordHead,
    /// The memory has everything that the folder has.
    is_restored: bool,
    journal: Option<LockedJournal>,
    /// The failure that was logged, until a write succeeds.
    logged: Option<String>,
}

struct LockedJournal {
    journal: Journal,
    /// The bytes of the cells when all were last written, and of the changes since then.
    whole: u64,
    grown: u64,
    /// After the journal, which must be closed while the folder is still locked.
    _lock: File,
}

/// Why counters are not on disk.
enum KeepError {
    Folder(FolderError),
    Write(AppendError),
}

impl<C: DurableCounter> Keeper<C> {
    pub(super) fn new(table: Arc<CounterTable<C>>, folder: CounterFolder, is_restored: bool) -> Keeper<C> {
        let head = record::head(&table);
        Keeper { table, folder, head, is_restored, journal: None, logged: None }
    }

    pub(super) fn table(&self) -> &Arc<CounterTable<C>> {
        &self.table
    }

    /// Opens the folder; waits for a process that is about to leave it.
    ///
    /// # Errors
    /// Why it cannot be opened, unless the node says it, which then does not begin to serve. [`Keeper::step`] tries again.
    pub(super) fn open_patiently(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + LOCK_PATIENCE;
        loop {
            match self.open() {
                Ok(()) => return Ok(()),
                Err(KeepError::Folder(FolderError::InUse(_))) if Instant::now() < deadline => sleep(WRITE_EVERY),
                Err(error) => {
                    let text = self.describe(&error);
                    self.logged = Some(text.clone());
                    let is_in_use = matches!(error, KeepError::Folder(FolderError::InUse(_)));
                    return if is_in_use && totals::refuse(&text) { Ok(()) } else { Err(text) };
                }
            }
        }
    }

    /// Writes what has changed. Returns the pause before the next step.
    pub(super) fn step(&mut self) -> Duration {
        let kept = if self.journal.is_none() { self.open() } else { self.write_changes() };
        match kept {
            Ok(()) => {
                if self.logged.take().is_some() {
                    tracing::warn!("the counters in {} are kept on disk again", self.folder.path().display());
                }
                WRITE_EVERY
            }
            // The previous process of an upgrade keeps the table until it ends.
            Err(KeepError::Folder(FolderError::InUse(_))) if self.is_restored => WRITE_EVERY,
            Err(error) => {
                totals::count_failure();
                let text = self.describe(&error);
                if self.logged.as_ref() != Some(&text) {
                    tracing::warn!("{text}");
                    self.logged = Some(text);
                }
                RETRY_EVERY
            }
        }
    }

    fn describe(&self, error: &KeepError) -> String {
        let folder = self.folder.path().display();
        match error {
            KeepError::Folder(FolderError::InUse(id)) => {
                let id = id.map(|id| format!(", {id},")).unwrap_or_default();
                format!(
                    "the counters in {folder} are kept by another process{id} and cannot be kept by two; \
                     give each gateway a `data_dir` of its own"
                )
            }
            error => format!(
                "the counters in {folder} cannot be kept on disk: {error}; limits count in memory, and a restart loses \
                 what has changed since the last write"
            ),
        }
    }

    fn open(&mut self) -> Result<(), KeepError> {
        let lock = self.folder.lock()?;
        let options = Options {
            segment_bytes: SEGMENT_BYTES,
            max_bytes: MAX_BYTES,
            max_record_bytes: record::MAX_BYTES as u32,
            // Reached only after writes of all cells that have failed half-way. The next one that succeeds makes up for it.
            when_full: WhenFull::DropOldest,
            sync: Sync::Every(SYNC_EVERY),
            ..Options::default()
        };
        let (journal, recovery) = Journal::open(self.folder.path().join(JOURNAL), options)?;
        if let Some(damage) = recovery.summary() {
            tracing::warn!("the counters in {}: {damage}", self.folder.path().display());
        }
        if !self.is_restored {
            self.restore(&journal)?;
            self.is_restored = true;
        }
        self.folder.keep_secret(self.table.secret())?;
        self.journal = Some(LockedJournal { journal, whole: 0, grown: 0, _lock: lock });
        self.write_all()
    }

    /// Counts what was kept.
    fn restore(&self, journal: &Journal) -> io::Result<()> {
        let mut words = vec![0; self.table.cell_count()];
        let mut reader = journal.reader(0);
        let mut foreign = 0;
        while let Some(item) = reader.read()? {
            let Item::Record { payload, .. } = item else { continue };
            let Some(cells) = record::decode(self.head, payload) else {
                foreign += 1;
                continue;
            };
            for StoredCell { number, word } in cells {
                if let Some(kept) = words.get_mut(number as usize) {
                    *kept = word;
                }
            }
        }
        if foreign > 0 {
            tracing::warn!("{foreign} records in {} are of another version", self.folder.path().display());
        }
        let now = C::now();
        let cells = (0..).zip(words).map(|(number, word)| StoredCell { number, word });
        for cell in cells.filter(|cell| cell.counter::<C>().is_possible(now)) {
            self.table.restore(cell, now, |one, other| one.plus(other, now));
        }
        Ok(())
    }

    fn write_changes(&mut self) -> Result<(), KeepError> {
        if self.journal.as_ref().is_some_and(|kept| kept.grown > kept.whole.max(LEAST_GROWTH)) {
            return self.write_all();
        }
        let changes = self.table.take_changes();
        self.append(&changes).map(|_| ()).inspect_err(|_| self.table.put_back(&changes))
    }

    /// Writes all cells that have an effect, and removes what was written before.
    fn write_all(&mut self) -> Result<(), KeepError> {
        let changes = self.table.take_changes();
        let live = self.table.live(C::now());
        let first = self.append(&live).inspect_err(|_| self.table.put_back(&changes))?;
        let Some(kept) = &mut self.journal else { return Ok(()) };
        if let Some(first) = first {
            kept.journal.release(first - 1);
        }
        kept.whole = (live.len() * record::CELL_BYTES) as u64;
        kept.grown = 0;
        Ok(())
    }

    /// Returns the number of the first record.
    fn append(&mut self, cells: &[StoredCell]) -> Result<Option<Seq>, KeepError> {
        let Some(kept) = &mut self.journal else { return Ok(None) };
        let mut first = None;
        for record in record::encode(self.head, cells) {
            kept.grown += record.len() as u64;
            let seq = kept.journal.append_and_wait(record).map_err(KeepError::Write)?;
            first.get_or_insert(seq);
        }
        Ok(first)
    }
}

impl From<FolderError> for KeepError {
    fn from(error: FolderError) -> Self {
        KeepError::Folder(error)
    }
}

impl From<io::Error> for KeepError {
    fn from(error: io::Error) -> Self {
        KeepError::Folder(FolderError::Io(error))
    }
}

impl fmt::Display for KeepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeepError::Folder(FolderError::InUse(_)) => f.write_str("the folder is in use"),
            KeepError::Folder(FolderError::Io(error)) => error.fmt(f),
            KeepError::Write(error) => error.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use weir_testkit::TempDir;

    use super::*;
    use crate::store::counters::{CounterKey, PackedCounter, SipKey};

    /// A count that always has an effect.
    #[derive(Clone, Copy)]
    struct Count(u64);

    impl PackedCounter for Count {
        fn from_bits(bits: u128) -> Count {
            Count(bits as u64)
        }
        fn bits(self) -> u128 {
            self.0.into()
        }
        fn is_live(self, _: u64) -> bool {
            self.0 > 0
        }
        fn weight(self, _: u64) -> u64 {
            self.0
        }
    }

    impl DurableCounter for Count {
        const KIND: &'static str = "test-durable";
        fn now() -> u64 {
            0
        }
        fn is_possible(self, _: u64) -> bool {
            true
        }
        fn plus(self, other: Count, _: u64) -> Count {
            Count(self.0 + other.0)
        }
    }

    /// So many that no key of a test takes the cell of another: with a random secret, half as many keys as cells do so now and then.
    const CELLS: usize = 1 << 18;

    fn keeper(place: &TempDir) -> Keeper<Count> {
        let secret = super::super::folder::secret(place.path()).unwrap_or_else(SipKey::random);
        let (table, _) = CounterTable::recorded(Count::KIND, CELLS, secret);
        Keeper::new(Arc::new(table), CounterFolder::new(place.path().to_owned()), false)
    }

    fn add(keeper: &Keeper<Count>, key: CounterKey) {
        keeper.table.update(key, 0, |Count(count)| (Some(Count(count + 1)), ()));
    }

    #[test]
    fn the_folder_stays_small_and_has_every_count() {
        const KEYS: u64 = 30_000;
        const ROUNDS: u64 = 30;
        let place = TempDir::new();
        let mut before = keeper(&place);
        before.open_patiently().expect("its own folder");
        let keys: Vec<_> = (0..KEYS).map(|number| before.table.key(7, &number.to_le_bytes())).collect();
        let most = 4 * KEYS * record::CELL_BYTES as u64 + 2 * SEGMENT_BYTES;
        for _ in 0..ROUNDS {
            keys.iter().for_each(|key| add(&before, *key));
            assert_eq!((before.table.changed(), before.step()), (KEYS, WRITE_EVERY));
            assert_eq!(before.table.changed(), 0, "all are written");
            let files = fs::read_dir(place.join(JOURNAL)).expect("a folder");
            let sizes: Vec<_> =
                files.map(|file| file.and_then(|file| file.metadata()).map_or(0, |file| file.len())).collect();
            assert!(sizes.iter().sum::<u64>() <= most && sizes.len() <= 4, "{sizes:?}");
        }
        drop(before);
        // Another process counts before it has read the folder, and joins what was kept.
        let mut after = keeper(&place);
        assert_eq!(after.table.key(7, &0_u64.to_le_bytes()), keys[0], "keys have the same secret");
        keys.iter().take(10).for_each(|key| add(&after, *key));
        assert_eq!(after.step(), WRITE_EVERY);
        let counts: Vec<_> = keys.iter().map(|key| after.table.read(*key).0).collect();
        assert!(counts[..10].iter().all(|count| *count == ROUNDS + 1), "{:?}", &counts[..10]);
        assert!(counts[10..].iter().all(|count| *count == ROUNDS));
    }

    #[test]
    fn a_folder_in_use_is_refused_until_it_is_free() {
        let place = TempDir::new();
        let (mut first, mut second) = (keeper(&place), keeper(&place));
        assert_eq!(first.step(), WRITE_EVERY);
        assert_eq!(second.step(), RETRY_EVERY);
        let said = second.logged.clone().unwrap_or_default();
        assert!(said.contains(&format!("are kept by another process, {},", std::process::id())), "{said}");
        drop(first);
        assert_eq!(second.step(), WRITE_EVERY);
    }
}
