//! The commands, one file each; those of the lab are in its own crate.

pub mod bench;
pub mod check;
pub mod completions;
pub mod explain;
pub mod man;
pub mod plugins;
pub mod run;
pub mod version;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::exit;

/// An API gateway that measures itself.
#[derive(Debug, Parser)]
#[command(name = "weir", version, after_help = exit::HELP)]
pub struct Weir {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Run),
    Check(check::Check),
    Explain(explain::Explain),
    Plugins(plugins::Plugins),
    Version(version::Version),
    Completions(completions::Completions),
    Man(man::Man),
    Load(Box<weir_bench::cli_load::Args>),
    Backend(weir_bench::cli_backend::Args),
    Bench(bench::Bench),
}

impl Weir {
    pub fn execute(self) -> ExitCode {
        match self.command {
            Command::Run(command) => command.execute(),
            Command::Check(command) => command.execute(),
            Command::Explain(command) => command.execute(),
            Command::Plugins(command) => command.execute(),
            Command::Version(command) => command.execute(),
            Command::Completions(command) => command.execute(),
            Command::Man(command) => command.execute(),
            Command::Load(options) => weir_bench::cli_load::main(*options),
            Command::Backend(options) => weir_bench::cli_backend::main(options),
            Command::Bench(command) => command.execute(),
        }
    }
}
