//! Reads a configuration file character by character, and tracks the line.

use crate::{SourcePlace, SyntaxError};

/// The rest of a file.
pub(crate) struct CharReader<'a> {
    file: &'a str,
    pub rest: &'a str,
    line: usize,
}

impl<'a> CharReader<'a> {
    pub(crate) fn new(file: &'a str, text: &'a str) -> CharReader<'a> {
        CharReader { file, rest: text, line: 1 }
    }

    pub(crate) fn place(&self) -> SourcePlace {
        SourcePlace { file: self.file.to_owned(), line: self.line }
    }

    pub(crate) fn error(&self, text: impl Into<String>) -> SyntaxError {
        SyntaxError { place: self.place(), text: text.into() }
    }

    pub(crate) fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    pub(crate) fn take(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.rest = &self.rest[next.len_utf8()..];
        self.line += usize::from(next == '\n');
        Some(next)
    }

    /// Skips the rest of the line, but not its end.
    pub(crate) fn skip_line(&mut self) {
        let end = self.rest.find('\n').unwrap_or(self.rest.len());
        self.rest = &self.rest[end..];
    }

    /// Reads text up to the closing quote. `escaped` reads what follows a backslash, if backslashes are special.
    ///
    /// # Errors
    /// If the closing quote is missing.
    pub(crate) fn quoted(
        &mut self,
        quote: char,
        escaped: Option<fn(&mut CharReader<'_>, &mut String)>,
    ) -> Result<String, SyntaxError> {
        let mut word = String::new();
        loop {
            match (self.take(), escaped) {
                (None, _) => return Err(self.error(format!("the file ends inside {quote}quotes{quote}"))),
                (Some(end), _) if end == quote => return Ok(word),
                (Some('\\'), Some(escaped)) => escaped(self, &mut word),
                (Some(char), _) => word.push(char),
            }
        }
    }
}
