//! References between the parts of a schema.

use serde_json::Value;

/// The schema that a reference leads to; a schema that is no reference, itself.
pub(super) fn resolved<'s>(root: &'s Value, node: &'s Value) -> &'s Value {
    let reference = node["$ref"].as_str().and_then(|path| root.pointer(path.strip_prefix('#')?));
    reference.unwrap_or(node)
}
