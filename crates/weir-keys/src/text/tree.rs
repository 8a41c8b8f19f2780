//! A configuration as written: a tree of values, each with its position in the text.

use std::fmt;

use serde_json::{Map, Number, Value};

/// Line and column of a value or a key, both from 1. Zero if there is no text (a document that came as JSON values).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TextPosition {
    pub line: u32,
    /// Counted in characters.
    pub column: u32,
}

impl TextPosition {
    pub fn known(self) -> bool {
        self.line > 0
    }
}

/// A value and its position. The value of an alias keeps the position of its anchor.
#[derive(Clone, Debug, PartialEq)]
pub struct TreeNode {
    /// Where it begins.
    pub place: TextPosition,
    /// Where it ends: the position after its last character.
    pub end: TextPosition,
    pub kind: NodeKind,
}

#[derive(Clone, Debug, PartialEq)]
pub enum NodeKind {
    Null,
    Bool(bool),
    Number(Number),
    Text(Box<str>),
    List(Vec<TreeNode>),
    /// In the order of the text; keys are unique.
    Map(Vec<MapEntry>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct MapEntry {
    pub key: Box<str>,
    pub key_place: TextPosition,
    /// The position after the last character of the key.
    pub key_end: TextPosition,
    pub value: TreeNode,
}

impl MapEntry {
    /// An entry that stands in no text.
    pub fn unplaced(key: impl Into<Box<str>>, value: TreeNode) -> MapEntry {
        let nowhere = TextPosition::default();
        MapEntry { key: key.into(), key_place: nowhere, key_end: nowhere, value }
    }

    /// See [`TreeNode::memory`].
    fn memory(&self) -> usize {
        size_of::<MapEntry>() - size_of::<TreeNode>() + self.key.len() + self.value.memory()
    }
}

impl TreeNode {
    /// A value that stands in no text.
    pub fn unplaced(kind: NodeKind) -> TreeNode {
        TreeNode { place: TextPosition::default(), end: TextPosition::default(), kind }
    }

    /// The entry of a map; `None` if this is not a map.
    pub fn entry(&self, key: &str) -> Option<&MapEntry> {
        match &self.kind {
            NodeKind::Map(entries) => entries.iter().find(|entry| &*entry.key == key),
            _ => None,
        }
    }

    /// Takes the items out of a list that is an entry of this map; `None` if it is not a list.
    pub fn take_list(&mut self, key: &str) -> Option<Vec<TreeNode>> {
        let NodeKind::Map(entries) = &mut self.kind else { return None };
        match &mut entries.iter_mut().find(|entry| &*entry.key == key)?.value.kind {
            NodeKind::List(items) => Some(std::mem::take(items)),
            _ => None,
        }
    }

    /// The same value without positions.
    pub fn to_json(&self) -> Value {
        match &self.kind {
            NodeKind::Null => Value::Null,
            NodeKind::Bool(value) => Value::Bool(*value),
            NodeKind::Number(value) => Value::Number(value.clone()),
            NodeKind::Text(value) => Value::String(value.to_string()),
            NodeKind::List(items) => Value::Array(items.iter().map(TreeNode::to_json).collect()),
            NodeKind::Map(entries) => {
                let mut map = Map::with_capacity(entries.len());
                map.extend(entries.iter().map(|entry| (entry.key.to_string(), entry.value.to_json())));
                Value::Object(map)
            }
        }
    }

    /// The number of values in the tree, including itself.
    pub fn size(&self) -> usize {
        1 + match &self.kind {
            NodeKind::List(items) => items.iter().map(TreeNode::size).sum(),
            NodeKind::Map(entries) => entries.iter().map(|entry| entry.value.size()).sum(),
            _ => 0,
        }
    }

    /// About how many bytes the tree takes, including itself.
    pub fn memory(&self) -> usize {
        size_of::<TreeNode>()
            + match &self.kind {
                NodeKind::Text(text) => text.len(),
                NodeKind::List(items) => items.iter().map(TreeNode::memory).sum(),
                NodeKind::Map(entries) => entries.iter().map(MapEntry::memory).sum(),
                NodeKind::Null | NodeKind::Bool(_) | NodeKind::Number(_) => 0,
            }
    }

    /// The position of a value inside this one, by a path such as `limits[0].count`, or of the deepest part of the path that
    /// exists.
    pub fn place_of(&self, path: &str) -> TextPosition {
        let (mut node, mut rest) = (self, path);
        while !rest.is_empty() {
            let next;
            (next, rest) = match rest.strip_prefix("[\"").and_then(|quoted| quoted.split_once("\"]")) {
                Some((key, after)) => (node.entry(key).map(|entry| &entry.value), after),
                None => {
                    let end = rest[1..].find(['.', '[']).map_or(rest.len(), |end| end + 1);
                    let (step, after) = rest.split_at(end);
                    (node.step(step.trim_start_matches(['.', '[']).trim_end_matches(']')), after)
                }
            };
            match next {
                Some(next) => node = next,
                None => break,
            }
        }
        node.place
    }

    fn step(&self, step: &str) -> Option<&TreeNode> {
        match &self.kind {
            NodeKind::List(items) => items.get(step.parse::<usize>().ok()?),
            _ => self.entry(step).map(|entry| &entry.value),
        }
    }
}

impl From<Value> for TreeNode {
    fn from(value: Value) -> Self {
        let kind = match value {
            Value::Null => NodeKind::Null,
            Value::Bool(value) => NodeKind::Bool(value),
            Value::Number(value) => NodeKind::Number(value),
            Value::String(value) => NodeKind::Text(value.into()),
            Value::Array(items) => NodeKind::List(items.into_iter().map(TreeNode::from).collect()),
            Value::Object(map) => {
                NodeKind::Map(map.into_iter().map(|(key, value)| MapEntry::unplaced(key, value.into())).collect())
            }
        };
        TreeNode::unplaced(kind)
    }
}

/// The path of a value in the tree: a linked list on the stack, which allocates only when a diagnostic prints it.
#[derive(Clone, Copy, Debug)]
pub struct TreePath<'a> {
    parent: Option<&'a TreePath<'a>>,
    step: PathStep<'a>,
}

#[derive(Clone, Copy, Debug)]
pub enum PathStep<'a> {
    Root,
    Key(&'a str),
    Index(usize),
    /// A resource in a list, identified by its id.
    Id(&'a str),
}

impl<'a> TreePath<'a> {
    pub const ROOT: TreePath<'static> = TreePath { parent: None, step: PathStep::Root };

    pub fn below(parent: &'a TreePath<'a>, step: PathStep<'a>) -> Self {
        TreePath { parent: Some(parent), step }
    }

    /// The text that a key adds to a path that is not empty.
    pub fn suffix(key: &str) -> String {
        if is_plain(key) { format!(".{key}") } else { format!("[{key:?}]") }
    }

    /// The keys of the path, the last one first.
    pub fn keys(&self) -> impl Iterator<Item = &'a str> {
        self.and_ancestors().filter_map(|path| path.last_key())
    }

    pub fn parent(&self) -> Option<&'a TreePath<'a>> {
        self.parent
    }

    /// The path itself and those that it is below of, up to the root.
    pub fn and_ancestors(&self) -> impl Iterator<Item = TreePath<'a>> {
        std::iter::successors(Some(*self), |path| path.parent.copied())
    }

    /// The last key of the path, if it ends with one.
    pub fn last_key(&self) -> Option<&'a str> {
        match self.step {
            PathStep::Key(key) => Some(key),
            _ => None,
        }
    }

    fn is_root(&self) -> bool {
        matches!(self.step, PathStep::Root)
    }

    /// Whether it leads to a resource that came alone, not in a list of a file.
    pub(crate) fn is_stored_resource(&self) -> bool {
        matches!(self.step, PathStep::Root | PathStep::Id(_))
    }
}

impl fmt::Display for TreePath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
        }
        let first = self.parent.is_none_or(TreePath::is_root);
        match self.step {
            PathStep::Root => Ok(()),
            PathStep::Index(index) => write!(f, "[{index}]"),
            PathStep::Id(id) => write!(f, "[{id}]"),
            PathStep::Key(key) if first && is_plain(key) => f.write_str(key),
            PathStep::Key(key) => f.write_str(&TreePath::suffix(key)),
        }
    }
}

/// Keys such as `127.0.0.1:80` would make a path ambiguous, so they are quoted.
fn is_plain(key: &str) -> bool {
    !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_read_as_one_would_write_them() {
        let root = TreePath::ROOT;
        let routes = TreePath::below(&root, PathStep::Key("routes"));
        let second = TreePath::below(&routes, PathStep::Index(2));
        let nodes = TreePath::below(&second, PathStep::Key("nodes"));
        assert_eq!(root.to_string(), "");
        assert_eq!(nodes.to_string(), "routes[2].nodes");
        assert_eq!(TreePath::below(&nodes, PathStep::Key("[::1]:80")).to_string(), "routes[2].nodes[\"[::1]:80\"]");
    }

    #[test]
    fn json_comes_back_as_it_went_in() {
        let value = json!({ "b": [1, -2.5, "x", null], "a": { "": true } });
        assert_eq!(TreeNode::from(value.clone()).to_json(), value);
        assert_eq!(TreeNode::from(value.clone()).size(), 8);
        assert!(TreeNode::from(value.clone()).memory() >= 8 * size_of::<TreeNode>() + "bxa".len());
        let long = json!({ "k": "x".repeat(1_000) });
        assert!((1_001..1_300).contains(&TreeNode::from(long).memory()));
    }
}
