//! Included files: their resources are added to those of the main file.
//!
//! Line numbers continue from one text to the next, as if all were one text, so that a position need not store its file.
//! [`DocumentText::located`] translates a diagnostic to the name and lines of its file.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::sync::Arc;

use super::kinds;
use crate::text::diagnostic::Diagnostic;
use crate::text::read::shortened;
use crate::text::tree::{MapEntry, NodeKind, TextPosition, TreeNode};
use crate::text::yaml::{Parsed, SourceText};

/// An included file, and the tree that was read from it.
#[derive(Debug)]
pub struct IncludedFile {
    pub name: Arc<str>,
    pub text: SourceText,
    pub tree: TreeNode,
}

/// The included files of a document, and the faults in them.
#[derive(Debug, Default)]
pub struct IncludedFiles {
    pub files: Vec<IncludedFile>,
    pub faults: Vec<Diagnostic>,
    pub warnings: Vec<Diagnostic>,
}

/// The faults of texts that were merged.
#[derive(Debug)]
pub(crate) struct MergeFaults {
    pub faults: Vec<Diagnostic>,
    /// Whether all resources are in the merged tree nevertheless.
    pub is_complete: bool,
}

/// Reads the files that the value of `include` names.
pub type ReadIncluded<'a> = &'a mut dyn FnMut(&TreeNode) -> IncludedFiles;

/// All texts that a document was read from.
#[derive(Debug)]
pub(crate) struct DocumentText {
    main: SourceText,
    included: Vec<IncludedText>,
}

#[derive(Debug)]
struct IncludedText {
    name: Arc<str>,
    text: SourceText,
    /// The number of lines before its first one.
    lines_before: u32,
    /// The number of items in each list before those of this file.
    items_before: Vec<(Box<str>, usize)>,
}

impl DocumentText {
    /// Adds the items of the files to the tree of the main text. Also returns the faults found by that.
    pub(super) fn merge(
        main: SourceText,
        tree: &mut TreeNode,
        files: Vec<IncludedFile>,
    ) -> (DocumentText, MergeFaults) {
        let mut merger = Merger { known: HashMap::new(), faults: Vec::new(), is_complete: true };
        let mut text = DocumentText { included: Vec::new(), main };
        if files.is_empty() {
            return (text, merger.into_faults());
        }
        merger.note_ids(text.main.source(), tree, 0);
        let mut lines = text.main.lines();
        for IncludedFile { name, text: own, tree: mut added } in files {
            merger.check(&name, &added);
            shift(&mut added, lines);
            merger.note_ids(&name, &mut added, lines);
            let items_before = append(tree, added);
            let lines_before = lines;
            lines = lines.saturating_add(own.lines());
            text.included.push(IncludedText { name, text: own, lines_before, items_before });
        }
        (text, merger.into_faults())
    }

    /// The merged tree, with the position of every value.
    pub(super) fn tree(&self) -> TreeNode {
        const PARSED: &str = "it has been parsed before";
        let mut tree = self.main.parse().expect(PARSED).tree;
        for IncludedText { text, lines_before, .. } in &self.included {
            let mut added = text.parse().expect(PARSED).tree;
            shift(&mut added, *lines_before);
            append(&mut tree, added);
        }
        tree
    }

    /// The texts of a resource in which a variable was replaced, as JSON pointers (RFC 6901).
    pub(super) fn with_variables(&self, resource: &TreeNode) -> Vec<String> {
        let after = self.included.partition_point(|text| text.lines_before < resource.place.line);
        let (text, lines_before) = match after.checked_sub(1).map(|last| &self.included[last]) {
            Some(included) => (&included.text, included.lines_before),
            None => (&self.main, 0),
        };
        let mut found = Vec::new();
        find_variables(text, lines_before, resource, &mut String::new(), &mut found);
        found
    }

    /// The same diagnostic with the name, the line and the path that it has in its own file.
    pub(super) fn located(&self, mut diagnostic: Diagnostic) -> Diagnostic {
        let Some(line) = diagnostic.line.filter(|_| diagnostic.source == *self.main.source()) else {
            return diagnostic;
        };
        let after = self.included.partition_point(|text| text.lines_before < line);
        let Some(text) = after.checked_sub(1).map(|last| &self.included[last]) else { return diagnostic };
        diagnostic.source = Arc::clone(&text.name);
        diagnostic.line = Some(line - text.lines_before);
        if let Some(path) = text.own_path(&diagnostic.path) {
            diagnostic.path = path;
        }
        diagnostic
    }
}

impl IncludedText {
    /// The path with the index that the item has in its own file; `None` if it does not change.
    fn own_path(&self, path: &str) -> Option<String> {
        let (list, rest) = path.split_once('[')?;
        let (index, rest) = rest.split_once(']')?;
        let (_, before) = self.items_before.iter().find(|(key, _)| **key == *list)?;
        let own = index.parse::<usize>().ok()?.checked_sub(*before)?;
        Some(format!("{list}[{own}]{rest}"))
    }
}

fn is_list_of_resources(key: &str) -> bool {
    kinds::find(key).is_some()
}

/// Appends the items of the lists of one tree to those of another. Returns how many items each list had before.
fn append(tree: &mut TreeNode, added: TreeNode) -> Vec<(Box<str>, usize)> {
    let (NodeKind::Map(entries), NodeKind::Map(added)) = (&mut tree.kind, added.kind) else { return Vec::new() };
    let mut before = Vec::new();
    for entry in added {
        let NodeKind::List(items) = entry.value.kind else { continue };
        if !is_list_of_resources(&entry.key) {
            continue;
        }
        let known = entries.iter_mut().find(|known| known.key == entry.key);
        let count = match known.map(|known| &mut known.value.kind) {
            Some(NodeKind::List(known)) => {
                let count = known.len();
                known.extend(items);
                count
            }
            // A key without a value counts as absent. Any other value that is not a list is reported elsewhere.
            Some(kind @ NodeKind::Null) => {
                *kind = NodeKind::List(items);
                0
            }
            Some(_) => 0,
            None => {
                let value = TreeNode { kind: NodeKind::List(items), ..entry.value };
                let MapEntry { ref key, key_place, key_end, .. } = entry;
                entries.push(MapEntry { key: key.clone(), key_place, key_end, value });
                0
            }
        };
        before.push((entry.key, count));
    }
    before
}

/// Adds the pointers to the texts below a value in which a variable was replaced.
fn find_variables(
    text: &SourceText,
    lines_before: u32,
    node: &TreeNode,
    pointer: &mut String,
    found: &mut Vec<String>,
) {
    let length = pointer.len();
    match &node.kind {
        NodeKind::Text(_) => {
            let line = |place: TextPosition| TextPosition { line: place.line.saturating_sub(lines_before), ..place };
            if text.has_variable(line(node.place), line(node.end)) {
                found.push(pointer.clone());
            }
        }
        NodeKind::List(items) => {
            for (index, item) in items.iter().enumerate() {
                pointer.push_str(&format!("/{index}"));
                find_variables(text, lines_before, item, pointer, found);
                pointer.truncate(length);
            }
        }
        NodeKind::Map(entries) => {
            for MapEntry { key, value, .. } in entries {
                pointer.push('/');
                pointer.push_str(&key.replace('~', "~0").replace('/', "~1"));
                find_variables(text, lines_before, value, pointer, found);
                pointer.truncate(length);
            }
        }
        NodeKind::Null | NodeKind::Bool(_) | NodeKind::Number(_) => {}
    }
}

/// Moves all positions down by this many lines.
fn shift(node: &mut TreeNode, lines: u32) {
    for place in [&mut node.place, &mut node.end] {
        place.line = place.line.saturating_add(lines);
    }
    match &mut node.kind {
        NodeKind::List(items) => items.iter_mut().for_each(|item| shift(item, lines)),
        NodeKind::Map(entries) => {
            for MapEntry { key_place, key_end, value, .. } in entries {
                for place in [key_place, key_end] {
                    place.line = place.line.saturating_add(lines);
                }
                shift(value, lines);
            }
        }
        _ => {}
    }
}

type ListAndId = (Box<str>, Box<str>);
type FileAndPlace = (Arc<str>, TextPosition);

/// Checks the texts of one document together.
struct Merger {
    /// The file and position of each resource, by list and id.
    known: HashMap<ListAndId, FileAndPlace>,
    faults: Vec<Diagnostic>,
    is_complete: bool,
}

impl Merger {
    fn into_faults(self) -> MergeFaults {
        MergeFaults { faults: self.faults, is_complete: self.is_complete }
    }

    fn report(&mut self, source: &Arc<str>, path: String, place: TextPosition, problem: String, advice: String) {
        let fault = Diagnostic::at_place(source, place, problem).advise(advice);
        self.faults.push(Diagnostic { path, ..fault });
    }

    /// The file and position of an earlier resource with this id; if there is none, this one is recorded.
    fn first_of(&mut self, list: &str, id: &str, (name, place): (&Arc<str>, TextPosition)) -> Option<FileAndPlace> {
        match self.known.entry((list.into(), id.into())) {
            Slot::Occupied(first) => Some(first.get().clone()),
            Slot::Vacant(slot) => {
                slot.insert((Arc::clone(name), place));
                None
            }
        }
    }

    /// Reports content that is not allowed in an included file.
    fn check(&mut self, name: &Arc<str>, tree: &TreeNode) {
        let NodeKind::Map(entries) = &tree.kind else {
            self.is_complete = false;
            let problem = "expected a map with lists of resources".to_owned();
            return self.report(name, String::new(), tree.place, problem, "write as `routes: [...]`".to_owned());
        };
        for MapEntry { key, key_place, value, .. } in entries.iter().filter(|entry| &*entry.key != "include") {
            if !is_list_of_resources(key) {
                let shown = shortened(key);
                let problem = format!("`{shown}` is not a list of resources, and an included file has nothing else");
                let advice = "move settings of the node to the file that `weir` is started with".to_owned();
                self.report(name, key.to_string(), *key_place, problem, advice);
            } else if !matches!(value.kind, NodeKind::List(_) | NodeKind::Null) {
                self.is_complete = false;
                let problem = "expected a list".to_owned();
                self.report(name, key.to_string(), value.place, problem, format!("write as `{key}: [...]`"));
            }
        }
    }

    /// Reports ids that occur twice, in one file or in two, and puts others in their place: the faults of such resources are told as well,
    /// and this one is told once.
    fn note_ids(&mut self, name: &Arc<str>, tree: &mut TreeNode, lines_before: u32) {
        let NodeKind::Map(entries) = &mut tree.kind else { return };
        for MapEntry { key: list, value, .. } in entries.iter_mut().filter(|entry| is_list_of_resources(&entry.key)) {
            let NodeKind::List(items) = &mut value.kind else { continue };
            for (index, item) in items.iter_mut().enumerate() {
                let Some(id) = id_of(item) else { continue };
                let place = TextPosition { line: item.place.line - lines_before, ..item.place };
                let Some((other, at)) = self.first_of(list, &id, (name, place)) else { continue };
                let problem = format!("the id `{}` is already in use", shortened(&id));
                let advice = format!("{other}:{}:{} has this id; choose another id", at.line, at.column);
                self.report(name, format!("{list}[{index}]"), place, problem, advice);
                rename(item, self.faults.len());
            }
        }
    }
}

/// Gives a resource another id of the same form.
fn rename(item: &mut TreeNode, number: usize) {
    let NodeKind::Map(entries) = &mut item.kind else { return };
    let key = if entries.iter().any(|entry| &*entry.key == "username") { "username" } else { "id" };
    let Some(entry) = entries.iter_mut().find(|entry| &*entry.key == key) else { return };
    let kept = match &entry.value.kind {
        // The kind of a secret manager.
        NodeKind::Text(id) => id.rsplit_once('/').map(|(kind, _)| format!("{kind}/")),
        _ => None,
    };
    entry.value.kind = NodeKind::Text(format!("{}again_{number}", kept.unwrap_or_default()).into());
}

/// The id of a resource, or its `username`, if present.
fn id_of(item: &TreeNode) -> Option<Box<str>> {
    let entry = item.entry("username").or_else(|| item.entry("id"))?;
    match &entry.value.kind {
        NodeKind::Text(text) => Some(text.clone()),
        NodeKind::Number(number) => Some(number.to_string().into()),
        _ => None,
    }
}

/// The reader for texts that did not come from a file: it refuses all includes.
pub(crate) fn refuse_files(source: &Arc<str>, include: &TreeNode) -> IncludedFiles {
    let fault = Diagnostic::at_place(source, include.place, "files cannot be included here");
    let fault = Diagnostic { path: "include".to_owned(), ..fault.advise("write the resources themselves") };
    IncludedFiles { faults: vec![fault], ..IncludedFiles::default() }
}

impl IncludedFile {
    /// # Errors
    /// If the text is not YAML, or has duplicate keys.
    pub fn parse(name: Arc<str>, text: SourceText) -> Result<IncludedFile, Vec<Diagnostic>> {
        let Parsed { tree, faults } = text.parse()?;
        if faults.is_empty() { Ok(IncludedFile { name, text, tree }) } else { Err(faults) }
    }
}
