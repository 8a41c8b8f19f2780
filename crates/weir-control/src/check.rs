//! Checks a configuration without publishing it, for `weir check`.

#[cfg(test)]
mod quoted_secrets;
mod written_files;

use weir_plugin::Registry;

use crate::compile::{Compiled, compile, registry_of};
use crate::document::{CompleteDocument, WrittenDocument};
use crate::doubts;
use crate::stores::DocumentLoader;
use crate::text::diagnostic::Diagnostic;
use crate::text::yaml::TextLimits;

/// Checks a file, with the environment variables of this process. Host names are not looked up.
///
/// # Errors
/// All faults. The `Ok` value contains what is accepted but probably not intended.
pub fn check_file(path: &std::path::Path, registry: &Registry) -> Result<Vec<Diagnostic>, Vec<Diagnostic>> {
    check(DocumentLoader::of_file_directly(path), registry)
}

/// The plugins that a file may use: those of the binary, and those in files that its settings declare, whose code is not read.
///
/// # Errors
/// The file cannot be read.
pub fn registry_of_file(path: &std::path::Path, registry: &Registry) -> Result<Registry, Vec<Diagnostic>> {
    let loaded = DocumentLoader::of_file_directly(path).read()?;
    Ok(registry_of(registry, &loaded.document.settings))
}

/// Like [`check_file`], for standard input.
///
/// # Errors
/// As [`check_file`].
pub fn check_standard_input(registry: &Registry) -> Result<Vec<Diagnostic>, Vec<Diagnostic>> {
    check(DocumentLoader::of_standard_input(), registry)
}

fn check(mut loader: DocumentLoader, registry: &Registry) -> Result<Vec<Diagnostic>, Vec<Diagnostic>> {
    let loaded = loader.read()?;
    check_document(&loaded.document, registry)
}

/// Checks a document that has been read.
///
/// # Errors
/// As [`check_file`].
pub fn check_document(document: &CompleteDocument, registry: &Registry) -> Result<Vec<Diagnostic>, Vec<Diagnostic>> {
    let warnings = check_unopened(document, registry)?;
    let unwritable = written_files::directories(document, registry);
    if unwritable.is_empty() { Ok(warnings) } else { Err(unwritable) }
}

/// Like [`check_document`], without a look at the files that plugins would write.
///
/// # Errors
/// As [`check_file`].
pub(crate) fn check_unopened(
    document: &CompleteDocument,
    registry: &Registry,
) -> Result<Vec<Diagnostic>, Vec<Diagnostic>> {
    let Compiled { mut warnings, .. } = compile(document, registry, None)?;
    warnings.extend(doubts::about_document(document, registry).into_iter().map(|doubt| document.located(doubt)));
    // The sort is stable: the main file comes before the included ones, and findings without a line come last.
    let place = |warning: &Diagnostic| (warning.line.unwrap_or(u32::MAX), warning.column);
    let is_included = |warning: &Diagnostic| warning.source != document.source;
    warnings.sort_by(|a, b| {
        let file = |warning| (is_included(warning), &*warning.source);
        file(a).cmp(&file(b)).then_with(|| place(a).cmp(&place(b)))
    });
    Ok(warnings)
}

/// Checks a text, without environment variables and plugins. Never panics, whatever the text.
///
/// # Errors
/// As [`check_file`].
pub fn check_text(text: &str) -> Result<Vec<Diagnostic>, Vec<Diagnostic>> {
    let document = WrittenDocument::parse("text", text, &|_| None, TextLimits::default())?;
    check_document(&document.without_secrets().alone(), &Registry::new(&[]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(count: usize, item: impl Fn(usize) -> String) -> String {
        (0..count).map(item).collect()
    }

    /// R06: ten thousand items take ten times as long as a thousand, not a hundred times. Time is not measured; a quadratic
    /// algorithm would take minutes.
    #[test]
    fn large_documents_take_no_more_than_their_size() {
        const MANY: usize = 10_000;
        let documents = [
            "${{".repeat(MANY),
            "${{A:=".repeat(MANY),
            numbered(MANY, |key| format!("k{key}: &a{key} 1\n")),
            format!("routes:\n{}", numbered(MANY, |_| "- { id: 1, uri: /a, k: 1 }\n".to_owned())),
            format!("routes: [{{ plugins: {{}}, uris: [{}] }}]\n", numbered(MANY, |uri| format!("/{uri}, "))),
            format!("upstreams: [{{ nodes: {{{}}} }}]\n", numbered(MANY, |node| format!("'h{node}:1': 1, "))),
            format!(
                "upstreams:\n{}routes:\n{}",
                numbered(MANY, |id| format!("- {{ id: u{id}, nodes: {{}} }}\n")),
                numbered(MANY, |id| format!("- {{ uri: /{id}, upstream_id: x{id} }}\n"))
            ),
            format!(
                "plugin_configs:\n{}routes:\n{}",
                numbered(MANY, |id| format!("- {{ id: u{id}, plugins: {{}} }}\n")),
                numbered(MANY, |id| format!("- {{ uri: /{id}, plugin_config_id: u{id} }}\n"))
            ),
        ];
        for document in documents {
            let faults = check_text(&document).err().unwrap_or_default();
            assert!(faults.len() <= 1_001, "and there are not endless diagnostics");
        }
    }
}
