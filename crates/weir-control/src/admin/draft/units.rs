//! Where hidden values may stand: in a resource, or a setting, that is as it is in the file. What is around a secret decides where it is
//! sent, and there is no telling which keys do; so none may change, besides a few.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use super::trees::environment_reference;
use crate::document::kinds;
use crate::text::diagnostic::Diagnostic;
use crate::text::tree::{NodeKind, TextPosition, TreeNode};

/// Keys of a resource that say nothing of where a secret in it goes. Private keys of certificates, which `snis` are for, go nowhere.
const MAY_CHANGE: [&str; 6] = ["desc", "labels", "name", "sni", "snis", "status"];
/// Settings that decide to whom a name leads, and who is trusted: with others, a secret would be sent elsewhere as well.
const WAYS: [&str; 4] = ["dns_resolver", "dns_resolver_valid", "ssl_trusted_certificate", "upstream_tls_verify"];
/// What has secrets that are not sent anywhere: private keys, and the keys of the Admin API.
const SENT_NOWHERE: [&str; 2] = ["ssls", "admin"];

/// What stands for secrets.
pub(super) struct HeldValues<'a> {
    /// How the words begin.
    pub word: &'static str,
    /// Variables of the environment.
    pub variables: &'a BTreeSet<Box<str>>,
}

impl HeldValues<'_> {
    fn are_in(&self, value: &Value) -> bool {
        match value {
            Value::String(text) => self.is_text(text),
            Value::Array(items) => items.iter().any(|item| self.are_in(item)),
            Value::Object(members) => members.iter().any(|(key, value)| self.is_text(key) || self.are_in(value)),
            _ => false,
        }
    }

    fn is_text(&self, text: &str) -> bool {
        text.contains(self.word) || environment_reference(text).is_some_and(|name| self.variables.contains(name))
    }
}

/// A resource, or the value of a setting.
struct DraftUnit<'t> {
    list: &'t str,
    /// Of a resource.
    index: Option<usize>,
    place: TextPosition,
    value: Value,
}

/// Refuses values that stand for secrets in what is not as it was before.
pub(super) fn refuse_moved(
    source: &Arc<str>,
    held: &HeldValues,
    before: &TreeNode,
    now: &TreeNode,
) -> Result<(), Diagnostic> {
    let mut known: Vec<Option<DraftUnit>> = units(before, held).map(Some).collect();
    let mut is_sent = false;
    for unit in units(now, held) {
        // Each once: a copy would be another one that has the secret.
        let same = known.iter_mut().find(|known| known.as_ref().is_some_and(|known| is_same(held, known, &unit)));
        let Some(same) = same else { return Err(moved(source, &unit)) };
        *same = None;
        is_sent |= !SENT_NOWHERE.contains(&unit.list);
    }
    let value = |tree: &TreeNode, way: &str| tree.entry(way).map(|entry| entry.value.to_json());
    let other = WAYS.iter().find(|way| is_sent && value(before, way) != value(now, way));
    let Some(way) = other else { return Ok(()) };
    let place = now.entry(way).map_or(now.place, |entry| entry.key_place);
    let problem = format!("`{way}` decides where secrets are sent, and this file has hidden ones");
    Err(Diagnostic::at_place(source, place, problem).advise("change it by hand, or write the secrets themselves"))
}

/// The units that have values that stand for secrets.
fn units<'t>(tree: &'t TreeNode, held: &HeldValues) -> impl Iterator<Item = DraftUnit<'t>> {
    let mut all = Vec::new();
    let mut add = |list: &'t str, index: Option<usize>, node: &TreeNode| {
        all.push(DraftUnit { list, index, place: node.place, value: node.to_json() });
    };
    match &tree.kind {
        NodeKind::Map(entries) => {
            for entry in entries {
                match &entry.value.kind {
                    NodeKind::List(items) if kinds::find(&entry.key).is_some() => {
                        items.iter().enumerate().for_each(|(index, item)| add(&entry.key, Some(index), item));
                    }
                    _ => add(&entry.key, None, &entry.value),
                }
            }
        }
        _ => add("", None, tree),
    }
    let holding: Vec<DraftUnit> =
        all.into_iter().filter(|unit| held.is_text(unit.list) || held.are_in(&unit.value)).collect();
    holding.into_iter()
}

fn is_same(held: &HeldValues, before: &DraftUnit, now: &DraftUnit) -> bool {
    if before.list != now.list || before.index.is_some() != now.index.is_some() {
        return false;
    }
    match (&before.value, &now.value) {
        (Value::Object(old), Value::Object(new)) if now.index.is_some() => {
            let is_free = |key: &str| {
                MAY_CHANGE.contains(&key)
                    && (old.get(key) == new.get(key) || !new.get(key).is_some_and(|new| held.are_in(new)))
            };
            let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
            keys.into_iter().all(|key| is_free(key) || old.get(key) == new.get(key))
        }
        (old, new) => old == new,
    }
}

fn moved(source: &Arc<str>, unit: &DraftUnit) -> Diagnostic {
    let list = unit.list;
    let problem = match unit.index {
        Some(index) => format!(
            "a hidden value of `{list}[{index}]` stands for the secret in the file only once, and as long as nothing else of this \
             resource changes, besides {}",
            MAY_CHANGE.map(|key| format!("`{key}`")).join(", ")
        ),
        None => format!(
            "a hidden value of `{list}` stands for the secret in the file only as long as nothing else below `{list}` changes"
        ),
    };
    let path = unit.index.map_or_else(|| list.to_owned(), |index| format!("{list}[{index}]"));
    let fault = Diagnostic::at_place(source, unit.place, problem);
    Diagnostic { path, ..fault.advise("write the secret itself, or leave the rest as it is") }
}
