//! A sink: what plugins hand records to.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Mutex, OnceLock};

use crate::account::RecordAccount;
use crate::delivery;
use crate::destination::OpenDestination;
use crate::lock::locked;
use crate::register::SinkRegister;
use crate::ring::{Attachment, RingWriter, new_ring};
use crate::signals::SinkSignals;
use crate::sink_core::{SinkCore, SinkOptions};

/// A sink. Dropping it, when the last plugin that uses it is gone, lets it send what it has, and end.
pub struct RecordSink {
    core: Arc<SinkCore>,
    /// Until it is started.
    open: Mutex<Option<OpenDestination>>,
}

impl RecordSink {
    /// Starts nothing. `open` makes the destination once it is started.
    pub fn new(register: &Arc<SinkRegister>, options: SinkOptions, open: OpenDestination) -> RecordSink {
        let core = SinkCore {
            account: register.account(&options.name),
            spooled: OnceLock::new(),
            options,
            register: Arc::clone(register),
            new_rings: Mutex::default(),
            signals: Arc::new(SinkSignals::default()),
        };
        RecordSink { core: Arc::new(core), open: Mutex::new(Some(open)) }
    }

    /// Starts its task, unless that was done before.
    ///
    /// # Errors
    /// The system gives no thread. Records wait in the rings, and are counted once these are full.
    pub fn start(&self) -> Result<(), String> {
        let Some(open) = locked(&self.open).take() else { return Ok(()) };
        let (core, register) = (Arc::clone(&self.core), Arc::clone(&self.core.register));
        let start = Box::new(move || delivery::start(core, open));
        register.began(&self.core.signals);
        register.threads().run(register.limits().threads, start).map_err(|error| {
            register.ended(&self.core.signals);
            format!("{}: the thread that sends records cannot be started: {error}", self.core.name())
        })
    }

    /// A ring for the thread that asks. `None` where too many threads have one.
    pub fn writer(&self) -> Option<RingWriter> {
        let (writer, reader) = new_ring(self.core.spooled.get().unwrap_or(&self.core.account))?;
        locked(&self.core.new_rings).push(reader);
        Some(writer)
    }

    /// Whether rings made from now on count where it lasts.
    fn counts_where_it_lasts(&self) -> bool {
        self.core.options.spool.is_none() || self.core.spooled.get().is_some()
    }

    /// Its users should ask [`SinkWriter::is_full`] before they do what is to be recorded.
    pub fn blocks(&self) -> bool {
        self.core.blocks()
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

/// A thread's way into a sink. The spool opens a little after its sink starts; what is written before is counted in memory,
/// and from the first record after it in a ring of the account on disk, which the death of the process does not take back.
pub struct SinkWriter {
    sink: Arc<RecordSink>,
    /// Nothing where too many threads have a ring already.
    ring: RefCell<Option<RingWriter>>,
    is_settled: Cell<bool>,
}

impl SinkWriter {
    pub fn new(sink: Arc<RecordSink>) -> SinkWriter {
        let is_settled = Cell::new(sink.counts_where_it_lasts());
        SinkWriter { ring: RefCell::new(sink.writer()), is_settled, sink }
    }

    /// Whether what is to be recorded should not be done: three quarters of the room for records are taken, and what is left is
    /// for that which has been begun.
    pub fn is_full(&self) -> bool {
        self.sink.core.signals.is_full() || self.ring.borrow().as_ref().is_none_or(RingWriter::is_nearly_full)
    }

    /// Copies a record, with its attachments, or counts that there was no room for it.
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
