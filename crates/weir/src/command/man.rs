use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory};

use super::Weir;
use crate::exit::{self, ExitFailure};
use crate::say::{self, say};

/// Prints the manual page; read it with `weir man | man -l -`.
///
/// Each command has a separate page: `weir man run | man -l -`, `weir man bench run | man -l -`.
#[derive(Debug, Args)]
pub(crate) struct Man {
    /// The command, such as `run` or `bench run`; without it, the page lists all commands
    command: Vec<String>,
    /// Writes the pages of all commands into this directory instead
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "command")]
    to: Option<PathBuf>,
}

impl Man {
    pub(crate) fn execute(self) -> ExitCode {
        let weir = Weir::command();
        if let Some(directory) = &self.to {
            return match clap_mangen::generate_to(weir, directory) {
                Ok(()) => exit::DONE,
                Err(error) => {
                    say!("the manual pages cannot be written to {}: {error}", directory.display());
                    ExitFailure::System.into()
                }
            };
        }
        let mut command = weir;
        for (depth, name) in self.command.iter().enumerate() {
            let Some(below) = command.find_subcommand(name) else {
                let known: Vec<&str> = command.get_subcommands().map(|command| command.get_name()).collect();
                say!("there is no command {name:?}; the commands are {}", known.join(", "));
                return ExitCode::from(2);
            };
            command = below.clone().display_name(format!("weir-{}", self.command[..=depth].join("-")));
        }
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page).expect("memory takes it");
        say::print(&page)
    }
}
