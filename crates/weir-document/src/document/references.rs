//! References in options of plugins to values kept elsewhere (APISIX): `$env://NAME` and `$env://NAME/member`, the value of an
//! environment variable or a member of the JSON in it, and `$secret://vault/ID/PATH/KEY`.
//!
//! Unlike `${{NAME}}`, each stands for one whole text, so that its value cannot change the structure around it.

use std::sync::Arc;

use serde_json::Value;

use super::RESOURCE_LISTS;
use super::data_encryption::{UNREADABLE, unreadable};
use super::resolved_texts::ResolvedText;
use super::resource_access::ResourceAccess;
use super::secret_reference::{ReferenceFault, SecretReference, UnreadSecret, after};
use crate::text::diagnostic::{Diagnostic, FaultCause};
use crate::text::substitute::VariableLookup;
use crate::text::tree::{MapEntry, NodeKind, PathStep, TextPosition, TreeNode, TreePath};

/// The author of a text that may refer to something.
#[derive(Clone, Copy)]
enum Referrer<'a> {
    /// The operator of the node, in its file.
    Operator,
    /// Whoever wrote a resource of a store, by its key.
    Resource { key: &'a str, access: &'a ResourceAccess },
}

/// The part of a configuration in which references are looked for.
#[derive(Clone, Copy)]
pub(crate) enum ReferringText<'a> {
    /// A document. With what resources may use, the lists of resources in it are those of a store.
    Document(Option<&'a ResourceAccess>),
    /// One resource of a store, by its key.
    Resource(&'a str, &'a ResourceAccess),
}

/// Replaces references to the environment by their values. A reference that cannot be resolved is a fault: the text of the
/// reference must not become the password. What was replaced is added to `resolved`.
pub(super) fn resolve(
    source: &Arc<str>,
    tree: &mut TreeNode,
    lookup: VariableLookup,
    of: ReferringText,
    resolved: &mut Vec<ResolvedText>,
) -> Vec<Diagnostic> {
    replace(source, tree, of, resolved, &mut |text, _, referrer| variable(text, lookup, referrer))
}

/// A reference to a secret, with its place.
#[derive(Clone, Debug)]
pub(super) struct PlacedReference {
    pub secret: SecretReference,
    pub path: String,
    pub place: TextPosition,
}

/// The references to secrets in options. One that is incomplete is a fault, and so is one that its author may not use.
pub(super) fn secrets(
    source: &Arc<str>,
    tree: &mut TreeNode,
    of: ReferringText,
) -> (Vec<PlacedReference>, Vec<Diagnostic>) {
    let mut found = Vec::new();
    // Nothing is replaced yet.
    let faults = replace(source, tree, of, &mut Vec::new(), &mut |text, (path, place), referrer| {
        let allowed = |secret| referrer.may_use(&secret).map(|()| secret);
        match SecretReference::parse(text)?.and_then(allowed) {
            Ok(secret) => {
                found.push(PlacedReference { secret, path: path.to_string(), place });
                None
            }
            Err(fault) => Some(Err(fault.into())),
        }
    });
    (found, faults)
}

/// The references that may stand in a document in place of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeptReferences {
    None,
    Secrets,
    /// To the environment as well.
    All,
}

impl KeptReferences {
    /// Whether the value at a path of options, such as `auth.password` or `keys[0]`, is such a reference.
    pub(super) fn has(self, options: &Value, path: &str) -> bool {
        let of = |schemes: &[&str]| {
            let text = text_at(options, path);
            text.is_some_and(|text| schemes.iter().any(|scheme| after(text, scheme).is_some()))
        };
        match self {
            KeptReferences::None => false,
            KeptReferences::Secrets => of(&["$secret://"]),
            KeptReferences::All => of(&["$secret://", "$env://"]),
        }
    }
}

fn text_at<'o>(options: &'o Value, path: &str) -> Option<&'o str> {
    let step = |value: &'o Value, step: &str| match step.parse::<usize>() {
        Ok(index) => Value::get(value, index).or_else(|| value.get(step)),
        Err(_) => value.get(step),
    };
    let mut steps = path.split(['.', '[', ']']).filter(|step| !step.is_empty());
    steps.try_fold(options, step).and_then(Value::as_str)
}

/// Returns the value of a secret, or why it cannot be read.
pub(super) type SecretLookup<'a> = &'a dyn Fn(&SecretReference) -> Result<String, UnreadSecret>;

/// Replaces references to secrets by their values.
pub(super) fn put_secrets(
    source: &Arc<str>,
    tree: &mut TreeNode,
    value: SecretLookup,
    resolved: &mut Vec<ResolvedText>,
) -> Vec<Diagnostic> {
    // Whether each may be used was checked when they were collected.
    let of = ReferringText::Document(None);
    replace(source, tree, of, resolved, &mut |text, _, _| match SecretReference::parse(text)? {
        Ok(secret) => Some(value(&secret).map_err(|unread| {
            let problem = format!("the secret `{}/{}` cannot be read: {}", secret.path, secret.key, unread.problem);
            let fault = (problem, String::new());
            if unread.is_away { Unresolved::Away(fault) } else { Unresolved::Outside(fault) }
        })),
        Err(fault) => Some(Err(fault.into())),
    })
}

/// Why a reference has no value.
enum Unresolved {
    /// The reference is wrong, or not allowed.
    Text(ReferenceFault),
    /// What it refers to is not there, or cannot be read.
    Outside(ReferenceFault),
    /// The service that keeps it does not answer.
    Away(ReferenceFault),
}

impl From<ReferenceFault> for Unresolved {
    fn from(fault: ReferenceFault) -> Unresolved {
        Unresolved::Text(fault)
    }
}

/// The value of a reference to the environment; `None` if the text is no such reference. Ciphertext is refused here as well, so
/// that it does not become the password.
fn variable(text: &str, lookup: VariableLookup, referrer: Referrer<'_>) -> Option<Result<String, Unresolved>> {
    if text.starts_with(UNREADABLE) {
        return Some(Err(unreadable().into()));
    }
    let reference = after(text, "$env://")?;
    let (name, member) = match reference.split_once('/') {
        Some((name, member)) => (name, Some(member)),
        None => (reference, None),
    };
    if let Err(fault) = referrer.may_read(name) {
        return Some(Err(fault.into()));
    }
    let Some(value) = lookup(name) else {
        let problem = format!("the environment variable `{name}` is not set");
        return Some(Err(Unresolved::Outside((problem, "set it".to_owned()))));
    };
    let Some(member) = member else { return Some(Ok(value)) };
    let json: Value = serde_json::from_str(&value).unwrap_or_default();
    Some(match member.split('/').try_fold(&json, |json, step| json.get(step)) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(found) if !found.is_object() && !found.is_array() && !found.is_null() => Ok(found.to_string()),
        _ => Err(Unresolved::Outside((
            format!("the environment variable `{name}` is not JSON with a text `{member}`"),
            format!("write `$env://{name}` for the whole value"),
        ))),
    })
}

impl Referrer<'_> {
    fn may_read(self, variable: &str) -> Result<(), ReferenceFault> {
        match self {
            Referrer::Operator => Ok(()),
            Referrer::Resource { key, access } => access.variable(key, variable),
        }
    }

    fn may_use(self, secret: &SecretReference) -> Result<(), ReferenceFault> {
        match self {
            Referrer::Operator => Ok(()),
            Referrer::Resource { key, access } => access.secret(key, secret),
        }
    }
}

/// Returns the value that a text refers to, or a fault; `None` leaves the text as it is.
type ReferenceMeaning<'a> =
    &'a mut dyn FnMut(&str, (&TreePath<'_>, TextPosition), Referrer<'_>) -> Option<Result<String, Unresolved>>;

fn replace(
    source: &Arc<str>,
    tree: &mut TreeNode,
    of: ReferringText,
    resolved: &mut Vec<ResolvedText>,
    meaning: ReferenceMeaning,
) -> Vec<Diagnostic> {
    let mut resolver = ReferenceResolver { source, meaning, resolved, faults: Vec::new() };
    match of {
        ReferringText::Document(None) => resolver.node(tree, &TreePath::ROOT, false, Referrer::Operator),
        ReferringText::Document(Some(access)) => resolver.document(tree, access),
        ReferringText::Resource(key, access) => {
            resolver.node(tree, &TreePath::ROOT, false, Referrer::Resource { key, access });
        }
    }
    resolver.faults
}

/// Whether the texts below a key may be references.
fn has_options(key: &str) -> bool {
    matches!(key, "plugins" | "plugin_metadata" | "secrets")
}

/// The key of a resource: `routes/r1`, `consumers/jack/credentials/one`.
fn key_of(list: &str, resource: &TreeNode) -> String {
    let name = resource.entry("username").filter(|_| list == "consumers").or_else(|| resource.entry("id"));
    let name = name.map(|entry| match &entry.value.kind {
        NodeKind::Text(text) => text.to_string(),
        _ => entry.value.to_json().to_string(),
    });
    format!("{list}/{}", name.unwrap_or_default())
}

struct ReferenceResolver<'a> {
    source: &'a Arc<str>,
    meaning: ReferenceMeaning<'a>,
    resolved: &'a mut Vec<ResolvedText>,
    faults: Vec<Diagnostic>,
}

impl ReferenceResolver<'_> {
    /// A document with the lists of a store; everything else in it is of the node's file.
    fn document(&mut self, tree: &mut TreeNode, access: &ResourceAccess) {
        let NodeKind::Map(entries) = &mut tree.kind else { return };
        for MapEntry { key, value, .. } in entries {
            let (path, in_options) = (TreePath::below(&TreePath::ROOT, PathStep::Key(key)), has_options(key));
            let is_of_store = RESOURCE_LISTS.contains(&&**key);
            match &mut value.kind {
                NodeKind::List(items) if is_of_store => {
                    for (index, item) in items.iter_mut().enumerate() {
                        let name = key_of(key, item);
                        let referrer = Referrer::Resource { key: &name, access };
                        self.node(item, &TreePath::below(&path, PathStep::Index(index)), in_options, referrer);
                    }
                }
                _ if is_of_store => self.node(value, &path, in_options, Referrer::Resource { key, access }),
                _ => self.node(value, &path, in_options, Referrer::Operator),
            }
        }
    }

    fn node(&mut self, node: &mut TreeNode, path: &TreePath<'_>, in_options: bool, referrer: Referrer<'_>) {
        match &mut node.kind {
            NodeKind::Text(text) if in_options => match (self.meaning)(text, (path, node.place), referrer) {
                None => {}
                Some(Ok(value)) => {
                    let (scope_bytes, value) = (scope_of(path).to_string().len(), value.into());
                    let reference = std::mem::replace(text, value);
                    let (path, value) = (path.to_string(), text.clone());
                    self.resolved.push(ResolvedText { path, scope_bytes, reference, value });
                }
                Some(Err(fault)) => self.report(node.place, path, fault),
            },
            // Outside of options, the name of a certificate or a key, which is read later.
            NodeKind::Text(text) => {
                if let Some(Err(fault)) = after(text, "$env://").map(|name| referrer.may_read(name)) {
                    self.report(node.place, path, fault.into());
                }
            }
            NodeKind::List(items) => {
                for (index, item) in items.iter_mut().enumerate() {
                    self.node(item, &TreePath::below(path, PathStep::Index(index)), in_options, referrer);
                }
            }
            // Options of a disabled plugin may be invalid, so they are skipped.
            NodeKind::Map(entries) if in_options && is_disabled(entries) => {}
            NodeKind::Map(entries) => {
                for MapEntry { key, value, .. } in entries {
                    let in_options = in_options || has_options(key);
                    self.node(value, &TreePath::below(path, PathStep::Key(key)), in_options, referrer);
                }
            }
            _ => {}
        }
    }

    fn report(&mut self, place: TextPosition, path: &TreePath<'_>, reason: Unresolved) {
        let (cause, (problem, advice)) = match reason {
            Unresolved::Text(fault) => (FaultCause::Text, fault),
            Unresolved::Outside(fault) => (FaultCause::Outside, fault),
            Unresolved::Away(fault) => (FaultCause::Away, fault),
        };
        let fault = Diagnostic::at_place(self.source, place, problem);
        let fault = if advice.is_empty() { fault } else { fault.advise(advice) };
        self.faults.push(Diagnostic { path: path.to_string(), cause, ..fault });
    }
}

/// The path of the options around a text: those of one plugin, or one resource of a list that is all options.
fn scope_of<'p>(path: &TreePath<'p>) -> TreePath<'p> {
    // Options can have a member `plugins`, too, so the outermost counts.
    let is_all_options =
        |path: &TreePath<'_>| path.parent().is_some_and(|outer| outer.last_key().is_some_and(has_options));
    path.and_ancestors().filter(is_all_options).last().unwrap_or(*path)
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
        let faults = resolve(&"f".into(), &mut tree, &lookup, ReferringText::Document(None), &mut Vec::new());
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
        let (found, faults) = secrets(&source, &mut tree, ReferringText::Document(None));
        let secret = SecretReference { manager: "vault/1".into(), path: "jack/auth".into(), key: "key".into() };
        let found: Vec<_> = found.iter().map(|found| (&found.secret, &*found.path)).collect();
        assert_eq!(found, [(&secret, "plugins.a[0]")]);
        let faults: Vec<String> = faults.iter().map(Diagnostic::to_string).collect();
        assert_eq!(faults, ["f: plugins.a[1]: is not a reference to a secret; write as `$secret://vault/1/path/key`"]);
        let mut tree =
            TreeNode::from(json!({"plugins": {"a": "$secret://vault/1/jack/auth/key", "b": "$secret://vault/1/x/y"}}));
        let value = |asked: &SecretReference| {
            if *asked == secret { Ok("s3cret".to_owned()) } else { Err("no such secret".to_owned().into()) }
        };
        let faults: Vec<String> =
            put_secrets(&source, &mut tree, &value, &mut Vec::new()).iter().map(Diagnostic::to_string).collect();
        assert_eq!(tree.to_json()["plugins"]["a"], "s3cret");
        assert_eq!(faults, ["f: plugins.b: the secret `x/y` cannot be read: no such secret"]);
    }

    #[test]
    fn secrets_are_found_by_their_path() {
        let options = json!({"key": "$secret://vault/1/a/b", "list": [{"a": "x"}, {"a": "$SECRET://vault/1/a/b"}]});
        for (path, want) in [("key", true), ("list[1].a", true), ("list[0].a", false), ("list", false), ("", false)] {
            assert_eq!(KeptReferences::Secrets.has(&options, path), want, "{path}");
        }
    }

    #[test]
    fn missing_reference_is_a_fault_with_its_place() {
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
