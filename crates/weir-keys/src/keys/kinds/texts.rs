//! Texts: any, those that stand for something else, and words of which one is chosen.

use serde_json::{Map, Value, json};
use weir_plugin::WrittenName;

use super::{Kind, Or, WithDefault, members};
use crate::keys::schema::Definitions;
use crate::text::read::{NodeReader, listed};
use crate::text::tree::NodeKind;

/// A text with a number of characters in a range.
#[derive(Clone, Copy)]
pub struct Text {
    /// `None`: any.
    length: Option<(usize, usize)>,
    /// Only for schemas, so that a form can tell before the text is sent: what reads the text says what is wrong with it.
    pattern: Option<&'static str>,
}

/// A text of at least so many characters, and at most.
pub const fn text(least: usize, most: usize) -> Text {
    Text { length: Some((least, most)), pattern: None }
}

pub const fn any_text() -> Text {
    Text { length: None, pattern: None }
}

impl Text {
    pub const fn pattern(self, pattern: &'static str) -> Text {
        Text { pattern: Some(pattern), ..self }
    }

    pub const fn or(self, default: &'static str) -> Or<Text> {
        Or { kind: self, default }
    }

    /// A text that stands for a value; `parse` reports what is wrong with it.
    pub const fn parsed<T>(self, parse: fn(&NodeReader, &str) -> Option<T>) -> ParsedText<T> {
        ParsedText { text: self, parse }
    }

    fn text_of<'a>(&self, at: &NodeReader<'a>) -> Option<&'a str> {
        match self.length {
            Some((least, most)) => at.text_of(least..=most),
            None => at.text(),
        }
    }
}

impl Kind for Text {
    type Value = Box<str>;

    fn read(&self, at: &NodeReader) -> Option<Box<str>> {
        self.text_of(at).map(Box::from)
    }

    fn schema(&self, _: &mut Definitions) -> Map<String, Value> {
        let mut schema = members(json!({ "type": "string" }));
        if let Some((least, most)) = self.length {
            if least > 0 {
                schema.insert("minLength".to_owned(), least.into());
            }
            schema.insert("maxLength".to_owned(), most.into());
        }
        if let Some(pattern) = self.pattern {
            schema.insert("pattern".to_owned(), pattern.into());
        }
        schema
    }

    fn form(&self) -> String {
        match self.length {
            None | Some((0 | 1, _)) => "text".to_owned(),
            Some((least, most)) => format!("text of {least} to {most} characters"),
        }
    }
}

impl WithDefault for Text {
    type Default = &'static str;

    fn value(&self, default: &'static str) -> Box<str> {
        default.into()
    }

    fn written(&self, default: &'static str) -> Value {
        default.into()
    }
}

/// The name of a file or a directory that the gateway writes.
pub struct WrittenPath {
    kind: WrittenName,
}

pub const fn written(kind: WrittenName) -> WrittenPath {
    WrittenPath { kind }
}

impl Kind for WrittenPath {
    type Value = Box<str>;

    fn read(&self, at: &NodeReader) -> Option<Box<str>> {
        at.written_name(self.kind).map(Box::from)
    }

    fn schema(&self, _: &mut Definitions) -> Map<String, Value> {
        members(json!({ "type": "string", "minLength": 1 }))
    }

    fn form(&self) -> String {
        "path".to_owned()
    }
}

/// A text that stands for a value.
pub struct ParsedText<T> {
    text: Text,
    parse: fn(&NodeReader, &str) -> Option<T>,
}

impl<T> Kind for ParsedText<T> {
    type Value = T;

    fn read(&self, at: &NodeReader) -> Option<T> {
        (self.parse)(at, self.text.text_of(at)?)
    }

    fn schema(&self, definitions: &mut Definitions) -> Map<String, Value> {
        self.text.schema(definitions)
    }

    fn form(&self) -> String {
        self.text.form()
    }
}

/// One of several words, each of which stands for a value.
pub struct Words<T: 'static> {
    choices: &'static [(&'static str, T)],
    /// Words of APISIX that are not supported, and what to write instead.
    not_yet: (&'static [&'static str], &'static str),
}

pub const fn words<T>(choices: &'static [(&'static str, T)]) -> Words<T> {
    Words { choices, not_yet: (&[], "") }
}

impl<T: Copy + PartialEq + Sync> Words<T> {
    /// Further words, which are reported as not supported yet.
    pub const fn not_yet(mut self, words: &'static [&'static str], advice: &'static str) -> Words<T> {
        self.not_yet = (words, advice);
        self
    }

    pub const fn or(self, default: T) -> Or<Words<T>> {
        Or { kind: self, default }
    }
}

impl<T: Copy + PartialEq + Sync> Kind for Words<T> {
    type Value = T;

    fn read(&self, at: &NodeReader) -> Option<T> {
        let (not_yet, advice) = self.not_yet;
        if let NodeKind::Text(text) = &at.node().kind
            && not_yet.contains(&&**text)
        {
            at.report_advising("is not supported yet by this version", advice);
            return None;
        }
        at.choice(self.choices)
    }

    fn schema(&self, _: &mut Definitions) -> Map<String, Value> {
        members(json!({ "type": "string", "enum": self.words() }))
    }

    fn form(&self) -> String {
        listed(&self.words())
    }

    fn words(&self) -> Vec<&'static str> {
        self.choices.iter().map(|(word, _)| *word).collect()
    }
}

impl<T: Copy + PartialEq + Sync> WithDefault for Words<T> {
    type Default = T;

    fn value(&self, default: T) -> T {
        default
    }

    fn written(&self, default: T) -> Value {
        let word = self.choices.iter().find(|(_, value)| *value == default);
        word.map_or(Value::Null, |(word, _)| (*word).into())
    }
}
