use std::process::ExitCode;

use clap::Args;
use weir_control::document::file_schema;
use weir_control::document::kinds::{KINDS, ResourceKind};
use weir_control::keys::schema;
use weir_plugin::suggest::closest;

use crate::say::{self, say};

/// Prints the JSON Schema of a configuration file, or of a kind of resource.
///
/// Editors and forms can use it: it has the keys with their kinds, bounds, defaults and meanings. docs/reference/configuration.md has the
/// same in words. `weir plugins NAME --schema` prints that of a plugin.
#[derive(Debug, Args)]
pub struct SchemaCommand {
    /// The kind, such as `route` or `upstream`; without it, the schema is that of a whole file.
    kind: Option<String>,
}

impl SchemaCommand {
    pub fn execute(self) -> ExitCode {
        let Some(name) = &self.kind else {
            return say::print(format!("{:#}\n", file_schema()).as_bytes());
        };
        let kind = described().find(|kind| kind.schema_name() == *name || kind.list == *name);
        match kind.and_then(ResourceKind::table) {
            Some(table) => say::print(format!("{:#}\n", schema::of(table)).as_bytes()),
            None => {
                let names: Vec<String> = described().map(ResourceKind::schema_name).collect();
                let meant = closest(name, names.iter().map(String::as_str));
                let meant = meant.map(|meant| format!("did you mean `{meant}`? ")).unwrap_or_default();
                say!("there is no schema of `{name}`; {meant}the kinds are {}", names.join(", "));
                ExitCode::from(2)
            }
        }
    }
}

/// The kinds whose keys are known.
fn described() -> impl Iterator<Item = &'static ResourceKind> {
    KINDS.iter().filter(|kind| kind.table().is_some())
}
