//! The current settings, for parts of a hub that start while it runs.

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use weir_client::HttpClientSettings;

use crate::settings::HubSettings;

/// The current settings of a hub and of its HTTP client.
pub(crate) struct LiveSettings {
    pub settings: ArcSwap<HubSettings>,
    http: Mutex<HttpClientSettings>,
}

impl LiveSettings {
    pub(crate) fn new(settings: Arc<HubSettings>, http: &HttpClientSettings) -> Arc<LiveSettings> {
        Arc::new(LiveSettings { settings: ArcSwap::new(settings), http: Mutex::new(http.clone()) })
    }

    pub(crate) fn set(&self, settings: Arc<HubSettings>, http: HttpClientSettings) {
        self.settings.store(settings);
        *self.http.lock().unwrap_or_else(PoisonError::into_inner) = http;
    }

    /// The node's settings for resolving names and trusting certificates.
    pub(crate) fn http(&self) -> HttpClientSettings {
        self.http.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
