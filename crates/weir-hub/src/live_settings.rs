//! The settings that hold at the moment, for parts of a hub that begin while it runs.

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use weir_client::HttpClientSettings;

use crate::settings::HubSettings;

/// What holds at the moment.
pub struct LiveSettings {
    pub settings: ArcSwap<HubSettings>,
    http: Mutex<HttpClientSettings>,
}

impl LiveSettings {
    pub fn new(settings: Arc<HubSettings>, http: &HttpClientSettings) -> Arc<LiveSettings> {
        Arc::new(LiveSettings { settings: ArcSwap::new(settings), http: Mutex::new(http.clone()) })
    }

    pub fn set(&self, settings: Arc<HubSettings>, http: HttpClientSettings) {
        self.settings.store(settings);
        *self.http.lock().unwrap_or_else(PoisonError::into_inner) = http;
    }

    /// How the node resolves names, and whom it believes.
    pub fn http(&self) -> HttpClientSettings {
        self.http.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
