//! The lab as a separate program, for use without Weir: `weir-bench run quick`.

use std::process::ExitCode;

use clap::Parser;

/// A laboratory for API gateways.
#[derive(Parser)]
#[command(version)]
enum CommandLine {
    #[command(flatten)]
    Bench(weir_bench::cli::LabCommand),
    /// Load a URL
    Load(Box<weir_bench::cli::load::LoadArguments>),
    /// Run a built-in backend
    Backend(weir_bench::cli::backend::BackendArguments),
}

fn main() -> ExitCode {
    let command = match CommandLine::parse() {
        CommandLine::Bench(command) => command,
        CommandLine::Load(arguments) => return weir_bench::cli::load::main(*arguments),
        CommandLine::Backend(arguments) => return weir_bench::cli::backend::main(arguments),
    };
    match weir_bench::cli::run(command) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}
