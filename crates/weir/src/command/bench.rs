use std::process::ExitCode;

use clap::Args;
use weir_bench::cli;

use crate::say::say;

/// Measures Weir and other gateways, and reports the results.
///
/// Exits with 0, with 1 when a result is invalid, or with 2 when there is no result.
#[derive(Debug, Args)]
pub struct BenchCommand {
    #[command(subcommand)]
    command: cli::LabCommand,
}

impl BenchCommand {
    pub fn execute(self) -> ExitCode {
        match cli::run(self.command) {
            Ok(status) => ExitCode::from(status),
            Err(error) => {
                say!("{error}");
                ExitCode::from(2)
            }
        }
    }
}
