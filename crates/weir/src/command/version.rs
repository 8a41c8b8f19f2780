use std::io::Write;
use std::process::ExitCode;

use clap::Args;

use crate::exit;

/// The version, and whether the build is one for development. The lab tells builds apart by it.
pub(crate) const VERSION: &str = if cfg!(debug_assertions) {
    concat!(env!("CARGO_PKG_VERSION"), " (not optimised)")
} else {
    env!("CARGO_PKG_VERSION")
};

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
