//! Regular expressions in plugin options.

use std::sync::Arc;

use regex::bytes::{Regex, RegexSet};
use weir_plugin::pattern::{self, PatternFault};
use weir_plugin::{CollectAll, ConfigError};

/// The longest text of an expression, in bytes.
const MAX_TEXT: usize = 16 << 10;
/// The largest compiled expression, and the largest cache of one, in bytes.
const MAX_COMPILED: usize = 1 << 20;

/// The most expressions in a list.
const MAX_LISTED: usize = 1000;

/// Compiles a list of expressions at `path` of the options into a set that is matched in one pass.
pub(crate) fn compile_set(texts: &[String], ignore_case: bool, path: &str) -> Result<Arc<RegexSet>, ConfigError> {
    if texts.is_empty() || texts.len() > MAX_LISTED {
        return Err(ConfigError::new(path, format!("must contain from 1 to {MAX_LISTED} regular expressions")));
    }
    let each = |(index, text): (usize, &String)| compile(text, ignore_case, &format!("{path}[{index}]")).map(drop);
    texts.iter().enumerate().map(each).collect_all::<()>()?;
    pattern::compile_set(texts, ignore_case, MAX_COMPILED).map_err(|_| {
        ConfigError::new(path, format!("is too large: the compiled list must not exceed {} KiB", MAX_COMPILED >> 10))
    })
}

/// Compiles the expression at `path` of the options.
pub(crate) fn compile(text: &str, ignore_case: bool, path: &str) -> Result<Arc<Regex>, ConfigError> {
    if text.len() > MAX_TEXT {
        let problem = format!("is longer than the {MAX_TEXT} bytes a regular expression may have");
        return Err(ConfigError::new(path, problem));
    }
    pattern::compile(text, ignore_case, MAX_COMPILED).map_err(|fault| {
        let problem = match fault {
            PatternFault::TooLarge => {
                format!("is too large: the compiled expression must not exceed {} KiB", MAX_COMPILED >> 10)
            }
            PatternFault::Invalid { reason } => {
                format!("is not a regular expression ({reason})")
            }
        };
        ConfigError::new(path, problem)
    })
}

/// The replacement with its group numbers in braces, so that `$1a` means the first group followed by `a`.
pub(crate) fn braced(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        let digits = after.bytes().take_while(u8::is_ascii_digit).count();
        rest = match (after.strip_prefix('$'), digits) {
            (Some(after), _) => {
                out.push_str("$$");
                after
            }
            (None, 0) if after.starts_with('{') => {
                out.push('$');
                after
            }
            (None, 0) => {
                out.push_str("$$");
                after
            }
            (None, digits) => {
                out.push_str(&format!("${{{}}}", &after[..digits]));
                &after[digits..]
            }
        };
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_bounded_and_errors_name_their_place() {
        assert!(compile("^/a(.*)", false, "x").expect("valid").is_match(b"/abc"));
        assert!(compile("CAF\u{e9}", true, "x").expect("valid").is_match("caf\u{e9}".as_bytes()));
        for (text, want) in [
            ("(".to_owned(), "x[1]: is not a regular expression (unclosed group)"),
            ("(?=a)".to_owned(), "x[1]: is not a regular expression"),
            ("(a{1000}){1000}".to_owned(), "x[1]: is too large: the compiled expression must not exceed 1024 KiB"),
            ("a".repeat(MAX_TEXT + 1), "x[1]: is longer than"),
        ] {
            let error = compile(&text, false, "x[1]").expect_err("refused").to_string();
            assert!(error.starts_with(want), "{error}");
        }
    }
}
