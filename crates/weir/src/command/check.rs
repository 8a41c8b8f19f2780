use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::exit::{self, ExitFailure};
use crate::node::PLUGINS;
use crate::say::say;

/// Checks a configuration file and prints everything that is wrong with it.
///
/// Faults go to standard error, one a line, each with its place. Names of hosts are not looked up.
#[derive(Debug, Args)]
pub struct CheckCommand {
    /// The configuration file.
    file: PathBuf,
}

impl CheckCommand {
    pub fn of(file: PathBuf) -> Self {
        Self { file }
    }

    pub fn execute(self) -> ExitCode {
        let file = self.file.display();
        match weir_control::check_file(&self.file, &PLUGINS) {
            Ok(warnings) => {
                for warning in warnings {
                    say!("warning: {warning}");
                }
                say!("{file} is valid");
                exit::DONE
            }
            Err(faults) => {
                for fault in &faults {
                    say!("{fault}");
                }
                let count = faults.len();
                say!("{file} is not valid: {count} {}", if count == 1 { "fault" } else { "faults" });
                ExitFailure::Configuration.into()
            }
        }
    }
}
