use std::process::ExitCode;

use clap::Args;

use crate::exit;

/// Prints the version.
#[derive(Debug, Args)]
pub struct Version {}

impl Version {
    pub fn execute(self) -> ExitCode {
        println!("weir {}", env!("CARGO_PKG_VERSION"));
        exit::DONE
    }
}
