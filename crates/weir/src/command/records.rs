use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use crate::exit::{self, ExitFailure};
use crate::say::say;

/// Shows what became of the records of a node, from its `data_dir`: also while the node is down.
///
/// For a node that runs, `/records` on its status address says the same and more. Of a node that has died, what was in memory is
/// shown as pending there; its next start books it as lost.
#[derive(Debug, Args)]
pub struct RecordsCommand {
    /// The node's `data_dir`.
    directory: PathBuf,
}

impl RecordsCommand {
    pub fn execute(self) -> ExitCode {
        match weir_records::read_accounts(&self.directory.join("records")) {
            Ok(sinks) => {
                let report = json!({ "sinks": sinks });
                println!("{report:#}");
                exit::DONE
            }
            Err(error) => {
                say!("{}: {error}; name the `data_dir` of a node", self.directory.display());
                ExitFailure::System.into()
            }
        }
    }
}
