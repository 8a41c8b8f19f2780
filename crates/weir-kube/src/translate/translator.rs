//! A translation that goes on: after a change of the world, only what the change concerns is translated again.

use std::collections::{BTreeMap, BTreeSet};

use super::apisix::TranslatedApisix;
use super::gateway::{StaleRoutes, TranslatedGateways};
use super::ingress::TranslatedIngresses;
use super::policies::{PluginPolicies, PolicyRefusal, RefusedPolicies};
use super::policy_statuses::PolicyStatuses;
use super::shared::SharedResources;
use super::traffic_policies::TrafficPolicies;
use crate::objects::{Kind, ObjectRef};
use crate::translation::{KubeOptions, ObjectEvent, OwnedObject, ResourceList, TranslationReader};
use crate::world::{ObjectName, World, WorldChanges};

/// Translates a world, and then its changes.
pub struct Translator {
    options: KubeOptions,
    gateways: TranslatedGateways,
    ingresses: TranslatedIngresses,
    apisix: TranslatedApisix,
    policies: PluginPolicies,
    policy_statuses: PolicyStatuses,
    shared: SharedResources,
    has_started: bool,
}

impl Translator {
    pub fn new(options: KubeOptions) -> Translator {
        let (gateways, ingresses, apisix, policies, policy_statuses, shared) = Default::default();
        Translator { options, gateways, ingresses, apisix, policies, policy_statuses, shared, has_started: false }
    }

    /// Translates a world that has changed like this; the first time, all of it. What is read is what may have changed, and the same
    /// as if the world were translated from scratch.
    pub fn translate(&mut self, world: &World, changes: &WorldChanges, reader: &mut dyn TranslationReader) {
        let is_first = !std::mem::replace(&mut self.has_started, true);
        let stale = match is_first {
            true => StaleRoutes::All,
            false => self.gateways.stale(world, &self.options, changes),
        };
        // The expressions of Ingresses come after those of routes, and those of APISIX's kinds after both.
        let ingresses_are_stale = matches!(stale, StaleRoutes::All) || self.ingresses.is_stale(world, changes);
        if is_first || PluginPolicies::is_stale(changes) {
            self.policies.renew(world, &*self.options.plugins);
        }
        if is_first || TrafficPolicies::is_stale(changes) {
            let upstreams = &mut self.shared.upstreams;
            let changed = upstreams.traffic.renew(world, &self.options);
            changed.iter().for_each(|service| upstreams.change(service));
        }
        let is_of_endpoints = changes.objects.is_empty() && changes.statuses.is_empty();
        let input = (world, &self.options, &self.policies);
        if !is_of_endpoints || !stale.is_empty() || is_first {
            self.gateways.translate(input, changes, stale, &mut self.shared, reader);
        }
        if ingresses_are_stale {
            let expressions = self.gateways.expressions.clone();
            self.ingresses.translate(input, expressions, &mut self.shared, reader);
        } else {
            self.ingresses.made.statuses(changes, reader);
        }
        if ingresses_are_stale || self.apisix.is_stale(world, changes, &self.gateways.ports) {
            let expressions = self.ingresses.expressions.clone();
            let taken = (&self.ingresses.made.server_names, &self.gateways.ports);
            self.apisix.translate((world, &self.options), taken, expressions, &mut self.shared, reader);
        } else {
            self.apisix.made.statuses(changes, reader);
        }
        if !is_of_endpoints || is_first {
            self.policy_statuses.write(input, (&self.gateways, &self.shared.upstreams.traffic), reader);
        }
        let services = changes.services();
        services.iter().chain(&changes.endpoints).for_each(|service| self.shared.upstreams.change(service));
        self.shared.write(world, &self.options, reader);
    }

    /// What users should learn about their objects in addition, as the last translation has it.
    pub fn events(&self) -> impl Iterator<Item = &ObjectEvent> {
        self.gateways.events.iter().chain(&self.ingresses.made.events).chain(&self.apisix.made.events)
    }

    /// What is made in the cluster.
    pub fn owned(&self) -> &[OwnedObject] {
        &self.gateways.owned
    }

    /// Takes the resources that the node does not serve as they are, by `LIST/ID`, with the problems. Returns the policies, and
    /// the Gateways and ListenerSets, that they are of: to be translated again as if their statuses had changed, since those say it.
    pub fn set_refused(&mut self, resources: &BTreeMap<String, String>) -> BTreeSet<ObjectRef> {
        let mut refused = RefusedPolicies::new();
        for (resource, problem) in resources {
            let mut policies = self.policies_of(resource);
            policies.retain(|object| object.kind == Kind::WeirPolicy);
            for policy in &policies {
                let others = policies.iter().filter(|other| *other != policy).map(|other| other.name.clone());
                let refusal = PolicyRefusal { together: others.collect(), problem: problem.clone() };
                let name = ObjectName::new(&policy.namespace, &policy.name);
                let known = refused.entry(name).or_insert_with(|| refusal.clone());
                // What is wrong with a policy alone is wrong wherever it applies.
                if refusal.together.len() < known.together.len() {
                    *known = refusal;
                }
            }
        }
        let changed = self.policies.set_refused(refused).into_iter();
        let of =
            |policy: ObjectName| ObjectRef { kind: Kind::WeirPolicy, namespace: policy.namespace, name: policy.name };
        changed.map(of).chain(self.gateways.set_refused(resources)).collect()
    }

    fn policies_of(&self, resource: &str) -> Vec<ObjectRef> {
        ResourceList::split(resource).map(|(kind, id)| self.shared.plugins.origins(kind, id)).unwrap_or_default()
    }

    /// The object that a resource comes from, by `LIST/ID`; of several, the one that a user would change.
    pub fn origin(&self, resource: &str) -> Option<ObjectRef> {
        let (kind, id) = ResourceList::split(resource)?;
        let shared = || self.shared.origin(kind, id);
        let together = || self.ingresses.made.origin(kind, id).or_else(|| self.apisix.made.origin(kind, id));
        self.gateways.origin(kind, id).or_else(together).or_else(shared)
    }
}
