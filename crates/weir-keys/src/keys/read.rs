//! Reads maps by the declarations of their keys.

use super::kinds::{Kind, Or, SubMap, WithDefault};
use super::{AnyKey, DeclaredKey, KeyRule, KeyTable, MapKeys};
use crate::text::read::{KeyName, MapReader, NodeReader, keys_advice};
use crate::text::tree::NodeKind;

impl<K> KeyName for DeclaredKey<K> {
    fn name(&self) -> &str {
        self.about.name
    }

    fn is_secret(&self) -> bool {
        self.about.is_secret
    }
}

impl<'a> NodeReader<'a> {
    /// The fields of a map with these keys. Unknown and refused keys, missing ones and broken rules are reported.
    pub fn keys(&'a self, keys: &impl MapKeys) -> Option<MapReader<'a>> {
        self.map_of(keys.table())
    }

    /// Like [`NodeReader::keys`], by the table of the keys.
    pub fn map_of(&'a self, table: &'static KeyTable) -> Option<MapReader<'a>> {
        self.map_with(table, &[])
    }

    /// Like [`NodeReader::map_of`], for a map that has `further` keys, which are declared elsewhere.
    pub fn map_with(&'a self, table: &'static KeyTable, further: &[&'static str]) -> Option<MapReader<'a>> {
        let fields = self.map_advising(table.name, &|| map_advice(table))?;
        let known = || table.keys().map(|key| key.about().name).chain(further.iter().copied()).collect();
        self.report_unknown(&known, |name| table.find(name).is_some() || further.contains(&name));
        for key in fields.names().filter_map(|name| table.find(name)) {
            check_effect(key, table, &fields);
            if let Some(refused) = key.refusal()
                && let Some(at) = fields.find(key.about().name)
            {
                refused.report(&at);
            }
        }
        for key in table.keys() {
            if let Some(advice) = key.about().required
                && fields.find(key.about().name).is_none()
            {
                self.report_advising(format!("has no `{}`", key.about().name), advice);
            }
        }
        table.rules.iter().for_each(|rule| check(rule, &fields));
        Some(fields)
    }
}

/// What to write in place of what is no map.
fn map_advice(table: &KeyTable) -> Option<String> {
    let of_rules = table.rules.iter().find_map(|rule| match rule {
        KeyRule::All { advice, .. } => Some((*advice).to_owned()),
        _ => None,
    });
    let required: Vec<String> = table
        .keys()
        .filter(|key| key.about().required.is_some())
        .map(|key| format!("{}: …", key.about().name))
        .collect();
    let of_required = (!required.is_empty()).then(|| format!("write `{{ {} }}`", required.join(", ")));
    of_rules.or(of_required).or_else(|| {
        let names: Vec<&str> = table.keys().map(|key| key.about().name).collect();
        keys_advice(&names)
    })
}

/// Reports a key that has no effect, because of the value of another one. If that value is wrong, this is not known.
fn check_effect(key: &dyn AnyKey, table: &KeyTable, fields: &MapReader) {
    let Some((other, words)) = key.about().only_if else { return };
    let Some(known) = table.find(other) else { return };
    let word = match fields.find(other).as_ref().map(|at| &at.node().kind) {
        Some(NodeKind::Text(word)) => word.to_string(),
        Some(_) => return,
        None => known.default().and_then(|default| default.as_str().map(str::to_owned)).unwrap_or_default(),
    };
    if known.words().contains(&&*word)
        && !words.contains(&&*word)
        && let Some(at) = fields.find(key.about().name)
    {
        let when: Vec<String> = words.iter().map(|word| format!("`{other}: {word}`")).collect();
        let problem = format!("has an effect with {} only", when.join(" or "));
        at.report_advising(problem, format!("leave it out, or write {}", when[0]));
    }
}

fn check(rule: &KeyRule, fields: &MapReader) {
    match rule {
        KeyRule::ExactlyOne(one, other) => drop(fields.exactly_one(one, other)),
        KeyRule::AtMostOne(one, other) => drop(fields.at_most_one(one, other)),
        KeyRule::AnyOf { keys, problem, advice } => {
            if !keys.iter().any(|key| fields.find(key).is_some()) {
                fields.at().report_advising(*problem, *advice);
            }
        }
        KeyRule::All { keys, problem, advice } => {
            if keys.iter().any(|key| fields.find(key).is_none()) {
                fields.at().report_advising(*problem, *advice);
            }
        }
        KeyRule::Together(one, other) => {
            if fields.find(one).is_some() != fields.find(other).is_some() {
                let problem = format!("has only one of `{one}` and `{other}`");
                fields.at().report_advising(problem, "write both, or neither");
            }
        }
    }
}

impl MapReader<'_> {
    /// The value of a key; `None` if it is absent or wrong.
    pub fn read<K: Kind>(&self, key: &DeclaredKey<K>) -> Option<K::Value> {
        key.kind.read(&self.get(key)?)
    }

    /// The value of a section. An absent one is read as an empty map, so that the defaults in it apply.
    pub fn section<T>(&self, key: &DeclaredKey<SubMap<T>>) -> Option<T> {
        let found = self.read(key);
        found.or_else(|| key.kind.of_map(&self.at().empty_map()))
    }

    /// The value of a key, or its default.
    pub fn value<K: WithDefault>(&self, key: &DeclaredKey<Or<K>>) -> K::Value {
        key.kind.or_default(self.read(key))
    }
}
