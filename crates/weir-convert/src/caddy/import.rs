//! `import`: inserts snippets and files in place of the directive.

use std::collections::HashMap;

use super::syntax;
use crate::directive::{Directive, Include};
use crate::output::Converted;
use crate::{SourcePlace, SyntaxError};

/// The most levels of nested imports.
const IMPORTS: usize = 16;
/// The most directives after all imports.
const DIRECTIVES: usize = 100_000;

pub(super) struct Importer<'a, 'b> {
    pub include: Include<'a>,
    pub converted: &'b mut Converted,
    snippets: HashMap<String, Vec<Directive>>,
    count: usize,
}

impl<'a, 'b> Importer<'a, 'b> {
    pub(super) fn new(include: Include<'a>, converted: &'b mut Converted) -> Importer<'a, 'b> {
        Importer { include, converted, snippets: HashMap::new(), count: 0 }
    }

    /// Expands imports, and removes the definitions of snippets.
    pub(super) fn expanded(&mut self, directives: Vec<Directive>, depth: usize) -> Result<Vec<Directive>, SyntaxError> {
        let mut all = Vec::new();
        for mut directive in directives {
            self.count += 1;
            if self.count > DIRECTIVES {
                let text = format!("the imports yield more than {DIRECTIVES} directives");
                return Err(SyntaxError { place: directive.place, text });
            }
            let snippet = directive.name.strip_prefix('(').and_then(|name| name.strip_suffix(')'));
            if let Some(name) = snippet {
                self.snippets.insert(name.to_owned(), directive.block.take().unwrap_or_default());
            } else if directive.name == "import" {
                all.extend(self.imported(&directive, depth)?);
            } else {
                if let Some(block) = directive.block.take() {
                    directive.block = Some(self.expanded(block, depth)?);
                }
                all.push(directive);
            }
        }
        Ok(all)
    }

    fn imported(&mut self, import: &Directive, depth: usize) -> Result<Vec<Directive>, SyntaxError> {
        let pattern = import.argument(0);
        if depth == IMPORTS {
            let text = format!("`import {pattern}`: imports are nested more than {IMPORTS} levels deep");
            return Err(SyntaxError { place: import.place.clone(), text });
        }
        if import.block.is_some() {
            self.converted.lost(&import.place, format!("`import {pattern}` with a block"));
        }
        let arguments = import.arguments.get(1..).unwrap_or_default();
        if let Some(snippet) = self.snippets.get(pattern).cloned() {
            return self.expanded(with_arguments(snippet, arguments), depth + 1);
        }
        let files = match (self.include)(pattern) {
            Ok(files) => files,
            Err(error) => {
                self.unknown(&import.place, pattern, &error);
                return Ok(Vec::new());
            }
        };
        let mut all = Vec::new();
        for (name, text) in files {
            all.extend(self.expanded(with_arguments(syntax::parse(&name, &text)?, arguments), depth + 1)?);
        }
        Ok(all)
    }

    fn unknown(&mut self, place: &SourcePlace, pattern: &str, error: &str) {
        let is_name = !pattern.contains(['/', '.', '*']);
        let text = match is_name {
            true => format!("`import {pattern}`: there is no snippet of this name before this line, and no such file"),
            false => format!("`import {pattern}`: {error}"),
        };
        self.converted.lost(place, text);
    }
}

/// Replaces `{args[0]}` or `{args.0}` by the arguments of an import, and `{args[:]}` by all of them.
fn with_arguments(directives: Vec<Directive>, arguments: &[String]) -> Vec<Directive> {
    let replaced = |word: String| {
        let mut word = word;
        for (number, argument) in arguments.iter().enumerate() {
            for form in [format!("{{args[{number}]}}"), format!("{{args.{number}}}")] {
                if word.contains(&form) {
                    word = word.replace(&form, argument);
                }
            }
        }
        word
    };
    let each = |mut directive: Directive| {
        directive.name = replaced(directive.name);
        let words = std::mem::take(&mut directive.arguments).into_iter();
        directive.arguments = words
            .flat_map(|word| match word == "{args[:]}" || word == "{args.*}" {
                true => arguments.to_vec(),
                false => vec![replaced(word)],
            })
            .collect();
        directive.block = directive.block.map(|block| with_arguments(block, arguments));
        directive
    };
    directives.into_iter().map(each).collect()
}
