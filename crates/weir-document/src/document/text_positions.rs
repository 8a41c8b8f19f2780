//! What a document remembers of its text: where its values stand, and fingerprints of its parts.

use std::sync::OnceLock;

use super::Document;
use super::include::DocumentText;
use super::lists::LongLists;
use crate::text::fingerprint::Fingerprint;
use crate::text::tree::{NodeKind, TextPosition, TreeNode};

#[derive(Debug)]
pub(super) struct TextPositions {
    /// The fingerprint of each top-level key except the long lists.
    sections: Vec<(Box<str>, Fingerprint)>,
    /// The positions of the top-level values, by their keys.
    places: Vec<(Box<str>, TextPosition)>,
    /// The text that the document was parsed from, if any.
    pub(super) text: Option<DocumentText>,
    /// The same document with the position of every value, parsed when a position is first needed.
    tree: OnceLock<TreeNode>,
}

impl TextPositions {
    pub(super) fn of(tree: &TreeNode) -> TextPositions {
        TextPositions {
            sections: Fingerprint::of_entries(tree, |key| !LongLists::KEYS.contains(&key)),
            places: places(tree),
            text: None,
            tree: OnceLock::new(),
        }
    }
}

impl Document {
    /// The position of the value at a path such as `routes[2].uri`, or of its closest ancestor that exists.
    ///
    /// The first lookup inside a list parses the text again: positions are rarely needed, and a tree with all of them would add a
    /// third to the memory of each document.
    pub fn place_at(&self, path: &str) -> TextPosition {
        let TextPositions { places, text, tree, .. } = &self.positions;
        if !path.contains(['.', '[']) {
            return places.iter().find(|(key, _)| **key == *path).map(|(_, place)| *place).unwrap_or_default();
        }
        let Some(text) = text else { return TextPosition::default() };
        tree.get_or_init(|| text.tree()).place_of(path)
    }

    /// The values as they are written, of a document that was parsed from a text.
    pub fn written_values(&self) -> Option<&TreeNode> {
        let TextPositions { text, tree, .. } = &self.positions;
        text.as_ref().map(|text| tree.get_or_init(|| text.tree()))
    }

    /// The combined fingerprint of the top-level keys that `wanted` accepts. The long lists (routes, services, upstreams,
    /// plugin_configs) are not included.
    pub fn sections(&self, wanted: impl Fn(&str) -> bool) -> Fingerprint {
        Fingerprint::of_all(self.positions.sections.iter().filter(|(key, _)| wanted(key)).map(Fingerprint::of))
    }
}

/// The positions of the values of a map, by their keys.
fn places(tree: &TreeNode) -> Vec<(Box<str>, TextPosition)> {
    let NodeKind::Map(entries) = &tree.kind else { return Vec::new() };
    entries.iter().map(|entry| (entry.key.clone(), entry.value.place)).collect()
}
