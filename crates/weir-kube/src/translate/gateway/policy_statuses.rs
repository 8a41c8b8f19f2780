//! The statuses of BackendTLSPolicies.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::super::conditions::{StatusConditions, with_own};
use super::super::grants::GROUP;
use super::parents::Parents;
use super::tls_policies::{PolicyState, TlsPolicies};
use crate::objects::ObjectRef;
use crate::objects::routes::parent_conditions;
use crate::translation::{KubeOptions, ObjectStatus, Translation};
use crate::world::ObjectName;

/// The most entries of `status.ancestors` that the API server accepts.
const MOST_ANCESTORS: usize = 16;

/// Adds the statuses: a policy has an entry for each Gateway whose routes lead to its Services. The routes are known by then.
pub(super) fn write(policies: &TlsPolicies, parents: &Parents, options: &KubeOptions, translation: &mut Translation) {
    for state in policies.iter() {
        let gateways: BTreeSet<ObjectName> =
            state.services().flat_map(|service| parents.gateways_of(&service).collect::<Vec<_>>()).collect();
        let controller = &*options.controller_name;
        let before = state.policy.status["ancestors"].as_array().cloned().unwrap_or_default();
        let is_own = |entry: &Value| entry["controllerName"] == controller;
        let own: Vec<Value> = before.iter().filter(|entry| is_own(entry)).cloned().collect();
        if gateways.is_empty() && own.is_empty() {
            continue;
        }
        let room = MOST_ANCESTORS.saturating_sub(before.len() - own.len());
        let entries = gateways.iter().take(room).map(|gateway| entry(state, gateway, &own, controller)).collect();
        translation.statuses.push(ObjectStatus {
            object: ObjectRef::of(state.policy),
            generation: state.policy.metadata.generation,
            status: json!({ "ancestors": with_own(before, entries, is_own, "ancestorRef") }),
        });
    }
}

fn entry(state: &PolicyState, gateway: &ObjectName, own: &[Value], controller: &str) -> Value {
    let reference = json!({ "group": GROUP, "kind": "Gateway", "namespace": gateway.namespace, "name": gateway.name });
    let before = own.iter().find(|entry| entry["ancestorRef"] == reference).map(parent_conditions).unwrap_or_default();
    let mut conditions = StatusConditions::new(&before, state.policy.metadata.generation);
    conditions.set_result("Accepted", state.refusal());
    conditions.set_result("ResolvedRefs", state.unresolved.as_ref());
    json!({ "ancestorRef": reference, "controllerName": controller, "conditions": conditions.into_value() })
}
