//! The values of a file, with its variables replaced.

use std::sync::Arc;

use crate::stores::draft::DraftFile;
use crate::text::diagnostic::Diagnostic;
use crate::text::substitute::{VariableChoice, VariableLookup};
use crate::text::tree::{NodeKind, TextPosition, TreeNode};
use crate::text::yaml::{Parsed, SourceText, TextLimits};

/// What a file says now, and what it would say without the values of those variables that have a default. What is kept secret must be so
/// in both.
pub(super) const CHOICES: [VariableChoice; 2] = [VariableChoice::ValueFirst, VariableChoice::DefaultFirst];

/// # Errors
/// If the text is not YAML, has keys twice, or uses variables that are not set.
pub(super) fn tree(
    file: &DraftFile,
    lookup: VariableLookup,
    choice: VariableChoice,
) -> Result<TreeNode, Vec<Diagnostic>> {
    let source: Arc<str> = (&*file.name).into();
    let Parsed { tree, faults } =
        SourceText::choosing(&source, &file.text, lookup, TextLimits::default(), choice)?.parse()?;
    if faults.is_empty() { Ok(tree) } else { Err(faults) }
}

/// Visits the texts of a tree, keys included.
pub(super) fn for_each_text(node: &TreeNode, visit: &mut dyn FnMut(&str, TextPosition)) {
    match &node.kind {
        NodeKind::Text(text) => visit(text, node.place),
        NodeKind::List(items) => items.iter().for_each(|item| for_each_text(item, visit)),
        NodeKind::Map(entries) => {
            for entry in entries {
                visit(&entry.key, entry.key_place);
                for_each_text(&entry.value, visit);
            }
        }
        NodeKind::Null | NodeKind::Bool(_) | NodeKind::Number(_) => {}
    }
}

/// The environment variable that a text is a reference to.
pub(super) fn environment_reference(text: &str) -> Option<&str> {
    let scheme = "$env://";
    let is_one = text.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme));
    // It may name a member of the JSON in the variable.
    is_one.then(|| text[scheme.len()..].split('/').next().unwrap_or_default())
}
