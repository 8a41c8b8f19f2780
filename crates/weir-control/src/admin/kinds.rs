//! The kinds of resources of the Admin API.

use serde_json::Value;

pub(super) use crate::document::kinds::{CREDENTIAL, IdRule, ResourceKind};

use crate::document::kinds::{self, KINDS};
use crate::keys::schema;

/// The kind of the resources of a list that stores hold.
pub(super) fn find(list: &str) -> Option<&'static ResourceKind> {
    kinds::find(list).filter(|kind| kind.is_stored)
}

/// The JSON Schema of a kind, by its name in paths: `plugin_config`.
pub(super) fn schema(name: &str) -> Option<Value> {
    let kind = KINDS.iter().chain([&CREDENTIAL]).find(|kind| kind.schema_name() == name)?;
    kind.table().map(schema::of)
}
