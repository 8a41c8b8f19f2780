//! Transactions: changes of several resources, applied all or none.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use self::drafts::Drafts;
use super::answer::{Refused, refuse};
use super::keys::may_write;
use super::kinds::{self, CREDENTIAL, IdRule, ResourceKind};
use super::references::{fault_of_id, id_text};
use super::request::AdminRequest;
use super::resources::is_id;
use super::sent_lists::{ListError, key_of, without_index};
use crate::document::RESOURCE_LISTS;
use crate::stores::live::ResourceEdit;
use crate::stores::resources::{ResourceKey, ResourceView};
use crate::stores::writes::PlanRefusal;

mod drafts;

/// The most operations in one transaction.
pub(super) const MOST_OPERATIONS: usize = 20_000;

/// Operations, in order. References are checked after all of them, so a resource may refer to one that a later operation creates.
#[derive(Clone, Debug)]
pub(super) struct Transaction {
    operations: Vec<Operation>,
    /// The store revision that the transaction is based on.
    if_revision: Option<u64>,
    pub(super) message: Option<String>,
}

#[derive(Clone, Debug)]
struct Operation {
    kind: &'static ResourceKind,
    key: ResourceKey,
    action: Action,
    /// The length of its value as text.
    bytes: usize,
}

#[derive(Clone, Debug)]
enum Action {
    Put(Value),
    Patch(Value),
    Delete,
}

impl Transaction {
    /// Reads `{"operations": [{"put": "routes/r1", "value": {}}, {"patch": …, "value": {}}, {"delete": …}]}`.
    pub(super) fn of(body: &Value, request: &AdminRequest) -> Refused<Transaction> {
        let Some(list) = body["operations"].as_array() else {
            return refuse("missing `operations`: write a list of `{ \"put\": \"routes/r1\", \"value\": {} }`");
        };
        if list.is_empty() {
            return refuse("`operations` is empty: there is nothing to change");
        }
        if let Some(problem) = unknown_member(body, &["operations", "if_revision", "message", "requests"]) {
            return refuse(problem);
        }
        if list.len() > MOST_OPERATIONS {
            return refuse(format!(
                "{} operations are more than the limit of {MOST_OPERATIONS}: split the transaction",
                list.len()
            ));
        }
        let mut operations = Vec::with_capacity(list.len());
        for (index, item) in list.iter().enumerate() {
            match operation(item, request) {
                Ok(operation) => operations.push(operation),
                Err(problem) => return refuse(format!("operations[{index}]: {problem}")),
            }
        }
        let if_revision = match body.get("if_revision") {
            Some(number) if number.as_u64().is_none() => {
                return refuse("`if_revision` must be the number of a revision");
            }
            number => number.and_then(Value::as_u64),
        };
        let message = body.get("message").and_then(Value::as_str).map(str::to_owned);
        Ok(Transaction { operations, if_revision, message })
    }

    /// Puts of all items of lists of resources, and what is wrong with the keys of others.
    pub(super) fn of_lists(lists: &Map<String, Value>) -> (Transaction, Vec<ListError>) {
        let (mut operations, mut errors) = (Vec::new(), Vec::new());
        for list in RESOURCE_LISTS.iter().copied() {
            for (index, item) in lists.get(list).and_then(Value::as_array).into_iter().flatten().enumerate() {
                let key = key_of(list, index, item);
                match put_kind(&key) {
                    Ok(kind) => {
                        let mut value = item.clone();
                        without_index(&mut value);
                        operations.push(Operation { kind, key, bytes: length(&value), action: Action::Put(value) });
                    }
                    Err(problem) => errors.push(ListError { list, index: Some(index), problem }),
                }
            }
        }
        (Transaction { operations, if_revision: None, message: None }, errors)
    }

    /// The resources that it names, each once.
    pub(super) fn keys(&self) -> Vec<ResourceKey> {
        let keys: BTreeSet<&ResourceKey> = self.operations.iter().map(|operation| &operation.key).collect();
        keys.into_iter().cloned().collect()
    }

    pub(super) fn plan(&self, view: &ResourceView) -> Result<Vec<ResourceEdit>, PlanRefusal> {
        if self.if_revision.is_some_and(|seen| seen != view.revision) {
            return Err(PlanRefusal::StoreMovedOn(view.revision));
        }
        let mut drafts = Drafts::default();
        for (index, operation) in self.operations.iter().enumerate() {
            drafts.apply(view, index, operation)?;
        }
        drafts.into_edits()
    }
}

/// The kind of a resource that is put under this key.
fn put_kind(key: &ResourceKey) -> Result<&'static ResourceKind, String> {
    let kind = kinds::find(key.list()).ok_or_else(|| format!("`{key}` is not the key of a resource"))?;
    let kind = if key.consumer_of_credential().is_some() { &CREDENTIAL } else { kind };
    let is_deep = key.id().contains('/') && kind.id != IdRule::Manager && key.consumer_of_credential().is_none();
    if is_deep || !key.id().split('/').all(is_id) {
        return Err(format!("`{key}` is not the key of a resource: use letters, digits, `-`, `_` and `.` in ids"));
    }
    Ok(kind)
}

/// The length of a value as text.
fn length(value: &Value) -> usize {
    value.to_string().len()
}

/// What is wrong with the name of a consumer, which must be that of its key. Other kinds have their id there, which is set by the
/// node.
fn fault_of_name(kind: &ResourceKind, key: &ResourceKey, value: &Value) -> Option<String> {
    let name = value.get("username").and_then(id_text).filter(|_| kind.id == IdRule::Username)?;
    (name != key.id()).then(|| format!("wrong username: `{key}` cannot have the name `{name}`"))
}

/// What is wrong if a member has another name: one with a slip of the pen would be a condition that is not looked at.
fn unknown_member(value: &Value, known: &[&str]) -> Option<String> {
    let unknown = value.as_object()?.keys().find(|name| !known.contains(&name.as_str()))?;
    let advice = if unknown == "dry_run" {
        "write `?dry_run=true` in the URL".to_owned()
    } else {
        format!("known are {}", known.join(", "))
    };
    Some(format!("unknown member `{unknown}`: {advice}"))
}

fn operation(item: &Value, request: &AdminRequest) -> Result<Operation, String> {
    if let Some(problem) = unknown_member(item, &["put", "patch", "delete", "value"]) {
        return Err(problem);
    }
    let value = || match item.get("value") {
        Some(value @ Value::Object(_)) => Ok(value.clone()),
        _ => Err("missing `value`, which must be a map".to_owned()),
    };
    let named = ["put", "patch", "delete"].iter().find_map(|action| Some((*action, item.get(action)?.as_str()?)));
    let Some((action, key)) = named else {
        return Err("needs `put`, `patch` or `delete` with a key such as `routes/r1`".to_owned());
    };
    let known = ResourceKey::parse(key).and_then(|key| Some((kinds::find(key.list())?, key)));
    let Some((kind, key)) = known else {
        return Err(format!("`{key}` is not the key of a resource; write as `routes/r1`"));
    };
    let kind = if key.consumer_of_credential().is_some() { &CREDENTIAL } else { kind };
    let is_deep = key.id().contains('/') && kind.id != IdRule::Manager && key.consumer_of_credential().is_none();
    if is_deep {
        return Err(format!("`{key}` is not the key of a resource of this node"));
    }
    if matches!(action, "put") && !key.id().split('/').all(is_id) {
        return Err(format!("`{key}` is not the key of a resource: use letters, digits, `-`, `_` and `.` in ids"));
    }
    if !may_write(request.caller.role, kind.list) {
        return Err(format!("the role {} may not change {}", request.caller.role.name(), kind.list));
    }
    if let Some(problem) = item.get("value").and_then(fault_of_id) {
        return Err(format!("`{key}`: id: {problem}"));
    }
    let action = match action {
        "put" => Action::Put(value()?),
        "patch" => Action::Patch(value()?),
        _ => Action::Delete,
    };
    Ok(Operation { kind, key, action, bytes: item.get("value").map_or(0, length) })
}
