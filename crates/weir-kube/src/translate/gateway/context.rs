//! What all parts of the translation of the Gateway API use.

use super::super::grants::Grants;
use super::super::policies::PluginPolicies;
use super::tls_policies::TlsPolicies;
use crate::objects::gateway::AllowedNamespaces;
use crate::translation::KubeOptions;
use crate::world::{ObjectName, World};

pub(super) struct Context<'a> {
    pub world: &'a World,
    pub options: &'a KubeOptions,
    pub grants: Grants<'a>,
    pub tls_policies: TlsPolicies<'a>,
    pub policies: &'a PluginPolicies,
}

impl<'a> Context<'a> {
    pub(super) fn new(world: &'a World, options: &'a KubeOptions, policies: &'a PluginPolicies) -> Context<'a> {
        Context { world, options, grants: Grants::new(world), tls_policies: TlsPolicies::new(world), policies }
    }

    /// Whether an object of `namespace` may attach to one of the namespace `own`. `default` is meant if `from` is not stated.
    pub(super) fn allows(
        &self,
        allowed: Option<&AllowedNamespaces>,
        default: &str,
        own: &str,
        namespace: &str,
    ) -> bool {
        match allowed.and_then(|allowed| allowed.from.as_deref()).unwrap_or(default) {
            "All" => true,
            "Same" => own == namespace,
            "Selector" => {
                let selector = allowed.and_then(|allowed| allowed.selector.as_ref());
                let namespace = self.world.namespaces.get(&ObjectName::new("", namespace));
                selector.zip(namespace).is_some_and(|(selector, found)| selector.matches(&found.metadata.labels))
            }
            _ => false,
        }
    }
}
