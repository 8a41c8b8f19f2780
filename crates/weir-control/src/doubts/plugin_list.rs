//! Finds names in the node's list `plugins` that no plugin has: a plugin that is misspelt there is not allowed.

use weir_plugin::Registry;
use weir_plugin::suggest::closest;

use super::Doubts;
use crate::text::read::listed;

const KEY: &str = "plugins";

pub(super) fn without_a_plugin(doubts: &Doubts, registry: &Registry) {
    let document = doubts.document;
    let Some(enabled) = &document.enabled_plugins else { return };
    let in_files = &document.settings.wasm.plugins;
    let is_known = |name: &str| registry.find(name).is_some() || in_files.iter().any(|plugin| &*plugin.name == name);
    let mut unknown: Vec<&str> = enabled.iter().map(|name| &**name).filter(|name| !is_known(name)).collect();
    unknown.sort_unstable();
    let all = || registry.entries().iter().map(|entry| entry.name);
    let (mistyped, absent): (Vec<&str>, Vec<&str>) =
        unknown.into_iter().partition(|name| closest(name, all()).is_some_and(|meant| !enabled.contains(meant)));
    let place = document.place_at(KEY);
    for name in mistyped {
        let meant = closest(name, all()).unwrap_or_default();
        doubts.report(KEY, place, format!("there is no plugin `{name}`"), format!("did you mean `{meant}`?"));
    }
    if !absent.is_empty() {
        let problem = format!("there are no plugins with these names: {}", listed(&absent));
        doubts.report(KEY, place, problem, "remove them; a resource that uses one is refused".to_owned());
    }
}
