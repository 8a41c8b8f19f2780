//! Lists of plugins in kinds of the APISIX ingress controller beside the Gateway API. A check takes long, so a list that is the same is not
//! checked again.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::node_references::is_reference;
use super::secret_options::with_values;
use crate::objects::apisix_gateway::ExtensionPlugin;
use crate::translation::PolicyPlugins;
use crate::world::{ObjectName, World};

/// The most bytes of the options of a list, as JSON and with the values of Secrets.
const MOST_BYTES: usize = 64 << 10;
/// The most bytes that the regular expressions in the lists of a namespace take together when they are compiled.
const MOST_EXPRESSIONS: usize = 16 << 20;
/// What a plugin that is refused counts as: its check has compiled something, too.
const OF_REFUSED: usize = 64 << 10;

/// The lists of the objects of a kind, by their names.
#[derive(Default)]
pub(super) struct PluginLists(BTreeMap<ObjectName, KnownList>);

struct KnownList {
    plugins: Vec<ExtensionPlugin>,
    /// The options of each plugin with the values of Secrets, or why there are none.
    options: Result<Map<String, Value>, String>,
    checked: ListCheck,
    is_beyond_limit: bool,
}

/// What was found out about the options of a list.
#[derive(Default)]
struct ListCheck {
    /// The bytes of its expressions, with those of a plugin that is refused.
    bytes: usize,
    /// Why it cannot be used.
    fault: Option<String>,
    /// Not all plugins were checked, for lack of room.
    is_broken_off: bool,
}

impl PluginLists {
    /// Reads all of them, in this order: the first ones have the room for expressions.
    pub(super) fn renew<'o>(
        &mut self,
        world: &World,
        all: impl Iterator<Item = (ObjectName, &'o [ExtensionPlugin])>,
        plugins: &dyn PolicyPlugins,
    ) {
        let mut before = std::mem::take(&mut self.0);
        let mut spent: BTreeMap<String, usize> = BTreeMap::new();
        for (name, list) in all {
            let options = options(world, &name.namespace, list);
            let spent = spent.entry(name.namespace.clone()).or_default();
            let is_known =
                |known: &KnownList| !known.checked.is_broken_off && known.plugins == list && known.options == options;
            let known = before.remove(&name).filter(is_known);
            let mut known = known.unwrap_or_else(|| KnownList {
                plugins: list.to_vec(),
                checked: match &options {
                    Ok(options) => check(list, options, MOST_EXPRESSIONS.saturating_sub(*spent), plugins),
                    Err(_) => ListCheck::default(),
                },
                options,
                is_beyond_limit: false,
            });
            known.is_beyond_limit = *spent + known.checked.bytes > MOST_EXPRESSIONS;
            // Without its plugins it keeps no room, but its check has compiled something.
            *spent += if known.is_beyond_limit { OF_REFUSED } else { known.checked.bytes };
            self.0.insert(name, known);
        }
    }

    /// The plugins of an object; `None` if there is none with this name.
    ///
    /// # Errors
    /// Why they cannot be used.
    pub(super) fn plugins(&self, name: &ObjectName) -> Option<Result<Map<String, Value>, String>> {
        let known = self.0.get(name)?;
        Some(match self.fault(name) {
            Some(fault) => Err(fault),
            None => known.options.clone(),
        })
    }

    /// Why the plugins of an object cannot be used.
    pub(super) fn fault(&self, name: &ObjectName) -> Option<String> {
        let known = self.0.get(name)?;
        let beyond = "the regular expressions in this object and the others of its kind in the namespace take more than 16 MiB together when they are compiled";
        let fault = known.options.as_ref().err().or(known.checked.fault.as_ref());
        fault.cloned().or(known.is_beyond_limit.then(|| beyond.to_owned()))
    }
}

/// The options of each plugin with the values of Secrets of the namespace.
fn options(world: &World, namespace: &str, list: &[ExtensionPlugin]) -> Result<Map<String, Value>, String> {
    let mut all = Map::new();
    for plugin in list {
        let fault = |problem: String| format!("plugin {}: {problem}", plugin.name);
        let options = with_values(world, namespace, &plugin.config, plugin.secret_ref.as_deref()).map_err(fault)?;
        let options = Value::Object(options);
        if has_references(&options) {
            return Err(fault("has a text that begins with `$env://` or `$secret://`".to_owned()));
        }
        if all.insert(plugin.name.clone(), options).is_some() {
            return Err(fault("is there twice".to_owned()));
        }
    }
    match serde_json::to_string(&all).map_or(0, |text| text.len()) {
        bytes if bytes > MOST_BYTES => {
            Err(format!("has options of {bytes} bytes, and at most {MOST_BYTES} are allowed"))
        }
        _ => Ok(all),
    }
}

/// Checks the plugins of a list, and no further than there is room for their expressions.
fn check(
    list: &[ExtensionPlugin],
    options: &Map<String, Value>,
    room: usize,
    plugins: &dyn PolicyPlugins,
) -> ListCheck {
    let mut checked = ListCheck::default();
    for plugin in list {
        // The check itself compiles them.
        if checked.bytes >= room {
            checked.bytes += OF_REFUSED;
            checked.is_broken_off = true;
            break;
        }
        let (name, written) = (&plugin.name, Value::Object(plugin.config.clone()));
        match plugins.check_of_apisix(name, &written, options.get(name).unwrap_or(&written)) {
            Ok(bytes) => checked.bytes += bytes,
            Err(problem) => {
                checked.bytes += OF_REFUSED;
                checked.fault = Some(format!("plugin {name}: {problem}"));
                break;
            }
        }
    }
    checked
}

/// Whether a text in a value would be replaced by the node.
pub(super) fn has_references(value: &Value) -> bool {
    match value {
        Value::String(text) => is_reference(text),
        Value::Array(items) => items.iter().any(has_references),
        Value::Object(members) => members.values().any(has_references),
        _ => false,
    }
}
