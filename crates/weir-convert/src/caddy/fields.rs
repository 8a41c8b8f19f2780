//! Changes of header fields, converted to options of plugins.

use crate::yaml::{Yaml, YamlMembers};

/// Changes of header fields, as in `headers` of a plugin.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct FieldChanges {
    add: YamlMembers,
    set: YamlMembers,
    remove: Vec<String>,
    /// Fields that are set if the response does not have them.
    default: YamlMembers,
    /// Rules for the requests to whose responses the changes apply; empty: all.
    pub vars: Vec<Yaml>,
}

/// The kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldKind {
    Add,
    Set,
    /// Set if the message has no such field.
    Default,
}

impl FieldChanges {
    pub(super) fn change(&mut self, kind: FieldKind, name: &str, value: String) {
        match kind {
            FieldKind::Add => self.add.push((name.to_owned(), Yaml::Text(value))),
            FieldKind::Default => self.default.push((name.to_owned(), Yaml::Text(value))),
            FieldKind::Set => self.set(name, value),
        }
    }

    fn set(&mut self, name: &str, value: String) {
        self.remove.retain(|known| !known.eq_ignore_ascii_case(name));
        for list in [&mut self.set, &mut self.add, &mut self.default] {
            list.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        }
        self.set.push((name.to_owned(), Yaml::Text(value)));
    }

    pub(super) fn remove(&mut self, name: &str) {
        for list in [&mut self.set, &mut self.add] {
            list.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        }
        self.remove.push(name.to_owned());
    }

    /// A field that is set by default cannot be combined with other changes. If it is, drops all such fields, and returns the
    /// name of the first one.
    pub(super) fn without_mixed_defaults(&mut self) -> Option<String> {
        let is_mixed = self.headers().is_some() && !self.default.is_empty() || self.default.len() > 1;
        if is_mixed { self.default.drain(..).next().map(|(name, _)| name) } else { None }
    }

    /// The option `headers` of `proxy-rewrite` or `response-rewrite`.
    pub(super) fn headers(&self) -> Option<Yaml> {
        let mut members = YamlMembers::new();
        for (name, list) in [("add", &self.add), ("set", &self.set)] {
            if !list.is_empty() {
                members.push((name.to_owned(), Yaml::Map(list.clone())));
            }
        }
        if !self.remove.is_empty() {
            members.push(("remove".to_owned(), Yaml::texts(&self.remove)));
        }
        (!members.is_empty()).then_some(Yaml::Map(members))
    }

    /// The plugin `response-rewrite` with these changes.
    pub(super) fn response_rewrite(&self) -> Option<(String, Yaml)> {
        let options = match (self.headers(), self.default.as_slice()) {
            (Some(headers), _) if self.vars.is_empty() => vec![("headers".to_owned(), headers)],
            (Some(headers), _) => {
                vec![("headers".to_owned(), headers), ("vars".to_owned(), Yaml::List(self.vars.clone()))]
            }
            (None, [(name, value)]) => {
                let variable = format!("sent_http_{}", super::placeholder::field_variable(name));
                let rule = Yaml::List(vec![Yaml::text(variable), Yaml::text("=="), Yaml::Null]);
                let set = Yaml::Map(vec![(name.clone(), value.clone())]);
                vec![("headers".to_owned(), Yaml::map([("set", set)])), ("vars".to_owned(), Yaml::List(vec![rule]))]
            }
            (None, _) => return None,
        };
        Some(("response-rewrite".to_owned(), Yaml::Map(options)))
    }
}
