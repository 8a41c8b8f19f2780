//! References in options of plugins to values kept elsewhere (APISIX): `$env://NAME` and `$env://NAME/member`, the value of an
//! environment variable or a member of the JSON in it, and `$secret://vault/ID/PATH/KEY`.
//!
//! Unlike `${{NAME}}`, each stands for one whole text, so that its value cannot change the structure around it.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::data_encryption::{UNREADABLE, unreadable};
use crate::text::diagnostic::{Diagnostic, FaultCause};
use crate::text::substitute::VariableLookup;
use crate::text::tree::{MapEntry, NodeKind, PathStep, TextPosition, TreeNode, TreePath};

/// Replaces references to the environment by their values. A reference that cannot be resolved is a fault: the text of the
/// reference must not become the password.
pub(crate) fn resolve(source: &Arc<str>, tree: &mut TreeNode, lookup: VariableLookup) -> Vec<Diagnostic> {
    replace(source, tree, &mut |text, _, _| variable(text, lookup))
}

/// A reference to a text that is kept by a secret manager.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SecretReference {
    /// The manager's id, such as `vault/1`.
    pub manager: Box<str>,
    /// The path of the secret, which may have several keys.
    pub path: Box<str>,
    /// The key of the text in the secret.
    pub key: Box<str>,
}

/// A reference to a secret, with its place.
#[derive(Clone, Debug)]
pub(crate) struct PlacedReference {
    pub(crate) secret: SecretReference,
    pub(crate) path: String,
    pub(crate) place: TextPosition,
}

/// The references to secrets in options. An incomplete reference is a fault.
pub(crate) fn secrets(source: &Arc<str>, tree: &mut TreeNode) -> (Vec<PlacedReference>, Vec<Diagnostic>) {
    let mut found = Vec::new();
    let faults = replace(source, tree, &mut |text, place, path| match SecretReference::parse(text)? {
        Ok(secret) => {
            found.push(PlacedReference { secret, path: path.to_string(), place });
            None
        }
        Err(fault) => Some(Err(fault)),
    });
    (found, faults)
}

/// Whether the value at a path of options, such as `auth.password` or `keys[0]`, is a reference to a secret.
pub(crate) fn is_secret(options: &Value, path: &str) -> bool {
    let step = |value, step: &str| match step.parse::<usize>() {
        Ok(index) => Value::get(value, index).or_else(|| value.get(step)),
        Err(_) => value.get(step),
    };
    let mut steps = path.split(['.', '[', ']']).filter(|step| !step.is_empty());
    let found = steps.try_fold(options, step).and_then(Value::as_str);
    found.is_some_and(|text| after(text, "$secret://").is_some())
}

/// Returns the value of a secret, or why it cannot be read.
pub(crate) type SecretLookup<'a> = &'a dyn Fn(&SecretReference) -> Result<String, String>;

/// Replaces references to secrets by their values.
pub(crate) fn put_secrets(source: &Arc<str>, tree: &mut TreeNode, value: SecretLookup) -> Vec<Diagnostic> {
    replace(source, tree, &mut |text, _, _| match SecretReference::parse(text)? {
        Ok(secret) => Some(value(&secret).map_err(|problem| {
            (format!("the secret `{}/{}` cannot be read: {problem}", secret.path, secret.key), String::new(), OUTSIDE)
        })),
        Err(fault) => Some(Err(fault)),
    })
}

/// A problem, an advice, and where the cause is.
type ReferenceFault = (String, String, FaultCause);

const TEXT: FaultCause = FaultCause::Text;
const OUTSIDE: FaultCause = FaultCause::Outside;

impl SecretReference {
    /// `None` if the text is not a reference to a secret.
    fn parse(text: &str) -> Option<Result<SecretReference, ReferenceFault>> {
        let reference = after(text, "$secret://")?;
        let parts: Vec<&str> = reference.split('/').collect();
        Some(match parts.as_slice() {
            [kind, id, path @ .., key] if !path.is_empty() && parts.iter().all(|part| !part.is_empty()) => {
                Ok(SecretReference {
                    manager: format!("{kind}/{id}").into(),
                    path: path.join("/").into(),
                    key: (*key).into(),
                })
            }
            _ => Err((
                "is not a reference to a secret".to_owned(),
                "write as `$secret://vault/1/path/key`".to_owned(),
                TEXT,
            )),
        })
    }

    /// The value of the key in what the manager returned for the path.
    pub(crate) fn of(&self, kept: &Map<String, Value>) -> Result<String, String> {
        match kept.get(&*self.key) {
            Some(Value::String(text)) => Ok(text.clone()),
            Some(value @ (Value::Number(_) | Value::Bool(_))) => Ok(value.to_string()),
            Some(_) => Err(format!("the key `{}` is not text", self.key)),
            None => Err(format!("there is no key `{}`", self.key)),
        }
    }
}

/// The text after the scheme, which is compared without regard to case.
fn after<'t>(text: &'t str, scheme: &str) -> Option<&'t str> {
    let (start, rest) = text.split_at_checked(scheme.len())?;
    start.eq_ignore_ascii_case(scheme).then_some(rest)
}

/// The value of a reference to the environment; `None` if the text is no such reference. Ciphertext is refused here as well, so
/// that it does not become the password.
fn variable(text: &str, lookup: VariableLookup) -> Option<Result<String, ReferenceFault>> {
    if text.starts_with(UNREADABLE) {
        let (problem, advice) = unreadable();
        return Some(Err((problem, advice, TEXT)));
    }
    let reference = after(text, "$env://")?;
    let (name, member) = match reference.split_once('/') {
        Some((name, member)) => (name, Some(member)),
        None => (reference, None),
    };
    let Some(value) = lookup(name) else {
        return Some(Err((format!("the environment variable `{name}` is not set"), "set it".to_owned(), OUTSIDE)));
    };
    let Some(member) = member else { return Some(Ok(value)) };
    let json: Value = serde_json::from_str(&value).unwrap_or_default();
    Some(match member.split('/').try_fold(&json, |json, step| json.get(step)) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(found) if !found.is_object() && !found.is_array() && !found.is_null() => Ok(found.to_string()),
        _ => Err((
            format!("the environment variable `{name}` is not JSON with a text `{member}`"),
            format!("write `$env://{name}` for the whole value"),
            OUTSIDE,
        )),
    })
}

/// Returns the value that a text refers to, or a fault; `None` leaves the text as it is.
type ReferenceMeaning<'a> =
    &'a mut dyn FnMut(&str, TextPosition, &TreePath<'_>) -> Option<Result<String, ReferenceFault>>;

fn replace(source: &Arc<str>, tree: &mut TreeNode, meaning: ReferenceMeaning) -> Vec<Diagnostic> {
    let mut resolver = ReferenceResolver { source, meaning, faults: Vec::new() };
    resolver.node(tree, &TreePath::ROOT, false);
    resolver.faults
}

struct ReferenceResolver<'a> {
    source: &'a Arc<str>,
    meaning: ReferenceMeaning<'a>,
    faults: Vec<Diagnostic>,
}

impl ReferenceResolver<'_> {
    fn node(&mut self, node: &mut TreeNode, path: &TreePath<'_>, in_options: bool) {
        match &mut node.kind {
            NodeKind::Text(text) if in_options => match (self.meaning)(text, node.place, path) {
                None => {}
                Some(Ok(value)) => *text = value.into(),
                Some(Err((problem, advice, cause))) => {
                    let fault = Diagnostic::at_place(self.source, node.place, problem);
                    let fault = if advice.is_empty() { fault } else { fault.advise(advice) };
                    self.faults.push(Diagnostic { path: path.to_string(), cause, ..fault });
                }
            },
            NodeKind::List(items) => {
                for (index, item) in items.iter_mut().enumerate() {
                    self.node(item, &TreePath::below(path, PathStep::Index(index)), in_options);
                }
            }
            // Options of a disabled plugin may be invalid, so they are skipped.
            NodeKind::Map(entries) if in_options && is_disabled(entries) => {}
            NodeKind::Map(entries) => {
                for MapEntry { key, value, .. } in entries {
                    let in_options = in_options || matches!(&**key, "plugins" | "plugin_metadata" | "secrets");
                    self.node(value, &TreePath::below(path, PathStep::Key(key)), in_options);
                }
            }
            _ => {}
        }
    }
}

fn is_disabled(entries: &[MapEntry]) -> bool {
    let meta = entries.iter().find(|entry| &*entry.key == "_meta");
    meta.and_then(|meta| meta.value.entry("disable")).is_some_and(|entry| entry.value.kind == NodeKind::Bool(true))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn resolved(value: Value) -> (Value, Vec<String>) {
        let mut tree = TreeNode::from(value);
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
    fn secrets_are_named_by_their_manager_their_path_and_their_key() {
        let (source, options) =
            ("f".into(), json!({"plugins": {"a": ["$secret://vault/1/jack/auth/key", "$SECRET://vault/1/key"]}}));
        let mut tree = TreeNode::from(options);
        let (found, faults) = secrets(&source, &mut tree);
        let secret = SecretReference { manager: "vault/1".into(), path: "jack/auth".into(), key: "key".into() };
        let found: Vec<_> = found.iter().map(|found| (&found.secret, &*found.path)).collect();
        assert_eq!(found, [(&secret, "plugins.a[0]")]);
        let faults: Vec<String> = faults.iter().map(Diagnostic::to_string).collect();
        assert_eq!(faults, ["f: plugins.a[1]: is not a reference to a secret; write as `$secret://vault/1/path/key`"]);
        let mut tree =
            TreeNode::from(json!({"plugins": {"a": "$secret://vault/1/jack/auth/key", "b": "$secret://vault/1/x/y"}}));
        let value = |asked: &SecretReference| {
            if *asked == secret { Ok("s3cret".to_owned()) } else { Err("no such secret".to_owned()) }
        };
        let faults: Vec<String> = put_secrets(&source, &mut tree, &value).iter().map(Diagnostic::to_string).collect();
        assert_eq!(tree.to_json()["plugins"]["a"], "s3cret");
        assert_eq!(faults, ["f: plugins.b: the secret `x/y` cannot be read: no such secret"]);
    }

    #[test]
    fn secrets_are_found_by_their_path() {
        let options = json!({"key": "$secret://vault/1/a/b", "list": [{"a": "x"}, {"a": "$SECRET://vault/1/a/b"}]});
        for (path, want) in [("key", true), ("list[1].a", true), ("list[0].a", false), ("list", false), ("", false)] {
            assert_eq!(is_secret(&options, path), want, "{path}");
        }
    }

    #[test]
    fn what_is_missing_is_a_fault_with_its_place() {
        let (_, faults) =
            resolved(json!({"plugin_metadata": [{"a": "$env://NO", "b": "$env://KEY/a", "c": "$env://JSON/a"}]}));
        assert_eq!(
            faults,
            [
                "f: plugin_metadata[0].a: the environment variable `NO` is not set; set it",
                "f: plugin_metadata[0].b: the environment variable `KEY` is not JSON with a text `a`; \
                 write `$env://KEY` for the whole value",
                "f: plugin_metadata[0].c: the environment variable `JSON` is not JSON with a text `a`; \
                 write `$env://JSON` for the whole value",
            ]
        );
    }
}
