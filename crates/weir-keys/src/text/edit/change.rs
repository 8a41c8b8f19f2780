//! One step of an edit as replacements in the text.

use std::ops::Range;

use serde_json::Value;

use super::operation::{EditStep, index_of};
use super::render::{WritingStyle, literal, literal_lines};
use super::syntax::{SyntaxEntry, SyntaxKind, SyntaxNode, line_end, line_start};
use super::{EditProblem, shared};

/// Ranges of the old text and what takes their places.
pub(super) type Patches = Vec<(Range<usize>, String)>;

/// A text that is edited.
pub(super) struct EditedText<'t> {
    /// With words in place of variables.
    pub text: &'t str,
    /// As it is written, which is as long.
    pub written: &'t str,
    pub root: &'t SyntaxNode,
    pub manner: WritingStyle,
}

/// A value with what is around it.
#[derive(Clone, Copy)]
struct FoundValue<'n> {
    node: &'n SyntaxNode,
    /// The column of the key, or of the dash; the value's own lines are to the right of it.
    column: usize,
    /// Behind the colon or the dash.
    gap: usize,
    is_in_flow: bool,
    /// It follows a dash.
    is_item: bool,
}

/// What stands between the brackets of a list or map.
struct FlowParts {
    open: usize,
    close: usize,
    parts: Vec<Range<usize>>,
}

impl<'t> EditedText<'t> {
    pub(super) fn patches(&self, step: &EditStep) -> Result<Patches, EditProblem> {
        match step {
            EditStep::Replace(path, value) => {
                if let Some((key, map)) = self.overriding(path)? {
                    return self.add_key(map, key, value);
                }
                let found = self.find(path, false)?;
                shared::refuse_loss(self.root, found.node)?;
                Ok(self.replace(found, value))
            }
            EditStep::AddKey(path, value) => {
                let (key, map) = path.split_last().expect("it ends with a key");
                self.add_key(self.find(map, true)?, key, value)
            }
            EditStep::RemoveKey(path) => {
                let (key, map) = path.split_last().expect("it ends with a key");
                let found = self.find(map, true)?;
                let SyntaxKind::Map { entries, .. } = &found.node.kind else { return Err(unexpected(found.node)) };
                let index = entries.iter().position(|entry| !entry.is_merge && *entry.key == **key);
                let Some(index) = index else { return Err(merged(found.node, entries)) };
                shared::refuse_loss(self.root, &entries[index].value)?;
                // Without it, the key would have the value of the other map.
                if shared::is_merged(self.root, entries, key) {
                    return Err(merged(found.node, entries));
                }
                Ok(self.remove_entry(found, entries, index))
            }
            EditStep::Insert(path, index, value) => {
                let found = self.find(path, true)?;
                Ok(self.insert(found, *index, value))
            }
            EditStep::RemoveItem(path, index) => {
                let found = self.find(path, true)?;
                let SyntaxKind::List { items, .. } = &found.node.kind else { return Err(unexpected(found.node)) };
                shared::refuse_loss(self.root, &items[*index].value)?;
                Ok(self.remove_item(found, *index))
            }
            EditStep::Move(path, from, to) => {
                let found = self.find(path, true)?;
                self.move_item(found, *from, *to)
            }
        }
    }

    /// The value at a path. `is_changed_inside`: what follows is below it.
    fn find(&self, path: &[String], is_changed_inside: bool) -> Result<FoundValue<'t>, EditProblem> {
        let mut found =
            FoundValue { node: self.root, column: 0, gap: self.root.core, is_in_flow: false, is_item: true };
        for step in path {
            shared::refuse_shared(self.root, found.node)?;
            let column = |at: usize| at - line_start(self.text, at);
            found = match &found.node.kind {
                SyntaxKind::Map { entries, is_flow } => {
                    let entry = entries.iter().find(|entry| !entry.is_merge && *entry.key == **step);
                    let entry = entry.ok_or_else(|| merged(found.node, entries))?;
                    let gap = entry.colon.unwrap_or(entry.key_end);
                    FoundValue {
                        node: &entry.value,
                        column: column(entry.start),
                        gap,
                        is_in_flow: found.is_in_flow || *is_flow,
                        is_item: false,
                    }
                }
                SyntaxKind::List { items, is_flow } => {
                    let item =
                        index_of(step).and_then(|index| items.get(index)).ok_or_else(|| unexpected(found.node))?;
                    let gap = if *is_flow { item.start } else { item.start + 1 };
                    FoundValue {
                        node: &item.value,
                        column: column(item.start),
                        gap,
                        is_in_flow: found.is_in_flow || *is_flow,
                        is_item: true,
                    }
                }
                _ => return Err(unexpected(found.node)),
            };
        }
        if is_changed_inside || !matches!(found.node.kind, SyntaxKind::Alias(_)) {
            shared::refuse_shared(self.root, found.node)?;
        }
        Ok(found)
    }

    /// The map and the key, if the key has its value from another map: one of its own goes first.
    fn overriding<'p>(&self, path: &'p [String]) -> Result<Option<(&'p str, FoundValue<'t>)>, EditProblem> {
        let Some((key, map)) = path.split_last() else { return Ok(None) };
        let found = self.find(map, true)?;
        let SyntaxKind::Map { entries, .. } = &found.node.kind else { return Ok(None) };
        let is_own = entries.iter().any(|entry| !entry.is_merge && *entry.key == **key);
        Ok((!is_own && shared::is_merged(self.root, entries, key)).then_some((key, found)))
    }

    fn begins_line(&self, at: usize) -> bool {
        self.text[line_start(self.text, at)..at].bytes().all(|byte| byte == b' ' || byte == b'\t')
    }

    /// Behind the end of the line of a place, with the line end; and what an inserted line must be preceded by.
    fn after_line(&self, at: usize) -> (usize, bool) {
        let end = line_end(self.text, at);
        if end < self.text.len() { (end + 1, true) } else { (end, false) }
    }

    /// Inserts lines, without their last line end, below the line of a place.
    fn lines_below(&self, at: usize, lines: &str) -> Patches {
        let newline = self.manner.newline;
        match self.after_line(at) {
            (place, true) => vec![(place..place, format!("{lines}{newline}"))],
            (place, false) => vec![(place..place, format!("{newline}{lines}"))],
        }
    }

    /// The whole lines of a range.
    fn lines_of(&self, range: Range<usize>) -> Range<usize> {
        let start = line_start(self.text, range.start);
        match self.after_line(range.end) {
            (end, true) => start..end,
            // The text has no last line end, neither before nor after.
            (end, false) => {
                self.text[..start].strip_suffix('\n').map_or(start, |rest| rest.trim_end_matches('\r').len())..end
            }
        }
    }

    /// A value in the place of another.
    fn replace(&self, found: FoundValue, value: &Value) -> Patches {
        let FoundValue { node, .. } = found;
        // A tag says what the old value is; an anchor stays.
        let core = if node.anchor > 0 { node.core } else { node.start };
        if found.is_in_flow {
            return self.replace_in_flow(found, core, value);
        }
        if let (SyntaxKind::Scalar(_), true) = (&node.kind, node.is_block_scalar()) {
            return self.replace_block_scalar(node, core, value);
        }
        let style = match node.kind {
            SyntaxKind::Scalar(style) => Some(style),
            _ => None,
        };
        let is_collection = matches!(node.kind, SyntaxKind::List { .. } | SyntaxKind::Map { .. });
        let is_empty = !node.is_block() && self.text[node.core..node.end].len() <= "{ }".len();
        let is_small = |value: &Value| match value {
            Value::Object(members) => members.values().all(|value| self.manner.is_inline(value)),
            _ => true,
        };
        let is_flow = is_collection && !node.is_block() && (!is_empty || is_small(value));
        let inline = match value {
            Value::Array(_) | Value::Object(_) if self.manner.is_inline(value) || is_flow => {
                Some(self.manner.flow(value))
            }
            Value::Array(_) | Value::Object(_) => None,
            value if style == Some(saphyr_parser::ScalarStyle::DoubleQuoted) || self.manner.is_inline(value) => {
                Some(self.manner.scalar(value, style, false))
            }
            _ => None,
        };
        let is_absent = matches!(node.kind, SyntaxKind::Absent);
        let is_below = line_start(self.text, core) > found.gap;
        match inline {
            Some(inline) if is_absent => vec![(found.gap..found.gap, format!(" {inline}"))],
            // What stands between a key and the lines of its value stays: comments.
            Some(inline) if is_below => {
                vec![(found.gap..found.gap, format!(" {inline}")), (self.lines_of(core..node.end), String::new())]
            }
            Some(inline) => vec![(core..node.end, inline)],
            None => self.replace_by_lines(found, core, value),
        }
    }

    fn replace_by_lines(&self, found: FoundValue, core: usize, value: &Value) -> Patches {
        let FoundValue { node, column, gap, is_item, .. } = found;
        let is_absent = matches!(node.kind, SyntaxKind::Absent);
        let is_below = line_start(self.text, core) > gap;
        if is_item && !is_below {
            let column = if node.core == self.root.core { 0 } else { column + 2 };
            let block = self.manner.block(value, column);
            let block = if is_absent { format!(" {block}") } else { block };
            let Some((header, body)) = block.split_once(self.manner.newline).filter(|_| value.is_string()) else {
                return vec![(core..node.end, block)];
            };
            // A literal: a comment behind the old value stays in the line of its header.
            let mut patches = vec![(core..node.end, header.to_owned())];
            patches.extend(self.lines_below(node.end, body));
            return patches;
        }
        let lines = self.manner.behind_colon(value, column);
        let Some(lines) = lines.strip_prefix(self.manner.newline) else {
            // A literal, which begins in the line of its key.
            let (header, body) = lines.split_once(self.manner.newline).unwrap_or((&lines, ""));
            if is_below {
                // Whole lines: a comment behind the old value would become part of the new one.
                let lines = self.lines_of(core..node.end);
                let newline = self.manner.newline;
                let body = match self.text[lines.clone()].ends_with('\n') {
                    true => format!("{body}{newline}"),
                    false => format!("{newline}{body}"),
                };
                return vec![(gap..gap, header.to_owned()), (lines, body)];
            }
            let mut patches = vec![(gap..node.end, header.to_owned())];
            patches.extend(self.lines_below(node.end, body));
            return patches;
        };
        if is_below {
            return vec![(line_start(self.text, core)..node.end, lines.to_owned())];
        }
        let mut patches = match is_absent || node.anchor > 0 {
            true => vec![(core..node.end, String::new())],
            false => vec![(gap..node.end, String::new())],
        };
        patches.extend(self.lines_below(node.end, lines));
        patches
    }

    fn replace_in_flow(&self, found: FoundValue, core: usize, value: &Value) -> Patches {
        let style = match found.node.kind {
            SyntaxKind::Scalar(style) => Some(style),
            _ => None,
        };
        let line = line_start(self.text, core);
        let indent = self.text[line..].len() - self.text[line..].trim_start_matches(' ').len();
        let text = match value {
            Value::Array(_) | Value::Object(_) => self.manner.inside(value, indent),
            value => self.manner.scalar(value, style, true),
        };
        match found.node.kind {
            SyntaxKind::Absent if self.text[..found.gap].ends_with(':') => {
                vec![(found.gap..found.gap, format!(" {text}"))]
            }
            SyntaxKind::Absent => vec![(found.gap..found.gap, format!(": {text}"))],
            _ => vec![(core..found.node.end, text)],
        }
    }

    /// The header keeps its comment, and the lines their indentation.
    fn replace_block_scalar(&self, node: &SyntaxNode, core: usize, value: &Value) -> Patches {
        let text = self.text;
        let header_line = line_end(text, core);
        let body = header_line..node.end.max(header_line);
        let header_end = core + text[core..header_line].find([' ', '\r', '\t']).unwrap_or(header_line - core);
        let lines = text[body.clone()].split('\n').map(|line| line.trim_end_matches('\r'));
        let indent =
            lines.filter(|line| !line.trim().is_empty()).map(|line| line.len() - line.trim_start_matches(' ').len());
        let new = match value {
            Value::String(new) => literal(new).or_else(|| fits_one_line(new)).map(|header| (header, new)),
            _ => None,
        };
        match (new, indent.min()) {
            (Some((header, new)), Some(indent)) => {
                let next = format!("{}{}", self.manner.newline, " ".repeat(indent));
                // The line end after the header is that of the text.
                let from = text[..body.start].trim_end_matches('\r').len();
                vec![
                    (core..header_end, header.to_owned()),
                    (from..body.end, format!("{next}{}", literal_lines(new, &next))),
                ]
            }
            _ => {
                let inline = match value {
                    Value::Array(_) | Value::Object(_) => self.manner.flow(value),
                    value => self.manner.scalar(value, None, false),
                };
                let from = text[..body.start].trim_end_matches('\r').len();
                vec![(core..header_end, inline), (from.max(header_end)..body.end.max(from), String::new())]
            }
        }
    }

    fn add_key(&self, found: FoundValue, key: &str, value: &Value) -> Result<Patches, EditProblem> {
        let SyntaxKind::Map { entries, is_flow } = &found.node.kind else { return Err(unexpected(found.node)) };
        let (text, manner) = (self.text, &self.manner);
        if *is_flow {
            let is_quoted = entries.last().is_some_and(|entry| text[entry.start..].starts_with('"'));
            if entries.is_empty() && !found.is_in_flow && !manner.is_json && !manner.is_inline(value) {
                let map = Value::Object([(key.to_owned(), value.clone())].into_iter().collect());
                return Ok(self.replace_by_lines(found, found.node.core, &map));
            }
            let key = manner.key(key, true, is_quoted);
            let gap = entries.iter().find_map(|entry| Some(&text[entry.colon?..entry.value.core]));
            let gap = gap.filter(|gap| gap.trim().is_empty() && !gap.contains('\n') && (!gap.is_empty() || is_quoted));
            let default = if manner.is_json && !manner.is_long { "" } else { " " };
            let parts = self.flow_parts(found.node);
            let indent = self.flow_indent(&parts);
            let pair = format!("{key}:{}{}", gap.unwrap_or(default), manner.inside(value, indent));
            return Ok(self.insert_flow(&parts, entries.len(), &pair));
        }
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else { return Err(unexpected(found.node)) };
        let column = first.start - line_start(text, first.start);
        let behind = match manner.is_like_flow(value, entries.iter().map(|entry| &entry.value)) {
            true => format!(" {}", manner.flow(value)),
            false => manner.behind_colon(value, column),
        };
        let line = format!("{}{}:{behind}", " ".repeat(column), manner.key(key, false, false));
        Ok(self.lines_below(last.end(), &line))
    }

    fn remove_entry(&self, found: FoundValue, entries: &[SyntaxEntry], index: usize) -> Patches {
        if let SyntaxKind::Map { is_flow: true, .. } = found.node.kind {
            return self.remove_flow(&self.flow_parts(found.node), index);
        }
        if entries.len() == 1 {
            return self.emptied(found, "{}");
        }
        self.remove_lines(entries[index].start..entries[index].end())
    }

    /// Removes the lines of an entry or item. Behind a dash, the next line takes the place of the first.
    fn remove_lines(&self, range: Range<usize>) -> Patches {
        if self.begins_line(range.start) {
            return vec![(self.lines_of(range), String::new())];
        }
        let (next, _) = self.after_line(range.end);
        let rest = &self.text[next..];
        vec![(range.start..next + rest.len() - rest.trim_start().len(), String::new())]
    }

    /// A block list or map that has lost its last part.
    fn emptied(&self, found: FoundValue, brackets: &str) -> Patches {
        let FoundValue { node, gap, .. } = found;
        if line_start(self.text, node.core) <= gap {
            return vec![(node.core..node.end, brackets.to_owned())];
        }
        // Behind an anchor, which stays.
        let at = if node.start < node.core && line_start(self.text, node.start) <= gap {
            node.start + self.text[node.start..node.core].find(['\r', '\n']).unwrap_or(0)
        } else {
            gap
        };
        vec![(at..at, format!(" {brackets}")), (self.lines_of(node.core..node.end), String::new())]
    }

    fn insert(&self, found: FoundValue, index: usize, value: &Value) -> Patches {
        let SyntaxKind::List { items, is_flow } = &found.node.kind else { return Vec::new() };
        let manner = &self.manner;
        if *is_flow {
            if items.is_empty() && !found.is_in_flow && !manner.is_json && !manner.is_inline(value) {
                return self.replace_by_lines(found, found.node.core, &Value::Array(vec![value.clone()]));
            }
            let parts = self.flow_parts(found.node);
            let text = match value {
                Value::Array(_) | Value::Object(_) => manner.inside(value, self.flow_indent(&parts)),
                value => manner.scalar(value, self.style_of(items.last().map(|item| &item.value)), true),
            };
            return self.insert_flow(&parts, index, &text);
        }
        let column = found.node.core - line_start(self.text, found.node.core);
        let is_like_flow = manner.is_like_flow(value, items.iter().map(|item| &item.value));
        let text = match value {
            _ if is_like_flow => manner.flow(value),
            Value::String(one) if literal(one).is_none() => {
                manner.scalar(value, self.style_of(items.last().map(|item| &item.value)), false)
            }
            _ => manner.block(value, column + 2),
        };
        self.insert_lines(found.node, index, &format!("- {text}"), column)
    }

    fn style_of(&self, beside: Option<&SyntaxNode>) -> Option<saphyr_parser::ScalarStyle> {
        match beside?.kind {
            SyntaxKind::Scalar(style) => Some(style),
            _ => None,
        }
    }

    /// Inserts the lines of an item, the first of them without its indentation.
    fn insert_lines(&self, list: &SyntaxNode, index: usize, lines: &str, column: usize) -> Patches {
        let SyntaxKind::List { items, .. } = &list.kind else { return Vec::new() };
        let (newline, indent) = (self.manner.newline, " ".repeat(column));
        match index.checked_sub(1) {
            Some(before) => {
                let item = &items[before];
                self.lines_below(item.value.end.max(item.start + 1), &format!("{indent}{lines}"))
            }
            None if self.begins_line(list.core) => {
                let at = self.with_comments(list.core);
                vec![(at..at, format!("{indent}{lines}{newline}"))]
            }
            None => vec![(list.core..list.core, format!("{lines}{newline}{indent}"))],
        }
    }

    /// The beginning of the line of a place, or of the comments with the same indentation right above it.
    fn with_comments(&self, at: usize) -> usize {
        let mut line = line_start(self.text, at);
        let indent = &self.text[line..at];
        while line > 0 {
            let above = line_start(self.text, line - 1);
            match self.text[above..line].strip_prefix(indent).is_some_and(|rest| rest.starts_with('#')) {
                true => line = above,
                false => break,
            }
        }
        line
    }

    fn remove_item(&self, found: FoundValue, index: usize) -> Patches {
        let SyntaxKind::List { items, is_flow } = &found.node.kind else { return Vec::new() };
        if *is_flow {
            return self.remove_flow(&self.flow_parts(found.node), index);
        }
        if items.len() == 1 {
            return self.emptied(found, "[]");
        }
        let item = &items[index];
        self.remove_lines(item.start..item.value.end.max(item.start + 1))
    }

    /// Moves the text of an item, with the comments right above it, except those above the first, which may be about the list.
    fn move_item(&self, found: FoundValue, from: usize, to: usize) -> Result<Patches, EditProblem> {
        let SyntaxKind::List { items, is_flow } = &found.node.kind else { return Err(unexpected(found.node)) };
        if from == to {
            return Ok(Vec::new());
        }
        // The index counts without the item that is moved.
        let before = if to > from { to + 1 } else { to };
        let item = &items[from];
        let (start, end) = (item.start, item.value.end.max(item.start + 1));
        shared::refuse_loss(self.root, &item.value)?;
        shared::refuse_above(self.root, &item.value, items[from.min(to)].start)?;
        if *is_flow {
            let parts = self.flow_parts(found.node);
            let mut patches = self.remove_flow(&parts, from);
            patches.extend(self.insert_flow(&parts, before, &self.written[start..end]));
            return Ok(patches);
        }
        if !self.begins_line(items[0].start) && (from == 0 || to == 0) {
            return Err(EditProblem::at(
                start,
                "the first item of this list is in the line of another",
                "move it in the text",
            ));
        }
        let column = found.node.core - line_start(self.text, found.node.core);
        let first = if from > 0 { self.with_comments(start) } else { line_start(self.text, start) };
        let moved = first..self.after_line(end).0;
        let lines = self.written[moved].trim_end_matches('\n').trim_end_matches('\r');
        let mut patches = vec![(self.lines_of(first..end), String::new())];
        patches.extend(self.insert_lines(found.node, before, &lines[column..], column));
        Ok(patches)
    }

    fn flow_parts(&self, node: &SyntaxNode) -> FlowParts {
        let parts = match &node.kind {
            SyntaxKind::List { items, .. } => items.iter().map(|item| item.start..item.value.end).collect(),
            SyntaxKind::Map { entries, .. } => entries.iter().map(|entry| entry.start..entry.end()).collect(),
            _ => Vec::new(),
        };
        FlowParts { open: node.core + 1, close: node.end - 1, parts }
    }

    /// The indentation of the line that a new part is in.
    fn flow_indent(&self, parts: &FlowParts) -> usize {
        let at = parts.parts.last().map_or(parts.open, |last| last.start);
        let line = &self.text[line_start(self.text, at)..];
        line.len() - line.trim_start_matches(' ').len()
    }

    fn comma_after(&self, at: usize) -> Option<usize> {
        let rest = &self.text[at..];
        let blank = rest.len() - rest.trim_start().len();
        rest[blank..].starts_with(',').then_some(at + blank)
    }

    fn insert_flow(&self, FlowParts { open, close, parts }: &FlowParts, index: usize, new: &str) -> Patches {
        let text = self.text;
        let Some(last) = parts.last() else {
            let is_map = text[..*open].ends_with('{');
            let inside = match is_map && self.manner.is_spaced && !self.manner.is_json {
                true => format!(" {new} "),
                false => new.to_owned(),
            };
            return match text[*open..*close].trim().is_empty() {
                true => vec![(*open..*close, inside)],
                false => vec![(*open..*open, inside)],
            };
        };
        let own_line = |at: usize| self.begins_line(at).then(|| &text[line_start(text, at)..at]);
        let between = parts.first().zip(parts.get(1)).map(|(first, second)| &text[first.end..second.start]);
        let default = if self.manner.is_json && !self.manner.is_long { "," } else { ", " };
        let comma = between.filter(|between| !between.contains(['\n', '#'])).unwrap_or(default);
        if let Some(next) = parts.get(index) {
            return vec![match own_line(next.start) {
                Some(indent) => (next.start..next.start, format!("{new},{}{indent}", self.manner.newline)),
                None => (next.start..next.start, format!("{new}{comma}")),
            }];
        }
        let trailing = self.comma_after(last.end).filter(|comma| comma < close);
        match (own_line(last.start), trailing) {
            (Some(indent), Some(comma)) => self.lines_below(comma, &format!("{indent}{new},")),
            (Some(indent), None) => {
                let rest = text[last.end..line_end(text, last.end)].trim();
                let mut patches = vec![(last.end..last.end, ",".to_owned())];
                match rest.is_empty() || rest.starts_with('#') {
                    true => patches.extend(self.lines_below(last.end, &format!("{indent}{new}"))),
                    false => patches[0].1 = format!(",{}{indent}{new}", self.manner.newline),
                }
                patches
            }
            (None, _) => vec![(last.end..last.end, format!("{comma}{new}"))],
        }
    }

    fn remove_flow(&self, FlowParts { open, close, parts }: &FlowParts, index: usize) -> Patches {
        let text = self.text;
        let part = parts[index].clone();
        let comma = self.comma_after(part.end).filter(|comma| comma < close);
        let behind = comma.map_or(part.end, |comma| comma + 1);
        let before = index.checked_sub(1).map(|before| parts[before].end);
        // The comma of the part before, if this one has none.
        let loose = match comma {
            None => before.and_then(|end| self.comma_after(end)).map(|comma| (comma..comma + 1, String::new())),
            Some(_) => None,
        };
        if parts.len() == 1 {
            return match text[*open..part.start].contains('#') || text[part.end..*close].contains('#') {
                true => vec![(part.start..behind, String::new())],
                false => vec![(*open..*close, String::new())],
            };
        }
        let rest = text[behind..line_end(text, behind)].trim();
        if self.begins_line(part.start) && (rest.is_empty() || rest.starts_with('#')) {
            let mut patches = vec![(self.lines_of(part.start..behind), String::new())];
            patches.extend(loose);
            return patches;
        }
        let next = parts.get(index + 1).map(|next| next.start);
        match (next, before) {
            (Some(next), _) if !text[part.end..next].contains('#') => vec![(part.start..next, String::new())],
            (None, Some(before)) if !text[before..part.start].contains('#') => vec![(before..part.end, String::new())],
            _ => loose.into_iter().chain([(part.start..behind, String::new())]).collect(),
        }
    }
}

/// The header with which a text of one line can stay a literal block scalar.
fn fits_one_line(text: &str) -> Option<&'static str> {
    let body = text.strip_suffix('\n').unwrap_or(text);
    let is_fit = !body.is_empty() && body.trim() == body && !body.chars().any(char::is_control);
    is_fit.then_some(if body.len() == text.len() { "|-" } else { "|" })
}

fn unexpected(node: &SyntaxNode) -> EditProblem {
    EditProblem::at(
        node.start,
        "the value is not written here: it comes from a variable or an alias",
        "change it in the text",
    )
}

/// A key that a map has not by itself.
fn merged(map: &SyntaxNode, entries: &[SyntaxEntry]) -> EditProblem {
    match entries.iter().find(|entry| entry.is_merge) {
        Some(merge) => EditProblem::at(
            merge.start,
            "the key comes from another map through `<<`, and cannot be changed here without changing others",
            "change the map that it comes from, or write the whole value of the key here",
        ),
        None => unexpected(map),
    }
}
