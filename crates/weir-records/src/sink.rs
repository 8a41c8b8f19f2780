//! A sink: plugins hand records over to it.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Mutex, OnceLock};

use crate::account::RecordAccount;
use crate::delivery;
use crate::destination::OpenDestination;
use crate::lock::locked;
use crate::memory::SinkMemory;
use crate::register::SinkRegister;
use crate::ring::{Attachment, RingWriter, new_ring};
use crate::signals::SinkSignals;
use crate::sink_core::{SinkCore, SinkOptions};
use crate::test_record::TestWatches;

/// A sink. When the last plugin that uses it drops it, the sink sends its remaining records, and ends.
pub struct RecordSink {
    core: Arc<SinkCore>,
    /// Present until the sink is started.
    open: Mutex<Option<OpenDestination>>,
}

impl RecordSink {
    /// Creates a sink without starting it. `open` creates the destination at the start.
    pub fn new(register: &Arc<SinkRegister>, options: SinkOptions, open: OpenDestination) -> RecordSink {
        let core = SinkCore {
            account: register.account(&options.name),
            spooled: OnceLock::new(),
            options,
            register: Arc::clone(register),
            memory: Arc::new(SinkMemory::new(Arc::clone(&register.memory))),
            new_rings: Mutex::new(Some(Vec::new())),
            signals: Arc::new(SinkSignals::default()),
            tests: TestWatches::default(),
        };
        RecordSink { core: Arc::new(core), open: Mutex::new(Some(open)) }
    }

    /// Starts the sink's task, unless it was started before.
    ///
    /// # Errors
    /// The system refuses a thread. Records then wait in the rings, and are counted as dropped once these are full.
    pub fn start(&self) -> Result<(), String> {
        let Some(open) = locked(&self.open).take() else { return Ok(()) };
        let (core, register) = (Arc::clone(&self.core), Arc::clone(&self.core.register));
        let start = Box::new(move || delivery::start(core, open));
        register.began(Arc::clone(&self.core) as _);
        register.run(start).map_err(|error| {
            register.ended(&self.core);
            format!("{}: the thread that sends records cannot be started: {error}", self.core.name())
        })
    }

    /// Creates a ring for the calling thread. `None` if too many threads have one, or the sink's task has ended.
    pub fn writer(&self) -> Option<RingWriter> {
        let (writer, reader) = new_ring(self.core.spooled.get().unwrap_or(&self.core.account), &self.core.memory)?;
        locked(&self.core.new_rings).as_mut()?.push(reader);
        Some(writer)
    }

    /// Whether new rings count in the account that survives a crash.
    fn counts_where_it_lasts(&self) -> bool {
        self.core.options.spool.is_none() || self.core.spooled.get().is_some()
    }

    /// Whether users should check [`SinkWriter::is_full`] before they do the work that will be recorded.
    pub fn blocks(&self) -> bool {
        self.core.blocks()
    }

    #[cfg(test)]
    pub(crate) fn core(&self) -> &SinkCore {
        &self.core
    }

    pub fn account(&self) -> &Arc<RecordAccount> {
        &self.core.account
    }
}

impl Drop for RecordSink {
    fn drop(&mut self) {
        self.core.signals.close();
    }
}

/// The writer of one thread. The spool opens a little after its sink starts: records before that are counted in memory; then the
/// writer changes to a ring that is counted in the account on disk, which survives a crash of the process.
pub struct SinkWriter {
    sink: Arc<RecordSink>,
    /// `None` if too many threads have a ring.
    ring: RefCell<Option<RingWriter>>,
    is_settled: Cell<bool>,
}

impl SinkWriter {
    pub fn new(sink: Arc<RecordSink>) -> SinkWriter {
        let is_settled = Cell::new(sink.counts_where_it_lasts());
        SinkWriter { ring: RefCell::new(sink.writer()), is_settled, sink }
    }

    /// Whether new work should be refused because it could not be recorded: three quarters of the memory for records are used,
    /// and the rest is reserved for work in progress.
    pub fn is_full(&self) -> bool {
        let core = &self.sink.core;
        core.signals.is_full() || core.memory.is_nearly_full() || self.ring.borrow().is_none()
    }

    /// Whether memory has room for a record with so many bytes. With a spool, it is not memory that decides.
    pub fn has_room(&self, bytes: u64) -> bool {
        let core = &self.sink.core;
        let on_its_way = self.ring.borrow().as_ref().map_or(0, RingWriter::attached_bytes);
        core.options.spool.is_some() || core.memory.has_room(bytes + on_its_way)
    }

    /// Copies a record, with its attachments, or counts that there was no room.
    pub fn write(&self, attachments: Vec<Attachment>, write: impl FnOnce(&mut Vec<u8>)) {
        if !self.is_settled.get() && self.sink.counts_where_it_lasts() {
            self.is_settled.set(true);
            *self.ring.borrow_mut() = self.sink.writer();
        }
        match &*self.ring.borrow() {
            Some(ring) => ring.write(attachments, write),
            None => self.sink.core.account.count_lost(),
        }
    }
}
