//! Parses YAML (or JSON, a subset of it) to a tree with positions.
//!
//! Untagged plain scalars have the types of Apache APISIX, that is of YAML 1.1: `yes`, `no`, `on` and `off` are booleans, and a
//! leading zero makes a number octal; quotes make text. See [`scalar`] for the one difference.

mod scalar;

pub(super) use scalar::resolve as scalar_of;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Tag};

use crate::text::diagnostic::{Diagnostic, Faults};
use crate::text::read::join;
use crate::text::substitute::{Substituted, VariableChoice, VariableLookup, substitute_by};
use crate::text::tree::{MapEntry, NodeKind, TextPosition, TreeNode, TreePath};

/// The limits of a text. A text that exceeds any of them is refused with a diagnostic.
#[derive(Clone, Copy, Debug)]
pub struct TextLimits {
    /// The size of the text, before and after variables are replaced.
    pub bytes: usize,
    /// The most levels of nested lists and maps.
    pub depth: usize,
    /// The most values, with each use of an alias counted in full: a few lines of aliases can stand for billions of values.
    pub values: usize,
    /// The most bytes that aliases may stand for: a few lines of aliases of a long text can stand for all memory that there is.
    pub aliased: usize,
}

impl Default for TextLimits {
    fn default() -> Self {
        TextLimits { bytes: 50_000_000, depth: 64, values: 4_000_000, aliased: 512 << 20 }
    }
}

/// The result of parsing a text that is YAML.
#[derive(Debug)]
pub struct Parsed {
    pub tree: TreeNode,
    /// Duplicate keys. The tree has the first of each.
    pub faults: Vec<Diagnostic>,
}

/// Parses one document.
///
/// # Errors
/// If the text is not YAML: anything after a syntax error could only be guessed.
pub fn parse(
    source: &Arc<str>,
    text: &str,
    lookup: VariableLookup,
    limits: TextLimits,
) -> Result<Parsed, Vec<Diagnostic>> {
    SourceText::new(source, text, lookup, limits)?.parse()
}

/// A text with variables replaced, which can be parsed repeatedly.
#[derive(Debug)]
pub struct SourceText {
    source: Arc<str>,
    text: Box<str>,
    substituted: Substituted,
    limits: TextLimits,
}

impl SourceText {
    /// # Errors
    /// If it is too long, or uses variables that are not set.
    pub fn new(
        source: &Arc<str>,
        text: &str,
        lookup: VariableLookup,
        limits: TextLimits,
    ) -> Result<SourceText, Vec<Diagnostic>> {
        SourceText::choosing(source, text, lookup, limits, VariableChoice::ValueFirst)
    }

    /// Like [`SourceText::new`], with a choice between the values and the defaults of variables.
    ///
    /// # Errors
    /// As [`SourceText::new`].
    pub fn choosing(
        source: &Arc<str>,
        text: &str,
        lookup: VariableLookup,
        limits: TextLimits,
        choice: VariableChoice,
    ) -> Result<SourceText, Vec<Diagnostic>> {
        fits(source, text, limits)?;
        // A byte order mark takes no column, here as in editors.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut substituted = substitute_by(source, text, lookup, choice)?;
        let text: Box<str> = substituted.take_text().map_or_else(|| text.into(), Into::into);
        fits(source, &text, limits)?;
        Ok(SourceText { source: Arc::clone(source), text, substituted, limits })
    }

    /// The name in its diagnostics.
    pub fn source(&self) -> &Arc<str> {
        &self.source
    }

    /// Whether a variable was replaced between two positions.
    pub fn has_variable(&self, from: TextPosition, to: TextPosition) -> bool {
        self.substituted.has_variable(from, to)
    }

    /// An upper bound of its line numbers.
    pub fn lines(&self) -> u32 {
        // Replacing variables may have added lines, but removed none.
        self.text.matches(['\n', '\r']).count() as u32 + 2
    }

    /// # Errors
    /// If the text is not YAML: anything after a syntax error could only be guessed.
    pub fn parse(&self) -> Result<Parsed, Vec<Diagnostic>> {
        let SourceText { source, text, substituted, limits } = self;
        let faults = Faults::new(source.clone());
        let builder = Builder {
            source,
            text,
            substituted,
            limits: *limits,
            values: 0,
            aliased: 0,
            anchors: HashMap::new(),
            faults,
        };
        builder.document().map_err(|fault| vec![fault])
    }
}

fn fits(source: &Arc<str>, text: &str, limits: TextLimits) -> Result<(), Vec<Diagnostic>> {
    if text.len() <= limits.bytes {
        return Ok(());
    }
    let problem = format!("{} bytes are too many for a configuration", text.len());
    Err(vec![Diagnostic::of_source(source, problem).advise(format!("the limit is {} bytes", limits.bytes))])
}

struct Builder<'a> {
    source: &'a Arc<str>,
    /// With variables replaced.
    text: &'a str,
    substituted: &'a Substituted,
    limits: TextLimits,
    values: usize,
    aliased: usize,
    anchors: HashMap<usize, YamlAnchor>,
    faults: Faults,
}

struct YamlAnchor {
    node: TreeNode,
    size: usize,
    memory: usize,
}

/// A list or map that is not yet complete.
struct OpenCollection {
    anchor: usize,
    place: TextPosition,
    /// It begins with a bracket, and ends with one.
    is_bracketed: bool,
    content: CollectionContent,
}

impl CollectionContent {
    /// The end of the last value, so far.
    fn end(&self) -> Option<TextPosition> {
        match self {
            CollectionContent::List(items) => Some(items.last()?.end),
            CollectionContent::Map { entries, merges, .. } => {
                let ends =
                    entries.last().map(|entry| entry.value.end).into_iter().chain(merges.last().map(|one| one.end));
                ends.max_by_key(|end| (end.line, end.column))
            }
        }
    }
}

/// A key whose value is not yet complete.
struct OpenKey {
    text: Box<str>,
    place: TextPosition,
    end: TextPosition,
    is_merge: bool,
}

enum CollectionContent {
    List(Vec<TreeNode>),
    Map { entries: Vec<MapEntry>, merges: Vec<TreeNode>, key: Option<OpenKey> },
}

impl Builder<'_> {
    fn document(mut self) -> Result<Parsed, Diagnostic> {
        let mut parser = Parser::new_from_str(self.text);
        let mut open: Vec<OpenCollection> = Vec::new();
        let mut root = None;
        while let Some(event) = parser.next_event() {
            let (event, span) = event.map_err(|error| self.syntax(error.marker(), error.info(), &open))?;
            let place = self.place(&span.start);
            // A collection without brackets ends with what follows it, which may be far below.
            let end = (span.end.index() > span.start.index()).then(|| self.place(&span.end));
            if root.is_some() && matches!(event, Event::DocumentStart(_)) {
                return Err(self.fault(place, "a second document begins").advise("keep one document per file"));
            }
            let Some((node, anchor)) = self.completed(event, place, end, &mut open)? else { continue };
            if anchor > 0 {
                self.anchor(anchor, &node, place)?;
            }
            match open.last_mut() {
                None => root = Some(node),
                Some(collection) => self.add(node, &mut collection.content)?,
            }
        }
        let Some(tree) = root else {
            // An editor may have truncated the file before writing it; taking that for "no routes" would stop all traffic.
            let fault = Diagnostic::of_source(self.source, "contains no configuration");
            return Err(fault.advise("write `routes: []` if this is intended"));
        };
        Ok(Parsed { tree, faults: self.faults.into_diagnostics() })
    }

    /// The value that an event completes, and the number of its anchor (0: none). `None` if the event begins a list or a map, or
    /// is a key.
    fn completed(
        &mut self,
        event: Event<'_>,
        place: TextPosition,
        end: Option<TextPosition>,
        open: &mut Vec<OpenCollection>,
    ) -> Result<Option<(TreeNode, usize)>, Diagnostic> {
        Ok(match event {
            Event::SequenceStart(anchor, tag) => {
                self.collection(place, tag.as_deref(), "seq", open.len())?;
                let content = CollectionContent::List(Vec::new());
                open.push(OpenCollection { anchor, place, is_bracketed: end.is_some(), content });
                None
            }
            Event::MappingStart(anchor, tag) => {
                self.collection(place, tag.as_deref(), "map", open.len())?;
                let content = CollectionContent::Map { entries: Vec::new(), merges: Vec::new(), key: None };
                open.push(OpenCollection { anchor, place, is_bracketed: end.is_some(), content });
                None
            }
            Event::SequenceEnd | Event::MappingEnd => {
                // The event of a bracket reaches to the end of its line.
                let bracket = end.map(|_| TextPosition { column: place.column + 1, ..place });
                let OpenCollection { anchor, place, content, .. } =
                    open.pop().expect("the parser ends only what it began");
                let end = bracket.or_else(|| content.end()).unwrap_or(place);
                let kind = self.collected(content, open)?;
                Some((TreeNode { place, end, kind }, anchor))
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.count(1, place)?;
                let end = end.unwrap_or(place);
                match open.last_mut().map(|open| &mut open.content) {
                    Some(CollectionContent::Map { key: key @ None, .. }) => {
                        // Keys are text: `80` and `yes` stay as written.
                        let merge = &*text == "<<" && style == ScalarStyle::Plain;
                        if anchor > 0 {
                            let kind = NodeKind::Text((*text).into());
                            self.anchor(anchor, &TreeNode { place, end, kind }, place)?;
                        }
                        *key = Some(OpenKey { text: text.into(), place, end, is_merge: merge });
                        None
                    }
                    _ => {
                        Some((TreeNode { place, end, kind: self.scalar(&text, style, tag.as_deref(), place)? }, anchor))
                    }
                }
            }
            Event::Alias(anchor) => Some((self.alias(anchor, place, open.len())?, 0)),
            _ => None,
        })
    }

    /// The value of a list or map that is complete, inside of those in `open`.
    fn collected(&self, content: CollectionContent, open: &[OpenCollection]) -> Result<NodeKind, Diagnostic> {
        Ok(match content {
            CollectionContent::List(mut items) => {
                items.shrink_to_fit();
                NodeKind::List(items)
            }
            CollectionContent::Map { entries, merges, .. } => {
                let entries = self.unique(entries, open);
                let mut entries = self.merged(entries, merges)?;
                // Most lists and maps are small, and would keep spare capacity.
                entries.shrink_to_fit();
                NodeKind::Map(entries)
            }
        })
    }

    /// Keeps a copy of a value for its aliases.
    fn anchor(&mut self, anchor: usize, node: &TreeNode, place: TextPosition) -> Result<(), Diagnostic> {
        let memory = node.memory();
        // A value in several others that have anchors is copied with each.
        self.count_aliased(memory, place)?;
        self.anchors.insert(anchor, YamlAnchor { size: node.size(), memory, node: node.clone() });
        Ok(())
    }

    /// The value of an alias.
    fn alias(&mut self, anchor: usize, place: TextPosition, above: usize) -> Result<TreeNode, Diagnostic> {
        let Some(YamlAnchor { size, memory, .. }) = self.anchors.get(&anchor) else {
            return Err(self.fault(place, "the alias is inside the value that it refers to"));
        };
        let (size, memory) = (*size, *memory);
        self.count(size, place)?;
        self.count_aliased(memory, place)?;
        let YamlAnchor { node, .. } = &self.anchors[&anchor];
        let node = node.clone();
        if above + depth(&node) > self.limits.depth {
            return Err(self.too_deep(place));
        }
        Ok(node)
    }

    /// Adds a value to the list or map that contains it.
    fn add(&self, node: TreeNode, content: &mut CollectionContent) -> Result<(), Diagnostic> {
        match content {
            CollectionContent::List(items) => items.push(node),
            CollectionContent::Map { entries, merges, key } => match (key.take(), node.kind) {
                (None, NodeKind::Text(text)) => {
                    *key = Some(OpenKey { text, place: node.place, end: node.end, is_merge: false });
                }
                (None, _) => {
                    return Err(self.fault(node.place, "a key is not text").advise("use a plain word as the key"));
                }
                (Some(OpenKey { is_merge: true, .. }), kind) => merges.push(TreeNode { kind, ..node }),
                (Some(OpenKey { text: key, place: key_place, end: key_end, .. }), kind) => {
                    entries.push(MapEntry { key, key_place, key_end, value: TreeNode { kind, ..node } });
                }
            },
        }
        Ok(())
    }

    /// Removes and reports the entries with duplicate keys; the first of each stays.
    fn unique(&self, entries: Vec<MapEntry>, above: &[OpenCollection]) -> Vec<MapEntry> {
        let duplicates = duplicates(&entries);
        if duplicates.is_empty() {
            return entries;
        }
        for (first, second) in &duplicates {
            let MapEntry { key, key_place, .. } = &entries[*second];
            let problem = format!("the key `{key}` is given twice");
            let advice = format!("the first is in line {}; keep one", entries[*first].key_place.line);
            self.faults.report_text(&path(above, key), *key_place, problem, Some(advice));
        }
        let mut dropped = duplicates.iter().map(|(_, second)| *second).peekable();
        let kept = entries.into_iter().enumerate().filter(|(index, _)| dropped.next_if_eq(index).is_none());
        kept.map(|(_, entry)| entry).collect()
    }

    /// Merges `<<`: adds the entries whose keys are not present yet (YAML 1.1 merge keys).
    fn merged(&self, mut entries: Vec<MapEntry>, merges: Vec<TreeNode>) -> Result<Vec<MapEntry>, Diagnostic> {
        let mut present: HashSet<Box<str>> = match merges.is_empty() {
            true => return Ok(entries),
            false => entries.iter().map(|entry| entry.key.clone()).collect(),
        };
        for merge in merges {
            let place = merge.place;
            let maps = match merge.kind {
                NodeKind::Map(_) => vec![merge],
                NodeKind::List(items) => items,
                _ => return Err(self.fault(place, "`<<` needs a map or a list of maps")),
            };
            for map in maps {
                let NodeKind::Map(more) = map.kind else {
                    return Err(self.fault(map.place, "`<<` needs a map or a list of maps"));
                };
                entries.extend(more.into_iter().filter(|entry| present.insert(entry.key.clone())));
            }
        }
        Ok(entries)
    }

    fn collection(
        &mut self,
        place: TextPosition,
        tag: Option<&Tag>,
        own: &str,
        depth: usize,
    ) -> Result<(), Diagnostic> {
        self.count(1, place)?;
        if depth >= self.limits.depth {
            return Err(self.too_deep(place));
        }
        match tag {
            Some(tag) if !(tag.is_yaml_core_schema() && tag.suffix == own) => Err(self.unknown_tag(tag, place)),
            _ => Ok(()),
        }
    }

    fn scalar(
        &self,
        text: &str,
        style: ScalarStyle,
        tag: Option<&Tag>,
        place: TextPosition,
    ) -> Result<NodeKind, Diagnostic> {
        let Some(tag) = tag else {
            return Ok(match style {
                ScalarStyle::Plain => scalar::resolve(text),
                _ => NodeKind::Text(text.into()),
            });
        };
        let kind = match (tag.is_yaml_core_schema(), tag.suffix.as_str()) {
            (true, "str") => Some(NodeKind::Text(text.into())),
            (true, "null") => Some(scalar::resolve(text)).filter(|kind| matches!(kind, NodeKind::Null)),
            (true, "bool") => Some(scalar::resolve(text)).filter(|kind| matches!(kind, NodeKind::Bool(_))),
            (true, "int" | "float") => Some(scalar::resolve(text)).filter(|kind| matches!(kind, NodeKind::Number(_))),
            _ => return Err(self.unknown_tag(tag, place)),
        };
        kind.ok_or_else(|| self.fault(place, format!("`{text}` does not match its tag `!!{}`", tag.suffix)))
    }

    fn count(&mut self, more: usize, place: TextPosition) -> Result<(), Diagnostic> {
        self.values = self.values.saturating_add(more);
        if self.values <= self.limits.values {
            return Ok(());
        }
        let problem = format!("more than {} values, counting the values of each alias", self.limits.values);
        Err(self.fault(place, problem).advise("use fewer aliases, or split the configuration"))
    }

    fn count_aliased(&mut self, more: usize, place: TextPosition) -> Result<(), Diagnostic> {
        self.aliased = self.aliased.saturating_add(more);
        if self.aliased <= self.limits.aliased {
            return Ok(());
        }
        let problem = format!("anchors and aliases stand for more than {} MiB", self.limits.aliased >> 20);
        Err(self.fault(place, problem).advise("use fewer aliases, or split the configuration"))
    }

    fn place(&self, marker: &Marker) -> TextPosition {
        let place = TextPosition { line: marker.line() as u32, column: marker.col() as u32 + 1 };
        self.substituted.original(marker.index(), place)
    }

    fn fault(&self, place: TextPosition, problem: impl Into<String>) -> Diagnostic {
        Diagnostic::at_place(self.source, place, problem)
    }

    fn too_deep(&self, place: TextPosition) -> Diagnostic {
        self.fault(place, format!("lists and maps are nested more than {} levels deep", self.limits.depth))
    }

    fn unknown_tag(&self, tag: &Tag, place: TextPosition) -> Diagnostic {
        let name = match tag.is_yaml_core_schema() {
            true => format!("!!{}", tag.suffix),
            false => tag.to_string(),
        };
        self.fault(place, format!("the tag `{name}` is not supported")).advise("leave it out")
    }

    /// What ends a text in quotes early, or changes its lines.
    fn breaks_quotes(value: &str) -> Option<&'static str> {
        match value.chars().find(|c| matches!(c, '\n' | '"' | '\''))? {
            '\n' => Some("a line break"),
            _ => Some("a quote"),
        }
    }

    fn syntax(&self, marker: &Marker, info: &str, open: &[OpenCollection]) -> Diagnostic {
        let place = self.place(marker);
        let fault = self.fault(place, format!("is not YAML: {info}"));
        let mut near = self.substituted.variables_near(self.text, marker.index());
        if let Some((name, what)) = near.find_map(|(name, value)| Some((name, Self::breaks_quotes(value)?))) {
            let problem = format!("the value of the environment variable `{name}` has {what}");
            return fault.advise(format!(
                "{problem}, and is put in as it is; in options of a plugin write `$env://{name}`, which is always one text"
            ));
        }
        // Of several, the innermost one is missing.
        let bracket = open.iter().rfind(|open| open.is_bracketed && open.place.line < place.line);
        let line = self.text.lines().nth(marker.line().saturating_sub(1)).unwrap_or_default();
        let indent = &line[..line.len() - line.trim_start().len()];
        if marker.line() > self.text.lines().count() {
            fault.advise("the text ends too early; was it cut off?")
        } else if indent.contains('\t') || info.contains("found a tab") {
            fault.advise("indent with spaces, not with tabs")
        } else if info.contains("unknown anchor") {
            fault.advise("put text that begins with `*` in quotes, such as `\"*.example.com\"`")
        } else if info.contains("unexpected character") {
            fault.advise("put text that begins with such a character in quotes")
        } else if let Some(TextPosition { line, column }) = bracket.map(|open| open.place) {
            fault.advise(format!("the bracket that begins at {line}:{column} is not closed before this place"))
        } else if info.contains("mapping values are not allowed") {
            fault.advise("check the indentation, or put text with `: ` in quotes")
        } else if info.contains("anchor or alias") {
            fault.advise("put text that begins with `*` or `&` in quotes")
        } else if info.contains("quoted scalar") {
            fault.advise("a quote is not closed")
        } else if info.contains("flow mapping") || info.contains("flow sequence") {
            fault.advise("close the bracket, or put text with `,`, `: ` or brackets in quotes")
        } else if info.contains("expected key") || info.contains("block mapping") || info.contains("block collection") {
            fault.advise("check the indentation of this line: the keys of a map begin in the same column")
        } else {
            fault
        }
    }
}

/// The path of a key in the innermost map of `open`.
fn path(open: &[OpenCollection], key: &str) -> String {
    let outer = open.iter().fold(String::new(), |path, open| match &open.content {
        CollectionContent::List(items) => format!("{path}[{}]", items.len()),
        CollectionContent::Map { key, .. } => join(&path, &TreePath::suffix(key.as_ref().map_or("", |key| &key.text))),
    });
    join(&outer, &TreePath::suffix(key))
}

/// The duplicates: the index of the first entry with the key, and that of the duplicate, in order.
fn duplicates(entries: &[MapEntry]) -> Vec<(usize, usize)> {
    // Nearly all maps are small, and comparing a few keys is cheaper than hashing them.
    const FEW: usize = 16;
    let indices = 0..entries.len();
    if entries.len() <= FEW {
        let first = |index: usize| entries[..index].iter().position(|entry| entry.key == entries[index].key);
        return indices.filter_map(|index| Some((first(index)?, index))).collect();
    }
    let mut seen: HashMap<&str, usize> = HashMap::with_capacity(entries.len());
    let first = |index: usize| *seen.entry(&entries[index].key).or_insert(index);
    indices
        .map(first)
        .enumerate()
        .filter(|(index, first)| index != first)
        .map(|(index, first)| (first, index))
        .collect()
}

/// The number of levels of nested lists and maps.
fn depth(node: &TreeNode) -> usize {
    match &node.kind {
        NodeKind::List(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        NodeKind::Map(entries) => 1 + entries.iter().map(|entry| depth(&entry.value)).max().unwrap_or(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
