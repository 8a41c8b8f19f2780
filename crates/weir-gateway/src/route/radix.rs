//! Radix trees: which keys are prefixes of this text, longest first?

/// Stands for no node and no value.
const NONE: u32 = u32::MAX;

/// Many trees in one piece of memory. A tree is known by the number of its root.
#[derive(Debug, Default)]
pub(super) struct Forest {
    nodes: Vec<RadixNode>,
    /// For each node, the byte that leads to it. Apart from the nodes, so that siblings are searched in one cache line.
    leads: Vec<u8>,
    /// The labels of all nodes.
    labels: Vec<u8>,
}

#[derive(Debug)]
struct RadixNode {
    /// What must follow the lead: a range of `labels`.
    label: u32,
    label_length: u32,
    /// The children stand side by side, ordered by their leads.
    children: u32,
    child_count: u32,
    value: u32,
    /// The nearest node above with a value.
    shorter: u32,
}

impl Forest {
    /// Adds a tree of keys and their values.
    ///
    /// The keys are ordered, no key is there twice, and no value is `u32::MAX`. `None` without keys.
    pub(super) fn add(&mut self, keys: &[(&[u8], u32)]) -> Option<u32> {
        if keys.is_empty() {
            return None;
        }
        let root = self.push(0, NONE);
        // Not recursive: a tree may be as deep as its longest key.
        let mut work = vec![(root, keys, 0)];
        while let Some((id, mut keys, depth)) = work.pop() {
            let (first, last) = (&keys[0].0[depth..], &keys[keys.len() - 1].0[depth..]);
            // The keys are ordered, so what the outermost two share is shared by all.
            let common = first.iter().zip(last).take_while(|(a, b)| a == b).count();
            let end = depth + common;
            let label = self.labels.len() as u32;
            self.labels.extend_from_slice(&first[..common]);
            let mut shorter = self.nodes[id as usize].shorter;
            let mut value = NONE;
            if first.len() == common {
                value = keys[0].1;
                shorter = id;
                keys = &keys[1..];
            }
            let children = self.nodes.len() as u32;
            for group in keys.chunk_by(|a, b| a.0[end] == b.0[end]) {
                let child = self.push(group[0].0[end], shorter);
                work.push((child, group, end + 1));
            }
            let child_count = self.nodes.len() as u32 - children;
            let node = &mut self.nodes[id as usize];
            *node = RadixNode { label, label_length: common as u32, children, child_count, value, ..*node };
        }
        Some(root)
    }

    fn push(&mut self, lead: u8, shorter: u32) -> u32 {
        let id = self.nodes.len() as u32;
        self.nodes.push(RadixNode { label: 0, label_length: 0, children: 0, child_count: 0, value: NONE, shorter });
        self.leads.push(lead);
        id
    }

    /// The values of those keys of a tree that are prefixes of `text`, longest first.
    pub(super) fn prefixes_of<'a>(&'a self, root: u32, text: &[u8]) -> Prefixes<'a> {
        Prefixes { forest: self, next: self.deepest(root, text) }
    }

    /// The deepest node with a value on the way of `text`, or [`NONE`].
    fn deepest(&self, root: u32, text: &[u8]) -> u32 {
        let mut found = NONE;
        let (mut id, mut rest) = (root, text);
        loop {
            let node = &self.nodes[id as usize];
            // Most nodes below a branch have no label.
            if node.label_length > 0 {
                let label = &self.labels[node.label as usize..][..node.label_length as usize];
                let Some(after) = rest.strip_prefix(label) else { return found };
                rest = after;
            }
            found = if node.value == NONE { node.shorter } else { id };
            let Some((lead, after)) = rest.split_first() else { return found };
            let leads = &self.leads[node.children as usize..][..node.child_count as usize];
            let Some(index) = index_of(*lead, leads) else { return found };
            id = node.children + index as u32;
            rest = after;
        }
    }
}

/// The index of a byte among ordered ones. Numbered names make runs of digits, where it is the distance to the first.
fn index_of(byte: u8, ordered: &[u8]) -> Option<usize> {
    let distance = usize::from(byte.wrapping_sub(*ordered.first()?));
    if ordered.get(distance) == Some(&byte) {
        return Some(distance);
    }
    ordered.iter().position(|other| *other == byte)
}

/// Values from the longest key to the shortest.
pub(super) struct Prefixes<'a> {
    forest: &'a Forest,
    next: u32,
}

impl Iterator for Prefixes<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        if self.next == NONE {
            return None;
        }
        let node = &self.forest.nodes[self.next as usize];
        self.next = node.shorter;
        Some(node.value)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn found(keys: &[&str], text: &str) -> Vec<u32> {
        let mut keys: Vec<(&[u8], u32)> = keys.iter().zip(0..).map(|(key, value)| (key.as_bytes(), value)).collect();
        keys.sort();
        let mut forest = Forest::default();
        forest.add(&[(b"another tree", 99)]);
        let Some(root) = forest.add(&keys) else { return Vec::new() };
        forest.prefixes_of(root, text.as_bytes()).collect()
    }

    #[test]
    fn longest_prefix_first() {
        let keys = ["/", "/foo/", "/foo/bar", "/fo", ""];
        assert_eq!(found(&keys, "/foo/bar/x"), [2, 1, 3, 0, 4]);
        assert_eq!(found(&keys, "/foo/ba"), [1, 3, 0, 4]);
        assert_eq!(found(&keys, "/x"), [0, 4]);
        assert_eq!(found(&keys, "x"), [4]);
        assert_eq!(found(&["/foo/"], "/foo"), [0; 0]);
        assert_eq!(found(&[], "/foo"), [0; 0]);
    }

    #[test]
    fn a_chain_of_thousands_of_keys_is_no_problem() {
        let text = "a".repeat(4_096);
        let keys: Vec<&str> = (0..4_096).map(|length| &text[..length]).collect();
        assert_eq!(found(&keys, &text), (0..4_096).rev().collect::<Vec<u32>>());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        #[test]
        fn agrees_with_looking_at_every_key(
            keys in prop::collection::btree_set("[ab/]{0,6}", 0..24),
            text in "[ab/]{0,8}",
        ) {
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            let mut expected: Vec<u32> =
                (0..keys.len() as u32).filter(|index| text.starts_with(keys[*index as usize])).collect();
            expected.sort_by_key(|index| std::cmp::Reverse(keys[*index as usize].len()));
            prop_assert_eq!(found(&keys, &text), expected);
        }
    }
}
