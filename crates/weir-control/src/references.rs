//! `$env://NAME` and `$env://NAME/member` in options of plugins (APISIX): the value of an environment variable, or a
//! member of the JSON it holds.
//!
//! Other than `${{NAME}}` they stand for one text each, so that no value can change what is around it.

use std::sync::Arc;

use serde_json::Value;

use crate::diagnostic::Diagnostic;
use crate::substitute::Lookup;
use crate::tree::{Entry, Kind, Node, Path, Step};

/// Puts values in for references. What cannot be found is a fault: the reference itself must not become the password.
pub(crate) fn resolve(source: &Arc<str>, tree: &mut Node, lookup: Lookup) -> Vec<Diagnostic> {
    let mut resolver = Resolver { source, lookup, faults: Vec::new() };
    resolver.node(tree, &Path::ROOT, false);
    resolver.faults
}

struct Resolver<'a> {
    source: &'a Arc<str>,
    lookup: Lookup<'a>,
    faults: Vec<Diagnostic>,
}

impl Resolver<'_> {
    fn node(&mut self, node: &mut Node, path: &Path<'_>, in_options: bool) {
        match &mut node.kind {
            Kind::Text(text) if in_options => match self.value(text) {
                None => {}
                Some(Ok(value)) => *text = value.into(),
                Some(Err((problem, advice))) => {
                    let fault = Diagnostic::at_place(self.source, node.place, problem).advise(advice);
                    self.faults.push(Diagnostic { path: path.to_string(), ..fault });
                }
            },
            Kind::List(items) => {
                for (index, item) in items.iter_mut().enumerate() {
                    self.node(item, &Path::below(path, Step::Index(index)), in_options);
                }
            }
            // The options of a plugin that is switched off may even be wrong.
            Kind::Map(entries) if in_options && is_disabled(entries) => {}
            Kind::Map(entries) => {
                for Entry { key, value, .. } in entries {
                    let in_options = in_options || matches!(&**key, "plugins" | "plugin_metadata");
                    self.node(value, &Path::below(path, Step::Key(key)), in_options);
                }
            }
            _ => {}
        }
    }

    /// What a text refers to; nothing if it is no reference.
    fn value(&self, text: &str) -> Option<Result<String, (String, String)>> {
        const SCHEME: &str = "$env://";
        let (scheme, reference) = text.split_at_checked(SCHEME.len())?;
        if !scheme.eq_ignore_ascii_case(SCHEME) {
            return None;
        }
        let (name, member) = match reference.split_once('/') {
            Some((name, member)) => (name, Some(member)),
            None => (reference, None),
        };
        let Some(value) = (self.lookup)(name) else {
            return Some(Err((format!("the environment variable `{name}` is not set"), "set it".to_owned())));
        };
        let Some(member) = member else { return Some(Ok(value)) };
        let json: Value = serde_json::from_str(&value).unwrap_or_default();
        Some(match member.split('/').try_fold(&json, |json, step| json.get(step)) {
            Some(Value::String(text)) => Ok(text.clone()),
            Some(found) if !found.is_object() && !found.is_array() && !found.is_null() => Ok(found.to_string()),
            _ => Err((
                format!("the environment variable `{name}` holds no JSON with a text `{member}`"),
                format!("write `$env://{name}` for all of it"),
            )),
        })
    }
}

fn is_disabled(entries: &[Entry]) -> bool {
    let meta = entries.iter().find(|entry| &*entry.key == "_meta");
    meta.and_then(|meta| meta.value.entry("disable")).is_some_and(|entry| entry.value.kind == Kind::Bool(true))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn resolved(value: Value) -> (Value, Vec<String>) {
        let mut tree = Node::from(value);
        let lookup = |name: &str| match name {
            "KEY" => Some("s3cret\": {".to_owned()),
            "JSON" => Some(r#"{"a": {"b": "deep", "n": 7}}"#.to_owned()),
            _ => None,
        };
        let faults = resolve(&"f".into(), &mut tree, &lookup);
        (tree.to_json(), faults.iter().map(Diagnostic::to_string).collect())
    }

    #[test]
    fn references_become_one_text_each() {
        let of = |options: Value| json!({"consumers": [{"plugins": {"key-auth": options}}]});
        assert_eq!(resolved(of(json!({"key": "$env://KEY"}))), (of(json!({"key": "s3cret\": {"})), vec![]));
        assert_eq!(
            resolved(of(json!({"a": ["$ENV://JSON/a/b", "$env://JSON/a/n", "x $env://KEY"]}))),
            (of(json!({"a": ["deep", "7", "x $env://KEY"]})), vec![])
        );
        let elsewhere = json!({"ssls": [{"cert": "$env://CERT"}]});
        assert_eq!(resolved(elsewhere.clone()), (elsewhere, vec![]));
        let off = of(json!({"key": "$env://NO", "_meta": {"disable": true}}));
        assert_eq!(resolved(off.clone()), (off, vec![]));
    }

    #[test]
    fn what_is_missing_is_a_fault_with_its_place() {
        let (_, faults) =
            resolved(json!({"plugin_metadata": [{"a": "$env://NO", "b": "$env://KEY/a", "c": "$env://JSON/a"}]}));
        assert_eq!(
            faults,
            [
                "f: plugin_metadata[0].a: the environment variable `NO` is not set; set it",
                "f: plugin_metadata[0].b: the environment variable `KEY` holds no JSON with a text `a`; write `$env://KEY` for all of it",
                "f: plugin_metadata[0].c: the environment variable `JSON` holds no JSON with a text `a`; write `$env://JSON` for all of it",
            ]
        );
    }
}
