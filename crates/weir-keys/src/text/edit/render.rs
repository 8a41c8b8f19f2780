//! New values as text, in the manner of the text around them.

use saphyr_parser::ScalarStyle;
use serde_json::Value;

use super::syntax::{SyntaxKind, SyntaxNode, line_start};
use crate::text::tree::NodeKind;
use crate::text::yaml::scalar_of;

/// The longest collection that is written into one line, where there is a choice.
const ONE_LINE: usize = 80;

/// How a text is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct WritingStyle {
    /// It is JSON: texts are in quotes, and lists and maps in brackets.
    pub is_json: bool,
    pub newline: &'static str,
    /// The columns from a key to those below.
    pub step: usize,
    /// The columns from a key to the dashes of its list.
    pub dash: usize,
    /// Braces have spaces inside.
    pub is_spaced: bool,
    /// JSON in more than one line.
    pub is_long: bool,
}

impl WritingStyle {
    pub(super) fn of(text: &str, root: &SyntaxNode) -> WritingStyle {
        let is_json = serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
        let newline = match text.find('\n') {
            Some(at) if text[..at].ends_with('\r') => "\r\n",
            _ => "\n",
        };
        let (mut step, mut dash) = (None, None);
        root.visit(&mut |node| {
            let SyntaxKind::Map { entries, is_flow } = &node.kind else { return };
            for entry in entries {
                let column = |at: usize| at - line_start(text, at);
                let (own, below) = (column(entry.start), column(entry.value.core));
                let is_on_a_line_of_its_own = line_start(text, entry.value.core) > entry.start;
                match &entry.value.kind {
                    SyntaxKind::Map { is_flow: false, .. } if is_on_a_line_of_its_own => {
                        step.get_or_insert(below.saturating_sub(own));
                    }
                    SyntaxKind::List { is_flow: false, .. } if is_on_a_line_of_its_own => {
                        dash.get_or_insert(below.saturating_sub(own));
                    }
                    _ => {}
                }
            }
            if let (true, true, Some(first)) = (is_json, *is_flow, entries.first()) {
                let (own, outer) = (line_start(text, first.start), line_start(text, node.core));
                if own > outer {
                    let indent = |line: usize| text[line..].len() - text[line..].trim_start_matches(' ').len();
                    step.get_or_insert(indent(own).saturating_sub(indent(outer)));
                }
            }
        });
        WritingStyle {
            is_json,
            newline,
            step: step.filter(|step| *step > 0).unwrap_or(2),
            dash: dash.unwrap_or(2),
            is_spaced: text.contains("{ ") || !text.split('{').skip(1).any(|rest| !rest.starts_with(['}', '\r', '\n'])),
            is_long: text.trim_end().contains('\n'),
        }
    }

    /// A text, number, or other value without parts.
    pub(super) fn scalar(&self, value: &Value, style: Option<ScalarStyle>, is_flow: bool) -> String {
        let Value::String(text) = value else { return value.to_string() };
        let is_single = text.chars().all(|c| !c.is_control() && c != '\u{feff}');
        match style {
            _ if self.is_json => value.to_string(),
            Some(ScalarStyle::DoubleQuoted) => value.to_string(),
            Some(ScalarStyle::SingleQuoted) if is_single => format!("'{}'", text.replace('\'', "''")),
            _ if is_plain(text, is_flow) && matches!(scalar_of(text), NodeKind::Text(_)) => text.clone(),
            _ => value.to_string(),
        }
    }

    pub(super) fn key(&self, key: &str, is_flow: bool, is_quoted: bool) -> String {
        match !self.is_json && !is_quoted && key != "<<" && is_plain(key, is_flow) {
            true => key.to_owned(),
            false => Value::from(key).to_string(),
        }
    }

    /// A value in brackets, in one line.
    pub(super) fn flow(&self, value: &Value) -> String {
        if self.is_json && !self.is_long {
            return value.to_string();
        }
        match value {
            Value::Array(items) => {
                format!("[{}]", items.iter().map(|item| self.flow(item)).collect::<Vec<_>>().join(", "))
            }
            Value::Object(members) if members.is_empty() => "{}".to_owned(),
            Value::Object(members) => {
                let pair =
                    |(key, value): (&String, &Value)| format!("{}: {}", self.key(key, true, false), self.flow(value));
                let all = members.iter().map(pair).collect::<Vec<_>>().join(", ");
                if self.is_spaced { format!("{{ {all} }}") } else { format!("{{{all}}}") }
            }
            value => self.scalar(value, None, true),
        }
    }

    /// A value inside brackets, at a column of its line: JSON in several lines if the text is.
    pub(super) fn inside(&self, value: &Value, indent: usize) -> String {
        if !(self.is_json && self.is_long) || self.flow(value).len() <= ONE_LINE / 2 {
            return self.flow(value);
        }
        let break_to = |column: usize| format!("{}{}", self.newline, " ".repeat(column));
        let deeper = indent + self.step;
        let all = |parts: Vec<String>| parts.join(&format!(",{}", break_to(deeper)));
        match value {
            Value::Array(items) if !items.is_empty() => {
                let parts = items.iter().map(|item| self.inside(item, deeper)).collect();
                format!("[{}{}{}]", break_to(deeper), all(parts), break_to(indent))
            }
            Value::Object(members) if !members.is_empty() => {
                let pair = |(key, value): (&String, &Value)| {
                    format!("{}: {}", Value::from(key.as_str()), self.inside(value, deeper))
                };
                let parts = members.iter().map(pair).collect();
                format!("{{{}{}{}}}", break_to(deeper), all(parts), break_to(indent))
            }
            value => self.flow(value),
        }
    }

    /// Whether a value is written into the line of its key.
    pub(super) fn is_inline(&self, value: &Value) -> bool {
        match value {
            _ if self.is_json => true,
            Value::Array(items) => {
                let has_parts = |item: &Value| item.is_object() || item.is_array();
                !items.iter().any(has_parts) && self.flow(value).len() <= ONE_LINE
            }
            Value::Object(members) => members.is_empty(),
            Value::String(text) => literal(text).is_none(),
            _ => true,
        }
    }

    /// What stands behind a colon: ` value`, or lines below it. `column` is that of the key.
    pub(super) fn behind_colon(&self, value: &Value, column: usize) -> String {
        if self.is_inline(value) {
            return format!(" {}", self.inside_or_scalar(value));
        }
        let lines = |column: usize| format!("{}{}{}", self.newline, " ".repeat(column), self.block(value, column));
        match value {
            Value::Array(_) => lines(column + self.dash),
            Value::Object(_) => lines(column + self.step),
            _ => format!(" {}", self.block(value, column + self.step)),
        }
    }

    fn inside_or_scalar(&self, value: &Value) -> String {
        match value {
            Value::Array(_) | Value::Object(_) => self.flow(value),
            value => self.scalar(value, None, false),
        }
    }

    /// A value whose first character is at `column`, in lines.
    pub(super) fn block(&self, value: &Value, column: usize) -> String {
        let next = format!("{}{}", self.newline, " ".repeat(column));
        match value {
            Value::Array(items) if !self.is_inline(value) => {
                items.iter().map(|item| format!("- {}", self.block(item, column + 2))).collect::<Vec<_>>().join(&next)
            }
            Value::Object(members) if !self.is_inline(value) => {
                let pair = |(key, value): (&String, &Value)| {
                    format!("{}:{}", self.key(key, false, false), self.behind_colon(value, column))
                };
                members.iter().map(pair).collect::<Vec<_>>().join(&next)
            }
            Value::String(text) => match literal(text) {
                Some(header) => format!("{header}{next}{}", literal_lines(text, &next)),
                None => self.scalar(value, None, false),
            },
            value => self.inside_or_scalar(value),
        }
    }

    /// A map or list in the manner of those beside it: in one line, if all of them are.
    pub(super) fn is_like_flow<'n>(&self, value: &Value, mut beside: impl Iterator<Item = &'n SyntaxNode>) -> bool {
        let is_collection = |value: &&SyntaxNode| match &value.kind {
            SyntaxKind::List { items, .. } => !items.is_empty(),
            SyntaxKind::Map { entries, .. } => !entries.is_empty(),
            _ => false,
        };
        let mut all = beside.by_ref().filter(is_collection).peekable();
        let fits = (value.is_object() || value.is_array()) && self.flow(value).len() <= ONE_LINE;
        fits && all.peek().is_some() && all.all(|value| !value.is_block())
    }
}

/// The lines of a literal block scalar.
pub(super) fn literal_lines(text: &str, next: &str) -> String {
    let newline = &next[..next.len() - next.trim_start_matches(['\r', '\n']).len()];
    let lines = text.trim_end_matches('\n').split('\n').enumerate();
    lines.fold(String::new(), |mut all, (index, line)| {
        // Blank lines have no indentation.
        all.push_str(match (index, line.is_empty()) {
            (0, _) => "",
            (_, true) => newline,
            (_, false) => next,
        });
        all + line
    })
}

/// The header with which a text of several lines can be a literal block scalar.
pub(super) fn literal(text: &str) -> Option<&'static str> {
    let body = text.strip_suffix('\n').unwrap_or(text);
    let is_fit = body.contains('\n')
        && !body.starts_with([' ', '\n', '\t'])
        && !body.ends_with('\n')
        && body.split('\n').all(|line| !line.ends_with([' ', '\t']))
        && body
            .chars()
            .all(|c| c == '\n' || (!c.is_control() && !matches!(c, '\u{85}' | '\u{2028}' | '\u{2029}' | '\u{feff}')));
    is_fit.then_some(if body.len() == text.len() { "|-" } else { "|" })
}

/// Whether a text means itself without quotes.
fn is_plain(text: &str, is_flow: bool) -> bool {
    let indicators =
        ['-', '?', ':', ',', '[', ']', '{', '}', '#', '&', '*', '!', '|', '>', '\'', '"', '%', '@', '`', '=', '<'];
    let begins = |text: &str| !text.starts_with(indicators) || text.starts_with(":") && text.len() > 1 && !is_flow;
    !text.is_empty()
        && begins(text)
        && text.trim() == text
        && !text.ends_with(':')
        && !text.contains(": ")
        && !text.contains(" #")
        && !text.starts_with("...")
        && !text
            .chars()
            .any(|c| c.is_control() || matches!(c, '\u{85}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{a0}'))
        && !(is_flow && text.contains([',', '[', ']', '{', '}', ':', '"', '\'']))
}
