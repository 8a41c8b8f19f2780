//! The way of a configuration from its file to the workers, and to the operator's eyes.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use weir_control::document::NodeSettings;
use weir_control::{Acme, Diagnostic, Hubs, Publication, Subscriber};
use weir_gateway::DataPlane;
use weir_telemetry::metrics::Metrics;

use super::systemd;
use crate::say::say;

/// How long workers may take to take on a snapshot. They do so between two events, so this is a matter of microseconds
/// unless something is badly wrong.
const PATIENCE: Duration = Duration::from_secs(10);

/// Takes each configuration to the workers, and says what became of it.
#[derive(Clone)]
pub struct SnapshotPublisher(Arc<ConfigurationState>);

struct ConfigurationState {
    metrics: Arc<Metrics>,
    /// There is none before the first configuration, which the gateway is started with. It is not ours to keep alive.
    gateway: OnceLock<Weak<DataPlane>>,
    /// The same for those who get certificates.
    acme: OnceLock<Weak<Acme>>,
    hubs: OnceLock<Weak<Hubs>>,
    settings: Mutex<Option<Arc<NodeSettings>>>,
}

impl SnapshotPublisher {
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self(Arc::new(ConfigurationState {
            metrics,
            gateway: OnceLock::new(),
            acme: OnceLock::new(),
            hubs: OnceLock::new(),
            settings: Mutex::default(),
        }))
    }

    /// Names the gateway that later configurations go to, who gets certificates for them, and their hubs.
    pub fn publishes_to(&self, gateway: &Arc<DataPlane>, acme: &Arc<Acme>, hubs: &Arc<Hubs>) {
        // A node starts one of each in its life.
        let _ = self.0.gateway.set(Arc::downgrade(gateway));
        let _ = self.0.acme.set(Arc::downgrade(acme));
        let _ = self.0.hubs.set(Arc::downgrade(hubs));
    }

    /// The settings of the last configuration that was accepted.
    pub fn settings(&self) -> Option<Arc<NodeSettings>> {
        self.0.settings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Subscriber for SnapshotPublisher {
    fn published(&self, publication: &Publication) {
        let Publication { revision, snapshot, settings, acme, hubs, warnings, is_answered } = publication;
        if !is_answered {
            say_each(warnings);
        }
        *self.0.settings.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(settings));
        self.0.metrics.control.served(*revision);
        // Without a gateway this is the first one, or the node is about to end.
        let Some(gateway) = self.0.gateway.get().and_then(Weak::upgrade) else { return };
        // Before routes lead to them.
        if let Some(running) = self.0.hubs.get().and_then(Weak::upgrade) {
            running.follow(hubs, |line| say!("{line}"));
        }
        if !gateway.publish(Arc::clone(snapshot), PATIENCE) {
            say!("a worker has not adopted revision {revision} after {} s", PATIENCE.as_secs());
        }
        if let Some(Err(error)) = self.0.acme.get().and_then(Weak::upgrade).map(|all| all.follow(acme.as_ref())) {
            say!("certificates cannot be ordered: {error}");
        }
        self.0.metrics.control.reloads_applied.fetch_add(1, Relaxed);
        if !is_answered {
            say!("configuration applied, revision {revision}");
            systemd::ready();
        }
    }

    fn refused(&self, diagnostics: &[Diagnostic]) {
        say_each(diagnostics);
        match self.settings() {
            None => say!("the configuration was rejected"),
            Some(_) => {
                self.0.metrics.control.refused();
                say!("configuration rejected, the previous one stays in use");
                systemd::ready();
            }
        }
    }
}

/// A file with so many faults is of a wrong kind; `weir check` and `/status` show all of them.
const SAID: usize = 50;

fn say_each(diagnostics: &[Diagnostic]) {
    for diagnostic in diagnostics.iter().take(SAID) {
        say!("{diagnostic}");
    }
    if diagnostics.len() > SAID {
        say!("and {} more", diagnostics.len() - SAID);
    }
}
