//! Hashes of values, to find out which parts of a configuration have changed.

use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::LazyLock;

use foldhash::quality::RandomState;

use super::tree::{NodeKind, TreeNode};

/// A hash of 128 bits. Equal values have equal fingerprints; different ones have equal fingerprints with a probability of 2⁻¹²⁸.
/// The hash is seeded at random in each process, so that a configuration cannot be made to collide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(u64, u64);

static SEEDS: LazyLock<(RandomState, RandomState)> = LazyLock::new(Default::default);

impl Fingerprint {
    pub fn of(value: impl Hash) -> Fingerprint {
        let (one, other) = &*SEEDS;
        Fingerprint(one.hash_one(&value), other.hash_one(&value))
    }

    /// Of a part of a tree, regardless of its position.
    pub fn of_node(node: &TreeNode) -> Fingerprint {
        Fingerprint::of(NodeContent(node))
    }

    /// Of a set of values, regardless of their order.
    pub fn of_all(values: impl Iterator<Item = Fingerprint>) -> Fingerprint {
        values
            .fold(Fingerprint::default(), |sum, one| Fingerprint(sum.0.wrapping_add(one.0), sum.1.wrapping_add(one.1)))
    }

    /// Of each entry of a map whose key is `wanted`, with the key.
    pub fn of_entries(node: &TreeNode, wanted: impl Fn(&str) -> bool) -> Vec<(Box<str>, Fingerprint)> {
        let NodeKind::Map(entries) = &node.kind else { return Vec::new() };
        let wanted = entries.iter().filter(|entry| wanted(&entry.key));
        wanted.map(|entry| (entry.key.clone(), Fingerprint::of_node(&entry.value))).collect()
    }
}

/// A value without its position.
struct NodeContent<'a>(&'a TreeNode);

impl Hash for NodeContent<'_> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        std::mem::discriminant(&self.0.kind).hash(hasher);
        match &self.0.kind {
            NodeKind::Null => {}
            NodeKind::Bool(value) => value.hash(hasher),
            NodeKind::Number(value) => value.hash(hasher),
            NodeKind::Text(text) => text.hash(hasher),
            NodeKind::List(items) => {
                items.len().hash(hasher);
                items.iter().for_each(|item| NodeContent(item).hash(hasher));
            }
            NodeKind::Map(entries) => {
                entries.len().hash(hasher);
                entries.iter().for_each(|entry| (&*entry.key, NodeContent(&entry.value)).hash(hasher));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn it_goes_by_what_is_said_and_not_by_where() {
        let of = |value| Fingerprint::of_node(&TreeNode::from(value));
        assert_eq!(of(json!({ "a": [1, "x"] })), of(json!({ "a": [1, "x"] })));
        for other in
            [json!({ "a": [1, "y"] }), json!({ "a": ["1", "x"] }), json!({ "a": [[1], "x"] }), json!({ "b": [1, "x"] })]
        {
            assert_ne!(of(other), of(json!({ "a": [1, "x"] })));
        }
        let mut moved = TreeNode::from(json!("x"));
        moved.place.line = 7;
        assert_eq!(Fingerprint::of_node(&moved), of(json!("x")));
        let map = TreeNode::from(json!({ "a": 1, "b": 2 }));
        let but_b = |node: &TreeNode| Fingerprint::of_entries(node, |key| key != "b");
        assert_eq!(but_b(&map), but_b(&TreeNode::from(json!({ "a": 1, "b": 3 }))));
        assert_ne!(but_b(&map), but_b(&TreeNode::from(json!({ "a": 2, "b": 2 }))));
        let (one, other) = (of(json!(1)), of(json!(2)));
        assert_eq!(Fingerprint::of_all([one, other].into_iter()), Fingerprint::of_all([other, one].into_iter()));
    }
}
