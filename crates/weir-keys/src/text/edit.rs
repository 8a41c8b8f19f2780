//! Changes of a text by operations on its values: the smallest change of the text, in which comments, anchors, quotes, blank lines
//! and line ends stay as they are.
//!
//! Each result is parsed again. If its values are not those of the old text with the operations applied, the edit is refused.

mod budget;
mod change;
mod expanded;
mod operation;
mod render;
mod scalars;
mod shared;
mod syntax;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde_json::Value;

pub use budget::{EditBudget, MAX_OPERATIONS};
pub use expanded::WrittenPlaces;
pub use operation::{EditOperation, difference};
pub use scalars::WrittenScalars;

use change::{EditedText, Patches};
use operation::EditStep;
use render::WritingStyle;

use crate::text::diagnostic::Diagnostic;
use crate::text::substitute::masked;
use crate::text::tree::TextPosition;
use crate::text::yaml::{self, TextLimits};

/// Why a place cannot be changed.
#[derive(Debug)]
struct EditProblem {
    /// Offset in bytes.
    place: usize,
    problem: String,
    advice: &'static str,
    /// Another place, which would change as well.
    also: Option<usize>,
}

impl EditProblem {
    fn at(place: usize, problem: impl Into<String>, advice: &'static str) -> EditProblem {
        EditProblem { place, problem: problem.into(), advice, also: None }
    }
}

/// The text after the operations, in their order. Variables in it count as the texts that they are written as. What it costs is taken
/// from the budget.
///
/// # Errors
/// If the text has faults, an operation does not fit it, or cannot be done without changing other values, or the budget is spent.
pub fn edit(
    source: &Arc<str>,
    text: &str,
    operations: &[EditOperation],
    budget: &mut EditBudget,
) -> Result<String, Vec<Diagnostic>> {
    let one = |fault: Diagnostic| vec![fault];
    let refused = |problem: String, advice: &str| one(Diagnostic::of_source(source, problem).advise(advice));
    let overspent = |problem: String| refused(problem, "make the change in several requests");
    budget.operations(operations.len()).and_then(|()| budget.reading(2 * text.len())).map_err(overspent)?;
    let limits = TextLimits::default();
    let mut old = values(source, text, limits)?;
    let (mut now, mut made) = (text.to_owned(), 0);
    for operation in operations {
        let steps = operation.steps(&old).map_err(|problem| refused(problem, "read the file again"))?;
        for step in steps {
            made += 1;
            budget.step(now.len()).map_err(overspent)?;
            refuse_variable(&step).map_err(|problem| refused(problem, "write the variable in the text"))?;
            now = stepped(source, &now, &step).map_err(one)?;
            step.apply(&mut old);
        }
    }
    match made == 0 || values(source, &now, limits).is_ok_and(|values| values == old) {
        true => Ok(now),
        false => Err(refused("the change cannot be made by place in this text".to_owned(), "make it in the text")),
    }
}

/// The values of a text, with variables as they are written.
fn values(source: &Arc<str>, text: &str, limits: TextLimits) -> Result<Value, Vec<Diagnostic>> {
    let parsed = yaml::parse(source, &masked(source, text)?, &|_| None, limits)?;
    match parsed.faults.is_empty() {
        true => Ok(parsed.tree.to_json()),
        false => Err(parsed.faults),
    }
}

/// A value in which a variable would be replaced does not mean what it says.
fn refuse_variable(step: &EditStep) -> Result<(), String> {
    let (EditStep::Replace(path, value) | EditStep::AddKey(path, value) | EditStep::Insert(path, _, value)) = step
    else {
        return Ok(());
    };
    let key = path.last().filter(|_| matches!(step, EditStep::AddKey(..)));
    match value.to_string().contains("${{") || key.is_some_and(|key| key.contains("${{")) {
        true => Err(format!("`${{{{` in `{}` would be a variable", operation::pointer(path))),
        false => Ok(()),
    }
}

fn stepped(source: &Arc<str>, text: &str, step: &EditStep) -> Result<String, Diagnostic> {
    // A byte order mark is not part of the text.
    let (mark, text) = text.split_at(if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 });
    let masked = masked(source, text).map_err(|faults| faults.into_iter().next().expect("there is a fault"))?;
    let unknown = || Diagnostic::of_source(source, "has keys that cannot be edited by place").advise("change the text");
    let root = syntax::parse(&masked).ok_or_else(unknown)?;
    let manner = WritingStyle::of(&masked, &root);
    let edited = EditedText { text: &masked, written: text, root: &root, manner };
    let patches = edited.patches(step).map_err(|problem| told(source, text, problem))?;
    Ok(mark.to_owned() + &patched(text, patches))
}

fn patched(text: &str, mut patches: Patches) -> String {
    // The sort is stable: of two at one place, the first stays before the second.
    patches.sort_by_key(|(range, _)| (range.start, range.end));
    let mut new = String::with_capacity(text.len());
    let mut copied = 0;
    for (range, put) in patches {
        new.push_str(text.get(copied..range.start).unwrap_or_default());
        new.push_str(&put);
        copied = copied.max(range.end);
    }
    new + &text[copied..]
}

fn told(source: &Arc<str>, text: &str, problem: EditProblem) -> Diagnostic {
    let EditProblem { place, problem, advice, also } = problem;
    let problem = match also.map(|also| position(text, also)) {
        Some(also) => format!("{problem}; it is used at {}:{}", also.line, also.column),
        None => problem,
    };
    Diagnostic::at_place(source, position(text, place), problem).advise(advice)
}

/// The place of an offset in bytes.
pub fn position(text: &str, at: usize) -> TextPosition {
    let before = &text[..at];
    let line = before.matches('\n').count() as u32 + 1;
    TextPosition { line, column: before[syntax::line_start(text, at)..].chars().count() as u32 + 1 }
}
