//! Regular expressions in converted configurations.

/// A regular expression that matches exactly this text.
pub fn regex_quoted(text: &str) -> String {
    text.chars()
        .flat_map(|char| ["\\.+*?()|[]{}^$".contains(char).then_some('\\'), Some(char)].into_iter().flatten())
        .collect()
}

/// A regular expression that matches the whole path if `pattern` is found in it, since `rewrite` replaces the whole path.
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
