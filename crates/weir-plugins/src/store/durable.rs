//! Counters that outlive the process: a table in memory, and a journal in a folder that a thread keeps up to date.
//!
//! Requests count in memory and wait for nothing. The thread writes the cells that have changed every [`keeper::WRITE_EVERY`], and writes all of
//! them anew when the journal has grown, so that its size is bounded. A process that ends at any point loses at most the changes since the
//! last write. In an upgrade both processes count in the same memory, and whichever of them has locked the folder writes for both.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use weir_plugin::Build;

use super::counters::{CounterTable, PackedCounter, SipKey};

mod folder;
mod keeper;
mod keepers;
mod record;
mod totals;

use folder::CounterFolder;
use keeper::Keeper;
pub use keepers::{finish, unwritten};
pub use totals::{failed_writes, refusal};

/// The most keys of one kind of durable counter: a quarter of a million, in at most 4 MiB of memory, and [`keeper::MAX_BYTES`] on
/// disk.
const MOST_KEYS: usize = 1 << 18;

/// A counter that can be kept on disk.
pub(crate) trait DurableCounter: PackedCounter + Send + Sync + 'static {
    /// The name of its folder, and of its memory in an upgrade. Another one after a change of the packed form.
    const KIND: &'static str;
    /// The time in the unit of the counter.
    fn now() -> u64;
    /// Whether a window can be like this at this time. Not, for example, if the clock was wrong when it began.
    fn is_possible(self, now: u64) -> bool;
    /// The counter of a key that was counted in two tables.
    fn plus(self, other: Self, now: u64) -> Self;
}

/// A table of durable counters of one kind.
pub(crate) struct DurableCounters<C: DurableCounter> {
    table: Arc<CounterTable<C>>,
    folder: PathBuf,
    /// The previous process has passed the table on, and keeps it on disk until it ends.
    is_inherited: bool,
    stop: Mutex<Option<keepers::StopKeeper>>,
}

/// A resource that starts once its configuration is in use.
pub(crate) trait Startable: Send + Sync {
    /// # Errors
    /// What failed, for the error log.
    fn start(&self) -> Result<(), String>;
}

impl<C: DurableCounter> DurableCounters<C> {
    /// The table of this kind, which all plugins share. `None` without a `data_dir`.
    pub(crate) fn of(build: &Build) -> Option<Arc<DurableCounters<C>>> {
        let folder = build.data_dir()?.join("counters").join(C::KIND);
        Some(build.shared("durable-counters", &folder.to_string_lossy(), || DurableCounters::new(folder.clone())))
    }

    fn new(folder: PathBuf) -> DurableCounters<C> {
        // Only read here: a configuration that is only checked is built, too. Without a file, the first start writes one.
        let secret = folder::secret(&folder).unwrap_or_else(SipKey::random);
        let (table, is_inherited) = CounterTable::recorded(C::KIND, MOST_KEYS, secret);
        DurableCounters { table: Arc::new(table), folder, is_inherited, stop: Mutex::new(None) }
    }

    pub(crate) fn table(&self) -> &Arc<CounterTable<C>> {
        &self.table
    }
}

impl<C: DurableCounter> Startable for DurableCounters<C> {
    fn start(&self) -> Result<(), String> {
        let mut stop = self.stop.lock().unwrap_or_else(PoisonError::into_inner);
        if stop.is_some() {
            return Ok(());
        }
        let mut keeper =
            Keeper::new(Arc::clone(&self.table), CounterFolder::new(self.folder.clone()), self.is_inherited);
        // Before the node serves, so that the first request counts on top of what was kept.
        let opened = if self.is_inherited { Ok(()) } else { keeper.open_patiently() };
        let no_thread = |error: io::Error| format!("the thread that keeps counters on disk cannot be started: {error}");
        *stop = Some(keepers::start(keeper).map_err(no_thread)?);
        opened
    }
}
