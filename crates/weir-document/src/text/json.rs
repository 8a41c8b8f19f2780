//! JSON: from clients, with limits, and refused where parsers could disagree; and from stores, parsed directly to a tree.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::tree::{MapEntry, NodeKind, TreeNode};

/// The most levels of nested lists and maps.
const MAX_DEPTH: usize = 64;
/// The most values in one text.
const MAX_VALUES: usize = 1_000_000;

/// Parses one JSON value. Unlike [`serde_json::from_slice`], it refuses duplicate keys in a map.
///
/// # Errors
/// A description of the problem, with line and column.
pub fn parse(bytes: &[u8]) -> Result<Value, String> {
    let left = Cell::new(MAX_VALUES);
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = JsonSeed { depth: 0, left: &left }.deserialize(&mut reader).map_err(|error| error.to_string())?;
    reader.end().map_err(|error| error.to_string())?;
    Ok(value)
}

#[derive(Clone, Copy)]
struct JsonSeed<'a> {
    depth: usize,
    left: &'a Cell<usize>,
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
        match self.left.get().checked_sub(1) {
            Some(left) => self.left.set(left),
            None => return Err(D::Error::custom(format!("there are more than {MAX_VALUES} values"))),
        }
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
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
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

    #[test]
    fn values_come_in_as_they_were_written() {
        let text = r#"{"b":[1,-2,2.5,"x\n",null,true],"a":{}}"#;
        assert_eq!(parse(text.as_bytes()), Ok(json!({"b": [1, -2, 2.5, "x\n", null, true], "a": {}})));
        assert_eq!(parse(text.as_bytes()).expect("it is JSON").to_string(), text, "in their order");
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
        let fault = |text: &str| parse(text.as_bytes()).expect_err("it is refused");
        assert!(fault(r#"{"a":1,"b":{"c":1,"c":2}}"#).starts_with("the key `c` is given twice"));
        assert!(fault("{} {}").contains("trailing characters"));
        assert!(fault("{bad").contains("line 1 column 2"));
        assert!(fault("").contains("EOF"));
        assert!(fault(&"[".repeat(100)).contains("more than 64 levels deep"));
        assert!(fault(&format!("[{}0]", "0,".repeat(MAX_VALUES))).contains("more than 1000000 values"));
    }
}
