//! `weir store`: the store of a node that is not running.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use weir_control::stores::{export_store, import_into_store};

use super::resource_files;
use super::resources::ended;
use crate::node::PLUGINS;
use crate::say::say;

/// Imports resources into the store of a node, or exports them, while the node is not running.
#[derive(Debug, Args)]
pub struct StoreCommand {
    #[command(subcommand)]
    action: StoreAction,
}

#[derive(Debug, Subcommand)]
enum StoreAction {
    /// Replaces the content of the store with the resources of files, in one revision, which can be rolled back.
    Import {
        /// The configuration file of the node, whose `store` setting names the store.
        node: PathBuf,
        /// Files and directories with resources, such as an apisix.yaml or an export; `-` is standard input.
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Writes all resources to standard output, as a file for `weir run` or `weir store import`. The file contains the secrets.
    Export {
        /// The configuration file of the node, whose `store` setting names the store.
        node: PathBuf,
    },
}

impl StoreCommand {
    pub fn execute(self) -> ExitCode {
        ended(match self.action {
            StoreAction::Import { node, files } => resource_files::read(&files).and_then(|resources| {
                let (changed, revision) = import_into_store(&node, resources, &PLUGINS).map_err(lines)?;
                say!("imported: {changed} resources changed, revision {revision}");
                Ok(())
            }),
            StoreAction::Export { node } => export_store(&node).map_err(lines).map(|all| {
                // A closed pipe is not a failure.
                let _ = writeln!(io::stdout(), "{all:#}");
            }),
        })
    }
}

fn lines(faults: Vec<weir_control::Diagnostic>) -> String {
    faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}
