//! The `plugins` of a resource, each with its `_meta`.

use serde_json::{Value, json};
use weir_plugin::{ExchangePhase, Expression};

use super::condition;
use super::proto::TRANSCODING;
use super::resource::{Reference, read_id};
use super::shares::{self, TrafficShare};
use crate::keys::kinds::{Custom, custom};
use crate::keys::schema::Definitions;
use crate::text::read::NodeReader;
use crate::text::tree::{MapEntry, NodeKind, TextPosition, TreeNode};

/// The plugins of one resource, in the order of the text. Names are unique.
pub type PluginSpecs = Vec<PluginSpec>;

/// One plugin's configuration as written.
#[derive(Clone, Debug)]
pub struct PluginSpec {
    pub name: Box<str>,
    pub place: TextPosition,
    /// Without `_meta`.
    pub options: Value,
    /// `_meta.disable`: the plugin is ignored; its options may even be invalid.
    pub disabled: bool,
    /// `_meta.priority`: its position among the plugins of the same stage.
    pub priority: Option<i32>,
    /// `_meta.filter`: the plugin runs only for exchanges for which this holds.
    pub filter: Option<Expression>,
    /// `_meta.error_response`: the body that replaces those of the plugin's error responses.
    pub error_response: Option<ErrorResponse>,
    /// The upstreams in its options.
    pub shares: Vec<TrafficShare>,
    /// The resource of `protos` in its options.
    pub proto: Option<Reference>,
}

/// The body that replaces that of the plugin's responses with a status of 400 or more.
#[derive(Clone, Debug, PartialEq)]
pub enum ErrorResponse {
    Text(Box<str>),
    Json(Value),
}

/// The plugins of a resource.
pub(super) const PLUGINS: Custom<PluginSpecs> = custom("map: names of plugins to their options", plugins_schema, read);

/// Which options a plugin has is not known here.
fn plugins_schema(_: &mut Definitions) -> Value {
    json!({ "type": "object", "additionalProperties": { "type": ["object", "null"] }, "x-weir-plugins": true })
}

fn read(at: &NodeReader) -> Option<PluginSpecs> {
    let entries = at.entries_advising(&|| Some(format!("write `plugins: {}`", meant_plugins(at))))?;
    Some(entries.iter().filter_map(|entry| read_plugin(&at.below(entry), entry)).collect())
}

/// The plugins that a list of names, or one name, was meant to be.
fn meant_plugins(at: &NodeReader) -> String {
    fn text(item: &TreeNode) -> Option<&str> {
        match &item.kind {
            NodeKind::Text(text) => Some(text),
            _ => None,
        }
    }
    let names: Vec<&str> = match &at.node().kind {
        NodeKind::Text(name) => vec![name],
        NodeKind::List(items) => items.iter().filter_map(text).collect(),
        _ => Vec::new(),
    };
    let is_name = |name: &&str| name.chars().all(|char| char.is_ascii_alphanumeric() || "-_".contains(char));
    let plugins: Vec<String> =
        names.iter().copied().filter(is_name).take(4).map(|name| format!("{name}: {{}}")).collect();
    if plugins.is_empty() { "{ key-auth: {} }".to_owned() } else { format!("{{ {} }}", plugins.join(", ")) }
}

fn read_plugin(at: &NodeReader, entry: &MapEntry) -> Option<PluginSpec> {
    let mut plugin = PluginSpec {
        name: entry.key.clone(),
        place: entry.key_place,
        options: Value::Null,
        disabled: false,
        priority: None,
        filter: None,
        error_response: None,
        shares: Vec::new(),
        proto: None,
    };
    // `key-auth:` without a value is the plugin with its default options.
    let defaults = || Some(format!("write `{}: {{}}` for its default options", plugin.name));
    let entries = if at.is_null() { &[] } else { at.entries_advising(&defaults)? };
    let (meta, options): (Vec<&MapEntry>, Vec<&MapEntry>) = entries.iter().partition(|option| &*option.key == "_meta");
    meta.iter().for_each(|meta| read_meta(&at.below(meta), &mut plugin));
    if !plugin.disabled && !at.is_null() {
        plugin.shares = shares::read(&plugin.name, at);
        plugin.proto = read_proto(&plugin.name, at);
    }
    let options = options.iter().map(|option| (option.key.to_string(), option.value.to_json()));
    plugin.options = Value::Object(options.collect());
    Some(plugin)
}

fn read_proto(plugin: &str, options: &NodeReader) -> Option<Reference> {
    let entry = options.node().entry(TRANSCODING.option).filter(|_| plugin == TRANSCODING.plugin)?;
    let at = options.below(entry);
    read_id(&at).map(|id| Reference { id, place: at.place() })
}

/// An item of `plugin_metadata`, whose id is the name of a plugin; all other members are options.
pub(super) fn read_metadata(at: &NodeReader, _: usize) -> Option<PluginSpec> {
    let (about, options): (Vec<&MapEntry>, Vec<&MapEntry>) =
        at.entries()?.iter().partition(|entry| matches!(&*entry.key, "id" | "create_time" | "update_time"));
    let Some(id) = about.into_iter().find(|entry| &*entry.key == "id") else {
        at.report_advising("has no `id`", "add `id: <plugin>`");
        return None;
    };
    let id = at.below(id);
    let name = id.text_of(1..=256)?.into();
    let options = options.iter().map(|option| (option.key.to_string(), option.value.to_json()));
    let options = Value::Object(options.collect());
    let place = id.place();
    Some(PluginSpec {
        name,
        place,
        options,
        disabled: false,
        priority: None,
        filter: None,
        error_response: None,
        shares: Vec::new(),
        proto: None,
    })
}

fn read_meta(at: &NodeReader, plugin: &mut PluginSpec) {
    let Some(fields) = at.fields(&["disable", "priority", "filter", "error_response", "pre_function"]) else { return };
    plugin.disabled = fields.get("disable").and_then(|at| at.boolean()).unwrap_or(false);
    plugin.priority = fields.get("priority").and_then(|at| at.integer(i32::MIN..=i32::MAX));
    plugin.filter = fields
        .get("filter")
        .filter(|at| !at.is_list() || at.items().next().is_some())
        .and_then(|at| condition::read(&at, ExchangePhase::Answer));
    plugin.error_response = fields.get("error_response").and_then(|at| match &at.node().kind {
        NodeKind::Text(text) => Some(ErrorResponse::Text(text.clone())),
        NodeKind::Map(_) => Some(ErrorResponse::Json(at.node().to_json())),
        _ => {
            at.report("expected text or a map");
            None
        }
    });
    if let Some(at) = fields.get("pre_function") {
        at.report_advising("is Lua code, which Weir does not run", "leave it out");
    }
}
