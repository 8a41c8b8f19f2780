//! The drivers of a hub that several nodes share: one that serves listeners, and one for each share that this node owns.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc::UnboundedSender;

use crate::driver::Message;

pub(crate) struct HubDrivers {
    listening: UnboundedSender<Message>,
    /// The number of shares, of all nodes together.
    pub count: u32,
    shares: Mutex<BTreeMap<u32, UnboundedSender<Message>>>,
}

impl HubDrivers {
    pub(crate) fn new(listening: UnboundedSender<Message>, count: u32) -> HubDrivers {
        HubDrivers { listening, count, shares: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, UnboundedSender<Message>>> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(&self, share: u32, inbox: UnboundedSender<Message>) {
        self.lock().insert(share, inbox);
    }

    pub(crate) fn end(&self, share: u32) {
        self.lock().remove(&share);
    }

    /// The inboxes of the drivers of this node's shares.
    pub(crate) fn shares(&self) -> Vec<UnboundedSender<Message>> {
        self.lock().values().cloned().collect()
    }

    pub(crate) fn has_none(&self) -> bool {
        self.lock().is_empty()
    }

    /// Notifies all drivers that events were copied.
    pub(crate) fn committed(&self) {
        let _ = self.listening.send(Message::Committed);
        self.lock().values().for_each(|share| drop(share.send(Message::Committed)));
    }
}
