//! The tokens of a GraphQL document (§2.1).

use super::GraphqlFault;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphqlToken<'t> {
    /// A punctuator of one byte.
    Mark(u8),
    /// `...`
    Dots,
    Name(&'t str),
    /// An integer; a negative one is 0, and one that does not fit is the largest.
    Number(u64),
    /// A float or a string.
    Literal,
    End,
}

pub struct GraphqlLexer<'t> {
    text: &'t str,
    at: usize,
    /// Where the last token begins.
    start: usize,
}

impl<'t> GraphqlLexer<'t> {
    pub fn new(text: &'t str) -> GraphqlLexer<'t> {
        GraphqlLexer { text, at: 0, start: 0 }
    }

    pub fn token_start(&self) -> usize {
        self.start
    }

    pub fn token(&mut self) -> Result<GraphqlToken<'t>, GraphqlFault> {
        self.skip_ignored();
        self.start = self.at;
        let Some(first) = self.byte() else { return Ok(GraphqlToken::End) };
        match first {
            b'!' | b'$' | b'&' | b'(' | b')' | b':' | b'=' | b'@' | b'[' | b']' | b'{' | b'|' | b'}' => {
                self.at += 1;
                Ok(GraphqlToken::Mark(first))
            }
            b'.' if self.rest().starts_with(b"...") => {
                self.at += 3;
                Ok(GraphqlToken::Dots)
            }
            b'"' => self.string(),
            b'-' | b'0'..=b'9' => self.number(),
            b'_' | b'a'..=b'z' | b'A'..=b'Z' => {
                self.skip_while(is_name_byte);
                Ok(GraphqlToken::Name(&self.text[self.start..self.at]))
            }
            _ => self.fault(),
        }
    }

    /// White space, commas, comments, and a byte order mark.
    fn skip_ignored(&mut self) {
        loop {
            match self.byte() {
                Some(b' ' | b'\t' | b'\n' | b'\r' | b',') => self.at += 1,
                Some(b'#') => self.skip_while(|byte| !matches!(byte, b'\n' | b'\r')),
                Some(0xef) if self.rest().starts_with("\u{feff}".as_bytes()) => self.at += 3,
                _ => return,
            }
        }
    }

    fn string(&mut self) -> Result<GraphqlToken<'t>, GraphqlFault> {
        let is_block = self.rest().starts_with(b"\"\"\"");
        self.at += if is_block { 3 } else { 1 };
        loop {
            let rest = self.rest();
            match rest.first() {
                Some(b'"') if !is_block => {
                    self.at += 1;
                    return Ok(GraphqlToken::Literal);
                }
                Some(b'"') if rest.starts_with(b"\"\"\"") => {
                    self.at += 3;
                    return Ok(GraphqlToken::Literal);
                }
                Some(b'\\') if is_block => self.at += if rest.starts_with(b"\\\"\"\"") { 4 } else { 1 },
                Some(b'\\') if rest.len() > 1 => self.at += 2,
                None | Some(b'\\') => return self.fault(),
                Some(b'\n' | b'\r') if !is_block => return self.fault(),
                Some(_) => self.at += 1,
            }
        }
    }

    fn number(&mut self) -> Result<GraphqlToken<'t>, GraphqlFault> {
        let is_negative = self.byte() == Some(b'-');
        self.at += usize::from(is_negative);
        let digits = self.digits()?;
        let mut is_float = false;
        if self.byte() == Some(b'.') {
            self.at += 1;
            self.digits()?;
            is_float = true;
        }
        if matches!(self.byte(), Some(b'e' | b'E')) {
            self.at += 1;
            self.at += usize::from(matches!(self.byte(), Some(b'+' | b'-')));
            self.digits()?;
            is_float = true;
        }
        if self.byte().is_some_and(|byte| is_name_byte(byte) || byte == b'.') {
            return self.fault();
        }
        Ok(match (is_float, is_negative) {
            (true, _) => GraphqlToken::Literal,
            (false, true) => GraphqlToken::Number(0),
            (false, false) => GraphqlToken::Number(digits.parse().unwrap_or(u64::MAX)),
        })
    }

    /// At least one digit.
    fn digits(&mut self) -> Result<&'t str, GraphqlFault> {
        let start = self.at;
        self.skip_while(|byte| byte.is_ascii_digit());
        if self.at == start { self.fault() } else { Ok(&self.text[start..self.at]) }
    }

    fn skip_while(&mut self, is_meant: impl Fn(u8) -> bool) {
        let rest = self.rest();
        self.at += rest.iter().position(|&byte| !is_meant(byte)).unwrap_or(rest.len());
    }

    fn byte(&self) -> Option<u8> {
        self.rest().first().copied()
    }

    fn rest(&self) -> &'t [u8] {
        &self.text.as_bytes()[self.at..]
    }

    fn fault<T>(&self) -> Result<T, GraphqlFault> {
        Err(GraphqlFault::Syntax(self.start))
    }
}

fn is_name_byte(byte: u8) -> bool {
    byte == b'_' || byte.is_ascii_alphanumeric()
}
