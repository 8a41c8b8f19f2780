//! An error in a plugin's options, and its place.

use std::fmt;

use weir_client::without_users;

/// The most faults of a plugin that are told at once.
pub(crate) const MOST_FAULTS: usize = 20;

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

    /// For options of which exactly one must be there: each with whether it is.
    pub fn one_of(options: &[(&str, bool)]) -> ConfigError {
        let names = |only_given: bool| {
            let named = options.iter().filter(|(_, given)| *given || !only_given);
            let names: Vec<String> = named.map(|(name, _)| format!("`{name}`")).collect();
            match names.split_last() {
                Some((last, [])) => last.clone(),
                Some((last, others)) => format!("{} and {last}", others.join(", ")),
                None => String::new(),
            }
        };
        let problem = match options.iter().any(|(_, given)| *given) {
            false => format!("needs one of {}", names(false)),
            true => format!("has {}; keep one of them", names(true)),
        };
        ConfigError::new("", problem)
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

    /// Several faults as one error, [`MOST_FAULTS`] of them at most; `None` if there is none.
    pub(crate) fn of_faults(faults: impl IntoIterator<Item = ConfigError>) -> Option<ConfigError> {
        let mut faults = faults.into_iter().flat_map(ConfigError::each).take(MOST_FAULTS);
        let first = faults.next()?;
        Some(ConfigError { further: faults.collect(), ..first })
    }

    /// Each fault.
    pub fn each(mut self) -> impl Iterator<Item = ConfigError> {
        let further = std::mem::take(&mut self.further);
        std::iter::once(self).chain(further)
    }
}

/// Results of building the items of an option.
pub trait CollectAll<T>: Iterator<Item = Result<T, ConfigError>> + Sized {
    /// All values, or else the faults of all items that have one, [`MOST_FAULTS`] of them at most.
    ///
    /// # Errors
    /// If an item has a fault.
    fn collect_all<C: FromIterator<T>>(self) -> Result<C, ConfigError> {
        let mut faults = Vec::new();
        let values = self.filter_map(|result| result.map_err(|fault| faults.push(fault)).ok()).collect();
        ConfigError::of_faults(faults).map_or(Ok(values), Err)
    }
}

impl<T, I: Iterator<Item = Result<T, ConfigError>>> CollectAll<T> for I {}

/// Results of building several options, as a tuple.
pub trait AllOf {
    type Values;

    /// All values, or else the faults of all options that have one, [`MOST_FAULTS`] of them at most.
    ///
    /// # Errors
    /// If an option has a fault.
    fn all_of(self) -> Result<Self::Values, ConfigError>;
}

macro_rules! all_of_tuples {
    ($($value:ident: $type:ident),+) => {
        impl<$($type),+> AllOf for ($(Result<$type, ConfigError>,)+) {
            type Values = ($($type,)+);

            fn all_of(self) -> Result<Self::Values, ConfigError> {
                let ($($value,)+) = self;
                match ($($value,)+) {
                    ($(Ok($value),)+) => Ok(($($value,)+)),
                    ($($value,)+) => {
                        let faults = [$($value.err()),+].into_iter().flatten();
                        Err(ConfigError::of_faults(faults).expect("one of them is no value"))
                    }
                }
            }
        }
    };
}

all_of_tuples!(a: A, b: B);
all_of_tuples!(a: A, b: B, c: C);
all_of_tuples!(a: A, b: B, c: C, d: D);
all_of_tuples!(a: A, b: B, c: C, d: D, e: E);
all_of_tuples!(a: A, b: B, c: C, d: D, e: E, f: F);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => write!(f, "{}", self.problem),
            path => write!(f, "{path}: {}", self.problem),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<u8, ConfigError> {
        text.parse().map_err(|_| ConfigError::new(text, "is not a number"))
    }

    #[test]
    fn the_faults_of_all_items_are_told_up_to_a_bound() {
        assert_eq!(["1", "2"].into_iter().map(read).collect_all(), Ok(vec![1, 2]));
        let told = |texts: &[&str]| {
            let error = texts.iter().copied().map(read).collect_all::<Vec<u8>>().expect_err("there are faults");
            error.each().map(|fault| fault.path).collect::<Vec<_>>()
        };
        assert_eq!(told(&["a", "1", "b"]), ["a", "b"]);
        assert_eq!(told(&["a"; 50]).len(), MOST_FAULTS);
        let of_tuple = (read("a"), read("1"), ["b", "c"].map(read).into_iter().collect_all::<Vec<_>>()).all_of();
        let paths: Vec<_> = of_tuple.expect_err("there are faults").each().map(|fault| fault.path).collect();
        assert_eq!(paths, ["a", "b", "c"]);
        assert_eq!((read("1"), read("2")).all_of(), Ok((1, 2)));
    }
}
