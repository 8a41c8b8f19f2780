//! Settings for the upstreams of Services, whatever refers to them: WeirPolicies, and BackendTrafficPolicies of the APISIX ingress controller.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Map, Value};

use super::conditions::Problem;
use super::extensions::policy_status;
use super::node_references::is_reference;
use super::precedence::precedence;
use super::upstream_settings::plain_settings;
use crate::objects::Kind;
use crate::objects::apisix_gateway::BackendTrafficPolicy;
use crate::objects::meta::ObjectMeta;
use crate::objects::policy::{PolicyTarget, WeirPolicy};
use crate::translation::{KubeOptions, ObjectStatus, PolicyPlugins};
use crate::world::{ObjectName, World, WorldChanges};

/// A Service, and the name of one of its ports; without it, all.
type TrafficTarget = (ObjectName, Option<String>);

/// The settings of all Services that have some. Those of WeirPolicies come first.
#[derive(Default)]
pub(super) struct TrafficPolicies {
    own: SettingsOfTargets,
    apisix: SettingsOfTargets,
}

/// What policies of one kind say.
#[derive(Default)]
struct SettingsOfTargets {
    /// With the name of the policy, which is in the namespace of the Service.
    by_target: BTreeMap<TrafficTarget, (String, Map<String, Value>)>,
    faults: BTreeMap<ObjectName, String>,
}

impl TrafficPolicies {
    /// Whether changes concern any of them.
    pub(super) fn is_stale(changes: &WorldChanges) -> bool {
        changes.objects.iter().any(|object| matches!(object.kind, Kind::WeirPolicy | Kind::BackendTrafficPolicy))
    }

    /// Reads all of them. Returns the Services whose settings are others than before.
    pub(super) fn renew(&mut self, world: &World, options: &KubeOptions) -> BTreeSet<ObjectName> {
        let of_apisix =
            world.backend_traffic_policies.values().filter(|_| options.adopt_apisix).map(|policy| PolicyOfServices {
                metadata: &policy.metadata,
                targets: policy.spec.target_refs.iter().filter_map(|target| part_of(policy, target)).collect(),
                settings: settings(policy),
            });
        let own = world.weir_policies.values().filter(|policy| !policy.spec.upstream.is_empty());
        let own = own.map(|policy| PolicyOfServices {
            metadata: &policy.metadata,
            targets: policy.spec.target_refs.iter().filter_map(|target| own_part_of(policy, target)).collect(),
            settings: own_settings(policy, &*options.plugins),
        });
        let mut changed = self.own.renew(own.collect());
        changed.append(&mut self.apisix.renew(of_apisix.collect()));
        changed
    }

    /// The settings of a port of a Service.
    pub(super) fn settings(&self, service: &ObjectName, port: &str) -> Option<&Map<String, Value>> {
        self.own.settings(service, port).or_else(|| self.apisix.settings(service, port))
    }

    /// What is wrong with a WeirPolicy for a Service, if anything.
    pub(super) fn verdict_of(&self, world: &World, policy: &WeirPolicy, target: &PolicyTarget) -> Option<Problem> {
        let part = own_part_of(policy, target)?;
        if policy.spec.upstream.is_empty() {
            return Some(Problem::new("Invalid", "says nothing for a Service: add `upstream`"));
        }
        if let Some(port) = &part.1
            && let Some(service) = world.services.get(&part.0)
            && !service.spec.ports.iter().any(|known| known.name == *port)
        {
            return Some(Problem::new("TargetNotFound", format!("Service {} has no port `{port}`", part.0)));
        }
        self.own.verdict(world, (&policy.metadata, "WeirPolicy"), &part)
    }

    pub(super) fn statuses(&self, world: &World, options: &KubeOptions) -> Vec<ObjectStatus> {
        let of = |policy: &Arc<BackendTrafficPolicy>| {
            let verdict = |target: &PolicyTarget| {
                let Some(part) = part_of(policy, target) else {
                    let problem = "only a Service, or a port of it by sectionName, can be a target";
                    return Some(Some(Problem::new("Invalid", problem)));
                };
                Some(self.apisix.verdict(world, (&policy.metadata, "BackendTrafficPolicy"), &part))
            };
            policy_status(&**policy, (&policy.status, &policy.spec.target_refs), options, verdict)
        };
        world.backend_traffic_policies.values().filter_map(of).collect()
    }
}

/// A policy, the Services that it is for, and what it sets there, or why it cannot be followed.
struct PolicyOfServices<'a> {
    metadata: &'a ObjectMeta,
    targets: Vec<TrafficTarget>,
    settings: Result<Map<String, Value>, String>,
}

impl SettingsOfTargets {
    fn renew(&mut self, mut policies: Vec<PolicyOfServices>) -> BTreeSet<ObjectName> {
        let before = std::mem::take(&mut self.by_target);
        self.faults.clear();
        policies.sort_by(|one, other| precedence(one.metadata, other.metadata));
        for PolicyOfServices { metadata, targets, settings } in policies {
            match settings {
                Ok(settings) => {
                    for target in targets {
                        let known = (metadata.name.clone(), settings.clone());
                        self.by_target.entry(target).or_insert(known);
                    }
                }
                Err(fault) => _ = self.faults.insert(ObjectName::new(&metadata.namespace, &metadata.name), fault),
            }
        }
        let targets = before.keys().chain(self.by_target.keys());
        let changed = targets.filter(|target| before.get(*target) != self.by_target.get(*target));
        changed.map(|(service, _)| service.clone()).collect()
    }

    fn settings(&self, service: &ObjectName, port: &str) -> Option<&Map<String, Value>> {
        let of_port = || self.by_target.get(&(service.clone(), Some(port.to_owned())));
        let all = || self.by_target.get(&(service.clone(), None));
        if self.by_target.is_empty() {
            return None;
        }
        of_port().or_else(all).map(|(_, settings)| settings)
    }

    fn verdict(&self, world: &World, (policy, kind): (&ObjectMeta, &str), part: &TrafficTarget) -> Option<Problem> {
        if let Some(fault) = self.faults.get(&ObjectName::new(&policy.namespace, &policy.name)) {
            return Some(Problem::new("Invalid", fault.clone()));
        }
        if !world.services.contains_key(&part.0) {
            return Some(Problem::new("TargetNotFound", format!("there is no Service {}", part.0)));
        }
        let winner = self.by_target.get(part).filter(|(winner, _)| *winner != policy.name);
        winner.map(|(winner, _)| {
            Problem::new("Conflicted", format!("{kind} {winner} has the same target and comes first"))
        })
    }
}

/// What a WeirPolicy sets.
fn own_settings(policy: &WeirPolicy, plugins: &dyn PolicyPlugins) -> Result<Map<String, Value>, String> {
    let settings = &policy.spec.upstream;
    if settings.values().any(has_reference) {
        return Err("upstream: values of Secrets and of the environment cannot be used here".to_owned());
    }
    plugins.check_upstream(settings).map_err(|problem| format!("upstream.{problem}"))?;
    Ok(settings.clone())
}

fn has_reference(value: &Value) -> bool {
    match value {
        Value::String(text) => is_reference(text),
        Value::Array(items) => items.iter().any(has_reference),
        Value::Object(members) => members.values().any(has_reference),
        _ => false,
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
    is_service.then(|| service_part(&policy.metadata, target))
}

fn own_part_of(policy: &WeirPolicy, target: &PolicyTarget) -> Option<TrafficTarget> {
    target.is_service().then(|| service_part(&policy.metadata, target))
}

fn service_part(policy: &ObjectMeta, target: &PolicyTarget) -> TrafficTarget {
    let service = ObjectName::new(&policy.namespace, &*target.name);
    (service, target.section_name.clone().filter(|name| !name.is_empty()))
}
