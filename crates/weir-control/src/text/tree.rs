//! A configuration as written: a tree of values, each knowing its place in the text.

use std::fmt;

use serde_json::{Map, Number, Value};

/// Line and column of a value or a key, both from 1. Zero where there is no text (a document that came as JSON values).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Place {
    pub line: u32,
    /// Counted in characters.
    pub column: u32,
}

impl Place {
    pub fn known(self) -> bool {
        self.line > 0
    }
}

/// A value and where it stands. What an alias stands for keeps the place where it was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub place: Place,
    pub kind: Kind,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    Null,
    Bool(bool),
    Number(Number),
    Text(Box<str>),
    List(Vec<Node>),
    /// In the order of the text; keys are unique.
    Map(Vec<Entry>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub key: Box<str>,
    pub key_place: Place,
    pub value: Node,
}

impl Node {
    /// The entry of a map; nothing for what is no map.
    pub fn entry(&self, key: &str) -> Option<&Entry> {
        match &self.kind {
            Kind::Map(entries) => entries.iter().find(|entry| &*entry.key == key),
            _ => None,
        }
    }

    /// The same value without places.
    pub fn to_json(&self) -> Value {
        match &self.kind {
            Kind::Null => Value::Null,
            Kind::Bool(value) => Value::Bool(*value),
            Kind::Number(value) => Value::Number(value.clone()),
            Kind::Text(value) => Value::String(value.to_string()),
            Kind::List(items) => Value::Array(items.iter().map(Node::to_json).collect()),
            Kind::Map(entries) => {
                let mut map = Map::with_capacity(entries.len());
                map.extend(entries.iter().map(|entry| (entry.key.to_string(), entry.value.to_json())));
                Value::Object(map)
            }
        }
    }

    /// How many values the tree holds, itself included.
    pub fn size(&self) -> usize {
        1 + match &self.kind {
            Kind::List(items) => items.iter().map(Node::size).sum(),
            Kind::Map(entries) => entries.iter().map(|entry| entry.value.size()).sum(),
            _ => 0,
        }
    }

    /// The place of a value inside this one, named as in `limits[0].count`; of the deepest part of the path that exists.
    pub fn place_of(&self, path: &str) -> Place {
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

    fn step(&self, step: &str) -> Option<&Node> {
        match &self.kind {
            Kind::List(items) => items.get(step.parse::<usize>().ok()?),
            _ => self.entry(step).map(|entry| &entry.value),
        }
    }
}

impl From<Value> for Node {
    fn from(value: Value) -> Self {
        let kind = match value {
            Value::Null => Kind::Null,
            Value::Bool(value) => Kind::Bool(value),
            Value::Number(value) => Kind::Number(value),
            Value::String(value) => Kind::Text(value.into()),
            Value::Array(items) => Kind::List(items.into_iter().map(Node::from).collect()),
            Value::Object(map) => Kind::Map(
                map.into_iter()
                    .map(|(key, value)| Entry { key: key.into(), key_place: Place::default(), value: value.into() })
                    .collect(),
            ),
        };
        Node { place: Place::default(), kind }
    }
}

/// Where a reader stands in the tree. A chain on the stack: it costs nothing until a diagnostic prints it.
#[derive(Clone, Copy, Debug)]
pub struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    step: Step<'a>,
}

#[derive(Clone, Copy, Debug)]
pub enum Step<'a> {
    Root,
    Key(&'a str),
    Index(usize),
}

impl<'a> Path<'a> {
    pub const ROOT: Path<'static> = Path { parent: None, step: Step::Root };

    pub fn below(parent: &'a Path<'a>, step: Step<'a>) -> Self {
        Path { parent: Some(parent), step }
    }

    /// What a key adds to a path that is not empty.
    pub fn suffix(key: &str) -> String {
        if is_plain(key) { format!(".{key}") } else { format!("[{key:?}]") }
    }

    fn is_root(&self) -> bool {
        matches!(self.step, Step::Root)
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
        }
        let first = self.parent.is_none_or(Path::is_root);
        match self.step {
            Step::Root => Ok(()),
            Step::Index(index) => write!(f, "[{index}]"),
            Step::Key(key) if first && is_plain(key) => f.write_str(key),
            Step::Key(key) => f.write_str(&Path::suffix(key)),
        }
    }
}

/// Keys such as `127.0.0.1:80` would make a path ambiguous and are quoted.
fn is_plain(key: &str) -> bool {
    !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_read_as_one_would_write_them() {
        let root = Path::ROOT;
        let routes = Path::below(&root, Step::Key("routes"));
        let second = Path::below(&routes, Step::Index(2));
        let nodes = Path::below(&second, Step::Key("nodes"));
        assert_eq!(root.to_string(), "");
        assert_eq!(nodes.to_string(), "routes[2].nodes");
        assert_eq!(Path::below(&nodes, Step::Key("[::1]:80")).to_string(), "routes[2].nodes[\"[::1]:80\"]");
    }

    #[test]
    fn json_comes_back_as_it_went_in() {
        let value = json!({ "b": [1, -2.5, "x", null], "a": { "": true } });
        assert_eq!(Node::from(value.clone()).to_json(), value);
        assert_eq!(Node::from(value).size(), 8);
    }
}
