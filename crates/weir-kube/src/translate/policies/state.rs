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
    /// The options of each plugin, with the values of Secrets; or why there are none.
    plugins: Result<Map<String, Value>, String>,
    /// The most bytes that its regular expressions take when they are compiled; or why the options cannot be used.
    checked: Result<usize, String>,
    /// Those of older policies of the namespace leave no room.
    pub is_beyond_limit: bool,
}

impl PluginPolicyState {
    /// A check takes long, so it is not made again for the same policy with the same values.
    pub(super) fn new(
        world: &World,
        policy: &Arc<WeirPolicy>,
        plugins: &dyn PolicyPlugins,
        before: Option<PluginPolicyState>,
    ) -> PluginPolicyState {
        let written = &policy.spec.plugins;
        let options = secrets::resolve(world, &policy.metadata.namespace, written);
        if let Some(same) = before.filter(|known| known.policy.spec.plugins == *written && known.plugins == options) {
            return PluginPolicyState { policy: Arc::clone(policy), ..same };
        }
        let check = |(plugin, options): (&String, &Value)| {
            let written = written.get(plugin).unwrap_or(&Value::Null);
            plugins.check(plugin, written, options).map_err(|problem| format!("plugin {plugin}: {problem}"))
        };
        let checked = options.as_ref().map_or(Ok(0), |options| options.iter().map(check).sum());
        PluginPolicyState { policy: Arc::clone(policy), plugins: options, checked, is_beyond_limit: false }
    }

    /// The most bytes that its regular expressions take when they are compiled.
    pub(super) fn expressions(&self) -> usize {
        self.checked.as_ref().copied().unwrap_or_default()
    }

    pub(super) fn object(&self) -> ObjectRef {
        ObjectRef::of(&*self.policy)
    }

    /// The options of each plugin. None of a policy with a fault.
    pub(super) fn plugins(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.plugins.iter().flatten().filter(|_| self.checked.is_ok())
    }

    /// Why it cannot be followed.
    pub(super) fn fault(&self) -> Option<String> {
        let problem = self.plugins.as_ref().err().or(self.checked.as_ref().err());
        let beyond = "the regular expressions of the policies of the namespace take more than 16 MiB together when they are compiled";
        problem.cloned().or(self.is_beyond_limit.then(|| beyond.to_owned()))
    }
}
