//! The slot of a hub, which routes refer to whether the hub runs or not.

use std::mem;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use weir_client::HttpClientSettings;
use weir_hub::{Hub, HubSettings, ListenerCounts};

use super::client_events::ClientEvents;
use super::places::{ClientPlaces, PlaceLimit};

/// The terms of one hub in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubTerms {
    pub id: Box<str>,
    pub settings: HubSettings,
    pub directory: PathBuf,
    /// The node's settings for name resolution and TLS trust.
    pub http: HttpClientSettings,
}

/// How long a request waits for a hub that is being opened: longer than the previous process keeps it during a binary upgrade.
const OPENING_TIMEOUT: Duration = Duration::from_secs(10);

/// A request that is being answered.
pub(super) struct RequestInProgress<'s>(&'s HubSlot);

impl Drop for RequestInProgress<'_> {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The slot of one hub. It outlives configurations.
pub(crate) struct HubSlot {
    /// Those who listen.
    pub(super) listeners: Arc<ClientPlaces>,
    /// Listeners that were ended since they did not read.
    pub(super) unread: AtomicU64,
    pub(super) held: Arc<ClientEvents>,
    running: watch::Sender<Option<Arc<Hub>>>,
    /// Requests that are being answered.
    requests: AtomicUsize,
    /// Whether the configuration has the hub. Workers read this: the mutex may be locked for as long as opening or closing takes.
    is_wanted: AtomicBool,
    wanted: Mutex<WantedHub>,
}

#[derive(Default)]
pub(super) struct WantedHub {
    pub(super) terms: Option<HubTerms>,
    /// Whether a thread is trying to open it.
    pub(super) is_opening: bool,
}

impl HubSlot {
    pub(super) fn new() -> HubSlot {
        HubSlot {
            listeners: Arc::default(),
            unread: AtomicU64::new(0),
            held: Arc::default(),
            running: watch::Sender::new(None),
            requests: AtomicUsize::new(0),
            is_wanted: AtomicBool::new(false),
            wanted: Mutex::default(),
        }
    }

    pub(super) fn listener_counts(&self) -> ListenerCounts {
        ListenerCounts {
            open: self.listeners.count(),
            refused: self.listeners.refused(PlaceLimit::All),
            refused_of_client: self.listeners.refused(PlaceLimit::Client),
            unread: self.unread.load(Ordering::Relaxed),
        }
    }

    pub(super) fn wanted(&self) -> MutexGuard<'_, WantedHub> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the terms, and returns those before.
    pub(super) fn want(&self, wanted: &mut WantedHub, terms: Option<HubTerms>) -> Option<HubTerms> {
        self.is_wanted.store(terms.is_some(), Ordering::Relaxed);
        mem::replace(&mut wanted.terms, terms)
    }

    pub(super) fn running(&self) -> Option<Arc<Hub>> {
        self.running.borrow().clone()
    }

    /// Counts a request until what is returned is dropped.
    pub(super) fn begin(&self) -> RequestInProgress<'_> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        RequestInProgress(self)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.requests.load(Ordering::Relaxed) == 0
    }

    pub(super) fn opened(&self, hub: Hub) {
        self.running.send_replace(Some(Arc::new(hub)));
    }

    /// The running hub; waits while it is being opened.
    pub(super) async fn hub(&self) -> Option<Arc<Hub>> {
        if let Some(hub) = self.running() {
            return Some(hub);
        }
        // A hub that is not wanted is never opened.
        if !self.is_wanted.load(Ordering::Relaxed) {
            return None;
        }
        let mut changes = self.running.subscribe();
        let running = changes.wait_for(|hub| hub.is_some());
        let found = tokio::time::timeout(OPENING_TIMEOUT, running).await.ok()?.ok()?;
        found.clone()
    }

    pub(super) fn close(&self) {
        self.want(&mut self.wanted(), None);
        self.stop();
    }

    /// Stops the hub if it runs.
    pub(super) fn stop(&self) {
        if let Some(hub) = self.running.send_replace(None) {
            hub.close();
        }
    }
}
