//! The statuses of policies: an entry for each target.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::conditions::{Problem, StatusConditions, with_own};
use super::gateway::TranslatedGateways;
use super::ingress::{self, PolicyTargetState};
use super::policies::{PluginPolicies, part_of};
use super::traffic_policies::TrafficPolicies;
use crate::objects::policy::{PolicyTarget, WeirPolicy};
use crate::objects::routes::parent_conditions;
use crate::objects::streams::KubeStreamSpec;
use crate::objects::{Kind, ObjectRef};
use crate::translation::{KubeOptions, ObjectStatus, TranslationReader};
use crate::world::{ObjectName, World};

/// The most entries of `status.ancestors` that the API server accepts.
const MOST_ANCESTORS: usize = 16;

/// The policies that got a status.
#[derive(Default)]
pub(super) struct PolicyStatuses(BTreeSet<ObjectRef>);

impl PolicyStatuses {
    /// Writes all of them. What has become of routes is known by then.
    pub(super) fn write(
        &mut self,
        (world, options, policies): (&World, &KubeOptions, &PluginPolicies),
        (gateways, traffic): (&TranslatedGateways, &TrafficPolicies),
        reader: &mut dyn TranslationReader,
    ) {
        let verdicts = Verdicts { world, options, policies, gateways, traffic };
        let mut statuses: Vec<ObjectStatus> =
            world.weir_policies.values().filter_map(|policy| verdicts.status(policy)).collect();
        if options.adopt_apisix {
            let find = |object: &ObjectRef, part: Option<&str>| match verdicts.find(object, part) {
                FoundTarget::Ours => Some(None),
                FoundTarget::Theirs => None,
                FoundTarget::Wrong(problem) => Some(Some(problem)),
            };
            statuses.extend(policies.extensions.statuses(world, options, &find));
            statuses.extend(policies.streams.statuses(world, options, &find));
            statuses.extend(traffic.statuses(world, options));
        }
        let told = statuses.iter().map(|status| status.object.clone()).collect();
        let before = std::mem::replace(&mut self.0, told);
        before.difference(&self.0).for_each(|object| reader.no_status(object));
        statuses.into_iter().for_each(|status| reader.status(status));
    }
}

struct Verdicts<'a> {
    world: &'a World,
    options: &'a KubeOptions,
    policies: &'a PluginPolicies,
    gateways: &'a TranslatedGateways,
    traffic: &'a TrafficPolicies,
}

impl Verdicts<'_> {
    /// The entries of other controllers stay as they are.
    fn status(&self, policy: &WeirPolicy) -> Option<ObjectStatus> {
        let controller = &*self.options.controller_name;
        let before = policy.status["ancestors"].as_array().cloned().unwrap_or_default();
        let is_own = |entry: &Value| entry["controllerName"] == controller;
        let own: Vec<Value> = before.iter().filter(|entry| is_own(entry)).cloned().collect();
        let room = MOST_ANCESTORS.saturating_sub(before.len() - own.len());
        let mut entries = Vec::new();
        let ours = policy.spec.target_refs.iter().filter_map(|target| Some((target, self.verdict(policy, target)?)));
        let ours: Vec<_> = ours.take(room).collect();
        if ours.is_empty() && own.is_empty() {
            return None;
        }
        for (target, problem) in ours {
            let reference = ancestor(policy, target);
            let known = own.iter().find(|entry| entry["ancestorRef"] == reference);
            let before = known.map(parent_conditions).unwrap_or_default();
            let mut conditions = StatusConditions::new(&before, policy.metadata.generation);
            conditions.set_result("Accepted", problem.as_ref());
            let conditions = conditions.into_value();
            entries.push(json!({ "ancestorRef": reference, "controllerName": controller, "conditions": conditions }));
        }
        Some(ObjectStatus {
            object: ObjectRef::of(policy),
            generation: policy.metadata.generation,
            status: json!({ "ancestors": with_own(before, entries, is_own, "ancestorRef") }),
        })
    }

    /// What is wrong with the policy for a target, if anything; `None` if the target is another controller's.
    fn verdict(&self, policy: &WeirPolicy, target: &PolicyTarget) -> Option<Option<Problem>> {
        if target.is_service() {
            return Some(self.traffic.verdict_of(self.world, policy, target));
        }
        let (object, part) = match part_of(policy, target) {
            Ok(known) => known,
            Err(problem) => return Some(Some(Problem::new("Invalid", problem))),
        };
        match self.find(&object, part.as_deref()) {
            FoundTarget::Ours => {}
            FoundTarget::Theirs => return None,
            FoundTarget::Wrong(problem) => return Some(Some(problem)),
        }
        if policy.spec.plugins.is_empty() {
            let problem = format!("says nothing for a {}: add `plugins`", target.kind);
            return Some(Some(Problem::new("Invalid", problem)));
        }
        let name = ObjectName::new(&policy.metadata.namespace, &policy.metadata.name);
        let winner = self.policies.owner(&(object, part)).filter(|winner| **winner != name);
        let conflict = winner.map(|winner| {
            let message = format!(
                "WeirPolicy {} has the same target and comes first; nothing of this one applies to it",
                winner.name
            );
            Problem::new("Conflicted", message)
        });
        Some(conflict.or_else(|| {
            let fault = self.policies.fault(&name)?;
            Some(Problem::new("Invalid", fault))
        }))
    }

    fn find(&self, object: &ObjectRef, part: Option<&str>) -> FoundTarget {
        let name = ObjectName::new(&object.namespace, &object.name);
        fn of_streams(spec: &KubeStreamSpec) -> Vec<&str> {
            spec.rules.iter().filter_map(|rule| rule.name.as_deref()).collect()
        }
        let world = self.world;
        let parts: Option<Vec<&str>> = match object.kind {
            Kind::Gateway => world
                .gateways
                .get(&name)
                .map(|gateway| gateway.spec.listeners.iter().map(|listener| &*listener.name).collect()),
            Kind::HTTPRoute => world
                .http_routes
                .get(&name)
                .map(|route| route.spec.rules.iter().filter_map(|rule| rule.name.as_deref()).collect()),
            Kind::GRPCRoute => world
                .grpc_routes
                .get(&name)
                .map(|route| route.spec.rules.iter().filter_map(|rule| rule.name.as_deref()).collect()),
            Kind::TCPRoute => world.tcp_routes.get(&name).map(|route| of_streams(&route.spec)),
            Kind::TLSRoute => world.tls_routes.get(&name).map(|route| of_streams(&route.spec)),
            Kind::UDPRoute => world.udp_routes.get(&name).map(|route| of_streams(&route.spec)),
            _ => return self.find_ingress(object, &name),
        };
        let Some(parts) = parts else { return FoundTarget::missing(object) };
        let is_first = |part: &str| self.first_stream_rule(object.kind, &name) == Some(part);
        match part {
            _ if !self.gateways.is_own(object) => FoundTarget::Theirs,
            Some(part) if object.kind.is_stream_route() && parts.contains(&part) && !is_first(part) => {
                let problem =
                    format!("rule `{part}` of {object} is not served: only the first rule of such a route is");
                FoundTarget::Wrong(Problem::new("Invalid", problem))
            }
            Some(part) if !parts.contains(&part) => {
                let noun = if object.kind == Kind::Gateway { "listener" } else { "rule" };
                FoundTarget::Wrong(Problem::new("TargetNotFound", format!("{object} has no {noun} `{part}`")))
            }
            _ => FoundTarget::Ours,
        }
    }

    /// The name of the rule of a TCPRoute, a TLSRoute or a UDPRoute that is served.
    fn first_stream_rule(&self, kind: Kind, name: &ObjectName) -> Option<&str> {
        let spec = match kind {
            Kind::TCPRoute => &self.world.tcp_routes.get(name)?.spec,
            Kind::TLSRoute => &self.world.tls_routes.get(name)?.spec,
            _ => &self.world.udp_routes.get(name)?.spec,
        };
        spec.rules.first()?.name.as_deref()
    }

    fn find_ingress(&self, object: &ObjectRef, name: &ObjectName) -> FoundTarget {
        let Some(found) = self.world.ingresses.get(name) else { return FoundTarget::missing(object) };
        match ingress::as_target(found, self.world, self.options) {
            PolicyTargetState::Ours => FoundTarget::Ours,
            PolicyTargetState::Theirs => FoundTarget::Theirs,
            PolicyTargetState::Canary => {
                let message =
                    "it is a canary, whose requests have the plugins of the Ingress that it is a part of; it gets none";
                FoundTarget::Wrong(Problem::new("Invalid", message))
            }
        }
    }
}

enum FoundTarget {
    Ours,
    /// Another controller's.
    Theirs,
    Wrong(Problem),
}

impl FoundTarget {
    fn missing(object: &ObjectRef) -> FoundTarget {
        FoundTarget::Wrong(Problem::new("TargetNotFound", format!("there is no {object}")))
    }
}

/// The target as `ancestorRef`.
fn ancestor(policy: &WeirPolicy, target: &PolicyTarget) -> Value {
    let PolicyTarget { group, kind, name, section_name } = target;
    let mut reference = json!({ "group": group, "kind": kind, "namespace": policy.metadata.namespace, "name": name });
    if let Some(part) = section_name {
        reference["sectionName"] = part.clone().into();
    }
    reference
}
