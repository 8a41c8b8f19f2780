//! Publishes configurations to the workers, and reports them to the operator.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use weir_control::document::{Document, NodeSettings};
use weir_control::{Acme, Diagnostic, Hubs, PreparedPublication, Publication, Subscriber};
use weir_gateway::DataPlane;
use weir_telemetry::metrics::Metrics;

use super::listening::ClientListeners;
use super::metrics_export::MetricsExporter;
use super::systemd;
use crate::say::{say, say_error};

/// How long workers may take to adopt a snapshot. They do so between two events, usually within microseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// Publishes each configuration to the workers, and reports the result.
#[derive(Clone)]
pub(super) struct SnapshotPublisher(Arc<ConfigurationState>);

struct ConfigurationState {
    metrics: Arc<Metrics>,
    listeners: Arc<ClientListeners>,
    /// Set after the gateway has been started with the first configuration. Weak, since the gateway is owned elsewhere.
    gateway: OnceLock<Weak<DataPlane>>,
    /// The same for the ACME client.
    acme: OnceLock<Weak<Acme>>,
    hubs: OnceLock<Weak<Hubs>>,
    exporter: OnceLock<Weak<MetricsExporter>>,
    settings: Mutex<Option<Arc<NodeSettings>>>,
}

impl SnapshotPublisher {
    pub(super) fn new(metrics: Arc<Metrics>, listeners: Arc<ClientListeners>) -> Self {
        Self(Arc::new(ConfigurationState {
            metrics,
            listeners,
            gateway: OnceLock::new(),
            acme: OnceLock::new(),
            hubs: OnceLock::new(),
            exporter: OnceLock::new(),
            settings: Mutex::default(),
        }))
    }

    /// Sets the gateway, ACME client, hubs and exporter that later configurations are published to.
    pub(super) fn publishes_to(
        &self,
        gateway: &Arc<DataPlane>,
        acme: &Arc<Acme>,
        hubs: &Arc<Hubs>,
        exporter: &Arc<MetricsExporter>,
    ) {
        // A node has one of each, so these are set only once.
        let _ = self.0.gateway.set(Arc::downgrade(gateway));
        let _ = self.0.acme.set(Arc::downgrade(acme));
        let _ = self.0.hubs.set(Arc::downgrade(hubs));
        let _ = self.0.exporter.set(Arc::downgrade(exporter));
    }

    /// The settings of the last accepted configuration.
    pub(super) fn settings(&self) -> Option<Arc<NodeSettings>> {
        self.0.settings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Subscriber for SnapshotPublisher {
    fn reserve(&self, document: &Document) -> Result<PreparedPublication<'_>, Vec<Diagnostic>> {
        let reserved = self.0.listeners.reserve(document)?;
        Ok(Box::new(move || reserved.apply()))
    }

    fn published(&self, publication: &Publication, reserved: PreparedPublication<'_>) {
        let Publication { revision, snapshot, settings, acme, hubs, http, warnings, is_answered } = publication;
        if !is_answered {
            say_each("warning: ", warnings);
        }
        *self.0.settings.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(settings));
        self.0.metrics.control.served(*revision);
        // There is no gateway before the first configuration, and none while the node ends.
        let Some(gateway) = self.0.gateway.get().and_then(Weak::upgrade) else { return reserved() };
        // Hubs are updated before the routes that refer to them.
        if let Some(running) = self.0.hubs.get().and_then(Weak::upgrade) {
            running.follow(hubs, |line| say!("{line}"));
        }
        if !gateway.publish(Arc::clone(snapshot), PATIENCE) {
            say_error!("a worker has not adopted revision {revision} after {} s", PATIENCE.as_secs());
        }
        reserved();
        if let Some(Err(error)) = self.0.acme.get().and_then(Weak::upgrade).map(|all| all.follow(acme.as_ref())) {
            say_error!("certificates cannot be ordered: {error}");
        }
        let exporter = self.0.exporter.get().and_then(Weak::upgrade);
        if let Some(Err(error)) = exporter.map(|all| all.follow(settings.otlp_metrics.as_ref(), http)) {
            say_error!("metrics cannot be exported: {error}");
        }
        self.0.metrics.control.reloads_applied.fetch_add(1, Relaxed);
        if !is_answered {
            say!("configuration applied, revision {revision}");
            systemd::ready();
        }
    }

    fn unavailable(&self, diagnostics: &[Diagnostic]) {
        say_each("", diagnostics);
        self.0.metrics.control.refused();
        say_error!("the previous configuration stays in use; what does not respond is tried again");
        systemd::ready();
    }

    fn refused(&self, diagnostics: &[Diagnostic]) {
        say_each("", diagnostics);
        match self.settings() {
            None => say_error!("the configuration was rejected"),
            Some(_) => {
                self.0.metrics.control.refused();
                say_error!("configuration rejected, the previous one stays in use");
                systemd::ready();
            }
        }
    }
}

/// The most diagnostics that are logged; `weir check` and `/status` show all of them.
const SAID: usize = 50;

fn say_each(kind: &str, diagnostics: &[Diagnostic]) {
    for diagnostic in diagnostics.iter().take(SAID) {
        say_error!("{kind}{diagnostic}");
    }
    if diagnostics.len() > SAID {
        say_error!("{kind}and {} more", diagnostics.len() - SAID);
    }
}
