//! Errors of single values.

use std::fmt;

/// A text of an option or a key that cannot be read as a value of its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueError {
    text: String,
    /// The kind with its article, such as `a size`.
    kind: &'static str,
    examples: &'static str,
}

impl ValueError {
    pub fn new(text: &str, kind: &'static str, examples: &'static str) -> ValueError {
        ValueError { text: text.to_owned(), kind, examples }
    }
}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not {}; try {}", self.text, self.kind, self.examples)
    }
}

impl std::error::Error for ValueError {}
