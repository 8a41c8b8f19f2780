//! Services as backends of routes. What was looked up is noted: a change of it concerns the route.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Map, Value};

use super::endpoints::{PodAddress, addresses};
use crate::objects::core::{NumberOrName, Service, ServicePort};
use crate::translation::resource_id;
use crate::world::{ObjectName, World};

/// Finds backends, and collects the upstreams that resources refer to. A Service that several routes refer to is one upstream for
/// each port.
pub(super) struct ServiceBackends<'a> {
    world: &'a World,
    upstreams: BTreeMap<String, WantedUpstream>,
    lookups: RefCell<BackendLookups>,
}

/// What has been looked up.
#[derive(Debug, Default)]
pub(super) struct BackendLookups {
    /// The Services, whether they exist or not.
    pub services: BTreeSet<ObjectName>,
    /// Those whose addresses are in resources other than their upstreams.
    pub addresses: BTreeSet<ObjectName>,
    /// Whether ports of Services had an endpoint.
    pub endpoints: BTreeMap<BackendPort, bool>,
}

/// Names a port of a Service: several have one name only if they differ in the number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BackendPort {
    pub service: ObjectName,
    name: String,
    number: u16,
    transport: PortTransport,
}

/// What a port of a Service receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PortTransport {
    Tcp,
    Udp,
}

impl PortTransport {
    /// That of a port, if it is known here.
    fn of(port: &ServicePort) -> Option<PortTransport> {
        match port.protocol.as_str() {
            "" | "TCP" => Some(PortTransport::Tcp),
            "UDP" => Some(PortTransport::Udp),
            _ => None,
        }
    }

    /// `scheme` of the upstreams of streams.
    pub(super) const fn scheme(self) -> &'static str {
        match self {
            PortTransport::Tcp => "tcp",
            PortTransport::Udp => "udp",
        }
    }
}

/// An upstream that a resource refers to.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct WantedUpstream {
    pub key: UpstreamKey,
    pub port: BackendPort,
    /// Further keys of the upstream, which win over those that follow from the Service.
    pub settings: Map<String, Value>,
}

/// The Service of an upstream, and its id.
pub(super) type UpstreamKey = Arc<(ObjectName, String)>;

/// A port of a Service.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backend<'a> {
    pub service: &'a Service,
    pub port: &'a ServicePort,
    transport: PortTransport,
}

/// Why a reference does not lead to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoBackend {
    NoService,
    NoPort,
    /// Its name is resolved by DNS, and could lead past the borders of namespaces.
    ExternalName,
}

impl Backend<'_> {
    fn name(self) -> BackendPort {
        let metadata = &self.service.metadata;
        let service = ObjectName::new(&metadata.namespace, &metadata.name);
        BackendPort { service, name: self.port.name.clone(), number: self.port.port, transport: self.transport }
    }
}

impl BackendPort {
    /// The port in this world.
    pub(super) fn find<'a>(&self, world: &'a World) -> Option<Backend<'a>> {
        let service = world.services.get(&self.service)?;
        let mut ports = ports(service, self.transport);
        let port = ports.find(|port| port.port == self.number && port.name == self.name)?;
        Some(Backend { service, port, transport: self.transport })
    }
}

impl<'a> ServiceBackends<'a> {
    pub(super) fn new(world: &'a World) -> ServiceBackends<'a> {
        ServiceBackends { world, upstreams: BTreeMap::new(), lookups: RefCell::default() }
    }

    /// The port of a service, by its number or its name.
    pub(super) fn find(
        &self,
        service: &ObjectName,
        port: &NumberOrName,
        transport: PortTransport,
    ) -> Result<Backend<'a>, NoBackend> {
        self.lookups.borrow_mut().services.insert(service.clone());
        let service = self.world.services.get(service).ok_or(NoBackend::NoService)?;
        if service.spec.kind == "ExternalName" {
            return Err(NoBackend::ExternalName);
        }
        let is_meant = |known: &&ServicePort| match port {
            NumberOrName::Number(number) => known.port == *number,
            NumberOrName::Name(name) => known.name == *name,
        };
        let found = ports(service, transport).find(is_meant);
        found.map(|port| Backend { service, port, transport }).ok_or(NoBackend::NoPort)
    }

    /// The first port of a Service that receives TCP.
    pub(super) fn first_port(&self, service: &ObjectName) -> Option<u16> {
        self.lookups.borrow_mut().services.insert(service.clone());
        ports(self.world.services.get(service)?, PortTransport::Tcp).next().map(|port| port.port)
    }

    /// The name that a Service of type ExternalName stands for.
    pub(super) fn external_name(&self, service: &ObjectName) -> Option<String> {
        self.lookups.borrow_mut().services.insert(service.clone());
        let spec = &self.world.services.get(service)?.spec;
        (spec.kind == "ExternalName").then(|| spec.external_name.clone())
    }

    /// The addresses of a backend, for other resources than its upstreams.
    pub(super) fn addresses(&self, backend: Backend) -> Vec<PodAddress> {
        self.lookups.borrow_mut().addresses.insert(backend.name().service);
        addresses(self.world, backend.service, &backend.port.name)
    }

    pub(super) fn has_endpoint(&self, backend: Backend) -> bool {
        let has_endpoint = !addresses(self.world, backend.service, &backend.port.name).is_empty();
        self.lookups.borrow_mut().endpoints.insert(backend.name(), has_endpoint);
        has_endpoint
    }

    /// Adds the upstream of a backend, and returns its id. Uses with different `settings` state a `variant`, which becomes a part of
    /// the id.
    pub(super) fn upstream(&mut self, backend: Backend, variant: Option<&str>, settings: Map<String, Value>) -> String {
        let port = backend.name();
        let number = port.number.to_string();
        let parts = [&port.service.namespace, &port.service.name, &number].map(String::as_str);
        let id = resource_id(&parts.into_iter().chain(variant).collect::<Vec<_>>());
        if !self.upstreams.contains_key(&id) {
            let key = Arc::new((port.service.clone(), id.clone()));
            self.upstreams.insert(id.clone(), WantedUpstream { key, port, settings });
        }
        id
    }

    /// Forgets the upstreams that were asked for: no resource refers to them.
    pub(super) fn drop_upstreams(&mut self) {
        self.upstreams.clear();
    }

    /// The upstreams that were asked for, and what has been looked up.
    pub(super) fn finish(self) -> (impl Iterator<Item = WantedUpstream>, BackendLookups) {
        (self.upstreams.into_values(), self.lookups.into_inner())
    }
}

/// A number may be there twice, for TCP and for UDP.
fn ports(service: &Service, transport: PortTransport) -> impl Iterator<Item = &ServicePort> {
    service.spec.ports.iter().filter(move |known| PortTransport::of(known) == Some(transport))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata: { name: a, namespace: n }
spec: { ports: [{ name: web, port: 80, targetPort: 8080 }, { name: calls, port: 81 }] }
";

    #[test]
    fn an_upstream_is_asked_for_once_for_each_port() {
        let world = World::from_manifests(SERVICE).unwrap().world;
        let mut backends = ServiceBackends::new(&world);
        let service = ObjectName::new("n", "a");
        let calls = backends.find(&service, &NumberOrName::Name("calls".to_owned()), PortTransport::Tcp).unwrap();
        assert_eq!(backends.upstream(calls, None, Map::new()), "n_a_81");
        assert_eq!(backends.upstream(calls, None, Map::new()), "n_a_81");
        let (upstreams, lookups) = backends.finish();
        let ids: Vec<String> = upstreams.map(|wanted| wanted.key.1.clone()).collect();
        assert_eq!(ids, ["n_a_81"]);
        assert_eq!(lookups.services, BTreeSet::from([service]));
    }

    #[test]
    fn a_reference_that_leads_nowhere_says_why() {
        let mut world = World::from_manifests(SERVICE).unwrap().world;
        let find = |world: &World, name: &str, port| {
            ServiceBackends::new(world)
                .find(&ObjectName::new("n", name), &NumberOrName::Number(port), PortTransport::Tcp)
                .map(|_| ())
                .unwrap_err()
        };
        assert_eq!(find(&world, "b", 80), NoBackend::NoService);
        assert_eq!(find(&world, "a", 8080), NoBackend::NoPort);
        let external = "
apiVersion: v1
kind: Service
metadata: { name: e, namespace: n }
spec: { type: ExternalName, externalName: metadata.internal, ports: [{ port: 80 }] }
";
        world.services.extend(World::from_manifests(external).unwrap().world.services);
        assert_eq!(find(&world, "e", 80), NoBackend::ExternalName);
    }
}
