//! Values of JSON: which members differ, and where.

use std::collections::HashSet;

use serde_json::Value;

use crate::cause::{DifferenceCause, DifferenceKey};
use crate::compare::{DifferenceList, OwnNames, location};
use crate::secrets::{MASK, is_secret, masked};

/// How deep values are compared; below, they are equal or not.
const MAX_DEPTH: usize = 32;

pub(super) fn compare(old: &Value, new: &Value, names: [&OwnNames; 2], list: &mut DifferenceList) {
    let before = list.found.len();
    let mut walk = JsonWalk { names, list, seen: HashSet::new(), path: String::from("$") };
    walk.values(old, new, 0);
    // The values are equal, but not the bytes.
    if list.found.len() == before && old == new {
        list.add(DifferenceCause::BodyWriting, "", "", "");
    }
}

struct JsonWalk<'a> {
    names: [&'a OwnNames; 2],
    list: &'a mut DifferenceList,
    seen: HashSet<DifferenceKey>,
    /// As `$.items[].name`: which item of a list it is does not count.
    path: String,
}

impl JsonWalk<'_> {
    fn values(&mut self, old: &Value, new: &Value, depth: usize) {
        match (old, new) {
            (Value::Object(old), Value::Object(new)) if depth < MAX_DEPTH => {
                for (name, value) in old {
                    match new.get(name) {
                        Some(other) => self.within(&format!(".{name}"), |walk| walk.values(value, other, depth + 1)),
                        None => self.within(&format!(".{name}"), |walk| walk.member("missing", Some(value), None)),
                    }
                }
                for (name, value) in new.iter().filter(|(name, _)| !old.contains_key(*name)) {
                    self.within(&format!(".{name}"), |walk| walk.member("added", None, Some(value)));
                }
            }
            (Value::Array(old), Value::Array(new)) if depth < MAX_DEPTH => {
                self.within("[]", |walk| old.iter().zip(new).for_each(|(old, new)| walk.values(old, new, depth + 1)));
                if old.len() != new.len() {
                    let told = |items: usize| format!("{items} items");
                    let subject = format!("{} length", self.path);
                    self.list.add(DifferenceCause::BodyMembers, subject, told(old.len()), told(new.len()));
                }
            }
            (old, new) if std::mem::discriminant(old) != std::mem::discriminant(new) => {
                self.member("type", Some(old), Some(new));
            }
            (Value::String(old), Value::String(new)) => {
                let [old, new] =
                    [(old, 0), (new, 1)].map(|(text, side)| location::without_address(text, self.names[side]));
                if old != new {
                    self.value(&old, &new);
                }
            }
            (old, new) if old != new => self.value(&old.to_string(), &new.to_string()),
            _ => {}
        }
    }

    fn within(&mut self, part: &str, walk: impl FnOnce(&mut Self)) {
        let length = self.path.len();
        self.path.push_str(part);
        walk(self);
        self.path.truncate(length);
    }

    fn is_secret(&self) -> bool {
        self.path.split('.').any(|part| is_secret(part.trim_end_matches("[]")))
    }

    fn value(&mut self, old: &str, new: &str) {
        let told = |text: &str| if self.is_secret() { MASK.to_owned() } else { masked(text) };
        let (old, new) = (told(old), told(new));
        self.add(DifferenceCause::BodyValues, self.path.clone(), &old, &new);
    }

    fn member(&mut self, change: &str, old: Option<&Value>, new: Option<&Value>) {
        let is_secret = self.is_secret();
        let told = |value: Option<&Value>| match value {
            None => String::new(),
            Some(_) if is_secret => MASK.to_owned(),
            // A whole list or object may have secrets further down.
            Some(Value::Object(_)) => "an object".to_owned(),
            Some(Value::Array(_)) => "a list".to_owned(),
            Some(value) => masked(&value.to_string()),
        };
        self.add(DifferenceCause::BodyMembers, format!("{} {change}", self.path), &told(old), &told(new));
    }

    /// Once for each path: lists have the same difference in many items.
    fn add(&mut self, cause: DifferenceCause, subject: String, old: &str, new: &str) {
        if self.list.has_room() && self.seen.insert((cause, subject.clone())) {
            self.list.add(cause, subject, old, new);
        }
    }
}
