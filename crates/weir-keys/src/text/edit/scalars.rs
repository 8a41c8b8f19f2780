//! Where the single values of a text are written.

use std::ops::Range;
use std::sync::Arc;

use super::syntax::{self, SyntaxKind, SyntaxNode};
use crate::text::diagnostic::Diagnostic;
use crate::text::substitute::masked;
use crate::text::tree::TextPosition;

/// A value without parts, as it is written.
#[derive(Debug)]
struct WrittenScalar {
    /// With its anchor and tag.
    start: usize,
    /// Without them.
    core: usize,
    end: usize,
}

/// The single values of a text, each where it is written: an alias stands for the value of its anchor. Keys are none of them.
#[derive(Debug)]
pub struct WrittenScalars {
    /// In the order of the text.
    all: Vec<WrittenScalar>,
    /// The offset of each line.
    lines: Vec<usize>,
}

impl WrittenScalars {
    /// # Errors
    /// If the text has faults, or keys that have no place, such as aliases.
    pub fn of(source: &Arc<str>, text: &str) -> Result<WrittenScalars, Vec<Diagnostic>> {
        let mark = if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
        let masked = masked(source, &text[mark..])?;
        let Some(root) = syntax::parse(&masked) else {
            let fault = Diagnostic::of_source(source, "has keys that cannot be found by place");
            return Err(vec![fault.advise("change the text")]);
        };
        let mut all = Vec::new();
        root.visit(&mut |node: &SyntaxNode| {
            if matches!(node.kind, SyntaxKind::Scalar(_)) {
                all.push(WrittenScalar { start: node.start + mark, core: node.core + mark, end: node.end + mark });
            }
        });
        all.sort_by_key(|scalar| scalar.start);
        let starts = text.match_indices('\n').map(|(at, _)| at + 1);
        Ok(WrittenScalars { all, lines: std::iter::once(mark).chain(starts).collect() })
    }

    /// The value that is written at a place: its range in bytes, without its anchor and its tag. `None` if none is.
    pub fn at(&self, text: &str, place: TextPosition) -> Option<Range<usize>> {
        let line = *self.lines.get((place.line as usize).checked_sub(1)?)?;
        let column = (place.column as usize).checked_sub(1)?;
        let offset = line + text[line..].char_indices().nth(column).map_or(text.len() - line, |(at, _)| at);
        self.around(offset)
    }

    /// The value around an offset.
    pub fn around(&self, offset: usize) -> Option<Range<usize>> {
        let before = self.all.partition_point(|scalar| scalar.start <= offset);
        let found = &self.all[before.checked_sub(1)?];
        (offset < found.end.max(found.start + 1)).then_some(found.core..found.end)
    }
}
