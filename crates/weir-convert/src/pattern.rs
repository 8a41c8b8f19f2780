//! Regular expressions in converted configurations.

/// Text as a regular expression that matches it alone.
pub fn regex_quoted(text: &str) -> String {
    text.chars()
        .flat_map(|char| ["\\.+*?()|[]{}^$".contains(char).then_some('\\'), Some(char)].into_iter().flatten())
        .collect()
}
