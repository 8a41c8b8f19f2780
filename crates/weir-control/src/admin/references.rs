//! References to a resource that is to be deleted. They are checked as part of the change, so no other change can come between.
//! References of a changed resource are checked when it is compiled.

use serde_json::Value;

use super::kinds::{self, ResourceKind};
use crate::document::kinds::KINDS;
use crate::document::{PAGING, ReferringPlugin, SPLITTING, TRANSCODING};
use crate::stores::resources::{ResourceKey, ResourceView};
use crate::stores::writes::PlanRefusal;

/// The text of an id, which may be a text or a number.
pub(super) fn id_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// What is wrong with the id in a resource: one that is a number must be whole, and 1 or greater.
pub(super) fn fault_of_id(value: &Value) -> Option<&'static str> {
    let Some(Value::Number(id)) = value.get("id") else { return None };
    let is_right = id.as_u64().is_some_and(|id| id > 0);
    (!is_right).then_some("a numeric id must be a whole number, 1 or greater")
}

/// Refuses to delete a resource that others refer to, and names one of these.
pub(super) fn refuse_if_used(view: &ResourceView, key: &ResourceKey) -> Result<(), PlanRefusal> {
    let Some(kind) = kinds::find(key.list()) else { return Ok(()) };
    if let Some((user, id)) = user(view, key) {
        let directly = if key.list() == "services" { " directly" } else { "" };
        let (name, user) = (kind.name, user.name);
        let problem = format!("can not delete this {name}{directly}, {user} [{id}] is still using it now");
        return Err(PlanRefusal::Wrong(problem));
    }
    let by_plugin = PLUGINS.iter().find(|plugin| plugin.list == key.list());
    if let Some(plugin) = by_plugin
        && let Some((user, id)) = plugin.user(view, key.id())
    {
        let (name, whose, user) = (kind.name, plugin.whose, user.schema_name());
        let problem = format!("can not delete this {name}, {whose}{user} [{id}] is still using it now");
        return Err(PlanRefusal::Wrong(problem));
    }
    Ok(())
}

/// The first resource with a key that refers to this one: its kind and its id.
fn user(view: &ResourceView, key: &ResourceKey) -> Option<(&'static ResourceKind, String)> {
    let all = KINDS.iter().flat_map(|kind| kind.references().map(move |(member, list)| (kind, member, list)));
    for (kind, member, _) in all.filter(|(_, _, list)| *list == key.list()) {
        let uses = |json: &str, value: &dyn Fn() -> Value| {
            json.contains(member) && value().get(member).and_then(id_text).as_deref() == Some(key.id())
        };
        let all = view.list(kind.list);
        let found = all.iter().find(|(_, resource)| uses(&resource.json, &|| resource.value()));
        if let Some((user, _)) = found {
            return Some((kind, user.id().to_owned()));
        }
    }
    None
}

/// How references of a plugin to resources of a list are told.
struct PluginReferences {
    of: ReferringPlugin,
    list: &'static str,
    /// What stands before the resource of the plugin in APISIX's message.
    whose: &'static str,
}

const PLUGINS: [PluginReferences; 3] = [
    PluginReferences { of: SPLITTING, list: "upstreams", whose: "plugin in " },
    PluginReferences { of: PAGING, list: "upstreams", whose: "plugin in " },
    PluginReferences { of: TRANSCODING, list: "protos", whose: "" },
];

impl PluginReferences {
    /// The first resource whose plugin refers to the one with this id.
    fn user(&self, view: &ResourceView, id: &str) -> Option<(&'static ResourceKind, String)> {
        for kind in KINDS.iter().filter(|kind| kind.has_plugins()) {
            for (key, resource) in view.list(kind.list) {
                let plugin = self.of.plugin;
                if resource.json.contains(plugin) && self.names(&resource.value()["plugins"][plugin], id) {
                    return Some((kind, key.id().to_owned()));
                }
            }
        }
        None
    }

    fn names(&self, options: &Value, id: &str) -> bool {
        self.ids(options).iter().any(|named| named == id)
    }

    /// The ids that the options name.
    fn ids(&self, options: &Value) -> Vec<String> {
        match options {
            Value::Object(members) => {
                let own = members.get(self.of.option).and_then(id_text);
                own.into_iter().chain(members.values().flat_map(|value| self.ids(value))).collect()
            }
            Value::Array(items) => items.iter().flat_map(|item| self.ids(item)).collect(),
            _ => Vec::new(),
        }
    }
}

/// The resources of `upstreams` that the options of a plugin refer to.
pub(super) fn upstreams_of_plugin(plugin: &str, options: &Value) -> Vec<String> {
    let known = PLUGINS.iter().filter(|known| known.list == "upstreams" && known.of.plugin == plugin);
    known.flat_map(|known| known.ids(options)).map(|id| format!("upstreams/{id}")).collect()
}
