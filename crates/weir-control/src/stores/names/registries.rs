//! The registries of services that are followed, each by a task.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::AbortHandle;

use weir_client::HttpClient;
use weir_discovery::{DiscoverySettings, REGISTRIES, RegistryNews, ServiceRegistry, WantedServices};

use super::SharedNames;
use crate::document::NameQuery;

/// By the names of the registries.
#[derive(Default)]
pub(super) struct FollowedRegistries(HashMap<&'static str, FollowedRegistry>);

struct FollowedRegistry {
    registry: Arc<dyn ServiceRegistry>,
    wanted: watch::Sender<WantedServices>,
    task: AbortHandle,
}

impl Drop for FollowedRegistry {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl FollowedRegistries {
    /// Passes these services on to the tasks that ask their registries, which are started and ended as needed.
    pub(super) fn follow(
        &mut self,
        queries: &BTreeSet<NameQuery>,
        discovery: &DiscoverySettings,
        http: &HttpClient,
        shared: &Arc<SharedNames>,
    ) {
        for kind in REGISTRIES {
            let name = kind.name();
            let of_kind = |query: &NameQuery| match query {
                NameQuery::Registered { registry, service } if *registry == name => Some(service.clone()),
                _ => None,
            };
            let wanted = WantedServices { services: queries.iter().filter_map(of_kind).collect(), http: http.clone() };
            let Some(registry) = discovery.find(name).filter(|_| !wanted.services.is_empty()) else {
                self.0.remove(name);
                shared.forget(name, &wanted.services);
                continue;
            };
            match self.0.get(name) {
                Some(followed) if followed.registry.is_equal(&**registry) => drop(followed.wanted.send_replace(wanted)),
                _ => drop(self.0.insert(name, FollowedRegistry::start(name, registry, wanted, shared))),
            }
        }
    }
}

impl FollowedRegistry {
    fn start(
        name: &'static str,
        registry: &Arc<dyn ServiceRegistry>,
        wanted: WantedServices,
        shared: &Arc<SharedNames>,
    ) -> FollowedRegistry {
        let (wanted, receiver) = watch::channel(wanted);
        let shared = Arc::clone(shared);
        let tell = Box::new(move |news: RegistryNews<'_>| shared.hear(name, news));
        let task = tokio::task::spawn_local(Arc::clone(registry).follow(receiver, tell)).abort_handle();
        FollowedRegistry { registry: Arc::clone(registry), wanted, task }
    }
}
