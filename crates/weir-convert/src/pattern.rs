//! Regular expressions in converted configurations.

/// Text as a regular expression that matches it alone.
pub fn regex_quoted(text: &str) -> String {
    text.chars()
        .flat_map(|char| ["\\.+*?()|[]{}^$".contains(char).then_some('\\'), Some(char)].into_iter().flatten())
        .collect()
}

/// An expression that matches the whole path where `pattern` is found in it: `rewrite` replaces all of the path.
pub fn whole(pattern: &str, ignores_case: bool) -> String {
    let flags = if ignores_case { "(?i)" } else { "" };
    if pattern.starts_with('^') && pattern.ends_with('$') && !pattern.contains('|') {
        return format!("{flags}{pattern}");
    }
    let (begin, rest) = match pattern.strip_prefix('^') {
        Some(rest) if !pattern.contains('|') => ("^", rest),
        _ => ("^.*?", pattern),
    };
    match rest.strip_suffix('$') {
        Some(inner) if !pattern.contains('|') => format!("{flags}{begin}(?:{inner})$"),
        _ => format!("{flags}{begin}(?:{rest}).*$"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_of_a_rewrite_takes_the_whole_path() {
        assert_eq!(whole("^/a/(.*)$", false), "^/a/(.*)$");
        assert_eq!(whole("^/a/(.*)", false), "^(?:/a/(.*)).*$");
        assert_eq!(whole("a", true), "(?i)^.*?(?:a).*$");
        assert_eq!(whole("^/a|b$", false), "^.*?(?:^/a|b$).*$");
    }
}
