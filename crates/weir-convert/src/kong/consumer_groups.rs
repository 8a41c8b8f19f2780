//! Consumer groups. Their plugins are not converted: the members of a group get no credentials if one of them may refuse requests,
//! since they would have more rights than in Kong.

use super::{HARMLESS, name_of};
use crate::conversion::DocumentConversion;
use crate::document::DocumentValue;

/// The list of the groups.
pub(super) const GROUPS: &str = "consumer_groups";
/// The list of their members, where it is not with the groups or the consumers.
pub(super) const MEMBERS: &str = "consumer_group_consumers";
/// The list of their plugins, where it is not with the groups.
pub(super) const PLUGINS: &str = "consumer_group_plugins";

/// More plugins without which a consumer has no access that it has not in Kong: what is not counted or changed is told.
const NOT_ADMITTING: [&str; 6] = [
    "rate-limiting",
    "rate-limiting-advanced",
    "response-ratelimiting",
    "response-transformer",
    "response-transformer-advanced",
    "proxy-cache-advanced",
];

fn names(entity: &DocumentValue) -> [Option<&str>; 3] {
    ["name", "username", "id"].map(|member| entity.text(member))
}

/// Whether a member of an entity, or the item of a list, names another entity.
fn is_of(reference: &DocumentValue, entity: &DocumentValue) -> bool {
    let mut named = names(reference).into_iter().chain([reference.as_text()]).flatten();
    named.any(|name| names(entity).contains(&Some(name)))
}

/// The plugins of a group.
fn plugins<'a>(root: &'a DocumentValue, group: &'a DocumentValue) -> impl Iterator<Item = &'a DocumentValue> {
    let of_top = root.list(PLUGINS).iter();
    let of_top = of_top.filter(|plugin| plugin.get("consumer_group").is_some_and(|owner| is_of(owner, group)));
    let all = group.list("plugins").iter().chain(of_top);
    all.filter(|plugin| plugin.is_true("enabled", true))
}

fn may_refuse(plugin: &DocumentValue) -> bool {
    let name = name_of(plugin, "name").unwrap_or_default();
    !HARMLESS.contains(&name) && !NOT_ADMITTING.contains(&name)
}

fn has_member(root: &DocumentValue, group: &DocumentValue, consumer: &DocumentValue) -> bool {
    let both = |entry: &DocumentValue| {
        entry.get("consumer_group").is_some_and(|owner| is_of(owner, group))
            && entry.get("consumer").is_some_and(|member| is_of(member, consumer))
    };
    consumer.list("groups").iter().any(|name| is_of(name, group))
        || group.list("consumers").iter().any(|member| is_of(member, consumer))
        || root.list(MEMBERS).iter().any(both)
}

/// The name of a group of the consumer whose plugins may refuse requests, or that is not in the file, so that its plugins are not
/// known.
pub(super) fn closing(root: &DocumentValue, consumer: &DocumentValue) -> Option<String> {
    let name = |entity: &DocumentValue| {
        names(entity).into_iter().flatten().next().or(entity.as_text()).unwrap_or_default().to_owned()
    };
    let groups = root.list(GROUPS);
    let is_known = |reference: &DocumentValue| groups.iter().any(|group| is_of(reference, group));
    let unknown = consumer.list("groups").iter().find(|reference| !is_known(reference));
    let mut closing =
        groups.iter().filter(|group| has_member(root, group, consumer) && plugins(root, group).any(may_refuse));
    closing.next().or(unknown).map(name)
}

/// Reports what is lost of each group.
pub(super) fn report(conversion: &mut DocumentConversion) {
    let root = conversion.root;
    for group in root.list(GROUPS) {
        for plugin in plugins(root, group) {
            let text = format!(
                "the plugin `{}` of the consumer group `{}` is not converted",
                name_of(plugin, "name").unwrap_or_default(),
                names(group).into_iter().flatten().next().unwrap_or_default()
            );
            conversion.lost(plugin, text);
        }
    }
    let is_placed = |plugin: &DocumentValue| {
        let owner = plugin.get("consumer_group");
        owner.is_some_and(|owner| root.list(GROUPS).iter().any(|group| is_of(owner, group)))
    };
    for plugin in root.list(PLUGINS).iter().filter(|plugin| !is_placed(plugin)) {
        conversion.lost(plugin, format!("`{PLUGINS}`: its consumer group is not in this file"));
    }
}
