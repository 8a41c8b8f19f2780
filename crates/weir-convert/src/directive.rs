//! Directives, the elements of configuration files of nginx and Caddy.

use crate::SourcePlace;

/// A directive, with the content of its braces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Directive {
    pub name: String,
    pub arguments: Vec<String>,
    pub block: Option<Vec<Directive>>,
    pub place: SourcePlace,
}

impl Directive {
    /// An argument, or the empty text.
    pub(crate) fn argument(&self, index: usize) -> &str {
        self.arguments.get(index).map_or("", String::as_str)
    }

    /// The arguments after the first one.
    pub(crate) fn after_first(&self) -> &[String] {
        self.arguments.get(1..).unwrap_or_default()
    }

    /// The content of its braces.
    pub(crate) fn children(&self) -> &[Directive] {
        self.block.as_deref().unwrap_or_default()
    }

    /// The directive as written, without its block.
    pub(crate) fn head(&self) -> String {
        let mut words = vec![self.name.clone()];
        words.extend(self.arguments.iter().cloned());
        words.join(" ")
    }
}

/// Returns the names and texts of the files that a pattern matches, or an error.
pub type Include<'a> = &'a dyn Fn(&str) -> Result<Vec<(String, String)>, String>;
