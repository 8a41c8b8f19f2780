//! Splits Lua into tokens.

use super::LuaObstacle;

/// Longer functions are not read.
const MOST_BYTES: usize = 8192;
/// Functions with more tokens are not read.
const MOST_TOKENS: usize = 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LuaToken {
    /// A name or a keyword.
    Word(String),
    Text(String),
    Number(String),
    Symbol(&'static str),
}

/// Longer symbols stand before those that they begin with.
const SYMBOLS: [&str; 22] = [
    "...", "..", "==", "~=", "<=", ">=", "<", ">", "=", "(", ")", "{", "}", "[", "]", ";", ":", ",", ".", "-", "+", "#",
];

/// The tokens, each with its line.
pub(super) fn tokens(text: &str) -> Result<Vec<(usize, LuaToken)>, LuaObstacle> {
    if text.len() > MOST_BYTES {
        return Err(LuaObstacle::new(1, format!("more than {MOST_BYTES} bytes")));
    }
    let (mut found, mut rest, mut line) = (Vec::new(), text, 1);
    loop {
        let trimmed = rest.trim_start();
        line += lines(&rest[..rest.len() - trimmed.len()]);
        rest = trimmed;
        if let Some(comment) = rest.strip_prefix("--") {
            if comment.starts_with('[') {
                return Err(LuaObstacle::new(line, "--["));
            }
            rest = &comment[comment.find('\n').unwrap_or(comment.len())..];
            continue;
        }
        if rest.is_empty() {
            return Ok(found);
        }
        if found.len() == MOST_TOKENS {
            return Err(LuaObstacle::new(line, format!("more than {MOST_TOKENS} tokens")));
        }
        let (token, after) = token(rest).ok_or_else(|| {
            let first: String = rest.chars().take(1).collect();
            LuaObstacle::new(line, first)
        })?;
        found.push((line, token));
        line += lines(&rest[..rest.len() - after.len()]);
        rest = after;
    }
}

fn lines(text: &str) -> usize {
    text.bytes().filter(|&byte| byte == b'\n').count()
}

/// The token at the beginning of a text, and what follows it.
fn token(text: &str) -> Option<(LuaToken, &str)> {
    let first = text.chars().next()?;
    if first.is_ascii_alphabetic() || first == '_' {
        let (word, rest) = split(text, |char| char.is_ascii_alphanumeric() || char == '_');
        return Some((LuaToken::Word(word.to_owned()), rest));
    }
    if first.is_ascii_digit() {
        let (number, rest) = split(text, |char| char.is_ascii_alphanumeric() || char == '.');
        let is_decimal = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let is_number = is_decimal && number.parse::<f64>().is_ok() && !number.ends_with('.');
        return is_number.then(|| (LuaToken::Number(number.to_owned()), rest));
    }
    if first == '"' || first == '\'' {
        return quoted(&text[1..], first);
    }
    let symbol = SYMBOLS.into_iter().find(|symbol| text.starts_with(symbol))?;
    Some((LuaToken::Symbol(symbol), &text[symbol.len()..]))
}

fn split(text: &str, belongs: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|char| !belongs(char)).unwrap_or(text.len()))
}

/// A text up to its closing quote. Escapes by number are not read.
fn quoted(text: &str, quote: char) -> Option<(LuaToken, &str)> {
    let (mut content, mut chars) = (String::new(), text.char_indices());
    loop {
        match chars.next()? {
            (at, char) if char == quote => return Some((LuaToken::Text(content), &text[at + 1..])),
            (_, '\n') => return None,
            (_, '\\') => content.push(match chars.next()?.1 {
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                same @ ('\\' | '"' | '\'') => same,
                _ => return None,
            }),
            (_, char) => content.push(char),
        }
    }
}
