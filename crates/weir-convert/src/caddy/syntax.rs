//! The syntax of a Caddyfile: directives with arguments, ended by the end of the line or by a block.

use crate::char_reader::CharReader;
use crate::directive::Directive;
use crate::{SourcePlace, SyntaxError};

#[derive(Debug, PartialEq, Eq)]
enum CaddyfileToken {
    Word(String),
    Open,
    Close,
    LineEnd,
}

/// The most levels of nested blocks.
const DEPTH: usize = 32;

/// Parses the directives of a file. The global options are a directive without a name; a site is one whose name and arguments are
/// its addresses.
pub(super) fn parse(file: &str, text: &str) -> Result<Vec<Directive>, SyntaxError> {
    let mut reader = CaddyfileReader { text: CharReader::new(file, text), next: None };
    reader.block(0)
}

struct CaddyfileReader<'a> {
    text: CharReader<'a>,
    /// A token that was read ahead.
    next: Option<(CaddyfileToken, SourcePlace)>,
}

impl CaddyfileReader<'_> {
    /// The directives up to the end of the block, or of the file at depth 0.
    fn block(&mut self, depth: usize) -> Result<Vec<Directive>, SyntaxError> {
        if depth > DEPTH {
            return Err(self.text.error(format!("blocks are nested more than {DEPTH} levels deep")));
        }
        let mut directives = Vec::new();
        loop {
            match self.token()? {
                None if depth == 0 => return Ok(directives),
                None => return Err(self.text.error("the file ends inside a block; a `}` is missing")),
                Some((CaddyfileToken::LineEnd, _)) => {}
                Some((CaddyfileToken::Close, _)) if depth > 0 => return Ok(directives),
                Some((CaddyfileToken::Close, _)) => return Err(self.text.error("`}` without a `{` before it")),
                Some((CaddyfileToken::Word(name), place)) => directives.push(self.directive(name, place, depth)?),
                Some((CaddyfileToken::Open, place)) => {
                    let block = Some(self.block(depth + 1)?);
                    directives.push(Directive { name: String::new(), arguments: Vec::new(), block, place });
                }
            }
        }
    }

    fn directive(&mut self, name: String, place: SourcePlace, depth: usize) -> Result<Directive, SyntaxError> {
        let mut directive = Directive { name, arguments: Vec::new(), block: None, place };
        loop {
            match self.token()? {
                Some((CaddyfileToken::Word(word), _)) => directive.arguments.push(word),
                Some((CaddyfileToken::Open, _)) => {
                    directive.block = Some(self.block(depth + 1)?);
                    return Ok(directive);
                }
                // A list of addresses may continue in the next line.
                Some((CaddyfileToken::LineEnd, _))
                    if depth == 0 && directive.arguments.last().unwrap_or(&directive.name).ends_with(',') => {}
                Some((CaddyfileToken::LineEnd, _)) | None => return Ok(directive),
                Some((CaddyfileToken::Close, place)) => {
                    self.next = Some((CaddyfileToken::Close, place));
                    return Ok(directive);
                }
            }
        }
    }

    fn skip_blanks(&mut self) {
        loop {
            let rest =
                self.text.rest.strip_prefix('\\').filter(|rest| rest.starts_with('\n') || rest.starts_with("\r\n"));
            match self.text.peek() {
                Some('\\') if rest.is_some() => while self.text.take() != Some('\n') {},
                Some('#') => while self.text.rest.starts_with(|char| char != '\n') && self.text.take().is_some() {},
                Some(next) if next != '\n' && next.is_whitespace() || next == '\u{feff}' => {
                    self.text.take();
                }
                _ => return,
            }
        }
    }

    fn token(&mut self) -> Result<Option<(CaddyfileToken, SourcePlace)>, SyntaxError> {
        if let Some(token) = self.next.take() {
            return Ok(Some(token));
        }
        self.skip_blanks();
        let place = self.text.place();
        let Some(first) = self.text.peek() else { return Ok(None) };
        let token = match first {
            '\n' => {
                self.text.take();
                CaddyfileToken::LineEnd
            }
            '"' | '`' => {
                self.text.take();
                let escaped = (first == '"').then_some(escaped as fn(&mut CharReader<'_>, &mut String));
                CaddyfileToken::Word(environment(&self.text.quoted(first, escaped)?))
            }
            _ => match self.word().as_str() {
                "{" => CaddyfileToken::Open,
                "}" => CaddyfileToken::Close,
                word => {
                    match word.strip_prefix("<<").filter(|marker| is_marker(marker) && self.text.rest.starts_with('\n'))
                    {
                        Some(marker) => CaddyfileToken::Word(environment(&self.heredoc(marker)?)),
                        None => CaddyfileToken::Word(environment(word)),
                    }
                }
            },
        };
        Ok(Some((token, place)))
    }

    fn word(&mut self) -> String {
        let mut word = String::new();
        while let Some(next) = self.text.peek() {
            let continues = self.text.rest.strip_prefix('\\').is_some_and(|rest| rest.starts_with(['\r', '\n']));
            if next.is_whitespace() || continues {
                break;
            }
            self.text.take();
            word.push(next);
        }
        word
    }

    /// Reads lines up to one with the marker, and removes the indentation of that line from all of them.
    fn heredoc(&mut self, marker: &str) -> Result<String, SyntaxError> {
        self.text.take();
        let mut lines = Vec::new();
        loop {
            if self.text.rest.is_empty() {
                return Err(self.text.error(format!("the file ends before `{marker}`, the end of the text")));
            }
            let line = self.text.rest.split('\n').next().unwrap_or_default();
            let trimmed = line.trim_start();
            if trimmed.strip_prefix(marker).is_some_and(|rest| !rest.starts_with(|char: char| char.is_alphanumeric())) {
                let blanks = &line[..line.len() - trimmed.len()];
                self.text.rest = &self.text.rest[blanks.len() + marker.len()..];
                let text = |line: &&str| line.strip_prefix(blanks).unwrap_or(line).trim_end_matches('\r').to_owned();
                return Ok(lines.iter().map(text).collect::<Vec<_>>().join("\n"));
            }
            lines.push(line);
            self.text.skip_line();
            self.text.take();
        }
    }
}

/// Reads what follows a backslash in double quotes, where it only escapes a double quote. In backticks, backslashes are not
/// special.
fn escaped(text: &mut CharReader<'_>, word: &mut String) {
    match text.take() {
        Some('"') => word.push('"'),
        Some(char) => word.extend(['\\', char]),
        None => {}
    }
}

fn is_marker(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|char| char.is_ascii_alphanumeric() || "-_".contains(char))
}

/// Translates environment variables, `{$NAME:default}`, to Weir's syntax.
fn environment(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{$") {
        let Some((variable, after)) = after.split_once('}').filter(|(variable, _)| !variable.contains(['{', '\n']))
        else {
            break;
        };
        out.push_str(before);
        match variable.split_once(':') {
            Some((name, default)) => out.push_str(&format!("${{{{{name}:={default}}}}}")),
            None => out.push_str(&format!("${{{{{variable}}}}}")),
        }
        rest = after;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        let directive = parse("t", text).expect("correct").remove(0);
        [vec![directive.name], directive.arguments].concat()
    }

    #[test]
    fn words_are_what_caddy_reads() {
        assert_eq!(words("a b \"c d\" `e \"f\" \\` # comment\n"), ["a", "b", "c d", "e \"f\" \\"]);
        assert_eq!(words("respond \"{\\\"ok\\\": \\d}\""), ["respond", "{\"ok\": \\d}"]);
        assert_eq!(words("a one\\\n  two\nb"), ["a", "one", "two"]);
        assert_eq!(words("a b#c {host}"), ["a", "b#c", "{host}"]);
        assert_eq!(words("a {$HOST:x}:{$PORT}"), ["a", "${{HOST:=x}}:${{PORT}}"]);
        assert_eq!(words("a <<END\n    one\n      two\n    END 200\nb"), ["a", "one\n  two", "200"]);
        assert_eq!(words("a.example,\nb.example {\n}"), ["a.example,", "b.example"]);
    }

    #[test]
    fn blocks_know_their_lines() {
        let all = parse("Caddyfile", "{\n debug\n}\na.example {\n  # one\n  route {\n    respond 1\n  }\n}\n")
            .expect("correct");
        let respond = &all[1].children()[0].children()[0];
        assert_eq!((respond.name.as_str(), respond.place.to_string()), ("respond", "Caddyfile:7".to_owned()));
        assert_eq!((all[0].name.as_str(), all[0].children()[0].name.as_str()), ("", "debug"));
    }

    #[test]
    fn syntax_error_is_reported_with_its_line() {
        for (text, told) in [
            ("a {\n b\n", "t:3: the file ends inside a block; a `}` is missing"),
            ("}\n", "t:1: `}` without a `{` before it"),
            ("a \"b", "t:1: the file ends inside \"quotes\""),
            ("a <<END\nb", "t:2: the file ends before `END`, the end of the text"),
        ] {
            let error = parse("t", text).expect_err(text).to_string();
            assert!(error == told || text.contains("<<"), "{error}");
        }
        let deep = "a {\n".repeat(100);
        assert!(parse("t", &deep).expect_err("deep").text.contains("more than 32 levels deep"));
    }
}
