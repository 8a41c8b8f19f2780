//! Finds environment variables in shell syntax in options of plugins: a key with the literal value `${API_KEY}` is easily
//! guessed.

use serde_json::Value;

use super::Doubts;
use crate::document::{PluginSpec, ResourceOrigin};
use crate::text::foreign::{shell_variable, variable_advice};
use crate::text::read::join;
use crate::text::tree::TreePath;

pub(super) fn taken_literally(doubts: &Doubts) {
    doubts.enabled_plugins().for_each(|(origin, plugin)| in_options(doubts, origin, plugin));
}

fn in_options(doubts: &Doubts, origin: &ResourceOrigin, plugin: &PluginSpec) {
    let mut found = Vec::new();
    find(&plugin.options, &mut String::new(), &mut found);
    for (inner, name) in found {
        let path = join(&origin.path, &format!("plugins{}{inner}", TreePath::suffix(&plugin.name)));
        let problem = format!("`${{{name}}}` is plain text here");
        doubts.report(&path, doubts.document.place_at(&path), problem, variable_advice(name));
    }
}

/// The variables in the value at `path`, each with its own path.
fn find<'v>(value: &'v Value, path: &mut String, found: &mut Vec<(String, &'v str)>) {
    let length = path.len();
    match value {
        Value::String(text) => found.extend(shell_variable(text).map(|name| (path.clone(), name))),
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                path.push_str(&format!("[{index}]"));
                find(item, path, found);
                path.truncate(length);
            }
        }
        Value::Object(entries) => {
            for (key, value) in entries {
                path.push_str(&TreePath::suffix(key));
                find(value, path, found);
                path.truncate(length);
            }
        }
        _ => {}
    }
}
