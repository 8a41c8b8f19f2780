//! The kinds of values that keys have. A kind reads a value within its bounds, and describes itself in JSON Schema.

mod collections;
mod numbers;
mod special;
mod texts;

use serde_json::{Map, Value, json};

use super::KeyTable;
use super::schema::Definitions;
use crate::text::read::NodeReader;

pub use collections::{DistinctList, List, MapOf, SubMap, list, map_of, section, set};
pub use numbers::{AnyWhole, ByteSize, Flag, Time, Whole, any_time, any_whole, flag, size, time, whole};
pub use special::{Anything, Custom, Form, RefusedKey, anything, custom, form, refused};
pub use texts::{ParsedText, Text, Words, WrittenPath, any_text, text, words, written};

/// The kind of a value.
pub trait Kind: Sync {
    type Value;

    /// The value; `None` after a fault, which is reported.
    fn read(&self, at: &NodeReader) -> Option<Self::Value>;

    fn schema(&self, definitions: &mut Definitions) -> Map<String, Value>;

    /// For the reference: `whole number, 0 to 1000`.
    fn form(&self) -> String;

    fn inner(&self) -> Option<&'static KeyTable> {
        None
    }

    /// The list of resources that the value is an id of.
    fn refers_to(&self) -> Option<&'static str> {
        None
    }

    fn refusal(&self) -> Option<&RefusedKey> {
        None
    }

    /// The words of which one is the value.
    fn words(&self) -> Vec<&'static str> {
        Vec::new()
    }

    /// The value that applies if the key is absent, as it would be written.
    fn default(&self) -> Option<Value> {
        None
    }
}

/// A kind whose values can be a default.
pub trait WithDefault: Kind {
    type Default: Copy + Sync;

    fn value(&self, default: Self::Default) -> Self::Value;

    /// As it would be written.
    fn written(&self, default: Self::Default) -> Value;
}

/// A kind with a default, which applies if the key is absent.
pub struct Or<K: WithDefault> {
    kind: K,
    default: K::Default,
}

impl<K: WithDefault> Or<K> {
    pub(super) fn or_default(&self, found: Option<K::Value>) -> K::Value {
        found.unwrap_or_else(|| self.kind.value(self.default))
    }
}

impl<K: WithDefault> Kind for Or<K> {
    type Value = K::Value;

    fn read(&self, at: &NodeReader) -> Option<K::Value> {
        self.kind.read(at)
    }

    fn schema(&self, definitions: &mut Definitions) -> Map<String, Value> {
        self.kind.schema(definitions)
    }

    fn form(&self) -> String {
        self.kind.form()
    }

    fn inner(&self) -> Option<&'static KeyTable> {
        self.kind.inner()
    }

    fn words(&self) -> Vec<&'static str> {
        self.kind.words()
    }

    fn default(&self) -> Option<Value> {
        Some(self.kind.written(self.default))
    }
}

/// The members of a JSON object.
fn members(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(members) => members,
        other => Map::from_iter([("const".to_owned(), other)]),
    }
}

/// A schema for a number or a text.
fn number_or_text(number: Value, text: Value, unit: &str) -> Map<String, Value> {
    members(json!({ "oneOf": [number, text], "x-weir-unit": unit }))
}
