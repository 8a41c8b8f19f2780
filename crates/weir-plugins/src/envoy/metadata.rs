//! The metadata that services send with their answers, as variables.

use super::messages::{Struct, StructValue};

/// The members of metadata: text as it is, and everything else as JSON. One that is null has no value.
pub(crate) fn members(metadata: Struct) -> Vec<(String, Vec<u8>)> {
    let member = |(name, value): (String, StructValue)| match serde_json::Value::from(value) {
        serde_json::Value::Null => None,
        serde_json::Value::String(text) => Some((name, text.into_bytes())),
        other => Some((name, other.to_string().into_bytes())),
    };
    metadata.fields.into_iter().filter_map(member).collect()
}

/// The variables of metadata, by the part of their names after the prefix.
pub(crate) fn variables(metadata: &[(String, Vec<u8>)]) -> impl Iterator<Item = (String, &[u8])> {
    metadata.iter().filter_map(|(name, value)| {
        let variable = variable_name(name);
        // A member whose name is that of the variable is not replaced by one whose name is only like it.
        let is_own = variable == *name || !metadata.iter().any(|(other, _)| *other == variable);
        is_own.then_some((variable, &**value))
    })
}

fn variable_name(name: &str) -> String {
    name.replace(|c: char| !c.is_ascii_alphanumeric(), "_")
}
