//! Errors of single values and of files, which all parts of the lab have.

use std::{
    error::Error,
    fmt, io,
    path::{Path, PathBuf},
};

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

impl Error for ValueError {}

/// An error of the file system, with the path.
#[derive(Debug)]
pub struct FileError {
    path: PathBuf,
    source: io::Error,
}

impl FileError {
    /// Adds the path to an error.
    pub fn at(path: &Path) -> impl Fn(io::Error) -> FileError {
        |source| FileError { path: path.to_owned(), source }
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.source)
    }
}

impl Error for FileError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.source)
    }
}

/// `From` for the variants of an error that hold another error and nothing else.
macro_rules! from_causes {
    ($error:ident: $($variant:ident($cause:ty)),+) => {
        $(impl From<$cause> for $error {
            fn from(cause: $cause) -> $error {
                $error::$variant(cause)
            }
        })+
    };
}

pub(crate) use from_causes;
