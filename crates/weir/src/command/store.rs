//! `weir store`: the store of a node that is not running.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use weir_control::stores::{StoreExport, export_store, import_into_store};
use weir_control::{Diagnostic, whole_file};

use super::resource_files;
use crate::exit::{self, ExitFailure};
use crate::node::PLUGINS;
use crate::say::{self, say};

/// Imports resources into the store of a node, or exports them, while the node is not running.
#[derive(Debug, Args)]
pub(crate) struct StoreCommand {
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
    /// Writes all resources as a file for `weir run` or `weir store import`. The file contains the secrets.
    ///
    /// A resource that an import would refuse is left out, is named with its fault on standard error, and makes the exit code 1.
    Export {
        /// The configuration file of the node, whose `store` setting names the store.
        node: PathBuf,
        /// The file to write, which only its owner can read. An older one is replaced once all is written, and stays if the export
        /// fails. Without this option, or with `-`, the resources are written to standard output.
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
}

impl StoreCommand {
    pub(crate) fn execute(self) -> ExitCode {
        match self.action {
            StoreAction::Import { node, files } => import(&node, &files),
            StoreAction::Export { node, output } => export(&node, output.as_deref()),
        }
    }
}

fn export(node: &Path, output: Option<&Path>) -> ExitCode {
    let exported = match export_store(node, &PLUGINS) {
        Ok(exported) => exported,
        Err(faults) => return refused(&faults),
    };
    let StoreExport { resources, left_out, missing, lacking } = exported;
    lacking.iter().for_each(|fault| say!("warning: {fault}; the resource is exported"));
    left_out.iter().for_each(|fault| say!("{fault}"));
    let written = write(&format!("{resources:#}\n"), output);
    if missing == 0 {
        return written;
    }
    let (are, they) = if missing == 1 { ("resource is", "it") } else { ("resources are", "them") };
    say!(
        "{missing} {are} not in the export, since an import would refuse {they}; correct or delete {they} in the store"
    );
    ExitFailure::Configuration.into()
}

fn import(node: &Path, files: &[PathBuf]) -> ExitCode {
    let files = match resource_files::read(files) {
        Ok(files) => files,
        Err(problems) => {
            problems.lines().for_each(|line| say!("{line}"));
            return ExitFailure::Configuration.into();
        }
    };
    match import_into_store(node, files.values(), &PLUGINS) {
        Ok((changed, revision)) => {
            say!("imported: {changed} resources changed, revision {revision}");
            exit::DONE
        }
        Err(faults) => refused(&faults.into_iter().map(|fault| files.placed(fault)).collect::<Vec<_>>()),
    }
}

fn write(text: &str, output: Option<&Path>) -> ExitCode {
    let Some(path) = output.filter(|path| *path != Path::new("-")) else { return say::print(text.as_bytes()) };
    match whole_file::replace(path, text.as_bytes()) {
        Ok(()) => exit::DONE,
        Err(error) => {
            say!("{}: cannot be written: {error}", path.display());
            ExitFailure::System.into()
        }
    }
}

/// Says the faults. What is not in any text is a refusal of the store, which may succeed later.
fn refused(faults: &[Diagnostic]) -> ExitCode {
    faults.iter().for_each(|fault| say!("{fault}"));
    let is_of_store = |fault: &Diagnostic| fault.path.is_empty() && fault.cause.is_outside();
    if faults.iter().any(is_of_store) { ExitFailure::Refused.into() } else { ExitFailure::Configuration.into() }
}
