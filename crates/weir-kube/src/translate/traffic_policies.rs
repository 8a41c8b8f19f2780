//! BackendTrafficPolicies of the APISIX ingress controller: settings for the upstreams of Services, whatever refers to them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Map, Value};

use super::conditions::Problem;
use super::extensions::policy_status;
use super::precedence::precedence;
use super::upstream_settings::plain_settings;
use crate::objects::apisix_gateway::BackendTrafficPolicy;
use crate::objects::policy::PolicyTarget;
use crate::translation::{KubeOptions, ObjectStatus};
use crate::world::{ObjectName, World};

/// A Service, and the name of one of its ports; without it, all.
type TrafficTarget = (ObjectName, Option<String>);

/// The settings of all Services that have some.
#[derive(Default)]
pub(super) struct TrafficPolicies {
    by_target: BTreeMap<TrafficTarget, (String, Map<String, Value>)>,
    faults: BTreeMap<ObjectName, String>,
}

impl TrafficPolicies {
    /// Reads all of them. Returns the Services whose settings are others than before.
    pub(super) fn renew(&mut self, world: &World, options: &KubeOptions) -> BTreeSet<ObjectName> {
        let before = std::mem::take(&mut self.by_target);
        self.faults.clear();
        let mut policies: Vec<&BackendTrafficPolicy> =
            world.backend_traffic_policies.values().map(|policy| &**policy).filter(|_| options.adopt_apisix).collect();
        policies.sort_by(|one, other| precedence(&one.metadata, &other.metadata));
        for policy in policies {
            let name = ObjectName::new(&policy.metadata.namespace, &policy.metadata.name);
            match settings(policy) {
                Ok(settings) => {
                    for target in policy.spec.target_refs.iter().filter_map(|target| part_of(policy, target)) {
                        let known = (policy.metadata.name.clone(), settings.clone());
                        self.by_target.entry(target).or_insert(known);
                    }
                }
                Err(fault) => _ = self.faults.insert(name, fault),
            }
        }
        let targets = before.keys().chain(self.by_target.keys());
        let changed = targets.filter(|target| before.get(*target) != self.by_target.get(*target));
        changed.map(|(service, _)| service.clone()).collect()
    }

    /// The settings of a port of a Service.
    pub(super) fn settings(&self, service: &ObjectName, port: &str) -> Option<&Map<String, Value>> {
        let of_port = || self.by_target.get(&(service.clone(), Some(port.to_owned())));
        let all = || self.by_target.get(&(service.clone(), None));
        if self.by_target.is_empty() {
            return None;
        }
        of_port().or_else(all).map(|(_, settings)| settings)
    }

    pub(super) fn statuses(&self, world: &World, options: &KubeOptions) -> Vec<ObjectStatus> {
        let of = |policy: &Arc<BackendTrafficPolicy>| {
            let verdict = |target: &PolicyTarget| Some(self.verdict(world, policy, target));
            policy_status(&**policy, (&policy.status, &policy.spec.target_refs), options, verdict)
        };
        world.backend_traffic_policies.values().filter_map(of).collect()
    }

    fn verdict(&self, world: &World, policy: &BackendTrafficPolicy, target: &PolicyTarget) -> Option<Problem> {
        let name = ObjectName::new(&policy.metadata.namespace, &policy.metadata.name);
        if let Some(fault) = self.faults.get(&name) {
            return Some(Problem::new("Invalid", fault.clone()));
        }
        let Some(part) = part_of(policy, target) else {
            return Some(Problem::new("Invalid", "only a Service, or a port of it by sectionName, can be a target"));
        };
        if !world.services.contains_key(&part.0) {
            return Some(Problem::new("TargetNotFound", format!("there is no Service {}", part.0)));
        }
        let winner = self.by_target.get(&part).filter(|(winner, _)| *winner != policy.metadata.name);
        winner.map(|(winner, _)| {
            let message = format!("BackendTrafficPolicy {winner} has the same target and comes first");
            Problem::new("Conflicted", message)
        })
    }
}

fn settings(policy: &BackendTrafficPolicy) -> Result<Map<String, Value>, String> {
    let wanted = &policy.spec.settings;
    if wanted.tls_secret.is_some() {
        return Err("tlsSecret: is only for an ApisixUpstream".to_owned());
    }
    let mut wanted = wanted.clone();
    if let Some(balancer) = wanted.load_balancer.as_mut().filter(|balancer| balancer.hash_on.is_empty()) {
        balancer.hash_on = "vars".to_owned();
    }
    plain_settings(&wanted)
}

fn part_of(policy: &BackendTrafficPolicy, target: &PolicyTarget) -> Option<TrafficTarget> {
    let is_service = target.group.is_empty() && ["", "Service"].contains(&&*target.kind);
    let service = ObjectName::new(&policy.metadata.namespace, &*target.name);
    is_service.then(|| (service, target.section_name.clone().filter(|name| !name.is_empty())))
}
