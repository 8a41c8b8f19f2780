//! What a policy says, whatever its targets are.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::secrets;
use crate::objects::ObjectRef;
use crate::objects::policy::WeirPolicy;
use crate::translation::PolicyPlugins;
use crate::world::World;

pub(super) struct PluginPolicyState {
    policy: Arc<WeirPolicy>,
    /// The options of each plugin, with the values of Secrets; or why they cannot be used.
    plugins: Result<Map<String, Value>, String>,
    /// Whether values come from Secrets: they may be others after any change.
    has_secrets: bool,
    /// The most bytes that its regular expressions take when they are compiled.
    pub expressions: usize,
    /// Those of older policies of the namespace leave no room.
    pub is_beyond_limit: bool,
}

impl PluginPolicyState {
    pub(super) fn new(world: &World, policy: &Arc<WeirPolicy>, plugins: &dyn PolicyPlugins) -> PluginPolicyState {
        let written = &policy.spec.plugins;
        let read = secrets::resolve(world, &policy.metadata.namespace, written).and_then(|options| {
            let check = |(plugin, options): (&String, &Value)| {
                let written = written.get(plugin).unwrap_or(&Value::Null);
                plugins.check(plugin, written, options).map_err(|problem| format!("plugin {plugin}: {problem}"))
            };
            let expressions = options.iter().map(check).sum::<Result<usize, String>>()?;
            Ok((options, expressions))
        });
        let (plugins, expressions) = match read {
            Ok((options, expressions)) => (Ok(options), expressions),
            Err(problem) => (Err(problem), 0),
        };
        PluginPolicyState {
            policy: Arc::clone(policy),
            plugins,
            has_secrets: secrets::has_references(written),
            expressions,
            is_beyond_limit: false,
        }
    }

    /// Whether it is the state of this policy, whatever else has changed.
    pub(super) fn is_of(&self, policy: &Arc<WeirPolicy>) -> bool {
        Arc::ptr_eq(&self.policy, policy) && !self.has_secrets
    }

    pub(super) fn object(&self) -> ObjectRef {
        ObjectRef::of(&*self.policy)
    }

    /// The options of each plugin. None of a policy with a fault.
    pub(super) fn plugins(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.plugins.iter().flatten()
    }

    /// Why it cannot be followed.
    pub(super) fn fault(&self) -> Option<String> {
        match &self.plugins {
            Err(problem) => Some(problem.clone()),
            Ok(_) if self.is_beyond_limit => Some(
                "the regular expressions of the policies of the namespace take more than 16 MiB together when they are compiled"
                    .to_owned(),
            ),
            Ok(_) => None,
        }
    }
}
