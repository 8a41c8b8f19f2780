//! Lists, and maps with keys of their own.

use std::hash::Hash;

use serde_json::{Map, Value, json};

use super::numbers::WholeNumber;
use super::{Kind, Or, Whole, WithDefault, members};
use crate::keys::schema::Definitions;
use crate::keys::{KeyTable, MapKeys};
use crate::text::read::{MapReader, NodeReader};
use crate::text::tree::MapEntry;

/// A list, whose wrong items are left out.
pub struct List<K> {
    item: K,
    /// What to do about an empty list, if it is not allowed.
    if_empty: Option<&'static str>,
}

pub const fn list<K: Kind>(item: K) -> List<K> {
    List { item, if_empty: None }
}

impl<K: Kind> List<K> {
    /// The list must have an item.
    pub const fn not_empty(mut self, advice: &'static str) -> List<K> {
        self.if_empty = Some(advice);
        self
    }
}

impl<K: Kind> Kind for List<K> {
    type Value = Vec<K::Value>;

    fn read(&self, at: &NodeReader) -> Option<Vec<K::Value>> {
        if let Some(advice) = self.if_empty
            && at.is_list()
            && at.items().next().is_none()
        {
            at.report_advising("is empty", advice);
        }
        Some(at.items().filter_map(|item| self.item.read(&item)).collect())
    }

    fn schema(&self, definitions: &mut Definitions) -> Map<String, Value> {
        let mut schema = members(json!({ "type": "array", "items": self.item.schema(definitions) }));
        if self.if_empty.is_some() {
            schema.insert("minItems".to_owned(), 1.into());
        }
        schema
    }

    fn form(&self) -> String {
        format!("list: {}", self.item.form())
    }

    fn inner(&self) -> Option<&'static KeyTable> {
        self.item.inner()
    }
}

impl<T: WholeNumber> List<Whole<T>> {
    pub const fn or(self, default: &'static [T]) -> Or<List<Whole<T>>> {
        Or { kind: self, default }
    }
}

impl<T: WholeNumber + 'static> WithDefault for List<Whole<T>> {
    type Default = &'static [T];

    fn value(&self, default: &'static [T]) -> Vec<T> {
        default.to_vec()
    }

    fn written(&self, default: &'static [T]) -> Value {
        default.iter().map(|item| Value::from((*item).into())).collect()
    }
}

/// A list that is not empty and has each item once.
pub struct DistinctList<K> {
    item: K,
    may_be_empty: bool,
}

pub const fn set<K: Kind>(item: K) -> DistinctList<K> {
    DistinctList { item, may_be_empty: false }
}

impl<K> DistinctList<K> {
    pub const fn may_be_empty(mut self) -> DistinctList<K> {
        self.may_be_empty = true;
        self
    }
}

impl<K: Kind<Value: Clone + Eq + Hash>> Kind for DistinctList<K> {
    type Value = Vec<K::Value>;

    fn read(&self, at: &NodeReader) -> Option<Vec<K::Value>> {
        if self.may_be_empty && at.is_list() && at.items().next().is_none() {
            return Some(Vec::new());
        }
        Some(at.distinct(|item| self.item.read(item)))
    }

    fn schema(&self, definitions: &mut Definitions) -> Map<String, Value> {
        let items = self.item.schema(definitions);
        let least = u32::from(!self.may_be_empty);
        members(json!({ "type": "array", "items": items, "minItems": least, "uniqueItems": true }))
    }

    fn form(&self) -> String {
        format!("list: {}", self.item.form())
    }

    fn inner(&self) -> Option<&'static KeyTable> {
        self.item.inner()
    }
}

/// A map with arbitrary keys, whose wrong values are left out.
pub struct MapOf<K> {
    value: K,
}

pub const fn map_of<K: Kind>(value: K) -> MapOf<K> {
    MapOf { value }
}

impl<K: Kind> Kind for MapOf<K> {
    type Value = Vec<(Box<str>, K::Value)>;

    fn read(&self, at: &NodeReader) -> Option<Self::Value> {
        let value = |entry: &MapEntry| Some((entry.key.clone(), self.value.read(&at.below(entry))?));
        Some(at.entries()?.iter().filter_map(value).collect())
    }

    fn schema(&self, definitions: &mut Definitions) -> Map<String, Value> {
        members(json!({ "type": "object", "additionalProperties": self.value.schema(definitions) }))
    }

    fn form(&self) -> String {
        format!("map: names to {}", self.value.form())
    }

    fn inner(&self) -> Option<&'static KeyTable> {
        self.value.inner()
    }
}

/// A map with keys of its own.
pub struct SubMap<T> {
    keys: &'static dyn MapKeys,
    read: fn(&MapReader) -> Option<T>,
}

pub const fn section<T>(keys: &'static dyn MapKeys, read: fn(&MapReader) -> Option<T>) -> SubMap<T> {
    SubMap { keys, read }
}

impl<T> SubMap<T> {
    pub(crate) fn of_map(&self, fields: &MapReader) -> Option<T> {
        (self.read)(fields)
    }
}

impl<T> Kind for SubMap<T> {
    type Value = T;

    fn read(&self, at: &NodeReader) -> Option<T> {
        (self.read)(&at.map_of(self.keys.table())?)
    }

    fn schema(&self, definitions: &mut Definitions) -> Map<String, Value> {
        members(json!({ "$ref": definitions.reference(self.keys.table()) }))
    }

    fn form(&self) -> String {
        "map".to_owned()
    }

    fn inner(&self) -> Option<&'static KeyTable> {
        Some(self.keys.table())
    }
}
