//! Directives, of which the configuration files of nginx and Caddy consist.

use crate::SourcePlace;

/// One directive, with what is inside its braces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directive {
    pub name: String,
    pub arguments: Vec<String>,
    pub block: Option<Vec<Directive>>,
    pub place: SourcePlace,
}

impl Directive {
    /// An argument, or nothing.
    pub fn argument(&self, index: usize) -> &str {
        self.arguments.get(index).map_or("", String::as_str)
    }

    /// The arguments behind the first one.
    pub fn after_first(&self) -> &[String] {
        self.arguments.get(1..).unwrap_or_default()
    }

    /// What is inside its braces.
    pub fn children(&self) -> &[Directive] {
        self.block.as_deref().unwrap_or_default()
    }

    /// The directive as it was written, without its block.
    pub fn head(&self) -> String {
        let mut words = vec![self.name.clone()];
        words.extend(self.arguments.iter().cloned());
        words.join(" ")
    }
}

/// Finds the files that a pattern means: their names and texts, or why there are none.
pub type Include<'a> = &'a dyn Fn(&str) -> Result<Vec<(String, String)>, String>;
