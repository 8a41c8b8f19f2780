//! JSON: from clients, with limits, and refused where parsers could disagree; and from stores, parsed directly to a tree.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::tree::{MapEntry, NodeKind, TreeNode};

/// The most levels of nested lists and maps.
pub const MAX_DEPTH: usize = 64;
/// The most values in one text.
pub const MAX_VALUES: usize = 1_000_000;
/// What an entry of a map takes besides its key and its value: its hash, its place in the index, and spare capacity.
const ENTRY_BYTES: usize = 64;
/// What a map with entries takes besides them.
const MAP_BYTES: usize = 256;

/// Why a text is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JsonFault {
    /// It is not JSON, or is ambiguous: a description of the problem, with line and column.
    Wrong(String),
    /// Its values would take more memory than they may, or are too many: a description.
    TooLarge(String),
}

/// Parses one JSON value whose values take at most `memory` bytes together: a text of a megabyte can have values that take a
/// hundred. Unlike [`serde_json::from_slice`], it refuses duplicate keys in a map.
///
/// # Errors
/// See [`JsonFault`].
pub fn parse(bytes: &[u8], memory: usize) -> Result<Value, JsonFault> {
    let budget = JsonBudget { values: Cell::new(MAX_VALUES), bytes: Cell::new(memory), memory };
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let parsed = JsonSeed { depth: 0, budget: &budget }.deserialize(&mut reader);
    let value = parsed.and_then(|value| reader.end().map(|()| value));
    value.map_err(|error| match budget.is_spent() {
        true => JsonFault::TooLarge(error.to_string()),
        false => JsonFault::Wrong(error.to_string()),
    })
}

/// About how many bytes the values of a tree take once they are JSON, counted as [`parse`] counts them.
pub fn memory(tree: &TreeNode) -> usize {
    let entry = |entry: &MapEntry| ENTRY_BYTES + entry.key.len() + memory(&entry.value);
    size_of::<Value>()
        + match &tree.kind {
            NodeKind::Text(text) => text.len(),
            NodeKind::List(items) => items.iter().map(memory).sum(),
            NodeKind::Map(entries) if !entries.is_empty() => MAP_BYTES + entries.iter().map(entry).sum::<usize>(),
            _ => 0,
        }
}

/// The number of levels of nested lists and maps.
pub fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// What the values of a text may still take.
struct JsonBudget {
    values: Cell<usize>,
    bytes: Cell<usize>,
    memory: usize,
}

impl JsonBudget {
    const SPENT: usize = usize::MAX;

    fn is_spent(&self) -> bool {
        self.bytes.get() == JsonBudget::SPENT
    }

    fn spend_value<E: Error>(&self) -> Result<(), E> {
        match self.values.get().checked_sub(1) {
            Some(left) => self.values.set(left),
            None => {
                self.bytes.set(JsonBudget::SPENT);
                return Err(E::custom(format!("there are more than {MAX_VALUES} values")));
            }
        }
        self.spend(size_of::<Value>())
    }

    fn spend<E: Error>(&self, bytes: usize) -> Result<(), E> {
        let left = self.bytes.get().checked_sub(bytes);
        self.bytes.set(left.unwrap_or(JsonBudget::SPENT));
        match left {
            Some(_) => Ok(()),
            None => Err(E::custom(format!(
                "the values would take more than {} MiB of memory; send fewer",
                self.memory >> 20
            ))),
        }
    }
}

#[derive(Clone, Copy)]
struct JsonSeed<'a> {
    depth: usize,
    budget: &'a JsonBudget,
}

impl JsonSeed<'_> {
    fn deeper<E: Error>(self) -> Result<Self, E> {
        match self.depth < MAX_DEPTH {
            true => Ok(JsonSeed { depth: self.depth + 1, ..self }),
            false => Err(E::custom(format!("lists and maps are nested more than {MAX_DEPTH} levels deep"))),
        }
    }
}

impl<'de> DeserializeSeed<'de> for JsonSeed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.budget.spend_value()?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for JsonSeed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        self.budget.spend(value.len())?;
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        self.budget.spend(value.len())?;
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let inner = self.deeper()?;
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(inner)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let inner = self.deeper()?;
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let of_map = if map.is_empty() { MAP_BYTES } else { 0 };
            self.budget.spend(of_map + ENTRY_BYTES + key.len())?;
            let value = entries.next_value_seed(inner)?;
            if map.contains_key(&key) {
                return Err(A::Error::custom(format!("the key `{key}` is given twice")));
            }
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

/// Parses a text that was serialized from a value to a tree without positions. Parsing to a value first would cost more than the
/// tree itself.
///
/// # Errors
/// If the text is not JSON.
pub fn tree(text: &str) -> Result<TreeNode, serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let tree = TreeSeed.deserialize(&mut reader)?;
    reader.end()?;
    Ok(tree)
}

#[derive(Clone, Copy)]
struct TreeSeed;

fn node<E>(kind: NodeKind) -> Result<TreeNode, E> {
    Ok(TreeNode::unplaced(kind))
}

impl<'de> DeserializeSeed<'de> for TreeSeed {
    type Value = TreeNode;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<TreeNode, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for TreeSeed {
    type Value = TreeNode;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<TreeNode, E> {
        node(NodeKind::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<TreeNode, E> {
        node(NodeKind::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<TreeNode, E> {
        node(NodeKind::Number(value.into()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<TreeNode, E> {
        node(NodeKind::Number(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<TreeNode, E> {
        node(Number::from_f64(value).map_or(NodeKind::Null, NodeKind::Number))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<TreeNode, E> {
        node(NodeKind::Text(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<TreeNode, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        node(NodeKind::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<TreeNode, A::Error> {
        let mut map = Vec::new();
        while let Some(key) = entries.next_key::<Box<str>>()? {
            let value = entries.next_value_seed(self)?;
            map.push(MapEntry::unplaced(key, value));
        }
        node(NodeKind::Map(map))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const MEMORY: usize = 256 << 20;

    #[test]
    fn values_come_in_as_they_were_written() {
        let text = r#"{"b":[1,-2,2.5,"x\n",null,true],"a":{}}"#;
        assert_eq!(parse(text.as_bytes(), MEMORY), Ok(json!({"b": [1, -2, 2.5, "x\n", null, true], "a": {}})));
        assert_eq!(parse(text.as_bytes(), MEMORY).expect("it is JSON").to_string(), text, "in their order");
    }

    #[test]
    fn a_tree_is_that_of_the_value() {
        let text = r#"{"b":[1,-2,2.5,"x\n",null,true],"a":{}}"#;
        let value: Value = serde_json::from_str(text).expect("it is JSON");
        assert_eq!(tree(text).expect("it is JSON"), TreeNode::from(value));
        assert!(tree("{} {}").is_err());
    }

    #[test]
    fn ambiguous_json_is_refused() {
        let fault = |text: &str| match parse(text.as_bytes(), MEMORY).expect_err("it is refused") {
            JsonFault::Wrong(problem) => problem,
            JsonFault::TooLarge(problem) => panic!("{problem}"),
        };
        assert!(fault(r#"{"a":1,"b":{"c":1,"c":2}}"#).starts_with("the key `c` is given twice"));
        assert!(fault("{} {}").contains("trailing characters"));
        assert!(fault("{bad").contains("line 1 column 2"));
        assert!(fault("").contains("EOF"));
        assert!(fault(&"[".repeat(100)).contains("more than 64 levels deep"));
    }

    #[test]
    fn values_are_bounded_in_number_and_in_what_they_take() {
        let fault = |text: &str, memory: usize| match parse(text.as_bytes(), memory) {
            Err(JsonFault::TooLarge(problem)) => problem,
            other => panic!("{other:?}"),
        };
        let values = format!("[{}0]", "0,".repeat(MAX_VALUES));
        assert!(fault(&values, MEMORY).contains("more than 1000000 values"));
        for text in ["[0,0,0,0]", r#"{"a":{"b":0}}"#, r#"{"a":"0123456789"}"#, r#"{"0123456789":0}"#] {
            let least = (0..4_096).find(|memory| parse(text.as_bytes(), *memory).is_ok()).expect("it is small");
            assert!(least >= size_of::<Value>() * 2, "{text}: {least}");
            assert_eq!(memory(&tree(text).expect("it is JSON")), least, "{text}");
            assert!(fault(text, least - 1).contains("more than 0 MiB of memory"), "{text}");
        }
    }

    #[test]
    fn depth_counts_lists_and_maps() {
        assert_eq!([json!(1), json!([]), json!({"a": [1], "b": {"c": [2]}})].map(|value| depth(&value)), [0, 1, 3]);
    }
}
