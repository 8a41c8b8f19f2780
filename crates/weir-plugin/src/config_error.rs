//! An error in a plugin's options, and its place.

use std::fmt;

use weir_client::without_users;

/// A mistake in a plugin's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The place within the plugin's configuration: `headers.set`, `regex_uri[1]`; empty for the whole.
    pub path: String,
    /// The error, and how to correct it.
    pub problem: String,
}

impl ConfigError {
    /// User and password of a URL that the problem quotes are left out.
    pub fn new(path: impl Into<String>, problem: impl Into<String>) -> ConfigError {
        ConfigError { path: path.into(), problem: without_users(&problem.into()).into_owned() }
    }

    /// The same error with its path prefixed, for a configuration nested in another at `path`.
    pub fn below(self, path: &str) -> ConfigError {
        let path = match self.path.as_str() {
            "" => path.to_owned(),
            inner if inner.starts_with('[') => format!("{path}{inner}"),
            inner => format!("{path}.{inner}"),
        };
        ConfigError { path, ..self }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => write!(f, "{}", self.problem),
            path => write!(f, "{path}: {}", self.problem),
        }
    }
}
