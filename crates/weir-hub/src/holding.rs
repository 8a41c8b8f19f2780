//! Events in memory for callers that listen or read. The rest of the process counts them, and says whether there is room.

use std::sync::Arc;

use crate::form::Refusal;
use crate::record::Event;

/// Counts the events that are in memory for one call. Dropping it ends that.
pub trait EventHolding: Send {
    /// Counts one more event, of this many bytes.
    ///
    /// # Errors
    /// There is no room for it.
    fn hold(&mut self, seq: u64, bytes: usize) -> Result<(), Refusal>;

    /// Counts none of them any more.
    fn release(&mut self);
}

/// Events for a caller, at least one. They are counted until this is dropped.
pub struct HeldEvents {
    events: Vec<Arc<Event>>,
    _holding: Box<dyn EventHolding>,
}

impl HeldEvents {
    pub(crate) fn new(events: Vec<Arc<Event>>, holding: Box<dyn EventHolding>) -> HeldEvents {
        HeldEvents { events, _holding: holding }
    }

    pub fn events(&self) -> &[Arc<Event>] {
        &self.events
    }
}

/// What a caller that listens gets.
pub enum Listened {
    Events(HeldEvents),
    /// There are events, and no room to hold the first of them. The caller may ask again.
    NoRoom(Refusal),
    /// The settings have changed: the caller has to find out whether it still may listen.
    Reconfigured,
}
