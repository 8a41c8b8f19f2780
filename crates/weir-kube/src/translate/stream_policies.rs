//! L4RoutePolicies of the APISIX ingress controller: plugins for TCPRoutes, TLSRoutes and UDPRoutes.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::conditions::Problem;
use super::extensions::{FindTarget, policy_status};
use super::plugin_lists::PluginLists;
use super::policy_targets::PolicyTargetPart;
use super::precedence::precedence;
use crate::objects::apisix_gateway::L4RoutePolicy;
use crate::objects::policy::PolicyTarget;
use crate::objects::{Kind, ObjectRef};
use crate::translation::{KubeOptions, ObjectStatus, PolicyPlugins};
use crate::world::{ObjectName, World};

/// All of them, and the one that each target has.
#[derive(Default)]
pub(super) struct StreamPolicies {
    lists: PluginLists,
    by_target: BTreeMap<PolicyTargetPart, ObjectName>,
    /// Those with a plugin that cannot be on these routes, with the reason.
    unfit: BTreeMap<ObjectName, String>,
}

impl StreamPolicies {
    /// Reads all of them. Of several with one target, the oldest has it.
    pub(super) fn renew(&mut self, world: &World, plugins: &dyn PolicyPlugins) {
        let mut policies: Vec<&Arc<L4RoutePolicy>> = world.l4_route_policies.values().collect();
        policies.sort_by(|one, other| precedence(&one.metadata, &other.metadata));
        let lists = policies.iter().map(|policy| (name_of(policy), &*policy.spec.plugins));
        self.lists.renew(world, lists, plugins);
        (self.by_target, self.unfit) = Default::default();
        for policy in policies {
            for target in policy.spec.target_refs.iter().filter_map(|target| part_of(policy, target)) {
                self.by_target.entry(target).or_insert_with(|| name_of(policy));
            }
            let names = policy.spec.plugins.iter().map(|plugin| &*plugin.name);
            let reason = |name: &str| match name {
                "traffic-split" => Some("the weights in `backendRefs` of the route need it"),
                _ if plugins.works_on_streams(name) => None,
                _ => Some("works with HTTP alone, so it cannot be on TCP, TLS or UDP"),
            };
            let mut unfit = names.filter_map(|name| Some(format!("plugin {name}: {}", reason(name)?)));
            self.unfit.extend(unfit.next().map(|reason| (name_of(policy), reason)));
        }
    }

    /// The plugins of a route, or of its rule with this name.
    ///
    /// # Errors
    /// Why they cannot be used.
    pub(super) fn plugins(&self, route: &ObjectRef, rule: Option<&str>) -> Result<Map<String, Value>, String> {
        if self.by_target.is_empty() {
            return Ok(Map::new());
        }
        let of_rule = rule.and_then(|rule| self.by_target.get(&(route.clone(), Some(rule.to_owned()))));
        let policy = of_rule.or_else(|| self.by_target.get(&(route.clone(), None)));
        let Some(policy) = policy else { return Ok(Map::new()) };
        match self.fault(policy) {
            Some(fault) => Err(fault),
            None => self.lists.plugins(policy).unwrap_or_else(|| Ok(Map::new())),
        }
    }

    fn fault(&self, policy: &ObjectName) -> Option<String> {
        self.lists.fault(policy).or_else(|| self.unfit.get(policy).cloned())
    }

    pub(super) fn statuses(&self, world: &World, options: &KubeOptions, find: &FindTarget) -> Vec<ObjectStatus> {
        let of = |policy: &Arc<L4RoutePolicy>| {
            let verdict = |target: &PolicyTarget| self.verdict(policy, target, find);
            policy_status(&**policy, (&policy.status, &policy.spec.target_refs), options, verdict)
        };
        world.l4_route_policies.values().filter_map(of).collect()
    }

    /// What is wrong with a policy for a target, if anything; `None` if the target is another controller's.
    fn verdict(&self, policy: &L4RoutePolicy, target: &PolicyTarget, find: &FindTarget) -> Option<Option<Problem>> {
        let Some(part) = part_of(policy, target) else {
            let message = "only a TCPRoute, a TLSRoute or a UDPRoute, or a rule of it by sectionName, can be a target";
            return Some(Some(Problem::new("Invalid", message)));
        };
        if let Some(problem) = find(&part.0, part.1.as_deref())? {
            return Some(Some(problem));
        }
        let name = name_of(policy);
        let winner = self.by_target.get(&part).filter(|winner| **winner != name);
        if let Some(winner) = winner {
            let message = format!("L4RoutePolicy {} has the same target and comes first", winner.name);
            return Some(Some(Problem::new("Conflicted", message)));
        }
        let fault = self.fault(&name);
        Some(fault.map(|fault| Problem::new("Invalid", format!("{fault}; the connections of its target are reset"))))
    }
}

fn name_of(policy: &L4RoutePolicy) -> ObjectName {
    ObjectName::new(&policy.metadata.namespace, &policy.metadata.name)
}

fn part_of(policy: &L4RoutePolicy, target: &PolicyTarget) -> Option<PolicyTargetPart> {
    let kinds = [Kind::TCPRoute, Kind::TLSRoute, Kind::UDPRoute];
    let kind = kinds.into_iter().find(|kind| kind.name() == target.kind && kind.group() == target.group)?;
    let namespace = policy.metadata.namespace.clone();
    Some((ObjectRef { kind, namespace, name: target.name.clone() }, target.section_name.clone()))
}
