//! Operations on the texts of a draft: on a resource, wherever it stands, or on a place of a file.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::StatusCode;
use serde_json::{Map, Value};

use super::findings::refused_with;
use super::hidden;
use super::trees::tree;
use crate::admin::answer::{self, AdminResponse, Refused, refuse};
use crate::admin::kinds::{self, IdRule};
use crate::admin::redact::unmask;
use crate::document::find_written;
use crate::stores::draft::DraftFile;
use crate::stores::resources::ResourceKey;
use crate::text::diagnostic::Diagnostic;
use crate::text::edit::{EditBudget, EditOperation, WrittenPlaces, difference, edit};
use crate::text::substitute::{VariableChoice, process_environment};
use crate::text::tree::{NodeKind, TreeNode};

/// Texts that are edited, as they are shown: with words in place of secrets.
pub(super) struct EditedDraft {
    pub files: Vec<DraftFile>,
    parsed: Vec<ParsedFile>,
    budget: EditBudget,
    /// Of each list of which this request has removed or added items, the file and the index of the first of them.
    moved: BTreeMap<&'static str, (usize, usize)>,
}

struct ParsedFile {
    /// With the values of variables.
    tree: TreeNode,
    places: WrittenPlaces,
}

impl ParsedFile {
    fn of(file: &DraftFile, budget: &mut EditBudget) -> Result<ParsedFile, Vec<Diagnostic>> {
        let source: Arc<str> = (&*file.name).into();
        let spent = |problem: String| vec![Diagnostic::of_source(&source, problem)];
        budget.reading(2 * file.text.len()).map_err(spent)?;
        Ok(ParsedFile {
            tree: tree(file, &process_environment, VariableChoice::ValueFirst)?,
            places: WrittenPlaces::of(&source, &file.text)?,
        })
    }
}

impl EditedDraft {
    pub(super) fn of(files: Vec<DraftFile>) -> Refused<EditedDraft> {
        let mut budget = EditBudget::default();
        let parsed = files.iter().map(|file| ParsedFile::of(file, &mut budget)).collect::<Result<_, _>>();
        let parsed = parsed.map_err(|faults| Box::new(not_editable(&faults, &budget)))?;
        Ok(EditedDraft { files, parsed, budget, moved: BTreeMap::new() })
    }

    /// Makes an operation, as it was sent.
    pub(super) fn apply(&mut self, sent: &Value) -> Refused<()> {
        let (index, operations) = self.lowered(DraftOperation::of(sent)?)?;
        let file = &mut self.files[index];
        let edited = edit(&(&*file.name).into(), &file.text, &operations, &mut self.budget);
        let parsed = edited.and_then(|text| {
            file.text = text.into();
            ParsedFile::of(file, &mut self.budget)
        });
        self.parsed[index] = parsed.map_err(|faults| Box::new(not_editable(&faults, &self.budget)))?;
        Ok(())
    }

    /// The number of a file, and what is to be done in it.
    fn lowered(&mut self, operation: DraftOperation) -> Refused<(usize, Vec<EditOperation>)> {
        let (key, value) = match operation {
            DraftOperation::InFile(name, operation) => {
                let file = self.files.iter().position(|file| file.name == name);
                return match file {
                    Some(file) => Ok((file, vec![operation])),
                    None => refuse(format!("`{name}` is not a file that this node has loaded")),
                };
            }
            DraftOperation::Put(key, value) => (key, Some(value)),
            DraftOperation::Delete(key) => (key, None),
        };
        let list = key.list();
        let found = find_written(self.parsed.iter().map(|parsed| &parsed.tree), list, key.id());
        if let Some((file, index)) = found {
            self.refuse_moved(file, list, index)?;
        }
        let moved = match (found, &value) {
            (Some(_), Some(_)) => None,
            (Some(removed), None) => Some(removed),
            (None, _) => {
                let file = self.file_of_new(list);
                Some((file, items(&self.parsed[file].tree, list).unwrap_or_default()))
            }
        };
        if let (Some(moved), Some(kind)) = (moved, kinds::find(list)) {
            let first = self.moved.entry(kind.list).or_insert(moved);
            *first = moved.min(*first);
        }
        match (found, value) {
            (None, None) => Err(Box::new(answer::key_not_found())),
            (None, Some(value)) => {
                let file = self.file_of_new(list);
                self.compare(file, list, None)?;
                Ok((file, vec![added(&key, value, &self.parsed[file].tree)]))
            }
            (Some((file, index)), value) => {
                self.compare(file, list, Some(index))?;
                let path = format!("/{list}/{index}");
                let Some(value) = value else { return Ok((file, vec![EditOperation::Remove { path }])) };
                let old = self.parsed[file].tree.to_json()[list][index].take();
                Ok((file, difference(&old, &kept(&key, value, &old)?, &path)))
            }
        }
    }

    /// A resource without an id has its position as its id, which is that of another one after a change of the list.
    fn refuse_moved(&self, file: usize, list: &str, index: usize) -> Refused<()> {
        if self.moved.get(list).is_none_or(|first| (file, index) < *first) {
            return Ok(());
        }
        let tree = &self.parsed[file].tree;
        let Some(NodeKind::List(items)) = tree.entry(list).map(|entry| &entry.value.kind) else { return Ok(()) };
        let item = &items[index];
        if ["id", "username"].iter().any(|name| item.entry(name).is_some()) {
            return Ok(());
        }
        let source = (&*self.files[file].name).into();
        let problem = "a resource without an id is known by its position, which has changed in this request";
        let fault = Diagnostic::at_place(&source, item.place, problem);
        Err(Box::new(not_editable(
            &[fault.advise("give it an id, or change it in a request of its own")],
            &self.budget,
        )))
    }

    /// Refuses a list, or an item of it, that is not in the text as it is in the tree.
    fn compare(&self, file: usize, list: &str, index: Option<usize>) -> Refused<()> {
        let ParsedFile { tree, places } = &self.parsed[file];
        places.compare(tree, list, index).map_err(|fault| Box::new(not_editable(&[fault], &self.budget)))
    }

    /// The first file that has some of a kind.
    fn file_of_new(&self, list: &str) -> usize {
        let count = |parsed: &ParsedFile| items(&parsed.tree, list);
        let file = self.parsed.iter().position(|parsed| count(parsed).is_some_and(|items| items > 0));
        file.or_else(|| self.parsed.iter().position(|parsed| count(parsed).is_some())).unwrap_or(0)
    }
}

fn items(tree: &TreeNode, list: &str) -> Option<usize> {
    match &tree.entry(list)?.value.kind {
        NodeKind::List(items) => Some(items.len()),
        _ => None,
    }
}

fn not_editable(faults: &[Diagnostic], budget: &EditBudget) -> AdminResponse {
    refused_with(if budget.is_spent() { StatusCode::PAYLOAD_TOO_LARGE } else { StatusCode::CONFLICT }, faults)
}

/// An operation as it is sent.
enum DraftOperation {
    Put(ResourceKey, Value),
    Delete(ResourceKey),
    /// On a place of a file.
    InFile(Box<str>, EditOperation),
}

impl DraftOperation {
    fn of(sent: &Value) -> Refused<DraftOperation> {
        if hidden::is_in(&sent.to_string()) {
            return refuse("a value of an operation cannot be one that is hidden; write the value itself");
        }
        let key = |text: &Value| match text.as_str().and_then(ResourceKey::parse) {
            Some(key) => Ok(key),
            None => refuse(format!("{text} is not a key such as `routes/orders`")),
        };
        if let Some(text) = sent.get("put") {
            return Ok(DraftOperation::Put(key(text)?, sent.get("value").cloned().unwrap_or_default()));
        }
        if let Some(text) = sent.get("delete") {
            return Ok(DraftOperation::Delete(key(text)?));
        }
        let mut own = sent.clone();
        let file = own.as_object_mut().and_then(|members| members.shift_remove("file"));
        match (file, serde_json::from_value(own)) {
            (Some(Value::String(file)), Ok(operation)) => Ok(DraftOperation::InFile(file.into(), operation)),
            (_, Err(error)) => refuse(format!("an operation has `put`, `delete`, or `file` and `op`: {error}")),
            _ => refuse("an operation with `op` needs `file`"),
        }
    }
}

/// The value as it is to be written: what is never shown stays, and so does that there is no id.
fn kept(key: &ResourceKey, mut value: Value, old: &Value) -> Refused<Value> {
    unmask(key.list(), &mut value, Some(old)).map_err(|refusal| Box::new(answer::refused(&refusal)))?;
    if let (Value::Object(members), Value::Object(before)) = (&mut value, old) {
        if !before.contains_key("id") && members.get("id").is_some_and(|id| id == key.id()) {
            members.shift_remove("id");
        }
        // Responses leave them out.
        let hidden = if key.list() == "ssls" { &["key", "keys"][..] } else { &[] };
        for name in hidden.iter().filter(|name| before.contains_key(**name)) {
            members.entry(*name).or_insert_with(|| before[*name].clone());
        }
    }
    Ok(value)
}

/// A new resource, at the end of its list.
fn added(key: &ResourceKey, value: Value, tree: &TreeNode) -> EditOperation {
    let list = key.list();
    let named = |members: Map<String, Value>| {
        let is_named = kinds::find(list).is_some_and(|kind| kind.id == IdRule::Username);
        let name = if is_named && !key.id().contains('/') { "username" } else { "id" };
        let mut all = Map::new();
        all.insert(name.to_owned(), key.id().into());
        all.extend(members.into_iter().filter(|(member, _)| member != name));
        Value::Object(all)
    };
    let value = match value {
        Value::Object(members) => named(members),
        value => value,
    };
    match items(tree, list) {
        Some(_) => EditOperation::Add { path: format!("/{list}/-"), value },
        None => EditOperation::Add { path: format!("/{list}"), value: Value::Array(vec![value]) },
    }
}
