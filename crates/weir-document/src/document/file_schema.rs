//! The JSON Schema of a configuration file.

use serde_json::{Map, Value, json};

use super::kinds::{KINDS, ResourceKind};
use super::settings::SETTINGS;
use crate::keys::schema::{self, Definitions};

/// Keys of a file that are neither settings in [`SETTINGS`] nor lists of resources.
pub(super) const FURTHER: &[&str] = &["acme", "include", "plugins"];

/// The schema of a configuration file. Resources are described in full; of the settings of a node it has the names.
pub fn file_schema() -> Value {
    schema::with_definitions(|definitions| {
        let settings = SETTINGS.iter().map(|(name, _)| *name).chain(FURTHER.iter().copied());
        let mut properties: Map<String, Value> = settings.map(|name| (name.to_owned(), true.into())).collect();
        properties.extend(KINDS.iter().map(|kind| (kind.list.to_owned(), list(kind, definitions))));
        let mut root = Map::new();
        root.insert("title".to_owned(), "Configuration of Weir".into());
        root.insert("type".to_owned(), "object".into());
        root.insert("properties".to_owned(), properties.into());
        root.insert("additionalProperties".to_owned(), false.into());
        root
    })
}

fn list(kind: &ResourceKind, definitions: &mut Definitions) -> Value {
    let list = match kind.table() {
        Some(table) => json!({ "type": "array", "items": { "$ref": definitions.reference(table) } }),
        None if kind.is_served => json!({ "type": "array", "items": { "type": "object" } }),
        None => json!({ "type": "array", "maxItems": 0, "description": "This version does not support them." }),
    };
    // A key without a value counts as absent.
    json!({ "oneOf": [list, { "type": "null" }] })
}
