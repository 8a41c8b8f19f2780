//! A YAML or JSON document as a tree of values with their lines.
//!
//! Not the reader of `weir-keys`, on purpose: that one reads Weir's own files, in which `on` is a boolean as in YAML 1.1, `1.10` is the
//! number 1.1, and `${{NAME}}` a variable. In documents of other tools these are texts, and numbers keep theirs.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle};

use crate::yaml::Yaml;
use crate::{SourcePlace, SyntaxError};

/// The most levels of nested lists and maps.
const DEPTH: usize = 64;
/// The most values, with those of aliases counted at each use.
const VALUES: usize = 1_000_000;

/// A value, and the line on which it begins.
#[derive(Clone, Debug, Default)]
pub(crate) struct DocumentValue {
    pub line: usize,
    pub kind: ValueKind,
    values: usize,
}

#[derive(Clone, Debug, Default)]
pub(crate) enum ValueKind {
    #[default]
    Null,
    /// A scalar, and whether it is quoted, which makes it text.
    Scalar(String, bool),
    List(Vec<DocumentValue>),
    Map(Vec<(String, DocumentValue)>),
}

impl DocumentValue {
    pub(crate) fn get(&self, name: &str) -> Option<&DocumentValue> {
        let value = self.members().iter().find(|(member, _)| member == name).map(|(_, value)| value)?;
        (!matches!(value.kind, ValueKind::Null)).then_some(value)
    }

    pub(crate) fn members(&self) -> &[(String, DocumentValue)] {
        if let ValueKind::Map(members) = &self.kind { members } else { &[] }
    }

    pub(crate) fn items(&self) -> &[DocumentValue] {
        if let ValueKind::List(items) = &self.kind { items } else { &[] }
    }

    pub(crate) fn as_text(&self) -> Option<&str> {
        if let ValueKind::Scalar(text, _) = &self.kind { Some(text) } else { None }
    }

    pub(crate) fn list(&self, name: &str) -> &[DocumentValue] {
        self.get(name).map_or(&[], DocumentValue::items)
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.get(name)?.as_text()
    }

    pub(crate) fn texts(&self, name: &str) -> Vec<&str> {
        self.list(name).iter().filter_map(DocumentValue::as_text).collect()
    }

    pub(crate) fn number(&self, name: &str) -> Option<i64> {
        self.text(name)?.parse::<f64>().ok().map(|number| number as i64)
    }

    pub(crate) fn is_true(&self, name: &str, default: bool) -> bool {
        self.text(name).map_or(default, |text| text == "true")
    }

    /// The target of a pointer within the document, such as `#/components/schemas/Order`.
    pub(crate) fn at_pointer(&self, pointer: &str) -> Option<&DocumentValue> {
        let path = pointer.strip_prefix("#/")?;
        path.split('/').try_fold(self, |value, name| value.get(&name.replace("~1", "/").replace("~0", "~")))
    }

    /// The same value for output.
    pub(crate) fn to_yaml(&self) -> Yaml {
        match &self.kind {
            ValueKind::Null => Yaml::Null,
            ValueKind::Scalar(text, true) => Yaml::text(text),
            ValueKind::Scalar(text, false) => plain(text),
            ValueKind::List(items) => Yaml::List(items.iter().map(DocumentValue::to_yaml).collect()),
            ValueKind::Map(members) => {
                Yaml::Map(members.iter().map(|(name, value)| (name.clone(), value.to_yaml())).collect())
            }
        }
    }
}

/// The value of an unquoted scalar.
fn plain(text: &str) -> Yaml {
    match text {
        "true" => Yaml::Boolean(true),
        "false" => Yaml::Boolean(false),
        _ => match (text.parse(), text.parse::<f64>()) {
            (Ok(number), _) => Yaml::Integer(number),
            (_, Ok(number)) if number.is_finite() => Yaml::Decimal(number),
            _ => Yaml::text(text),
        },
    }
}

struct OpenValue {
    value: DocumentValue,
    anchor: usize,
    name: Option<String>,
}

/// Parses the first document of a text.
pub(crate) fn parse(file: &str, text: &str) -> Result<DocumentValue, SyntaxError> {
    let error = |line, text: String| SyntaxError { place: SourcePlace { file: file.to_owned(), line }, text };
    let mut open: Vec<OpenValue> = Vec::new();
    let mut anchors: HashMap<usize, DocumentValue> = HashMap::new();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|fault| error(fault.marker().line(), fault.info().to_owned()))?;
        let line = span.start.line();
        let (done, anchor) = match event {
            Event::SequenceStart(anchor, _) | Event::MappingStart(anchor, _) if open.len() == DEPTH => {
                let _ = anchor;
                return Err(error(line, format!("values are nested more than {DEPTH} levels deep")));
            }
            Event::SequenceStart(anchor, _) => {
                let value = DocumentValue { line, kind: ValueKind::List(Vec::new()), values: 1 };
                open.push(OpenValue { value, anchor, name: None });
                continue;
            }
            Event::MappingStart(anchor, _) => {
                let value = DocumentValue { line, kind: ValueKind::Map(Vec::new()), values: 1 };
                open.push(OpenValue { value, anchor, name: None });
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => match open.pop() {
                Some(closed) => (closed.value, closed.anchor),
                None => continue,
            },
            Event::Scalar(text, style, anchor, _) => {
                let is_null = style == ScalarStyle::Plain && ["", "~", "null"].contains(&&*text);
                let kind = match is_null {
                    true => ValueKind::Null,
                    false => ValueKind::Scalar(text.into_owned(), style != ScalarStyle::Plain),
                };
                (DocumentValue { line, kind, values: 1 }, anchor)
            }
            Event::Alias(anchor) => match anchors.get(&anchor) {
                Some(value) => (value.clone(), 0),
                None => return Err(error(line, "an alias without its anchor".to_owned())),
            },
            _ => continue,
        };
        if anchor > 0 {
            anchors.insert(anchor, done.clone());
        }
        let Some(parent) = open.last_mut() else { return Ok(done) };
        parent.value.values += done.values;
        if parent.value.values > VALUES {
            return Err(error(line, format!("the document has more than {VALUES} values")));
        }
        add(parent, done).map_err(|text| error(line, text))?;
    }
    Ok(DocumentValue { line: 1, ..DocumentValue::default() })
}

fn add(parent: &mut OpenValue, done: DocumentValue) -> Result<(), String> {
    match &mut parent.value.kind {
        ValueKind::List(items) => items.push(done),
        ValueKind::Map(members) => match parent.name.take() {
            Some(name) if name == "<<" => {
                return Err("merge keys are not supported; write the members out".to_owned());
            }
            Some(name) if members.iter().any(|(member, _)| *member == name) => {
                return Err(format!("the key `{name}` stands twice in a map"));
            }
            Some(name) => members.push((name, done)),
            None => parent.name = Some(done.as_text().ok_or("a key has to be text")?.to_owned()),
        },
        _ => {}
    }
    Ok(())
}
