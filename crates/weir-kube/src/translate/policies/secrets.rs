//! Values from Secrets among the options of plugins: `$secret://kubernetes/NAME/KEY`, of the namespace of the policy.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::super::node_references::is_reference;
use crate::objects::core::{SECRET_OF_PLUGINS, Secret};
use crate::world::{ObjectName, World};

const PREFIX: &str = "$secret://kubernetes/";
/// The most values from Secrets in a policy.
const MOST_VALUES: usize = 32;
/// The most bytes of a value.
const LONGEST_VALUE: usize = 64 << 10;

/// The options with the values of Secrets in place of references.
///
/// # Errors
/// If a reference leads nowhere, or to what a policy cannot use.
pub(super) fn resolve(
    world: &World,
    namespace: &str,
    mut plugins: Map<String, Value>,
) -> Result<Map<String, Value>, String> {
    let mut count = 0;
    for (plugin, options) in &mut plugins {
        each_text(options, &mut |text| {
            if !is_reference(text) {
                return Ok(());
            }
            count += 1;
            if count > MOST_VALUES {
                return Err(format!("has more than {MOST_VALUES} values from Secrets"));
            }
            *text = value(world, namespace, text).map_err(|problem| format!("plugin {plugin}: `{text}`: {problem}"))?;
            Ok(())
        })?;
    }
    Ok(plugins)
}

fn each_text(value: &mut Value, visit: &mut dyn FnMut(&mut String) -> Result<(), String>) -> Result<(), String> {
    match value {
        Value::String(text) => visit(text),
        Value::Array(items) => items.iter_mut().try_for_each(|item| each_text(item, visit)),
        Value::Object(members) => members.values_mut().try_for_each(|member| each_text(member, visit)),
        _ => Ok(()),
    }
}

/// The name of the Secret of a reference, and the key in it.
fn place(text: &str) -> Option<(&str, &str)> {
    let (name, key) = text.strip_prefix(PREFIX)?.split_once('/')?;
    (!name.is_empty() && !key.is_empty() && !key.contains('/')).then_some((name, key))
}

fn value(world: &World, namespace: &str, text: &str) -> Result<String, String> {
    let Some((name, key)) = place(text) else {
        return Err(format!("users of a namespace refer to Secrets alone: write `{PREFIX}NAME/KEY`"));
    };
    // Whether there is a Secret of another type is not told: who writes policies need not be who reads Secrets.
    let is_of_plugins = |secret: &&Arc<Secret>| secret.kind == SECRET_OF_PLUGINS;
    let secret = world.secrets.get(&ObjectName::new(namespace, name)).filter(is_of_plugins);
    let secret = secret
        .ok_or_else(|| format!("there is no Secret `{name}` of the type `{SECRET_OF_PLUGINS}` in the namespace"))?;
    let value = secret.text(key)?;
    let value = value.strip_suffix('\n').unwrap_or(&value);
    if value.len() > LONGEST_VALUE {
        return Err(format!("`{key}` has more than {LONGEST_VALUE} bytes"));
    }
    if is_reference(value) {
        return Err(format!("`{key}` is itself a reference"));
    }
    Ok(value.to_owned())
}
