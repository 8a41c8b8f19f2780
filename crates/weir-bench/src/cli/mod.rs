//! `weir bench`: the command line of the lab.

mod agent;
pub mod backend;
mod error;
mod files;
mod import;
pub mod load;
mod machine;
pub(crate) mod print;
mod run;
mod schema;
mod sign;
mod trials;

use clap::Subcommand;

pub use self::error::{LabError, LoadCommandError};

/// What `weir bench` can do.
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// Runs a scenario, and writes a table, a report, a result file and a verdict
    Run(Box<run::Arguments>),
    /// Measures a scenario many times, and counts how often each target is called different from the baseline: a test of the lab
    /// with equal targets, or with a planted difference
    Trials(Box<trials::TrialsArguments>),
    /// Runs parts of the lab for `weir bench run` on another machine
    Agent(agent::AgentArguments),
    /// Lists the scenarios, and the targets with their installed programs
    List(machine::ListArguments),
    /// Compares two results cell by cell. Exits with 1 if throughput or CPU time differ
    Compare(files::CompareArguments),
    /// Writes an HTML report next to each result file, and prints its table and verdict
    Report(files::ReportArguments),
    /// Writes a page of Markdown from stored results: figures with their spread, or the cost of each plugin
    Page(files::PageArguments),
    /// Runs the scenario of a result file again, and compares the results
    Replay(files::ReplayArguments),
    /// Signs result files, so that a reader can prove that they are unchanged
    Sign(sign::SignArguments),
    /// Verifies signatures of result files. Exits with 1 if a file has changed, or has the signature of another key
    Verify(sign::VerifyArguments),
    /// Prints a result in the format of another tool
    Export(files::ExportArguments),
    /// Calculates how many workers a rate needs, from a result with several worker counts
    Capacity(files::CapacityArguments),
    /// Checks published figures by the rules that apply to results of the lab
    Judge(files::JudgeArguments),
    /// Prints the JSON Schema of scenario files or publication files
    Schema(schema::SchemaArguments),
    /// Checks limits, settings and topology of this machine, and recommends changes
    Doctor(machine::DoctorArguments),
    /// Converts a JMeter test plan to a plan for `weir load`
    Import(import::ImportArguments),
    /// Installs targets or backends from the package registries that their folders name
    Install(machine::InstallArguments),
}

/// Runs a command. The number is the exit status: 0, or 1 when a result is invalid or differs.
pub fn run(command: LabCommand) -> Result<u8, LabError> {
    match command {
        LabCommand::Run(arguments) => run::run(*arguments),
        LabCommand::Trials(arguments) => trials::trials(*arguments),
        LabCommand::Agent(arguments) => agent::agent(arguments),
        LabCommand::List(arguments) => machine::list(arguments),
        LabCommand::Compare(arguments) => files::compare(arguments),
        LabCommand::Report(arguments) => files::report(arguments),
        LabCommand::Page(arguments) => files::page(arguments),
        LabCommand::Replay(arguments) => files::replay(arguments),
        LabCommand::Sign(arguments) => sign::sign(arguments),
        LabCommand::Verify(arguments) => sign::verify(arguments),
        LabCommand::Export(arguments) => files::export(arguments),
        LabCommand::Capacity(arguments) => files::capacity(arguments),
        LabCommand::Judge(arguments) => files::judge(arguments),
        LabCommand::Schema(arguments) => schema::schema(arguments),
        LabCommand::Doctor(arguments) => machine::doctor(arguments),
        LabCommand::Import(arguments) => import::import(arguments),
        LabCommand::Install(arguments) => machine::install(arguments),
    }
}
