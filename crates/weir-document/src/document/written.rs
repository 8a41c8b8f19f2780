//! The resources of a file as they are written, with their places.

use std::sync::Arc;

use serde_json::Value;

use super::Document;
use super::kinds::{IdRule, KINDS, ResourceKind};
use super::resource::position_id;
use crate::text::diagnostic::Diagnostic;
use crate::text::tree::{NodeKind, TextPosition, TreeNode};

/// A resource of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct WrittenResource {
    pub list: &'static str,
    /// As in the Admin API: the name of a consumer, and of another resource without an id its position, such as `arr_1`.
    pub id: String,
    /// With variables replaced, and with references to secrets and to the environment as they are.
    pub value: Value,
    /// The texts of the value that contain values of variables of the environment, as JSON pointers (RFC 6901).
    pub variables: Vec<String>,
    /// The file, and where the resource begins in it.
    pub source: Arc<str>,
    pub place: TextPosition,
}

impl Document {
    /// The resources of the kinds that a store can hold; none if the document comes from a store. Parses the texts again, since a
    /// document does not keep what is written.
    pub fn written_resources(&self) -> Vec<WrittenResource> {
        let Some(text) = &self.positions.text else { return Vec::new() };
        let tree = text.tree();
        let kinds = KINDS.iter().filter(|kind| kind.is_stored);
        let lists = kinds.filter_map(|kind| Some((kind, tree.entry(kind.list)?)));
        let items = lists.flat_map(|(kind, entry)| match &entry.value.kind {
            NodeKind::List(items) => items.iter().enumerate().map(|(index, item)| (kind, index, item)).collect(),
            _ => Vec::new(),
        });
        items.map(|(kind, index, item)| self.written(kind, index, item)).collect()
    }

    /// The file as a tree, without its lists of resources; `None` if the document comes from a store.
    pub fn written_settings(&self) -> Option<TreeNode> {
        let mut tree = self.positions.text.as_ref()?.tree();
        if let NodeKind::Map(entries) = &mut tree.kind {
            entries.retain(|entry| !super::RESOURCE_LISTS.contains(&&*entry.key) && &*entry.key != "include");
        }
        Some(tree)
    }

    fn written(&self, kind: &ResourceKind, index: usize, item: &TreeNode) -> WrittenResource {
        let path = format!("{}[{index}]", kind.list);
        let told = self.located(Diagnostic { path, ..Diagnostic::at_place(&self.source, item.place, "") });
        WrittenResource {
            list: kind.list,
            id: id_of(kind, item).unwrap_or_else(|| position_id(index).into()),
            value: item.to_json(),
            variables: self.positions.text.as_ref().map(|text| text.with_variables(item)).unwrap_or_default(),
            source: told.source,
            place: TextPosition { line: told.line.unwrap_or_default(), column: told.column.unwrap_or_default() },
        }
    }
}

/// The id that a resource is written with.
fn id_of(kind: &ResourceKind, item: &TreeNode) -> Option<String> {
    let text = |key: &str| {
        item.entry(key).and_then(|entry| match &entry.value.kind {
            NodeKind::Text(text) => Some(text.to_string()),
            NodeKind::Number(number) => Some(number.to_string()),
            _ => None,
        })
    };
    match kind.id {
        // A credential has an id, and no name.
        IdRule::Username => text("id").filter(|id| id.contains("/credentials/")).or_else(|| text("username")),
        _ => text("id"),
    }
}

/// Where a resource is in the trees of files, the main one first: the number of the file, and the index in the list of that file.
pub fn find_written<'t>(trees: impl Iterator<Item = &'t TreeNode>, list: &str, id: &str) -> Option<(usize, usize)> {
    let kind = super::kinds::find(list)?;
    let mut before = 0;
    for (file, tree) in trees.enumerate() {
        let Some(NodeKind::List(items)) = tree.entry(list).map(|entry| &entry.value.kind) else { continue };
        let is_it = |(index, item): (usize, &TreeNode)| {
            id_of(kind, item).unwrap_or_else(|| position_id(before + index).into()) == id
        };
        if let Some(index) = items.iter().enumerate().position(is_it) {
            return Some((file, index));
        }
        before += items.len();
    }
    None
}
