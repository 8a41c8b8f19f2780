mod variables;

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::Value;
use weir_plugin::Entry;
use weir_plugin::options::{description, rows};

use crate::node::PLUGINS;
use crate::say;

/// Prints a page of the reference for this version, in Markdown.
///
/// docs/reference contains the same pages.
#[derive(Debug, Args)]
pub struct ReferenceCommand {
    page: ReferencePage,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ReferencePage {
    /// All plugins with their options.
    Plugins,
    /// The variables for conditions and text templates.
    Variables,
}

impl ReferenceCommand {
    pub fn execute(self) -> ExitCode {
        let text = match self.page {
            ReferencePage::Plugins => plugins(),
            ReferencePage::Variables => variables::page(),
        };
        say::print(text.as_bytes())
    }
}

/// One section per plugin, from its schema.
fn plugins() -> String {
    let mut page = String::from(
        "# Plugins\n\nWritten by `cargo xtask docs` from the plugins themselves; `weir plugins NAME` prints the same text.\n\n\
         Plugins of the rewrite stage run before plugins of the access stage; within a stage, the plugin with the higher \
         priority runs first.\n\nNested options are listed after the option that contains them: `a.b` is `b` in the map `a`, \
         `a[].b` is `b` in each item of the list `a`, and `*` is any name. *Required* means that the option must be present in \
         each map or item that can contain it.\n",
    );
    let mut entries: Vec<&Entry> = PLUGINS.entries().iter().collect();
    entries.sort_by_key(|entry| entry.name);
    for entry in entries {
        let schema = (entry.schema)();
        let _ = write!(page, "\n## {}\n\n{}\n\n", entry.name, description(&schema));
        let _ = write!(page, "Stage: {}. Priority: {}.\n\n```yaml route\nplugins:\n", entry.stage, entry.priority);
        for line in entry.example.lines() {
            let _ = writeln!(page, "  {line}");
        }
        page.push_str("```\n");
        options(&schema, &mut page);
        if let Some(credential) = entry.credential {
            page.push_str("\nOptions in a consumer:\n");
            options(&(credential.schema)(), &mut page);
        }
        if let Some(metadata) = entry.metadata {
            page.push_str("\nOptions in `plugin_metadata`, for every use of the plugin:\n");
            options(&(metadata.schema)(), &mut page);
        }
    }
    page
}

fn options(schema: &Value, page: &mut String) {
    let rows = rows(schema);
    if rows.is_empty() {
        return;
    }
    page.push_str("\n| option | type | default | meaning |\n|---|---|---|---|\n");
    for row in rows {
        let default = match row.default {
            _ if row.is_required => "required".to_owned(),
            Some(value) => format!("`{value}`"),
            None => String::new(),
        };
        let cells = [format!("`{}`", row.path), row.kind, default, row.meaning];
        let _ = writeln!(page, "| {} |", cells.map(|cell| cell.replace('|', "\\|")).join(" | "));
    }
}
