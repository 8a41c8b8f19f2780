//! A radix tree: finds the keys that are prefixes of a text, longest first.
//!
//! A copy costs one reference count and shares all nodes with the original. An edit of a copy creates anew only the nodes
//! on the path to its key.

use std::sync::Arc;

#[derive(Clone, Debug)]
pub(super) struct Radix<V> {
    root: Option<Arc<RadixNode<V>>>,
}

#[derive(Clone, Debug)]
struct RadixNode<V> {
    /// The bytes after the lead byte that this node's keys have in common.
    label: Box<[u8]>,
    value: Option<V>,
    /// The lead byte of each child, in ascending order. Stored apart from the children, so that a search stays within one
    /// cache line.
    leads: Vec<u8>,
    children: Vec<Arc<RadixNode<V>>>,
}

/// The number of values that a walk remembers; if all of these are refused, it walks again for shorter keys.
const REMEMBERED: usize = 4;

const HELD: &str = "it holds the key";

impl<V> Default for Radix<V> {
    fn default() -> Radix<V> {
        Radix { root: None }
    }
}

impl<V: Clone> Radix<V> {
    pub(super) fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// The value of exactly this key.
    pub(super) fn get(&self, key: &[u8]) -> Option<&V> {
        let mut node = self.root.as_deref()?;
        let mut rest = key.strip_prefix(&*node.label)?;
        while let Some((lead, after)) = rest.split_first() {
            node = &node.children[node.leads.binary_search(lead).ok()?];
            rest = after.strip_prefix(&*node.label)?;
        }
        node.value.as_ref()
    }

    /// Sets the value of a key.
    pub(super) fn insert(&mut self, key: &[u8], value: V) {
        let Some(root) = &mut self.root else {
            self.root = Some(Arc::new(RadixNode::leaf(key, value)));
            return;
        };
        let mut node = Arc::make_mut(root);
        let mut rest = key;
        loop {
            let common = node.label.iter().zip(rest).take_while(|(a, b)| a == b).count();
            if common < node.label.len() {
                node.split(common);
            }
            let Some((lead, after)) = rest[common..].split_first() else {
                node.value = Some(value);
                return;
            };
            match node.leads.binary_search(lead) {
                Ok(index) => {
                    node = Arc::make_mut(&mut node.children[index]);
                    rest = after;
                }
                Err(index) => {
                    node.leads.insert(index, *lead);
                    node.children.insert(index, Arc::new(RadixNode::leaf(after, value)));
                    return;
                }
            }
        }
    }

    /// The value of a key, which is created if there is none.
    pub(super) fn get_or_insert(&mut self, key: &[u8], new: impl FnOnce() -> V) -> &mut V {
        if self.get(key).is_none() {
            self.insert(key, new());
        }
        let mut node = Arc::make_mut(self.root.as_mut().expect(HELD));
        let mut rest = &key[node.label.len()..];
        while let Some((lead, after)) = rest.split_first() {
            let index = node.leads.binary_search(lead).expect(HELD);
            node = Arc::make_mut(&mut node.children[index]);
            rest = &after[node.label.len()..];
        }
        node.value.as_mut().expect(HELD)
    }

    /// Removes a key, if it is there.
    pub(super) fn remove(&mut self, key: &[u8]) {
        if self.get(key).is_none() {
            return;
        }
        let root = self.root.as_mut().expect(HELD);
        let mut node = Arc::make_mut(root);
        let mut rest = &key[node.label.len()..];
        while let Some((lead, after)) = rest.split_first() {
            let index = node.leads.binary_search(lead).expect(HELD);
            let child = &node.children[index];
            rest = &after[child.label.len()..];
            if rest.is_empty() && child.children.is_empty() {
                node.leads.remove(index);
                node.children.remove(index);
                return node.join_only_child();
            }
            node = Arc::make_mut(&mut node.children[index]);
        }
        node.value = None;
        node.join_only_child();
        if node.children.is_empty() && node.value.is_none() {
            self.root = None;
        }
    }

    /// Calls `take` with the values of those keys that are prefixes of `text`, longest first, until it returns true. Returns
    /// whether it did.
    #[inline]
    pub(super) fn any_prefix<'a>(&'a self, mut text: &[u8], mut take: impl FnMut(&'a V) -> bool) -> bool {
        let Some(root) = self.root.as_deref() else { return false };
        loop {
            let mut passed: [Option<(&V, usize)>; REMEMBERED] = [None; REMEMBERED];
            let mut count = 0;
            let (mut node, mut rest) = (root, text);
            while let Some(after) = rest.strip_prefix(&*node.label) {
                if let Some(value) = &node.value {
                    passed[count % REMEMBERED] = Some((value, text.len() - after.len()));
                    count += 1;
                }
                let Some((lead, after)) = after.split_first() else { break };
                let Some(index) = index_of(*lead, &node.leads) else { break };
                node = &node.children[index];
                rest = after;
            }
            let mut shortest = 0;
            for back in 1..=count.min(REMEMBERED) {
                let (value, length) = passed[(count - back) % REMEMBERED].expect("so many were passed");
                if take(value) {
                    return true;
                }
                shortest = length;
            }
            if count <= REMEMBERED {
                return false;
            }
            text = &text[..shortest - 1];
        }
    }
}

impl<V> RadixNode<V> {
    fn leaf(label: &[u8], value: V) -> RadixNode<V> {
        RadixNode { label: label.into(), value: Some(value), leads: Vec::new(), children: Vec::new() }
    }

    /// Turns the node into a branch after `at` bytes of its label; its content moves to the only child.
    fn split(&mut self, at: usize) {
        let lower = RadixNode {
            label: self.label[at + 1..].into(),
            value: self.value.take(),
            leads: std::mem::take(&mut self.leads),
            children: std::mem::take(&mut self.children),
        };
        self.leads = vec![self.label[at]];
        self.children = vec![Arc::new(lower)];
        self.label = self.label[..at].into();
    }
}

impl<V: Clone> RadixNode<V> {
    /// Merges a node without a value with its only child: except for the root, every node has a value or at least two
    /// children.
    fn join_only_child(&mut self) {
        if self.value.is_some() || self.children.len() != 1 {
            return;
        }
        let (Some(child), Some(lead)) = (self.children.pop(), self.leads.pop()) else { return };
        let mut child = Arc::unwrap_or_clone(child);
        self.label = [&*self.label, &[lead], &*child.label].concat().into();
        self.value = child.value.take();
        self.leads = std::mem::take(&mut child.leads);
        self.children = std::mem::take(&mut child.children);
    }
}

/// Not recursive: a tree may be as deep as its longest key, which would overflow the stack.
impl<V> Drop for RadixNode<V> {
    fn drop(&mut self) {
        let mut below = std::mem::take(&mut self.children);
        while let Some(node) = below.pop() {
            if let Ok(mut node) = Arc::try_unwrap(node) {
                below.append(&mut node.children);
            }
        }
    }
}

/// The index of a byte among ordered ones. Numbered names make runs of digits, in which the index is the distance to the
/// first.
fn index_of(byte: u8, ordered: &[u8]) -> Option<usize> {
    let distance = usize::from(byte.wrapping_sub(*ordered.first()?));
    if ordered.get(distance) == Some(&byte) {
        return Some(distance);
    }
    ordered.iter().position(|other| *other == byte)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn found<V: Clone>(tree: &Radix<V>, text: &str) -> Vec<V> {
        let mut found = Vec::new();
        tree.any_prefix(text.as_bytes(), |value| {
            found.push(value.clone());
            false
        });
        found
    }

    fn tree(keys: &[&str]) -> Radix<u32> {
        let mut tree = Radix::default();
        keys.iter().zip(0..).for_each(|(key, value)| tree.insert(key.as_bytes(), value));
        tree
    }

    #[test]
    fn longest_prefix_first() {
        let keys = tree(&["/", "/foo/", "/foo/bar", "/fo", ""]);
        assert_eq!(found(&keys, "/foo/bar/x"), [2, 1, 3, 0, 4]);
        assert_eq!(found(&keys, "/foo/ba"), [1, 3, 0, 4]);
        assert_eq!(found(&keys, "/x"), [0, 4]);
        assert_eq!(found(&keys, "x"), [4]);
        assert_eq!(found(&tree(&["/foo/"]), "/foo"), [0; 0]);
        assert_eq!(found(&tree(&[]), "/foo"), [0; 0]);
    }

    #[test]
    fn a_chain_of_thousands_of_keys_is_no_problem() {
        let text = "a".repeat(4_096);
        let keys: Vec<&str> = (0..4_096).map(|length| &text[..length]).collect();
        assert_eq!(found(&tree(&keys), &text), (0..4_096).rev().collect::<Vec<u32>>());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        /// Copies are kept while the tree is edited, and each must still give the same answers.
        #[test]
        fn agrees_with_looking_at_every_key(
            edits in prop::collection::vec(("[ab/]{0,6}", any::<bool>()), 0..40),
            text in "[ab/]{0,8}",
        ) {
            let mut keys: std::collections::BTreeSet<String> = Default::default();
            let (mut tree, mut copies) = (Radix::default(), Vec::new());
            for (key, stays) in edits {
                if stays {
                    tree.insert(key.as_bytes(), key.clone());
                    keys.insert(key);
                } else {
                    tree.remove(key.as_bytes());
                    keys.remove(&key);
                }
                copies.push((tree.clone(), keys.clone()));
            }
            for (tree, keys) in copies {
                let mut expected: Vec<String> = keys.into_iter().filter(|key| text.starts_with(&**key)).collect();
                expected.sort_by_key(|key| std::cmp::Reverse(key.len()));
                prop_assert_eq!(found(&tree, &text), expected);
            }
        }

        #[test]
        fn a_tree_without_keys_is_empty(keys in prop::collection::btree_set("[ab/]{0,6}", 0..24)) {
            let mut tree = Radix::default();
            keys.iter().for_each(|key| tree.insert(key.as_bytes(), ()));
            keys.iter().for_each(|key| tree.remove(key.as_bytes()));
            prop_assert!(tree.is_empty());
        }
    }
}
