//! `weir bench`: the command line of the lab.

mod run;

use clap::Subcommand;

/// What `weir bench` can do.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Run a scenario and write its result.
    Run(run::Arguments),
}

/// Runs a command; the number is the process's exit status: 0, or 1 when the result is invalid.
pub fn run(command: Bench) -> Result<u8, String> {
    match command {
        Bench::Run(arguments) => run::run(arguments),
    }
}
