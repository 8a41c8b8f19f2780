//! References between resources, in both directions. They are checked as part of the change, so no other change can come between.

use serde_json::Value;

use super::kinds::ResourceKind;
use crate::stores::resources::{ResourceKey, ResourceView};
use crate::stores::writes::PlanRefusal;

/// A member that is the id of another resource.
struct ReferenceLink {
    member: &'static str,
    list: &'static str,
    /// The name in messages.
    name: &'static str,
}

const UPSTREAM: ReferenceLink = ReferenceLink { member: "upstream_id", list: "upstreams", name: "upstream" };
const SERVICE: ReferenceLink = ReferenceLink { member: "service_id", list: "services", name: "service" };
const PLUGIN_CONFIG: ReferenceLink =
    ReferenceLink { member: "plugin_config_id", list: "plugin_configs", name: "plugin config" };
const GROUP: ReferenceLink = ReferenceLink { member: "group_id", list: "consumer_groups", name: "consumer group" };

fn links(list: &str) -> &'static [ReferenceLink] {
    match list {
        "routes" => &[UPSTREAM, SERVICE, PLUGIN_CONFIG],
        "services" => &[UPSTREAM],
        "consumers" => &[GROUP],
        _ => &[],
    }
}

/// Checks that every resource that a resource refers to exists.
pub(super) fn check(view: &ResourceView, kind: &ResourceKind, value: &Value) -> Result<(), PlanRefusal> {
    for ReferenceLink { member, list, name } in links(kind.list) {
        let Some(id) = value.get(member).and_then(id_text) else { continue };
        if view.get(&ResourceKey::new(list, &id)).is_none() {
            let problem = format!("failed to fetch {name} info by {name} id [{id}], response code: 404");
            return Err(PlanRefusal::Wrong(problem));
        }
    }
    Ok(())
}

/// The text of an id, which may be a text or a number.
pub(super) fn id_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Refuses to delete a resource that others refer to, and names one of these.
pub(super) fn refuse_if_used(view: &ResourceView, key: &ResourceKey) -> Result<(), PlanRefusal> {
    let refuse = |problem: String| Err(PlanRefusal::Wrong(problem));
    match key.list() {
        "upstreams" => {
            if let Some((kind, user)) =
                user(view, key.id(), "upstream_id", &[("routes", "route"), ("services", "service")])
            {
                return refuse(format!("can not delete this upstream, {kind} [{user}] is still using it now"));
            }
            if let Some((kind, user)) = split_with(view, key.id()) {
                return refuse(format!(
                    "can not delete this upstream, plugin in {kind} [{user}] is still using it now"
                ));
            }
            Ok(())
        }
        "services" => match user(view, key.id(), "service_id", &[("routes", "route")]) {
            Some((kind, user)) => {
                refuse(format!("can not delete this service directly, {kind} [{user}] is still using it now"))
            }
            None => Ok(()),
        },
        "plugin_configs" => match user(view, key.id(), "plugin_config_id", &[("routes", "route")]) {
            Some((kind, user)) => {
                refuse(format!("can not delete this plugin config, {kind} [{user}] is still using it now"))
            }
            None => Ok(()),
        },
        "consumer_groups" => match user(view, key.id(), "group_id", &[("consumers", "consumer")]) {
            Some((kind, user)) => {
                refuse(format!("can not delete this consumer group, {kind} [{user}] is still using it now"))
            }
            None => Ok(()),
        },
        _ => Ok(()),
    }
}

/// The kind and id of the first resource in these lists whose `member` is `id`.
fn user(view: &ResourceView, id: &str, member: &str, lists: &[(&str, &'static str)]) -> Option<(&'static str, String)> {
    for (list, kind) in lists {
        let uses = |json: &str, value: &dyn Fn() -> Value| {
            json.contains(member) && value().get(member).and_then(id_text).as_deref() == Some(id)
        };
        let all = view.list(list);
        let found = all.iter().find(|(_, resource)| uses(&resource.json, &|| resource.value()));
        if let Some((key, _)) = found {
            return Some((kind, key.id().to_owned()));
        }
    }
    None
}

/// The first resource whose `traffic-split` refers to the upstream.
fn split_with(view: &ResourceView, id: &str) -> Option<(&'static str, String)> {
    const OWNERS: [(&str, &str); 6] = [
        ("routes", "route"),
        ("services", "service"),
        ("plugin_configs", "plugin_config"),
        ("consumers", "consumer"),
        ("consumer_groups", "consumer_group"),
        ("global_rules", "global_rule"),
    ];
    for (list, kind) in OWNERS {
        for (key, resource) in view.list(list) {
            if resource.json.contains("traffic-split") && names(&resource.value()["plugins"]["traffic-split"], id) {
                return Some((kind, key.id().to_owned()));
            }
        }
    }
    None
}

fn names(options: &Value, id: &str) -> bool {
    match options {
        Value::Object(members) => members
            .iter()
            .any(|(name, value)| name == "upstream_id" && id_text(value).as_deref() == Some(id) || names(value, id)),
        Value::Array(items) => items.iter().any(|item| names(item, id)),
        _ => false,
    }
}
