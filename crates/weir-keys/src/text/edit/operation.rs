//! Operations on a document, with the names of RFC 6902, and the single steps that they consist of.

use serde::Deserialize;
use serde_json::Value;

/// One change of a document. Paths are JSON pointers (RFC 6901).
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
pub enum EditOperation {
    /// Sets a key of a map, or inserts an item into a list before that with the index; `-` is the end.
    Add { path: String, value: Value },
    /// Replaces a value.
    Replace { path: String, value: Value },
    /// Removes a key or an item.
    Remove { path: String },
    /// Moves an item within its list.
    Move { from: String, path: String },
}

/// A change of one place of the text.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum EditStep {
    Replace(Vec<String>, Value),
    AddKey(Vec<String>, Value),
    Insert(Vec<String>, usize, Value),
    RemoveKey(Vec<String>),
    RemoveItem(Vec<String>, usize),
    /// In a list, from one index to another, which counts without the item.
    Move(Vec<String>, usize, usize),
}

/// The steps of a pointer.
fn steps(pointer: &str) -> Result<Vec<String>, String> {
    match pointer.strip_prefix('/') {
        None if pointer.is_empty() => Ok(Vec::new()),
        None => Err(format!("`{pointer}` is not a JSON pointer; begin it with `/`")),
        Some(rest) => Ok(rest.split('/').map(|step| step.replace("~1", "/").replace("~0", "~")).collect()),
    }
}

pub(super) fn pointer(steps: &[String]) -> String {
    steps.iter().map(|step| format!("/{}", step.replace('~', "~0").replace('/', "~1"))).collect()
}

/// A number as RFC 6901 has them: without leading zeros.
pub(super) fn index_of(step: &str) -> Option<usize> {
    let is_plain = step == "0" || !step.starts_with(['0', '+']);
    step.parse().ok().filter(|_| is_plain)
}

fn found<'v>(document: &'v Value, steps: &[String]) -> Result<&'v Value, String> {
    let missing = || format!("there is no `{}`", pointer(steps));
    steps.iter().try_fold(document, |value, step| match value {
        Value::Object(members) => members.get(step).ok_or_else(missing),
        Value::Array(items) => index_of(step).and_then(|index| items.get(index)).ok_or_else(missing),
        _ => Err(missing()),
    })
}

impl EditOperation {
    /// The steps that an operation on this document consists of.
    pub(super) fn steps(&self, document: &Value) -> Result<Vec<EditStep>, String> {
        let mut made = Vec::new();
        match self {
            EditOperation::Add { path, value } => add(document, steps(path)?, value, &mut made)?,
            EditOperation::Replace { path, value } => {
                let path = steps(path)?;
                replace(found(document, &path)?, path, value, &mut made);
            }
            EditOperation::Remove { path } => made.push(removal(document, steps(path)?)?),
            EditOperation::Move { from, path } => {
                let (mut from, mut to) = (steps(from)?, steps(path)?);
                found(document, &from)?;
                let (first, second) = (from.pop(), to.pop());
                let Some(Value::Array(items)) = (from == to).then(|| found(document, &from)).transpose()? else {
                    return Err(
                        "items are moved within their list; to move a value elsewhere, remove and add it".into()
                    );
                };
                let at = |step: Option<String>| match step.as_deref() {
                    Some("-") => items.len().checked_sub(1),
                    step => step.and_then(index_of).filter(|index| *index < items.len()),
                };
                let (Some(first), Some(second)) = (at(first), at(second)) else {
                    return Err(format!("there is no `{path}`"));
                };
                made.push(EditStep::Move(from, first, second));
            }
        }
        Ok(made)
    }
}

fn add(document: &Value, mut path: Vec<String>, value: &Value, made: &mut Vec<EditStep>) -> Result<(), String> {
    let Some(last) = path.last().cloned() else {
        replace(document, path, value, made);
        return Ok(());
    };
    match found(document, &path[..path.len() - 1])? {
        Value::Object(members) => match members.get(&last) {
            Some(known) => replace(known, path, value, made),
            None => made.push(EditStep::AddKey(path, value.clone())),
        },
        Value::Array(items) => {
            let index = if last == "-" { Some(items.len()) } else { index_of(&last) };
            let Some(index) = index.filter(|index| *index <= items.len()) else {
                return Err(format!("there is no `{}`; the list has {} items", pointer(&path), items.len()));
            };
            path.pop();
            made.push(EditStep::Insert(path, index, value.clone()));
        }
        _ => return Err(format!("`{}` is neither a map nor a list", pointer(&path[..path.len() - 1]))),
    }
    Ok(())
}

fn removal(document: &Value, mut path: Vec<String>) -> Result<EditStep, String> {
    found(document, &path)?;
    let Some(last) = path.last().cloned() else { return Err("the document itself cannot be removed".into()) };
    Ok(match found(document, &path[..path.len() - 1])? {
        Value::Array(_) => {
            path.pop();
            EditStep::RemoveItem(path, index_of(&last).expect("it has been found"))
        }
        _ => EditStep::RemoveKey(path),
    })
}

fn below(path: &[String], step: impl Into<String>) -> Vec<String> {
    path.iter().cloned().chain([step.into()]).collect()
}

/// The steps from one value to another: only what differs is replaced.
fn replace(old: &Value, path: Vec<String>, new: &Value, made: &mut Vec<EditStep>) {
    match (old, new) {
        _ if old == new => {}
        (Value::Object(before), Value::Object(after)) if !before.is_empty() && !after.is_empty() => {
            for (key, value) in after {
                match before.get(key) {
                    Some(known) => replace(known, below(&path, key), value, made),
                    None => made.push(EditStep::AddKey(below(&path, key), value.clone())),
                }
            }
            let gone = before.keys().filter(|key| !after.contains_key(*key));
            made.extend(gone.map(|key| EditStep::RemoveKey(below(&path, key))));
        }
        (Value::Array(before), Value::Array(after)) if !before.is_empty() && !after.is_empty() => {
            replace_items(before, path, after, made);
        }
        _ => made.push(EditStep::Replace(path, new.clone())),
    }
}

fn replace_items(before: &[Value], path: Vec<String>, after: &[Value], made: &mut Vec<EditStep>) {
    let first = before.iter().zip(after).take_while(|(old, new)| old == new).count();
    let (before, after) = (&before[first..], &after[first..]);
    let last = before.iter().rev().zip(after.iter().rev()).take_while(|(old, new)| old == new).count();
    let (before, after) = (&before[..before.len() - last], &after[..after.len() - last]);
    let both = before.len().min(after.len());
    for (at, (old, new)) in before.iter().zip(after).enumerate() {
        replace(old, below(&path, (first + at).to_string()), new, made);
    }
    let gone = (both..before.len()).rev();
    made.extend(gone.map(|at| EditStep::RemoveItem(path.clone(), first + at)));
    let more = (both..after.len()).map(|at| EditStep::Insert(path.clone(), first + at, after[at].clone()));
    made.extend(more);
}

/// The value at a place, which there is.
fn at<'v>(document: &'v mut Value, path: &[String]) -> &'v mut Value {
    document.pointer_mut(&pointer(path)).expect("steps are made for what there is")
}

impl EditStep {
    /// Changes the values of a document.
    pub(super) fn apply(&self, document: &mut Value) {
        match self {
            EditStep::Replace(path, value) => *at(document, path) = value.clone(),
            EditStep::AddKey(path, value) => {
                let (key, map) = path.split_last().expect("it ends with a key");
                at(document, map)[key] = value.clone();
            }
            EditStep::RemoveKey(path) => {
                let (key, map) = path.split_last().expect("it ends with a key");
                at(document, map).as_object_mut().map(|map| map.remove(key));
            }
            EditStep::Insert(path, index, value) => list(document, path, |items| items.insert(*index, value.clone())),
            EditStep::RemoveItem(path, index) => list(document, path, |items| drop(items.remove(*index))),
            EditStep::Move(path, from, to) => list(document, path, |items| {
                let item = items.remove(*from);
                items.insert(*to, item);
            }),
        }
    }
}

fn list(document: &mut Value, path: &[String], change: impl FnOnce(&mut Vec<Value>)) {
    if let Value::Array(items) = at(document, path) {
        change(items);
    }
}

/// The operations that make one value of another, which is at `path`.
pub fn difference(old: &Value, new: &Value, path: &str) -> Vec<EditOperation> {
    let mut made = Vec::new();
    replace(old, steps(path).unwrap_or_default(), new, &mut made);
    let item = |list: &[String], index: usize| format!("{}/{index}", pointer(list));
    let operation = |step| match step {
        EditStep::Replace(path, value) => EditOperation::Replace { path: pointer(&path), value },
        EditStep::AddKey(path, value) => EditOperation::Add { path: pointer(&path), value },
        EditStep::Insert(list, index, value) => EditOperation::Add { path: item(&list, index), value },
        EditStep::RemoveKey(path) => EditOperation::Remove { path: pointer(&path) },
        EditStep::RemoveItem(list, index) => EditOperation::Remove { path: item(&list, index) },
        EditStep::Move(list, from, to) => EditOperation::Move { from: item(&list, from), path: item(&list, to) },
    };
    made.into_iter().map(operation).collect()
}
