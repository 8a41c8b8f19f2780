//! A text as a tree of the places that its values take, with anchors and aliases as they are written.

use saphyr_parser::{Event, Parser, ScalarStyle};

/// A value. All places are offsets in bytes.
#[derive(Debug)]
pub(super) struct SyntaxNode {
    /// Where it begins, with its anchor and tag.
    pub start: usize,
    /// Where it begins without them.
    pub core: usize,
    /// Behind its last character.
    pub end: usize,
    /// The number of its anchor; 0: none.
    pub anchor: usize,
    pub kind: SyntaxKind,
}

#[derive(Debug)]
pub(super) enum SyntaxKind {
    /// Nothing is written: null.
    Absent,
    Scalar(ScalarStyle),
    Alias(usize),
    List {
        is_flow: bool,
        items: Vec<SyntaxItem>,
    },
    Map {
        is_flow: bool,
        entries: Vec<SyntaxEntry>,
    },
}

#[derive(Debug)]
pub(super) struct SyntaxItem {
    /// The place of the dash; in brackets, that of the value.
    pub start: usize,
    pub value: SyntaxNode,
}

#[derive(Debug)]
pub(super) struct SyntaxEntry {
    pub key: Box<str>,
    pub start: usize,
    pub key_end: usize,
    pub is_merge: bool,
    /// Behind the colon.
    pub colon: Option<usize>,
    pub value: SyntaxNode,
}

impl SyntaxEntry {
    pub(super) fn end(&self) -> usize {
        self.value.end.max(self.colon.unwrap_or(self.key_end))
    }
}

impl SyntaxNode {
    /// Visits the value and all below.
    pub(super) fn visit(&self, each: &mut impl FnMut(&SyntaxNode)) {
        each(self);
        match &self.kind {
            SyntaxKind::List { items, .. } => items.iter().for_each(|item| item.value.visit(each)),
            SyntaxKind::Map { entries, .. } => entries.iter().for_each(|entry| entry.value.visit(each)),
            _ => {}
        }
    }

    pub(super) fn is_block(&self) -> bool {
        matches!(self.kind, SyntaxKind::List { is_flow: false, .. } | SyntaxKind::Map { is_flow: false, .. })
    }

    pub(super) fn is_block_scalar(&self) -> bool {
        matches!(self.kind, SyntaxKind::Scalar(ScalarStyle::Literal | ScalarStyle::Folded))
    }
}

/// A list or map that is not complete.
struct OpenSyntax {
    start: usize,
    core: usize,
    anchor: usize,
    is_flow: bool,
    kind: SyntaxKind,
    /// The key whose value is not complete.
    key: Option<OpenEntry>,
}

struct OpenEntry {
    key: Box<str>,
    start: usize,
    end: usize,
    is_merge: bool,
}

/// Parses a text that is known to be YAML; `None` if it has what cannot be edited by place, such as keys with aliases.
pub(super) fn parse(text: &str) -> Option<SyntaxNode> {
    let offsets = Offsets::of(text);
    let mut open: Vec<OpenSyntax> = Vec::new();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.ok()?;
        let (start, end) = (offsets.byte(span.start.index()), offsets.byte(span.end.index()));
        let node = match event {
            Event::SequenceStart(anchor, _) => {
                let kind = SyntaxKind::List { is_flow: false, items: Vec::new() };
                // The parser has the place of the first value, not of its dash, for a list in the column of its key.
                let start = match open.last() {
                    Some(parent) if parent.key.is_some() && !parent.is_flow => skipped(text, value_from(text, parent)),
                    _ => start,
                };
                open.push(begin(text, (start, end), anchor, kind));
                continue;
            }
            Event::MappingStart(anchor, _) => {
                let kind = SyntaxKind::Map { is_flow: false, entries: Vec::new() };
                open.push(begin(text, (start, end), anchor, kind));
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => ended(open.pop()?, start),
            Event::Scalar(value, style, anchor, _) => {
                if let Some(OpenSyntax { kind: SyntaxKind::Map { .. }, key: key @ None, .. }) = open.last_mut() {
                    let is_merge = &*value == "<<" && style == ScalarStyle::Plain;
                    let end = scalar_end(text, after_properties(text, start), end, style);
                    *key = Some(OpenEntry { key: value.into(), start, end, is_merge });
                    continue;
                }
                let from = open.last().map_or(0, |open| value_from(text, open));
                scalar(text, from, (start, end), (style, anchor), value.is_empty())
            }
            Event::Alias(anchor) => SyntaxNode { start, core: start, end, anchor: 0, kind: SyntaxKind::Alias(anchor) },
            _ => continue,
        };
        match open.last_mut() {
            None => return Some(node),
            Some(collection) => put(text, collection, node)?,
        }
    }
    None
}

fn begin(text: &str, (start, end): (usize, usize), anchor: usize, kind: SyntaxKind) -> OpenSyntax {
    let core = after_properties(text, start);
    let is_flow = end > core && text[core..].starts_with(['[', '{']);
    OpenSyntax { start, core, anchor, is_flow, kind, key: None }
}

fn ended(open: OpenSyntax, close: usize) -> SyntaxNode {
    let OpenSyntax { start, core, anchor, is_flow, kind, .. } = open;
    let (last, kind) = match kind {
        SyntaxKind::List { items, .. } => {
            (items.last().map(|item| item.value.end.max(item.start + 1)), SyntaxKind::List { is_flow, items })
        }
        SyntaxKind::Map { entries, .. } => (entries.last().map(SyntaxEntry::end), SyntaxKind::Map { is_flow, entries }),
        kind => (None, kind),
    };
    let end = if is_flow { close + 1 } else { last.unwrap_or(core) };
    SyntaxNode { start, core, end, anchor, kind }
}

/// Where the value that comes next in a collection may begin.
fn value_from(text: &str, open: &OpenSyntax) -> usize {
    match (&open.kind, &open.key) {
        (_, Some(key)) => colon(text, key.end).unwrap_or(key.end),
        (SyntaxKind::List { items, .. }, _) if !open.is_flow => dash(text, open.core, items).map_or(0, |dash| dash + 1),
        _ => 0,
    }
}

/// The dash of the item after those of a list.
fn dash(text: &str, first: usize, items: &[SyntaxItem]) -> Option<usize> {
    let Some(last) = items.last() else { return Some(first) };
    let column = first - line_start(text, first);
    let mut at = line_end(text, last.value.end.max(last.start + 1));
    while at < text.len() {
        let line = at + 1;
        at = line_end(text, line);
        let own = &text[line..at];
        // Other lines are empty or comments; the dash of a nested list is further to the right.
        if own.len() > column && own.as_bytes()[column] == b'-' && own[..column].bytes().all(|byte| byte == b' ') {
            return Some(line + column);
        }
    }
    None
}

fn put(text: &str, open: &mut OpenSyntax, value: SyntaxNode) -> Option<()> {
    match &mut open.kind {
        SyntaxKind::List { items, .. } => {
            let start = if open.is_flow { value.start } else { dash(text, open.core, items)? };
            items.push(SyntaxItem { start, value });
        }
        SyntaxKind::Map { entries, .. } => {
            let OpenEntry { key, start, end, is_merge } = open.key.take()?;
            let colon = colon(text, end);
            let value = match value.kind {
                SyntaxKind::Absent => {
                    let place = colon.unwrap_or(end);
                    SyntaxNode { start: place, core: place, end: place, ..value }
                }
                _ => value,
            };
            entries.push(SyntaxEntry { key, start, key_end: end, is_merge, colon, value });
        }
        _ => return None,
    }
    Some(())
}

/// Behind the colon that follows a key.
fn colon(text: &str, key_end: usize) -> Option<usize> {
    let rest = &text[key_end..];
    let blank = rest.len() - rest.trim_start().len();
    rest[blank..].starts_with(':').then_some(key_end + blank + 1)
}

fn scalar(
    text: &str,
    from: usize,
    (start, end): (usize, usize),
    (style, anchor): (ScalarStyle, usize),
    is_empty: bool,
) -> SyntaxNode {
    let kind = SyntaxKind::Scalar(style);
    match style {
        ScalarStyle::Literal | ScalarStyle::Folded => {
            let start = skipped(text, from);
            let core = after_properties(text, start);
            SyntaxNode { start, core, end: block_end(text, core, end), anchor, kind }
        }
        ScalarStyle::Plain if is_empty && anchor == 0 && !text[start..].starts_with('!') => {
            let start = start.max(from);
            SyntaxNode { start, core: start, end: start, anchor, kind: SyntaxKind::Absent }
        }
        _ => {
            let core = after_properties(text, start).min(end);
            SyntaxNode { start, core, end: scalar_end(text, core, end, style), anchor, kind }
        }
    }
}

/// The parser counts what follows a quote to the text.
fn scalar_end(text: &str, core: usize, end: usize, style: ScalarStyle) -> usize {
    let bytes = text.as_bytes();
    let mut at = core + 1;
    match style {
        ScalarStyle::SingleQuoted => loop {
            match (bytes.get(at), bytes.get(at + 1)) {
                (Some(b'\''), Some(b'\'')) => at += 2,
                (Some(b'\''), _) => return at + 1,
                (None, _) => return end,
                _ => at += 1,
            }
        },
        ScalarStyle::DoubleQuoted => loop {
            match bytes.get(at) {
                Some(b'\\') => at += 2,
                Some(b'"') => return at + 1,
                None => return end,
                _ => at += 1,
            }
        },
        _ => end.max(core),
    }
}

/// The end of a block scalar whose header is at `core`. Blank lines at its end are part of it only with `+`.
fn block_end(text: &str, core: usize, end: usize) -> usize {
    let header = &text[core..line_end(text, core)];
    let body = &text[core..end.max(core + header.len())];
    match header.split('#').next().is_some_and(|header| header.contains('+')) {
        true => core + body.strip_suffix('\n').unwrap_or(body).trim_end_matches('\r').len(),
        false => core + body.trim_end().len(),
    }
    .max(core + header.trim_end().len())
}

/// The next place that is neither blank nor in a comment.
fn skipped(text: &str, from: usize) -> usize {
    let mut at = from;
    loop {
        at += text[at..].len() - text[at..].trim_start().len();
        match text[at..].starts_with('#') {
            true => at = line_end(text, at),
            false => return at,
        }
    }
}

/// Where a value begins behind its anchor and its tag, and the comments after these.
fn after_properties(text: &str, start: usize) -> usize {
    let mut at = start;
    while text[at..].starts_with(['&', '!']) {
        at += text[at..].find([' ', '\t', '\r', '\n', ',', ']', '}']).unwrap_or(text.len() - at);
        at = skipped(text, at);
    }
    at
}

pub(super) fn line_start(text: &str, at: usize) -> usize {
    text[..at].rfind('\n').map_or(0, |found| found + 1)
}

/// The end of the line, before its `\n`.
pub(super) fn line_end(text: &str, at: usize) -> usize {
    text[at.min(text.len())..].find('\n').map_or(text.len(), |found| at + found)
}

/// Offsets in bytes of the characters that the parser counts.
struct Offsets(Option<Vec<u32>>, usize);

impl Offsets {
    fn of(text: &str) -> Offsets {
        // Texts are far shorter than 4 GiB; see `TextLimits`.
        let table = || text.char_indices().map(|(at, _)| at as u32).collect();
        Offsets((!text.is_ascii()).then(table), text.len())
    }

    fn byte(&self, character: usize) -> usize {
        match &self.0 {
            None => character.min(self.1),
            Some(table) => table.get(character).map_or(self.1, |at| *at as usize),
        }
    }
}
