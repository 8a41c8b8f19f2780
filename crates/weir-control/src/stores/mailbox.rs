//! What the thread of a store that follows others leaves for the thread that publishes.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::live::now_ms;
use super::shared::OutsideChange;
use super::wake::Wake;
use crate::store_state::StoreState;

/// Changes that the thread of a store passes to the thread that publishes them.
#[derive(Default)]
pub(super) struct Mailbox {
    content: Mutex<MailboxContent>,
    pub(super) changed: Condvar,
}

#[derive(Default)]
pub(super) struct MailboxContent {
    pub(super) changes: Vec<OutsideChange>,
    /// The revision up to which all changes have been put into the mailbox.
    pub(super) seen: u64,
    /// The newest revision that is known to have been written, by any node.
    pub(super) known: u64,
    wake: Option<Wake>,
    pub(super) state: StoreState,
}

impl Mailbox {
    pub(super) fn content(&self) -> MutexGuard<'_, MailboxContent> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn put(&self, change: OutsideChange) {
        let mut content = self.content();
        content.seen = match &change {
            OutsideChange::Some { revision, .. } => content.seen.max(*revision),
            // The revision may have decreased, after a backup was restored.
            OutsideChange::All { set, .. } => set.revision,
        };
        content.changes.push(change);
        self.changed.notify_all();
        let wake = content.wake.clone();
        drop(content);
        if let Some(wake) = wake {
            wake();
        }
    }

    pub(super) fn state(&self, connected: bool, member: &str, problem: Option<String>) {
        let mut content = self.content();
        let is_turn = content.state.connected != connected || content.state.since_ms == 0;
        let since_ms = if is_turn { now_ms() } else { content.state.since_ms };
        let is_new = is_turn || content.state.problem.is_some() != problem.is_some();
        content.state = StoreState { connected, member: member.to_owned(), since_ms, problem };
        let wake = content.wake.clone().filter(|_| is_new);
        drop(content);
        if let Some(wake) = wake {
            wake();
        }
    }

    /// Registers `wake`, and calls it if there are changes to take.
    pub(super) fn notify(&self, wake: Wake) {
        let mut content = self.content();
        let has_changes = !content.changes.is_empty();
        content.wake = Some(Arc::clone(&wake));
        drop(content);
        if has_changes {
            wake();
        }
    }
}
