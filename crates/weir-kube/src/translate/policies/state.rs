//! What a policy says, whatever its targets are.

use std::sync::Arc;

use serde_json::{Map, Value, json};

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
    /// Why one of its references names nothing that can be a target, or that can have its plugins.
    pub wrong_part: Option<String>,
}

/// The most bytes of the options of a policy, as JSON and with the values of Secrets. Each rule and Ingress that it applies to is
/// translated with them.
const MOST_BYTES: usize = 64 << 10;

/// A disabled plugin without its options, which nothing reads: they are neither checked nor filled in.
fn without_disabled(plugins: &Map<String, Value>) -> Map<String, Value> {
    let is_disabled = |options: &Value| options["_meta"]["disable"] == true;
    let told = |(name, options): (&String, &Value)| {
        let options = if is_disabled(options) { json!({ "_meta": { "disable": true } }) } else { options.clone() };
        (name.clone(), options)
    };
    plugins.iter().map(told).collect()
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
        let options = secrets::resolve(world, &policy.metadata.namespace, without_disabled(written));
        let options = options.and_then(|options| match serde_json::to_string(&options).map_or(0, |text| text.len()) {
            bytes if bytes > MOST_BYTES => {
                Err(format!("has options of {bytes} bytes, and at most {MOST_BYTES} are allowed"))
            }
            _ => Ok(options),
        });
        if let Some(same) = before.filter(|known| known.policy.spec.plugins == *written && known.plugins == options) {
            return PluginPolicyState { policy: Arc::clone(policy), ..same };
        }
        let check = |(plugin, options): (&String, &Value)| {
            let written = written.get(plugin).unwrap_or(&Value::Null);
            plugins.check(plugin, written, options).map_err(|problem| format!("plugin {plugin}: {problem}"))
        };
        let checked = options.as_ref().map_or(Ok(0), |options| options.iter().map(check).sum());
        PluginPolicyState {
            policy: Arc::clone(policy),
            plugins: options,
            checked,
            is_beyond_limit: false,
            wrong_part: None,
        }
    }

    /// The most bytes that its regular expressions take when they are compiled.
    pub(super) fn expressions(&self) -> usize {
        self.checked.as_ref().copied().unwrap_or_default()
    }

    /// Whether some of its options are values of Secrets.
    pub(super) fn has_secrets(&self) -> bool {
        self.plugins.as_ref().is_ok_and(|plugins| *plugins != without_disabled(&self.policy.spec.plugins))
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
        let wrong_part = self.wrong_part.as_ref();
        problem.or(wrong_part).cloned().or(self.is_beyond_limit.then(|| beyond.to_owned()))
    }
}
