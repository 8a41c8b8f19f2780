//! The memory of JSON, for caches that are bounded in bytes.

use serde_json::{Map, Value};

/// The memory that JSON takes, approximately: texts, and what holds them.
fn value_bytes(value: &Value) -> usize {
    let own = size_of::<Value>();
    own + match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(value_bytes).sum(),
        Value::Object(map) => map_bytes(map),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

/// The same for a map, with an overhead for each of its entries.
pub(super) fn map_bytes(map: &Map<String, Value>) -> usize {
    const ENTRY: usize = 64;
    map.iter().map(|(name, value)| ENTRY + name.len() + value_bytes(value)).sum()
}
