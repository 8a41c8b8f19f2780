use std::io::Write;
use std::process::ExitCode;

use clap::Args;

pub(crate) use weir_bench::manifest::VERSION;

use crate::exit;

/// Prints the version.
#[derive(Debug, Args)]
pub(crate) struct VersionCommand {}

impl VersionCommand {
    pub(crate) fn execute(self) -> ExitCode {
        // A closed pipe is not a failure.
        let _ = writeln!(std::io::stdout(), "weir {VERSION}");
        exit::DONE
    }
}
