//! What a registry of services is, and what all kinds of them have in common.

use std::any::Any;
use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch::Receiver;

use weir_client::HttpClient;
use weir_keys::keys::kinds::SubMap;
use weir_keys::keys::{AnyKey, DeclaredKey};
use weir_keys::text::read::NodeReader;
use weir_net::backoff::Backoff;

/// The most milliseconds of a time-out.
pub(crate) const MOST_MS: u32 = 600_000;
/// The longest time between two requests for the services, in seconds.
pub(crate) const MOST_INTERVAL_S: u32 = 86_400;
pub(crate) const MOST_WEIGHT: u32 = 100_000;
/// The first pause after a failure; it doubles with each further one.
const LEAST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause, unless the registry is asked more often.
const LONGEST_PAUSE: Duration = Duration::from_secs(32);

/// A kind of registry.
pub struct RegistryKind {
    /// The key of its settings in `discovery`. Its name is also the value of `discovery_type`.
    pub(crate) key: DeclaredKey<SubMap<Arc<dyn ServiceRegistry>>>,
    /// As in messages: `Eureka`.
    pub(crate) title: &'static str,
    /// Its settings, with the least that they must have, in YAML.
    pub(crate) example: &'static str,
    /// Reads the name of a service. Two names of one service become equal.
    pub(crate) service_name: fn(&NodeReader) -> Option<Box<str>>,
}

impl RegistryKind {
    pub fn name(&self) -> &'static str {
        self.key.about().name
    }

    pub fn service_name(&self, at: &NodeReader) -> Option<Box<str>> {
        (self.service_name)(at)
    }
}

/// A registry with the settings that a node has for it.
pub trait ServiceRegistry: ComparedRegistry {
    /// Why no upstream may use a service, and the correction.
    fn refusal(&self, _service: &str) -> Option<(&'static str, &'static str)> {
        None
    }

    /// Tells what the registry knows of the wanted services, now and after each change, until it is dropped. Runs in a `LocalSet`.
    fn follow(self: Arc<Self>, wanted: Receiver<WantedServices>, tell: Tell) -> FollowingTask;
}

/// Whether two registries have equal settings. Implemented for every [`ServiceRegistry`] that can be compared with others of its type.
pub trait ComparedRegistry: Any + fmt::Debug + Send + Sync {
    fn is_equal(&self, other: &dyn ServiceRegistry) -> bool;
}

impl<R: ServiceRegistry + PartialEq> ComparedRegistry for R {
    fn is_equal(&self, other: &dyn ServiceRegistry) -> bool {
        (other as &dyn Any).downcast_ref() == Some(self)
    }
}

pub type FollowingTask = Pin<Box<dyn Future<Output = ()>>>;
pub type Tell = Box<dyn Fn(RegistryNews<'_>)>;

/// What to follow.
#[derive(Clone)]
pub struct WantedServices {
    pub services: BTreeSet<Box<str>>,
    /// For requests to the registry.
    pub http: HttpClient,
}

/// An instance of a service. At least one of its ports is present.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceInstance {
    pub address: IpAddr,
    pub port: Option<u16>,
    /// The port for TLS.
    pub secure_port: Option<u16>,
    /// The name that the certificate must contain; the address if the registry has no name.
    pub host: Box<str>,
    pub weight: u32,
}

/// What is known after a request to a registry.
pub enum RegistryNews<'a> {
    /// The instances of a service, or why there are none.
    Service(&'a str, Result<Vec<ServiceInstance>, String>),
    /// Whether a server answered.
    Answered(bool),
}

/// Logs each change of a registry once.
pub(crate) struct RegistryLog {
    /// The registry, as `a Eureka server` and `no Eureka server`.
    registry: &'static str,
    /// The services that had no instance when they were last asked for.
    empty: BTreeSet<Box<str>>,
    is_away: bool,
}

impl RegistryLog {
    pub(crate) fn of(registry: &'static str) -> RegistryLog {
        RegistryLog { registry, empty: BTreeSet::new(), is_away: false }
    }

    /// Notes whether a server answered, or why none did.
    pub(crate) fn answered(&mut self, outcome: Result<(), &str>) {
        let registry = self.registry;
        match outcome {
            Ok(()) if self.is_away => tracing::warn!("a {registry} server answers again"),
            Err(reason) if !self.is_away => {
                tracing::warn!("no {registry} server answers, the last instances of services stay in use: {reason}");
            }
            Ok(()) | Err(_) => {}
        }
        self.is_away = outcome.is_err();
    }

    /// Notes whether a service has instances, or why it has none.
    pub(crate) fn service(&mut self, name: &str, problem: Option<&str>) {
        match problem {
            Some(problem) if self.empty.insert(name.into()) => {
                tracing::warn!(service = %name, "a service has no instances, its last ones stay in use: {problem}");
            }
            None if self.empty.remove(name) => tracing::warn!(service = %name, "a service has instances"),
            Some(_) | None => {}
        }
    }

    /// Forgets the services that are no longer wanted.
    pub(crate) fn keep(&mut self, wanted: &BTreeSet<Box<str>>) {
        self.empty.retain(|name| wanted.contains(name));
    }
}

/// The pause after this many failures in a row, at most `most`.
pub(crate) fn pause_after(failures: u32, most: Duration) -> Duration {
    Backoff::new(LEAST_PAUSE, most.min(LONGEST_PAUSE)).after(failures)
}

/// In a stable order and without duplicates, so that an equal list is not a change.
pub(crate) fn put_in_order(instances: &mut Vec<ServiceInstance>) {
    instances.sort();
    instances.dedup_by_key(|one| (one.address, one.port, one.secure_port));
}
