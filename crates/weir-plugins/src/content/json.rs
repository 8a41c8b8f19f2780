//! Scans JSON texts (RFC 8259) into tokens with their byte ranges: to inspect a body, or to change parts of it without
//! touching the rest. Takes linear time, and memory proportional to the depth.

use std::borrow::Cow;
use std::ops::Range;

pub mod path;

/// A token of a JSON text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JsonToken {
    Open(Container),
    Close(Container),
    /// The name of a member, with its quotes.
    Name(Range<usize>),
    /// A string, with its quotes.
    Text(Range<usize>),
    /// A number, or `true`, `false` or `null`.
    Plain(Range<usize>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    Object,
    List,
}

/// The text is not JSON, or is nested too deep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonError {
    /// At this byte.
    Syntax(usize),
    Depth,
}

/// A scanner over one JSON text.
pub struct Scanner<'a> {
    text: &'a str,
    at: usize,
    open: Vec<Container>,
    max_depth: usize,
    expects: Expects,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expects {
    Value,
    /// After `[`.
    ValueOrEnd,
    Name,
    /// After `{`.
    NameOrEnd,
    /// After a value.
    More,
}

impl<'a> Scanner<'a> {
    /// RFC 8259 §8.1: JSON is UTF-8.
    pub fn new(body: &'a [u8], max_depth: usize) -> Result<Scanner<'a>, JsonError> {
        let text = str::from_utf8(body).map_err(|error| JsonError::Syntax(error.valid_up_to()))?;
        Ok(Scanner { text, at: 0, open: Vec::new(), max_depth, expects: Expects::Value })
    }

    /// The next token; `None` at the end of a complete text.
    pub fn token(&mut self) -> Result<Option<JsonToken>, JsonError> {
        self.skip_blanks();
        if self.expects == Expects::More {
            match (self.open.last(), self.byte()) {
                (None, None) => return Ok(None),
                (Some(Container::Object), Some(b',')) => self.expects = Expects::Name,
                (Some(Container::List), Some(b',')) => self.expects = Expects::Value,
                (Some(&container), Some(b'}' | b']')) => return self.close(container).map(Some),
                _ => return self.fault(),
            }
            self.at += 1;
            self.skip_blanks();
        }
        match (self.expects, self.byte()) {
            (Expects::Name | Expects::NameOrEnd, Some(b'"')) => self.name().map(Some),
            (Expects::NameOrEnd, Some(b'}')) => self.close(Container::Object).map(Some),
            (Expects::ValueOrEnd, Some(b']')) => self.close(Container::List).map(Some),
            (Expects::Value | Expects::ValueOrEnd, Some(first)) => self.value(first).map(Some),
            _ => self.fault(),
        }
    }

    /// The byte after the last token.
    pub fn position(&self) -> usize {
        self.at
    }

    /// The text of a name or a string, without its quotes and escapes.
    pub fn unquoted(&self, span: &Range<usize>) -> Result<Cow<'a, str>, JsonError> {
        let inner = &self.text[span.start + 1..span.end - 1];
        if !inner.contains('\\') {
            return Ok(Cow::Borrowed(inner));
        }
        // Only unpaired surrogates can still be wrong.
        serde_json::from_str(&self.text[span.clone()]).map(Cow::Owned).map_err(|_| JsonError::Syntax(span.start))
    }

    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_blanks(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.byte() {
            self.at += 1;
        }
    }

    fn fault<T>(&self) -> Result<T, JsonError> {
        Err(JsonError::Syntax(self.at))
    }

    fn close(&mut self, container: Container) -> Result<JsonToken, JsonError> {
        let bracket = if container == Container::Object { b'}' } else { b']' };
        if self.byte() != Some(bracket) {
            return self.fault();
        }
        self.at += 1;
        self.open.pop();
        self.expects = Expects::More;
        Ok(JsonToken::Close(container))
    }

    fn name(&mut self) -> Result<JsonToken, JsonError> {
        let span = self.string()?;
        self.skip_blanks();
        if self.byte() != Some(b':') {
            return self.fault();
        }
        self.at += 1;
        self.expects = Expects::Value;
        Ok(JsonToken::Name(span))
    }

    fn value(&mut self, first: u8) -> Result<JsonToken, JsonError> {
        let container = match first {
            b'{' => Container::Object,
            b'[' => Container::List,
            b'"' => {
                let span = self.string()?;
                self.expects = Expects::More;
                return Ok(JsonToken::Text(span));
            }
            _ => return self.plain(),
        };
        if self.open.len() >= self.max_depth {
            return Err(JsonError::Depth);
        }
        self.at += 1;
        self.open.push(container);
        self.expects = if container == Container::Object { Expects::NameOrEnd } else { Expects::ValueOrEnd };
        Ok(JsonToken::Open(container))
    }

    /// RFC 8259 §7.
    fn string(&mut self) -> Result<Range<usize>, JsonError> {
        let start = self.at;
        self.at += 1;
        loop {
            match self.byte() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(start..self.at);
                }
                Some(b'\\') => {
                    self.at += 1;
                    match self.byte() {
                        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 1,
                        Some(b'u') => {
                            let digits = self.text.as_bytes().get(self.at + 1..self.at + 5);
                            if !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
                                return self.fault();
                            }
                            self.at += 5;
                        }
                        _ => return self.fault(),
                    }
                }
                Some(0x20..) => self.at += 1,
                _ => return self.fault(),
            }
        }
    }

    fn plain(&mut self) -> Result<JsonToken, JsonError> {
        let rest = &self.text.as_bytes()[self.at..];
        let word = [&b"true"[..], b"false", b"null"].into_iter().find(|word| rest.starts_with(word));
        let length = word.map(<[u8]>::len).or_else(|| number(rest));
        let Some(length) = length.filter(|&length| !rest.get(length).is_some_and(is_word_byte)) else {
            return self.fault();
        };
        let span = self.at..self.at + length;
        self.at += length;
        self.expects = Expects::More;
        Ok(JsonToken::Plain(span))
    }
}

fn is_word_byte(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'+' | b'-' | b'_')
}

/// The length of the number at the start of a text (RFC 8259 §6).
fn number(text: &[u8]) -> Option<usize> {
    let digits = |from: usize| text[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let mut at = usize::from(text.first() == Some(&b'-'));
    let whole = digits(at);
    if whole == 0 || (whole > 1 && text[at] == b'0') {
        return None;
    }
    at += whole;
    if text.get(at) == Some(&b'.') {
        let fraction = digits(at + 1);
        at += (fraction > 0).then_some(1 + fraction)?;
    }
    if let Some(b'e' | b'E') = text.get(at) {
        let sign = usize::from(matches!(text.get(at + 1), Some(b'+' | b'-')));
        let exponent = text.get(at + 1 + sign..).map_or(0, |_| digits(at + 1 + sign));
        at += (exponent > 0).then_some(1 + sign + exponent)?;
    }
    Some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Result<Vec<String>, JsonError> {
        let mut scanner = Scanner::new(text.as_bytes(), 16)?;
        let mut tokens = Vec::new();
        while let Some(token) = scanner.token()? {
            tokens.push(match token {
                JsonToken::Open(Container::Object) => "{".to_owned(),
                JsonToken::Open(Container::List) => "[".to_owned(),
                JsonToken::Close(Container::Object) => "}".to_owned(),
                JsonToken::Close(Container::List) => "]".to_owned(),
                JsonToken::Name(span) => format!("{}:", scanner.unquoted(&span)?),
                JsonToken::Text(span) => format!("'{}'", scanner.unquoted(&span)?),
                JsonToken::Plain(span) => text[span].to_owned(),
            });
        }
        Ok(tokens)
    }

    #[test]
    fn texts_become_tokens() {
        let text = " {\"a\" : [1, -2.5e+3 ,true, \"x\\u00e9\\n\"], \"b\":{}, \"\":null}\n";
        let want = ["{", "a:", "[", "1", "-2.5e+3", "true", "'xé\n'", "]", "b:", "{", "}", ":", "null", "}"];
        assert_eq!(all(text).expect("valid"), want);
        assert_eq!(all("\"x\"").expect("valid"), ["'x'"]);
    }

    #[test]
    fn scanner_accepts_exactly_what_serde_json_accepts() {
        let pieces = [
            "",
            "{",
            "}",
            "[",
            "]",
            ",",
            ":",
            "\"a\"",
            "\"\\",
            "\"",
            "1",
            "01",
            "-",
            ".5",
            "1e-",
            "1e-5",
            "true",
            "tru",
            "null",
            " ",
            "\u{e9}",
            "\"\u{1}\"",
            "\"\\ud800\"",
            "\"\\ud83d\\ude00\"",
            "\"\\x\"",
            "x",
        ];
        for first in pieces {
            for second in pieces {
                for third in pieces {
                    for fourth in ["", "]", "}", "1", ",2]"] {
                        let text = [first, second, third, fourth].concat();
                        let is_json = serde_json::from_str::<serde_json::Value>(&text).is_ok();
                        assert_eq!(all(&text).is_ok(), is_json, "{text:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn r06_depth_is_bounded() {
        let deep = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(all(&deep(16)).is_ok());
        assert_eq!(all(&deep(17)), Err(JsonError::Depth));
        assert_eq!(all(&"[".repeat(100_000)), Err(JsonError::Depth));
        assert_eq!(all("[1"), Err(JsonError::Syntax(2)));
    }
}
