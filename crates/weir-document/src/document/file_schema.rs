//! The JSON Schema of a configuration file.

use serde_json::{Value, json};

use super::kinds::{KINDS, ResourceKind};
use super::settings;
use crate::keys::schema::{self, Definitions};

/// The schema of a configuration file: the settings of the node, and the lists of resources.
pub fn file_schema() -> Value {
    schema::with_definitions(|definitions| {
        let mut root = schema::object(settings::table(), definitions);
        root.insert("title".to_owned(), "Configuration of Weir".into());
        root.insert("description".to_owned(), "A configuration file: settings of the node, and resources.".into());
        let properties = root.get_mut("properties").and_then(Value::as_object_mut).expect("it is the schema of a map");
        properties.extend(KINDS.iter().map(|kind| (kind.list.to_owned(), list(kind, definitions))));
        root
    })
}

fn list(kind: &ResourceKind, definitions: &mut Definitions) -> Value {
    let item = match kind.table() {
        Some(table) => json!({ "$ref": definitions.reference(table) }),
        None => json!({ "type": "object" }),
    };
    // A key without a value counts as absent. One schema of both kinds, not a choice: faults are then told at their place in the list.
    json!({ "type": ["array", "null"], "items": item })
}
