//! Sets of plugins that other resources share.

use super::plugins::{PLUGINS, PluginSpecs};
use super::resource::{self, COMMON, Id, ResourceOrigin, own_id};
use crate::keys;
use crate::keys::kinds::{AnyWhole, Custom, any_whole};
use crate::text::fingerprint::Fingerprint;
use crate::text::read::NodeReader;

/// A plugin_config, a consumer_group, or a global_rule.
#[derive(Clone, Debug)]
pub struct PluginSet {
    pub origin: ResourceOrigin,
    /// The fingerprint of the whole resource.
    pub content: Fingerprint,
    pub id: Box<str>,
    pub plugins: PluginSpecs,
}

keys! {
    /// Plugins that several routes, or the consumers of a group, share.
    pub(super) static PLUGIN_SET: PluginSetKeys = "plugin_set", shared COMMON;

    /// The plugins, each with its options.
    plugins: Custom<PluginSpecs> = PLUGINS, required("add `plugins: {}`"), example("{ key-auth: {} }");
}

keys! {
    /// Plugins that apply to every request.
    pub(super) static GLOBAL_RULE: GlobalRuleKeys = "global_rule";

    /// Names the rule among all global rules.
    id: Id = own_id();
    /// When the resource was created, in seconds since 1970. The Admin API writes it.
    create_time: AnyWhole = any_whole();
    /// When the resource was changed last, in seconds since 1970. The Admin API writes it.
    update_time: AnyWhole = any_whole();
    /// The plugins, each with its options.
    plugins: Custom<PluginSpecs> = PLUGINS, required("add `plugins: {}`"), example("{ cors: {} }");
}

pub(super) fn read(at: &NodeReader, index: usize) -> Option<PluginSet> {
    let fields = at.keys(&PLUGIN_SET)?;
    resource::common(&fields);
    let plugins = fields.read(&PLUGIN_SET.plugins).unwrap_or_default();
    Some(PluginSet {
        origin: ResourceOrigin::of(at),
        content: Fingerprint::of_node(at.node()),
        id: resource::id(&fields, index),
        plugins,
    })
}

pub(super) fn read_global_rule(at: &NodeReader, index: usize) -> Option<PluginSet> {
    let fields = at.keys(&GLOBAL_RULE)?;
    fields.read(&GLOBAL_RULE.create_time);
    fields.read(&GLOBAL_RULE.update_time);
    Some(PluginSet {
        origin: ResourceOrigin::of(at),
        content: Fingerprint::of_node(at.node()),
        id: fields.read(&GLOBAL_RULE.id).unwrap_or_else(|| resource::position_id(index)),
        plugins: fields.read(&GLOBAL_RULE.plugins).unwrap_or_default(),
    })
}
