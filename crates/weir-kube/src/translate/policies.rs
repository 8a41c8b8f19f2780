//! WeirPolicies: which plugins they give to which targets.

mod applied;
mod secrets;
mod state;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::extensions::RouteExtensions;
use super::policy_targets::PolicyTargetPart;
use super::precedence::precedence;
use super::stream_policies::StreamPolicies;
use crate::objects::policy::{PolicyTarget, WeirPolicy};
use crate::objects::{Kind, ObjectRef};
use crate::translation::PolicyPlugins;
use crate::world::{ObjectName, World, WorldChanges};

pub(super) use applied::AppliedPolicies;
use state::PluginPolicyState;

/// The most bytes that the regular expressions of the policies of a namespace take together when they are compiled.
const MOST_EXPRESSIONS: usize = 16 << 20;

/// All policies, and the one that each target has.
#[derive(Default)]
pub(super) struct PluginPolicies {
    states: BTreeMap<ObjectName, PluginPolicyState>,
    by_target: BTreeMap<PolicyTargetPart, ObjectName>,
    refused: RefusedPolicies,
    /// What kinds of the APISIX ingress controller add to routes.
    pub extensions: RouteExtensions,
    pub streams: StreamPolicies,
}

/// The policies whose plugins the node does not serve.
pub(super) type RefusedPolicies = BTreeMap<ObjectName, PolicyRefusal>;

/// Why the node does not serve the plugins of a policy.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PolicyRefusal {
    /// The names of the policies, of the same namespace, whose plugins it was to serve together with them.
    pub together: Vec<String>,
    pub problem: String,
}

impl PolicyRefusal {
    fn text(&self) -> String {
        let PolicyRefusal { together, problem } = self;
        match &together[..] {
            [] => format!("the node cannot serve its plugins: {problem}; the requests of its target get an error"),
            names => format!(
                "the node cannot serve its plugins together with those of WeirPolicy {}: {problem}; the requests that all of them are for \
                 get an error",
                names.join(", ")
            ),
        }
    }
}

impl PluginPolicies {
    /// Whether changes concern any of them.
    pub(super) fn is_stale(changes: &WorldChanges) -> bool {
        changes.objects.iter().any(|object| {
            matches!(
                object.kind,
                Kind::WeirPolicy | Kind::Secret | Kind::PluginConfig | Kind::HTTPRoutePolicy | Kind::L4RoutePolicy
            )
        })
    }

    /// Reads all of them. Of several with one target, the oldest has it.
    pub(super) fn renew(&mut self, world: &World, plugins: &dyn PolicyPlugins) {
        self.extensions.renew(world, plugins);
        self.streams.renew(world, plugins);
        // One that only sets upstreams must not take a target from one with plugins.
        let with_plugins = world.weir_policies.values().filter(|policy| !policy.spec.plugins.is_empty());
        let mut sorted: Vec<&Arc<WeirPolicy>> = with_plugins.collect();
        sorted.sort_by(|one, other| precedence(&one.metadata, &other.metadata));
        let mut before = std::mem::take(&mut self.states);
        self.by_target.clear();
        let mut spent: BTreeMap<&str, usize> = BTreeMap::new();
        for policy in sorted {
            let name = ObjectName::new(&policy.metadata.namespace, &policy.metadata.name);
            let mut wrong_part = None;
            for target in &policy.spec.target_refs {
                let target = match part_of(policy, target) {
                    Ok(target) => Some(target),
                    // What it was for is not known, so it is closed as a whole.
                    Err(problem) => whole_ingress(policy, target).inspect(|_| wrong_part = Some(problem)),
                };
                if let Some(target) = target {
                    self.by_target.entry(target).or_insert_with(|| name.clone());
                }
            }
            let mut state = PluginPolicyState::new(world, policy, plugins, before.remove(&name));
            state.wrong_part = wrong_part.or_else(|| wrong_plugin(policy, plugins));
            let spent = spent.entry(&policy.metadata.namespace).or_default();
            state.is_beyond_limit = *spent + state.expressions() > MOST_EXPRESSIONS;
            if !state.is_beyond_limit {
                *spent += state.expressions();
            }
            self.states.insert(name, state);
        }
    }

    /// The policies of these targets, the most specific last.
    pub(super) fn of(&self, targets: impl IntoIterator<Item = PolicyTargetPart>) -> AppliedPolicies<'_> {
        let found = targets.into_iter().filter_map(|target| self.by_target.get(&target));
        let mut seen = BTreeSet::new();
        AppliedPolicies(found.filter(|name| seen.insert(*name)).filter_map(|name| self.states.get(name)).collect())
    }

    /// The policies of a route, or of an Ingress, and of the part of it that has this name.
    pub(super) fn of_object(&self, object: &ObjectRef, part: Option<&str>) -> AppliedPolicies<'_> {
        let part = part.map(|part| (object.clone(), Some(part.to_owned())));
        self.of([(object.clone(), None)].into_iter().chain(part))
    }

    /// The policy that has a target.
    pub(super) fn owner(&self, target: &PolicyTargetPart) -> Option<&ObjectName> {
        self.by_target.get(target)
    }

    /// Why a policy cannot be followed, whatever its targets are, and what becomes of requests.
    pub(super) fn fault(&self, policy: &ObjectName) -> Option<String> {
        let state = self.states.get(policy)?;
        let own = state.fault().map(|fault| format!("{fault}; the requests of its target get an error"));
        own.or_else(|| self.refused.get(policy).map(PolicyRefusal::text))
    }

    /// Takes the policies whose resources the node does not serve, with the reasons. Returns those whose statuses may be others.
    pub(super) fn set_refused(&mut self, mut refused: RefusedPolicies) -> BTreeSet<ObjectName> {
        for (policy, PolicyRefusal { problem, .. }) in &mut refused {
            // It may quote a value, also of a policy whose plugins apply together with those of this one.
            let beside = self.states.iter().filter(|(other, _)| other.namespace == policy.namespace);
            if beside.clone().any(|(_, state)| state.has_secrets()) {
                *problem = "see the log of the node".to_owned();
            }
        }
        let before = std::mem::replace(&mut self.refused, refused);
        let names = before.keys().chain(self.refused.keys());
        names.filter(|name| before.get(*name) != self.refused.get(*name)).cloned().collect()
    }
}

/// The group of the kinds of routes and of Gateways.
const GATEWAY_API: &str = Kind::Gateway.group();

/// Why a policy cannot be for requests, if it is for something else than Gateways.
fn wrong_plugin(policy: &WeirPolicy, plugins: &dyn PolicyPlugins) -> Option<String> {
    let name = policy.spec.plugins.keys().find(|name| !plugins.works_on_requests(name))?;
    let mut targets = policy.spec.target_refs.iter().filter_map(|target| part_of(policy, target).ok());
    let is_for_requests = targets.any(|(object, _)| object.kind != Kind::Gateway);
    is_for_requests.then(|| format!("plugin {name}: works on streams alone, so only a Gateway can be the target"))
}

/// The Ingress of which a reference names a part that it cannot have.
fn whole_ingress(policy: &WeirPolicy, target: &PolicyTarget) -> Option<PolicyTargetPart> {
    part_of(policy, &PolicyTarget { section_name: None, ..target.clone() }).ok()
}

/// What a reference of a policy names, whether it exists or not.
///
/// # Errors
/// If a policy cannot be about it.
pub(super) fn part_of(policy: &WeirPolicy, target: &PolicyTarget) -> Result<PolicyTargetPart, String> {
    let PolicyTarget { group, kind, name, section_name } = target;
    let kind = match (&**group, &**kind) {
        (GATEWAY_API, "Gateway") => Kind::Gateway,
        (GATEWAY_API, "HTTPRoute") => Kind::HTTPRoute,
        (GATEWAY_API, "GRPCRoute") => Kind::GRPCRoute,
        ("networking.k8s.io", "Ingress") if section_name.is_none() => Kind::Ingress,
        ("networking.k8s.io", "Ingress") => return Err("an Ingress has no parts: leave sectionName out".to_owned()),
        _ => {
            return Err(format!(
                "kind {kind} of group `{group}` cannot be a target: use Gateway, HTTPRoute, GRPCRoute, Ingress or Service"
            ));
        }
    };
    let object = ObjectRef { kind, namespace: policy.metadata.namespace.clone(), name: name.clone() };
    Ok((object, section_name.clone()))
}
