//! Values from Secrets among the options of plugins: `$secret://kubernetes/NAME/KEY`, of the namespace of the policy.

use serde_json::{Map, Value};

use crate::objects::core::Secret;
use crate::world::{ObjectName, World};

/// A Secret whose values may be used has this type: its author has meant it for plugins, and a policy can read no other Secret.
const TYPE: &str = "weir.dev/plugin";
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

/// The names of the Secrets that the options refer to.
#[cfg(feature = "client")]
pub(super) fn names(plugins: &Map<String, Value>) -> Vec<String> {
    let mut found = Vec::new();
    plugins.values().for_each(|options| collect(options, &mut found));
    found.truncate(MOST_VALUES);
    found
}

#[cfg(feature = "client")]
fn collect(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::String(text) => found.extend(place(text).map(|(name, _)| name.to_owned())),
        Value::Array(items) => items.iter().for_each(|item| collect(item, found)),
        Value::Object(members) => members.values().for_each(|member| collect(member, found)),
        _ => {}
    }
}

fn each_text(value: &mut Value, visit: &mut dyn FnMut(&mut String) -> Result<(), String>) -> Result<(), String> {
    match value {
        Value::String(text) => visit(text),
        Value::Array(items) => items.iter_mut().try_for_each(|item| each_text(item, visit)),
        Value::Object(members) => members.values_mut().try_for_each(|member| each_text(member, visit)),
        _ => Ok(()),
    }
}

/// Whether a text stands for another one when the node reads its configuration.
fn is_reference(text: &str) -> bool {
    let begins = |start: &str| text.get(..start.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(start));
    begins("$secret://") || begins("$env://")
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
    let secret: &Secret = world
        .secrets
        .get(&ObjectName::new(namespace, name))
        .ok_or_else(|| format!("there is no Secret `{name}` in the namespace"))?;
    if secret.kind != TYPE {
        return Err(format!("the Secret `{name}` is not of the type `{TYPE}`"));
    }
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
