//! Ingress: the rules of the Kubernetes API, and on demand the annotations and defaults of ingress-nginx.

pub mod annotations;
mod canaries;
mod certificates;
mod claimed;
mod class;
mod matcher;
mod routes;
mod settings;
mod sites;
mod targets;

use std::collections::BTreeSet;

use std::collections::BTreeMap;

use serde_json::json;

use self::claimed::Claimed;
pub use self::claimed::SERVED;
use self::class::IngressDialect;
use self::routes::RouteWriter;
use self::settings::IngressSettings;
use super::backends::{BackendLookups, BackendPort, ServiceBackends, UpstreamKey};
use super::endpoints::addresses;
use super::expressions::Expressions;
use super::policies::PluginPolicies;
use super::shared::{SharedKey, SharedResources};
use crate::objects::ingress::Ingress;
use crate::objects::{Kind, ObjectRef};
use crate::translation::{KubeOptions, ObjectEvent, ObjectStatus, ResourceList, Translation, TranslationReader};
use crate::world::{World, WorldChanges};

/// What all Ingresses of our classes mean.
#[derive(Default)]
pub(super) struct TranslatedIngresses {
    /// The resources, each with the object that it comes from.
    resources: BTreeMap<(ResourceList, String), ObjectRef>,
    upstreams: Vec<UpstreamKey>,
    /// The plugins of policies.
    plugins: Vec<SharedKey>,
    lookups: BackendLookups,
    statuses: BTreeMap<ObjectRef, ObjectStatus>,
    pub events: Vec<ObjectEvent>,
}

impl TranslatedIngresses {
    /// Whether changes concern any of them.
    pub(super) fn is_stale(&self, world: &World, changes: &WorldChanges) -> bool {
        const KINDS: [Kind; 5] = [Kind::Ingress, Kind::IngressClass, Kind::Secret, Kind::ConfigMap, Kind::WeirPolicy];
        let BackendLookups { services, addresses: addressed, endpoints } = &self.lookups;
        let has_endpoint_now = |port: &BackendPort| {
            port.find(world).is_some_and(|backend| !addresses(world, backend.service, &backend.port.name).is_empty())
        };
        changes.objects.iter().any(|object| KINDS.contains(&object.kind))
            || changes.services().iter().any(|service| services.contains(service))
            || changes.endpoints.iter().any(|service| addressed.contains(service))
            || endpoints
                .iter()
                .filter(|(port, _)| changes.endpoints.contains(&port.service))
                .any(|(port, had_endpoint)| has_endpoint_now(port) != *had_endpoint)
    }

    /// Translates all of them again.
    pub(super) fn translate(
        &mut self,
        input: (&World, &KubeOptions, &PluginPolicies),
        mut expressions: Expressions,
        shared: &mut SharedResources,
        reader: &mut dyn TranslationReader,
    ) {
        let mut translation = Translation::default();
        let mut backends = ServiceBackends::new(input.0);
        translate(input, &mut backends, &mut expressions, &mut translation);
        let (wanted, lookups) = backends.finish();
        self.lookups = lookups;
        let upstreams_now = wanted.map(|wanted| shared.upstreams.add(wanted)).collect();
        let before = std::mem::replace(&mut self.upstreams, upstreams_now);
        before.iter().for_each(|key| shared.upstreams.release(key));
        let Translation { resources, statuses, events, .. } = translation;
        let (plugins, resources) = shared.plugins.take(resources);
        let before = std::mem::replace(&mut self.plugins, plugins);
        before.iter().for_each(|key| shared.plugins.release(key));
        let names = resources.iter().map(|one| ((one.kind, one.id.clone()), one.origin.clone())).collect();
        let mut gone = std::mem::replace(&mut self.resources, names);
        gone.retain(|name, _| !self.resources.contains_key(name));
        gone.keys().for_each(|(kind, id)| reader.remove(*kind, id));
        resources.into_iter().for_each(|resource| reader.put(resource));
        statuses.iter().cloned().for_each(|status| reader.status(status));
        let statuses = statuses.into_iter().map(|status| (status.object.clone(), status)).collect();
        let before = std::mem::replace(&mut self.statuses, statuses);
        before.keys().filter(|object| !self.statuses.contains_key(*object)).for_each(|object| reader.no_status(object));
        self.events = events;
    }

    /// The statuses of objects of which the status has changed.
    pub(super) fn statuses(&self, changes: &WorldChanges, reader: &mut dyn TranslationReader) {
        let known = changes.statuses.iter().filter_map(|object| self.statuses.get(object));
        known.cloned().for_each(|status| reader.status(status));
    }

    /// The object that a resource comes from.
    pub(super) fn origin(&self, kind: ResourceList, id: &str) -> Option<ObjectRef> {
        self.resources.get(&(kind, id.to_owned())).cloned()
    }
}

/// Whether a policy can be about an Ingress.
pub(super) enum PolicyTargetState {
    Ours,
    /// Another controller's.
    Theirs,
    /// A part of another one.
    Canary,
}

pub(super) fn as_target(ingress: &Ingress, world: &World, options: &KubeOptions) -> PolicyTargetState {
    let Some(dialect) = class::dialect(ingress, world, options) else { return PolicyTargetState::Theirs };
    let mut settings = IngressSettings::default();
    if dialect == IngressDialect::IngressNginx {
        annotations::read(&annotations::Annotations::new(ingress, world), &mut settings);
    }
    if settings.canary.is_some() { PolicyTargetState::Canary } else { PolicyTargetState::Ours }
}

fn translate(
    (world, options, policies): (&World, &KubeOptions, &PluginPolicies),
    backends: &mut ServiceBackends,
    expressions: &mut Expressions,
    translation: &mut Translation,
) {
    let all = claimed::all(world, options, translation);
    let sites = sites::collect(&all, translation);
    let tls = certificates::add(&all, &sites, world, translation);
    let policy_sets = &mut BTreeSet::new();
    let default = all.iter().filter(|claimed| has_default(claimed));
    let default = default.filter_map(|claimed| Some((claimed, claimed.ingress.spec.default_backend.as_ref()?))).next();
    let has_default = default.is_some();
    let mut writer =
        RouteWriter { backends, options, policies, policy_sets, tls: &tls, has_default, translation, expressions };
    for (host, site) in &sites {
        writer.site(host, site, &sites);
    }
    if let Some((claimed, backend)) = default {
        writer.default_backend(claimed, backend);
    }
    translation.statuses.extend(all.iter().map(|claimed| status(claimed, options)));
}

/// Whether its default backend is that of all hosts; with ingress-nginx it is that of the hosts of its rules, if it has rules.
fn has_default(claimed: &Claimed) -> bool {
    claimed.dialect == IngressDialect::Standard || claimed.ingress.spec.rules.is_empty()
}

/// The addresses, unless the Ingress is not served.
fn status(claimed: &Claimed, options: &KubeOptions) -> ObjectStatus {
    let entry = |address: &String| match address.parse::<std::net::IpAddr>() {
        Ok(_) => json!({ "ip": address }),
        Err(_) => json!({ "hostname": address }),
    };
    let addresses: Vec<_> = options.publish_addresses.iter().filter(|_| !claimed.is_refused).map(entry).collect();
    let balancer = if addresses.is_empty() { json!({}) } else { json!({ "ingress": addresses }) };
    ObjectStatus {
        object: claimed.object(),
        generation: claimed.ingress.metadata.generation,
        status: json!({ "loadBalancer": balancer }),
    }
}
