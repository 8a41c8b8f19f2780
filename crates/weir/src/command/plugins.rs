use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::Value;
use weir_control::plugin_schemas;
use weir_plugin::options::{Row, description, rows};
use weir_plugin::suggest::closest;
use weir_plugin::{Entry, Registry};

use crate::exit::ExitFailure;
use crate::node::PLUGINS;
use crate::say::{self, say};

/// Lists the plugins, or shows the options of one plugin.
///
/// docs/reference/plugins.md has the options of all plugins. `weir explain` shows which plugins run for a request, and in which order.
#[derive(Debug, Args)]
pub(crate) struct PluginsCommand {
    /// The plugin; without it, all plugins are listed.
    name: Option<String>,
    /// Prints a JSON Schema instead.
    #[arg(long, value_enum, value_name = "OF", num_args = 0..=1, require_equals = true, default_missing_value = "options",
          requires = "name")]
    schema: Option<ReferencePart>,
    /// Adds the plugins in WebAssembly files that this configuration file declares.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

/// What a plugin has a schema for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ReferencePart {
    /// The options of the plugin
    Options,
    /// The options in a consumer
    Consumer,
    /// The options in `plugin_metadata`
    Metadata,
}

impl PluginsCommand {
    pub(crate) fn execute(self) -> ExitCode {
        let registry = match &self.file {
            None => PLUGINS,
            Some(file) => match weir_control::registry_of_file(file, &PLUGINS) {
                Ok(registry) => registry,
                Err(faults) => {
                    faults.iter().for_each(|fault| say!("{fault}"));
                    return ExitFailure::Configuration.into();
                }
            },
        };
        let text = match &self.name {
            None => Ok(table(registry)),
            Some(name) => find(registry, name).and_then(|entry| match self.schema {
                None => Ok(page(entry)),
                Some(part) => schema(entry, part),
            }),
        };
        match text {
            Ok(text) => say::print(text.as_bytes()),
            Err(problem) => {
                say!("{problem}");
                ExitCode::from(2)
            }
        }
    }
}

fn find(registry: Registry, name: &str) -> Result<&'static Entry, String> {
    registry.find(name).ok_or_else(|| {
        let meant = closest(name, registry.entries().iter().map(|entry| entry.name));
        let meant = meant.map(|meant| format!("did you mean `{meant}`? ")).unwrap_or_default();
        format!("there is no plugin `{name}`; {meant}`weir plugins` lists the plugins")
    })
}

/// A table with one line per plugin.
fn table(registry: Registry) -> String {
    let mut entries: Vec<&Entry> = registry.entries().iter().collect();
    entries.sort_by_key(|entry| entry.name);
    let width = entries.iter().map(|entry| entry.name.len()).max().unwrap_or_default();
    let mut text = format!("{:width$}  stage    priority  what it does\n", "name");
    for Entry { name, stage, priority, schema, .. } in entries {
        let schema = schema();
        let _ = writeln!(text, "{name:width$}  {stage:7}  {priority:8}  {}", first_sentence(description(&schema)));
    }
    text
}

/// The text up to the first full stop that ends a sentence.
pub(crate) fn first_sentence(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    text.split_once(". ").map_or(text.trim_end_matches('.'), |(first, _)| first).to_owned()
}

/// The full description of one plugin.
fn page(entry: &Entry) -> String {
    let schema = (entry.schema)();
    let mut text = format!("{}\n\n{}\n\n", entry.name, description(&schema));
    let streams = match (entry.only_on_streams, entry.on_streams) {
        (true, _) => " Works on stream routes alone.",
        (_, true) => " Works on stream routes as well.",
        _ => "",
    };
    let _ = write!(
        text,
        "Stage: {}. Priority: {}; the higher runs first.{streams}\n\nplugins:\n",
        entry.stage, entry.priority
    );
    entry.example.lines().for_each(|line| writeln!(text, "  {line}").expect("a string takes everything"));
    list("Options:", &schema, &mut text);
    if let Some(credential) = entry.credential {
        list("Options in a consumer:", &(credential.schema)(), &mut text);
    }
    if let Some(metadata) = entry.metadata {
        list("Options in `plugin_metadata`, for every use of the plugin:", &(metadata.schema)(), &mut text);
    }
    text
}

fn list(title: &str, schema: &Value, text: &mut String) {
    let _ = writeln!(text, "\n{title}");
    let rows = rows(schema);
    if rows.is_empty() {
        text.push_str("  none\n");
    }
    for Row { path, kind, is_required, default, meaning, reaches: _, refers: _ } in rows {
        let presence = match default {
            _ if is_required => "; required".to_owned(),
            Some(default) => format!("; default {default}"),
            None => String::new(),
        };
        let _ = writeln!(text, "  {path} ({kind}{presence})");
        wrap(&meaning, "      ", text);
    }
}

/// The most characters in a line of prose.
const WIDTH: usize = 100;

fn wrap(prose: &str, indent: &str, text: &mut String) {
    let mut used = 0;
    for word in prose.split_whitespace() {
        let length = word.chars().count();
        if used > 0 && used + 1 + length <= WIDTH {
            text.push(' ');
            used += 1;
        } else {
            text.push_str(if used > 0 { "\n" } else { "" });
            text.push_str(indent);
            used = indent.len();
        }
        text.push_str(word);
        used += length;
    }
    text.push('\n');
}

fn schema(entry: &Entry, part: ReferencePart) -> Result<String, String> {
    let schema = match part {
        ReferencePart::Options => Some(plugin_schemas::options(entry)),
        ReferencePart::Consumer => plugin_schemas::credential(entry),
        ReferencePart::Metadata => plugin_schemas::metadata(entry),
    };
    let schema = schema.ok_or_else(|| match part {
        ReferencePart::Options | ReferencePart::Consumer => {
            format!("`{}` is not an auth plugin and has no options in a consumer", entry.name)
        }
        ReferencePart::Metadata => format!("`{}` has no options in `plugin_metadata`", entry.name),
    })?;
    Ok(format!("{schema:#}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_is_wrapped_between_words_and_cut_after_a_sentence() {
        let mut text = String::new();
        wrap(&"twelve chars ".repeat(10), "  ", &mut text);
        assert!(text.lines().count() == 2 && text.lines().all(|line| line.len() <= WIDTH), "{text}");
        assert!(text.lines().all(|line| line.starts_with("  ") && !line.starts_with("   ")), "{text}");
        assert_eq!(first_sentence("Does this, as `a.b`\ndoes. And that."), "Does this, as `a.b` does");
        assert_eq!(first_sentence("Does this."), "Does this");
    }

    #[test]
    fn every_plugin_has_a_page_that_names_its_options() {
        for entry in PLUGINS.entries() {
            let page = page(entry);
            for row in rows(&(entry.schema)()) {
                assert!(!row.meaning.is_empty(), "{}: {} has no meaning", entry.name, row.path);
                assert!(page.contains(&format!("  {} ({}", row.path, row.kind)), "{page}");
            }
        }
    }
}
