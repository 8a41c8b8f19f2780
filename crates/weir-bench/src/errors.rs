//! Errors of single values and of files, which all parts of the lab have.

use std::{
    io,
    path::{Path, PathBuf},
};

/// A text of an option or a key that cannot be read as a value of its kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {kind}; try {examples}")]
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

/// An error of the file system, with the path.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", .path.display())]
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
