//! Regular expressions in plugin options: linear-time, bounded in size, ASCII classes unless the text says otherwise.

use regex::bytes::{Regex, RegexBuilder};
use weir_plugin::ConfigError;

/// How long the text of an expression may be, in bytes.
const MAX_TEXT: usize = 16 << 10;
/// How large a compiled expression, and the cache of one, may be, in bytes.
const MAX_COMPILED: usize = 1 << 20;

/// Compiles an expression that stands at `path` of the options.
pub fn compile(text: &str, ignore_case: bool, path: &str) -> Result<Regex, ConfigError> {
    if text.len() > MAX_TEXT {
        let problem = format!("is longer than the {MAX_TEXT} bytes a regular expression may have");
        return Err(ConfigError::new(path, problem));
    }
    let build = |unicode| {
        RegexBuilder::new(text)
            .case_insensitive(ignore_case)
            .unicode(unicode)
            .size_limit(MAX_COMPILED)
            .dfa_size_limit(MAX_COMPILED)
            .build()
    };
    // As in PCRE, \w and \d mean ASCII, which also keeps them small. Other alphabets need the Unicode mode.
    let built = if text.is_ascii() { build(false).or_else(|_| build(true)) } else { build(true) };
    built.map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => {
            ConfigError::new(path, format!("is too large: compiled, it may take {} KiB", MAX_COMPILED >> 10))
        }
        error => {
            // The last line says what is wrong; those before it draw an arrow below the expression.
            let text = error.to_string();
            let reason = text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
            ConfigError::new(path, format!("is not a regular expression ({reason}); there is no look-around"))
        }
    })
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
            ("(a{1000}){1000}".to_owned(), "x[1]: is too large: compiled, it may take 1024 KiB"),
            ("a".repeat(MAX_TEXT + 1), "x[1]: is longer than"),
        ] {
            let error = compile(&text, false, "x[1]").expect_err("refused").to_string();
            assert!(error.starts_with(want), "{error}");
        }
    }
}
