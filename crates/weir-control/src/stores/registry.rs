//! What registries of services have in common: the news of services, the log, and the pauses after failures.

use std::collections::BTreeSet;
use std::time::Duration;

use weir_net::backoff::Backoff;

use crate::document::ServiceInstance;

/// The first pause after a failure; it doubles with each further one.
const LEAST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause, unless the registry is asked more often.
const LONGEST_PAUSE: Duration = Duration::from_secs(32);

/// What is known after a request to a registry.
pub(super) enum RegistryNews<'a> {
    /// The instances of a service, or why there are none.
    Service(&'a str, Result<Vec<ServiceInstance>, String>),
    /// Whether a server answered.
    Answered(bool),
}

/// Logs each change of a registry once.
pub(super) struct RegistryLog {
    /// The registry, as `a Eureka server` and `no Eureka server`.
    registry: &'static str,
    /// The services that had no instance when they were last asked for.
    empty: BTreeSet<Box<str>>,
    is_away: bool,
}

impl RegistryLog {
    pub(super) fn of(registry: &'static str) -> RegistryLog {
        RegistryLog { registry, empty: BTreeSet::new(), is_away: false }
    }

    /// Notes whether a server answered, or why none did.
    pub(super) fn answered(&mut self, outcome: Result<(), &str>) {
        let registry = self.registry;
        match outcome {
            Ok(()) if self.is_away => tracing::info!("a {registry} server answers again"),
            Err(reason) if !self.is_away => {
                tracing::warn!("no {registry} server answers, the last instances of services stay in use: {reason}");
            }
            Ok(()) | Err(_) => {}
        }
        self.is_away = outcome.is_err();
    }

    /// Notes whether a service has instances, or why it has none.
    pub(super) fn service(&mut self, name: &str, problem: Option<&str>) {
        match problem {
            Some(problem) if self.empty.insert(name.into()) => {
                tracing::warn!(service = %name, "a service has no instances, its last ones stay in use: {problem}");
            }
            None if self.empty.remove(name) => tracing::info!(service = %name, "a service has instances"),
            Some(_) | None => {}
        }
    }

    /// Forgets the services that are no longer wanted.
    pub(super) fn keep(&mut self, wanted: &BTreeSet<Box<str>>) {
        self.empty.retain(|name| wanted.contains(name));
    }
}

/// The pause after this many failures in a row, at most `most`.
pub(super) fn pause_after(failures: u32, most: Duration) -> Duration {
    Backoff::new(LEAST_PAUSE, most.min(LONGEST_PAUSE)).after(failures)
}

/// In a stable order and without duplicates, so that an equal list is not a change.
pub(super) fn put_in_order(instances: &mut Vec<ServiceInstance>) {
    instances.sort();
    instances.dedup_by_key(|one| (one.address, one.port, one.secure_port));
}
