//! The lab as a program of its own, for those who measure gateways and do not run Weir: `weir-bench run quick`.

use std::process::ExitCode;

use clap::Parser;

/// A laboratory for API gateways.
#[derive(Parser)]
#[command(version)]
struct CommandLine {
    #[command(subcommand)]
    command: weir_bench::cli::Bench,
}

fn main() -> ExitCode {
    match weir_bench::cli::run(CommandLine::parse().command) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}
