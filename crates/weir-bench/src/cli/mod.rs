//! `weir bench`: the command line of the lab.

pub mod backend;
mod files;
mod import;
pub mod load;
mod machine;
pub(crate) mod print;
mod run;
mod schema;

use clap::Subcommand;

/// What `weir bench` can do.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Run a scenario: a table, a report, a result file, and a verdict
    Run(run::Arguments),
    /// List scenarios and targets
    List(machine::List),
    /// Compare two results cell by cell
    Compare(files::Compare),
    /// Draw reports from result files
    Report(files::Report),
    /// Run the scenario of a result file again and compare
    Replay(files::Replay),
    /// Write a result in another tool's format
    Export(files::Export),
    /// Say how many nodes a rate needs, from a result over several numbers of workers
    Capacity(files::Capacity),
    /// Judge figures that somebody published, as results of the lab are judged
    Judge(files::Judge),
    /// Print what a scenario or a publication may say, as JSON Schema
    Schema(schema::Schema),
    /// Look at this machine: limits, settings, topology, and what to change
    Doctor(machine::Doctor),
    /// Take a JMeter test plan
    Import(import::Import),
    /// Install a target or a backend from the registry its folder names
    Install(machine::Install),
}

/// Runs a command. The number is the exit status: 0, or 1 when a result is invalid or differs.
pub fn run(command: Bench) -> Result<u8, String> {
    match command {
        Bench::Run(arguments) => run::run(arguments),
        Bench::List(arguments) => machine::list(arguments),
        Bench::Compare(arguments) => files::compare(arguments),
        Bench::Report(arguments) => files::report(arguments),
        Bench::Replay(arguments) => files::replay(arguments),
        Bench::Export(arguments) => files::export(arguments),
        Bench::Capacity(arguments) => files::capacity(arguments),
        Bench::Judge(arguments) => files::judge(arguments),
        Bench::Schema(arguments) => schema::schema(arguments),
        Bench::Doctor(arguments) => machine::doctor(arguments),
        Bench::Import(arguments) => import::import(arguments),
        Bench::Install(arguments) => machine::install(arguments),
    }
}
