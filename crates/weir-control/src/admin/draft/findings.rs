//! Findings about a draft as they are sent: each with its file and both of its ends.

use http::StatusCode;
use serde_json::{Value, json};

use super::trees::tree;
use crate::admin::answer::{self, AdminResponse, json_of, list_findings};
use crate::stores::draft::DraftFile;
use crate::text::diagnostic::Diagnostic;
use crate::text::substitute::{VariableChoice, process_environment};
use crate::text::tree::{NodeKind, TextPosition, TreeNode};

/// A refusal with the places of its reasons.
pub(super) fn refused_with(status: StatusCode, faults: &[Diagnostic]) -> AdminResponse {
    let mut body = json!({ "error_msg": faults.first().map(Diagnostic::to_string) });
    list_findings(&mut body, "diagnostics", faults, |fault| {
        let mut told = answer::diagnostic(fault);
        told["file"] = (&*fault.source).into();
        told["line"] = fault.line.into();
        told["column"] = fault.column.into();
        told
    });
    json_of(status, &body)
}

/// The trees of the files, to find the ends of what findings are about.
pub(super) struct PlacesOfWords<'a>(Vec<(&'a str, Option<TreeNode>)>);

impl<'a> PlacesOfWords<'a> {
    pub(super) fn of(files: &'a [DraftFile]) -> PlacesOfWords<'a> {
        let tree = |file| tree(file, &process_environment, VariableChoice::ValueFirst).ok();
        PlacesOfWords(files.iter().map(|file| (&*file.name, tree(file))).collect())
    }

    pub(super) fn told(&self, found: &Diagnostic, severity: &str) -> Value {
        let mut told = answer::diagnostic(found);
        told["severity"] = severity.into();
        told["file"] = (&*found.source).into();
        let (Some(line), Some(column)) = (found.line, found.column) else { return told };
        let place = TextPosition { line, column };
        let tree = self.0.iter().find(|(name, _)| **name == *found.source).and_then(|(_, tree)| tree.as_ref());
        let end = tree.and_then(|tree| end_of(tree, place)).filter(|end| *end > place);
        let end = end.unwrap_or(TextPosition { line, column: column + 1 });
        told["line"] = line.into();
        told["column"] = column.into();
        told["end_line"] = end.line.into();
        told["end_column"] = end.column.into();
        told
    }
}

/// The end of the key or value that begins at a place: a key rather than its map, which begins with it.
fn end_of(node: &TreeNode, place: TextPosition) -> Option<TextPosition> {
    match &node.kind {
        NodeKind::Map(entries) => {
            let key = entries.iter().find(|entry| entry.key_place == place).map(|entry| entry.key_end);
            key.or_else(|| entries.iter().find_map(|entry| end_of(&entry.value, place)))
        }
        NodeKind::List(items) => items.iter().find_map(|item| end_of(item, place)),
        _ => None,
    }
    .or_else(|| (node.place == place).then_some(node.end))
}
