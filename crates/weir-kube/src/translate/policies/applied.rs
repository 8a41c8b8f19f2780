//! The policies that apply together to a part of a route or an Ingress.

use serde_json::{Map, Value, json};

use super::state::PluginPolicyState;
use crate::objects::ObjectRef;
use crate::translation::{DerivedResource, ResourceList, resource_id};

/// The most specific one last: its plugins replace those with their names of the others.
#[derive(Clone, Default)]
pub(in super::super) struct AppliedPolicies<'a>(pub(super) Vec<&'a PluginPolicyState>);

impl AppliedPolicies<'_> {
    /// What tells them from others.
    pub(in super::super) fn names(&self) -> Vec<ObjectRef> {
        self.0.iter().map(|state| state.object()).collect()
    }

    /// Why what they apply to cannot be served.
    pub(in super::super) fn fault(&self) -> Option<String> {
        let with_fault =
            |state: &&PluginPolicyState| Some(format!("{} is not valid: {}", state.object(), state.fault()?));
        self.0.iter().find_map(with_fault)
    }

    /// The plugins of all of them.
    pub(in super::super) fn plugins(&self) -> Map<String, Value> {
        self.0.iter().flat_map(|state| state.plugins()).map(|(name, options)| (name.clone(), options.clone())).collect()
    }

    /// The names of their plugins.
    pub(in super::super) fn plugin_names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(|state| state.plugins()).map(|(name, _)| &**name)
    }

    /// A resource with these plugins of theirs: what refers to it shares their state, such as counters. `None` without plugins.
    pub(in super::super) fn resource(
        &self,
        kind: ResourceList,
        prefix: &str,
        plugins: Map<String, Value>,
    ) -> Option<DerivedResource> {
        let mut beside = self.names();
        let origin = beside.pop()?;
        if plugins.is_empty() {
            return None;
        }
        let id = self.id(prefix)?;
        Some(DerivedResource { kind, id, value: json!({ "plugins": plugins }), origin, beside })
    }

    /// The id of that resource; `None` without plugins.
    pub(in super::super) fn id(&self, prefix: &str) -> Option<String> {
        self.plugin_names().next()?;
        let objects = self.names();
        let names = objects.iter().map(|object| &*object.name);
        let namespace = &*objects.last()?.namespace;
        Some(resource_id(&[prefix, namespace].into_iter().chain(names).collect::<Vec<_>>()))
    }
}
