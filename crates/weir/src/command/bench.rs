use std::process::ExitCode;

use clap::Args;
use weir_bench::cli;

use crate::say::say;

/// Measures Weir and other gateways, and reports the results.
///
/// Exits with 0, with 1 if a result is invalid or results differ, or with 2 if there is no result.
#[derive(Debug, Args)]
pub(crate) struct BenchCommand {
    #[command(subcommand)]
    command: cli::LabCommand,
}

impl BenchCommand {
    pub(crate) fn execute(self) -> ExitCode {
        match cli::run(self.command) {
            Ok(status) => ExitCode::from(status),
            Err(error) => {
                say!("{error}");
                ExitCode::from(2)
            }
        }
    }
}
