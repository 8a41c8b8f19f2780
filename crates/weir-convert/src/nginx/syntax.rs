//! The syntax of nginx's configuration files: directives with arguments, ended by `;` or a block.

use crate::char_reader::CharReader;
pub(super) use crate::directive::Directive;
use crate::{SourcePlace, SyntaxError};

#[derive(Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Semicolon,
    Open,
    Close,
}

/// The name of what a block of Lua has as its only content: the code is its argument.
pub(super) const CODE: &str = "Lua code";

/// The most levels of nested blocks.
const DEPTH: usize = 32;

/// Parses the directives of a file.
pub(super) fn parse(file: &str, text: &str) -> Result<Vec<Directive>, SyntaxError> {
    let mut reader = SyntaxReader { text: CharReader::new(file, text) };
    let directives = reader.block(0)?;
    if reader.text.rest.is_empty() { Ok(directives) } else { Err(reader.text.error("`}` without a `{` before it")) }
}

struct SyntaxReader<'a> {
    text: CharReader<'a>,
}

impl SyntaxReader<'_> {
    /// The directives up to the end of the block, or of the file at depth 0.
    fn block(&mut self, depth: usize) -> Result<Vec<Directive>, SyntaxError> {
        let mut directives = Vec::new();
        loop {
            match self.token()? {
                None if depth == 0 => return Ok(directives),
                None => return Err(self.text.error("the file ends inside a block; a `}` is missing")),
                Some((Token::Close, _)) if depth > 0 => return Ok(directives),
                Some((Token::Word(name), place)) => directives.push(self.directive(name, place, depth)?),
                Some((token, _)) => return Err(self.text.error(format!("unexpected {}", shown(&token)))),
            }
        }
    }

    fn directive(&mut self, name: String, place: SourcePlace, depth: usize) -> Result<Directive, SyntaxError> {
        let mut arguments = Vec::new();
        loop {
            match self.token()? {
                Some((Token::Word(word), _)) => arguments.push(word),
                Some((Token::Semicolon, _)) => return Ok(Directive { name, arguments, block: None, place }),
                Some((Token::Open, _)) if depth == DEPTH => {
                    return Err(self.text.error(format!("blocks are nested more than {DEPTH} levels deep")));
                }
                Some((Token::Open, _)) if name.ends_with("_by_lua_block") => {
                    let place_of_code = place.clone();
                    let code = Directive {
                        name: CODE.to_owned(),
                        arguments: vec![self.code()?],
                        block: None,
                        place: place_of_code,
                    };
                    return Ok(Directive { name, arguments, block: Some(vec![code]), place });
                }
                Some((Token::Open, _)) => {
                    let block = Some(self.block(depth + 1)?);
                    return Ok(Directive { name, arguments, block, place });
                }
                other => {
                    let found = other.map_or("the end of the file".to_owned(), |(token, _)| shown(&token));
                    return Err(self.text.error(format!("the directive `{name}` is not ended by `;`: found {found}")));
                }
            }
        }
    }

    /// Lua code up to the closing brace.
    fn code(&mut self) -> Result<String, SyntaxError> {
        let (mut depth, mut code) = (1, String::new());
        loop {
            let next = self.text.take().ok_or_else(|| self.text.error("the file ends inside a Lua block"))?;
            match next {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return Ok(code);
            }
            code.push(next);
        }
    }

    fn skip_blanks(&mut self) {
        while let Some(next) = self.text.peek() {
            match next {
                '#' => self.text.skip_line(),
                next if next.is_ascii_whitespace() || next == '\u{feff}' => {
                    self.text.take();
                }
                _ => return,
            }
        }
    }

    fn token(&mut self) -> Result<Option<(Token, SourcePlace)>, SyntaxError> {
        self.skip_blanks();
        let place = self.text.place();
        let Some(first) = self.text.peek() else { return Ok(None) };
        let token = match first {
            ';' => Token::Semicolon,
            '{' => Token::Open,
            '}' => Token::Close,
            '"' | '\'' => {
                self.text.take();
                return Ok(Some((Token::Word(self.text.quoted(first, Some(escaped))?), place)));
            }
            _ => return Ok(Some((Token::Word(self.word()), place))),
        };
        self.text.take();
        Ok(Some((token, place)))
    }

    fn word(&mut self) -> String {
        let mut word = String::new();
        while let Some(next) = self.text.peek() {
            // `${name}` is part of a word; any other brace ends it.
            let is_variable = next == '{' && word.ends_with('$');
            if !is_variable && (next.is_ascii_whitespace() || next == ';' || next == '{') {
                break;
            }
            self.text.take();
            if next == '\\' {
                escaped(&mut self.text, &mut word)
            } else {
                word.push(next)
            }
            while is_variable && !word.ends_with('}') {
                match self.text.take() {
                    Some(char) => word.push(char),
                    None => break,
                }
            }
        }
        word
    }
}

/// Reads what follows a backslash: nginx removes the backslash before quotes, a backslash and `t`, `r`, `n`, and keeps it before
/// all other characters, for regular expressions.
fn escaped(text: &mut CharReader<'_>, word: &mut String) {
    match text.take() {
        Some(char @ ('"' | '\'' | '\\')) => word.push(char),
        Some('t') => word.push('\t'),
        Some('r') => word.push('\r'),
        Some('n') => word.push('\n'),
        Some(char) => word.extend(['\\', char]),
        None => word.push('\\'),
    }
}

fn shown(token: &Token) -> String {
    match token {
        Token::Word(word) => format!("`{word}`"),
        Token::Semicolon => "`;`".to_owned(),
        Token::Open => "`{`".to_owned(),
        Token::Close => "`}`".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        let directive = parse("t", text).expect("correct").remove(0);
        [vec![directive.name], directive.arguments].concat()
    }

    #[test]
    fn words_are_what_nginx_reads() {
        assert_eq!(words("a b 'c d' \"e;{f\" ; # comment\n"), ["a", "b", "c d", "e;{f"]);
        assert_eq!(words(r"location ~ \.php$ {}"), ["location", "~", r"\.php$"]);
        assert_eq!(words("proxy_pass http://${name}/x;"), ["proxy_pass", "http://${name}/x"]);
        assert_eq!(words(r#"a "it\"s" '\d{2}';"#), ["a", "it\"s", r"\d{2}"]);
        assert_eq!(words("a b#c;"), ["a", "b#c"]);
    }

    #[test]
    fn blocks_know_their_lines() {
        let all = parse("n.conf", "http {\n  # one\n  server {\n    listen 80;\n  }\n}\n").expect("correct");
        let listen = &all[0].children()[0].children()[0];
        assert_eq!((listen.name.as_str(), listen.place.to_string()), ("listen", "n.conf:4".to_owned()));
    }

    #[test]
    fn lua_is_read_whole() {
        let all = parse("t", "content_by_lua_block { if a then ngx.say({}) end } a b;").expect("correct");
        assert_eq!(all.len(), 2);
        let code = &all[0].children()[0];
        assert_eq!((code.name.as_str(), code.argument(0)), (CODE, " if a then ngx.say({}) end "));
    }

    #[test]
    fn syntax_error_is_reported_with_its_line() {
        for (text, told) in [
            ("a b", "t:1: the directive `a` is not ended by `;`: found the end of the file"),
            ("a {\n b;\n", "t:3: the file ends inside a block; a `}` is missing"),
            ("}\n", "t:1: unexpected `}`"),
            ("a 'b", "t:1: the file ends inside 'quotes'"),
            ("a; ;", "t:1: unexpected `;`"),
        ] {
            assert_eq!(parse("t", text).expect_err(text).to_string(), told);
        }
        let deep = "a {".repeat(100);
        assert!(parse("t", &deep).expect_err("deep").text.contains("more than 32 levels deep"));
    }
}
