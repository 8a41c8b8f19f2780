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
    /// What else is wrong.
    further: Vec<ConfigError>,
}

impl ConfigError {
    /// User and password of a URL that the problem quotes are left out.
    pub fn new(path: impl Into<String>, problem: impl Into<String>) -> ConfigError {
        ConfigError { path: path.into(), problem: without_users(&problem.into()).into_owned(), further: Vec::new() }
    }

    /// The same error with its path prefixed, for a configuration nested in another at `path`.
    pub fn below(self, outer: &str) -> ConfigError {
        if outer.is_empty() {
            return self;
        }
        let path = match self.path.as_str() {
            "" => outer.to_owned(),
            inner if inner.starts_with('[') => format!("{outer}{inner}"),
            inner => format!("{outer}.{inner}"),
        };
        let further = self.further.into_iter().map(|fault| fault.below(outer)).collect();
        ConfigError { path, further, ..self }
    }

    /// Several faults as one error; `None` if there is none.
    pub(crate) fn all_of(faults: Vec<ConfigError>) -> Option<ConfigError> {
        let mut faults = faults.into_iter();
        let first = faults.next()?;
        Some(ConfigError { further: faults.collect(), ..first })
    }

    /// Each fault.
    pub fn each(mut self) -> impl Iterator<Item = ConfigError> {
        let further = std::mem::take(&mut self.further);
        std::iter::once(self).chain(further)
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
