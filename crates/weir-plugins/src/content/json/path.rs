//! The part of JSONPath (RFC 9535) that selects by names and indices, without filters and slices. One pass over a text
//! finds all matches.

use std::ops::Range;

use super::{JsonError, JsonToken, Scanner};

/// A path such as `$.a.b[0]`, `$.list[*].name`, `$..password` or `$['a b']`.
#[derive(Clone, Debug)]
pub struct JsonPath(Box<[JsonPathStep]>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct JsonPathStep {
    what: Selector,
    /// Whether the step matches at any depth: `..`.
    anywhere: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Selector {
    Name(Box<str>),
    Index(usize),
    Any,
}

/// Steps are stored as the bits of a `u64`, with one more for the start.
const MAX_STEPS: usize = 63;

impl JsonPath {
    /// `None` if it is not a path, or uses unsupported features.
    pub fn parse(text: &str) -> Option<JsonPath> {
        let mut rest = text.strip_prefix('$')?;
        let mut steps = Vec::new();
        while !rest.is_empty() {
            let anywhere = rest.starts_with("..");
            let after = rest.strip_prefix("..").or_else(|| rest.strip_prefix('.')).unwrap_or(rest);
            let is_bracket = after.starts_with('[');
            if is_bracket && !anywhere && after.len() != rest.len() {
                return None;
            }
            let (what, after) = match is_bracket {
                true => bracketed(&after[1..])?,
                false if after.len() == rest.len() => return None,
                false => dotted(after)?,
            };
            steps.push(JsonPathStep { what, anywhere });
            rest = after;
        }
        (steps.len() <= MAX_STEPS).then(|| JsonPath(steps.into()))
    }

    /// The strings, numbers and literals that the path selects, including those within selected objects and lists.
    pub fn find(&self, body: &[u8], max_depth: usize) -> Result<Vec<JsonMatch>, JsonError> {
        let mut scanner = Scanner::new(body, max_depth)?;
        let mut open: Vec<JsonPathLevel> = Vec::new();
        // The steps reached at the next value.
        let mut reached = 1;
        let mut found = Vec::new();
        while let Some(token) = scanner.token()? {
            match token {
                JsonToken::Name(span) => {
                    let name = scanner.unquoted(&span)?;
                    let before = open.last().map_or(0, |level| level.reached);
                    reached = self.advance(before, |what| matches!(what, Selector::Name(wanted) if **wanted == *name));
                    continue;
                }
                JsonToken::Close(_) => {
                    open.pop();
                    continue;
                }
                _ => {}
            }
            if let Some(JsonPathLevel { reached: before, index: Some(index) }) = open.last_mut() {
                reached = self.advance(*before, |what| *what == Selector::Index(*index));
                *index += 1;
            }
            match token {
                JsonToken::Open(container) => {
                    let index = (container == super::Container::List).then_some(0);
                    open.push(JsonPathLevel { reached, index });
                }
                JsonToken::Text(span) if self.is_end(reached) => found.push(JsonMatch { span, is_text: true }),
                JsonToken::Plain(span) if self.is_end(reached) => found.push(JsonMatch { span, is_text: false }),
                _ => {}
            }
        }
        Ok(found)
    }

    /// The values that the path selects, including objects and lists, with their byte ranges. Of nested matches, the outermost.
    pub fn values(&self, body: &[u8], max_depth: usize) -> Result<Vec<JsonValueSpan>, JsonError> {
        let mut scanner = Scanner::new(body, max_depth)?;
        let mut open: Vec<JsonPathLevel> = Vec::new();
        let (mut reached, mut name, mut found) = (1, None, Vec::new());
        // The match that is still open, with the depth at which it began.
        let mut begun: Option<(usize, JsonValueSpan)> = None;
        while let Some(token) = scanner.token()? {
            match &token {
                JsonToken::Name(span) => {
                    let text = scanner.unquoted(span)?;
                    let before = open.last().map_or(0, |level| level.reached);
                    reached = self.advance(before, |what| matches!(what, Selector::Name(wanted) if **wanted == *text));
                    name = Some(span.start);
                    continue;
                }
                JsonToken::Close(_) => {
                    open.pop();
                    if let Some((_, value)) = begun.take_if(|(depth, _)| *depth == open.len()) {
                        found.push(JsonValueSpan { end: scanner.at, ..value });
                    }
                    continue;
                }
                _ => {}
            }
            if let Some(JsonPathLevel { reached: before, index: Some(index) }) = open.last_mut() {
                reached = self.advance(*before, |what| *what == Selector::Index(*index));
                *index += 1;
            }
            let is_found = begun.is_none() && self.is_end(reached);
            let name = name.take();
            let value = |start, end| JsonValueSpan { item: name.unwrap_or(start), start, end };
            match token {
                JsonToken::Open(container) => {
                    if is_found {
                        begun = Some((open.len(), value(scanner.at - 1, 0)));
                    }
                    let index = (container == super::Container::List).then_some(0);
                    open.push(JsonPathLevel { reached, index });
                }
                JsonToken::Text(span) | JsonToken::Plain(span) if is_found => found.push(value(span.start, span.end)),
                _ => {}
            }
        }
        Ok(found)
    }

    /// The steps reached one level below. Bit n is set if n steps have been taken; the last bit is inherited.
    fn advance(&self, before: u64, is_it: impl Fn(&Selector) -> bool) -> u64 {
        let mut after = before & (1 << self.0.len());
        for (taken, step) in self.0.iter().enumerate().filter(|(taken, _)| before & (1 << taken) != 0) {
            if step.what == Selector::Any || is_it(&step.what) {
                after |= 1 << (taken + 1);
            }
            if step.anywhere {
                after |= 1 << taken;
            }
        }
        after
    }

    fn is_end(&self, reached: u64) -> bool {
        reached & (1 << self.0.len()) != 0
    }
}

/// A scalar that a path selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonMatch {
    /// Its byte range; of a string, with its quotes.
    pub span: Range<usize>,
    pub is_text: bool,
}

/// The byte range of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonValueSpan {
    /// Where its member begins, with the name; equal to `start` for a value without a name.
    pub item: usize,
    pub start: usize,
    pub end: usize,
}

/// An object or a list that is open.
struct JsonPathLevel {
    reached: u64,
    /// The index of the next item, if it is a list.
    index: Option<usize>,
}

/// Parses a selector in brackets; returns the rest after it.
fn bracketed(text: &str) -> Option<(Selector, &str)> {
    for quote in ['\'', '"'] {
        if let Some(quoted) = text.strip_prefix(quote) {
            let (name, after) = quoted.split_once(quote)?;
            return (!name.contains('\\')).then_some((Selector::Name(name.into()), after.strip_prefix(']')?));
        }
    }
    let (inner, after) = text.split_once(']')?;
    match inner {
        "*" => Some((Selector::Any, after)),
        digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            Some((Selector::Index(digits.parse().ok()?), after))
        }
        _ => None,
    }
}

/// Parses a name after a dot; returns the rest after it.
fn dotted(text: &str) -> Option<(Selector, &str)> {
    let is_name = |char: char| char.is_ascii_alphanumeric() || matches!(char, '_' | '-') || !char.is_ascii();
    if let Some(after) = text.strip_prefix('*') {
        return Some((Selector::Any, after));
    }
    let (name, after) = text.split_at(text.find(|char| !is_name(char)).unwrap_or(text.len()));
    (!name.is_empty()).then(|| (Selector::Name(name.into()), after))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"a": {"b": [1, {"c": "x"}, [2]], "b c": null}, "\u0062": {"a": true}, "c": "y", "a": 5}"#;

    fn found(path: &str) -> Vec<&'static str> {
        let path = JsonPath::parse(path).expect("a path");
        path.find(TEXT.as_bytes(), 16).expect("JSON").into_iter().map(|found| &TEXT[found.span]).collect()
    }

    #[test]
    fn paths_name_places() {
        for (path, want) in [
            ("$.a.b[0]", &["1"][..]),
            ("$.a.b[1].c", &["\"x\""]),
            ("$.a.b[*]", &["1", "\"x\"", "2"]),
            ("$['a'][\"b c\"]", &["null"]),
            ("$..c", &["\"x\"", "\"y\""]),
            ("$..[0]", &["1", "2"]),
            ("$.b.*", &["true"]),
            ("$.a", &["1", "\"x\"", "2", "null", "5"]),
            ("$.b[0]", &[]),
            ("$.a.b.c", &[]),
            ("$", &["1", "\"x\"", "2", "null", "true", "\"y\"", "5"]),
        ] {
            assert_eq!(found(path), want, "{path}");
        }
    }

    #[test]
    fn values_are_whole() {
        for (path, want) in [
            ("$.a.b[1]", &[r#"{"c": "x"}"#][..]),
            ("$.a.b", &[r#"[1, {"c": "x"}, [2]]"#]),
            ("$..a", &[r#"{"b": [1, {"c": "x"}, [2]], "b c": null}"#, "true", "5"]),
            ("$", &[TEXT]),
            ("$.d", &[]),
        ] {
            let found = JsonPath::parse(path).expect("a path").values(TEXT.as_bytes(), 16).expect("JSON");
            assert_eq!(found.iter().map(|value| &TEXT[value.start..value.end]).collect::<Vec<_>>(), want, "{path}");
        }
    }

    #[test]
    fn invalid_json_path_is_refused() {
        for text in ["", "a", "$a", "$.", "$..", "$.[0]", "$[1", "$[-1]", "$[0:1]", "$[?@.a]", "$['a", "$.a b", "$[]"] {
            assert!(JsonPath::parse(text).is_none(), "{text}");
        }
        assert!(JsonPath::parse(&format!("${}", ".a".repeat(64))).is_none());
    }
}
